"""Whether a path names an existing file or folder; False for names that no file can have.

The methods of `pathlib.Path` raise for names that are too long, and before Python 3.14 also where a
folder may not be searched.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

__all__ = [
    "as_argument",
    "command_line",
    "command_words",
    "exists",
    "is_file",
    "is_folder",
]


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


def command_words(*words: object) -> list[str]:
    """Return a command of dither as words, in which a `Path` is never taken for an option."""
    command = ["dither"]
    for word in words:
        command.append(as_argument(word) if isinstance(word, Path) else str(word))
    return command


def command_line(*words: object) -> str:
    """Return a command of dither for a shell, to be printed; words as for `command_words`."""
    return shlex.join(command_words(*words))
