"""Bounds on the log-likelihood of given samples, with Monte Carlo intervals.

Letters: B samples, K draws, L length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.records import Clean

from .diffusion import Diffusion
from .randomness import Stream, seed_generators

__all__ = ["LogLikelihood", "log_likelihood", "log_likelihood_of"]


Z95 = 1.959963984540054
"""Half-width of a 95 % interval in standard errors."""


@dataclass(frozen=True)
class LogLikelihood:
    """Lower bounds on log p(x_0), in nats per sample, with half-widths of 95 % intervals.

    The interval is that of the estimate of the bound; the gap between bound and log-likelihood is
    not part of it.
    """

    values: Float64[Tensor, " B"]
    half_widths: Float64[Tensor, " B"]


def log_likelihood(
    system: Diffusion,
    x0: Shaped[Tensor, "B L"],
    known: Shaped[Tensor, "B L"] | None = None,
    samples: int = 64,
    seed: int = 0,
    batch_size: int = 64,
) -> LogLikelihood:
    """Return bounds on log p(x_0 at the other positions | known ones) of ids.

    Ids that are shorter than a sample are padded.

    `system` is a Diffusion, `known` the mask of given ids, `samples` the draws of noise for each
    row. Refused if they are longer than a sample, or the loss is not part of a bound.
    """
    x0 = torch.as_tensor(x0)
    missing = system.process.space.length - x0.shape[1]
    if missing < 0:
        message = f"{x0.shape[1]} ids, but a sample has {system.process.space.length}"
        raise Refused(Problem(message, code="misfit"))
    if known is None:
        known = torch.zeros(x0.shape)
    known = torch.as_tensor(known).bool()
    pad = torch.nn.functional.pad
    valid = pad(torch.ones(x0.shape, dtype=torch.bool), (0, missing))
    clean = Clean.of(pad(x0, (0, missing)), valid, pad(known, (0, missing)))
    return log_likelihood_of(system, clean, samples, seed, batch_size)


@torch.no_grad()
def log_likelihood_of(
    system: Diffusion,
    clean: Clean,
    samples: int = 64,
    seed: int = 0,
    batch_size: int = 64,
) -> LogLikelihood:
    """Return bounds on log p of clean samples given their known values and conditions.

    Each sample gets `samples` draws of noise at stratified times, so that its interval is slightly
    too wide, never too narrow. Results are a function of the arguments and the weights.
    """
    if not system.bound:
        message = "the loss of this experiment is not part of a bound on the likelihood"
        hint = 'use loss "masked-ce" or "score-entropy"'
        raise Refused(Problem(message, ("loss",), help=hint, code="misfit"))
    device = next(system.model.parameters()).device
    was_training = system.training
    seed_generators(device, Stream.EVALUATION, seed, 0)

    # The times of a sample are stratified; batches mix samples.
    count = len(clean.valid)
    times = torch.cat([system.times(samples) for _ in range(count)])
    rows = torch.arange(count).repeat_interleave(samples)
    clean = replace(clean, goal=None)
    nats = [torch.zeros(0, dtype=torch.float64)]
    system = system.eval()
    try:
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            select = partial(torch.index_select, dim=0, index=part)
            batch = clean.apply(select).to(device)
            t, noised = system.noise(batch, times[start : start + len(part)].to(device))
            context = system.context(batch)
            prediction = system.denoise(noised.state, t, batch, context=context)
            bound = system.bounded(batch, system.loss(prediction, noised))
            nats.append((bound.values.double() * bound.weights.double()).sum(1).cpu())
    finally:
        system.train(was_training)

    table = torch.cat(nats).view(count, samples)
    # One draw says nothing about the spread.
    spread = torch.full((count,), math.nan, dtype=torch.float64)
    if samples > 1:
        spread = table.std(1)
    return LogLikelihood(-table.mean(1), Z95 * spread / math.sqrt(samples))
