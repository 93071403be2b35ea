"""The `[sweep]` table of an experiment file."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dither.registry.spec.base import Options

__all__ = ["Range", "Search", "Sweep"]


class Range(Options):
    """A range of a search; of integers if both ends are integers."""

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
        return isinstance(self.low, int) and isinstance(self.high, int)


class Search(Options):
    """A search with Optuna, which proposes each point from the results of earlier ones."""

    trials: int = Field(20, ge=1, le=100_000)
    """Total number of points, over all processes."""
    metric: str = Field("valid/loss", pattern=r"^(train|valid|sample)/.+")
    """The metric to optimise and to prune by, as kind/name of a line in metrics.jsonl."""
    direction: Literal["minimize", "maximize"] = "minimize"
    """Direction of optimisation."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Proposal of points: a tree-structured Parzen estimator, or random."""
    pruner: Literal["median", "none"] = "median"
    """Stop points that are worse than the median at the same step, or none."""
    warmup: int = Field(4, ge=0)
    """Points that finish before any is pruned."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the proposals; with several processes their order matters, too."""
    space: dict[str, Any]
    """Key -> a list of choices, or a range { low, high, step, log }. Keys as in `grid`."""


class Sweep(Options):
    """Values to try. A key is a dotted path in quotes, or nested tables."""

    grid: dict[str, Any] = {}
    """Key -> list of values; points are the Cartesian product over all keys."""
    zip: list[dict[str, Any]] = []
    """Tables of lists of equal length whose i-th values form one point."""
    search: Search | None = None
    """A search in place of a fixed list of points."""
