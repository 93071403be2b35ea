"""Iterative filling in of masked features (the order of MaskGIT). Letters: B batch, L length, M features, U units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean

from ..features.masked_features import MaskedRegionProcess, fill, sample_prediction
from ..features.masks import Masks
from ..precision import wide
from ..timestep_sampling import time_of
from ..timesteps import check_grid, even_times
from ..tokens.unmasking import top_positions

__all__ = ["OrderedRegions", "SureBy"]

SureBy = Literal["random", "spread"]


@dataclass(frozen=True)
class OrderedRegions:
    """Fills in as many units as the schedule asks for at each step, and keeps them.

    After the step to time s, round(U (1 - alpha(s))) of U units are left hidden, and none after the last. The model is
    told the time at which the share that really is hidden would be expected; under a process whose states say nothing
    of time its `moment`, as in an evaluation.

    A model that says one value for an element says nothing of how sure it is. What can be asked honestly is how far its
    own draws lie apart: their variance, averaged over the hidden elements of a unit. Units whose draws lie closest
    together are filled in first, with a draw. Where draws do not differ, the order is random.

    Attributes:
        by: Which units come first: random, or those of the least spread.
        steps: Most steps; one in which nothing is due makes no call.
        draws: Draws at a step, of which the spread is taken; the model is called once for them all.
    """

    by: SureBy = "random"
    steps: int = 16
    draws: int = 8

    def __post_init__(self) -> None:
        check_grid(self.steps, 0.0)
        if self.by not in get_args(SureBy):
            raise ValueError(f"by must be one of {', '.join(get_args(SureBy))}, not {self.by!r}")
        if self.draws < 2:
            raise ValueError(f"a spread is that of at least 2 draws, not {self.draws}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Float[Tensor, "B L M"]]:
        """Yield every state, the clean sample last.

        Raises:
            TypeError: The process hides no features.
        """
        if not isinstance(process, MaskedRegionProcess):
            raise TypeError(f"ordered-regions walks a MaskedRegionProcess, not {type(process).__name__}")
        state, masks = process.prior(like), process.masks
        left = total = masks.units(state.masked).sum(1)
        targets = -(-process.schedule(wide(even_times(self.steps, 0.0, like.valid.device))).sigma).expm1()
        targets[-1] = 0.0  # some schedules leave noise at t = 0
        for _, target in pairwise(targets):
            due = left - torch.minimum((total * target).round().long(), left)
            if not due.any():
                continue
            said = session(state, _times(process, wide(left) / total.clamp_min(1)).to(like.x0.dtype))
            units = masks.units(state.masked)
            score = torch.zeros(units.shape, device=units.device)
            if self.by == "spread":
                draws = torch.stack([sample_prediction(said) for _ in range(self.draws)])
                score = -_per_unit(draws.var(0, correction=0), state.masked, masks)
            state = fill(state, said, state.masked & ~masks.spread(top_positions(score, units, due)))
            left = left - due
            yield state.x
        if not total.any():
            yield state.x


def _times(process: MaskedRegionProcess, hidden: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return what time to tell the model where a share is hidden."""
    if process.fixed_time is not None:
        return torch.full_like(hidden, process.fixed_time)
    return time_of(process.schedule, hidden)


def _per_unit(values: Float[Tensor, "B L M"], hidden: Bool[Tensor, "B L M"], masks: Masks) -> Float[Tensor, "B U"]:
    """Return the mean over the hidden elements of each unit; 0 where there are none."""
    total, count = (masks.sums(part) for part in (values * hidden, hidden.to(values.dtype)))
    return total / count.clamp_min(1)
