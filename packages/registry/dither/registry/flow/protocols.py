"""What parts can do once they are built. These protocols are the whole run-time contract of the house.

Letters: B batch, L length, M features, V vocabulary, D width, C condition width, K keys. `X` is the shape of a sample:
`B L` (tokens) or `B L M` (features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from .records import Clean, Context, Measured, Noise, Noised, State
from .spaces import Space

__all__ = [
    "BoundedProcess",
    "BucketedTask",
    "DataWarnings",
    "Denoiser",
    "Exports",
    "GaussianProcess",
    "ImportanceSampledProcess",
    "KeyValueCache",
    "Loss",
    "MaskedFeatureProcess",
    "Metrics",
    "PatientProcess",
    "Picture",
    "PredictionMetric",
    "Process",
    "RatioSums",
    "RawLater",
    "SampleMetric",
    "SampledMetrics",
    "Sampler",
    "Schedule",
    "Session",
    "ShowsTrajectories",
    "Split",
    "Task",
    "TimelessProcess",
    "TokenProcess",
    "Tracker",
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
class ImportanceSampledProcess(Protocol):
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
        fixed_time: The one time at which evaluation and sampling run the model; None where states depend on time.
    """

    fixed_time: float | None


@runtime_checkable
class TokenProcess(Process, Protocol):
    """A process over ids with q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) prior, required by samplers of tokens.

    Attributes:
        absorbing: Whether the prior is all on one id (MASK), so that a token changes at most once.
    """

    absorbing: bool

    def prior_probs(self, device: Any = None) -> Float[Tensor, "rows V"]:
        """Return the prior, one row per position or one for all positions; rows sum to 1."""
        ...

    def renoise(self, state: State, gap: Noise, like: Clean) -> State:
        """Draw x_t given x_s for t > s, with the noise between the two times; fixed values stay as they are."""
        ...


@runtime_checkable
class GaussianProcess(Process, Protocol):
    """A process that adds Gaussian noise to features, required by DDIM, DPM-Solver and RePaint."""

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
        ...

    def add_noise(
        self, x: Float[Tensor, "B L M"], noise: Noise, where: Bool[Tensor, "B L M"]
    ) -> tuple[State, Float[Tensor, "B L M"]]:
        """Draw x_t given x_0 where `where`; return the state and the noise that was added."""
        ...

    def replace(self, state: State, x: Float[Tensor, "B L M"], like: Clean) -> State:
        """Return the state with the values of `x` where the state is noisy."""
        ...


@runtime_checkable
class MaskedFeatureProcess(Process, Protocol):
    """A process that masks units of features (values, groups of columns or positions), required by ordered samplers.

    Letters: U units of a sample.

    Attributes:
        moment: The time used for all states if states do not depend on time, else None; see `TimelessProcess`.
    """

    moment: float | None

    def units(self, masked: Bool[Tensor, "B L M"]) -> Bool[Tensor, "B U"]:
        """Return which units are masked."""
        ...

    def unit_sums(self, values: Float[Tensor, "B L M"]) -> Float[Tensor, "B U"]:
        """Sum values over the elements of each unit."""
        ...

    def elements(self, units: Bool[Tensor, "B U"]) -> Bool[Tensor, "B L M"]:
        """Return the elements that belong to the chosen units."""
        ...

    def reveal(self, state: State, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]) -> State:
        """Return the state with `masked` still masked, and the values of `x` where the mask was removed."""
        ...


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

    def append(self, x: Shaped[Tensor, "B L"]) -> None:
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
    def num_tokens(self) -> int:
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


Split = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Picture:
    """Something to look at: any of these forms, under a file name without suffix."""

    name: str
    png: bytes | None = None
    svg: str | None = None
    text: str | None = None
    gif: bytes | None = None
    html: str | None = None


@runtime_checkable
class Metrics(Protocol):
    """Adds up over batches, so that the result does not depend on how a split was cut into batches."""

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Take in one batch."""
        ...

    def compute(self) -> dict[str, float]:
        """Return the figures by name; a name says its unit, as in `nats_per_graph`."""
        ...


RatioSums = tuple[Float[Tensor, " B"], Float[Tensor, " B"]]
"""What each sample of a batch adds to the sum above and to the sum below of a figure that is a ratio of two sums."""


@runtime_checkable
class SampledMetrics(Protocol):
    """Metrics that tell how sure they are: the engine adds `NAME_ci95`, half of a 95 % interval, to each figure named.

    An interval comes from the spread over samples, each with all its repeats together.
    """

    def per_sample(self, clean: Clean, measured: Measured) -> Mapping[str, RatioSums]:
        """Return by name those figures of `compute` that are ratios of two sums over samples."""
        ...


@runtime_checkable
class PredictionMetric(Protocol):
    """A metric of predictions, computed on the evaluated split beside the task's own metrics."""

    def metrics(self) -> Metrics:
        """Return a fresh accumulator for one evaluation."""
        ...


SampleMetric = Callable[[Shaped[Tensor, "N L *M"], Clean], Mapping[str, float]]
"""A metric of samples: finished samples and what sampling started from -> values by name. It must not modify either."""


@runtime_checkable
class Tracker(Protocol):
    """A destination of the metrics and pictures of one run. Only rank 0 calls it."""

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Open the destination, once and first.

        Args:
            folder: The run directory; the tracker may write files into a folder of its own in it.
            config: The resolved experiment, in plain values.
            step: The last finished step: 0 for a new run, otherwise the step that the run resumes from.
        """
        ...

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step; `kind` is "train", "valid", "test" or "sample"."""
        ...

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Record pictures of samples; a tracker that cannot show pictures does nothing."""
        ...

    def finish(self, error: BaseException | None = None) -> None:
        """Flush and close, once and last; `error` is the exception that ended the run, if one did."""
        ...


@runtime_checkable
class Task(Protocol):
    """What the data is, how well a model does on it, and how it looks."""

    @property
    def space(self) -> Space:
        """What one sample looks like."""
        ...

    def size(self, split: Split) -> int:
        """Number of samples of a split."""
        ...

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return the samples with these numbers, on the CPU: a pure function of its arguments."""
        ...

    def like(self, n: int, seed: int) -> Clean:
        """What sampling starts from: which positions are valid and known, with the truth in x0 where there is one."""
        ...

    def metrics(self) -> Metrics:
        """Return a fresh accumulator for one evaluation."""
        ...

    def baselines(self) -> dict[str, float]:
        """Trivial predictors on the validation split, under the names of the metrics they are to be compared with.

        A key is `metric/baseline`, as in `nats_per_graph/unigram`. Those of drawn samples, where they are others, are
        `sample metric/baseline`. It may take another `split`, which was measured just before; without that, figures of
        other splits stand alone.
        """
        ...

    def sample_metrics(self, samples: Shaped[Tensor, "N L *M"], like: Clean) -> dict[str, float]:
        """Figures about drawn samples."""
        ...

    def plots(self, samples: Shaped[Tensor, "N L *M"], like: Clean) -> Iterable[Picture]:
        """Pictures of drawn samples."""
        ...


@runtime_checkable
class BucketedTask(Protocol):
    """A task that can say which samples have the same real positions."""

    def buckets(self, split: Split) -> Sequence[int]:
        """A number for each sample; samples of one number have the same real positions."""
        ...


@runtime_checkable
class DataWarnings(Protocol):
    """A task that has something to say of its data before a run."""

    def data_warnings(self) -> Iterable[str]:
        """Lines for a person, such as how many samples were left out, and why."""
        ...


@runtime_checkable
class ShowsTrajectories(Protocol):
    """A task that can show how samples came about."""

    def trajectory_plots(self, path: Shaped[Tensor, "T N L *M"], like: Clean) -> Iterable[Picture]:
        """Pictures of every state that a sampler yielded, the finished samples last; `like` is what it began with."""
        ...


@runtime_checkable
class Exports(Protocol):
    """A task that can write samples for other programs."""

    def export(
        self, samples: Shaped[Tensor, "N L *M"], like: Clean, form: str, folder: Path
    ) -> tuple[Sequence[Path], Sequence[str]]:
        """Write samples in a form that the Spec names (`TaskSpec.exports`) into a folder of their own.

        Return the files with samples, and what to tell a person: samples that were left out, and why.
        """
        ...
