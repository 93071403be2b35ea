"""Files of images that others made: what is accepted, and what is refused by name. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import unreadable

from ..prepared.arrays import load_npz, map_npy
from .facts import ImageFacts

if TYPE_CHECKING:
    from numpy import ndarray

__all__ = [
    "array_facts",
    "class_folders",
    "folder_problems",
    "image_files",
    "open_arrays",
    "read_image",
]

SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})
MAX_PIXELS = 1 << 26
"""Most pixels of a file, 8,192 x 8,192: a small file may declare any number."""
MAX_FILE = 1 << 28
"""Most bytes of an image file."""
NAMES = {"images": ("images", "x"), "labels": ("labels", "y")}
"""Names of the arrays of an .npz file."""


def class_folders(folder: Path) -> list[Path]:
    """Return the folders of the classes in the order of their names; Refused without any."""
    try:
        classes = [
            path
            for path in folder.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        ]
    except OSError as error:
        raise unreadable(folder, error) from None
    if not classes:
        raise Refused(f"{folder} has no folders of classes", code="no-samples")
    return sorted(classes)


def image_files(folder: Path) -> list[Path]:
    """Return the files of a class in the order of their names; hidden ones are ignored."""
    try:
        files = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise unreadable(folder, error) from None
    return sorted(files)


def folder_problems(folder: Path) -> Iterator[Problem]:
    """Yield that a folder has no classes, or that a file, the first one, is not an image."""
    try:
        classes = class_folders(folder)
    except Refused as refused:
        yield from refused.problems
        return
    for path in classes:
        files = image_files(path)
        if not files:
            yield Problem(f"{path} has no images", code="no-samples")
        for file in files:
            if file.suffix.lower() not in SUFFIXES or not file.is_file():
                # One message is enough: of a wrong folder every file is wrong.
                message = f"{file} is not a .png or .jpg file"
                yield Problem(message, code="unreadable-file")
                return


def read_image(path: Path, size: int, grey: bool) -> ndarray:
    """Return an image `H W C` of bytes, scaled and cropped to a square; Refused if it cannot be read."""
    import numpy as np
    from PIL import Image, ImageOps

    try:
        if path.stat().st_size > MAX_FILE:
            raise OSError(f"more than {MAX_FILE:,} bytes")
        # Pillow's other decoders are never run on foreign files.
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            # The header is read, the pixels are not.
            if image.width * image.height > MAX_PIXELS:
                raise OSError(f"{image.width} x {image.height} pixels are too many")
            # Phones store how an image is turned, and Pillow does not apply it by itself.
            pixels = ImageOps.exif_transpose(image)
            if pixels.mode.startswith("I"):
                # 16 bits of grey, which Pillow would cut off at 255.
                pixels = Image.fromarray((np.asarray(pixels) >> 8).astype(np.uint8))
            pixels = pixels.convert("L" if grey else "RGB")
            square = ImageOps.fit(pixels, (size, size), Image.Resampling.BICUBIC)
    # Of a damaged file Pillow raises almost anything, such as struct.error.
    except Exception as error:
        raise Refused(f"{path}: {error}", code="unreadable-file") from None
    values = np.asarray(square)
    return values[..., None] if grey else values


def open_arrays(path: Path) -> tuple[ndarray, ndarray | None]:
    """Return images and labels of a .npy or .npz file; objects are never unpickled.

    Raises:
        Refused: The file cannot be read or is too large, has other arrays, other values than
            numbers, or labels of another number.
    """
    labels = None
    if path.suffix == ".npy":
        images: ndarray | None = map_npy(path)
    elif path.suffix == ".npz":
        arrays = load_npz(path)
        images = _array(arrays, "images")
        labels = _array(arrays, "labels")
    else:
        raise Refused(f"{path}: not a .npy or .npz file", code="unreadable-file")
    if images is None:
        names = " or ".join(NAMES["images"])
        raise Refused(f"{path}: no array {names}", code="missing-array")
    _require_arrays(path, images, labels)
    return images, labels


def _array(arrays: Mapping[str, ndarray], kind: str) -> ndarray | None:
    """Return the array under one of the names of a kind; None if there is none."""
    for name in NAMES[kind]:
        if name in arrays:
            return arrays[name]
    return None


def _require_arrays(path: Path, images: ndarray, labels: ndarray | None) -> None:
    """Refuse arrays of other shapes or types."""
    reason = ""
    if images.ndim not in (3, 4) or 0 in images.shape or images.dtype.kind not in "fiu":
        reason = f"images of shape {images.shape} and type {images.dtype}"
    elif labels is not None and (
        labels.shape != images.shape[:1] or labels.dtype.kind not in "iu"
    ):
        reason = f"labels of shape {labels.shape} and type {labels.dtype}"
    # A label above the number of images is a mistake, and would size an embedding.
    elif labels is not None and (labels.min() < 0 or labels.max() >= len(labels)):
        reason = f"labels from {labels.min()} to {labels.max()}"
    if reason:
        raise Refused(f"{path}: {reason}", code="wrong-shape")


def array_facts(path: Path, layout: str) -> ImageFacts:
    """Return the facts of a file; labels without names have their numbers."""
    images, labels = open_arrays(path)
    rows, columns, channels = (*images.shape[1:], 1)[:3]
    if images.ndim == 4 and layout == "NCHW":
        channels, rows, columns = images.shape[1:]

    count = 0
    if labels is not None:
        count = int(labels.max()) + 1

    return ImageFacts(rows, columns, channels, tuple(map(str, range(count))))
