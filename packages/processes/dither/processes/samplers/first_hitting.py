"""First-hitting sampling of an absorbing process (Zheng et al. 2024, arXiv 2409.02908). Letters: B batch, L length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.flow import Clean, State
from dither.registry.parts import Process, Schedule, Session

from ..draws import draw
from ..evidence import at
from ..precision import wide, wide_dtype
from ..tokens import TokenProcess

__all__ = ["FirstHitting", "time_of"]

HALVINGS = 50


def time_of(schedule: Schedule, lost: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return the time in [0, 1] at which 1 - alpha is `lost`, by bisection; an end of the range if none is."""
    low, high = torch.zeros_like(lost), torch.ones_like(lost)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        early = -(-schedule(middle).sigma).expm1() < lost
        low, high = torch.where(early, middle, low), torch.where(early, high, middle)
    return high


@dataclass(frozen=True)
class FirstHitting:
    """One position per call and row. Rows with fewer masked positions are finished earlier and then stay as they are.

    Of n positions masked at a level 1 - alpha, the first to be unmasked is so at (1 - alpha) u^(1/n), with u even in
    [0, 1]; which one it is has nothing to do with the time.
    """

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state, the clean sample last.

        Raises:
            TypeError: The process does not mask tokens.
        """
        if not isinstance(process, TokenProcess) or bool((process.table.on("cpu").max(-1).values < 1).any()):
            raise TypeError("first-hitting walks a TokenProcess whose prior is all on one id, as in absorbing")
        x = process.prior(like).x
        masked = (at(process.table.on(x.device), x) > 0) & ~like.fixed
        lost = torch.ones(len(x), dtype=wide_dtype(x.device), device=x.device)
        calls = int(masked.sum(1).max())
        for _ in range(calls):
            left = masked.sum(1)
            lost = lost * torch.rand_like(lost) ** (1 / left.clamp_min(1))
            t = time_of(process.schedule, lost).to(torch.get_default_dtype())
            chosen = _one_of(masked)
            x = x.clone()
            x[chosen] = draw(session(State.of(x), t).log_clean()[chosen].exp())
            masked = masked & ~chosen
            yield x
        if not calls:
            yield x


def _one_of(masked: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
    """Choose one True position evenly in each row that has any."""
    u = wide(torch.rand(masked.shape, device=masked.device)).masked_fill(~masked, -1.0)
    first = torch.zeros_like(masked).scatter(1, u.argmax(1, keepdim=True), True)
    return first & masked
