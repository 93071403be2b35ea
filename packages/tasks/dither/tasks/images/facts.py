"""Facts of a source of images, known before it is read. Read without torch."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ImageFacts"]


class ImageFacts(NamedTuple):
    """Size of an image, its channels, and the names of the classes."""

    rows: int
    columns: int
    channels: int
    classes: tuple[str, ...]
