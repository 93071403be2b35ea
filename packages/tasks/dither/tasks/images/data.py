"""Images in memory, by split. Letters: N images, H rows, W columns, C channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped
from numpy import ndarray

from dither.registry.config.errors import Refused

from .files import class_folders, image_files, open_arrays, read_image

__all__ = ["Images", "read_arrays", "read_digits", "read_folder"]

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Images:
    """Images and their labels by split, in the units of the data.

    Attributes:
        name: The source, for messages.
        images: Values `N H W C`.
        labels: Numbers of classes; zeros if there are none.
        classes: Names of the classes; empty without labels.
        pixels: Range of the values if they are brightnesses to be shown; None for latents.
    """

    name: str
    images: Mapping[str, Shaped[ndarray, "N H W C"]]
    labels: Mapping[str, Int64[ndarray, " N"]]
    classes: tuple[str, ...]
    pixels: tuple[float, float] | None


def read_digits(**division: Any) -> Images:
    """Return the digits of scikit-learn, whose brightness is 0 to 16."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.images.astype(np.float32)[..., None]
    classes = tuple("0123456789")
    return _split("digits", images, digits.target, classes, (0.0, 16.0), **division)


def read_folder(folder: Path, *, size: int, grey: bool, **division: Any) -> Images:
    """Return the images of a folder of classes."""
    images = []
    labels = []
    folders = class_folders(folder)
    for number, path in enumerate(folders):
        for file in image_files(path):
            images.append(read_image(file, size, grey))
            labels.append(number)
    return _split(
        str(folder),
        np.stack(images),
        np.array(labels),
        tuple(path.name for path in folders),
        (0.0, 255.0),
        **division,
    )


def read_arrays(
    path: Path, layout: str, classes: tuple[str, ...], **division: Any
) -> Images:
    """Return the images or latents of a .npy or .npz file; bytes are brightnesses."""
    images, labels = open_arrays(path)
    # Without channels, as of MNIST, images get an axis of one.
    if images.ndim == 3:
        images = images[..., None]
    elif layout == "NCHW":
        images = np.moveaxis(images, 1, -1)
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise Refused(f"{path}: images contain NaN or inf", code="non-finite")
    # Values of latents have no range of their own.
    pixels = None
    if images.dtype == np.uint8:
        pixels = (0.0, 255.0)

    return _split(str(path), images, labels, classes, pixels, **division)


def _split(
    name: str,
    images: Shaped[ndarray, "N H W C"],
    labels: Shaped[ndarray, " N"] | None,
    classes: tuple[str, ...],
    pixels: tuple[float, float] | None,
    *,
    held: float,
    seed: int,
) -> Images:
    """Divide images at random into training, validation and test split."""
    count = round(held * len(images))
    if count < 1 or len(images) - 2 * count < 1:
        message = f"{name}: {len(images)} images are too few for three splits"
        raise Refused(message, code="no-samples")
    if labels is None:
        labels = np.zeros(len(images), np.int64)
    # The order depends on the seed and the number of images only, so runs share their splits.
    order = np.random.default_rng(seed).permutation(len(images))
    bounds = (len(images) - 2 * count, len(images) - count)
    parts = dict(zip(SPLITS, np.split(order, bounds), strict=True))
    return Images(
        name,
        {split: images[rows] for split, rows in parts.items()},
        {split: labels[rows].astype(np.int64) for split, rows in parts.items()},
        classes,
        pixels,
    )
