"""Print the third-party requirements of all packages, from which requirements.lock is compiled.

python .ci/requirements.py | uv pip compile - -c constraints.txt --universal --python-version 3.11 \
    --generate-hashes --no-header -o requirements.lock
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "dither-engine": ("tensorboard",),
    "dither-tasks": ("language", "plans", "regions"),
}
"""Extras that dither-diffusion installs."""


def requirements() -> list[str]:
    """Return the requirements of every package."""
    found = set()
    for path in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        found.update(project["dependencies"])
        for extra in EXTRAS.get(project["name"], ()):
            found.update(project["optional-dependencies"][extra])
    return sorted(
        requirement for requirement in found if not requirement.startswith("dither-")
    )


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements()) + "\n")
