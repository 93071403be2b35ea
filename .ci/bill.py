"""What dither is made of: the bill of materials (CycloneDX), and what of it others made.

python .ci/bill.py > sbom.cdx.json                 byte for byte the same from the same lock
python .ci/bill.py --requirements | uv pip compile - -c constraints.txt --universal --python-version 3.11 \
    --generate-hashes --no-header -o requirements.lock          newer versions, and the hashes of their files
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?: *; *(?P<marker>[^\\]+?))? *\\?$", re.MULTILINE)
EXTRAS = {"dither-engine": ("tensorboard",)}


def projects() -> list[dict[str, Any]]:
    """Return the [project] tables of what a run needs, by name."""
    files = [path for path in ROOT.glob("packages/*/pyproject.toml") if path.parent.name != "testing"]
    return sorted((tomllib.loads(path.read_text())["project"] for path in files), key=lambda one: str(one["name"]))


def needed(project: dict[str, Any]) -> list[str]:
    """Return what a distribution depends on, with the extras that requirements.txt has."""
    extras = [project["optional-dependencies"][name] for name in EXTRAS.get(project["name"], ())]
    return sorted({*project["dependencies"], *(one for extra in extras for one in extra)})


def name_of(requirement: str) -> str:
    """Return the name in a requirement, as indexes write it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[ ;]", requirement)[0]).lower()


def requirements() -> list[str]:
    """Return what others made and we name."""
    return sorted({one for project in projects() for one in needed(project) if not one.startswith("dither-")})


def bill(lock: str) -> dict[str, Any]:
    """Return the bill of materials of a lock file."""
    locked = sorted((match["name"].lower(), match["version"], match["marker"]) for match in LINE.finditer(lock))
    ours = projects()
    references: dict[str, list[str]] = {}  # an older Python may need an older version
    for name, version in [(one["name"], one["version"]) for one in ours] + [each[:2] for each in locked]:
        references.setdefault(name, []).append(f"pkg:pypi/{name}@{version}")
    components = [
        {
            "type": "library",
            "bom-ref": references[one["name"]][0],
            "name": one["name"],
            "version": one["version"],
            "description": one["description"],
            "licenses": [{"license": {"id": one["license"]}}],
            "purl": references[one["name"]][0],
        }
        for one in ours
    ]
    for name, version, marker in locked:
        scope, purl = "optional" if marker else "required", f"pkg:pypi/{name}@{version}"  # optional: on some systems
        components.append(
            {"type": "library", "bom-ref": purl, "name": name, "version": version, "scope": scope, "purl": purl}
        )
    depends = [
        {
            "ref": references[one["name"]][0],
            "dependsOn": sorted(purl for each in needed(one) for purl in references[name_of(each)]),
        }
        for one in ours
    ]
    top = {"type": "application", "bom-ref": "dither", "name": "dither", "version": ours[0]["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": top},
        "components": components,
        "dependencies": [{"ref": "dither", "dependsOn": sorted(references[one["name"]][0] for one in ours)}, *depends],
    }


if __name__ == "__main__":
    if "--requirements" in sys.argv:
        sys.stdout.write("\n".join(requirements()) + "\n")
    else:
        sys.stdout.write(json.dumps(bill((ROOT / "requirements.lock").read_text()), indent=2) + "\n")
