"""The `[compare]` table of an experiment file."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dither.registry.spec.base import Options

__all__ = ["Compare"]


class Compare(Options):
    """Arms that `dither compare` runs with several seeds."""

    over: dict[str, Any] = {}
    """Key -> list of values, or "*" for every component; arms are the Cartesian product over all
    keys."""
    arms: dict[str, dict[str, Any]] = {}
    """Name of a further arm -> its values by key. Without `over` the experiment itself is the first
    arm."""
    seeds: int = Field(5, ge=1, le=1000)
    """Runs of each arm, with consecutive seeds from that of the experiment."""
    against: str | None = None
    """Name of the arm that the others are compared with; the default is the first."""
    metric: str | None = Field(None, pattern=r"^(valid|sample)/.+")
    """The metric to compare, as kind/name; by default the first headline of the task, or else a
    likelihood."""
