"""Read TOML from a regular file of limited size, with the place of every syntax error."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from ..spec.misfit import Path as KeyPath
from .errors import Origin, Problem, Refused

__all__ = ["MAX_BYTES", "parse_toml", "read_text", "syntax_problem", "too_large_integers"]

MAX_BYTES = 256 * 1024
"""Size of an experiment file together with the files it extends."""
MAX_DEPTH = 64
"""Parts of a dotted key, and levels of nesting: tomllib takes 10 s and 1.5 GB for a key of 20,000 parts."""
STRING_OR_COMMENT = re.compile(
    r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*+(?:"{3,5}|\\?\Z)'
    r"|'''(?:[^']++|'{1,2}(?!'))*+(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
KEY = re.compile(r"[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++)*+")
PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
DUPLICATE = re.compile(r"Cannot (overwrite|declare|mutate)")
FIRST_KEY = re.compile(r"[ \t]*\[*[ \t]*([^\s=\]]+)")
INTEGERS = range(-(2**63), 2**63)


def read_text(path: Path, room: int = MAX_BYTES) -> str:
    """Return the text of a regular file of at most `room` bytes.

    Raises:
        Refused: It is missing, too large, not UTF-8, or a folder, pipe or device.
    """
    try:
        with open(path, "rb", buffering=0, opener=_nonblocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{path} is a pipe or a device, not a file", code="unreadable-file")
            content = b""
            while len(content) <= room and (chunk := file.read(room + 1 - len(content))):
                content += chunk
    except FileNotFoundError:
        raise Refused(f"file {path} does not exist", code="file-not-found") from None
    except IsADirectoryError:
        raise Refused(f"{path} is a folder, not a file", code="unreadable-file") from None
    except (OSError, ValueError) as error:  # ValueError: the path contains a null byte
        reason = getattr(error, "strerror", None) or error
        raise Refused(f"cannot read {path}: {reason}", code="unreadable-file") from None
    if len(content) > room:
        extended = "" if room == MAX_BYTES else " together with the files it extends"
        size = max(status.st_size, len(content))
        text = f"{path} has {size:,} bytes; an experiment file{extended} may have at most {MAX_BYTES:,}"
        raise Refused(text, code="too-large")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Refused(f"{path}:{line}: not UTF-8 (byte {error.start})", code="unreadable-file") from None


def _nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe without a writer would block


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse a TOML text.

    Args:
        text: The text.
        name: File name or option, for messages.

    Raises:
        tomllib.TOMLDecodeError: The syntax is invalid; `syntax_problem` locates it.
        Refused: It is nested too deeply, a key has too many parts, or an integer too many digits.
    """
    _check_dotted_keys(text, name)
    try:
        tree = tomllib.loads(text)
        _check_depth(tree)
    except RecursionError:
        raise Refused(f"{name}: nested more than {MAX_DEPTH} levels deep", code="too-large") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python converts integers of at most 4,300 digits
        raise Refused(f"{name}: {error}", code="out-of-range") from None
    return tree


def _check_dotted_keys(text: str, name: str) -> None:
    if all(line.count(".") < MAX_DEPTH for line in text.split("\n")):
        return
    masked = STRING_OR_COMMENT.sub(lambda match: ("#" if match[0][0] == "#" else "q") * len(match[0]), text)
    for key in KEY.finditer(masked):
        if (parts := key[0].count(".") + 1) > MAX_DEPTH:
            message = f"a key has {parts:,} parts; at most {MAX_DEPTH} are allowed"
            raise Refused(Problem(message, origin=Origin.within(name, text, *key.span()), code="too-large"))


def _check_depth(tree: Any, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise RecursionError
    for value in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(value, dict | list):
            _check_depth(value, depth + 1)


def too_large_integers(tree: Any, path: KeyPath = ()) -> list[KeyPath]:
    """Return the paths of integers that do not fit into 64 bits, as TOML requires."""
    found: list[KeyPath] = []
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            found += too_large_integers(value, (*path, key))
        elif type(value) is int and value not in INTEGERS:
            found.append((*path, key))
    return found


def syntax_problem(error: tomllib.TOMLDecodeError, text: str, name: str) -> Problem:
    """Return the message of tomllib with its place in the text, which is called `name`."""
    message, place = PLACE.sub("", str(error)), PLACE.search(str(error))
    if place is None or place[1] is None:
        start, message = len(text.rstrip()), message + " at the end of the file"
    else:
        before = text.split("\n", int(place[1]) - 1)[:-1]
        start = sum(len(line) + 1 for line in before) + int(place[2]) - 1
    end = start + 1
    if DUPLICATE.match(message):  # tomllib reports the end of the statement
        key = FIRST_KEY.match(text, text.rfind("\n", 0, start) + 1)
        start, end = key.span(1) if key else (start, end)
    message = f"invalid TOML: {message[:1].lower()}{message[1:]}"
    return Problem(message, origin=Origin.within(name, text, start, end), code="syntax-error")
