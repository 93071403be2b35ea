"""How far samples of any function are from the distribution that its model knows exactly.

Letters: N samples, L length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int, Shaped
from torch import Tensor

from dither.registry.config.errors import Problem, Refused

from .toy_denoiser import IDS, LENGTH, NoiseName, ToyDenoiser
from .toy_distributions import chi_square_p, pool_rare

__all__ = ["Floor", "Measurement", "Sample", "floor_of", "measure_sampler"]

Sample = Callable[[ToyDenoiser, Shaped[Tensor, "N L"], Bool[Tensor, "N L"], int], Any]
"""sample(denoiser, x, known, steps): x is the state at t = 1 with the values of `known` positions.

It returns samples like x, or yields states of which the last is the samples."""

MAX_BATCH = 4
"""Rows of a small batch."""
SMALL_BATCHES = 60
FEW = 1000
"""States of fewer rows that show a token say nothing about its distribution."""
PROMPT = 0
"""Position that a prompt gives, as its first id."""


@dataclass(frozen=True)
class Measurement:
    """A sampler at one number of steps.

    Attributes:
        calls: Calls of the model.
        total_variation: Half the sum of differences between the shares of all samples and their
            probabilities.
        given_prompt: The same for the conditional distribution given one token.
        marginals: The largest total variation of one position of a state from its distribution at
            that time; None if the sampler names no times.
        stranded: Share of samples with MASK or an id that does not exist, of features with NaN or
            inf.
        changed_prompts: Share of samples in which a known token changed.
        repeats: Whether the seed of torch determines the samples.
        batches_agree: p-value of equal distributions in small batches and a large one.
    """

    steps: int
    calls: int
    total_variation: float
    given_prompt: float
    marginals: float | None
    stranded: float
    changed_prompts: float
    repeats: bool
    batches_agree: float


@dataclass(frozen=True)
class Floor:
    """The same numbers of exact samples, which are not 0 for few samples."""

    total_variation: float
    given_prompt: float
    marginals: float | None


def floor_of(noise: NoiseName, samples: int, seed: int = 0) -> Floor:
    """Return the numbers of samples drawn from the distribution itself."""
    torch.manual_seed(seed)
    denoiser = ToyDenoiser(noise)
    clean = denoiser.draw(samples)
    ids = denoiser.ids_of(clean)
    given_prompt = _given_prompt(denoiser)
    rows = torch.multinomial(given_prompt, samples, replacement=True)
    prompted = denoiser.outcomes[rows]
    seen = [(t, denoiser.corrupt(clean, t)) for t in (0.25, 0.5, 0.75, 0.9)]
    if denoiser.mask is not None:
        seen = [(0.0, x) for _, x in seen]
    return Floor(
        total_variation=_total_variation(_counts(ids), denoiser.probabilities),
        given_prompt=_total_variation(_counts(prompted), given_prompt),
        marginals=_marginal_error(denoiser, seen),
    )


def measure_sampler(
    sample: Sample, noise: NoiseName, steps: int, samples: int = 10_000, seed: int = 0
) -> Measurement:
    """Draw from the exact model of a toy distribution, and compare.

    Raises:
        Refused: The function fails, or returns something else than samples.
    """
    denoiser = ToyDenoiser(noise)
    x = _start(denoiser, samples, seed)
    nothing = torch.zeros(x.shape, dtype=torch.bool)
    drawn = _draw(sample, denoiser, x, nothing, steps, seed)
    calls = denoiser.calls
    seen = denoiser.seen
    again = _draw(sample, denoiser, x, nothing, steps, seed)
    counts = _counts(denoiser.ids_of(drawn))

    # A prompt of one token
    known = nothing.clone()
    known[:, PROMPT] = True
    prompt = x.clone()
    # Features of the first id are around -1.
    prompt[:, PROMPT] = -1 if noise == "gaussian" else 0
    prompted = _draw(sample, denoiser, prompt, known, steps, seed + 1)
    changed = (prompted != prompt)[:, PROMPT]

    small: list[Tensor] = []
    starts = _start(denoiser, MAX_BATCH * SMALL_BATCHES, seed + 2)
    for part in torch.split(starts, MAX_BATCH):
        few = torch.zeros(part.shape, dtype=torch.bool)
        small_seed = seed + 3 + len(small)
        small.append(_draw(sample, denoiser, part, few, steps, small_seed))
    small_counts = _counts(denoiser.ids_of(torch.cat(small)))
    return Measurement(
        steps=steps,
        calls=calls,
        total_variation=_total_variation(counts, denoiser.probabilities),
        given_prompt=_total_variation(
            _counts(denoiser.ids_of(prompted)), _given_prompt(denoiser)
        ),
        marginals=_marginal_error(denoiser, seen),
        stranded=_stranded(drawn),
        changed_prompts=float(changed.double().mean()),
        repeats=torch.equal(drawn, again),
        batches_agree=_p_of_equal(counts, small_counts),
    )


def _given_prompt(denoiser: ToyDenoiser) -> Float64[Tensor, " O"]:
    """Return the probability of each outcome given the prompt."""
    joint = denoiser.probabilities * (denoiser.outcomes[:, PROMPT] == 0)
    return joint / joint.sum()


def _start(denoiser: ToyDenoiser, samples: int, seed: int) -> Shaped[Tensor, "N L"]:
    torch.manual_seed(seed)
    return denoiser.corrupt(denoiser.draw(samples), 1.0)


def _draw(
    sample: Sample,
    denoiser: ToyDenoiser,
    x: Shaped[Tensor, "N L"],
    known: Bool[Tensor, "N L"],
    steps: int,
    seed: int,
) -> Shaped[Tensor, "N L"]:
    """Return the samples of a function, which must be like x."""
    torch.manual_seed(seed)
    denoiser.calls = 0
    denoiser.seen = []
    try:
        result = sample(denoiser, x.clone(), known.clone(), steps)
        if not isinstance(result, Tensor):
            result = _last(result)
    except Refused:
        raise
    except Exception as error:
        message = f"the sampler raised {type(error).__name__}: {error}"
        hint = (
            "it is called as sample(denoiser, x, known, steps); --traceback shows where"
        )
        raise Refused(Problem(message, help=hint, code="plugin-failed")) from error
    expected = f"{x.dtype} of shape {tuple(x.shape)}"
    if not isinstance(result, Tensor):
        message = f"the sampler returned {type(result).__name__}, expected {expected}"
        raise Refused(Problem(message, code="plugin-failed"))
    if result.shape != x.shape or result.is_floating_point() != x.is_floating_point():
        found = f"{result.dtype} of shape {tuple(result.shape)}"
        message = f"the sampler returned {found}, expected {expected}"
        raise Refused(Problem(message, code="wrong-shape"))
    return result.detach()


def _stranded(x: Shaped[Tensor, "N L"]) -> float:
    wrong = (x < 0) | (x >= IDS)
    # Features may have any value.
    if x.is_floating_point():
        wrong = ~x.isfinite()
    return float(wrong.any(1).double().mean())


def _last(states: Iterable[Any]) -> Any:
    last = None
    for state in states:
        last = state
    return last


def _counts(ids: Int[Tensor, "N L"]) -> Float64[Tensor, " O+1"]:
    """Return how often each outcome was drawn, and last what is none."""
    powers = IDS ** torch.arange(LENGTH - 1, -1, -1)
    index = (ids * powers).sum(1)
    invalid = ((ids < 0) | (ids >= IDS)).any(1)
    index = index.where(~invalid, IDS**LENGTH)
    return torch.bincount(index, minlength=IDS**LENGTH + 1).double()


def _total_variation(
    counts: Float64[Tensor, " O+1"], probabilities: Float64[Tensor, " O"]
) -> float:
    shares = counts / counts.sum()
    difference = (shares[:-1] - probabilities).abs().sum()
    return float((difference + shares[-1]) / 2)


def _marginal_error(
    denoiser: ToyDenoiser, seen: Sequence[tuple[float, Shaped[Tensor, "N L"]]]
) -> float | None:
    """Return the largest total variation of a position of a state, over positions and times.

    MASK is left out: samplers choose what to reveal, but revealed tokens have the clean distribution.
    """
    errors = []
    for t, x in seen:
        expected = denoiser.marginals(t)
        values = x
        if denoiser.noise == "gaussian":
            edges = (1 - t) ** 0.5 * torch.tensor([-0.5, 0.5])
            values = torch.bucketize(x.float(), edges)
        for place in range(LENGTH):
            ids = values[:, place].clamp(0, IDS)
            counts = torch.bincount(ids, minlength=IDS + 1)[:IDS].double()
            if counts.sum() >= FEW:
                gap = counts / counts.sum() - expected[place]
                errors.append(float(gap.abs().sum() / 2))
    return max(errors, default=None)


def _p_of_equal(first: Float64[Tensor, " K"], second: Float64[Tensor, " K"]) -> float:
    """Return the p-value of a chi-square test that two tables of counts have the same distribution."""
    table = torch.stack([first, second])
    smaller = min(float(first.sum()), float(second.sum()))
    expected_least = table.sum(0) / table.sum() * smaller
    table = pool_rare(table, expected_least)
    rows = table.sum(1, keepdim=True)
    columns = table.sum(0, keepdim=True)
    expected = rows * columns / table.sum()
    return chi_square_p(table, expected, outcomes=table.shape[1])
