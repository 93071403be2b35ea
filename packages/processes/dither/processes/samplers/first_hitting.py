"""First-hitting sampling of an absorbing process (Zheng et al. 2024, arXiv 2409.02908, algorithm 1).

Of n positions masked at a level 1 - alpha, the first is unmasked at the level (1 - alpha) u^(1/n),
u uniform in [0, 1]; which one it is does not depend on the time. Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .options import TokenSampler

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Schedule, Session, TokenProcess
    from dither.registry.contracts.records import Clean

__all__ = ["FirstHitting", "next_time"]


class FirstHitting(TokenSampler):
    """One masked position per call, chosen at random, at the time when it would be next (Zheng et al. 2024).

    It has the distribution of ancestral sampling with infinitely many steps, with one call per
    masked position.
    """

    name = "first-hitting"
    requires = "mask"

    def traits(self) -> frozenset[str]:
        """Declare that samples follow the model exactly, unless temperature, top-k or top-p is set."""
        return frozenset() if self.warps() else frozenset({"exact-distribution"})

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state, the clean sample last; rows with fewer masked positions finish earlier."""
        import torch

        from dither.registry.contracts.records import State

        from ..precision import wide_dtype
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, fully_masked, top_positions

        x, masked = fully_masked(process, like, self.name)
        # 1 - alpha at the current time, which is 1 at the start: B
        level = torch.ones(len(x), dtype=wide_dtype(x.device), device=x.device)
        calls = int(masked.sum(1).max())
        for _ in range(calls):
            t, level = next_time(process.schedule, level, masked)
            # Equal scores, whose ties are broken at random: one position, any with the same
            # probability.
            score = torch.zeros_like(masked, dtype=level.dtype)
            chosen = top_positions(score, masked, masked.sum(1).clamp_max(1))
            rows = warp_prediction(model(State.of(x), t, at=chosen), self)
            x = fill(x, chosen, rows)
            masked = masked & ~chosen
            yield x

        # A sample whose positions are all known is yielded once.
        if not calls:
            yield x


def next_time(
    schedule: Schedule, level: Float[Tensor, " B"], masked: Bool[Tensor, "B L"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Draw the time at which the next position is unmasked; return it and 1 - alpha there."""
    import torch

    from ..timestep_sampling import time_of

    # u^(1/n) is the largest of n uniform numbers: the first of n positions to be unmasked.
    level = level * torch.rand_like(level) ** (1 / masked.sum(1).clamp_min(1))
    return time_of(schedule, level).to(torch.get_default_dtype()), level
