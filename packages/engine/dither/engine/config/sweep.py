"""The `[sweep]` table of an experiment file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dither.registry.spec.base import Options

__all__ = ["Search", "Sweep"]


class Search(Options):
    """A search with Optuna, which proposes each point from the results of earlier ones."""

    trials: int = Field(20, ge=1, le=100_000)
    """Total number of points, over all processes."""
    metric: str = Field("valid/loss", pattern=r"[a-z]+/.+")
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
