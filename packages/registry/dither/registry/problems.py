"""What is wrong with what a person gave, said so that it can be mended: file, line, caret, nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .spec import Path

__all__ = ["Origin", "Problem", "Refused", "dotted", "nearest"]


@dataclass(frozen=True)
class Origin:
    """Where a value was given: a file with line and column (from 1), and the line; or a name such as `--set 1`."""

    file: str
    line: int | None = None
    column: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        message: What was given, and what is allowed.
        path: Keys from the top of the experiment to the value, empty where there is none.
        origin: Where the value was given.
        help: What to do about it.
        related: Other places that matter, each with a word on why.
    """

    message: str
    path: Path = ()
    origin: Origin | None = None
    help: str | None = None
    related: tuple[tuple[str, Origin], ...] = ()

    def __str__(self) -> str:
        lines = ["error: " + (f"{dotted(self.path)}: " if self.path else "") + self.message]
        if self.origin is not None:
            lines.append(f"  --> {self.origin}")
            if self.origin.source is not None and self.origin.line is not None:
                number = str(self.origin.line)
                text = self.origin.source.replace("\t", " ")[:200]
                caret = " " * (min(self.origin.column or 1, 200) - 1)
                lines += [f"  {' ' * len(number)} |", f"  {number} | {text}", f"  {' ' * len(number)} | {caret}^"]
        lines += [f"  note: {word} {origin}" for word, origin in self.related]
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)


class Refused(Exception):  # noqa: N818 - it is no error of the program
    """What a person gave cannot be used; holds every problem found. The command line prints them and exits with 2."""

    def __init__(self, problems: Problem | str | Sequence[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def nearest(word: object, allowed: Iterable[str]) -> str | None:
    """Return the allowed name closest to `word`, or None if none is close."""
    folded = {name.replace("_", "-").lower(): name for name in allowed}
    close = difflib.get_close_matches(str(word).replace("_", "-").lower(), folded, 1, 0.6)
    return folded[close[0]] if close else None


def dotted(path: Path) -> str:
    """Write a path as it is written after --set: `model.block.heads`, `plugins[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else ("." * bool(text)) + part
    return text
