"""Whether what was drawn follows a law. The seeds are fixed, so that a test of chances never changes its mind."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["follows", "is_normal"]

RARE = 1e-6
"""A result that is rarer than this under the law speaks against the law."""
FEW = 5.0
"""Outcomes expected less often are counted together, as the test of chi-square wants it."""


def follows(drawn: Int[Tensor, " N"], law: Float[Tensor, " K"], what: str) -> None:
    """Refuse outcomes that a law cannot have given (0 .. K-1), by a test of chi-square."""
    assert ((drawn >= 0) & (drawn < len(law))).all(), f"{what}: outcomes {drawn.min()} to {drawn.max()} of {len(law)}"
    law = law.double() / law.double().sum()
    counts, expected = torch.bincount(drawn, minlength=len(law)).double(), law * len(drawn)
    never = (law < 1e-12) & (counts > 0)
    table = f"counts {counts.int().tolist()}, expected {[round(n, 1) for n in expected.tolist()]}"
    assert not never.any(), f"{what}: an outcome is drawn that has no chance: {table}"
    few = expected < FEW
    seen = torch.cat([counts[~few], counts[few].sum()[None]])
    hoped = torch.cat([expected[~few], expected[few].sum()[None]])
    seen, hoped = seen[hoped > 0], hoped[hoped > 0]
    if len(seen) > 1:
        distance = ((seen - hoped).square() / hoped).sum()
        chance = torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2).double(), distance / 2).item()
        assert chance > RARE, f"{what}: so far off once in {1 / max(chance, 1e-300):.0e} times: {table}"


def is_normal(
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
