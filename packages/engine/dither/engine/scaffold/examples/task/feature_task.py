"""A task over features: points on circles. Letters: B batch, L length, N samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field as Option

from dither.registry import FeatureSpace, Spec, hookimpl
from dither.registry.kinds import TaskSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Picture, Split, Task
    from dither.registry.contracts.records import Clean, Measured


class ExampleTask(TaskSpec):
    """Points that turn around a circle: x and y of each, from any angle, at any speed."""

    name = "example-task"
    length: int = Option(12, ge=3, le=1024)
    """Points of a sample."""
    samples: int = Option(1000, ge=20, le=1_000_000)
    """Samples, of which one in ten is for validation and one for testing."""

    def traits(self) -> frozenset[str]:
        """Promise that no sample is in two splits; the conformance kit checks it."""
        return frozenset({"disjoint-splits"})

    def space(self) -> FeatureSpace:
        """Return the shape of a sample. No torch here: incompatible components are rejected early."""
        # Gaussian noise requires columns of mean 0 and standard deviation 1.
        return FeatureSpace(self.length, 2, standardised=True)

    def build(self) -> Task:
        """Make the samples."""
        return circles(self.space(), self.samples)


def circles(space: FeatureSpace, count: int) -> Task:
    """Return the task: one sample in ten for validation, one for testing."""
    import torch

    from dither.registry.contracts.protocols import Metrics, Picture, Task
    from dither.registry.contracts.records import Clean

    generator = torch.Generator().manual_seed(0)
    first, speed = torch.rand(2, count, 1, generator=generator) * 2 * math.pi
    angles = first + speed / space.length * torch.arange(space.length)
    # The square root of 2 gives both columns a standard deviation of 1.
    samples = math.sqrt(2) * torch.stack([angles.cos(), angles.sin()], -1)  # N L 2
    fold = torch.arange(count) % 10
    splits = {
        "train": samples[fold < 8],
        "valid": samples[fold == 8],
        "test": samples[fold == 9],
    }

    class Errors(Metrics):
        """Mean squared error of x_0, from sums, so that it does not depend on the batch size."""

        def __init__(self) -> None:
            self.squares = 0.0
            self.values = 0

        def update(
            self, clean: Clean, noised: Any, pred: Any, measured: Measured
        ) -> None:
            errors = (pred.x0 - clean.x0)[noised.target_mask]
            self.squares += float(errors.double().square().sum())
            self.values += errors.numel()

        def compute(self) -> dict[str, float]:
            return {"x0_mse": self.squares / max(self.values, 1)}

    class Circles(Task):
        def __init__(self) -> None:
            self.space = space

        def size(self, split: Split) -> int:
            """Return the number of samples."""
            return len(splits[split])

        def batch(self, split: Split, rows: Sequence[int]) -> Clean:
            """Return samples by index; the same indices always give the same samples."""
            return Clean.of(splits[split][list(rows)])

        def like(self, n: int, seed: int) -> Clean:
            """Return templates to sample from: here no value is known."""
            return Clean.of(torch.zeros(n, space.length, space.width))

        def metrics(self) -> Errors:
            """Return a new accumulator for one evaluation."""
            return Errors()

        def baselines(
            self, split: Split = "valid", samples: int | None = None
        ) -> dict[str, float]:
            """Return the error of the mean."""
            return {"x0_mse/mean": float(splits[split][:samples].square().mean())}

        def sample_metrics(self, samples: Tensor, like: Clean) -> dict[str, float]:
            """Return the mean distance of points from the circle, as a share of its radius."""
            radius = samples.norm(dim=-1) / math.sqrt(2)
            return {"radius_error": float((radius - 1).abs().mean())}

        def plots(self, samples: Tensor, like: Clean) -> Iterator[Picture]:
            """Yield the points of each sample as text."""
            for index, points in enumerate(samples.tolist()):
                lines = [f"{x:.3f} {y:.3f}\n" for x, y in points]
                yield Picture(f"sample-{index:03d}", text="".join(lines))

    return Circles()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleTask]
