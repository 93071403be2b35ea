"""The records that flow through one training step, in order.

    batch --task--> Clean --process.corrupt--> Noised --model, process.read--> Prediction --loss--> Measured

Letters: B batch, L length, M features, V vocabulary. `B L *M` is `B L` for tokens, `B L M` for
features. `valid` has one value per position; `known`, `masked` and `target_mask` have the shape of
x0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

__all__ = [
    "Clean",
    "Context",
    "FeaturePrediction",
    "Goal",
    "Measured",
    "Noise",
    "Noised",
    "NoisedStep",
    "Prediction",
    "State",
    "TensorRecord",
    "TokenPrediction",
    "TokenStep",
    "over",
]


class TensorRecord:
    """A dataclass of tensors that is moved between devices and sliced along the batch as a whole."""

    def apply(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the record with `change` applied to each tensor."""

        def changed(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, dict):
                return {key: changed(inner) for key, inner in value.items()}
            return value.apply(change) if isinstance(value, TensorRecord) else value

        # Not `replace`, which resets fields that `__init__` does not take, such as `unpadded`.
        result = object.__new__(type(self))
        vars(result).update(changed(vars(self)))
        return result

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        return self.apply(lambda value: value.to(device, non_blocking=non_blocking))

    def __getitem__(self, rows: slice) -> Self:
        return self.apply(lambda value: value[rows])


@dataclass(frozen=True)
class Clean(TensorRecord):
    """A clean batch of a task.

    Attributes:
        x0: Ids `B L` (int64) or features `B L M` (float).
        valid: True on real positions, False on padding. `B L`.
        known: True where the value is given: never noised, never changed by a sampler. The shape of
            x0.
        cond: Conditions by name, each with the batch dimension first.
        goal: Constraints on samples beyond the known values, the same for the whole batch; None for
            none.
        unpadded: Whether the host knows that all positions are valid; False again after `replace`.
    """

    x0: Shaped[Tensor, "B L *M"]
    valid: Bool[Tensor, "B L"]
    known: Bool[Tensor, "B L *M"]
    cond: dict[str, Tensor] = field(default_factory=dict)
    goal: Goal | None = None
    # `replace` may change `valid`, so that it does not keep the field.
    unpadded: bool = field(default=False, init=False, compare=False)

    @classmethod
    def of(
        cls,
        x0: Tensor,
        valid: Tensor | None = None,
        known: Tensor | None = None,
        **cond: Tensor,
    ) -> Clean:
        """Make a batch: by default every position is valid and none is known."""
        valid = (
            torch.ones(x0.shape[:2], dtype=torch.bool, device=x0.device)
            if valid is None
            else valid
        )
        known = (
            torch.zeros(x0.shape, dtype=torch.bool, device=x0.device)
            if known is None
            else known
        )
        return cls(x0, valid, known, cond)

    def mark_unpadded(self) -> Clean:
        """Return the batch with `unpadded` as its values say; reads them."""
        marked = replace(self)
        # The dataclass is frozen, and `__init__` does not take the field, so that it always is that
        # of `valid`.
        object.__setattr__(marked, "unpadded", bool(self.valid.all()))
        return marked

    @property
    def fixed(self) -> Bool[Tensor, "B L *M"]:
        """True where a process must not change x0: padding and known values."""
        return ~over(self.valid, self.x0) | self.known

    def slice_positions(self, start: int, stop: int) -> Clean:
        """Return positions `start` to `stop` (exclusive) with all conditions and without the goal."""
        part = slice(start, stop)
        return Clean(
            self.x0[:, part], self.valid[:, part], self.known[:, part], self.cond
        )


@runtime_checkable
class Goal(Protocol):
    """Constraints on samples: checked on finished samples, and used to guide sampling."""

    def satisfied(
        self, x: Shaped[Tensor, "B L"], cond: dict[str, Tensor]
    ) -> dict[str, Bool[Tensor, " B"]]:
        """Return for each constraint by name which finished samples satisfy it.

        `cond` are the conditions of the samples, as in `Clean`.
        """

    def log_prob(
        self, log_clean: Float[Tensor, "B L V"], at: Int[Tensor, " B"]
    ) -> Float[Tensor, "B V"]:
        """Return the log-probability of the goal if token `at` becomes v and the others are drawn from `log_clean`.

        It may be an estimate unless all other tokens are certain; -inf only where the goal is
        impossible.
        """


@dataclass(frozen=True)
class Noise(TensorRecord):
    """A schedule at one time per sample or per position: `rate` = d sigma / dt, and signal alpha = exp(-sigma)."""

    sigma: Float[Tensor, "B *L"]
    rate: Float[Tensor, "B *L"]

    def alpha(self, like: Tensor) -> Float[Tensor, "..."]:
        """Return exp(-sigma), shaped to broadcast over `like`."""
        return over(self.sigma, like).neg().exp()

    def one_minus_alpha(self, like: Tensor) -> Float[Tensor, "..."]:
        """Return 1 - alpha, exact for small sigma, shaped to broadcast over `like`."""
        return -over(self.sigma, like).neg().expm1()

    def since(self, earlier: Noise) -> Noise:
        """Return the noise added between an earlier time and this one."""
        # Rounding may make a difference of equal times negative.
        return Noise((self.sigma - earlier.sigma).clamp_min(0), self.rate)


@dataclass(frozen=True)
class State(TensorRecord):
    """The input of the model. Where `masked`, x carries no information.

    Attributes:
        x: Ids `B L` or features `B L M`.
        masked: True where the value was removed (feature processes); for tokens MASK says so and
            this is all False.
        noisy: True where x may have noise, False where it is known to be clean; None if that is not
            said.
        requested: True on positions whose output is used; None for all. A model may return anything
            finite at the others.
        unpadded: Whether the host knows that all positions are valid, so that attention needs no
            mask.
        previous: An earlier prediction of x_0, for models with self-conditioning: probabilities
            `B L V` or values `B L M`. None, as zeros, if there is none.
    """

    x: Shaped[Tensor, "B L *M"]
    masked: Bool[Tensor, "B L *M"]
    noisy: Bool[Tensor, "B L *M"] | None = None
    requested: Bool[Tensor, "B L"] | None = None
    unpadded: bool = False
    previous: Float[Tensor, "B L V"] | None = None

    @classmethod
    def of(cls, x: Tensor) -> State:
        """Return a state in which nothing is masked."""
        return cls(x, torch.zeros(x.shape, dtype=torch.bool, device=x.device))


@dataclass(frozen=True)
class Context(TensorRecord):
    """The clean sample that each block attends to in earlier blocks, with the noise level of t = 0 per sample."""

    state: State
    level: Float[Tensor, " B"]


@dataclass(frozen=True)
class Noised(TensorRecord):
    """A noised batch with everything that a loss needs besides the prediction.

    Attributes:
        x0: The clean sample.
        state: The input of the model.
        noise: The noise level of the state.
        target_mask: True where the clean value is uncertain, so that a loss may use it. The shape
            of x0.
        valid: True on real positions. `B L`.
        prior: Distribution of replaced tokens, one row per position or one for all (token
            processes); of each sample if it depends on time.
        eps: The Gaussian noise that was added (Gaussian processes).
        fixed: True where the process does not act: padding and known values. The shape of x0.
        self_conditioned: Samples that the model sees together with its own prediction; None for
            none.
    """

    x0: Shaped[Tensor, "B L *M"]
    state: State
    noise: Noise
    target_mask: Bool[Tensor, "B L *M"]
    valid: Bool[Tensor, "B L"]
    fixed: Bool[Tensor, "B L *M"]
    prior: Float[Tensor, "*B rows V"] | None = None
    eps: Float[Tensor, "B L M"] | None = None
    self_conditioned: Bool[Tensor, " B"] | None = None

    def __getitem__(self, rows: slice) -> Noised:
        """Return some samples; a prior without batch dimension is kept."""
        prior = self.prior
        part = replace(self, prior=None).apply(lambda value: value[rows])
        if prior is not None and prior.ndim > 2:
            prior = prior[rows]
        return replace(part, prior=prior)


@dataclass(frozen=True)
class NoisedStep(Noised):
    """A noised batch at the end of a discrete step whose reverse has a predicted variance.

    Its prediction has `variance_share`, v per value: the log-variance of the reverse step is
    (1 - v) smallest + v largest.

    Attributes:
        before: The noise at the start of the step; sigma is 0 at the first.
        log_variances: The smallest and the largest log-variance of the reverse step.
        steps: Number of steps.
    """

    before: Noise = field(kw_only=True)
    log_variances: Float[Tensor, "B *L 2"] = field(kw_only=True)
    steps: int = field(kw_only=True)


@runtime_checkable
class TokenPrediction(Protocol):
    """A prediction of the clean tokens, as probabilities or as scores; classes inherit from it."""

    @abstractmethod
    def log_clean(self) -> Float[Tensor, "B L V"]:
        """Return log p(x_0 | x_t), normalised; -inf on impossible ids."""

    @abstractmethod
    def log_score(self) -> Float[Tensor, "B L V"]:
        """Return log p_t(y) / p_t(x_t) with one position changed to y; 0 at y = x_t."""

    def at(self, where: Bool[Tensor, "B L"]) -> TokenPrediction:
        """Return the prediction of the chosen positions, in order, as one sample `1 N V`."""
        return _ChosenPositions(self, where)


@dataclass(frozen=True)
class _ChosenPositions(TokenPrediction):
    whole: TokenPrediction
    where: Bool[Tensor, "B L"]

    def log_clean(self) -> Float[Tensor, "1 N V"]:
        return self.whole.log_clean()[self.where][None]

    def log_score(self) -> Float[Tensor, "1 N V"]:
        return self.whole.log_score()[self.where][None]


@dataclass(frozen=True)
class TokenStep:
    """A reverse step whose random numbers are drawn, before the model is called.

    Attributes:
        at: Positions whose next id depends on the prediction.
        complete: Prediction of these positions, `1 N V` -> the state at the earlier time.
    """

    at: Bool[Tensor, "B L"]
    complete: Callable[[TokenPrediction], State]


@runtime_checkable
class FeaturePrediction(Protocol):
    """A prediction of the clean features; classes inherit from it, and define x0 and eps as properties.

    Where a distribution is predicted, x0 is its mean.
    """

    @property
    @abstractmethod
    def x0(self) -> Float[Tensor, "B L M"]:
        """The predicted clean sample."""

    @property
    @abstractmethod
    def eps(self) -> Float[Tensor, "B L M"]:
        """The noise that explains x_t given `x0`."""

    def draw(self) -> Float[Tensor, "B L M"]:
        """Draw clean samples, in which visible values are unchanged; by default x0."""
        return self.x0

    def squared_errors(
        self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Return errors whose mean is minimal at the true mean or distribution; 0 outside `target_mask`."""
        # Selected before the square: the gradient of an infinite value outside would be 0 times
        # inf, NaN.
        return torch.where(target_mask, self.x0 - x0, 0.0).square()


Prediction = TokenPrediction | FeaturePrediction


@dataclass(frozen=True)
class Measured(TensorRecord):
    """A loss per position with weights, so that means over batches and ranks are exact.

    Attributes:
        values: The loss of each position; finite even where the weight is 0.
        weights: The weight of each position, at least 0.
        total_with_grad: The sum of values times weights if only this sum carries the gradient, else
            None.
        parts: Terms of the values by name, for logging.
    """

    values: Float[Tensor, "B L"]
    weights: Float[Tensor, "B L"]
    total_with_grad: Float[Tensor, ""] | None = None
    parts: dict[str, Float[Tensor, "B L"]] = field(default_factory=dict)

    def __getitem__(self, rows: slice) -> Self:
        """Return some samples of the batch, without `total_with_grad`."""
        parts = {name: part[rows] for name, part in self.parts.items()}
        return replace(
            self,
            values=self.values[rows],
            weights=self.weights[rows],
            total_with_grad=None,
            parts=parts,
        )

    def total(self) -> Float[Tensor, ""]:
        """Return the weighted sum."""
        return (
            (self.values * self.weights).sum()
            if self.total_with_grad is None
            else self.total_with_grad
        )

    def mean(self) -> Float[Tensor, ""]:
        """Return the weighted mean; 0 if all weights are 0."""
        weight = self.weights.sum()
        return self.total() / torch.where(weight > 0, weight, 1.0)


def over(value: Shaped[Tensor, "B *L"], like: Tensor) -> Shaped[Tensor, "..."]:
    """Add trailing dimensions of size 1, so that one value per sample or per position broadcasts over `like`."""
    return value.reshape(*value.shape, *[1] * (like.ndim - value.ndim))
