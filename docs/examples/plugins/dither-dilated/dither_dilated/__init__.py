"""Dilated unmasking (Luxembourg, Permuter and Nachmani 2025, "Plan for Speed", arXiv:2506.19037).

Neighbours depend on each other most, so that each call of the model unmasks positions that are far
apart: first multiples of the largest power of `base` below the length, then of the next smaller
one, until every position is unmasked. Letters: B batch, L length, N chosen positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Misfit, Spec, hookimpl
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import (
        Process,
        Sampler,
        Schedule,
        Session,
    )
    from dither.registry.contracts.records import Clean


class DilatedSampler(SamplerSpec):
    """Tokens far apart at once, in log(L) calls of the model (dilated unmasking)."""

    name = "dilated"
    base: int = Field(2, ge=2, le=64)
    """Factor by which the distance of the positions of a call shrinks: 2 takes log2(L) + 1 calls."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a process that masks tokens."""
        if process.prior != "mask":
            message = (
                f'sampler "dilated" unmasks tokens; process "{process.name}" masks none'
            )
            hint = 'use process "absorbing"'
            yield Misfit(message, (), ("process",), hint, code="process-mismatch")

    def build(self) -> Sampler:
        """Return a function that yields every state, and the clean sample last."""
        import torch

        from dither.registry.contracts.records import State

        def sample(process: Process, model: Session, like: Clean) -> Iterator[Tensor]:
            x = process.prior(like).x
            masked = ~like.fixed
            positions = torch.arange(x.shape[1], device=x.device)
            total = masked.sum(1).clamp_min(1)
            stride = 1
            while stride < x.shape[1]:
                stride *= self.base

            while stride > 0:
                chosen = masked & (positions % stride == 0)
                stride //= self.base
                # All of these may be known.
                if chosen.any():
                    t = time_of(process.schedule, masked.sum(1) / total)
                    # log p(x_0 | x_t) of the N chosen positions, one row each
                    log_p = model(State.of(x), t, at=chosen).log_clean()[0]
                    ids = torch.distributions.Categorical(logits=log_p).sample()
                    x = x.masked_scatter(chosen, ids)
                    masked = masked & ~chosen
                yield x

        return sample


def time_of(schedule: Schedule, share: Tensor) -> Tensor:
    """Return the time at which a share of the tokens is masked, by bisection."""
    import torch

    low = torch.zeros_like(share)
    high = torch.ones_like(share)
    for _ in range(30):
        middle = (low + high) / 2
        noise = schedule(middle)
        is_early = noise.one_minus_alpha(middle) < share
        low = torch.where(is_early, middle, low)
        high = torch.where(is_early, high, middle)
    return high


@hookimpl
def register_components() -> list[type[Spec]]:
    """Register the sampler."""
    return [DilatedSampler]
