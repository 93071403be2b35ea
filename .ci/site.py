"""Hooks of mkdocs: pages outside of docs/, the generated reference, and links to files of the repository.

mkdocs build --strict
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

from dither.registry.config.errors import CODES
from dither.testing import CHECKS
from dither.testing.traits import DECLARED_TRAITS, IMPLIED_TRAITS

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""Pages of the root and their places in the site."""
LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#]+)")
merged = tempfile.TemporaryDirectory()


@event_priority(100)  # before mkdocstrings reads its paths
def on_config(config: Any) -> None:
    """Collect the subpackages of dither, which several distributions share, in one folder for mkdocstrings."""
    package = Path(merged.name, "dither")
    for path in ROOT.glob("packages/*/dither"):
        shutil.copytree(
            path, package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.pyi", "__pycache__")
        )
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [merged.name]


def on_files(files: Files, config: Any) -> None:
    """Add the pages of the root, the reference of components, and files of the repository to which pages link."""
    command = [sys.executable, "-m", "experiments.run", "list", "--markdown"]
    listed = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    codes = sorted((f"`{code}`", text) for code, text in CODES.items())
    pages = {place: (ROOT / name).read_text() for name, place in OUTSIDE.items()}
    pages |= {
        "components.md": listed,
        "errors.md": "# Error codes\n\n" + _table(("code", "meaning"), codes),
    }
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    origins = {place: name for name, place in OUTSIDE.items()}
    for file in files.documentation_pages():
        origin = ROOT / origins.get(file.src_uri, f"docs/{file.src_uri}")
        for link in LINK.findall(file.content_string) if file.src_uri.endswith(".md") else ():
            path = (origin.parent / link).resolve()
            place = _place(path)
            if path.is_file() and files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, content=path.read_bytes()))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to where their files are in the site."""
    if page.file.src_uri == "conformance.md":
        declared = [
            (kind, f"`{trait}`", meaning) for (kind, trait), meaning in DECLARED_TRAITS.items()
        ]
        implied = [("", f"`{trait}`", meaning) for trait, meaning in IMPLIED_TRAITS.items()]
        checks = [
            (c.kind, f"`{c.name}`", ", ".join(sorted(c.needs)), c.level, c.summary) for c in CHECKS
        ]
        markdown += f"\n## Traits\n\n{_table(('kind', 'trait', 'meaning'), [*declared, *implied])}"
        markdown += (
            f"\n## Checks\n\n{_table(('kind', 'check', 'needs', 'level', 'property'), checks)}"
        )
    origins = {place: name for name, place in OUTSIDE.items()}
    origin = ROOT / origins.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(match: re.Match[str]) -> str:
        path = (origin.parent / match[1]).resolve()
        up = len(PurePosixPath(page.file.src_uri).parts) - 1
        return (
            "../" * up + _place(path) if path.is_relative_to(ROOT) and path.exists() else match[0]
        )

    return LINK.sub(moved, markdown)


def _place(path: Path) -> str:
    """Return the place in the site of a file of the repository; code and TOML are shown as text."""
    name = path.relative_to(ROOT).as_posix()
    inside = OUTSIDE.get(name, name.removeprefix("docs/"))
    return f"{inside}.txt" if path.suffix in (".py", ".toml") else inside


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        head,
        ["---"] * len(head),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
