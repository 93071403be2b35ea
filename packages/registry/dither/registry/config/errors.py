"""User errors: message, code, file and line with a caret, and the closest valid name."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar
from unicodedata import combining, east_asian_width

from ..spec.misfit import Misfit, Path
from .nearest_name import did_you_mean, nearest

__all__ = [
    "CODES",
    "MAX_PROBLEMS",
    "NonFiniteOutput",
    "Origin",
    "Problem",
    "Refused",
    "did_you_mean",
    "dotted",
    "nearest",
    "omitted_problems",
    "printable",
]

CODES: dict[str, str] = {
    # values in an experiment file, an override, or an option
    "invalid-value": "The value is not allowed here.",
    "wrong-type": "The value has another type than the option.",
    "out-of-range": "The number, length or size is outside the allowed range.",
    "unknown-key": "No option of this name exists here.",
    "missing-key": "A required option is not given.",
    "unknown-value": "The value is not one of the allowed ones.",
    "unknown-component": "No component of this kind has this name.",
    "ambiguous-component": "Several plugins register a component of this name.",
    "revision-mismatch": "The component has another revision than the pinned one.",
    "wrong-kind": "The component is of another kind than the slot requires.",
    "misfit": "Components, or options of one component, are incompatible.",
    "process-mismatch": "The sampler or loss requires another kind of process or prediction.",
    "signal-left-at-end": "The schedule leaves too much signal at t = 1 to sample from the prior.",
    "no-positions": "The model cannot distinguish positions, but their order matters.",
    "known-behind-gap": "A block model ignores known tokens of later blocks.",
    "no-effect": "The option has no effect in this combination.",
    # files
    "file-not-found": "The file or folder does not exist.",
    "download-failed": "A download failed.",
    "upload-failed": "An upload failed.",
    "unreadable-file": "The file cannot be opened or decoded.",
    "damaged-file": "The content does not match its format or its checksum.",
    "outside-folder": "The name leads out of the working folder of `dither mcp`.",
    "syntax-error": "The text is not valid TOML, JSON or the stated format.",
    "too-large": "A size limit is exceeded.",
    "file-exists": "The output exists already.",
    "unwritable-file": "The file or folder cannot be written.",
    "unknown-format": "The file is in none of the supported formats.",
    "extends-cycle": "Experiment files extend each other in a circle.",
    # the command line
    "unknown-command": "No command of this name exists.",
    "unknown-option": "No command-line option of this name exists.",
    "missing-argument": "A command-line argument or option value is missing.",
    "usage": "The command line is used wrongly in another way.",
    # plugins
    "unknown-plugin": "No plugin of this name is installed or given.",
    "plugin-failed": "A plugin raised an exception, or returned something it must not return.",
    "plugin-blocked": "The policy in registry.toml blocks the plugin.",
    "plugin-conflict": "Two plugins register the same name.",
    "slow-import": "A plugin takes long to import.",
    "missing-dependency": "An optional dependency is not installed.",
    "registry-outdated": "registry.toml does not match the installed components.",
    # runs
    "not-a-run": "The folder is not a run or a sweep directory.",
    "run-locked": "Another process is using the run.",
    "run-vanished": "The folder of a run or sweep was deleted or renamed while it was in use.",
    "run-finished": "The run has already ended.",
    "missing-checkpoint": "The run has no such checkpoint.",
    "damaged-checkpoint": "A checkpoint is incomplete or does not match its checksums.",
    "changed-components": "Components or options differ from those the run was made with.",
    "changed-data": "The data differ from those the run was made with.",
    "untrusted-plugin": "A plugin file differs from the one that its run recorded; -p executes it.",
    "lost-rank": "Another rank of the run ended, or did not respond.",
    "stopped": "A signal stopped the command, which can be repeated.",
    "non-finite": "A loss, gradient or weight is NaN or inf.",
    "out-of-memory": "The machine or the device has too little memory.",
    "disk-full": "The disk or quota is full.",
    "not-comparable": "Runs are unfinished, or were not evaluated on the same samples.",
    "unknown-metric": "No metric of this name is computed.",
    "shape-mismatch": "A tensor has another shape than required.",
    # data
    "not-prepared": "The data must be prepared first; the help text has the command.",
    "changed-options": "The data were prepared with other options or from another source.",
    "other-version": "The data were prepared by another version of dither.",
    "missing-array": "A required array or column is missing.",
    "missing-chunk": "Chunks of a zarr array of names are missing, or empty_chunks is false.",
    "wrong-shape": "An array has an unexpected shape or type.",
    "no-samples": "No usable sample is left.",
    "invalid-sample": "A sample of a data file is invalid.",
    "unsorted": "Rows are not in the required order.",
    "duplicate": "A name or row occurs twice.",
    "contradiction": "Constraints contradict each other.",
    "more-problems": "More problems exist than are shown.",
}
"""Every code of a problem, with its meaning; the docs site lists them."""

MAX_PROBLEMS = 50
"""Problems shown in one pass."""
MAX_WIDTH = 160
"""Characters shown of a source line."""
MAX_MESSAGE = 2000
"""Characters shown of a message."""
MAX_KEY = 60
"""Characters shown of a key."""
BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Origin:
    """Where a value was given.

    Attributes:
        file: A file, or an option such as `--set train.lr=1`.
        line: From 1.
        column: From 1, in characters.
        source: Text of the line.
        width: Number of characters to underline.
    """

    file: str
    line: int | None = None
    column: int | None = None
    source: str | None = None
    width: int = 1

    @classmethod
    def within(cls, file: str, text: str, start: int, end: int) -> Origin:
        """Return the place of the characters `start` to `end` (exclusive) of a file's text."""
        begins, lines = _lines(text)
        line = bisect_right(begins, start)
        source = lines[line - 1]
        column = start - begins[line - 1] + 1
        # A value of several lines is underlined to the end of its first one.
        width = max(1, min(end - start, len(source) - column + 1))
        return cls(file, line, column, source, width)

    def __str__(self) -> str:
        place = (self.file, self.line, self.column)
        return ":".join(str(part) for part in place if part is not None)

    def excerpt(self) -> list[str]:
        """Return the source line with carets below the place, cut to `MAX_WIDTH`."""
        if self.source is None or self.line is None:
            return []
        column = (self.column or 1) - 1
        # A long line is cut so that the place stays visible.
        first = 0
        cut = ""
        if column >= MAX_WIDTH * 3 // 4:
            first = column - MAX_WIDTH // 2
            cut = "... "
        text = cut + printable(self.source[first : first + MAX_WIDTH])

        # Carets are as wide as the text, in which some letters take two cells.
        end = min(column + min(self.width, MAX_WIDTH // 2), first + MAX_WIDTH)
        indent = len(cut) + _cells(self.source[first:column])
        carets = "^" * max(1, _cells(self.source[column:end]))
        number = str(self.line)
        margin = " " * len(number)
        return [
            f"  {margin} |",
            f"  {number} | {text}".rstrip(),
            f"  {margin} | {' ' * indent}{carets}",
        ]


@dataclass(frozen=True)
class Problem:
    """One user error.

    Attributes:
        message: What is wrong.
        path: Keys to the value.
        origin: Its place.
        help: How to fix it.
        related: Other relevant places, each with a label.
        given: The invalid value.
        level: error or warning.
        code: A key of `CODES`.
    """

    message: str
    path: Path = ()
    origin: Origin | None = None
    help: str | None = None
    related: tuple[tuple[str, Origin], ...] = ()
    given: Any = None
    level: str = "error"
    code: str = "invalid-value"

    def __str__(self) -> str:
        text = self.message
        # The end of a long message, such as of pydantic, may say what is wrong.
        if len(text) > MAX_MESSAGE:
            half = MAX_MESSAGE // 2
            text = f"{text[:half]} ... {text[-half:]}"
        key = f"{dotted(self.path)}: " if self.path else ""
        lines = [f"{self.level}: {key}{text} [{self.code}]"]
        if self.origin is not None:
            lines += [f"  --> {self.origin}", *self.origin.excerpt()]
        lines += [f"  note: {label} {origin}" for label, origin in self.related]
        if self.help:
            lines.append("  help: " + self.help.replace("\n", "\n        "))
        return printable("\n".join(lines))

    def as_misfit(self, path: Path = ()) -> Misfit:
        """Return the problem as that of the option at a path."""
        return Misfit(self.message, path, help=self.help, code=self.code)


def omitted_problems(count: int, origin: Origin | None = None) -> Problem:
    """Return a problem that counts those not shown."""
    return Problem(
        f"{count:,} more problems are not shown", origin=origin, code="more-problems"
    )


class Refused(Exception):  # noqa: N818 - a user error, not a program error
    """User input is invalid: `problems`, at most `MAX_PROBLEMS`, and the number of the others.

    A single problem may be given by its message and other attributes.
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        problems: Problem | str | Sequence[Problem],
        path: Path = (),
        origin: Origin | None = None,
        help: str | None = None,
        given: Any = None,
        code: str = "invalid-value",
    ) -> None:
        if isinstance(problems, str):
            problems = Problem(problems, path, origin, help, given=given, code=code)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems = tuple(problems)
        more = len(self.problems) - MAX_PROBLEMS
        # Counting a single problem takes a line, as printing it does.
        if more > 1:
            origin = self.problems[0].origin
            omitted = omitted_problems(more, origin and Origin(origin.file))
            self.problems = (*self.problems[:MAX_PROBLEMS], omitted)
        super().__init__(self.problems)

    @property
    def codes(self) -> list[str]:
        return [problem.code for problem in self.problems]

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class NonFiniteOutput(Refused, ValueError):  # noqa: N818 - like Refused
    """Nothing can be drawn from what a model predicts. The command line exits with 4.

    Args:
        reason: What was found.
    """

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"cannot draw: {reason}; the model may have diverged: "
            "sample an earlier checkpoint, or lower train.optimizer.lr",
            ("model",),
            code="non-finite",
        )


@lru_cache(4)
def _lines(text: str) -> tuple[list[int], list[str]]:
    """Return the offset of each line, and the lines; the problems of a file share them."""
    lines = text.split("\n")
    return list(accumulate((len(line) + 1 for line in lines[:-1]), initial=0)), lines


def _cells(text: str) -> int:
    """Return the width of a text in a terminal."""
    # Wide (W) and fullwidth (F) letters take two cells, combining marks none (Unicode annex 11).
    wide = sum(east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(combining(c) > 0 for c in text)


def printable(text: str) -> str:
    """Replace control characters, which could change the state of a terminal."""
    # Nearly all texts; the loop over letters takes longer.
    if all(map(str.isprintable, text.split("\n"))):
        return text
    letters = []
    for letter in text:
        if letter == "\t":
            letters.append(" ")
        elif letter.isprintable() or letter == "\n":
            letters.append(letter)
        else:
            letters.append("\N{REPLACEMENT CHARACTER}")
    return "".join(letters)


def dotted(path: Path) -> str:
    """Return a path as a TOML key with indices: `model.block.heads`, `plugins[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        name = part if len(part) <= MAX_KEY else part[: MAX_KEY - 3] + "..."
        if not BARE.fullmatch(name):
            name = json.dumps(name, ensure_ascii=False)
        text += f".{name}" if text else name
    return text
