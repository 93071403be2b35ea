"""A distribution of texts that is known exactly, with its denoiser, for any sampler.

Noise leaves each token, or its feature, with alpha = 1 - t. Letters: B batch, L length, V ids, O
outcomes.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor

from .exact_denoiser import random_joint

__all__ = ["IDS", "LENGTH", "NoiseName", "ToyDenoiser"]

NoiseName = Literal["absorbing", "uniform", "gaussian"]
IDS = 3
LENGTH = 3
SPREAD = 0.15
"""Standard deviation of a feature around id - 1."""
LEAST_LOG = -60.0
"""A model cannot return -inf, with which some samplers make NaN; exp(-60) is 0 in any sum."""
ENDLESS = torch.tensor([math.inf], dtype=torch.float64)
GRID = torch.linspace(0.0, 1.0, 17, dtype=torch.float64)[1:]
"""Times that a model without times averages over."""


class ToyDenoiser:
    """The exact model of a distribution of `LENGTH` tokens of `IDS` ids, or of as many features.

    denoiser(x, t) returns log p(x_0 | x_t), `B L V`, for ids, and E[x_0 | x_t], `B L`, for features
    around id - 1. `t` is 1 - alpha, one value or one per sample or position. Without, states may be
    of any time. `known` are positions without noise. For absorbing noise V includes MASK, and t and
    known say nothing new.

    Attributes:
        noise: absorbing, uniform, or gaussian: x_t = sqrt(1 - t) x_0 + sqrt(t) eps.
        mask: Id of MASK, or None.
        calls: Calls of the model.
        seen: Times and states of all calls that had one time, or need none.
    """

    def __init__(self, noise: NoiseName, seed: int = 0) -> None:
        self.noise = noise
        self.mask = IDS if noise == "absorbing" else None

        self.vocab = IDS
        if noise == "absorbing":
            self.vocab = IDS + 1

        self.length = LENGTH
        joint = random_joint(IDS, LENGTH, seed)
        self.outcomes: Int[Tensor, "O L"] = torch.cartesian_prod(
            *[torch.arange(IDS)] * LENGTH
        )
        self.probabilities: Float64[Tensor, " O"] = joint.flatten()
        self.calls = 0
        self.seen: list[tuple[float, Tensor]] = []

    def __call__(
        self,
        x: Shaped[Tensor, "B L"],
        t: float | Float[Tensor, "..."] | None = None,
        known: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "..."]:
        self.calls += 1
        times = torch.empty(0)
        if t is not None:
            t = torch.as_tensor(t, dtype=torch.float64)
            times = t.flatten()
        if self.mask is not None:
            self.seen.append((0.0, x.clone()))
        elif len(times) and bool((times == times[0]).all()):
            self.seen.append((float(times[0]), x.clone()))
        weights = self.posterior(x, t, known)
        if self.noise == "gaussian":
            return self._mean(x, t, weights).to(x.dtype)

        clean = torch.zeros(*x.shape, self.vocab, dtype=torch.float64)
        # Several outcomes share an id, of which an assignment would keep one.
        for place in range(x.shape[1]):
            clean[:, place].index_add_(1, self.outcomes[:, place], weights)
        return clean.log().clamp_min(LEAST_LOG).float()

    def posterior(
        self,
        x: Shaped[Tensor, "B L"],
        t: Float64[Tensor, "..."] | None,
        known: Bool[Tensor, "B L"] | None = None,
    ) -> Float64[Tensor, "B O"]:
        """Return p(outcome | x_t)."""
        if t is None and self.noise != "absorbing":
            parts = [self._log_likelihood(x, time, known) for time in GRID]
            logs = torch.stack(parts).logsumexp(0)
        else:
            # Which positions are masked says everything about the time.
            time = t
            if time is None:
                time = torch.tensor(0.5).double()

            logs = self._log_likelihood(x, time, known)
        return (logs + self.probabilities.log()).softmax(1)

    def _log_likelihood(
        self,
        x: Shaped[Tensor, "B L"],
        t: Float64[Tensor, "..."],
        known: Bool[Tensor, "B L"] | None,
    ) -> Float64[Tensor, "B O"]:
        """Return log q(x_t | outcome), up to a constant."""
        time = t
        if t.ndim == 1:
            time = t[:, None]

        time = time.expand(x.shape)
        if known is not None:
            time = time.where(~known, 0.0)
        # B O L
        time = time[:, None]
        observed = x[:, None]
        if self.noise == "gaussian":
            centre = (1 - time).sqrt() * (self.outcomes - 1)
            variance = (1 - time) * SPREAD**2 + time
            residual = observed.double() - centre
            terms = residual.square() / variance + variance.log()
            return -terms.sum(-1) / 2

        same = observed == self.outcomes
        if self.noise == "absorbing":
            possible = same | (observed == IDS)
            return possible.double().log().sum(-1)
        likelihood = (1 - time) * same + time / IDS
        return likelihood.log().sum(-1)

    def _mean(
        self,
        x: Float[Tensor, "B L"],
        t: Float64[Tensor, "..."] | None,
        weights: Float64[Tensor, "B O"],
    ) -> Float64[Tensor, "B L"]:
        """Return E[x_0 | x_t] of features, each normal around that of its id."""
        if t is None:
            raise ValueError("features require the time of a state: denoiser(x, t)")
        time = t
        if t.ndim == 1:
            time = t[:, None]
        time = time.expand(x.shape)
        a = (1 - time).sqrt()
        variance = a.square() * SPREAD**2 + time
        gain = a * SPREAD**2 / variance
        centre = weights @ (self.outcomes - 1).double()
        return centre + gain * (x.double() - a * centre)

    def marginals(self, t: float) -> Float64[Tensor, "L V"]:
        """Return the probability of each id at time t, except MASK; of features the nearest id's."""
        clean = torch.zeros(self.length, IDS, dtype=torch.float64)
        for place in range(self.length):
            clean[place].index_add_(0, self.outcomes[:, place], self.probabilities)
        if self.noise == "absorbing":
            return clean
        if self.noise == "uniform":
            return (1 - t) * clean + t / IDS

        # Cells end in the middle between the means a (id - 1).
        a = math.sqrt(1 - t)
        deviation = math.sqrt((1 - t) * SPREAD**2 + t)
        means = a * (torch.arange(IDS) - 1).double()
        inner = (means[1:] + means[:-1]) / 2
        ends = torch.cat([-ENDLESS, inner, ENDLESS])
        standard = (ends - means[:, None]) / deviation
        below = torch.special.ndtr(standard)
        cells: Tensor = clean @ below.diff(dim=1)
        return cells

    def draw(self, count: int) -> Shaped[Tensor, "N L"]:
        """Draw clean samples of the distribution."""
        chosen = torch.multinomial(self.probabilities, count, replacement=True)
        ids = self.outcomes[chosen]
        if self.noise != "gaussian":
            return ids
        return ids - 1 + SPREAD * torch.randn(ids.shape)

    def corrupt(self, clean: Shaped[Tensor, "N L"], t: float) -> Shaped[Tensor, "N L"]:
        """Draw x_t given x_0."""
        if self.noise == "gaussian":
            noise = torch.randn_like(clean)
            return math.sqrt(1 - t) * clean + math.sqrt(t) * noise
        other = torch.randint(IDS, clean.shape)
        if self.mask is not None:
            other = torch.full_like(clean, self.mask)
        return torch.where(torch.rand(clean.shape) < t, other, clean)

    def ids_of(self, x: Shaped[Tensor, "N L"]) -> Int[Tensor, "N L"]:
        """Return the ids of samples: of features the nearest."""
        if self.noise == "gaussian":
            return (x + 1).round().long()
        return x
