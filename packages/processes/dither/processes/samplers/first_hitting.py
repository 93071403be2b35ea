"""First-hitting sampling of an absorbing process (Zheng et al. 2024, arXiv 2409.02908). Letters: B batch, L length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean, State

from ..precision import wide_dtype
from ..timestep_sampling import time_of
from ..tokens.temperature import UNCHANGED, LogitsWarper
from ..tokens.unmasking import fill, fully_masked, top_positions

__all__ = ["FirstHitting"]


@dataclass(frozen=True)
class FirstHitting:
    """One position per call and row. Rows with fewer masked positions are finished earlier and then stay as they are.

    Of n positions masked at a level 1 - alpha, the first to be unmasked is so at (1 - alpha) u^(1/n), with u even in
    [0, 1]; which one it is has nothing to do with the time.
    """

    choice: LogitsWarper = UNCHANGED

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state, the clean sample last.

        Raises:
            TypeError: The process does not mask tokens.
        """
        x, masked = fully_masked(process, like, "first-hitting")
        lost = torch.ones(len(x), dtype=wide_dtype(x.device), device=x.device)
        calls = int(masked.sum(1).max())
        for _ in range(calls):
            left = masked.sum(1)
            lost = lost * torch.rand_like(lost) ** (1 / left.clamp_min(1))
            t = time_of(process.schedule, lost).to(torch.get_default_dtype())
            chosen = top_positions(torch.zeros_like(masked, dtype=lost.dtype), masked, left.clamp_max(1))
            x = fill(x, self.choice(session(State.of(x), t)), chosen)
            masked = masked & ~chosen
            yield x
        if not calls:
            yield x
