"""When head and loss are taken in one, so that the raw output of all positions is never held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from dither.registry.fused import FUSED_FROM, FusedLoss
from dither.registry.spaces import TokenSpace

if TYPE_CHECKING:
    from .system import Diffusion

__all__ = ["fused_head"]


def fused_head(system: Diffusion) -> nn.Linear | None:
    """Return the linear map that is the head of a system, where its loss can be measured from what that reads.

    None for the generic way: a loss without a fused form, several fields, a head that is no single map, few ids, or a
    model that is cut up among ranks, whose weights come together only inside it.
    """
    space, linear = system.process.space, getattr(getattr(system.model, "head", None), "linear", None)
    if not isinstance(space, TokenSpace) or len(space.fields) > 1 or space.vocab < FUSED_FROM:
        return None
    if not isinstance(system.loss, FusedLoss) or not isinstance(linear, nn.Linear):
        return None
    return None if hasattr(linear.weight, "full_tensor") or hasattr(system.model, "unshard") else linear
