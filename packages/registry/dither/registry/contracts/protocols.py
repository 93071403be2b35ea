"""Protocols of built components: the complete runtime interface between them.

Letters: B batch, L length, M features, V vocabulary, D width, C condition width, K keys, H heads, E
head width. `B L *M` is `B L` for tokens, `B L M` for features.
"""

# ruff: noqa: F403, F405
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor, nn

from .records import (
    Clean,
    Context,
    Measured,
    Noise,
    Noised,
    State,
    TokenPrediction,
    TokenStep,
)
from .spaces import Space
from .task_protocols import *
from .tensors import lookup

__all__ = [
    "FUSED_FROM",
    "Denoiser",
    "DistributionHead",
    "DropsConditions",
    "FinishesPositions",
    "FusedLoss",
    "GaussianProcess",
    "KeyValueCache",
    "LinearHead",
    "Loss",
    "MaskedFeatureProcess",
    "Metrics",
    "Picture",
    "PredictionMetric",
    "Process",
    "RatioSums",
    "Reward",
    "SampleMetric",
    "Sampler",
    "Schedule",
    "Session",
    "Split",
    "Task",
    "TokenProcess",
    "Tracker",
    "TrainedModel",
    "ValueDistribution",
    "is_likelihood",
]

Schedule = Callable[[Float[Tensor, "B *L"]], Noise]
"""Time in [0, 1] -> Noise; sigma increases with t, and rate is its derivative."""

Loss = Callable[[Any, Noised], Measured]
"""A pure function of a prediction and its noised batch; the loss of a position depends on that
position only."""


@runtime_checkable
class Process(Protocol):
    """Adds noise to clean samples, and removes it step by step; classes inherit from it."""

    schedule: Schedule
    space: Space
    """The space the model must serve: that of the task, possibly with MASK added."""
    fixed_time: float | None = None
    """The time used for evaluation and sampling if states do not depend on time."""
    low_variance: bool = True
    """Whether `estimate` is as good a draw of the bound as `draw_diffusion`; else evaluation calls both."""

    @abstractmethod
    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        """Draw training times, one in each of n equal strata of the time range."""

    @abstractmethod
    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        """Return the noise level at t in the form the model is conditioned on."""

    @abstractmethod
    def corrupt(self, clean: Clean, t: float | Float[Tensor, "B *L"]) -> Noised:
        """Draw x_t given x_0; fixed values are kept. A single time is that of all samples."""

    @abstractmethod
    def read(self, raw: Float[Tensor, "B L V"], state: State, noise: Noise) -> Any:
        """Return the `TokenPrediction` or `FeaturePrediction` of a raw model output."""

    @abstractmethod
    def prior(self, like: Clean) -> State:
        """Draw the state at t = 1, with the fixed values of `like` in place."""

    @abstractmethod
    def step(
        self,
        state: State,
        pred: Any,
        now: Noise,
        then: Noise,
        like: Clean,
    ) -> State:
        """Draw x_s given x_t and a prediction, for s < t; `now` is the noise at t, `then` at s."""

    @abstractmethod
    def finish(self, state: State, pred: Any, like: Clean) -> Shaped[Tensor, "B L *M"]:
        """Return a clean sample from the last state."""

    def estimate(
        self, clean: Clean, t: Float[Tensor, " B"]
    ) -> tuple[Float[Tensor, " B"], Noised]:
        """Return times and noised batches with the mean loss of `corrupt` over uniform t.

        By default those of `corrupt`. A process may draw both from another distribution;
        importance weights are then factors of the rate of the noise.
        """
        return t, self.corrupt(clean, t)

    def bound(
        self,
        clean: Clean,
        measured: Measured,
        denoise: Callable[[State, Float[Tensor, " B"]], Any],
    ) -> Measured:
        """Complete a loss per position in nats to a bound on -log p(x_0); by default unchanged.

        A process that can adds the terms before the smallest t and at t = 1.
        """
        return measured

    def draw_diffusion(
        self,
        clean: Clean,
        t: Float[Tensor, " B"],
        loss: Loss,
        denoise: Callable[[State, Float[Tensor, " B"]], Any],
    ) -> Measured:
        """Return an unbiased draw of the bound without `draw_ends` per position, at times t as `times` draws them.

        By default that of `estimate`, complete. A process may draw noise of less variance.
        """
        t, noised = self.estimate(clean, t)
        measured = loss(denoise(noised.state, t), noised)
        return self.bound(clean, measured, denoise)

    def draw_ends(
        self, clean: Clean, denoise: Callable[[State, Float[Tensor, " B"]], Any]
    ) -> dict[str, Float[Tensor, "B L"]]:
        """Return unbiased draws of the terms of the bound that `draw_diffusion` leaves out; by default none.

        They are small and cost calls of the model, so that a likelihood of many draws has few of them.
        """
        return {}

    def draw_whole_bound(
        self,
        clean: Clean,
        t: Float[Tensor, " B"],
        denoise: Callable[[State, Float[Tensor, " B"]], Any],
    ) -> Float[Tensor, "B L"] | None:
        """Return an unbiased draw of the bound with its ends per position, of one call of the model.

        None, the default, if `draw_diffusion` and `draw_ends` must be called.
        """
        return None

    def draw_log_weight(
        self,
        clean: Clean,
        denoise: Callable[[State, Float[Tensor, " B"]], Any],
    ) -> Float64[Tensor, " B"] | None:
        """Return log w of a random trajectory to each sample, with E w = p(x_0); None if that is unknown."""
        return None

    def draw_value_bounds(
        self,
        clean: Clean,
        t: Float[Tensor, " B"],
        denoise: Callable[[State, Float[Tensor, " B"]], Any],
        bins: Float[Tensor, " M"] | None = None,
    ) -> Float64[Tensor, "B L M"] | None:
        """Return an unbiased draw of a bound on -log p of each value, in nats; None without densities.

        `t` are as `times` draws them. `bins` are those of `Task.bin_widths`: of quantised columns p
        is a probability, of others a density. Known values and padding have 0.
        """
        return None

    def flow_log_density(
        self,
        clean: Clean,
        denoise: Callable[[State, Float[Tensor, " B"]], Any],
        *,
        steps: int,
        probes: int,
        bins: Float[Tensor, " M"] | None = None,
    ) -> Float64[Tensor, "B K"] | None:
        """Return unbiased draws of log p of samples under the probability flow; None without a flow.

        `steps` are those of the solver; K = `probes` draws estimate the divergence, or one column
        has it exactly if `probes` is at least the number of values of a sample.
        """
        return None


@runtime_checkable
class TokenProcess(Process, Protocol):
    """A process over ids with q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) prior, required by samplers of tokens.

    `read` acts on each position by itself: if the prior is the same everywhere, it is also called
    with chosen positions, as one sample `1 N V` with one noise level per position.
    """

    absorbing: bool
    """Whether the prior is all on one id (MASK), so that a token changes at most once."""
    predict: Literal["posterior", "plug-in", "score"] = "posterior"
    """Whether the raw output of the model gives probabilities of clean ids, or scores."""

    def support(self, device: Any) -> Bool[Tensor, "rows V"] | None:
        """Return the ids at which `read` uses the raw output unchanged where x_0 is uncertain.

        With `predict` = "posterior" or "plug-in", the log-softmax over them is log p(x_0 | x_t);
        with "score", the raw output is the log score, except 0 at x_t. At other ids all is -inf.
        None, the default, if `read` changes the output in another way.
        """
        return None

    @abstractmethod
    def prior_probs(self, device: Any = None) -> Float[Tensor, "rows V"]:
        """Return the prior at t = 1, one row per position or one for all positions; rows sum to 1."""

    def prior_at(
        self, now: Noise, then: Noise | None = None
    ) -> Float[Tensor, "*B rows V"]:
        """Return the distribution of tokens replaced by the noise at t, or between s and t (`then`, `now`).

        By default `prior_probs` at every time. A prior that depends on time has the batch dimension,
        and a row per position if the noise has.
        """
        return self.prior_probs(now.sigma.device)

    def noised(self, clean: Clean, x: Int[Tensor, "B L"], noise: Noise) -> Noised:
        """Return the record of ids x at this noise; the forward rate to x is its rate times its prior."""
        prior = self.prior_at(noise)
        fixed = clean.fixed
        # Where the prior cannot produce x_t, x_0 is x_t and nothing is to predict.
        replaced = lookup(prior, x) > 0
        target_mask = ~fixed & replaced
        return Noised(
            clean.x0, State.of(x), noise, target_mask, clean.valid, fixed, prior
        )

    @abstractmethod
    def renoise(self, state: State, now: Noise, then: Noise, like: Clean) -> State:
        """Draw x_t given x_s for t > s, with `now` the noise at t and `then` at s; fixed values stay as they are."""

    @abstractmethod
    def begin_step(
        self, state: State, now: Noise, then: Noise, like: Clean
    ) -> TokenStep:
        """Draw the random numbers of a step from x_t to x_s, and return what the model must predict."""

    def step(
        self,
        state: State,
        pred: TokenPrediction,
        now: Noise,
        then: Noise,
        like: Clean,
    ) -> State:
        """Draw x_s given x_t and the prediction of all positions."""
        step = self.begin_step(state, now, then, like)
        return step.complete(pred.at(step.at))


@runtime_checkable
class GaussianProcess(Process, Protocol):
    """A process that adds Gaussian noise to features, required by DDIM, DPM-Solver, the ODE and RePaint.

    x_t = a x_0 + b eps, with a = sqrt(alpha) and b = sqrt(1 - alpha).
    """

    linear_path: bool = False
    """Whether x_t = (a x_0 + b eps) / (a + b) instead, as in flow matching."""

    @abstractmethod
    def step(
        self,
        state: State,
        pred: Any,
        now: Noise,
        then: Noise,
        like: Clean,
        *,
        eta: float = 1.0,
        eps: Float[Tensor, "B L M"] | None = None,
    ) -> State:
        """Draw x_s given x_t and a prediction: ancestral for `eta` = 1, deterministic (DDIM) for 0.

        `eps` is the standard normal noise to add; by default it is drawn.
        """

    @abstractmethod
    def add_noise(
        self, x: Float[Tensor, "B L M"], noise: Noise, where: Bool[Tensor, "B L M"]
    ) -> tuple[State, Float[Tensor, "B L M"]]:
        """Draw x_t given x_0 where `where`; return the state and the noise that was added."""

    @abstractmethod
    def replace(self, state: State, x: Float[Tensor, "B L M"], like: Clean) -> State:
        """Return the state with the values of `x` where the state is noisy."""


@runtime_checkable
class MaskedFeatureProcess(Process, Protocol):
    """A process that masks U units of features (values, groups of columns or positions), for ordered samplers."""

    @abstractmethod
    def units(self, masked: Bool[Tensor, "B L M"]) -> Bool[Tensor, "B U"]:
        """Return which units are masked."""

    @abstractmethod
    def unit_sums(self, values: Float[Tensor, "B L M"]) -> Float[Tensor, "B U"]:
        """Sum values over the elements of each unit."""

    @abstractmethod
    def elements(self, units: Bool[Tensor, "B U"]) -> Bool[Tensor, "B L M"]:
        """Return the elements that belong to the chosen units."""

    @abstractmethod
    def reveal(
        self, state: State, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]
    ) -> State:
        """Return the state with `masked` still masked, and the values of `x` where the mask was removed."""


@runtime_checkable
class Session(Protocol):
    """The model as a sampler calls it: states in, predictions out, with a cache of finished positions."""

    previous: Float[Tensor, "B L V"] | None
    """The last prediction of x_0, which a model with self-conditioning reads in the next call; else
    None. A sampler that starts again sets it to None, and one of several particles to that of each."""

    def __call__(
        self,
        state: State,
        t: Float[Tensor, "B *L"],
        at: Bool[Tensor, "B L"] | None = None,
    ) -> Any:
        """Run the model on a state at time t, and return the prediction.

        With `at`, for processes over tokens, the head is applied to the chosen positions only;
        their prediction is returned in order, as one sample `1 N V`. If none is chosen the model is
        not run.
        """

    def append(self, x: Shaped[Tensor, "B L"]) -> None:
        """Append finished positions to the cache; later calls attend to them."""

    def drop(self, count: int) -> None:
        """Forget the first `count` positions in the cache; later calls do not attend to them."""

    def refresh(
        self, x: Shaped[Tensor, "B L"], t: Float[Tensor, "B *L"], start: int
    ) -> None:
        """Cache the keys and values of a whole state at time t; later states are its positions from `start` on."""


Sampler = Callable[[Process, Session, Clean], Iterator[Shaped[Tensor, "B L *M"]]]
"""Reverses a process from t = 1: yields every state, and the clean sample last."""


Reward = Callable[[Shaped[Tensor, "B L *M"], Clean], Float[Tensor, " B"]]
"""Finished samples and what sampling started from -> a number per sample, -inf where a sample is
impossible. It must not modify either."""


@runtime_checkable
class KeyValueCache(Protocol):
    """Keys and values of finished positions."""

    length: int
    """Finished positions of the sample."""

    @property
    def num_tokens(self) -> int:
        """Finished tokens, those of no position included: the index of the next one."""

    def join(
        self, layer: int, k: Float[Tensor, "B H L E"], v: Float[Tensor, "B H L E"]
    ) -> tuple[Float[Tensor, "B H K E"], Float[Tensor, "B H K E"]]:
        """Append keys and values of new tokens to those of a layer, and return all."""

    def drop(self, count: int) -> None:
        """Forget the first `count` positions that are held; indices of later ones stay."""

    def rewind(self, start: int) -> None:
        """Continue at position `start`: new tokens replace kept ones, and attend to those behind them, too."""


@runtime_checkable
class Denoiser(Protocol):
    """A model; also a torch.nn.Module."""

    def __call__(
        self,
        state: State,
        level: Float[Tensor, "B *L"],
        valid: Bool[Tensor, "B L"],
        cond: Mapping[str, Tensor],
        *,
        context: Context | None = None,
        cache: Any = None,
        keep: bool = False,
    ) -> Float[Tensor, "B L V"]:
        """Return the raw output per position: `B L M` for features, `B L V` for tokens.

        With a `context`, each block of the state attends to the earlier blocks of the context; only
        models with a block size get one. With a `cache`, the positions follow the cached ones;
        `keep` adds them to the cache.
        """

    def trunk(
        self,
        state: State,
        level: Float[Tensor, "B *L"],
        valid: Bool[Tensor, "B L"],
        cond: Mapping[str, Tensor],
        *,
        context: Context | None = None,
        cache: Any = None,
        keep: bool = False,
    ) -> Float[Tensor, "B L D"]:
        """Return the input of the head: `model(...) == model.head(model.trunk(...))`."""

    def new_cache(self) -> KeyValueCache:
        """Return an empty cache for this model."""


@runtime_checkable
class FinishesPositions(Protocol):
    """A model that may add the positions of its last call to the cache without another call."""

    def finish(
        self, x: Shaped[Tensor, "B L"], valid: Bool[Tensor, "B L"], cache: Any
    ) -> bool:
        """Add finished positions to the cache by what the last call wrote.

        Return False, and do nothing, if that is not possible.
        """


@runtime_checkable
class DropsConditions(Protocol):
    """A model or condition that learns the unconditional distribution, too, for guidance."""

    def drop_conditions(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the conditions of a training batch without those of random samples."""


@runtime_checkable
class LinearHead(Protocol):
    """A head that may be a single linear layer, which a loss can be fused with."""

    @property
    def linear(self) -> nn.Module | None:
        """The layer, or None if the head is more than it."""


@runtime_checkable
class ValueDistribution(Protocol):
    """The joint distribution of the values at each position, independent between positions."""

    def mean(
        self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Return the mean of the masked values given the others at the position; `head(h)` if all are masked."""

    def sample(
        self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Draw the masked values given the others at the position, which are returned unchanged."""

    def squared_errors(
        self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Return squared errors whose mean is minimal at the distribution of the data; 0 outside `target_mask`.

        Each call draws new noise.
        """


@runtime_checkable
class DistributionHead(Protocol):
    """A head, also an nn.Module, that predicts a distribution. Calling it returns the mean."""

    def __call__(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L M"]:
        """Return the mean."""

    def distribution(self, h: Float[Tensor, "B L D"]) -> ValueDistribution:
        """Return the distribution."""


FUSED_FROM = 256
"""Vocabulary size from which the fused form of a loss is used: on a CPU it is at least 1.5 times as
fast from here on (measured: width 128, 2,048 positions); below there is little to gain."""


@runtime_checkable
class FusedLoss(Protocol):
    """A loss that can also be computed from the input of the head.

    It requires a head that is one linear layer, and a token space with a single field.
    """

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Return the loss of a prediction."""

    def fused(
        self,
        h: Float[Tensor, "B L D"],
        linear: nn.Linear,
        process: Process,
        noised: Noised,
        t: Float[Tensor, "B *L"],
        *,
        half: bool = False,
        compiled: bool = False,
        share: Float[Tensor, "B #L"] | None = None,
    ) -> Measured:
        """Return the loss of `process.read(linear(h), noised.state, process.schedule(t))`.

        Only `Measured.total_with_grad` carries a gradient. With `half`, matrix products run in
        bfloat16 and accumulate in float32. With `compiled`, torch.compile may be used.
        `share` multiplies the values.
        """
