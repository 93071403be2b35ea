"""Protocols of built components: the complete runtime interface between them.

Letters: B batch, L length, M features, V vocabulary, D width, C condition width, K keys, H heads, E head width.
`B L *M` is `B L` for tokens, `B L M` for features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from .records import Clean, Context, Measured, Noise, Noised, State
from .spaces import Space

__all__ = [
    "FUSED_FROM",
    "AssetTask",
    "BoundedProcess",
    "BucketedTask",
    "CorpusTask",
    "DataRequest",
    "DataWarnings",
    "Denoiser",
    "DistributionHead",
    "DistributionPrediction",
    "EditableTask",
    "Embeds",
    "Explains",
    "Exports",
    "FusedLoss",
    "GaussianProcess",
    "ImportanceSampledProcess",
    "KeyValueCache",
    "LiteralProcess",
    "Loss",
    "MaskedFeatureProcess",
    "Metrics",
    "Picture",
    "PredictionMetric",
    "Predicts",
    "Process",
    "RatioSums",
    "SampleMetric",
    "SampledMetrics",
    "Sampler",
    "Schedule",
    "Session",
    "ShowsTrajectories",
    "Split",
    "Task",
    "TextTask",
    "TimelessProcess",
    "TokenProcess",
    "Tracker",
    "TrainedModel",
    "ValueDistribution",
    "sample_prediction",
]  # fmt: skip

Schedule = Callable[[Float[Tensor, "B *L"]], Noise]
"""Time in [0, 1] -> Noise; sigma increases with t, and rate is its derivative."""

Loss = Callable[[Any, Noised], Measured]
"""A pure function of a prediction and its noised batch; the loss of a position depends on that position only."""


@runtime_checkable
class Process(Protocol):
    """Adds noise to clean samples, and removes it step by step."""

    schedule: Schedule

    @property
    def space(self) -> Space:
        """The space the model must serve: that of the task, possibly with MASK added."""

    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        """Draw training times, one in each of n equal strata of the time range."""

    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        """Return the noise level at t in the form the model is conditioned on."""

    def corrupt(self, clean: Clean, t: float | Float[Tensor, "B *L"]) -> Noised:
        """Draw x_t given x_0; fixed values are kept. A single time is that of all samples."""

    def read(self, raw: Float[Tensor, "B L V"], state: State, noise: Noise) -> Any:
        """Return the prediction of a raw model output: a `TokenPrediction` or a `FeaturePrediction`."""

    def prior(self, like: Clean) -> State:
        """Draw the state at t = 1, with the fixed values of `like` in place."""

    def step(self, state: State, pred: Any, now: Noise, then: Noise, like: Clean) -> State:
        """Draw x_s given x_t and a prediction, for s < t; `now` is the noise at t, `then` at s."""

    def finish(self, state: State, pred: Any, like: Clean) -> Shaped[Tensor, "B L *M"]:
        """Return a clean sample from the last state."""


@runtime_checkable
class BoundedProcess(Protocol):
    """A process that can complete a loss to a bound on -log p(x_0)."""

    def bound(self, clean: Clean, measured: Measured, denoise: Callable[[State, Float[Tensor, " B"]], Any]) -> Measured:
        """Add the terms before the smallest t and at t = 1 to a loss, per position in nats."""


@runtime_checkable
class ImportanceSampledProcess(Protocol):
    """A process that may draw times and states from another distribution than uniform t and q(x_t | x_0)."""

    def estimate(self, clean: Clean, t: Float[Tensor, " B"]) -> tuple[Float[Tensor, " B"], Noised]:
        """Return times and noised batches with the same mean token loss over uniform t as `corrupt`.

        Importance weights are factors of the rate of the noise.
        """


@runtime_checkable
class TimelessProcess(Protocol):
    """A process whose states may be independent of time, although the model is conditioned on one."""

    fixed_time: float | None
    """The time used for evaluation and sampling, or None if states depend on time."""


@runtime_checkable
class TokenProcess(Process, Protocol):
    """A process over ids with q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) prior, required by samplers of tokens.

    With the optional attribute `reads_rows = True`, `read` also takes chosen positions (`1 n`).
    """

    absorbing: bool
    """Whether the prior is all on one id (MASK), so that a token changes at most once."""

    def prior_probs(self, device: Any = None) -> Float[Tensor, "rows V"]:
        """Return the prior, one row per position or one for all positions; rows sum to 1."""

    def renoise(self, state: State, gap: Noise, like: Clean) -> State:
        """Draw x_t given x_s for t > s, with the noise between the two times; fixed values stay as they are."""


@runtime_checkable
class GaussianProcess(Process, Protocol):
    """A process that adds Gaussian noise to features, required by DDIM, DPM-Solver, the ODE and RePaint.

    With the optional attribute `linear_path = True`, x_t = (a x_0 + b eps) / (a + b) with a = sqrt(alpha) and b =
    sqrt(1 - alpha), as in flow matching; otherwise it is a x_0 + b eps.
    """

    def step(
        self, state: State, pred: Any, now: Noise, then: Noise, like: Clean, *,
        eta: float = 1.0, eps: Float[Tensor, "B L M"] | None = None,
    ) -> State:  # fmt: skip
        """Draw x_s given x_t and a prediction: ancestral for `eta` = 1, deterministic (DDIM) for 0.

        `eps` is the standard normal noise to add; by default it is drawn.
        """

    def add_noise(
        self, x: Float[Tensor, "B L M"], noise: Noise, where: Bool[Tensor, "B L M"]
    ) -> tuple[State, Float[Tensor, "B L M"]]:
        """Draw x_t given x_0 where `where`; return the state and the noise that was added."""

    def replace(self, state: State, x: Float[Tensor, "B L M"], like: Clean) -> State:
        """Return the state with the values of `x` where the state is noisy."""


@runtime_checkable
class MaskedFeatureProcess(Process, Protocol):
    """A process that masks U units of features (values, groups of columns or positions), for ordered samplers."""

    fixed_time: float | None
    """As of a `TimelessProcess`."""

    def units(self, masked: Bool[Tensor, "B L M"]) -> Bool[Tensor, "B U"]:
        """Return which units are masked."""

    def unit_sums(self, values: Float[Tensor, "B L M"]) -> Float[Tensor, "B U"]:
        """Sum values over the elements of each unit."""

    def elements(self, units: Bool[Tensor, "B U"]) -> Bool[Tensor, "B L M"]:
        """Return the elements that belong to the chosen units."""

    def reveal(self, state: State, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]) -> State:
        """Return the state with `masked` still masked, and the values of `x` where the mask was removed."""


@runtime_checkable
class Session(Protocol):
    """The model as a sampler calls it: states in, predictions out, with a cache of finished positions."""

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> Any:
        """Return the prediction for a state at time t."""

    def append(self, x: Shaped[Tensor, "B L"]) -> None:
        """Append finished positions to the cache; later calls attend to them."""


Sampler = Callable[[Process, Session, Clean], Iterator[Shaped[Tensor, "B L *M"]]]
"""Reverses a process from t = 1: yields every state, and the clean sample last."""


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


@runtime_checkable
class Denoiser(Protocol):
    """A model; also a torch.nn.Module."""

    def __call__(
        self, state: State, level: Float[Tensor, "B *L"], valid: Bool[Tensor, "B L"], cond: Mapping[str, Tensor], *,
        context: Context | None = None, cache: Any = None, keep: bool = False,
    ) -> Float[Tensor, "B L V"]:  # fmt: skip
        """Return the raw output per position: `B L M` for features, `B L V` for tokens.

        With a `context`, each block of the state attends to the earlier blocks of the context; only models with a
        block size get one. With a `cache`, the positions follow the cached ones; `keep` adds them to the cache.
        """

    def trunk(
        self, state: State, level: Float[Tensor, "B *L"], valid: Bool[Tensor, "B L"], cond: Mapping[str, Tensor], *,
        context: Context | None = None, cache: Any = None, keep: bool = False,
    ) -> Float[Tensor, "B L D"]:  # fmt: skip
        """Return the input of the head: `model(...) == model.head(model.trunk(...))`."""

    def new_cache(self) -> KeyValueCache:
        """Return an empty cache for this model."""


Split = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Picture:
    """A picture in any of these formats, under a file name without suffix."""

    name: str
    png: bytes | None = None
    svg: str | None = None
    text: str | None = None
    gif: bytes | None = None
    html: str | None = None


@runtime_checkable
class Metrics(Protocol):
    """An accumulator whose result does not depend on how a split is divided into batches."""

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Add one batch."""

    def compute(self) -> dict[str, float]:
        """Return the metrics by name; names contain the unit, as in `nats_per_graph`."""


RatioSums = tuple[Float[Tensor, " B"], Float[Tensor, " B"]]
"""The terms of each sample in numerator and denominator of a metric that is a ratio of two sums."""


@runtime_checkable
class SampledMetrics(Protocol):
    """Metrics with 95 % confidence intervals over samples: the engine adds `NAME_ci95`, half the width."""

    def per_sample(self, clean: Clean, measured: Measured) -> Mapping[str, RatioSums]:
        """Return the terms of those metrics of `compute` that are ratios of two sums over samples."""


@runtime_checkable
class PredictionMetric(Protocol):
    """A metric of predictions, computed on the evaluated split in addition to the task's own metrics."""

    def metrics(self) -> Metrics:
        """Return a fresh accumulator for one evaluation."""


SampleMetric = Callable[[Shaped[Tensor, "N L *M"], Clean], Mapping[str, float]]
"""A metric of samples: finished samples and what sampling started from -> values by name. It must not modify either."""


@runtime_checkable
class Tracker(Protocol):
    """A destination of the metrics and pictures of one run. Only rank 0 calls it."""

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Open the destination, once and first; `step` is the one that the run resumes from.

        The tracker may write into a folder of its own in the run directory `folder`; `config` has plain values.
        """

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step; `kind` is "train", "valid", "test" or "sample"."""

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Record pictures of samples; a tracker that cannot show pictures does nothing."""

    def finish(self, error: BaseException | None = None) -> None:
        """Flush and close, once and last; `error` is the exception that ended the run, if one did."""


@runtime_checkable
class Task(Protocol):
    """The data, its metrics and its plots."""

    @property
    def space(self) -> Space:
        """The space of one sample."""

    def size(self, split: Split) -> int:
        """Return the number of samples of a split."""

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return the samples with these indices, on the CPU: a pure function of its arguments."""

    def like(self, n: int, seed: int) -> Clean:
        """Return templates for sampling: valid and known positions, and the true values in x0 if there are any."""

    def metrics(self) -> Metrics:
        """Return a fresh accumulator for one evaluation."""

    def baselines(self) -> dict[str, float]:
        """Return metrics of trivial predictors on the validation split, as in `nats_per_graph/unigram`.

        Names of metrics of samples start with `sample `. With a `split` argument, return those of that split.
        """

    def sample_metrics(self, samples: Shaped[Tensor, "N L *M"], like: Clean) -> dict[str, float]:
        """Return metrics of samples."""

    def plots(self, samples: Shaped[Tensor, "N L *M"], like: Clean) -> Iterable[Picture]:
        """Yield pictures of samples."""


@runtime_checkable
class TextTask(Protocol):
    """A task whose samples are text."""

    def infill(self, text: str, n: int, seed: int) -> Clean:
        """Return `n` templates of a text in which `[MASK:K]` stands for K unknown tokens; the other ids are known."""

    def tokens(self, text: str) -> Sequence[int]:
        """Return the ids of a text."""

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""


@runtime_checkable
class EditableTask(Protocol):
    """A task whose samples can keep a part of a given one."""

    def edit(self, source: Any, keep: Sequence[int] | None, redraw: int | None, n: int, seed: int) -> Clean:
        """Return `n` templates that know the parts `keep` of a sample (a path or an object), with `redraw` others."""


@runtime_checkable
class CorpusTask(TextTask, Protocol):
    """A task over documents, which may be replaced."""

    def over_texts(self, texts: Sequence[str]) -> Task:
        """Return the task with other documents as its validation split."""


@runtime_checkable
class AssetTask(Protocol):
    """A task that writes files into an export, which works with them where the data are missing."""

    def save_assets(self, folder: Path) -> None:
        """Write files, such as a tokenizer, into an empty folder."""


@runtime_checkable
class BucketedTask(Protocol):
    """A task that groups samples with the same valid positions."""

    def buckets(self, split: Split) -> Sequence[int]:
        """Return a bucket number for each sample; samples of one bucket have the same valid positions."""


@runtime_checkable
class DataWarnings(Protocol):
    """A task with warnings about its data, shown before a run."""

    def data_warnings(self) -> Iterable[str]:
        """Yield lines such as the number of rejected samples and the reason."""


@runtime_checkable
class ShowsTrajectories(Protocol):
    """A task that can plot sampling trajectories."""

    def trajectory_plots(self, path: Shaped[Tensor, "T N L *M"], like: Clean) -> Iterable[Picture]:
        """Yield pictures of all states of a sampler, the finished samples last; `like` is the template."""


@runtime_checkable
class Exports(Protocol):
    """A task that can export samples to files of other programs."""

    def export(
        self, samples: Shaped[Tensor, "N L *M"], like: Clean, form: str, folder: Path
    ) -> tuple[Sequence[Path], Sequence[str]]:
        """Write samples in a format of `TaskSpec.exports` into a new folder; return the files and messages."""


class TrainedModel(Protocol):
    """A trained model as a task applies it to data of its own making; tensors come back on the CPU."""

    def sample(self, like: Clean) -> Shaped[Tensor, "N L *M"]:
        """Draw one sample for each row."""

    def mean(self, clean: Clean) -> Float[Tensor, "B L M"]:
        """Return the prediction of clean features from the given ones alone; gradients flow into `clean.x0`."""

    def hidden(self, clean: Clean) -> Float[Tensor, "B L D"]:
        """Return the input of the head under the same conditions as `mean`."""


@dataclass(frozen=True)
class DataRequest:
    """What `dither predict`, `explain` and `embed` ask of a task.

    Attributes:
        folder: Existing, empty folder for the files.
        data: Files or folders of the user; none for the data of the run.
        split: Split of the data, or all of them.
        labels: Values of conditions, such as {"cell": "K562"}.
        forms: File formats.
    """

    folder: Path
    data: Sequence[Path] = ()
    split: Split | Literal["all"] = "valid"
    labels: Mapping[str, str] = field(default_factory=dict)
    forms: Sequence[str] = ()


@runtime_checkable
class Predicts(Protocol):
    """A task that predicts what is unknown in data of the user."""

    def predict(self, model: TrainedModel, request: DataRequest) -> Sequence[Path]:
        """Write predictions; return the files."""


@runtime_checkable
class Explains(Protocol):
    """A task that attributes predictions to inputs."""

    def explain(self, model: TrainedModel, request: DataRequest) -> Sequence[Path]:
        """Write attributions; return the files."""


@runtime_checkable
class Embeds(Protocol):
    """A task that writes embeddings of its samples."""

    def embed(self, model: TrainedModel, request: DataRequest) -> Sequence[Path]:
        """Write embeddings; return the files."""


@runtime_checkable
class ValueDistribution(Protocol):
    """The joint distribution of the values at each position, independent between positions."""

    def mean(self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Return the mean of the masked values given the others at the position; `head(h)` if all are masked."""

    def sample(self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Draw the masked values given the others at the position, which are returned unchanged."""

    def squared_errors(self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
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


@runtime_checkable
class DistributionPrediction(Protocol):
    """A `FeaturePrediction` with a distribution; its x0 is the mean."""

    def draw(self) -> Float[Tensor, "B L M"]:
        """Draw clean samples; values that are not masked are kept."""

    def squared_errors(self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Return the errors that train the distribution."""


def sample_prediction(pred: Any) -> Float[Tensor, "B L M"]:
    """Draw clean features from a `DistributionPrediction`; return x0 of any other `FeaturePrediction`."""
    x: Float[Tensor, "B L M"] = pred.draw() if isinstance(pred, DistributionPrediction) else pred.x0
    return x


FUSED_FROM = 256
"""Vocabulary size from which the fused form of a loss is used: on a CPU it is at least 1.5 times as fast from here on
(measured: width 128, 2,048 positions); below there is little to gain."""


@runtime_checkable
class LiteralProcess(Protocol):
    """A token process that uses the raw output of a model unchanged at every position whose id is uncertain.

    With `predict` = "posterior" or "plug-in", the log-softmax over `support` is log p(x_0 | x_t); with "score", the raw
    output is the log score, except 0 at x_t. Outside the support all is -inf.
    """

    predict: Any

    def support(self, device: Any) -> Bool[Tensor, "rows V"]:
        """Return the ids for which the raw output is used."""


@runtime_checkable
class FusedLoss(Protocol):
    """A loss that can also be computed from the input of the head.

    It requires a head that is one linear layer, and a token space with a single field.
    """

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Return the loss of a prediction."""

    def fused(
        self, h: Float[Tensor, "B L D"], linear: nn.Linear, process: Process, noised: Noised, t: Float[Tensor, "B *L"],
        *, half: bool = False, share: Float[Tensor, "B #L"] | None = None,
    ) -> Measured:  # fmt: skip
        """Return the loss of `process.read(linear(h), noised.state, process.schedule(t))`.

        Only `Measured.total_with_grad` carries a gradient. With `half`, matrix products run in bfloat16 and accumulate
        in float32. `share` multiplies the values.
        """
