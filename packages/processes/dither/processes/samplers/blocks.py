"""Block after block from left to right (BD3-LM, Arriola et al. 2025). Letters: B batch, L length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dither.registry.flow import Clean
from dither.registry.parts import Process, Sampler, Session

__all__ = ["Blocks"]


@dataclass(frozen=True)
class Blocks:
    """Draws `size` positions at a time with `inner`; the session remembers each finished block as context of the next.

    The last block may be shorter. Known positions stay, so a prompt is nothing but known positions at the start.
    """

    size: int
    inner: Sampler

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a block needs at least 1 position, not {self.size}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state of the whole sequence, the clean sample last; blocks not begun stand as at t = 1."""
        whole, length = process.prior(like).x, like.valid.shape[1]
        for start in range(0, length, self.size):
            stop = min(start + self.size, length)
            for x in self.inner(process, session, like.columns(start, stop)):
                whole = torch.cat([whole[:, :start], x, whole[:, stop:]], 1)
                yield whole
            if stop < length:
                session.remember(whole[:, start:stop])
