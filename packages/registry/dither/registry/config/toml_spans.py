"""Offsets of every key and value of a TOML text, which tomllib does not report.

The text is known to be valid TOML, so only as much grammar is parsed as is needed to walk over it.
"""

from __future__ import annotations

import re
import tomllib
from typing import NamedTuple

from ..spec.misfit import Path

__all__ = ["Span", "key_spans"]

SPACE = re.compile(r"[ \t]*")
BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*+")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
STRING = re.compile(
    r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*+"{3,5}|'  # multi-line basic
    r"'''(?:[^']++|'{1,2}(?!'))*+'{3,5}|"  # multi-line literal
    r'"(?:[^"\\\n]++|\\.)*+"|'  # basic
    r"'[^'\n]*'",  # literal
    re.DOTALL,
)
BARE_VALUE = re.compile(r"[^,\]}#\r\n]*[^,\]}#\r\n \t]")


class Span(NamedTuple):
    """Offsets of a key and its value; both those of the key for a table without a value."""

    key: tuple[int, int]
    value: tuple[int, int]


def key_spans(text: str) -> dict[Path, Span]:
    """Return the span of every key, table and array element, where it first occurs."""
    return _Walk(text).run()


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.spans: dict[Path, Span] = {}
        self.arrays: dict[Path, int] = {}

    def run(self) -> dict[Path, Span]:
        table: Path = ()
        while True:
            self.skip(BLANK)
            if self.at >= len(self.text):
                return self.spans
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)

    def skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        assert match is not None, f"not valid TOML at {self.at}"
        self.at = match.end()
        return match[0]

    def header(self) -> Path:
        """Parse `[a.b]` or `[[a.b]]` and return the path of the table it opens."""
        is_array = self.text.startswith("[[", self.at)
        brackets = 2 if is_array else 1
        self.at += brackets
        *outer, (name, place) = self.key()
        self.at += brackets
        path: Path = ()
        for part, where in outer:
            path = (*path, part)
            # A table may be opened by the header of an inner one; its first header is its place.
            self.spans.setdefault(path, Span(where, where))
            # The path of an array of tables means its last element.
            if path in self.arrays:
                path = (*path, self.arrays[path])
        path = (*path, name)
        self.spans.setdefault(path, Span(place, place))
        if is_array:
            self.arrays[path] = self.arrays.get(path, -1) + 1
            path = (*path, self.arrays[path])
            self.spans[path] = Span(place, place)
        return path

    def key(self) -> list[tuple[str, tuple[int, int]]]:
        """Parse a dotted key; return its parts with their offsets."""
        parts: list[tuple[str, tuple[int, int]]] = []
        while True:
            self.skip(SPACE)
            start = self.at
            is_quoted = self.text[start] in "\"'"
            name = self.skip(STRING if is_quoted else BARE_KEY)
            if is_quoted:
                # tomllib resolves the escapes.
                name = tomllib.loads(f"k = {name}")["k"]
            parts.append((name, (start, self.at)))
            self.skip(SPACE)
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def pair(self, path: Path) -> None:
        *outer, (name, place) = self.key()
        # A dotted key defines the tables on its way.
        for part, where in outer:
            path = (*path, part)
            self.spans.setdefault(path, Span(where, where))
        # The equals sign.
        self.at += 1
        self.value((*path, name), place)

    def value(self, path: Path, key: tuple[int, int] | None = None) -> None:
        """Parse a value; an element of an array is its own key."""
        self.skip(SPACE)
        start = self.at
        char = self.text[self.at]
        if char in "[{":
            self.items(path, "]" if char == "[" else "}")
        else:
            self.skip(STRING if char in "\"'" else BARE_VALUE)
        place = (start, self.at)
        self.spans[path] = Span(key or place, place)

    def items(self, path: Path, end: str) -> None:
        """Parse the inside of an array or of an inline table."""
        self.at += 1
        index = 0
        while True:
            self.skip(BLANK)
            if self.text[self.at] == end:
                self.at += 1
                return
            if end == "}":
                self.pair(path)
            else:
                self.value((*path, index))
                index += 1
            self.skip(BLANK)
            if self.text[self.at] == ",":
                self.at += 1
