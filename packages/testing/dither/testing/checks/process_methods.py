"""Checks of what a process does: it touches nothing fixed, stays in the space, and never looks at the truth."""

from __future__ import annotations

from typing import Any

import torch

from dither.registry import TokenSpace
from dither.registry.flow.records import Clean

from ..check_utils import assert_equal, clean_ids, random_output, seed_cpu, snapshot, usable_ids
from ..situations import Situation
from .check import checks_of
from .processes import corrupted, times

__all__ = ["CHECKS"]


def _states(s: Situation) -> list[tuple[str, Any]]:
    """Every state that a process hands out, with the name of the verb."""
    process, clean, noised = corrupted(s)
    t = times(s)
    pred = process.read(random_output(process.space, clean.valid, s.seed), noised.state, noised.noise)
    stepped = process.step(noised.state, pred, process.schedule(t), process.schedule(t / 2), clean)
    return [("corrupt", noised.state), ("prior", process.prior(clean)), ("step", stepped)]


def fixed_untouched(s: Situation) -> None:
    """No verb changes a known value or padding, or hides it."""
    clean = s.clean
    fixed = clean.fixed
    for verb, state in _states(s):
        assert_equal(state.x[fixed], clean.x0[fixed], f"{verb} on fixed values")
        assert not (state.masked & fixed).any(), f"{verb} hides fixed values"


def stays_in_space(s: Situation) -> None:
    """Every state holds ids of the vocabulary of their field, or finite features."""
    space = s.build().space
    for verb, state in _states(s):
        if isinstance(space, TokenSpace):
            assert usable_ids(space, state.x).all(), f"{verb} gives ids outside the vocabulary"
        else:
            assert state.x.isfinite().all(), f"{verb} gives values that are not finite"


def finish_is_clean(s: Situation) -> None:
    """The last jump ends on clean ids or finite features, and changes nothing that is fixed."""
    process, clean, _ = corrupted(s)
    state = process.prior(clean)
    noise = process.schedule(torch.ones(len(clean.valid)))
    x = process.finish(state, process.read(random_output(process.space, clean.valid, s.seed), state, noise), clean)
    assert_equal(x[clean.fixed], clean.x0[clean.fixed], "finish on fixed values")
    if isinstance(process.space, TokenSpace):
        assert clean_ids(process.space, x)[~clean.fixed].all(), "finish leaves MASK, PAD or ids outside the vocabulary"
    else:
        assert x.isfinite().all(), "finish gives values that are not finite"


def truth_unseen(s: Situation) -> None:
    """On the way back, the truth of what is not given plays no part."""
    process, clean = s.build(), s.clean
    seed_cpu(s.seed)
    start = process.prior(clean)
    given = ~start.masked if s.spec.facts(s.space).prior == "hidden" else clean.fixed
    other = Clean(torch.where(given, clean.x0, torch.zeros_like(clean.x0)), clean.valid, clean.known, clean.cond)
    drawn = []
    for like in (clean, other):
        seed_cpu(s.seed)
        state, ones = process.prior(like), torch.ones(len(clean.valid))
        pred = process.read(random_output(process.space, clean.valid, s.seed), state, process.schedule(ones))
        step = process.step(state, pred, process.schedule(ones), process.schedule(ones / 2), like)
        drawn.append((state.x, step.x, process.finish(state, pred, like)))
    for verb, a, b in zip(("prior", "step", "finish"), *drawn, strict=True):
        assert_equal(a, b, f"{verb} looks at the truth")


def seeded(s: Situation) -> None:
    """The global seed decides what is drawn, and nothing else does."""
    first, second = _states(s), _states(s)
    for (verb, a), (_, b) in zip(first, second, strict=True):
        assert_equal(a.x, b.x, f"{verb} under one seed")


def batch_not_written(s: Situation) -> None:
    """No verb writes to the batch."""
    before = snapshot(s.clean)
    _states(s)
    finish_is_clean(s)
    for old, new in zip(before, snapshot(s.clean), strict=True):
        assert_equal(new, old, "the batch afterwards")


CHECKS = checks_of("process", fixed_untouched, stays_in_space, finish_is_clean, truth_unseen, seeded, batch_not_written)
"""The checks for what processes do."""
