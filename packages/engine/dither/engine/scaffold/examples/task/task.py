"""A task: arithmetic progressions. Letters: B batch, L length, N samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field as Option

from dither.registry import Field, Spec, TokenSpace, hookimpl
from dither.registry.kinds import TaskSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Picture, Split, Task
    from dither.registry.contracts.records import Clean, Measured


class ExampleTask(TaskSpec):
    """Arithmetic progressions: x_i = first + i step, modulo `ids`."""

    name = "example-task"
    length: int = Option(12, ge=3, le=1024)
    """Ids in a progression."""
    ids: int = Option(16, ge=5, le=1024)
    """The modulus; there are as many progressions as its square."""

    def traits(self) -> frozenset[str]:
        """Promise that no sample is in two splits; the conformance kit checks it."""
        return frozenset({"disjoint-splits"})

    def space(self) -> TokenSpace:
        """Return the shape of a sample. No torch here: incompatible components are rejected early."""
        return TokenSpace((Field("ids", self.length, self.ids),))

    def build(self) -> Task:
        """Make the samples."""
        return progressions(self.space(), self.ids)


def progressions(space: TokenSpace, ids: int) -> Task:
    """Return the task: one progression in ten for validation, one for testing."""
    import torch

    from dither.registry.contracts.protocols import Metrics, Picture, Task
    from dither.registry.contracts.records import Clean

    number = torch.arange(ids * ids)[:, None]
    first = number // ids
    step = number % ids
    samples = (first + step * torch.arange(space.length)) % ids  # N L
    # 7 and 10 have no common divisor, so that every split has samples of all steps.
    fold = 7 * torch.arange(ids * ids) % 10
    splits = {
        "train": samples[fold < 8],
        "valid": samples[fold == 8],
        "test": samples[fold == 9],
    }

    class NatsPerToken(Metrics):
        """Weighted mean of the loss, from sums, so that it does not depend on the batch size."""

        def __init__(self) -> None:
            self.nats = 0.0
            self.weight = 0.0

        def update(
            self, clean: Clean, noised: Any, pred: Any, measured: Measured
        ) -> None:
            weights = measured.weights.double()
            self.nats += float((measured.values.double() * weights).sum())
            self.weight += float(weights.sum())

        def compute(self) -> dict[str, float]:
            return {"nats_per_token": self.nats / max(self.weight, 1e-9)}

    class Progressions(Task):
        def __init__(self) -> None:
            self.space = space

        def size(self, split: Split) -> int:
            """Return the number of samples."""
            return len(splits[split])

        def batch(self, split: Split, rows: Sequence[int]) -> Clean:
            """Return samples by index; the same indices always give the same samples."""
            return Clean.of(splits[split][list(rows)])

        def like(self, n: int, seed: int) -> Clean:
            """Return templates to sample from: here no position is known."""
            return Clean.of(torch.zeros(n, space.length, dtype=torch.int64))

        def metrics(self) -> NatsPerToken:
            """Return a new accumulator for one evaluation."""
            return NatsPerToken()

        def baselines(
            self, split: Split = "valid", samples: int | None = None
        ) -> dict[str, float]:
            """Return the cost of guessing, and the entropy of two uniform choices."""
            nats = math.log(ids)
            return {
                "nats_per_token/uniform": nats,
                "nats_per_token/entropy": 2 * nats / space.length,
            }

        def sample_metrics(self, samples: Tensor, like: Clean) -> dict[str, float]:
            """Return the share of samples that are progressions."""
            steps = samples.diff(dim=1) % ids
            regular = (steps == steps[:, :1]).all(1)
            return {"progressions": float(regular.sum()) / max(len(samples), 1)}

        def plots(self, samples: Tensor, like: Clean) -> Iterator[Picture]:
            """Yield each sample as a line of text."""
            for index, row in enumerate(samples.tolist()):
                yield Picture(
                    f"sample-{index:03d}", text=" ".join(map(str, row)) + "\n"
                )

    return Progressions()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleTask]
