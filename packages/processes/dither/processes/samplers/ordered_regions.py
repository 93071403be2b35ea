"""Iterative filling in of masked features (the order of MaskGIT, Chang et al. 2022; MAR, Li et al. 2024).

After the step to time s, round(U (1 - alpha(s))) of U units are still masked, and none after the
last. The model gets the time at which the actual share of masked units is expected, or the fixed
time of the process. A model that predicts one value per element has no confidence; a head that
draws has the variance of its draws, averaged over the masked elements of a unit. Letters: B batch,
L length, M features, U units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from ..options import no_effect
from .options import ProcessSampler

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from dither.registry.contracts.protocols import MaskedFeatureProcess, Session
    from dither.registry.contracts.records import Clean

__all__ = ["OrderedRegions"]


class OrderedRegions(ProcessSampler):
    """Fill in as many masked units per step as the schedule requires, at random or the most confident first (MAR)."""

    name = "ordered-regions"
    requires = "hidden"
    rev = 2
    by: Literal["random", "spread"] = "random"
    """Which units come first. random: any. spread: those whose draws have the least variance. Only
    a head that draws, such as "token-diffusion", has any variance; with one predicted value per
    element the order is random."""
    steps: int = Field(16, ge=1, le=1_000_000)
    """Maximum number of model calls; a step that reveals no unit makes none."""
    draws: int = Field(8, ge=2, le=1024)
    """Draws of which the variance is taken."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a process that masks features, and options that have an effect."""
        yield from super().check(process, model)
        if self.by == "random":
            yield from no_effect(
                self, ("draws",), 'with by = "random"', 'set by = "spread"'
            )

    def sample(
        self, process: MaskedFeatureProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        import torch

        from ..timestep_sampling import reveal_counts, time_of
        from ..tokens.unmasking import top_positions

        state = process.prior(like)
        revealed = False
        unit_count = process.units(state.masked).sum(1)
        for due, share in reveal_counts(process, unit_count, self.steps):
            # The time at which training masks the share that is masked now: B
            if process.fixed_time is None:
                t = time_of(process.schedule, share)
            else:
                t = torch.full_like(share, process.fixed_time)
            pred = model(state, t.to(like.x0.dtype))

            # Equal scores come in random order.
            units = process.units(state.masked)
            score = torch.zeros(units.shape, device=units.device)
            if self.by == "spread":
                score = -_variance(process, pred, state.masked, self.draws)

            # B U -> B L M
            chosen = process.elements(top_positions(score, units, due))
            state = process.reveal(state, pred.draw(), state.masked & ~chosen)
            revealed = True
            yield state.x

        # A sample without anything to fill in is yielded once.
        if not revealed:
            yield state.x


def _variance(
    process: MaskedFeatureProcess,
    pred: Any,
    masked: Bool[Tensor, "B L M"],
    draws: int,
) -> Float[Tensor, "B U"]:
    """Return the variance of draws, averaged over the masked elements of each unit; 0 where there are none."""
    import torch

    # Draws are cheap next to a call of the model: the head alone computes them.
    variance = torch.stack([pred.draw() for _ in range(draws)]).var(0, correction=0)
    variance_sum = process.unit_sums(variance * masked)
    count = process.unit_sums(masked.to(variance.dtype))
    return variance_sum / count.clamp_min(1)
