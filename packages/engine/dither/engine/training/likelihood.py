"""Bounds on the log-likelihood of given samples, with Monte Carlo intervals.

Of ids and of quantised features they are probabilities, of continuous features densities in the
units of the samples. Letters: B samples, K draws, L length, M features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn.functional import pad

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import TokenSpace

from .diffusion import Diffusion
from .evaluation import student_quantiles
from .given_samples import samples_of, tensor_of
from .randomness import Stream, preserved_generators, seed_generators

__all__ = [
    "LogLikelihood",
    "Method",
    "flow_log_likelihood",
    "free_values",
    "log_likelihood",
    "log_likelihood_of",
    "tight_log_likelihood",
]


Method = Literal["bound", "ode"]


@dataclass(frozen=True)
class LogLikelihood:
    """Lower bounds on log p(x_0), in nats per sample, with half-widths of 95 % intervals.

    The interval is that of the estimate of the bound; the gap between bound and log-likelihood is
    not part of it. Method "ode" estimates log p(x_0) itself, up to the error of its solver.

    Attributes:
        values: Nats of each sample.
        half_widths: Of the 95 % interval of each.
        of_values: The bound of each value of features, of which `values` are the sums; None for ids
            and under method "ode".
    """

    values: Float64[Tensor, " B"]
    half_widths: Float64[Tensor, " B"]
    of_values: Float64[Tensor, "B L M"] | None = None


def log_likelihood(
    system: Diffusion,
    x0: Any,
    known: Any = None,
    samples: int = 64,
    seed: int = 0,
    batch_size: int = 64,
    cond: Mapping[str, Tensor] | None = None,
    method: Method = "bound",
    steps: int = 100,
    bins: Float[Tensor, " M"] | None = None,
) -> LogLikelihood:
    """Return bounds on log p(x_0 at the other positions | known ones) of samples.

    Args:
        system: A trained system.
        x0: Ids `B L`, or `L` for one sample, with the padding that samples have; a row of a single
            field may be shorter than a sample. Features `B L M`, as the model receives them. Or a
            batch of the task, with its conditions.
        known: Mask of the given values, in the shape of `x0`.
        samples: Draws of noise for each row; under "ode" probes of the divergence, which is exact
            from the number of values of a sample on.
        seed: Seed of these draws.
        batch_size: Rows of a model call.
        cond: Conditions of the rows, by name.
        method: The variational bound, or the density under the probability flow of Gaussian noise
            and flow matching.
        steps: Of the solver of "ode".
        bins: Distance of the values of each column, 0 where it is continuous, such as 2 / 255 of
            pixels in [-1, 1]; by default `bin_widths` of the task. Of quantised columns p is a
            probability, of others a density.

    Raises:
        Refused: The loss is not part of a bound and trains no denoiser, the ids are not those of a
            sample, or a block model has known ids behind a gap, which its blocks do not see.
    """
    if not isinstance(x0, Clean):
        x0 = _clean_of(system, tensor_of(x0), known)
    elif known is not None:
        x0 = replace(x0, known=_mask(known, x0.x0))
    if cond:
        x0 = replace(x0, cond={**x0.cond, **cond})
    if bins is None and system.denoises and system.task is not None:
        bins = system.task.bin_widths
    if method == "ode":
        return flow_log_likelihood(
            system,
            x0,
            probes=samples,
            seed=seed,
            batch_size=batch_size,
            steps=steps,
            bins=bins,
        )
    return log_likelihood_of(system, x0, samples, seed, batch_size, bins)


def _clean_of(system: Diffusion, ids: Tensor, known: Any) -> Clean:
    """Return ids as a batch, with padding as the task defines it; Refused if no sample has them."""
    space = system.process.space
    known = _mask(known, ids).cpu()
    ids = samples_of(space, ids)
    if not isinstance(space, TokenSpace):
        return Clean.of(ids, known=known)
    known = known.view(ids.shape)
    missing = space.length - ids.shape[1]
    # A system without a task, which has a process and a model only, has no padding.
    valid = torch.ones(ids.shape, dtype=torch.bool)
    if system.task is not None:
        valid = system.task.valid_positions(ids)
    valid = pad(valid, (0, missing))
    ids = pad(ids, (0, missing))
    _require_clean(space, ids, valid)
    return Clean.of(ids, valid, pad(known, (0, missing)))


def _mask(known: Any, x0: Tensor) -> Bool[Tensor, "B L"]:
    if known is None:
        return torch.zeros(x0.shape, dtype=torch.bool)
    mask = tensor_of(known).bool()
    if mask.shape != x0.shape:
        message = f"known has shape {tuple(mask.shape)}, the ids {tuple(x0.shape)}"
        raise Refused(Problem(message, code="wrong-shape"))
    return mask


def _require_clean(space: TokenSpace, ids: Tensor, valid: Tensor) -> None:
    """Refuse ids that clean data do not have, of which the bound would be -inf."""
    allowed = space.clean().expand(space.length, space.vocab)
    inside = (ids >= 0) & (ids < space.vocab)
    # `allowed` is by position, so that positions come first. Ids outside are clamped to be looked up.
    positions_first = ids.clamp(0, space.vocab - 1).T
    possible = inside & allowed.gather(1, positions_first).T
    wrong = (valid & ~possible).nonzero()
    if len(wrong):
        row, position = wrong[0].tolist()
        message = f"row {row}, position {position}: clean data have no id {ids[row, position]}"
        raise Refused(Problem(message, code="out-of-range"))


@torch.no_grad()
def log_likelihood_of(
    system: Diffusion,
    clean: Clean,
    samples: int = 64,
    seed: int = 0,
    batch_size: int = 64,
    bins: Float[Tensor, " M"] | None = None,
) -> LogLikelihood:
    """Return bounds on log p of clean samples given their known values and conditions.

    Each sample gets `samples` draws of noise, rounded up to an even number above 1: two in each of
    samples / 2 equal strata of time, whose differences give the interval. Results are a function of
    the arguments and the weights.
    """
    if not system.bound:
        _require_density(system)
    _require_known_seen(system, clean)
    if samples < 1:
        raise Refused(f"expected at least 1 sample of noise, got {samples}")
    # Pairs in the same stratum; a single draw says nothing about the spread.
    pairs = 1 if samples == 1 else 2
    strata = -(-samples // pairs)
    count = len(clean.valid)
    table = torch.zeros(count, strata, pairs, dtype=torch.float64)
    of_values = None
    if not system.bound:
        of_values = torch.zeros(clean.x0.shape, dtype=torch.float64)
    if not count:
        nothing = torch.zeros(0, dtype=torch.float64)
        return LogLikelihood(nothing, nothing, of_values)

    with _evaluating(system, seed):
        columns = [system.stratified_times(count, strata) for _ in range(pairs)]
        times = torch.stack(columns, 2).flatten(0, 2)
        nats = table.view(-1)
        for part, batch in _batches(system, clean, strata * pairs, batch_size):
            draws, whole = _draw(system, batch, times[part].to(system.device), bins)
            nats[part] = draws.flatten(1).sum(1)
            if of_values is not None:
                rows = torch.arange(part.start, part.stop) // (strata * pairs)
                of_values.index_add_(0, rows, -draws / (strata * pairs))
        if not whole:
            # Small terms at the cost of two calls of the model: one stratum has those of all.
            ends = torch.zeros(count * pairs, dtype=torch.float64)
            for part, batch in _batches(system, clean, pairs, batch_size):
                ends[part] = _draw_ends(system, batch)
            # Times the number of strata, over which the mean is taken.
            table[:, 0] += strata * ends.view(count, pairs)

    half_widths = torch.full((len(table),), math.nan, dtype=torch.float64)
    if pairs == 2:
        half_widths = paired_half_widths(table)
    return LogLikelihood(-table.mean((1, 2)), half_widths, of_values)


@torch.no_grad()
def flow_log_likelihood(
    system: Diffusion,
    clean: Clean,
    probes: int = 64,
    seed: int = 0,
    batch_size: int = 64,
    steps: int = 100,
    bins: Float[Tensor, " M"] | None = None,
) -> LogLikelihood:
    """Return log p of clean samples under the probability flow; arguments as of `log_likelihood`.

    The interval is that of the probes; an exact divergence has none.
    """
    if isinstance(system.process.space, TokenSpace):
        message = "ids have no probability flow"
        hint = 'use method "bound"'
        raise Refused(Problem(message, ("process",), help=hint, code="misfit"))
    _require_density(system)
    if probes < 1:
        message = f"expected at least 1 probe, got {probes}"
        raise Refused(Problem(message, code="out-of-range"))
    # torch.cat refuses an empty list, which an empty batch would give.
    parts = [torch.zeros(0, 1, dtype=torch.float64)]
    with _evaluating(system, seed):
        for _, batch in _batches(system, clean, 1, batch_size):
            log_p = system.process.flow_log_density(
                batch,
                system.denoiser(batch),
                steps=steps,
                probes=probes,
                bins=bins,
            )
            parts.append(_known_density(log_p).cpu())
    table = torch.cat(parts if len(parts) == 1 else parts[1:])
    half_widths = torch.full((len(table),), math.nan, dtype=torch.float64)
    if table.shape[1] > 1:
        draws = torch.tensor(table.shape[1], dtype=torch.float64)
        half_widths = student_quantiles(draws - 1) * table.std(1) / draws.sqrt()
    return LogLikelihood(table.mean(1), half_widths)


def free_values(system: Diffusion, clean: Clean) -> Bool[Tensor, "B L *M"]:
    """True at the values of which `log_likelihood` gives the probability."""
    noisy = system.process.prior(clean).noisy
    return ~clean.fixed if noisy is None else noisy


def _require_density(system: Diffusion) -> None:
    """Refuse a loss that is not least at the mean of x_0, of which no density follows."""
    if isinstance(system.process.space, TokenSpace):
        message = "the loss of this experiment is not part of a bound on the likelihood"
        hint = 'use loss "masked-ce" or "score-entropy"'
    elif not system.denoises:
        message = "the loss of this experiment does not train the mean of clean samples"
        hint = 'use loss "mse" and process "gaussian" or "flow-matching"'
    else:
        return
    raise Refused(Problem(message, ("loss",), help=hint, code="misfit"))


def _known_density(nats: Float64[Tensor, "..."] | None) -> Float64[Tensor, "..."]:
    if nats is None:
        message = "this process defines no density of its samples"
        hint = 'use process "gaussian" or "flow-matching"'
        raise Refused(Problem(message, ("process",), help=hint, code="misfit"))
    return nats


@torch.no_grad()
def tight_log_likelihood(
    system: Diffusion,
    clean: Clean,
    draws: int,
    seed: int = 0,
    batch_size: int = 64,
) -> LogLikelihood:
    """Return log of the mean of `draws` importance weights: a bound on log p(x_0) that tightens with draws.

    In the mean it is at most log p(x_0) of the sampler, which it reaches as draws grow (importance
    weighted autoencoder; Burda et al. 2016). Absorbing processes take a model call per position and
    draw, others 65. The interval is that of the mean weight.

    Raises:
        Refused: The loss is not a bound, the process defines no weights, or a block model has known
            ids behind a gap.
    """
    if not system.bound:
        message = "the loss of this experiment is not part of a bound on the likelihood"
        raise Refused(Problem(message, ("loss",), code="misfit"))
    _require_known_seen(system, clean)
    if draws < 1:
        message = f"expected at least 1 draw, got {draws}"
        raise Refused(Problem(message, code="out-of-range"))
    with _evaluating(system, seed):
        log_weights = _log_weights(system, clean, draws, batch_size)

    # B K N -> B: blocks are independent given the clean ones before them.
    values = (log_weights.logsumexp(1) - math.log(draws)).sum(1)
    half_widths = torch.full_like(values, math.nan)
    if draws > 1:
        # The delta method: the standard error of log(mean) is that of the mean, relative.
        # Weights over their mean, without overflow.
        shares = log_weights.softmax(1) * draws
        variance = shares.var(1).sum(1) / draws
        freedom = torch.full_like(variance, draws - 1)
        half_widths = student_quantiles(freedom) * variance.sqrt()
    return LogLikelihood(values, half_widths)


def _require_known_seen(system: Diffusion, clean: Clean) -> None:
    blocks = system.blocks
    if blocks is None or not bool(blocks.known_behind_gap(clean).any()):
        return
    message = "blocks do not see known tokens of later blocks: their bound is not that given these"
    hint = "give known tokens before the gap only, or train without model.block_size"
    raise Refused(Problem(message, ("known",), help=hint, code="known-behind-gap"))


def _log_weights(
    system: Diffusion, clean: Clean, draws: int, batch_size: int
) -> Float64[Tensor, "B K N"]:
    parts = []
    for _, batch in _batches(system, clean, draws, batch_size):
        weights = system.draw_log_weight(batch)
        if weights is None:
            message = "this process defines no importance weights of trajectories"
            raise Refused(Problem(message, ("process",), code="misfit"))
        parts.append(weights.cpu())
    table = torch.cat(parts)
    return table.view(-1, draws, table.shape[1])


def paired_half_widths(
    draws: Float64[Tensor, "B strata 2"],
) -> Float64[Tensor, " B"]:
    """Return half-widths of 95 % intervals of means over equal strata with two draws each.

    The variance of the mean is a sum over strata; Student's t has the degrees of freedom of
    Satterthwaite (1946).
    """
    strata = draws.shape[1]
    # The variance of the mean of a pair, estimated with one degree of freedom: the mean of the
    # square of such an estimate is three times the square of the variance.
    variances = (draws[..., 0] - draws[..., 1]).square() / 4
    variance = variances.sum(1)
    squares = variances.square().sum(1)
    freedom = 3 * variance.square() / squares - 2
    # Without any difference the interval is empty.
    freedom = freedom.nan_to_num(strata).clamp(1, strata)
    return student_quantiles(freedom) * variance.sqrt() / strata


def _batches(
    system: Diffusion, clean: Clean, repeats: int, batch_size: int
) -> Iterator[tuple[slice, Clean]]:
    """Yield batches of samples, each `repeats` times, and their places in the order of all."""
    clean = replace(clean, goal=None)
    total = len(clean.valid) * repeats
    for start in range(0, total, batch_size):
        stop = min(start + batch_size, total)
        rows = torch.arange(start, stop) // repeats
        select = partial(torch.index_select, dim=0, index=rows)
        yield slice(start, stop), clean.apply(select).to(system.device)


def _draw(
    system: Diffusion,
    batch: Clean,
    t: Float[Tensor, " B"],
    bins: Float[Tensor, " M"] | None,
) -> tuple[Float64[Tensor, "B ..."], bool]:
    """Draw bounds of positions, or of values, in nats; return them, and whether with their ends."""
    denoise = system.denoiser(batch)
    if not system.bound:
        values = system.process.draw_value_bounds(batch, t, denoise, bins)
        return _known_density(values).cpu(), True
    whole = system.draw_whole_bound(batch, t, denoise)
    if whole is not None:
        return whole.double().cpu(), True
    measured = system.draw_diffusion(batch, t, denoise)
    nats = measured.values.double() * measured.weights.double()
    return nats.cpu(), False


def _draw_ends(system: Diffusion, batch: Clean) -> Float64[Tensor, " B"]:
    ends = torch.zeros(len(batch.valid), dtype=torch.float64)
    for nats in system.draw_ends(batch, system.denoiser(batch)).values():
        ends += nats.double().sum(1).cpu()
    return ends


@contextmanager
def _evaluating(system: Diffusion, seed: int) -> Iterator[None]:
    """Set evaluation mode and seed torch's generators; restore both at the end of the block."""
    was_training = system.training
    with preserved_generators(system.device):
        seed_generators(system.device, Stream.EVALUATION, seed, 0)
        system.eval()
        try:
            yield
        finally:
            system.train(was_training)
