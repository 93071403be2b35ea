"""How wide text is: in the pictures, and in the SVG that tells the browser so. One typeface, DejaVu Sans."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

__all__ = ["fit_text", "font_of", "text_width"]

_MEASURED: Final = 100


@lru_cache(maxsize=64)
def font_of(size: int) -> FreeTypeFont:
    """Return the typeface in a size in pixels; matplotlib brings it along."""
    import matplotlib as mpl
    from PIL import ImageFont

    file = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(file), size, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Return the width of a line of text."""
    return float(font_of(_MEASURED).getlength(text)) * size / _MEASURED


def fit_text(text: str, size: float, width: float) -> str:
    """Return as much of a text as fits into a width, with dots where it was cut."""
    if text_width(text, size) <= width:
        return text
    keep = len(text)
    while keep and text_width(text[:keep].rstrip() + "…", size) > width:
        keep -= 1
    return text[:keep].rstrip() + "…"
