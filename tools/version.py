"""Print the version of dither, or set it in every file that has it.

    python tools/version.py [VERSION]

The place is pyproject.toml of the root; distributions require each other in exactly this version.
"""

import re
import sys
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[1]


def main(root: Path, *versions: str) -> int:
    """Print the version of a checkout, or set the one that is given; return the exit code."""
    pyproject = root / "pyproject.toml"
    old = tomllib.loads(pyproject.read_text())["project"]["version"]
    if not versions:
        sys.stdout.write(f"{old}\n")
        return 0
    (new,) = map(Version, versions)
    place = rf'(^version = "|^version: |"dither-[^"]*==){re.escape(old)}\b'
    packages = root.glob("packages/*/pyproject.toml")
    for path in (pyproject, root / "CITATION.cff", *packages):
        text = re.sub(place, rf"\g<1>{new}", path.read_text(), flags=re.MULTILINE)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(ROOT, *sys.argv[1:]))
