"""Write an index of plugins from wheels and folders of projects.

    python tools/index.py [--out FILE] [--check] [WHEEL|FOLDER]...

By default it writes the index that dither ships, of the projects in docs/examples/plugins. Nothing is imported:
names and summaries are those of the metadata, components those of dither-plugin.json. With --check it only compares.
"""

import argparse
import json
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from email.parser import Parser
from pathlib import Path
from typing import Any

from dither.registry.files.cache import read_member
from dither.registry.files.limits import read_text
from dither.registry.plugins.discovery import GROUP
from dither.registry.plugins.index import SNAPSHOT, parse_index
from dither.registry.plugins.manifest import MANIFEST, parse_manifest

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples" / "plugins"
LARGEST = 1 << 20
"""Most bytes of a file in a wheel that is read."""


def main() -> int:
    """Write or compare the index; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=SNAPSHOT)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("sources", nargs="*", type=Path)
    options = parser.parse_args()
    sources = options.sources or sorted(EXAMPLES.glob("*/"))

    tables = []
    for source in sources:
        tables += entries_of(source)
    tables.sort(key=lambda table: (table["distribution"], table["plugin"]))
    text = json.dumps({"plugins": tables}, indent=1, ensure_ascii=False) + "\n"
    if len(parse_index(text.encode(), options.out)) < len(tables):
        raise SystemExit(f"an entry is not valid: {text}")

    if options.check:
        if options.out.read_text("utf-8") != text:
            raise SystemExit(f"{options.out} is not up to date: python tools/index.py")
        return 0
    options.out.write_text(text, "utf-8")
    return 0


def entries_of(source: Path) -> Iterator[dict[str, Any]]:
    """Yield an entry for each plugin of a wheel or of the folder of a project."""
    project = _of_wheel(source) if source.suffix == ".whl" else _of_folder(source)
    for plugin, module in project.pop("plugins").items():
        manifest = {"plugin": plugin}
        data = project["manifests"].get(module.replace(".", "/"))
        if data is not None:
            parsed = parse_manifest(data, source).model_dump()
            manifest = {key: parsed[key] for key in ("plugin", "dither", "kit")}
            # The options are in the manifest, which comes with the plugin.
            manifest["components"] = [
                {key: value for key, value in part.items() if key != "options"}
                for part in parsed["components"]
            ]
        yield {**project["about"], **manifest, "plugin": plugin}


def _of_folder(folder: Path) -> dict[str, Any]:
    project = tomllib.loads(read_text(folder / "pyproject.toml"))["project"]
    plugins = project["entry-points"][GROUP]
    manifests = {}
    for module in plugins.values():
        package = module.replace(".", "/")
        for path in (folder / package / MANIFEST, folder / "src" / package / MANIFEST):
            if path.is_file():
                manifests[package] = path.read_bytes()
    about = {
        "distribution": project["name"],
        "version": project["version"],
        "summary": project.get("description", ""),
    }
    return {"about": about, "plugins": plugins, "manifests": manifests}


def _of_wheel(wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    def member(name: str) -> str:
        return read_member(wheel, name, LARGEST).decode("utf-8")

    (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    headers = Parser().parsestr(member(metadata), headersonly=True)
    points = ConfigParser(delimiters=("=",), interpolation=None)
    points.read_string(member(metadata.replace("METADATA", "entry_points.txt")))
    manifests = {
        name.removesuffix(f"/{MANIFEST}"): read_member(wheel, name, LARGEST)
        for name in names
        if name.endswith(f"/{MANIFEST}")
    }
    about = {
        "distribution": headers["Name"],
        "version": headers["Version"],
        "summary": headers["Summary"] or "",
    }
    return {"about": about, "plugins": dict(points[GROUP]), "manifests": manifests}


if __name__ == "__main__":
    sys.exit(main())
