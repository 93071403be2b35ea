"""Checks for samplers, with random and exact models. Letters: B batch, L length, M features."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dither.registry import Space, TokenSpace
from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Clean, Noise, Noised, State
from dither.registry.kinds import ModelFacts

from ..check_utils import (
    NotApplicable,
    assert_clean,
    assert_close,
    assert_equal,
    ideal_output,
    random_output,
    seed_cpu,
    without_truth,
)
from ..situations import Situation, checks_of, default_spec
from ..toy_distributions import (
    FEATURES,
    PROBABILITIES,
    SPACE,
    NormalSession,
    OracleSession,
    TrialSession,
    assert_follows,
    assert_normal,
    blank_batch,
    exact_normal,
    outcome_index,
)

__all__ = ["CHECKS", "supports"]

COPIES = 64
"""Equal rows, to which samplers that draw give different samples."""
ROWS = 800
"""Samples of an exact model: a probability that is off by .05 is seen."""


class RandomSession(TrialSession):
    """A `Session` with the same random output at every time, and for every sample under `same_rows`."""

    def __init__(self, process: Any, seed: int, same_rows: bool = False) -> None:
        super().__init__(process)
        self.seed = seed
        self.same_rows = same_rows

    def output(self, state: State, noise: Noise) -> Tensor:
        everywhere = torch.ones(state.x.shape[:2], dtype=torch.bool)
        raw = random_output(self.process.space, everywhere, self.seed)
        if self.same_rows:
            raw = raw[:1].expand(raw.shape)
        return raw


class CertainSession(TrialSession):
    """A `Session` with a model that knows the sample."""

    def __init__(self, process: Any, predict: str, clean: Clean) -> None:
        super().__init__(process)
        self.predict = predict
        self.clean = clean
        self.prior = process.corrupt(clean, torch.ones(len(clean.valid))).prior
        self.start = 0

    def output(self, state: State, noise: Noise) -> Tensor:
        # Particles are copies of each sample; blocks are positions from `start` on.
        copies = len(state.x) // len(self.clean.x0)
        part = slice(self.start, self.start + state.x.shape[1])
        x0 = self.clean.x0.repeat_interleave(copies, 0)[:, part]
        if isinstance(self.process.space, TokenSpace):
            prior = self.prior
            if isinstance(self.process, TokenProcess):
                prior = self.process.prior_at(noise)
            # A row per position, of those that the state has.
            if prior.ndim == 2 and prior.shape[0] > 1:
                prior = prior[part]
            nothing = torch.zeros_like(x0, dtype=torch.bool)
            noised = Noised(
                x0=x0,
                state=state,
                noise=noise,
                target_mask=~nothing,
                valid=~nothing,
                fixed=nothing,
                prior=prior,
            )
            return ideal_output(self.predict, noised, self.process.space.vocab)
        return exact_normal(
            process=self.process,
            state=state,
            noise=noise,
            predict=self.predict,
            mean=x0,
            std=0.0,
        )

    def append(self, x: Shaped[Tensor, "B L"]) -> None:
        self.start += x.shape[1]

    def refresh(
        self, x: Shaped[Tensor, "B L"], t: Float[Tensor, "B *L"], start: int
    ) -> None:
        self.start = start


Run = tuple[Any, Clean, list[Tensor]]


def _first_run(s: Situation) -> Run:
    """Run the sampler once for all checks."""
    if "sampler" not in s.runs:
        s.runs["sampler"] = _run_sampler(s)
    run: Run = s.runs["sampler"]
    return run


def _run_sampler(s: Situation, like: Clean | None = None) -> Run:
    process: Any = s.process.build(s.space)
    like = s.clean if like is None else like
    sampler = s.build()
    seed_cpu(s.seed)
    # A sampler may yield one tensor that it changes in place.
    session = RandomSession(process, s.seed)
    states = [x.clone() for x in sampler(process, session, like)]
    assert states, "the sampler yields nothing"
    return process, like, states


def _blind_run(s: Situation) -> Run:
    """Run the sampler with the same seed and without the truth, once for all checks."""
    if "blind" not in s.runs:
        s.runs["blind"] = _run_sampler(s, without_truth(s.clean, s.clean.fixed))
    run: Run = s.runs["blind"]
    return run


def yields_samples(s: Situation) -> None:
    """Every yielded state has the shape and dtype of a sample."""
    _, like, states = _first_run(s)
    expected = like.x0
    for x in states:
        assert x.shape == expected.shape, (
            f"a state has shape {tuple(x.shape)}, not {tuple(expected.shape)}"
        )
        assert x.dtype == expected.dtype, f"a state is {x.dtype}, not {expected.dtype}"


def ends_clean(s: Situation) -> None:
    """The last state contains clean ids, or finite features."""
    process, like, states = _first_run(s)
    assert_clean(process.space, states[-1], like, "the last state")


def fixed_untouched(s: Situation) -> None:
    """Known values and padding are never changed."""
    _, like, states = _first_run(s)
    fixed = like.fixed
    for number, x in enumerate(states):
        assert_equal(x[fixed], like.x0[fixed], f"fixed values in state {number}")


def truth_unseen(s: Situation) -> None:
    """Samples do not depend on values that are not given."""
    process, like, states = _first_run(s)
    start = process.prior(like)

    unknown = start.noisy
    if s.args[0].prior == "hidden":
        unknown = start.masked

    if unknown is not None and not torch.equal(unknown, ~like.fixed):
        raise NotApplicable("the process shows a part of the truth by design")
    _, _, others = _blind_run(s)
    assert_equal(others[-1], states[-1], "samples without the truth")


def seeded(s: Situation) -> None:
    """Torch's seed determines all draws."""
    *_, first = _first_run(s)
    *_, second = _blind_run(s)
    # Equal samples without the truth show both; a sampler that sees it may still be seeded.
    if torch.equal(second[-1], first[-1]):
        return
    *_, second = _run_sampler(s)
    assert len(first) == len(second), (
        f"{len(first)} states, then {len(second)} with the same seed"
    )
    assert_equal(second[-1], first[-1], "samples with the same seed")


def draws_are_new(s: Situation) -> None:
    """Every call of a sampler that draws uses other random numbers."""
    process: Any = s.process.build(s.space)
    sampler = s.build()
    like = s.clean[:1].apply(lambda value: value.repeat_interleave(COPIES, 0))
    like = without_truth(like, like.fixed)
    seed_cpu(s.seed)
    samples = []
    for _ in range(2):
        session = RandomSession(process, s.seed, same_rows=True)
        (*_, x) = sampler(process, session, like)
        samples.append(x.clone())
    first, second = samples
    # Draws give equal rows different samples; a few may coincide in two calls.
    differs = (first != first[:1]).flatten(1).any(1)
    differ = int(differs.sum())
    same = differ > COPIES // 8 and torch.equal(first, second)
    assert not same, "every call of the sampler draws the same random numbers"


def certain_model_is_followed(s: Situation) -> None:
    """With a model that is certain, samples are what it predicts."""
    process: Any = s.process.build(s.space)
    predict = s.args[0].predict
    seed_cpu(s.seed)
    session = CertainSession(process, predict, s.clean)
    template = without_truth(s.clean, s.clean.fixed)
    (*_, x) = s.build()(process, session, template)
    if isinstance(process.space, TokenSpace):
        assert_equal(x, s.clean.x0, "samples of a certain model")
    else:
        assert_close(x, s.clean.x0, "samples of a certain model", atol=2e-2)


def samples_exact_distribution(s: Situation) -> None:
    """With an exact model and the default options, samples follow the true distribution, or nearly so."""
    _sample_exact_models(s)


def samples_exact_distribution_with_any_options(s: Situation) -> None:
    """With an exact model, samples follow the true distribution for any options."""
    _sample_exact_models(s)


def _sample_exact_models(s: Situation) -> None:
    """Sample with an exact model under every installed process that the sampler supports."""
    ran = False
    for part in s.catalog.parts("process"):
        spec: Any = default_spec(part, s.catalog)
        for space, check in ((SPACE, _check_tokens), (FEATURES, _check_features)):
            if not supports(s.spec, spec, space):
                continue
            if not s.spec.steers(spec.facts(space)):
                check(s, spec)
                ran = True
    if not ran:
        raise NotApplicable(
            "no installed process supports the sampler and a toy distribution, "
            "or its samples are meant to follow another one"
        )


def supports(spec: Any, process: Any, space: Space) -> bool:
    """Whether the sampler accepts a process over a space with some model."""
    if list(process.check(space)):
        return False
    # An exact model has blocks of any size, also of one that is an option of the sampler.
    options = [value for _, value in spec if type(value) is int]
    sizes = (None, *range(1, 17), *options)
    facts = process.facts(space)
    return any(not list(spec.check(facts, ModelFacts(size))) for size in sizes)


def _check_tokens(s: Situation, spec: Any) -> None:
    process = spec.build(SPACE)
    facts = spec.facts(SPACE)
    like = blank_batch(ROWS)
    seed_cpu(s.seed)
    prior = process.corrupt(like, torch.ones(ROWS)).prior
    session = OracleSession(process, facts.predict, prior)
    (*_, x) = s.spec.build()(process, session, like)
    drawn = outcome_index(x)
    assert (drawn >= 0).all(), f'process "{spec.name}": MASK remains in samples'
    assert_follows(
        drawn, PROBABILITIES, f'process "{spec.name}": samples of an exact model'
    )


def _check_features(s: Situation, spec: Any) -> None:
    """Features with mean 2 and standard deviation 0.5."""
    process = spec.build(FEATURES)
    facts = spec.facts(FEATURES)
    like = Clean.of(torch.zeros(ROWS, FEATURES.length, FEATURES.width))
    seed_cpu(s.seed)

    def sample(std: float) -> Tensor:
        session = NormalSession(
            process=process,
            predict=facts.predict,
            mean=2.0,
            std=std,
        )
        states: list[Tensor] = list(s.spec.build()(process, session, like))
        return states[-1]

    x = sample(std=0.5)
    what = f'process "{spec.name}": samples of an exact model'
    if facts.prior != "hidden":
        # Few steps reduce the variance, since each replaces x_0 by its mean.
        assert_normal(x.flatten(), what, mean=2.0, std=0.5, slack=0.3)
        x = sample(std=0.0)
    assert_close(x, torch.full_like(x, 2.0), f"{what} of a constant", atol=2e-3)


CHECKS = (
    *checks_of(
        "sampler",
        yields_samples,
        ends_clean,
        truth_unseen,
        seeded,
        examples=3,
    ),
    # Few batches have fixed values.
    *checks_of("sampler", fixed_untouched, examples=6),
    *checks_of("sampler", certain_model_is_followed, draws_are_new, examples=2),
    *checks_of("sampler", samples_exact_distribution, place="alone", examples=1),
    *checks_of(
        "sampler",
        samples_exact_distribution_with_any_options,
        needs="exact-distribution",
        examples=2,
    ),
)
