"""Bounds on -log p(x_0) of token processes: the measured diffusion part with its two ends, or by enumeration of masks.

Estimators of the bound. All have the same mean, the bound; they differ in variance.

    L(x_0) = integral over t of w(t) E[sum over masked l of CE_l],   w = m'(t) / m(t),   m = 1 - alpha

- time         t even in [t_min, 1], every token masked independently with probability m.
- importance   log m even, so that w is the same at every t (MDLM, Sahoo et al. 2024, appendix).
- mask-count   m even, one token always masked and the others with probability m: the number k of N
masked tokens
               is then uniform in 1 .. N, with weight N / k. At any m, w E[sum CE] = m' E[(N / k)
               sum CE] exactly, also for a model that is given the time.
- exact        drawn as time; the bound itself is a sum over all masks (`exact_nelbo`).

Importance weights go into the rate, which token losses multiply with.

Letters: B batch, L length, Q quadrature nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Clean, Measured, Noise, State
from dither.registry.contracts.spaces import TokenSpace

from ..options import MAX_POSITIONS
from ..precision import wide, wide_dtype
from ..timestep_sampling import TimestepSampling, time_of
from .posterior import lookup

__all__ = [
    "Denoise",
    "Estimator",
    "exact_nelbo",
    "mask_at_least_one",
    "nelbo",
    "place_times",
]

Denoise = Callable[[State, Float[Tensor, " B"]], Any]
"""State and time -> prediction."""


@torch.no_grad()
def nelbo(
    process: TokenProcess,
    t_min: float,
    clean: Clean,
    measured: Measured,
    denoise: Denoise,
) -> Measured:
    """Add the ends to a measured loss, per position, in nats.

    Args:
        process: Whose bound it is.
        t_min: Smallest time at which the loss is measured.
        clean: The batch.
        measured: A loss whose values times weights, in the mean over t in [t_min, 1], are the
            diffusion part of each position over that range, divided by 1 - t_min.
        denoise: State and time -> prediction.

    Returns:
        Nats per position, with weight 1 on real positions that are not known, however the loss was
        reduced. The parts "prior" and "reconstruction" are the two ends; the rest is the diffusion
        part.
    """
    n = len(clean.x0)
    device = clean.x0.device
    t = torch.full((n,), t_min, device=device)
    noised = process.corrupt(clean, t)
    nats = (1 - t_min) * measured.values * measured.weights
    missing = _cross_entropy(denoise(noised.state, t), clean).where(
        noised.target_mask, 0.0
    )
    ends = {"prior": _prior_kl(process, clean, denoise), "reconstruction": missing}
    ends = {
        name: part.to(nats.dtype).where(~clean.fixed, 0.0)
        for name, part in ends.items()
    }
    return Measured(sum(ends.values(), nats), (~clean.fixed).to(nats.dtype), parts=ends)


def _cross_entropy(pred: Any, clean: Clean) -> Float[Tensor, "B L"]:
    """-log p(x_0 | x_t) at every position."""
    log: Tensor = pred.log_clean().gather(-1, clean.x0[..., None])[..., 0]
    return -log.double()


def _prior_kl(
    process: TokenProcess, clean: Clean, denoise: Denoise
) -> Float[Tensor, "B L"]:
    """KL(q(x_1|x_0) || prior).

    Where the prior cannot produce x_0 (absorbing) that is infinite for any signal left; the
    schedule is then read as if it went on to alpha = 0, which costs alpha(1) times the cross
    entropy of a sample that is masked throughout, up to terms of alpha(1) squared.
    """
    n = len(clean.x0)
    device = clean.x0.device
    end = torch.ones(n, device=device)
    alpha = (-process.schedule(end).sigma.double()).exp()[:, None]
    prior_prob = lookup(process.prior_probs(device), clean.x0).double()
    possible = prior_prob > 0
    safe = torch.where(possible, prior_prob, 1.0)
    stays = alpha + (1 - alpha) * safe
    gap: Tensor = stays * (stays / safe).log() + torch.special.xlog1py(
        (1 - alpha) * (1 - safe), -alpha
    )
    assert isinstance(process.space, TokenSpace)
    if bool(((process.prior_probs() > 0) | ~process.space.clean()).all()):
        return gap
    missing: Tensor = alpha * _cross_entropy(denoise(process.prior(clean), end), clean)
    return torch.where(possible, gap, missing)


NODES = 8
"""Levels of noise per mask: exact for a model that does not look at t, and close for one that looks
at it smoothly."""


@torch.no_grad()
def exact_nelbo(process: TokenProcess, clean: Clean, denoise: Denoise) -> Measured:
    """Return the bound on -log p(x_0) of an absorbing process per position, in nats.

    The schedule is read as if it ran from alpha = 1 to 0. The model is called up to 8 (2^L - 1)
    times.

    Args:
        process: An absorbing process.
        clean: The batch.
        denoise: State and time -> prediction, of as many rows as the batch has.

    ValueError if the samples have more positions than `MAX_POSITIONS`.
    """
    length = clean.x0.shape[1]
    device = clean.x0.device
    if length > MAX_POSITIONS:
        raise ValueError(
            f"every mask of {length} positions: at most {MAX_POSITIONS} can be enumerated"
        )
    free = ~clean.fixed
    total = torch.zeros(clean.x0.shape, dtype=wide_dtype(device), device=device)
    blank = process.prior(clean).x
    count = wide(free.sum(1))
    noise_share, weight = (part.to(device, total.dtype) for part in _nodes())
    times = time_of(process.schedule, noise_share).to(torch.get_default_dtype())
    for masked in _masks(free):
        x = torch.where(masked, blank, clean.x0)
        k = wide(masked.sum(1))
        for m, t, part in zip(noise_share, times, weight, strict=True):
            log_p = (
                denoise(State.of(x), t.expand(len(x)))
                .log_clean()
                .gather(-1, clean.x0[..., None])[..., 0]
            )
            probability = part * m ** (k - 1) * (1 - m) ** (count - k)
            total -= (
                torch.where(masked, wide(log_p), 0.0)
                * torch.where(k > 0, probability, 0.0)[:, None]
            )
    return Measured(total, free.to(total.dtype))


def _nodes() -> tuple[Float[Tensor, " Q"], Float[Tensor, " Q"]]:
    """Return places and weights of Gauss and Legendre on [0, 1], from the eigenvectors of the Jacobi matrix."""
    n = torch.arange(1, NODES, dtype=torch.float64)
    off_diagonal = (n / (4 * n.square() - 1).sqrt()).diag(1)
    place, vectors = torch.linalg.eigh(off_diagonal + off_diagonal.T)
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


Estimator = Literal["time", "importance", "mask-count", "exact"]


def place_times(
    timesteps: TimestepSampling, estimator: Estimator | str, t: Float[Tensor, " B"]
) -> tuple[Float[Tensor, " B"], Noise]:
    """Map times that are uniform in [t_min, 1] to those of the estimator.

    Returns:
        The times, and their noise; its rate is divided by their density relative to uniform times.
    """
    if estimator not in ("importance", "mask-count"):
        return t, timesteps.schedule(t)
    u = ((wide(t) - timesteps.t_min) / (1 - timesteps.t_min)).clamp(0, 1)
    ends = torch.linspace(timesteps.t_min, 1.0, 2, dtype=u.dtype, device=u.device)
    low, high = _one_minus_alpha(timesteps, ends)
    if estimator == "importance":
        level = low * (high / low) ** u
        derivative = level * (high / low).log()
    else:
        level = low + (high - low) * u
        derivative = (high - low).expand(u.shape)
    # d sigma = dm / (1 - m); `derivative` is dm / du, and u runs over 1 while even times run over 1
    # - t_min.
    rate = derivative / (1 - level) / (1 - timesteps.t_min)
    return time_of(timesteps.schedule, level).to(t.dtype), Noise(
        (-torch.log1p(-level)).to(t.dtype), rate.to(t.dtype)
    )


def _one_minus_alpha(
    timesteps: TimestepSampling, t: Float[Tensor, " K"]
) -> Float[Tensor, " K"]:
    return -(-timesteps.schedule(t).sigma).expm1()


def mask_at_least_one(
    moved: Bool[Tensor, "B L"], free: Bool[Tensor, "B L"], noise: Noise
) -> tuple[Bool[Tensor, "B L"], Noise]:
    """Mask one more free position of each row, chosen uniformly, with weight N / k in place of 1 / (1 - alpha)."""
    count = free.sum(1)
    first = torch.rand_like(wide(free)).masked_fill(~free, -1.0).argmax(1, keepdim=True)
    moved = moved | (torch.zeros_like(moved).scatter_(1, first, True) & free)
    level = -(-wide(noise.sigma)).expm1()
    weight = count * level / moved.sum(1).clamp_min(1)
    return moved, Noise(noise.sigma, (wide(noise.rate) * weight).to(noise.rate.dtype))
