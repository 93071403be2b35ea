"""Pages of shapes, their SVG text, and text measurement. Lengths are in pixels, y points down."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

__all__ = [
    "Line",
    "Page",
    "Rectangle",
    "Shape",
    "Text",
    "elements",
    "fit_text",
    "font_file",
    "svg_head",
    "text_width",
    "to_svg",
]

DASHES: Final = (3.0, 3.0)
"""Length of a dash and of the gap after it."""

_FONT: Final = "DejaVu Sans, Verdana, Arial, sans-serif"
_WHITE: Final = "#ffffff"
_UNPRINTABLE: Final = re.compile("[^\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot represent, and control characters."""


@dataclass(frozen=True)
class Rectangle:
    """A rectangle with rounded corners; browsers show `title` as a tooltip."""

    x: float
    y: float
    width: float
    height: float
    radius: float
    fill: str
    stroke: str
    stroke_width: float = 1.0
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A straight line; browsers show `title` as a tooltip."""

    x0: float
    y0: float
    x1: float
    y1: float
    colour: str
    width: float = 1.0
    dashed: bool = False
    title: str = ""


@dataclass(frozen=True)
class Text:
    """A line of text, centred or starting at a point; upright text is rotated by 90 degrees."""

    x: float
    y: float
    text: str
    size: float
    colour: str
    upright: bool = False
    left: bool = False

    @property
    def width(self) -> float:
        """Width of the text."""
        return text_width(self.text, self.size)


Shape = Rectangle | Line | Text


@dataclass(frozen=True)
class Page:
    """Shapes on a white background, bottom to top."""

    width: float
    height: float
    shapes: tuple[Shape, ...]


def to_svg(page: Page) -> str:
    """Return the page as an SVG document."""
    return "\n".join([svg_head(page.width, page.height), *elements(page.shapes), "</svg>", ""])


def svg_head(width: float, height: float) -> str:
    """Return the start of an SVG document with a white background."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}">'
    return f'{head}\n<rect width="100%" height="100%" fill="{_WHITE}"/>'


def elements(shapes: Iterable[Shape]) -> list[str]:
    """Return the SVG element of each shape."""
    return [_element(shape) for shape in shapes]


def _element(shape: Shape) -> str:
    match shape:
        case Rectangle():
            position = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
            line = f' stroke="{shape.stroke}" stroke-width="{shape.stroke_width:g}"' if shape.stroke_width else ""
            return _titled("rect", f'{position} rx="{shape.radius:.1f}" fill="{shape.fill}"{line}', shape.title)
        case Line():
            position = f'x1="{shape.x0:.1f}" y1="{shape.y0:.1f}" x2="{shape.x1:.1f}" y2="{shape.y1:.1f}"'
            dashes = f' stroke-dasharray="{DASHES[0]:g} {DASHES[1]:g}"' if shape.dashed else ""
            style = f'stroke="{shape.colour}" stroke-width="{shape.width:g}" stroke-linecap="round"{dashes}'
            return _titled("line", f"{position} {style}", shape.title)
        case Text():
            return _text_element(shape)


def _titled(kind: str, attributes: str, title: str) -> str:
    return f"<{kind} {attributes}><title>{_plain(title)}</title></{kind}>" if title else f"<{kind} {attributes}/>"


def _text_element(text: Text) -> str:
    """Text with a fixed length, so that it fits even in another font."""
    position = f'x="{text.x:.1f}" y="{text.y:.1f}" dominant-baseline="central" textLength="{text.width:.1f}"'
    rotation = f' transform="rotate(-90 {text.x:.1f} {text.y:.1f})"' if text.upright else ""
    anchor = "" if text.left else ' text-anchor="middle"'
    style = f'font-size="{text.size:.1f}" fill="{text.colour}" lengthAdjust="spacingAndGlyphs"'
    return f"<text {position} {style}{anchor}{rotation}>{_plain(text.text)}</text>"


def _plain(text: str) -> str:
    return escape(_UNPRINTABLE.sub("\ufffd", text))


_MEASURED: Final = 100
"""Font size at which text is measured."""


@lru_cache(maxsize=1)
def font_file() -> str:
    """Return the path of DejaVu Sans, which is part of matplotlib."""
    import matplotlib as mpl

    return str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


@lru_cache(maxsize=1)
def _font() -> FreeTypeFont:
    from PIL import ImageFont

    return ImageFont.truetype(font_file(), _MEASURED, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Return the width of a line of text."""
    return float(_font().getlength(text)) * size / _MEASURED


def fit_text(text: str, size: float, width: float) -> str:
    """Return a text truncated to a width with an ellipsis."""
    if text_width(text, size) <= width:
        return text
    keep = len(text)
    while keep and text_width(text[:keep].rstrip() + "…", size) > width:
        keep -= 1
    return text[:keep].rstrip() + "…"
