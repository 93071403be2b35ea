"""The `[compare]` table of an experiment file."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dither.registry.spec.base import Options

__all__ = ["Compare", "Currency"]

Currency = Literal["steps", "samples", "flops", "seconds"]


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
    metric: str | None = Field(None, pattern=r"^(valid|test|sample)/.+")
    """The metric to compare, as kind/name; by default the first headline of the task, or else a
    likelihood."""
    split: Literal["valid", "test"] = "valid"
    """The split of the evaluation that is compared."""
    equal: Currency | None = None
    """Give all arms the training of the first one: as many steps or samples, the FLOPs of its steps,
    or their seconds as measured before the start; sets train.steps."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        kind = (self.metric or self.split).partition("/")[0]
        if kind == "test" and self.split == "valid":
            raise ValueError(f'metric = "{self.metric}" requires split = "test"')
        if kind != "test" and self.split == "test":
            message = (
                f'metric = "{self.metric}" is not one of the test split: test/NAME'
            )
            raise ValueError(message)
        return self
