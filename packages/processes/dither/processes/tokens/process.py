"""Token processes: with probability 1 - alpha a token is replaced by a draw from the prior.

    q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) prior(x_t)

The prior names the process: all on MASK is absorbing (MDLM, Sahoo et al. 2024), even over the clean
ids is uniform (SEDD, Lou et al. 2023; UDLM, Schiff et al. 2024), frequencies of the data are
DiGress' marginal (Vignac et al. 2022). The arithmetic is the same. Letters: B batch, L length, V
vocabulary, rows one per position or one for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from dither.registry.contracts import protocols
from dither.registry.contracts.records import (
    Clean,
    Measured,
    Noise,
    Noised,
    State,
    TokenPrediction,
    TokenStep,
    over,
)
from dither.registry.contracts.spaces import Space, TokenSpace
from dither.registry.contracts.tensors import at_ids, at_least_float32, lookup
from dither.registry.contracts.times import as_times

from ..precision import Constant, one_minus_exp, wide, wide_dtype
from ..timestep_sampling import TimestepSampling
from .categorical import draw_along, draw_log
from .changed_tokens import draw_diffusion, draw_ends
from .nelbo import (
    Denoise,
    draw_masked_bound,
    exact_nelbo,
    mask_at_least_one,
    nelbo,
    place_times,
)
from .posterior import Posterior
from .prediction import CategoricalPrediction, log_context
from .tight_bound import draw_log_weight
from .unmasking import fill, uncertain

if TYPE_CHECKING:
    from ..options import Estimator, PredictionType

__all__ = ["TokenProcess"]


class TokenProcess(protocols.TokenProcess):
    """Absorbing, uniform, or any other prior.

    Args:
        space: Space of the model, MASK included.
        prior: Distribution of replaced tokens, one row per position or one for all; rows sum to 1.
        timesteps: Schedule, level and training times.
        predict: Meaning of the raw model output.
        estimator: Estimator of the bound; other than "time" only for an absorbing prior.

    Attributes:
        absorbing: Whether the prior is all on one id.
    """

    def __init__(
        self,
        space: TokenSpace,
        prior: Float[Tensor, "rows V"],
        timesteps: TimestepSampling,
        predict: PredictionType = "posterior",
        estimator: Estimator = "time",
    ) -> None:
        prior = wide(prior)
        clean = space.clean()
        sums_to_one = torch.allclose(prior.sum(-1), torch.ones_like(prior[:, 0]))
        if prior.shape != clean.shape or bool((prior < 0).any()) or not sums_to_one:
            raise ValueError(
                f"the prior must be a table of shape {tuple(clean.shape)} whose rows sum to 1"
            )
        self.absorbing = bool((prior.max(-1).values == 1).all())
        if estimator != "time" and not self.absorbing:
            raise ValueError(f'estimator "{estimator}" requires an absorbing prior')
        self.space: Space = space
        self.estimator: Estimator = estimator
        self.low_variance = estimator in ("mask-count", "exact")
        self.predict: PredictionType = predict
        self.timesteps = timesteps
        self.schedule = timesteps.schedule
        self.table = Constant(prior)
        self.clean = Constant(clean)
        self.reached = Constant(clean | (prior > 0))
        self._reaches_all = bool((clean | (prior > 0)).all())

    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        return self.timesteps.times(n, device)

    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        return self.timesteps.level(t)

    def corrupt(self, clean: Clean, t: float | Float[Tensor, "B *L"]) -> Noised:
        """Draw x_t given x_0; fixed values do not change."""
        noise = self.schedule(as_times(t, clean))
        fixed = clean.fixed
        moved = self._moves(clean.x0, noise) & ~fixed
        return self.noised(clean, self._replaced(clean.x0, moved, noise), noise)

    def estimate(
        self, clean: Clean, t: Float[Tensor, " B"]
    ) -> tuple[Float[Tensor, " B"], Noised]:
        """Draw states for the loss; over uniform times in [t_min, 1] the mean of the loss is that under q(x_t | x_0).

        Returns:
            The times of the states, which the model is given, and the states.
        """
        t, noise = place_times(self.timesteps, self.estimator, t)
        fixed = clean.fixed
        moved = self._moves(clean.x0, noise) & ~fixed
        if self.estimator == "mask-count":
            moved, noise = mask_at_least_one(moved, ~fixed, noise)
        return t, self.noised(clean, self._replaced(clean.x0, moved, noise), noise)

    def renoise(self, state: State, now: Noise, then: Noise, like: Clean) -> State:
        """Draw x_t given x_s, for t > s; fixed values do not change."""
        # q(x_t | x_s) is q(x_t | x_0) with the noise between the two times.
        moved = self._moves(state.x, now.since(then)) & ~like.fixed
        return State.of(self._replaced(state.x, moved, now, then))

    def read(
        self, raw: Float[Tensor, "B L V"], state: State, noise: Noise
    ) -> CategoricalPrediction:
        raw = at_least_float32(raw)
        posterior = self.posterior(state, noise)
        if self.predict != "score":
            log = posterior.normalize(raw)
            return CategoricalPrediction(log, self.predict, posterior)

        # Ids that no sample reaches have score 0, and s(x_t) = 1 by definition.
        scores = raw
        if not self._reaches_all:
            scores = raw.masked_fill(~self.reached.on(raw.device), -torch.inf)
        scores = scores.scatter(-1, state.x[..., None], 0.0)
        return CategoricalPrediction(scores, "score", posterior)

    def support(self, device: Any) -> Bool[Tensor, "rows V"]:
        """Return the ids that the raw output covers; at others `read` puts -inf."""
        support = self.reached if self.predict == "score" else self.clean
        return support.on(device)

    def posterior(self, state: State, noise: Noise) -> Posterior:
        """Return x_t and its noise, which convert between the forms of a prediction."""
        device = state.x.device
        return Posterior(state.x, noise, self.prior_at(noise), self.clean.on(device))

    def prior_probs(self, device: Any = None) -> Float[Tensor, "rows V"]:
        return self.table.on(device)

    def prior(self, like: Clean) -> State:
        """Return the state at t = 1: draws from the prior, with fixed values in place."""
        drawn = self._draw(self.prior_probs(like.x0.device), like.x0)
        return State.of(torch.where(like.fixed, like.x0, drawn))

    def begin_step(
        self, state: State, now: Noise, then: Noise, like: Clean
    ) -> TokenStep:
        """Draw x_s given x_t: from sum over x_0 of p(x_0 | x_t) q(x_s | x_t, x_0), exactly.

        With the context m and alpha_ts = alpha_t / alpha_s it is a mixture, up to a factor: stay,
        with weight alpha_ts (alpha_s m(x) + (1 - alpha_s) prior_s(x)); a draw from m, (1 -
        alpha_ts) prior_ts(x) alpha_s; and one from prior_s, (1 - alpha_ts) prior_ts(x) (1 -
        alpha_s). The priors at s and between s and t are one unless the prior varies.
        """
        x = state.x
        posterior = self.posterior(state, now)
        prior_s = self.prior_at(then)
        log_alpha_ts = -wide(over(now.since(then).sigma, x))
        log_alpha_s = -wide(over(then.sigma, x))

        # The weight to stay is at least that for m(x) = 0; the weight to move does not depend on m.
        least_stay = -log_alpha_ts.exp() * log_alpha_s.expm1() * lookup(prior_s, x)
        move = -log_alpha_ts.expm1() * lookup(self.prior_at(now, then), x)

        # x stays if u (stay + move) < stay. Where that holds even for m(x) = 0, the model is not
        # needed.
        u = _uniform(x)
        surplus = u * (least_stay + move) - least_stay
        may_move = ~like.fixed & ~posterior.determined & (surplus >= 0)

        # A token that moves is drawn from m with probability alpha_s, else from the prior.
        from_model = _uniform(x) < log_alpha_s.exp()
        new = torch.where(may_move & ~from_model, self._draw(prior_s, x), x)

        # An id that clean data cannot hold has m(x) = 0: it moves, and only a draw from m needs the
        # model.
        at = may_move & (from_model | lookup(self.clean.on(x.device), x))

        # x moves if m(x) is at most surplus / (alpha_t (1 - u)).
        tiny = torch.finfo(u.dtype).tiny
        factor = (log_alpha_ts + log_alpha_s).exp() * (1 - u)
        largest_m = surplus / factor.clamp_min(tiny)

        def complete(rows: TokenPrediction) -> State:
            # log m of the N positions of `at`: N V
            log_m = log_context(rows, posterior.at(at))[0]
            m = wide(at_ids(log_m, x[at])).exp()
            moves = m <= largest_m[at]
            ids = torch.where(moves, new[at], x[at])
            draws = moves & from_model[at]
            ids = ids.masked_scatter(draws, draw_log(log_m[draws]))
            return State.of(new.masked_scatter(at, ids))

        return TokenStep(at, complete)

    def finish(
        self, state: State, pred: TokenPrediction, like: Clean
    ) -> Int[Tensor, "B L"]:
        """Draw clean ids from p(x_0 | x_t) at every position whose clean id is uncertain."""
        where = uncertain(self, state.x, like)
        return fill(state.x, where, pred.at(where))

    def bound(self, clean: Clean, measured: Measured, denoise: Denoise) -> Measured:
        """Return the bound on -log p(x_0) in nats per position: the measured loss plus its two ends."""
        if self.estimator == "exact":
            return exact_nelbo(self, clean, denoise)
        return nelbo(self, self.timesteps.t_min, clean, measured, denoise)

    def draw_diffusion(
        self,
        clean: Clean,
        t: Float[Tensor, " B"],
        loss: Callable[[Any, Noised], Measured],
        denoise: Denoise,
    ) -> Measured:
        """Return a draw of low variance per position, for every estimator of training."""
        if self.estimator == "exact":
            return exact_nelbo(self, clean, denoise)
        return draw_diffusion(self, self.timesteps, clean, t, loss, denoise)

    def draw_ends(
        self, clean: Clean, denoise: Denoise
    ) -> dict[str, Float[Tensor, "B L"]]:
        if self.estimator == "exact":
            return {}
        return draw_ends(self, self.timesteps.t_min, clean, denoise)

    def draw_whole_bound(
        self, clean: Clean, t: Float[Tensor, " B"], denoise: Denoise
    ) -> Float[Tensor, "B L"] | None:
        # Scores need not be those of a distribution: their bound is that of score entropy.
        if not self.absorbing or self.predict == "score" or self.estimator == "exact":
            return None
        # A subclass with draws of its own has another bound.
        inherits_diffusion = type(self).draw_diffusion is TokenProcess.draw_diffusion
        inherits_ends = type(self).draw_ends is TokenProcess.draw_ends
        if not (inherits_diffusion and inherits_ends):
            return None
        return draw_masked_bound(self, self.timesteps, clean, t, denoise)

    def draw_log_weight(self, clean: Clean, denoise: Denoise) -> Float64[Tensor, " B"]:
        return draw_log_weight(self, self.timesteps, clean, denoise)

    def _moves(self, x: Int[Tensor, "B L"], noise: Noise) -> Bool[Tensor, "B L"]:
        """Draw which tokens are replaced: each with probability 1 - alpha."""
        return _uniform(x) < one_minus_exp(wide(over(noise.sigma, x)))

    def _replaced(
        self,
        x: Int[Tensor, "B L"],
        moved: Bool[Tensor, "B L"],
        now: Noise,
        then: Noise | None = None,
    ) -> Int[Tensor, "B L"]:
        """Return ids with draws from the prior where they moved."""
        return torch.where(moved, self._draw(self.prior_at(now, then), x), x)

    def _draw(
        self, prior: Float[Tensor, "*B rows V"], like: Int[Tensor, "B L"]
    ) -> Int[Tensor, "B L"]:
        if self.absorbing:
            return prior.argmax(-1).expand(like.shape)
        return draw_along(prior.cumsum(-1), *like.shape)


def _uniform(like: Tensor) -> Float[Tensor, "..."]:
    return torch.rand(like.shape, dtype=wide_dtype(like.device), device=like.device)
