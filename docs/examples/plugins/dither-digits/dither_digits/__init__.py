"""A task: handwritten digits of 8 x 8 pixels, 1,797 images that come with scikit-learn.

Letters: B batch, L pixels, N samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field as Option

from dither.registry import Condition, Field, Spec, TokenSpace, hookimpl
from dither.registry.kinds import TaskSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Picture, Split, Task
    from dither.registry.contracts.records import Clean, Measured

SIDE = 8
DIGITS = tuple("0123456789")


class DigitsTask(TaskSpec):
    """Handwritten digits, given which digit: 8 x 8 pixels of a few grey levels (UCI, 1998)."""

    name = "digits"
    levels: int = Option(5, ge=2, le=17)
    """Grey levels of a pixel; the images have 17."""

    def traits(self) -> frozenset[str]:
        """Promise that no sample is in two splits; the conformance kit checks it."""
        return frozenset({"disjoint-splits"})

    def space(self) -> TokenSpace:
        """Return one id per pixel, and the digit as a label."""
        pixels = Field("pixels", SIDE * SIDE, self.levels)
        return TokenSpace((pixels,), (Condition("digit", len(DIGITS), DIGITS),))

    def build(self) -> Task:
        """Read the images."""
        return digits(self.space(), self.levels)


def digits(space: TokenSpace, levels: int) -> Task:
    """Return the task: one image in ten for validation, one for testing."""
    import torch
    from sklearn.datasets import load_digits

    from dither.registry.contracts.protocols import Metrics, Picture, Task
    from dither.registry.contracts.records import Clean

    values, labels = load_digits(return_X_y=True)
    # 0..16 -> 0..levels-1
    images = (torch.tensor(values) / 16 * (levels - 1)).round().long()  # N L
    digit = torch.tensor(labels).long()  # N
    # From the pixels, so that equal images are in the same split.
    fold = (images * torch.arange(1, space.length + 1)).sum(1) % 10
    rows_of = {
        "train": (fold < 8).nonzero()[:, 0],
        "valid": (fold == 8).nonzero()[:, 0],
        "test": (fold == 9).nonzero()[:, 0],
    }

    class NatsPerPixel(Metrics):
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
            return {"nats_per_pixel": self.nats / max(self.weight, 1e-9)}

    class Digits(Task):
        def __init__(self) -> None:
            self.space = space

        def size(self, split: Split) -> int:
            """Return the number of images."""
            return len(rows_of[split])

        def batch(self, split: Split, rows: Sequence[int]) -> Clean:
            """Return images by index, with their digits."""
            index = rows_of[split][list(rows)]
            return Clean.of(images[index], digit=digit[index])

        def like(self, n: int, seed: int) -> Clean:
            """Return templates to sample from: the digits in turn, no pixel known."""
            blank = torch.zeros(n, space.length, dtype=torch.int64)
            return Clean.of(blank, digit=torch.arange(n) % len(DIGITS))

        def metrics(self) -> NatsPerPixel:
            """Return a new accumulator for one evaluation."""
            return NatsPerPixel()

        def baselines(
            self, split: Split = "valid", samples: int | None = None
        ) -> dict[str, float]:
            """Return the cost of guessing, and that of the frequencies of each pixel."""
            ids = torch.arange(levels)
            counts = (images[rows_of["train"], :, None] == ids).sum(0) + 1.0
            log_p = (counts / counts.sum(-1, keepdim=True)).log()  # L levels
            chosen = images[rows_of[split][:samples]]
            nats = -log_p.expand(len(chosen), -1, -1).gather(2, chosen[..., None])
            return {
                "nats_per_pixel/uniform": math.log(levels),
                "nats_per_pixel/frequencies": float(nats.mean()),
            }

        def sample_metrics(self, samples: Tensor, like: Clean) -> dict[str, float]:
            """Return the share of samples whose nearest training image is of the requested digit."""
            train = rows_of["train"]
            distances = torch.cdist(samples.double(), images[train].double())
            nearest = digit[train][distances.argmin(1)]
            agrees = nearest == like.cond["digit"]
            return {"as_requested": float(agrees.sum()) / max(len(samples), 1)}

        def plots(self, samples: Tensor, like: Clean) -> Iterator[Picture]:
            """Yield each sample as an SVG of its pixels."""
            for index, pixels in enumerate(samples.tolist()):
                yield Picture(f"sample-{index:03d}", svg=_drawing(pixels, levels))

    return Digits()


def _drawing(pixels: Sequence[int], levels: int) -> str:
    """Return an image as SVG, dark on white."""
    squares = []
    for position, level in enumerate(pixels):
        y, x = divmod(position, SIDE)
        darkness = level / (levels - 1)
        square = f'<rect x="{x}" y="{y}" width="1" height="1" fill-opacity="{darkness:.2f}"/>'
        squares.append(square)
    size = f'width="160" height="160" viewBox="0 0 {SIDE} {SIDE}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(squares)}</svg>\n'


@hookimpl
def register_components() -> list[type[Spec]]:
    """Register the task."""
    return [DigitsTask]
