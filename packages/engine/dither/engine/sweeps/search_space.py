"""The space of a search: for each key a list of choices or a range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused, dotted
from dither.registry.spec.base import Options
from dither.registry.spec.misfit import Path

from .points import FIXED

__all__ = ["Choice", "Range", "RangeTable", "read_space"]


class RangeTable(Options):
    """A range as it is written: integers if both ends are integers."""

    low: int | float
    """The least value."""
    high: int | float
    """The largest value, which belongs to the range."""
    step: int | float | None = Field(None, gt=0)
    """Distance between two values; by default every one."""
    log: bool = False
    """Whether it is even in the logarithm."""


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    path: Path
    place: Path
    values: tuple[Any, ...]

    def ends(self) -> tuple[Any, ...]:
        """Return all values."""
        return self.values

    def suggest(self, trial: Any) -> Any:
        """Draw a value: its number, for a value may be a table, which a study cannot hold."""
        return self.values[trial.suggest_categorical(dotted(self.path), list(range(len(self.values))))]


@dataclass(frozen=True)
class Range:
    """A number between two others."""

    path: Path
    place: Path
    span: RangeTable

    def ends(self) -> tuple[Any, ...]:
        """Return the least and the largest value."""
        return (self.span.low, self.span.high)

    def suggest(self, trial: Any) -> Any:
        """Draw a value."""
        low, high, step, log = self.span.low, self.span.high, self.span.step, self.span.log
        if isinstance(low, int) and isinstance(high, int):
            return trial.suggest_int(dotted(self.path), low, high, step=int(step or 1), log=log)
        return trial.suggest_float(dotted(self.path), low, high, step=step, log=log)


def read_space(document: Document) -> list[Choice | Range]:
    """Return the space of a document's search.

    Raises:
        Refused: With every problem of it.
    """
    at: Path = ("sweep", "search", "space")
    table = document.at(at)
    problems: list[Problem] = []
    if not isinstance(table, dict) or not table:
        help_text = 'such as "train.optimizer.lr" = { low = 1e-4, high = 1e-2, log = true }, or = [1e-4, 1e-3]'
        raise Refused(Problem("a search needs keys to vary", at, document.origin(at), help_text))
    if any(document.at(("sweep", part)) for part in ("grid", "zip")):
        message = "a sweep lists its points or searches, not both"
        problems.append(Problem(message, ("sweep", "search"), document.origin(("sweep", "search"))))
    space: list[Choice | Range] = []
    for path, place, value in _keys(table, at):
        try:
            space.append(_read(path, place, value))
        except ValueError as error:
            problems.append(Problem(_error_text(error), place, document.origin(place)))
    if problems:
        raise Refused(problems)
    return space


def _keys(tree: Mapping[str, Any], place: Path, path: Path = ()) -> Iterator[tuple[Path, Path, Any]]:
    for key, value in tree.items():
        here: Path = (*path, *str(key).split("."))
        if isinstance(value, dict) and not {"low", "high"} & set(value):
            yield from _keys(value, (*place, key), here)
        else:
            yield here, (*place, key), value


def _read(path: Path, place: Path, value: Any) -> Choice | Range:
    if path[0] in FIXED:
        raise ValueError(f"{path[0]} is the same for all points, and cannot be searched over")
    if isinstance(value, list) and value:
        return Choice(path, place, tuple(value))
    if not isinstance(value, dict):
        raise ValueError("expected a list of choices, or a range such as { low = 1, high = 8 }")
    span = RangeTable.model_validate(value)
    whole = isinstance(span.low, int) and isinstance(span.high, int)
    if span.low > span.high:
        raise ValueError(f"low = {span.low} is above high = {span.high}")
    if span.log and (span.low <= 0 or span.step is not None):
        raise ValueError("a range in the logarithm begins above 0 and has no step")
    if whole and span.step is not None and not isinstance(span.step, int):
        raise ValueError("a range of integers has an integer as its step")
    return Range(path, place, span)


def _error_text(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    details = error.errors(include_url=False)
    return "; ".join(f"{'.'.join(map(str, detail['loc'][:1]))}: {detail['msg']}" for detail in details)
