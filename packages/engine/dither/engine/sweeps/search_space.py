"""The space of a search: a list of choices or a range for each key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused, dotted
from dither.registry.spec.base import Options
from dither.registry.spec.misfit import Path

from .points import iter_keys, key_error

__all__ = ["Choice", "Range", "RangeTable", "read_space"]


class RangeTable(Options):
    """A range as written in TOML; of integers if both ends are integers."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value, inclusive."""
    step: int | float | None = Field(None, gt=0)
    """Distance between values."""
    log: bool = False
    """Sample uniformly in the logarithm."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} exceeds high = {self.high}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("a logarithmic range must start above 0 and has no step")
        if self.integral and self.step is not None and not isinstance(self.step, int):
            raise ValueError("a range of integers requires an integer step")
        return self

    @property
    def integral(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    path: Path
    place: Path
    values: tuple[Any, ...]

    def ends(self) -> tuple[Any, ...]:
        """Return all values."""
        return self.values

    def suggest(self, trial: Any) -> Any:
        """Choose a value; the study stores its index, since a value may be a table."""
        return self.values[trial.suggest_categorical(dotted(self.path), list(range(len(self.values))))]


@dataclass(frozen=True)
class Range:
    """A number between two others."""

    path: Path
    place: Path
    table: RangeTable

    def ends(self) -> tuple[Any, ...]:
        """Return the smallest and the largest value."""
        return (self.table.low, self.table.high)

    def suggest(self, trial: Any) -> Any:
        """Choose a value."""
        table = self.table
        suggest = trial.suggest_int if table.integral else trial.suggest_float
        step = table.step or (1 if table.integral else None)
        return suggest(dotted(self.path), table.low, table.high, step=step, log=table.log)


def read_space(document: Document) -> list[Choice | Range]:
    """Read `[sweep.search.space]`.

    Raises:
        Refused: With every problem of it.
    """
    at: Path = ("sweep", "search", "space")
    table = document.at(at)
    if not isinstance(table, dict) or not table:
        hint = 'such as "train.optimizer.lr" = { low = 1e-4, high = 1e-2, log = true }, or = [1e-4, 1e-3]'
        raise Refused(Problem("a search requires keys to vary", at, document.origin(at), hint, code="missing-key"))
    problems: list[Problem] = []
    if any(document.at(("sweep", part)) for part in ("grid", "zip")):
        message, origin = "a sweep has either a grid or a search, not both", document.origin(at[:2])
        problems.append(Problem(message, at[:2], origin, code="misfit"))
    space: list[Choice | Range] = []
    for path, (place, value) in iter_keys(table, at):
        try:
            space.append(_read(path, place, value))
        except ValidationError as error:
            details = error.errors(include_url=False)
            message = "; ".join(".".join(map(str, d["loc"][:1])) + ": " * bool(d["loc"]) + d["msg"] for d in details)
            problems.append(Problem(message, place, document.origin(place)))
        except ValueError as error:
            problems.append(Problem(str(error), place, document.origin(place)))
    if problems:
        raise Refused(problems)
    return space


def _read(path: Path, place: Path, value: Any) -> Choice | Range:
    if message := key_error(path):
        raise ValueError(message)
    if isinstance(value, list) and value:
        return Choice(path, place, tuple(value))
    if isinstance(value, dict):
        return Range(path, place, RangeTable.model_validate(value))
    raise ValueError("expected a list of choices, or a range such as { low = 1, high = 8 }")
