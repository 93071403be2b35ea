"""The bound of an absorbing process without any drawing: every set of masked tokens, for samples of a few tokens.

    L(x_0) = sum over sets M of masked tokens, k = |M| of N, of  E[sum over l in M of CE_l(M, t)] / (k C(N, k))

with 1 - alpha(t) from the Beta(k, N - k + 1) distribution, which matters only to a model that looks at t; the mean over
it is a Gauss-Legendre sum. Letters: B batch, L length, M masks, Q nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow import Clean, Measured, State

from .clock import time_of
from .precision import wide, wide_dtype

if TYPE_CHECKING:
    from .bound import Denoise
    from .tokens import TokenProcess

__all__ = ["MOST_POSITIONS", "exact_bound"]

MOST_POSITIONS = 12
"""Positions of a sample whose masks may be enumerated."""

NODES = 8
"""Levels of noise per mask: exact for a model that does not look at t, and close for one that looks at it smoothly."""


@torch.no_grad()
def exact_bound(process: TokenProcess, clean: Clean, denoise: Denoise) -> Measured:
    """Return the bound on -log p(x_0) of an absorbing process per position, in nats.

    The schedule is read as if it ran from alpha = 1 to 0. The model is called up to 8 (2^L - 1) times.

    Args:
        process: An absorbing process.
        clean: The batch.
        denoise: State and time -> prediction, of as many rows as the batch has.

    Raises:
        ValueError: The samples have more positions than `MOST_POSITIONS`.
    """
    length, device = clean.x0.shape[1], clean.x0.device
    if length > MOST_POSITIONS:
        raise ValueError(f"every mask of {length} positions: at most {MOST_POSITIONS} can be enumerated")
    free, total = ~clean.fixed, torch.zeros(clean.x0.shape, dtype=wide_dtype(device), device=device)
    blank, count = process.prior(clean).x, wide(free.sum(1))
    lost, share = (part.to(device, total.dtype) for part in _nodes())
    times = time_of(process.schedule, lost).to(torch.get_default_dtype())
    for masked in _masks(free):
        x = torch.where(masked, blank, clean.x0)
        k = wide(masked.sum(1))
        for m, t, part in zip(lost, times, share, strict=True):
            log_p = denoise(State.of(x), t.expand(len(x))).log_clean().gather(-1, clean.x0[..., None])[..., 0]
            chance = part * m ** (k - 1) * (1 - m) ** (count - k)
            total -= torch.where(masked, wide(log_p), 0.0) * torch.where(k > 0, chance, 0.0)[:, None]
    return Measured(total, free.to(total.dtype))


def _nodes() -> tuple[Float[Tensor, " Q"], Float[Tensor, " Q"]]:
    """Return places and weights of Gauss and Legendre on [0, 1], from the eigenvectors of the Jacobi matrix."""
    n = torch.arange(1, NODES, dtype=torch.float64)
    beside = (n / (4 * n.square() - 1).sqrt()).diag(1)
    place, vectors = torch.linalg.eigh(beside + beside.T)
    return (1 + place) / 2, vectors[0].square()


def _masks(free: Bool[Tensor, "B L"]) -> Iterator[Bool[Tensor, "B L"]]:
    """Yield every set of free positions once per row: sets that differ only where a row is fixed come as empty ones."""
    length = free.shape[1]
    bits = torch.arange(length, device=free.device)
    for number in range(1, 2**length):
        masked = ((number >> bits) & 1).bool().expand(free.shape)
        inside = (masked & ~free).any(1, keepdim=True).logical_not()
        if inside.any():
            yield masked & inside
