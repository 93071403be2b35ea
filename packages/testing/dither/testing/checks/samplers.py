"""Checks for samplers, with a stand-in for the model. Letters: B batch, L length, M features."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dither.registry import TokenSpace
from dither.registry.flow import Clean, State

from ..probing import NotApplicable, clean_ids, raw_for, same, seed_cpu
from ..situations import Situation
from .check import Check

__all__ = ["CHECKS", "StandIn"]


class StandIn:
    """A `Session` whose model says the same at every time, and remembers how many positions are finished."""

    def __init__(self, process: Any, seed: int) -> None:
        self.process, self.seed, self.remembered = process, seed, 0

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> Any:
        """Denoise."""
        raw = raw_for(self.process.space, torch.ones(state.x.shape[:2], dtype=torch.bool), self.seed)
        return self.process.read(raw, state, self.process.schedule(t))

    def remember(self, x: Shaped[Tensor, "B L"]) -> None:
        """Count."""
        self.remembered += x.shape[1]


def _walk(s: Situation, like: Clean | None = None) -> tuple[Any, Clean, list[Tensor]]:
    process: Any = s.process.build(s.space)
    like = s.clean if like is None else like
    sampler = s.build()
    seed_cpu(s.seed)
    states = [x.clone() for x in sampler(process, StandIn(process, s.seed), like)]
    assert states, "nothing is yielded"
    return process, like, states


def yields_samples(s: Situation) -> None:
    """Every state on the way is a whole sample."""
    _, like, states = _walk(s)
    for x in states:
        assert x.shape == like.x0.shape, f"a state has the shape {tuple(x.shape)} for {tuple(like.x0.shape)}"
        assert x.dtype == like.x0.dtype, f"a state is {x.dtype} for {like.x0.dtype}"


def ends_clean(s: Situation) -> None:
    """The last state holds clean ids, or finite features."""
    process, like, (*_, x) = _walk(s)
    if isinstance(process.space, TokenSpace):
        assert clean_ids(process.space, x)[~like.fixed].all(), "MASK, PAD or ids outside the vocabulary are left"
    else:
        assert x.isfinite().all(), "values are not finite"


def fixed_untouched(s: Situation) -> None:
    """Known values and padding are never changed on the way."""
    _, like, states = _walk(s)
    for number, x in enumerate(states):
        same(x[like.fixed], like.x0[like.fixed], f"fixed values in state {number}")


def truth_unseen(s: Situation) -> None:
    """The truth of what is not fixed plays no part."""
    process, like, states = _walk(s)
    if s.given[0].prior == "hidden" and not torch.equal(process.prior(like).hidden, ~like.fixed):
        raise NotApplicable("the process shows a part of the truth on purpose")
    blank = Clean(torch.where(like.fixed, like.x0, torch.zeros_like(like.x0)), like.valid, like.known, like.cond)
    _, _, others = _walk(s, blank)
    same(others[-1], states[-1], "samples drawn without the truth at hand")


def seeded(s: Situation) -> None:
    """The global seed decides what is drawn, and nothing else does."""
    (_, _, first), (_, _, second) = _walk(s), _walk(s)
    assert len(first) == len(second), f"{len(first)} states, then {len(second)} under the same seed"
    same(second[-1], first[-1], "samples under one seed")


CHECKS = tuple(
    Check(check.__name__, "sampler", check)
    for check in (yields_samples, ends_clean, fixed_untouched, truth_unseen, seeded)
)
"""The checks for samplers."""
