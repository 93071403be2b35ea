"""Protocols of tasks, their metrics and trackers.

Letters: B batch, N samples, L length, M features, D width, V vocabulary. `B L *M` is `B L` for
tokens, `B L M` for features.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..config.errors import Refused
from .pictures import Picture
from .records import Clean, Measured, Noised
from .spaces import Field, Space, TokenSpace
from .units import is_likelihood

__all__ = [
    "Metrics",
    "Picture",
    "PredictionMetric",
    "RatioSums",
    "SampleMetric",
    "Split",
    "Task",
    "Tracker",
    "TrainedModel",
    "is_likelihood",
]

Split = Literal["train", "valid", "test"]


RatioSums = tuple[Float[Tensor, " B"], Float[Tensor, " B"]]
"""The terms of each sample in numerator and denominator of a metric that is a ratio of two sums."""


@runtime_checkable
class Metrics(Protocol):
    """An accumulator whose result does not depend on the division into batches.

    Classes inherit from it.
    """

    @abstractmethod
    def update(
        self,
        clean: Clean,
        noised: Noised,
        pred: Any,
        measured: Measured,
    ) -> None:
        """Add one batch."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Return the metrics by name; names contain the unit, as in `nats_per_graph`.

        Those in nats or bits, and perplexities, are shown only if the loss is part of a bound; see
        `is_likelihood`.
        """

    def per_sample(self, clean: Clean, measured: Measured) -> Mapping[str, RatioSums]:
        """Return the terms of metrics of `compute` that are ratios of two sums over samples.

        From them the engine computes 95 % confidence intervals: `NAME_ci95`, half the width.
        """
        return {}


@runtime_checkable
class PredictionMetric(Protocol):
    """A metric of predictions, computed on the evaluated split in addition to the task's own metrics."""

    def metrics(self) -> Metrics:
        """Return a fresh accumulator for one evaluation."""


SampleMetric = Callable[[Shaped[Tensor, "N L *M"], Clean], Mapping[str, float]]
"""A metric of samples: finished samples and what sampling started from -> values by name. It must
not modify either."""


@runtime_checkable
class Tracker(Protocol):
    """A destination of the metrics and pictures of one run. Only rank 0 calls it."""

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Open the destination, once and first; `step` is the one that the run resumes from.

        The tracker may write into a folder of its own in the run directory `folder`; `config` has
        plain values.
        """

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step; `kind` is "train", "valid", "test" or "sample"."""

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Record pictures of samples; a tracker that cannot show pictures does nothing."""

    def finish(self, error: BaseException | None = None) -> None:
        """Flush and close, once and last; `error` is the exception that ended the run, if one did."""


@runtime_checkable
class Task(Protocol):
    """The data, its metrics and its plots; classes inherit from it.

    Methods from `buckets` on are optional.
    """

    space: Space
    """The space of one sample."""

    @property
    def bin_widths(self) -> Float[Tensor, " M"] | None:
        """Distance of the values of each column in samples, 0 where it is continuous; None if all are.

        Likelihoods are probabilities of quantised columns, and densities of others.
        """
        return None

    @abstractmethod
    def size(self, split: Split) -> int:
        """Return the number of samples of a split."""

    @abstractmethod
    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return the samples with these indices, on the CPU: a pure function of its arguments."""

    @abstractmethod
    def like(self, n: int, seed: int) -> Clean:
        """Return templates for sampling: valid and known positions, and true values if known."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """Return a fresh accumulator for one evaluation."""

    @abstractmethod
    def baselines(
        self, split: Split = "valid", samples: int | None = None
    ) -> dict[str, float]:
        """Return metrics of trivial predictors on a split, as in `nats_per_graph/unigram`.

        `samples` is the number of samples that are evaluated, from the first; baselines may be of
        more. Names of metrics of samples start with `sample `.
        """

    @abstractmethod
    def sample_metrics(
        self, samples: Shaped[Tensor, "N L *M"], like: Clean
    ) -> dict[str, float]:
        """Return metrics of samples."""

    @abstractmethod
    def plots(
        self, samples: Shaped[Tensor, "N L *M"], like: Clean
    ) -> Iterable[Picture]:
        """Yield pictures of samples."""

    def valid_positions(self, x0: Shaped[Tensor, "B L *M"]) -> Bool[Tensor, "B L"]:
        """Return the positions of given samples that are not padding, by default from PAD ids."""
        if not isinstance(self.space, TokenSpace):
            return torch.ones(x0.shape[:2], dtype=torch.bool)

        def pad(field: Field) -> Tensor:
            return torch.tensor(-1 if field.pad is None else field.pad)

        return x0 != self.space.table(pad)

    def decode(self, samples: Shaped[Tensor, "N L *M"], like: Clean) -> Any:
        """Return samples in the user's terms, such as texts or a table; by default the tensor."""
        return samples

    def unit_counts(self, clean: Clean) -> Mapping[str, Sequence[int]]:
        """Return counts of each sample that its likelihood is also reported per, such as `byte`."""
        return {}

    def buckets(self, split: Split) -> Sequence[int] | None:
        """Return a bucket for each sample; those of one bucket have the same valid positions."""
        return None

    def mixture(self) -> Sequence[tuple[int, int]] | None:
        """Return samples and weight of each source of the training split; None without sources.

        Samples of a source follow those of the one before; weights are whole numbers.
        """
        return None

    def prompted(self, prompt: str, n: int, seed: int) -> Clean:
        """Return `n` templates that begin with a prompt; Refused for tasks without prompts."""
        raise Refused("samples of this task have no prompt", ("task",), code="misfit")

    def with_length(self, length: int) -> Task:
        """Return the task with another `length`, an option of its Spec; Refused for tasks of one length."""
        message = "samples of this task have one length"
        raise Refused(message, ("task",), code="misfit")

    def data_warnings(self) -> Iterable[str]:
        """Yield lines to show before a run, such as the number of rejected samples and why."""
        return ()

    def trajectory_plots(
        self, path: Shaped[Tensor, "T N L *M"], like: Clean
    ) -> Iterable[Picture]:
        """Yield pictures of all states of a sampler, the finished samples last."""
        return ()

    def export(
        self,
        samples: Shaped[Tensor, "N L *M"],
        like: Clean,
        form: str,
        folder: Path,
    ) -> tuple[Sequence[Path], Sequence[str]]:
        """Write samples in a format of `TaskSpec.exports` into a new folder.

        Returns:
            The files, and messages to print.
        """
        name = type(self).__name__
        raise TypeError(f"{name} offers exports, but has no method export")

    def save_assets(self, folder: Path) -> None:
        """Write the files that an export needs without the data, such as a tokenizer."""
        return None

    def predict_values(self, model: TrainedModel, x: Any, **labels: str) -> Any:
        """Return predictions for inputs `x` of the user, both in the units of the data."""
        raise Refused(
            f"{type(self).__name__} does not implement predict_values", code="usage"
        )


class TrainedModel(Protocol):
    """A trained model as the methods and commands of its task apply it; tensors are on the CPU.

    `mean`, `log_clean` and `hidden` start from the state at t = 1, which shows only known values.
    """

    @property
    def task(self) -> Any:
        """The task that the model was trained on."""

    @property
    def is_autoregressive(self) -> bool:
        """Whether masked ids are predicted from all before them: `log_clean` of one call has each conditional."""

    def sample(
        self,
        like: Clean,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Shaped[Tensor, "N L *M"]:
        """Draw one sample for each row; without a seed, each call has random numbers of its own.

        `options` are changes of the options of the sampler; Refused if it does not have them.
        """

    def mean(self, clean: Clean) -> Float[Tensor, "B L M"]:
        """Return the prediction of clean features; gradients flow into `clean.x0`."""

    def log_clean(self, clean: Clean) -> Float[Tensor, "B L V"]:
        """Return log-probabilities of the clean token at each position."""

    def hidden(self, clean: Clean) -> Float[Tensor, "B L D"]:
        """Return the input of the head."""

    def log_likelihood(
        self,
        ids: Shaped[Tensor, "B L"],
        known: Shaped[Tensor, "B L"] | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Any:
        """Return lower bounds on log p(unknown ids | known ids) in nats, as `values` of shape `B`."""
