"""Rewards of samples. Read without torch. Letters: B batch, L length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field as Option

from dither.registry.contracts.spaces import Data, Space, TokenSpace
from dither.registry.kinds import TOKENS, RewardSpec
from dither.registry.spec.misfit import Misfit

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Reward
    from dither.registry.contracts.records import Clean

__all__ = ["IdShare"]


class IdShare(RewardSpec):
    """The share of positions with some ids, near a target: log-density of a normal distribution.

    By default the GC content of DNA: the bases A, C, G, T are ids 0 to 3. A constant is left out.
    """

    name = "id-share"
    serves: ClassVar[frozenset[Data]] = TOKENS
    ids: list[Annotated[int, Option(ge=0)]] = Option([1, 2], min_length=1)
    """The ids."""
    target: float = Option(0.5, ge=0, le=1)
    """Mean of the normal distribution."""
    width: float = Option(0.05, gt=0, le=100)
    """Its standard deviation."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Require ids of the vocabulary."""
        yield from super().check(space)
        if isinstance(space, TokenSpace) and max(self.ids) >= space.vocab:
            message = f"ids are 0 to {space.vocab - 1}, not {max(self.ids)}"
            yield Misfit(message, ("ids",), ("task",), code="out-of-range")

    def build(self, space: Space) -> Reward:
        import torch

        def reward(samples: Int[Tensor, "B L"], like: Clean) -> Float[Tensor, " B"]:
            ids = torch.tensor(self.ids, device=samples.device)
            hits = (torch.isin(samples, ids) & like.valid).sum(1)
            share = hits / like.valid.sum(1).clamp_min(1)
            return -(((share - self.target) / self.width) ** 2) / 2

        return reward
