"""Bounds on -log p(x_0) of token processes: the measured diffusion part with its two ends, or by enumeration of masks.

Estimators of the bound. All have the same mean, the bound; they differ in variance.

    L(x_0) = integral over t of w(t) E[sum over masked l of CE_l],   w = m'(t) / m(t),   m = 1 - alpha

- time         t even in [t_min, 1], every token masked independently with probability m.
- importance   log m even, so that w is the same at every t (MDLM, Sahoo et al. 2024, appendix).
- mask-count   m even, one token always masked and the others with probability m: the number k of N
               masked tokens is then uniform in 1 .. N, with weight N / k. At any m, w E[sum CE] =
               m' E[(N / k) sum CE] exactly, also for a model that is given the time.
- exact        drawn as time; the bound itself is a sum over all masks (`exact_nelbo`).

Importance weights go into the rate, which token losses multiply with.

Letters: B batch, L length, Q quadrature nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Clean, Measured, Noise, State
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.contracts.tensors import at_ids, lookup

from ..options import MAX_POSITIONS, Estimator
from ..precision import one_minus_exp, wide, wide_dtype
from ..timestep_sampling import TimestepSampling, time_of

__all__ = [
    "Denoise",
    "cross_entropy",
    "draw_masked_bound",
    "exact_nelbo",
    "mask_at_least_one",
    "nelbo",
    "place_times",
    "prior_kl",
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
    free = ~clean.fixed
    # The diffusion part: the mean over t in [t_min, 1] times the length of that range
    diffusion = (1 - t_min) * measured.values * measured.weights

    # The reconstruction: -log p(x_0 | x_t) at t_min, where x_t does not determine x_0
    t = torch.full((len(clean.x0),), t_min, device=clean.x0.device)
    noised = process.corrupt(clean, t)
    reconstruction = cross_entropy(denoise(noised.state, t), clean)
    reconstruction = reconstruction.where(noised.target_mask & free, 0.0)

    prior = prior_kl(process, clean, denoise).where(free, 0.0)
    ends = {
        "prior": prior.to(diffusion.dtype),
        "reconstruction": reconstruction.to(diffusion.dtype),
    }
    nats = diffusion + ends["prior"] + ends["reconstruction"]
    return Measured(nats, free.to(diffusion.dtype), parts=ends)


def cross_entropy(pred: Any, clean: Clean) -> Float[Tensor, "B L"]:
    """-log p(x_0 | x_t) at every position."""
    log_p = at_ids(pred.log_clean(), clean.x0)
    return -log_p.double()


def prior_kl(
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

    # q(x_1 = x_0 | x_0) = alpha + (1 - alpha) prior(x_0); every other id has 1 - alpha times its
    # probability under the prior, so that the KL is a sum of two terms.
    prior_prob = lookup(process.prior_probs(device), clean.x0).double()
    possible = prior_prob > 0
    safe = torch.where(possible, prior_prob, 1.0)
    stays = alpha + (1 - alpha) * safe
    moves = (1 - alpha) * (1 - safe)
    kl: Tensor = stays * (stays / safe).log() + torch.special.xlog1py(moves, -alpha)

    # The model is called only if some clean id has no probability under the prior.
    assert isinstance(process.space, TokenSpace)
    if bool(((process.prior_probs() > 0) | ~process.space.clean()).all()):
        return kl
    end_cost = cross_entropy(denoise(process.prior(clean), end), clean)
    return torch.where(possible, kl, alpha * end_cost)


NODES = 8
"""Noise levels per mask: exact for a model that ignores t, close for one that is smooth in t."""


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
    count = wide(free.sum(1))
    nats = torch.zeros(clean.x0.shape, dtype=wide_dtype(device), device=device)
    all_masked = process.prior(clean).x

    # The integral over m = 1 - alpha of m^(k-1) (1 - m)^(N-k) CE, one term for each set of k of N
    # positions: w(t) dt = dm / m, times the probability of the set
    levels, node_weights = (nodes.to(device, nats.dtype) for nodes in _nodes())
    times = time_of(process.schedule, levels).to(torch.get_default_dtype())
    for masked in _masks(free):
        x = torch.where(masked, all_masked, clean.x0)
        k = wide(masked.sum(1))
        for m, t, node_weight in zip(levels, times, node_weights, strict=True):
            log_clean = denoise(State.of(x), t.expand(len(x))).log_clean()
            log_p = wide(at_ids(log_clean, clean.x0))
            probability = node_weight * m ** (k - 1) * (1 - m) ** (count - k)
            # A row whose set comes again as an empty one counts once.
            probability = torch.where(k > 0, probability, 0.0)
            nats -= torch.where(masked, log_p, 0.0) * probability[:, None]
    return Measured(nats, free.to(nats.dtype))


def _nodes() -> tuple[Float[Tensor, " Q"], Float[Tensor, " Q"]]:
    """Return places and weights of Gauss and Legendre on [0, 1], from the eigenvectors of the Jacobi matrix."""
    # Golub and Welsch 1969: nodes are the eigenvalues, weights the squared first components.
    n = torch.arange(1, NODES, dtype=torch.float64)
    off_diagonal = (n / (4 * n.square() - 1).sqrt()).diag(1)
    nodes, vectors = torch.linalg.eigh(off_diagonal + off_diagonal.T)
    # From [-1, 1] to [0, 1]
    return (1 + nodes) / 2, vectors[0].square()


def _masks(free: Bool[Tensor, "B L"]) -> Iterator[Bool[Tensor, "B L"]]:
    """Yield every set of free positions once per row: sets that differ only where a row is fixed come as empty ones."""
    length = free.shape[1]
    bits = torch.arange(length, device=free.device)
    for number in range(1, 2**length):
        # The binary digits of the number are the mask.
        masked = ((number >> bits) & 1).bool().expand(free.shape)
        inside = (masked & ~free).any(1, keepdim=True).logical_not()
        if inside.any():
            yield masked & inside


def place_times(
    timesteps: TimestepSampling, estimator: Estimator, t: Float[Tensor, " B"]
) -> tuple[Float[Tensor, " B"], Noise]:
    """Map times that are uniform in [t_min, 1] to those of the estimator.

    Returns:
        The times, and their noise; its rate is divided by their density relative to uniform times.
    """
    if estimator not in ("importance", "mask-count"):
        return t, timesteps.schedule(t)
    # m = 1 - alpha between its values at t_min and at 1, as a function of u uniform in [0, 1]
    u = ((wide(t) - timesteps.t_min) / (1 - timesteps.t_min)).clamp(0, 1)
    ends = torch.linspace(timesteps.t_min, 1.0, 2, dtype=u.dtype, device=u.device)
    low, high = one_minus_exp(timesteps.schedule(ends).sigma)
    if estimator == "importance":
        m = low * (high / low) ** u
        dm_du = m * (high / low).log()
    else:
        m = low + (high - low) * u
        dm_du = (high - low).expand(u.shape)

    # sigma = -log(1 - m), so that d sigma = dm / (1 - m); u runs over 1 while even times run over
    # 1 - t_min.
    sigma = -torch.log1p(-m)
    rate = dm_du / (1 - m) / (1 - timesteps.t_min)
    times = time_of(timesteps.schedule, m).to(t.dtype)
    return times, Noise(sigma.to(t.dtype), rate.to(t.dtype))


def mask_at_least_one(
    moved: Bool[Tensor, "B L"], free: Bool[Tensor, "B L"], noise: Noise
) -> tuple[Bool[Tensor, "B L"], Noise]:
    """Mask one more free position of each row, chosen uniformly, with weight N / k in place of 1 / (1 - alpha)."""
    moved = _with_one_more(moved, free)
    # The loss divides by m = 1 - alpha, so that the rate is multiplied by m N / k.
    m = one_minus_exp(wide(noise.sigma))
    weight = free.sum(1) * m / moved.sum(1).clamp_min(1)
    rate = wide(noise.rate) * weight
    return moved, Noise(noise.sigma, rate.to(noise.rate.dtype))


def _with_one_more(
    moved: Bool[Tensor, "B L"], free: Bool[Tensor, "B L"]
) -> Bool[Tensor, "B L"]:
    # One of the free positions, each with the same probability
    score = torch.rand_like(wide(free)).masked_fill(~free, -1.0)
    chosen = score.argmax(1, keepdim=True)
    # In a row without free positions the argmax is at a fixed one.
    chosen_mask = torch.zeros_like(moved).scatter_(1, chosen, True) & free
    return moved | chosen_mask


@torch.no_grad()
def draw_masked_bound(
    process: TokenProcess,
    timesteps: TimestepSampling,
    clean: Clean,
    t: Float[Tensor, " B"],
    denoise: Denoise,
) -> Float[Tensor, "B L"]:
    """Draw the bound on -log p(x_0) of an absorbing process per position, in nats, with one call of the model.

    The schedule is read as if it ran from alpha = 1 to 0, so that the bound has neither a
    reconstruction nor a term of the prior: it is the mean of N / k times the cross entropies of k
    masked ones of N positions, k uniform in 1 .. N (LLaDA; Nie et al., 2025).

    Args:
        process: An absorbing process.
        timesteps: Its schedule and t_min.
        clean: The batch.
        t: Uniform in [t_min, 1]; stretched to [0, 1], it is the probability of a mask.
        denoise: State and time -> prediction.
    """
    free = ~clean.fixed
    # m = 1 - alpha, uniform in [0, 1]
    m = (wide(t) - timesteps.t_min) / (1 - timesteps.t_min)
    masked = (torch.rand_like(wide(free)) < m[:, None]) & free
    masked = _with_one_more(masked, free)
    weight = free.sum(1) / masked.sum(1).clamp_min(1)
    x = torch.where(masked, process.prior(clean).x, clean.x0)

    # Training has no times below t_min.
    times = time_of(timesteps.schedule, m).clamp_min(timesteps.t_min)
    cost = cross_entropy(denoise(State.of(x), times.to(t.dtype)), clean)
    return weight[:, None] * cost.where(masked, 0.0)
