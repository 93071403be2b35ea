"""Whether a path names an existing file or folder; False for names that no file can have.

The methods of `pathlib.Path` raise for names that are too long, and before Python 3.14 also where a
folder may not be searched.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["as_argument", "exists", "is_file", "is_folder"]


def exists(path: Path) -> bool:
    """Return whether there is a file or folder, following links."""
    return os.path.exists(path)


def is_file(path: Path) -> bool:
    """Return whether there is a regular file, following links."""
    return os.path.isfile(path)


def is_folder(path: Path) -> bool:
    """Return whether there is a folder, following links."""
    return os.path.isdir(path)


def as_argument(path: Path | str) -> str:
    """Return a path as an argument of a command, which does not take it for an option; not quoted."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text
