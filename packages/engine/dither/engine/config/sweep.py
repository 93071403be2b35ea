"""The `[sweep]` table of an experiment file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dither.registry.spec.base import Options

__all__ = ["Search", "Sweep"]


class Search(Options):
    """A search with Optuna, which chooses each point by what the former ones gave."""

    trials: int = Field(20, ge=1, le=100_000)
    """Points in all, over every process that takes part."""
    metric: str = Field("valid/loss", pattern=r"[a-z]+/.+")
    """What is to become good, as kind/name of a line in metrics.jsonl; it is also what pruning looks at."""
    direction: Literal["minimize", "maximize"] = "minimize"
    """Which way is good."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How points are chosen: by a tree-structured Parzen estimator, or at random."""
    pruner: Literal["median", "none"] = "median"
    """Whether a point that is worse than the median at the same step is ended early."""
    warmup: int = Field(4, ge=0)
    """Points that are run to their end before any is pruned."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Of the choices; with several processes their order plays a part, too."""
    space: dict[str, Any]
    """Key -> a list of choices, or a range { low, high, step, log }. Keys as in a grid."""


class Sweep(Options):
    """Which values are tried. A key is a dotted path in quotes, or tables inside each other."""

    grid: dict[str, Any] = {}
    """Key -> list of values; every value is crossed with every value of the other keys."""
    zip: list[dict[str, Any]] = []
    """Tables of lists of equal length, whose first values belong together, then the second ones, and so on."""
    search: Search | None = None
    """A search instead of a list of points."""
