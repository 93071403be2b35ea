"""Checks for samplers, with a stand-in for the model. Letters: B batch, L length, M features."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dither.registry import FeatureSpace, TokenSpace
from dither.registry.flow.records import Clean, State
from dither.registry.kinds.component_info import ModelFacts

from ..check_utils import NotApplicable, assert_close, assert_equal, clean_ids, random_output, seed_cpu
from ..situations import Situation, default_spec
from ..toy_distributions import (
    PROBABILITIES,
    SPACE,
    NormalSession,
    OracleSession,
    assert_follows,
    assert_normal,
    blank_batch,
    outcome_index,
)
from .check import checks_of

__all__ = ["CHECKS", "RandomModel"]

ROWS = 1500
NUMBERS = FeatureSpace(2, 2)


class RandomModel:
    """A `Session` whose model says the same at every time, and remembers how many positions are finished."""

    def __init__(self, process: Any, seed: int) -> None:
        self.process, self.seed, self.remembered = process, seed, 0

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> Any:
        """Denoise."""
        raw = random_output(self.process.space, torch.ones(state.x.shape[:2], dtype=torch.bool), self.seed)
        return self.process.read(raw, state, self.process.schedule(t))

    def append(self, x: Shaped[Tensor, "B L"]) -> None:
        """Count."""
        self.remembered += x.shape[1]


def _run_sampler(s: Situation, like: Clean | None = None) -> tuple[Any, Clean, list[Tensor]]:
    process: Any = s.process.build(s.space)
    like = s.clean if like is None else like
    sampler = s.build()
    seed_cpu(s.seed)
    states = [x.clone() for x in sampler(process, RandomModel(process, s.seed), like)]
    assert states, "nothing is yielded"
    return process, like, states


def yields_samples(s: Situation) -> None:
    """Every state on the way is a whole sample."""
    _, like, states = _run_sampler(s)
    for x in states:
        assert x.shape == like.x0.shape, f"a state has the shape {tuple(x.shape)} for {tuple(like.x0.shape)}"
        assert x.dtype == like.x0.dtype, f"a state is {x.dtype} for {like.x0.dtype}"


def ends_clean(s: Situation) -> None:
    """The last state holds clean ids, or finite features."""
    process, like, (*_, x) = _run_sampler(s)
    if isinstance(process.space, TokenSpace):
        assert clean_ids(process.space, x)[~like.fixed].all(), "MASK, PAD or ids outside the vocabulary are left"
    else:
        assert x.isfinite().all(), "values are not finite"


def fixed_untouched(s: Situation) -> None:
    """Known values and padding are never changed on the way."""
    _, like, states = _run_sampler(s)
    for number, x in enumerate(states):
        assert_equal(x[like.fixed], like.x0[like.fixed], f"fixed values in state {number}")


def truth_unseen(s: Situation) -> None:
    """The truth of what is not fixed plays no part."""
    process, like, states = _run_sampler(s)
    start = process.prior(like)
    taken = start.masked if s.given[0].prior == "hidden" else start.noisy
    if taken is not None and not torch.equal(taken, ~like.fixed):
        raise NotApplicable("the process shows a part of the truth on purpose")
    blank_batch = Clean(torch.where(like.fixed, like.x0, torch.zeros_like(like.x0)), like.valid, like.known, like.cond)
    _, _, others = _run_sampler(s, blank_batch)
    assert_equal(others[-1], states[-1], "samples drawn without the truth at hand")


def seeded(s: Situation) -> None:
    """The global seed decides what is drawn, and nothing else does."""
    (_, _, first), (_, _, second) = _run_sampler(s), _run_sampler(s)
    assert len(first) == len(second), f"{len(first)} states, then {len(second)} under the same seed"
    assert_equal(second[-1], first[-1], "samples under one seed")


def oracle_law(s: Situation) -> None:
    """Told the truth of a tiny law, the defaults draw from that law, or nearly so."""
    _oracle(s)


def oracle_law_exact(s: Situation) -> None:
    """Told the truth of a tiny law, it draws from that law with any options."""
    _oracle(s)


def _oracle(s: Situation) -> None:
    """Walk every installed process that suits the sampler, and compare what comes out with what is true."""
    ran = 0
    for part in s.catalog.parts("process"):
        spec: Any = default_spec(part, s.catalog)
        if not list(spec.check(SPACE)) and _suits(s.spec, spec.facts(SPACE)):
            _oracle_of_tokens(s, spec)
            ran += 1
        elif not list(spec.check(NUMBERS)) and _suits(s.spec, spec.facts(NUMBERS)):
            _oracle_of_numbers(s, spec)
            ran += 1
    if not ran:
        raise NotApplicable("no process is installed that it could walk back over a tiny law")


def _suits(spec: Any, process: Any) -> bool:
    """Whether some model would do for the sampler: one that knows the truth has blocks of any size."""
    return any(not list(spec.check(process, ModelFacts(size))) for size in (None, *range(1, 17)))


def _oracle_of_tokens(s: Situation, spec: Any) -> None:
    process, facts, like = spec.build(SPACE), spec.facts(SPACE), blank_batch(ROWS)
    seed_cpu(s.seed)
    prior = process.corrupt(like, torch.ones(ROWS)).prior
    (*_, x) = s.spec.build()(process, OracleSession(process, facts.predict, prior), like)
    drawn = outcome_index(x)
    assert (drawn >= 0).all(), f'ids that are not clean are left under "{spec.name}"'
    assert_follows(drawn, PROBABILITIES, f'samples under "{spec.name}", told the truth')


def _oracle_of_numbers(s: Situation, spec: Any) -> None:
    """Numbers that are normal about 2 with standard deviation 0.5; a model that knows so."""
    process, facts = spec.build(NUMBERS), spec.facts(NUMBERS)
    like = Clean.of(torch.zeros(ROWS, NUMBERS.length, NUMBERS.width))
    seed_cpu(s.seed)
    (*_, x) = s.spec.build()(process, NormalSession(process, facts.predict, 2.0, 0.5), like)
    if facts.prior == "hidden":  # filled in with the mean: no law is drawn from
        assert_close(x, torch.full_like(x, 2.0), f'what is filled in under "{spec.name}"')
    else:
        # Few steps lose some variance: each takes x_0 for its mean.
        assert_normal(x.flatten(), f'samples under "{spec.name}", told the truth', mean=2.0, std=0.5, slack=0.3)


CHECKS = (
    *checks_of("sampler", yields_samples, ends_clean, fixed_untouched, truth_unseen, seeded, examples=5),
    *checks_of("sampler", oracle_law, place="alone", examples=1),
    *checks_of("sampler", oracle_law_exact, needs="exact-law", place="options", examples=3),
)
"""The checks for samplers."""
