"""Token processes: with probability 1 - alpha a token is replaced by a draw from the prior.

    q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) prior(x_t)

The prior names the process: all on MASK is absorbing (MDLM, Sahoo et al. 2024), even over the clean ids is uniform
(SEDD, Lou et al. 2023; UDLM, Schiff et al. 2024), frequencies of the data are DiGress' marginal (Vignac et al. 2022).
The arithmetic is the same. Letters: B batch, L length, V vocabulary, rows one per position or one for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.config.errors import nearest
from dither.registry.flow.protocols import RawLater
from dither.registry.flow.records import Clean, Measured, Noise, Noised, State, over
from dither.registry.flow.spaces import Field, Space, TokenSpace

from ..precision import Constant, wide, wide_dtype
from ..timestep_sampling import TimestepSampling, time_of
from .categorical import draw_along, draw_log
from .nelbo_estimators import Estimator, mask_at_least_one, place_times
from .posterior import Posterior, lookup
from .prediction import CategoricalPrediction, LaterReading, PredictionType, as_categorical, sample_clean

__all__ = [
    "MAX_POSITIONS",
    "Denoise",
    "TokenProcess",
    "even_prior",
    "exact_nelbo",
    "frequency_prior",
    "mask_prior",
    "nelbo",
]


class TokenProcess:
    """Absorbing, uniform, or any other prior.

    Args:
        space: What the model serves, MASK included.
        prior: Where moved tokens land, one row per position or one for all; rows sum to 1.
        clock: Schedule, level and training times.
        predict: What the raw output of the model means.
        estimator: How noise is drawn to measure a loss with; other than "time" only where the prior is a MASK.

    Attributes:
        masks: Whether the prior is all on one id.
    """

    def __init__(
        self,
        space: TokenSpace,
        prior: Float[Tensor, "rows V"],
        clock: TimestepSampling,
        predict: PredictionType = "posterior",
        estimator: Estimator = "time",
    ) -> None:
        if predict not in get_args(PredictionType):
            close = nearest(predict, get_args(PredictionType))
            hint = f'; did you mean "{close}"?' if close else ""
            raise ValueError(f"predict must be one of {', '.join(get_args(PredictionType))}, not {predict!r}{hint}")
        prior, clean = wide(prior), space.clean()
        sums_to_one = torch.allclose(prior.sum(-1), torch.ones_like(prior[:, 0]))
        if prior.shape != clean.shape or bool((prior < 0).any()) or not sums_to_one:
            raise ValueError(f"the prior must be a table of shape {tuple(clean.shape)} whose rows sum to 1")
        self.masks = bool((prior.max(-1).values == 1).all())
        if estimator != "time" and not self.masks:
            raise ValueError(f'estimator "{estimator}" is for a prior that is all on one id')
        self.space: Space = space
        self.estimator: Estimator = estimator
        self.predict: PredictionType = predict
        self.clock = clock
        self.schedule, self.times, self.level = clock.schedule, clock.times, clock.level
        self.table, self.clean, self.reached = Constant(prior), Constant(clean), Constant(clean | (prior > 0))
        self._reaches_all = bool((clean | (prior > 0)).all())
        self._cumulative = Constant(prior.cumsum(-1))

    def corrupt(self, clean: Clean, t: Float[Tensor, "B *L"]) -> Noised:
        """Draw x_t given x_0; fixed values stay as they are."""
        noise = self.schedule(t)
        return self._noised(clean, noise, self._moves(clean.x0, noise) & ~clean.fixed)

    def estimate(self, clean: Clean, t: Float[Tensor, " B"]) -> tuple[Float[Tensor, " B"], Noised]:
        """Draw what a loss is measured with: for times even in [t_min, 1], the mean of the loss is that over q.

        Returns:
            The times of the states, which the model is to be told, and the states.
        """
        t, noise = place_times(self.clock, self.estimator, t)
        moved = self._moves(clean.x0, noise) & ~clean.fixed
        if self.estimator == "mask-count":
            moved, noise = mask_at_least_one(moved, ~clean.fixed, noise)
        return t, self._noised(clean, noise, moved)

    def renoise(self, state: State, gap: Noise, like: Clean) -> State:
        """Draw x_t given x_s, for t > s, with the noise between them; fixed values stay as they are."""
        moved = self._moves(state.x, gap) & ~like.fixed
        return State.of(torch.where(moved, self._land(state.x), state.x))

    def read(self, raw: Float[Tensor, "B L V"], state: State, noise: Noise) -> CategoricalPrediction:
        """Give the raw output its meaning, in float32 at least."""
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        evidence = self.evidence(state, noise)
        if self.predict != "score":
            return CategoricalPrediction(evidence.settle(raw), self.predict, evidence)
        ratios = raw.scatter(-1, state.x[..., None], 0.0)
        if not self._reaches_all:
            ratios = ratios.masked_fill(~self.reached.on(raw.device), -torch.inf)
            ratios = ratios.scatter_(-1, state.x[..., None], 0.0)
        return CategoricalPrediction(ratios, "score", evidence)

    def read_later(self, raw: RawLater, state: State, noise: Noise) -> LaterReading:
        """Give raw output its meaning before there is any."""
        return LaterReading(self.read, raw, state, self.evidence(state, noise), self.predict)

    def support(self, device: Any) -> Bool[Tensor, "rows V"]:
        """Return the ids of which the raw output says anything: elsewhere `read` puts -inf."""
        return (self.reached if self.predict == "score" else self.clean).on(device)

    def evidence(self, state: State, noise: Noise) -> Posterior:
        """Return what a state at a noise level says by itself."""
        device = state.x.device
        return Posterior(state.x, noise, self.table.on(device), self.clean.on(device))

    def prior(self, like: Clean) -> State:
        """The state at t = 1: draws from the prior, with fixed values in place."""
        return State.of(torch.where(like.fixed, like.x0, self._land(like.x0)))

    def step(self, state: State, pred: Any, now: Noise, then: Noise, like: Clean) -> State:
        """Draw x_s given x_t: from sum over x_0 of p(x_0 | x_t) q(x_s | x_t, x_0), exactly.

        With the context m and alpha_ts = alpha_t / alpha_s it is a mixture, up to a factor: to stay, with weight
        alpha_ts (alpha_s m(x) + (1 - alpha_s) prior(x)); a draw from m, (1 - alpha_ts) prior(x) alpha_s; and one from
        the prior, (1 - alpha_ts) prior(x) (1 - alpha_s). Lots come first: they settle where the model need not be
        asked, as it would have to stay even if m(x) were 0, or m(x) is 0 and what comes is from the prior.
        """
        x, evidence = state.x, self.evidence(state, now)
        landing = lookup(self.table.on(x.device), x)
        log_kept, log_alpha = (-wide(over(noise.sigma, x)) for noise in (now.since(then), then))
        least, move = -log_kept.exp() * log_alpha.expm1() * landing, -log_kept.expm1() * landing
        lot, believed = _uniform(x), _uniform(x) < log_alpha.exp()
        surplus = lot * (least + move) - least
        leaves = ~like.fixed & ~evidence.sure & (surplus >= 0)
        new = torch.where(leaves & ~believed, self._land(x), x)
        asked = leaves & (believed | lookup(self.clean.on(x.device), x))
        most = surplus / ((log_kept + log_alpha).exp() * (1 - lot)).clamp_min(torch.finfo(lot.dtype).tiny)
        some = [value[asked] for value in (x, new, most, believed)]
        new[asked] = _settled(as_categorical(pred, evidence, "posterior"), asked, *some)
        return State.of(new)

    def finish(self, state: State, pred: Any, like: Clean) -> Int[Tensor, "B L"]:
        """Draw clean ids from p(x_0 | x_t) wherever the id is in doubt."""
        x = state.x.clone()
        chosen = ~like.fixed & (lookup(self.table.on(x.device), x) > 0)
        x[chosen] = sample_clean(pred, chosen)
        return x

    def bound(self, clean: Clean, measured: Measured, denoise: Denoise) -> Measured:
        """Return the bound on -log p(x_0) in nats per position, by adding to a measured loss what it leaves out."""
        if self.estimator == "exact":
            return exact_nelbo(self, clean, denoise)
        return nelbo(self, self.clock.t_min, clean, measured, denoise)

    def _moves(self, x: Int[Tensor, "B L"], noise: Noise) -> Bool[Tensor, "B L"]:
        """Draw which tokens are replaced."""
        return _uniform(x) < -(-wide(over(noise.sigma, x))).expm1()

    def _noised(self, clean: Clean, noise: Noise, moved: Bool[Tensor, "B L"]) -> Noised:
        x0, fixed = clean.x0, clean.fixed
        x = torch.where(moved, self._land(x0), x0)
        prior = self.table.on(x.device)
        target_mask = ~fixed & (lookup(prior, x) > 0)
        return Noised(x0, State.of(x), noise, target_mask, clean.valid, fixed, prior)

    def _land(self, like: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        """Draw from the prior at every position."""
        return draw_along(self._cumulative.on(like.device), *like.shape)


def _uniform(like: Tensor) -> Float[Tensor, "..."]:
    return torch.rand(like.shape, dtype=wide_dtype(like.device), device=like.device)


def _settled(
    reading: CategoricalPrediction | LaterReading,
    asked: Bool[Tensor, "B L"],
    x: Int[Tensor, " N"],
    landed: Int[Tensor, " N"],
    most: Float[Tensor, " N"],
    believed: Bool[Tensor, " N"],
) -> Int[Tensor, " N"]:
    """Return the ids of the positions asked: x where m(x) is above `most`, else what landed, or a draw from m."""
    new, start = torch.where(believed, x, landed), 0
    for piece in reading.pieces(asked):
        log_m = piece.log_context()[0]
        part = slice(start, start + len(log_m))
        goes = wide(log_m.gather(-1, x[part, None])[:, 0]).exp() <= most[part]
        drawn = goes & believed[part]
        ids = torch.where(goes, landed[part], x[part])
        ids[drawn] = draw_log(log_m[drawn])
        new[part], start = ids, part.stop
    return new


def mask_prior(space: TokenSpace) -> Float[Tensor, "rows V"]:
    """All on MASK.

    Raises:
        ValueError: A field has no MASK id.
    """

    def row(field: Field) -> Tensor:
        if field.mask is None:
            raise ValueError(f'field "{field.name}" has no MASK id; use space.with_mask()')
        return torch.nn.functional.one_hot(torch.tensor(field.mask), space.vocab).double()

    return space.table(row)


def even_prior(space: TokenSpace) -> Float[Tensor, "rows V"]:
    """Even over the clean ids of each field."""
    return frequency_prior(space, {})


def frequency_prior(space: TokenSpace, frequencies: Mapping[str, Sequence[float]]) -> Float[Tensor, "rows V"]:
    """In proportion to `frequencies` of each field by name, one per clean id in order; even where a field is not named.

    Raises:
        ValueError: The number of frequencies differs from the number of clean ids.
    """

    def row(field: Field) -> Tensor:
        ids = [i for i in range(field.size) if i not in (field.mask, field.pad)]
        odds = frequencies.get(field.name, [1.0] * len(ids))
        if len(odds) != len(ids) or not sum(odds) > 0:
            raise ValueError(f'field "{field.name}" needs {len(ids)} frequencies with a positive sum, not {list(odds)}')
        table = torch.zeros(space.vocab, dtype=torch.float64)
        table[ids] = torch.tensor(odds, dtype=torch.float64)
        return table / table.sum()

    return space.table(row)


Denoise = Callable[[State, Float[Tensor, " B"]], Any]
"""State and time -> prediction."""


@torch.no_grad()
def nelbo(process: TokenProcess, t_min: float, clean: Clean, measured: Measured, denoise: Denoise) -> Measured:
    """Add the ends to a measured loss, per position, in nats.

    Args:
        process: Whose bound it is.
        t_min: Smallest time at which the loss is measured.
        clean: The batch.
        measured: A loss whose values times weights, in the mean over t in [t_min, 1], are the diffusion part of each
            position over that range, divided by 1 - t_min.
        denoise: State and time -> prediction.

    Returns:
        Nats per position, with weight 1 on real positions that are not known, however the loss was reduced. The parts
        "prior" and "reconstruction" are the two ends; the rest is the diffusion part.
    """
    n, device = len(clean.x0), clean.x0.device
    t = torch.full((n,), t_min, device=device)
    noised = process.corrupt(clean, t)
    nats = (1 - t_min) * measured.values * measured.weights
    missing = _cross_entropy(denoise(noised.state, t), clean).where(noised.target_mask, 0.0)
    ends = {"prior": _prior_kl(process, clean, denoise), "reconstruction": missing}
    ends = {name: part.to(nats.dtype).where(~clean.fixed, 0.0) for name, part in ends.items()}
    return Measured(sum(ends.values(), nats), (~clean.fixed).to(nats.dtype), parts=ends)


def _cross_entropy(pred: Any, clean: Clean) -> Float[Tensor, "B L"]:
    """-log p(x_0 | x_t) at every position."""
    log: Tensor = pred.log_clean().gather(-1, clean.x0[..., None])[..., 0]
    return -log.double()


def _prior_kl(process: TokenProcess, clean: Clean, denoise: Denoise) -> Float[Tensor, "B L"]:
    """KL(q(x_1|x_0) || prior).

    Where the prior cannot produce x_0 (absorbing) that is infinite for any signal left; the schedule is then read as if
    it went on to alpha = 0, which costs alpha(1) times the cross entropy of a sample that is masked throughout, up to
    terms of alpha(1) squared.
    """
    n, device = len(clean.x0), clean.x0.device
    end = torch.ones(n, device=device)
    alpha = (-process.schedule(end).sigma.double()).exp()[:, None]
    landing = lookup(process.table.on(device), clean.x0).double()
    possible = landing > 0
    safe = torch.where(possible, landing, 1.0)
    stays = alpha + (1 - alpha) * safe
    gap: Tensor = stays * (stays / safe).log() + torch.special.xlog1py((1 - alpha) * (1 - safe), -alpha)
    if bool((possible | clean.fixed).all()):
        return gap
    missing: Tensor = alpha * _cross_entropy(denoise(process.prior(clean), end), clean)
    return torch.where(possible, gap, missing)


MAX_POSITIONS = 12
"""Positions of a sample whose masks may be enumerated."""

NODES = 8
"""Levels of noise per mask: exact for a model that does not look at t, and close for one that looks at it smoothly."""


@torch.no_grad()
def exact_nelbo(process: TokenProcess, clean: Clean, denoise: Denoise) -> Measured:
    """Return the bound on -log p(x_0) of an absorbing process per position, in nats.

    The schedule is read as if it ran from alpha = 1 to 0. The model is called up to 8 (2^L - 1) times.

    Args:
        process: An absorbing process.
        clean: The batch.
        denoise: State and time -> prediction, of as many rows as the batch has.

    Raises:
        ValueError: The samples have more positions than `MAX_POSITIONS`.
    """
    length, device = clean.x0.shape[1], clean.x0.device
    if length > MAX_POSITIONS:
        raise ValueError(f"every mask of {length} positions: at most {MAX_POSITIONS} can be enumerated")
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
