"""The files of a new plugin, from the templates beside this module; written as a whole or not at all."""

from __future__ import annotations

import secrets
import shutil
from importlib.resources import files
from pathlib import Path
from string import Template

from dither.registry.problems import Refused

from .naming import Names

__all__ = ["render", "write_package"]

SUFFIX = ".template"
NEEDED = ("dither-registry>=0.1", "jaxtyping>=0.2.28", "pydantic>=2.8,<3", "torch>=2.11")
"""What most parts import."""
NEEDED_BY = {
    "data": ("dither-registry>=0.1", "dither-tasks>=0.1", "pydantic>=2.8,<3"),
    "lr-schedule": ("dither-registry>=0.1", "pydantic>=2.8,<3"),
}
"""What other parts import."""


def render(names: Names) -> dict[str, str]:
    """Return the text of each file by its path in the package."""
    folder = files(__package__) / "templates" / names.kind
    (work,) = {path.name for path in folder.iterdir()} - {f"specs.py{SUFFIX}", f"experiment.toml{SUFFIX}"}
    work = work.removesuffix(f".py{SUFFIX}")
    values = {
        "name": names.name,
        "kind": names.kind,
        "distribution": names.distribution,
        "module": names.module,
        "part": names.part,
        "work": work,
        "dependencies": ", ".join(f'"{pin}"' for pin in NEEDED_BY.get(names.kind, NEEDED)),
    }
    templates = {
        "pyproject.toml": "package/pyproject.toml",
        "README.md": "package/README.md",
        ".gitignore": "package/gitignore",
        "experiment.toml": f"{names.kind}/experiment.toml",
        f"{names.module}/__init__.py": "package/init.py",
        f"{names.module}/specs.py": f"{names.kind}/specs.py",
        f"{names.module}/{work}.py": f"{names.kind}/{work}.py",
        "tests/test_conformance.py": "package/tests/test_conformance.py",
    }
    texts = {path: Template(_read(template)).substitute(values) for path, template in templates.items()}
    return {**texts, f"{names.module}/py.typed": ""}


def write_package(names: Names, into: Path) -> Path:
    """Write the package into a folder of its own, and return that; what exists is never touched.

    Args:
        names: What it is called.
        into: An existing folder.

    Raises:
        Refused: Something is in the way, or the folder cannot be written to.
    """
    target = into / names.distribution
    if not into.is_dir():
        raise Refused(f"{into} is no folder")
    if target.exists() or target.is_symlink():
        raise Refused(f"{target} exists already, and nothing is overwritten")
    beside = into / f".{names.distribution}-{secrets.token_hex(4)}"
    try:
        for path, text in render(names).items():
            (beside / path).parent.mkdir(parents=True, exist_ok=True)
            (beside / path).write_text(text, encoding="utf-8")
        beside.rename(target)
    except OSError as error:
        raise Refused(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _read(template: str) -> str:
    return (files(__package__) / "templates").joinpath(f"{template}{SUFFIX}").read_text(encoding="utf-8")
