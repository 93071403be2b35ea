"""A law so small that everything about it is known: what noise makes of it, and what a perfect model would say.

The law is over two positions of three ids, which depend on each other. Letters: B batch, L length, V vocabulary, O
outcomes (every sample that the law knows).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from dither.registry import Field, TokenSpace
from dither.registry.flow.records import Clean, Noise, State, over

__all__ = [
    "IDS",
    "OUTCOMES",
    "PROBABILITIES",
    "SPACE",
    "NormalSession",
    "OracleSession",
    "assert_follows",
    "assert_normal",
    "blank_batch",
    "exact_outputs",
    "outcome_index",
]

IDS = 3
"""Ids of the law."""
SPACE = TokenSpace((Field("word", 2, IDS),))
"""Two positions of three ids."""
OUTCOMES: Int[Tensor, "O 2"] = torch.cartesian_prod(torch.arange(IDS), torch.arange(IDS))
"""Every sample."""
PROBABILITIES: Float[Tensor, " O"] = torch.tensor([8.0, 1, 1, 1, 2, 5, 1, 6, 2], dtype=torch.float64) / 27
"""The chance of each sample."""


def outcome_index(x: Int[Tensor, "B 2"]) -> Int[Tensor, " B"]:
    """Return the number of the outcome that each sample is; -1 where it is none."""
    inside = ((x >= 0) & (x < IDS)).all(1)
    return torch.where(inside, x[:, 0] * IDS + x[:, 1], -1)


def exact_outputs(
    state: State, noise: Noise, prior: Float[Tensor, "1 V"], before: Int[Tensor, "B P"] | None = None
) -> dict[str, Float[Tensor, "B L V"]]:
    """Return what a perfect model says of a state, by what its raw output means: posterior, plug-in and score.

    Args:
        state: The positions behind `before`, to the end or less.
        noise: Their noise.
        prior: Where moved tokens land.
        before: Positions that are clean already.
    """
    x, first = state.x, 0 if before is None else before.shape[1]
    vocab, outcomes = prior.shape[-1], OUTCOMES[:, first : first + x.shape[1]]
    alpha = over(noise.sigma.double(), x).neg().exp().expand(x.shape)
    stays = one_hot(outcomes, vocab).double()
    # q[b, o, l, v]: the chance that position l of outcome o has become v.
    q = alpha[:, None, :, None] * stays + (1 - alpha)[:, None, :, None] * prior.double()
    seen = q.gather(-1, x[:, None, :, None].expand(-1, len(outcomes), -1, 1))[..., 0]
    weight = PROBABILITIES.expand(len(x), -1)
    if before is not None:
        weight = weight * (OUTCOMES[None, :, :first] == before[:, None]).all(-1)
    others = torch.stack([_product_except(seen, place) for place in range(x.shape[1])], -1) * weight[..., None]
    plug_in = torch.einsum("bol,olv->blv", others, stays)
    posterior = torch.einsum("bol,bol,olv->blv", others, seen, stays)
    score = torch.einsum("bol,bolv->blv", others, q)
    score = score / score.gather(-1, x[..., None])
    return {
        "posterior": (posterior / posterior.sum(-1, keepdim=True)).log(),
        "plug-in": (plug_in / plug_in.sum(-1, keepdim=True)).log(),
        "score": score.log(),
    }


def _product_except(seen: Float[Tensor, "B O L"], place: int) -> Float[Tensor, "B O"]:
    rest = [seen[..., other] for other in range(seen.shape[-1]) if other != place]
    return torch.stack(rest, -1).prod(-1) if rest else torch.ones_like(seen[..., 0])


class OracleSession:
    """A `Session` whose model knows the law, finished positions included.

    Args:
        process: A process over `SPACE`.
        predict: What the raw output of a model means under it.
        prior: Where moved tokens land.
    """

    def __init__(self, process: Any, predict: str, prior: Float[Tensor, "1 V"]) -> None:
        self.process, self.predict, self.prior = process, predict, prior
        self.before: Int[Tensor, "B P"] | None = None

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> Any:
        """Say the truth."""
        noise = self.process.schedule(t)
        raw = exact_outputs(state, noise, self.prior, self.before)[self.predict].float()
        return self.process.read(raw.clamp_min(-60.0) if self.predict == "score" else raw, state, noise)

    def append(self, x: Int[Tensor, "B P"]) -> None:
        """Take finished positions as given."""
        self.before = x.clone() if self.before is None else torch.cat([self.before, x], 1)


class NormalSession:
    """The same for features that are normally distributed, each by itself.

    Args:
        process: A process over features.
        predict: What the raw output of a model means under it.
        mean: Of every feature.
        std: Of every feature.
    """

    def __init__(self, process: Any, predict: str, mean: float, std: float) -> None:
        self.process, self.predict, self.mean, self.std = process, predict, mean, std

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> Any:
        """Say the mean of x_0 given x_t, or what follows from it."""
        noise = self.process.schedule(t)
        a, b = noise.alpha(state.x).sqrt(), noise.one_minus_alpha(state.x).sqrt()
        signal = a * self.std**2 / (a.square() * self.std**2 + b.square())
        x0 = self.mean + signal * (state.x - a * self.mean)
        x0 = torch.where(state.masked, self.mean, x0)
        eps = (state.x - a * x0) / b.clamp_min(1e-6)
        raw = {"x0": x0, "eps": eps, "velocity": a * eps - b * x0}[self.predict]
        return self.process.read(raw, state, noise)


def blank_batch(rows: int) -> Clean:
    """Return what sampling from the law starts from: nothing is known."""
    return Clean.of(torch.zeros(rows, SPACE.length, dtype=torch.int64))


MIN_P_VALUE = 1e-6
"""A result that is rarer than this under the law speaks against the law."""
MIN_EXPECTED = 5.0
"""Outcomes expected less often are counted together, as the test of chi-square wants it."""


def assert_follows(drawn: Int[Tensor, " N"], law: Float[Tensor, " K"], what: str) -> None:
    """Refuse outcomes that a law cannot have given (0 .. K-1), by a test of chi-square."""
    assert ((drawn >= 0) & (drawn < len(law))).all(), f"{what}: outcomes {drawn.min()} to {drawn.max()} of {len(law)}"
    law = law.double() / law.double().sum()
    counts, expected = torch.bincount(drawn, minlength=len(law)).double(), law * len(drawn)
    never = (law < 1e-12) & (counts > 0)
    table = f"counts {counts.int().tolist()}, expected {[round(n, 1) for n in expected.tolist()]}"
    assert not never.any(), f"{what}: an outcome is drawn that has no chance: {table}"
    few = expected < MIN_EXPECTED
    seen = torch.cat([counts[~few], counts[few].sum()[None]])
    hoped = torch.cat([expected[~few], expected[few].sum()[None]])
    seen, hoped = seen[hoped > 0], hoped[hoped > 0]
    if len(seen) > 1:
        distance = ((seen - hoped).square() / hoped).sum()
        chance = torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2).double(), distance / 2).item()
        assert chance > MIN_P_VALUE, f"{what}: so far off once in {1 / max(chance, 1e-300):.0e} times: {table}"


def assert_normal(
    drawn: Float[Tensor, " N"], what: str, *, mean: float = 0.0, std: float = 1.0, slack: float = 0.0
) -> None:
    """Refuse numbers whose mean or variance is not that of a normal distribution.

    Args:
        drawn: The numbers, each drawn by itself.
        what: What they are.
        mean: Of the distribution.
        std: Of the distribution.
        slack: Error that is allowed besides chance: of the mean in standard deviations, of the variance as a share.
    """
    n, centred = drawn.numel(), (drawn.double() - mean) / std
    found, spread = centred.mean().item(), centred.square().mean().item()
    assert abs(found) < 5 / n**0.5 + slack, f"{what}: the mean is {found:.3f} standard deviations off"
    assert abs(spread - 1) < 5 * (2 / n) ** 0.5 + slack, f"{what}: the variance is {spread:.3f} of what it should be"
