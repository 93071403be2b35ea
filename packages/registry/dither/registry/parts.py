"""What parts can do once they are built. These protocols are the whole run-time contract of the house.

Letters: B batch, L length, M features, V vocabulary, D width, C condition width, K keys. `X` is the shape of a sample:
`B L` (tokens) or `B L M` (features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from .flow import Clean, Context, Measured, Noise, Noised, State
from .spaces import Space
from .task_parts import (
    BucketedTask,
    Exports,
    Metrics,
    Picture,
    Remarks,
    SampledMetrics,
    SampleSums,
    ShowsPaths,
    Split,
    Task,
)

__all__ = [
    "BoundedProcess",
    "BucketedTask",
    "Denoiser",
    "EstimatingProcess",
    "Exports",
    "KeyValueCache",
    "Loss",
    "Metrics",
    "PatientProcess",
    "Picture",
    "Process",
    "RawLater",
    "Remarks",
    "SampleSums",
    "SampledMetrics",
    "Sampler",
    "Schedule",
    "Session",
    "ShowsPaths",
    "Split",
    "Task",
    "TimelessProcess",
]

Schedule = Callable[[Float[Tensor, "B *L"]], Noise]
"""Time in [0, 1] -> Noise. sigma grows with t, and rate is its derivative."""

Loss = Callable[[Any, Noised], Measured]
"""A pure function of a prediction and of the record it was made from; per position, nothing mixed between positions."""


@runtime_checkable
class Process(Protocol):
    """Noise on the way in, and one step back on the way out."""

    schedule: Schedule

    @property
    def space(self) -> Space:
        """What the model must serve: the task's space, perhaps with MASK added."""
        ...

    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        """Random training times, one in each of n equal strata of the time range."""
        ...

    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        """What the model is told of the noise at t."""
        ...

    def corrupt(self, clean: Clean, t: Float[Tensor, "B *L"]) -> Noised:
        """Draw x_t given x_0; fixed values stay as they are."""
        ...

    def read(self, raw: Float[Tensor, "B L V"], state: State, noise: Noise) -> Any:
        """Give the raw output of the model its meaning: a `TokenPrediction` or a `FeaturePrediction`."""
        ...

    def prior(self, like: Clean) -> State:
        """The state at t = 1; fixed values of `like` are already in place."""
        ...

    def step(self, state: State, pred: Any, now: Noise, then: Noise, like: Clean) -> State:
        """Draw x_s given x_t and a prediction, for s < t (`then` is the noise at s)."""
        ...

    def finish(self, state: State, pred: Any, like: Clean) -> Shaped[Tensor, "B L *M"]:
        """Go from the last state straight to a clean sample."""
        ...


@runtime_checkable
class BoundedProcess(Protocol):
    """A process that knows what a loss leaves out of the bound on -log p(x_0)."""

    def bound(self, clean: Clean, measured: Measured, denoise: Callable[[State, Float[Tensor, " B"]], Any]) -> Measured:
        """Add to a measured loss, per position and in nats, what happens before the smallest t and after t = 1."""
        ...


@runtime_checkable
class EstimatingProcess(Protocol):
    """A process that may draw what a loss is measured with otherwise than from q(x_t | x_0) at even times."""

    def estimate(self, clean: Clean, t: Float[Tensor, " B"]) -> tuple[Float[Tensor, " B"], Noised]:
        """Return times and the states at them; over even t the mean of a token loss is the same as with `corrupt`.

        What a state weighs beyond that goes into the rate of its noise.
        """
        ...


@runtime_checkable
class TimelessProcess(Protocol):
    """A process whose states may say nothing of time, though the model is told one.

    Attributes:
        moment: The time that stands for all: figures are measured and samples filled in as if it were this one. None
            where states do say something of time.
    """

    moment: float | None


@runtime_checkable
class RawLater(Protocol):
    """The raw output of a model that is called when it is first asked for.

    Attributes:
        by_rows: Whether `rows` never makes the output of all positions: there is much of it, and the head treats
            positions alike.
    """

    by_rows: bool

    def whole(self) -> Float[Tensor, "B L V"]:
        """Return the output at every position."""
        ...

    def rows(self, where: Bool[Tensor, "B L"]) -> Iterator[Float[Tensor, "1 n V"]]:
        """Yield the output at the chosen positions in order, some at a time."""
        ...


@runtime_checkable
class PatientProcess(Protocol):
    """A process that can give raw output its meaning before there is any, and ask for it only where it is needed."""

    def read_later(self, raw: RawLater, state: State, noise: Noise) -> Any:
        """Return a prediction as `read` does; from it a sampler may take single positions."""
        ...


@runtime_checkable
class Session(Protocol):
    """What a sampler talks to: the model, the meaning of its output, and its memory of finished positions."""

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> Any:
        """Denoise: a state at time t -> a prediction."""
        ...

    def remember(self, x: Shaped[Tensor, "B L"]) -> None:
        """Put finished positions behind those already remembered; later calls see them as context."""
        ...


Sampler = Callable[[Process, Session, Clean], Iterator[Shaped[Tensor, "B L *M"]]]
"""Walks a process back from t = 1, yields every state on the way, and the clean sample last."""


@runtime_checkable
class KeyValueCache(Protocol):
    """Keys and values of finished positions.

    Attributes:
        length: Finished positions of the sample.
    """

    length: int

    @property
    def held(self) -> int:
        """Finished tokens, those of no position included: the index of the next one."""
        ...

    def join(
        self, layer: int, k: Float[Tensor, "B H L E"], v: Float[Tensor, "B H L E"]
    ) -> tuple[Float[Tensor, "B H K E"], Float[Tensor, "B H K E"]]:
        """Write what a block made of new tokens behind the finished ones of its layer, and return them all."""
        ...


@runtime_checkable
class Denoiser(Protocol):
    """A model. It is also a torch.nn.Module."""

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
        """Return raw values per position: `B L M` for features, one number per id `B L V` for tokens.

        With a `context` each block of the state sees, of other blocks, the earlier ones of the context; only a model
        whose facts name a block size is given one. With a `cache` the positions given stand behind the cached ones;
        with `keep` they are added to it.
        """
        ...

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
        """Return what the head reads; `model(...) == model.head(model.trunk(...))`."""
        ...

    def new_cache(self) -> KeyValueCache:
        """Return an empty cache for this model."""
        ...
