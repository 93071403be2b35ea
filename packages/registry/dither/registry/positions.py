"""Where every key of a TOML text stands, which tomllib does not tell.

The text is known to be valid TOML, so this reads only as much grammar as is needed to walk over it.
"""

from __future__ import annotations

import re
import tomllib

from .spec import Path

__all__ = ["key_positions"]

SPACE = re.compile(r"[ \t]*")
BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|'  # multi-line basic
    r"'''.*?'{3,5}|"  # multi-line literal
    r'"(?:[^"\\\n]|\\.)*"|'  # basic
    r"'[^'\n]*'",  # literal
    re.DOTALL,
)
BARE_VALUE = re.compile(r"[^,\]}#\r\n]+")


def key_positions(text: str) -> dict[Path, int]:
    """Return for every key, table and array element of a valid TOML text the offset at which it was given."""
    return _Walk(text).run()


class _Walk:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.found: dict[Path, int] = {}
        self.arrays: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        table: Path = ()
        while True:
            self.skip(BLANK)
            if self.at >= len(self.text):
                return self.found
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
        """Read `[a.b]` or `[[a.b]]` and return the path of the table it opens."""
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        start, parts = self.key()
        self.at += 2 if array else 1
        path: Path = ()
        for part in parts[:-1]:
            path = self.last(self.note(path, part, start))
        path = self.note(path, parts[-1], start)
        if array:
            self.arrays[path] = self.arrays.get(path, -1) + 1
            path = (*path, self.arrays[path])
            self.found[path] = start
        return path

    def last(self, path: Path) -> Path:
        """Go on to the last element where the path is an array of tables."""
        return (*path, self.arrays[path]) if path in self.arrays else path

    def note(self, path: Path, part: str, start: int) -> Path:
        path = (*path, part)
        self.found.setdefault(path, start)
        return path

    def key(self) -> tuple[int, list[str]]:
        """Read a dotted key; return where it starts and its parts."""
        self.skip(SPACE)
        start, parts = self.at, []
        while True:
            self.skip(SPACE)
            if self.text[self.at] in "\"'":
                parts.append(tomllib.loads(f"k = {self.skip(STRING)}")["k"])
            else:
                parts.append(self.skip(BARE_KEY))
            self.skip(SPACE)
            if self.text[self.at] != ".":
                return start, parts
            self.at += 1

    def pair(self, table: Path) -> None:
        start, parts = self.key()
        path = table
        for part in parts:
            path = self.note(path, part, start)
        self.at += 1  # =
        self.value(path)

    def value(self, path: Path) -> None:
        self.skip(SPACE)
        char = self.text[self.at]
        if char in "\"'":
            self.skip(STRING)
        elif char == "[":
            self.items(path, "]")
        elif char == "{":
            self.items(path, "}")
        else:
            self.skip(BARE_VALUE)

    def items(self, path: Path, end: str) -> None:
        """Read the inside of an array or of an inline table."""
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
                self.found[*path, index] = self.at
                self.value((*path, index))
                index += 1
            self.skip(BLANK)
            if self.text[self.at] == ",":
                self.at += 1
