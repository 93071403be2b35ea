"""What may be read at all: a regular file of text, not too large, whose tables, keys and numbers are not endless.

Some texts that tomllib would read cost it seconds and gigabytes: one key of 20,000 parts takes 10 s and 1.5 GB. They
are refused by their looks, before they are parsed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path

from .errors import Origin, Problem, Refused

__all__ = ["DEEPEST", "LARGEST", "check_text", "read_text", "syntax_problem"]

LARGEST = 256 * 1024
"""Bytes of an experiment file with all that it extends: far above any real one."""
DEEPEST = 32
"""Parts of a key, and tables or arrays inside each other."""
MOST_VALUES = 20_000
"""Keys, headers and elements of arrays in a file."""
MOST_DIGITS = 4300
"""Digits of a decimal number that Python reads."""

STRINGS = (
    r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*+(?:"{3,5}|\\?\Z)',
    r"'''(?:[^']++|'{1,2}(?!'))*+(?:'{3,5}|\Z)",
)
PART = r"""(?:[\w-]++|"(?:[^"\\\n]++|\\.)*+"?|'[^'\n]*+'?)"""
TOKEN = re.compile(
    rf"#[^\n]*+|{'|'.join(STRINGS)}|(?P<open>[\[{{])|(?P<close>[\]}}])|(?P<key>{PART}(?:[ \t]*+\.[ \t]*+{PART})*+)",
    re.DOTALL,
)
"""What matters in a text that may be no TOML at all. No two alternatives overlap, so the search never goes back."""
KEY_PART = re.compile(PART, re.DOTALL)
NUMBER = re.compile(rf"(?<![\w.])[+-]?\d[\d_]{{{MOST_DIGITS},}}")


def read_text(path: Path, room: int = LARGEST) -> str:
    """Return the text of a regular file of at most `room` bytes.

    Raises:
        Refused: It is missing, too large, not UTF-8, or a folder, pipe or device, of which nothing is read.
    """
    try:
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{path} is a pipe or a device, not a file")
            content = b"".join(_chunks(file, room + 1))
    except FileNotFoundError:
        raise Refused(f"file {path} does not exist") from None
    except IsADirectoryError:
        raise Refused(f"{path} is a folder, not a file") from None
    except (OSError, ValueError) as error:  # ValueError: the path holds a zero byte
        raise Refused(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > room:
        among = "" if room == LARGEST else " with all that it extends"
        raise Refused(
            f"{path} has {max(status.st_size, len(content)):,} bytes; an experiment file{among} has at most {LARGEST:,}"
        )
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Refused(f"{path}:{line} is not UTF-8 text: byte {error.start} cannot be read") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to would else be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _chunks(file: RawIOBase, room: int) -> Iterator[bytes]:
    while room > 0 and (chunk := file.read(room)):
        room -= len(chunk)
        yield chunk


def check_text(text: str, name: str) -> None:
    """Refuse a text that would take too long to parse, or that no person wrote.

    Raises:
        Refused: With the place in the text, which is called `name`.
    """
    if text.count("[") + text.count("{") > DEEPEST or any(line.count(".") >= DEEPEST for line in text.split("\n")):
        _check_depth(text, name)
    values = sum(map(text.count, "=,["))
    if values > MOST_VALUES:
        raise Refused(f"{name} has about {values:,} keys and elements; at most {MOST_VALUES:,} are read")
    if len(text) > MOST_DIGITS and (number := NUMBER.search(text)):
        digits = sum(map(str.isdigit, number[0]))
        raise _refusal(f"a number of {digits:,} digits cannot be read", name, text, *number.span())


def _check_depth(text: str, name: str) -> None:
    depth = 0
    for token in TOKEN.finditer(text):
        if token["open"]:
            depth += 1
            if depth > DEEPEST:
                message = f"more than {DEEPEST} tables or arrays stand inside each other"
                raise _refusal(message, name, text, *token.span())
        elif token["close"]:
            depth = max(depth - 1, 0)
        elif token["key"] and token["key"].count(".") >= DEEPEST:
            parts = sum(1 for _ in KEY_PART.finditer(token["key"]))
            if parts > DEEPEST:
                message = f"a key has {parts:,} parts; at most {DEEPEST} are read"
                raise _refusal(message, name, text, *token.span())


def _refusal(message: str, name: str, text: str, start: int, end: int) -> Refused:
    return Refused(Problem(message, (), Origin.within(name, text, start, end)))


PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
WORDS: tuple[tuple[str, str, str | None], ...] = (
    ("Cannot overwrite a value", "the key was given before", "a key stands once in a table; drop one of the two"),
    ("Cannot declare", "the table was opened before", "put the keys of both under one header"),
    (
        "Cannot mutate immutable",
        "the table was closed before",
        "put the key inside the braces, or open the table with [...]",
    ),
    ("Illegal character '\\n'", "the string does not end on its line", 'close it with a quote, or open it with """'),
    (
        "Invalid value",
        "expected a value",
        'a value is a number, true, false, a "string" in quotes, a [list] or a { table }',
    ),
    ("Expected newline or end", "expected the end of the line", None),
    ("Expected '=' after", 'expected "=" after the key', None),
    ("Invalid statement", "neither a key nor a [table]", None),
    ("Unclosed array", 'expected "," or "]"', None),
    ("Unclosed inline table", 'expected "," or "}"', None),
    ("Unescaped '\\' in a string", "a backslash in quotes begins an escape", "write it twice, or the string in '...'"),
)
"""How a message of tomllib begins, what to say instead, and a word of help."""
WHOLE_KEY = ("the key was given before", "the table was opened before", "the table was closed before")
KEY = re.compile(r"\[*[ \t]*([^\s=\]]+)")


def syntax_problem(error: str, text: str, name: str) -> Problem:
    """Return the problem of which tomllib speaks, at its place.

    Args:
        error: The message of tomllib.
        text: What was read.
        name: What the text is called.
    """
    place = PLACE.search(error)
    at_end = place is None or place[1] is None
    start = len(text.rstrip()) if at_end or place is None else _offset(text, int(place[1]), int(place[2]))
    message = PLACE.sub("", error)
    found = ((words, hint) for beginning, words, hint in WORDS if message.startswith(beginning))
    words, hint = next(found, (message[:1].lower() + message[1:], None))
    end = start + 1
    if words in WHOLE_KEY:  # tomllib speaks of where the statement ends
        line = text.rfind("\n", 0, start) + 1
        if key := KEY.match(text, line):
            start, end = key.span(1)
    words += " at the end of the file" if at_end and place else ""
    return Problem(f"not valid TOML: {words}", (), Origin.within(name, text, start, end), hint)


def _offset(text: str, line: int, column: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start + column - 1
