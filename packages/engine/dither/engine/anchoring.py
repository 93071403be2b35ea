"""Paths that an experiment gives relative to where it was started, made absolute: a run goes on from anywhere."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["anchored"]

NAMES = frozenset({"path", "paths", "start_from"})
"""Options that name files, whatever their ending."""


def anchored(tree: Mapping[str, Any], here: Path) -> dict[str, Any]:
    """Return the values of an experiment with every path that leads to something from `here` made absolute.

    A value is a path where its option is called so, or where it has an ending and there is a file of that name.
    Patterns are made absolute too. What leads nowhere stays as it is, to be told by the part that reads it.
    """
    return {key: _anchored(key, value, here) for key, value in tree.items()}


def _anchored(key: str, value: Any, here: Path) -> Any:
    if key == "plugins":
        return value
    if isinstance(value, Mapping):
        return anchored(value, here)
    if isinstance(value, list):
        return [_anchored(key, item, here) for item in value]
    if isinstance(value, str) and _leads(key, value, here):
        return str(here / value)
    return value


def _leads(key: str, value: str, here: Path) -> bool:
    if not value or "\0" in value or value.startswith("~") or Path(value).is_absolute():
        return False
    try:
        if key in NAMES:
            return (here / value).exists() or bool(glob.glob(value, root_dir=here, recursive=True))
        return bool(Path(value).suffix) and (here / value).is_file()
    except OSError:  # too long to be the name of a file
        return False
