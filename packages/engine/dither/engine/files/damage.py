"""Why a file of a run, a sweep or an export cannot be used, in words of the user."""

from __future__ import annotations

import json
import tomllib
import zipfile
from dataclasses import dataclass

from dither.registry.config.errors import Refused

__all__ = ["UNREADABLE", "Damage", "DamageError", "damage_of"]

UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)
"""Exceptions of reading a missing or damaged file, whose content may be any JSON."""


class DamageError(ValueError):
    """A file has other content than dither writes; the message says which."""


@dataclass(frozen=True)
class Damage:
    """The code of a problem, and what is wrong, without the name of the file."""

    code: str
    reason: str


def damage_of(error: BaseException) -> Damage:
    """Return the damage that an exception of reading a file reports."""
    code = "damaged-file"
    if isinstance(error, Refused):
        code = error.codes[0]
        reason = "; ".join(problem.message for problem in error.problems)
    elif isinstance(error, DamageError):
        reason = str(error)
    elif isinstance(error, FileNotFoundError | NotADirectoryError):
        code = "file-not-found"
        reason = "no such file"
    elif isinstance(error, OSError):
        code = "unreadable-file"
        reason = f"cannot be read: {error.strerror or error}"
    else:
        reason = _syntax(error)
    return Damage(code, reason)


def _syntax(error: BaseException) -> str:
    if isinstance(error, json.JSONDecodeError):
        place = f"line {error.lineno}, column {error.colno}"
        return f"no valid JSON in {place}"
    if isinstance(error, tomllib.TOMLDecodeError):
        return f"no valid TOML: {error}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start:,} is not UTF-8"
    if isinstance(error, zipfile.BadZipFile | EOFError):
        return "no complete archive"
    if isinstance(error, RecursionError):
        return "its values are nested too deeply"
    # Messages of Python about a missing key or a wrong type say nothing about a file.
    return "a value is missing or has a wrong type"
