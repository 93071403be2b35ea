"""The task images: batches, metrics, pictures and exports.

Letters: B batch, N samples, L pixels, C channels, H rows, W columns, D values of an image.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from dither.registry.contracts.protocols import Metrics, Picture, Split, Task
from dither.registry.contracts.records import Clean, Measured, Noised
from dither.registry.contracts.spaces import FeatureSpace

from ..feature_distances import FeatureExtractor, extract_features
from ..row_numbers import row_numbers
from .data import Images
from .metrics import MAX_IMAGES, Reference, nearest

__all__ = ["ImageTask"]

_Samples = Float[Tensor, "N L C"]

SHOWN = 10
"""Rows of the grid of samples, and columns where there are no classes."""
SIDE = 48
"""Pixels that a small image is enlarged to in pictures, about."""
BORDER = 2


class ImageTask(Task):
    """Images of one size with a label; labels of samples alternate.

    See `specs.Images` for the options.
    """

    def __init__(
        self,
        images: Images,
        space: FeatureSpace,
        *,
        scale: Literal["standardise", "range"],
        flip: bool,
        features: Literal["classifier", "pixels"] | FeatureExtractor,
    ) -> None:
        assert space.grid is not None
        self.images = images
        self.space: FeatureSpace = space
        self.shape = (*space.grid, space.width)
        self.flip = flip
        self.features: Literal["classifier", "pixels"] | FeatureExtractor = features
        self.shift, self.factor = _scaling(images.images["train"], scale)

    @property
    def bin_widths(self) -> Float[Tensor, " C"] | None:
        """Of brightnesses, which are whole numbers; latents are continuous."""
        if self.images.pixels is None:
            return None
        return torch.from_numpy(1 / self.factor)

    def size(self, split: Split) -> int:
        count = len(self.images.images[split])

        if self._flipped(split):
            return 2 * count
        return count

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        numbers = row_numbers(rows, self.size(split))
        # Mirror images follow the images.
        images = self.images.images[split]
        mirrored = numbers >= len(images)
        sources = numbers % len(images)
        values = self.scaled(images[sources])
        values[mirrored] = values[mirrored, :, ::-1]
        labels = self.images.labels[split][sources]
        return self._clean(values, labels)

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` templates without known values, with the classes in turn."""
        # Every class equally often, so that metrics by class have as many samples.
        values = np.zeros((n, *self.shape), np.float32)
        return self._clean(values, np.arange(n) % max(len(self.images.classes), 1))

    def metrics(self) -> SquaredErrors:
        """Return an accumulator of the squared error of the predicted clean image."""
        return SquaredErrors()

    def baselines(
        self, split: Split = "valid", samples: int | None = None
    ) -> dict[str, float]:
        """Return the error of the mean image, and metrics of training images in place of samples."""
        mean = self.scaled(self.images.images["train"]).mean(0)
        error = (self.scaled(self.images.images[split]) - mean) ** 2
        count = samples or len(self.images.images["valid"])
        labels = np.arange(count) % max(len(self.images.classes), 1)
        floor = self.reference.floor(labels)
        return {
            "squared_error/mean image": float(error.mean()),
            **{f"sample {name}/floor": value for name, value in floor.items()},
        }

    def sample_metrics(self, samples: _Samples, like: Clean) -> dict[str, float]:
        """Return distances of samples from validation images, and accuracies; see `Reference`.

        Of samples as `decode` returns them, in which brightnesses are whole numbers.
        """
        values = self.scaled(self.decode(samples, like))
        return self.reference.metrics(
            values.reshape(len(values), -1), self._labels(like)
        )

    def decode(self, samples: _Samples, like: Clean) -> Float[ndarray, "N H W C"]:
        """Return samples in the units of the data; brightnesses are whole numbers in their range."""
        values = self._unscaled(samples.float().cpu().numpy())
        if self.images.pixels is None:
            return values
        return values.clip(*self.images.pixels).round()

    def plots(self, samples: _Samples, like: Clean) -> Iterator[Picture]:
        """Yield a grid of samples, a column per class, and samples next to training images."""
        if not len(samples):
            return
        pixels = self.pixels(samples)
        grid = self._grid(pixels, like)
        yield Picture("samples", png=_png(grid))

        train = self.images.images["train"][:MAX_IMAGES]
        compared = self.scaled(train).reshape(len(train), -1)
        first = samples[: 2 * SHOWN].float().cpu().flatten(1).numpy()
        closest = self._shown(train[nearest(first, compared)])
        count = len(closest)
        pairs = np.concatenate([pixels[:count], closest])
        yield Picture("nearest", png=_png(_tiles(pairs, count)))

    def trajectory_plots(
        self, path: Float[Tensor, "T N L C"], like: Clean
    ) -> Iterator[Picture]:
        """Yield an animation of the states of the sampler."""
        # About 40 frames, the last one longer.
        stride = max(len(path) // 40, 1)
        steps = [*range(0, len(path), stride), len(path) - 1]
        # A palette of 256 colours for each frame, all that GIF has.
        frames = [
            Image.fromarray(self._grid(self.pixels(path[step]), like)).convert("P")
            for step in steps
        ]
        out = io.BytesIO()
        durations = [80] * (len(frames) - 1) + [1500]
        frames[0].save(
            out,
            "GIF",
            save_all=True,
            append_images=frames[1:],
            duration=durations,
            loop=0,
        )
        yield Picture("trajectory", gif=out.getvalue())

    def export(
        self, samples: _Samples, like: Clean, form: str, folder: Path
    ) -> tuple[list[Path], list[str]]:
        """Write samples as PNG files by class, or as arrays."""
        labels = self._labels(like)
        folder.mkdir(parents=True, exist_ok=True)
        if form == "npz":
            path = folder / "samples.npz"
            np.savez_compressed(path, images=self.decode(samples, like), labels=labels)
            return [path], []
        paths = []
        for number, (pixels, label) in enumerate(
            zip(self.pixels(samples), labels, strict=True)
        ):
            # The number, for the name of a class may be that of any folder.
            path = folder / f"{max(label, 0):03d}" / f"{number:05d}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(pixels).save(path)
            paths.append(path)
        return paths, []

    @cached_property
    def reference(self) -> Reference:
        """The classifier and the features of held-out images, trained when first used."""
        values = {}
        for split, images in self.images.images.items():
            values[split] = self.scaled(images).reshape(len(images), -1)
        features = self.features
        if not isinstance(features, str):
            features = partial(self._extract, features)
        return Reference(
            values, dict(self.images.labels), self.images.classes, features
        )

    def _extract(
        self, extractor: FeatureExtractor, values: Float[ndarray, "N D"]
    ) -> Float[ndarray, "N F"]:
        """Return features of scaled images by the function of a component."""
        images = self._unscaled(values)
        if self.images.pixels is not None:
            low, high = self.images.pixels
            images = (images - low) / (high - low)
        return extract_features(extractor, images)

    def scaled(self, images: Any) -> Float[ndarray, "N H W C"]:
        """Return images in the units of samples."""
        return (images.astype(np.float32) - self.shift) / self.factor

    def _unscaled(self, values: Float[ndarray, "N ..."]) -> Float[ndarray, "N H W C"]:
        """Return values of samples in the units of the data."""
        return values.reshape(-1, *self.shape) * self.factor + self.shift

    def pixels(self, samples: _Samples) -> UInt8[ndarray, "N H W 3"]:
        """Return samples as colours; of latents the first three channels."""
        return self._shown(self._unscaled(samples.float().cpu().numpy()))

    def _shown(self, values: Any) -> UInt8[ndarray, "N H W 3"]:
        values = values.astype(np.float32)
        # The largest and smallest value of latents are the ends of the scale of this picture.
        low, high = self.images.pixels or (values.min(), values.max())
        share = (values - low) / max(high - low, 1e-6)
        colours = (255 * share.clip(0, 1)).round().astype(np.uint8)
        # One channel is grey, of two or four the first counts alone or the last not at all.
        channels = [0, 0, 0]
        if self.shape[-1] >= 3:
            channels = [0, 1, 2]

        return colours[..., channels]

    def _grid(
        self, pixels: UInt8[ndarray, "N H W 3"], like: Clean
    ) -> UInt8[ndarray, "Y X 3"]:
        """Return the first samples of each class, one column per class."""
        classes = len(self.images.classes)
        labels = self._labels(like)
        if not 1 < classes <= 2 * SHOWN or (labels < 0).any():
            return _tiles(pixels[: SHOWN * SHOWN], SHOWN)
        used = np.unique(labels)
        columns = [pixels[labels == label][:SHOWN] for label in used]
        height = min(map(len, columns))
        rows = np.stack([column[:height] for column in columns], 1)
        return _tiles(rows.reshape(-1, *pixels.shape[1:]), len(used))

    def _labels(self, like: Clean) -> Int64[ndarray, " N"]:
        """Return the labels of templates; -1 without a class."""
        if "label" not in like.cond:
            return np.full(len(like.x0), -1)
        return like.cond["label"].cpu().numpy()

    def _clean(
        self, values: Float[ndarray, "B H W C"], labels: Int64[ndarray, " B"]
    ) -> Clean:
        x0 = torch.from_numpy(np.ascontiguousarray(values)).flatten(1, 2)
        cond = {}
        if self.images.classes:
            cond["label"] = torch.from_numpy(labels)
        return Clean.of(x0, **cond)

    def _flipped(self, split: Split) -> bool:
        return self.flip and split == "train"


class SquaredErrors(Metrics):
    """Mean squared error of the predicted clean image over all noise levels."""

    def __init__(self) -> None:
        self.error_sum = 0.0
        self.count = 0

    def update(
        self, clean: Clean, noised: Noised, pred: Any, measured: Measured
    ) -> None:
        # Not a product with the mask, which NaN outside of it would survive.
        error = torch.where(noised.target_mask, pred.x0 - clean.x0, 0.0)
        self.error_sum += float(error.double().square().sum())
        self.count += int(noised.target_mask.sum())

    def compute(self) -> dict[str, float]:
        return {"squared_error": self.error_sum / max(self.count, 1)}


def _scaling(
    train: Any, scale: Literal["standardise", "range"]
) -> tuple[Float[ndarray, " C"], Float[ndarray, " C"]]:
    """Return shift and factor of each channel: data = sample factor + shift."""
    values = train.astype(np.float32).reshape(-1, train.shape[-1])
    if scale == "range":
        low = values.min()
        high = values.max()
        shift = np.full(values.shape[1], (low + high) / 2)
        factor = np.full(values.shape[1], max((high - low) / 2, 1e-6))
    else:
        shift = values.mean(0, dtype=np.float64)
        # A constant channel must not be divided by 0.
        factor = values.std(0, dtype=np.float64).clip(1e-6)
    return shift.astype(np.float32), factor.astype(np.float32)


def _tiles(pixels: UInt8[ndarray, "N H W 3"], columns: int) -> UInt8[ndarray, "Y X 3"]:
    """Return images side by side, small ones enlarged."""
    largest = max(pixels.shape[1:3])
    enlarge = max(SIDE // largest, 1)
    pixels = pixels.repeat(enlarge, axis=1).repeat(enlarge, axis=2)

    # White borders, and white images that fill the last row
    missing = -len(pixels) % columns
    border = (BORDER, BORDER)
    padding = ((0, missing), border, border, (0, 0))
    tiles = np.pad(pixels, padding, constant_values=255)

    # Images of a row, then their lines of pixels, become lines of images
    _, height, width, _ = tiles.shape
    rows = tiles.reshape(-1, columns, height, width, 3)
    lines = rows.swapaxes(1, 2)
    return lines.reshape(-1, columns * width, 3)


def _png(pixels: UInt8[ndarray, "Y X 3"]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
