"""What tasks and what they measure with can do once they are built; `parts` has all of it together.

Letters: B batch, L length, M features, N samples, T states of a walk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Float, Shaped
from torch import Tensor

from .flow import Clean, Measured, Noised
from .spaces import Space

__all__ = [
    "BucketedTask",
    "Exports",
    "Metrics",
    "Picture",
    "Remarks",
    "SampleSums",
    "SampledMetrics",
    "ShowsPaths",
    "Split",
    "Task",
]

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


SampleSums = tuple[Float[Tensor, " B"], Float[Tensor, " B"]]
"""What each sample of a batch adds to the sum above and to the sum below of a figure that is a ratio of two sums."""


@runtime_checkable
class SampledMetrics(Protocol):
    """Metrics that tell how sure they are: the engine adds `NAME_ci95`, half of a 95 % interval, to each figure named.

    An interval comes from the spread over samples, each with all its repeats together.
    """

    def per_sample(self, clean: Clean, measured: Measured) -> Mapping[str, SampleSums]:
        """Return by name those figures of `compute` that are ratios of two sums over samples."""
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

    def judge(self, samples: Shaped[Tensor, "N L *M"], like: Clean) -> dict[str, float]:
        """Figures about drawn samples."""
        ...

    def show(self, samples: Shaped[Tensor, "N L *M"], like: Clean) -> Iterable[Picture]:
        """Pictures of drawn samples."""
        ...


@runtime_checkable
class BucketedTask(Protocol):
    """A task that can say which samples have the same real positions."""

    def buckets(self, split: Split) -> Sequence[int]:
        """A number for each sample; samples of one number have the same real positions."""
        ...


@runtime_checkable
class Remarks(Protocol):
    """A task that has something to say of its data before a run."""

    def remarks(self) -> Iterable[str]:
        """Lines for a person, such as how many samples were left out, and why."""
        ...


@runtime_checkable
class ShowsPaths(Protocol):
    """A task that can show how samples came about."""

    def show_path(self, path: Shaped[Tensor, "T N L *M"], like: Clean) -> Iterable[Picture]:
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
