"""Pages of shapes, their SVG and PNG, and text measurement. Lengths are in pixels, y points down."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

__all__ = ["Line", "Page", "Path", "Rectangle", "Shape", "Text", "text_width", "to_png", "to_svg"]

_MEASURED: Final = 100
"""Font size at which text is measured."""


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
class Path:
    """Outlines and arcs in SVG's path language; browsers show `title` as a tooltip."""

    commands: str
    fill: str
    stroke: str
    stroke_width: float
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


Shape = Rectangle | Line | Path | Text


@dataclass(frozen=True)
class Page:
    """Shapes on a white background, bottom to top."""

    width: float
    height: float
    shapes: tuple[Shape, ...]


def to_svg(page: Page) -> str:
    """Return the page as an SVG document."""
    size = f'width="{page.width:g}" height="{page.height:g}" viewBox="0 0 {page.width:g} {page.height:g}"'
    font = "DejaVu Sans, Verdana, Arial, sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{font}">'
    return "\n".join(
        [head, '<rect width="100%" height="100%" fill="#ffffff"/>', *map(_element, page.shapes), "</svg>\n"]
    )


def to_png(page: Page, scale: float = 2.0) -> bytes:
    """Render a page as PNG with `scale` dots per pixel."""
    from resvg_py import svg_to_bytes

    # Without system fonts the result is the same on every machine.
    return bytes(svg_to_bytes(svg_string=to_svg(page), zoom=scale, font_files=[_font_file()], skip_system_fonts=True))


def _element(shape: Shape) -> str:
    match shape:
        case Rectangle():
            position = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
            line = f' stroke="{shape.stroke}" stroke-width="{shape.stroke_width:g}"' if shape.stroke_width else ""
            return _titled("rect", f'{position} rx="{shape.radius:.1f}" fill="{shape.fill}"{line}', shape.title)
        case Line():
            position = f'x1="{shape.x0:.1f}" y1="{shape.y0:.1f}" x2="{shape.x1:.1f}" y2="{shape.y1:.1f}"'
            dashes = ' stroke-dasharray="3 3"' if shape.dashed else ""
            style = f'stroke="{shape.colour}" stroke-width="{shape.width:g}" stroke-linecap="round"{dashes}'
            return _titled("line", f"{position} {style}", shape.title)
        case Path():
            style = f'fill="{shape.fill}" stroke="{shape.stroke}" stroke-width="{shape.stroke_width:.2f}"'
            return _titled("path", f'd="{shape.commands}" {style}', shape.title)
        case Text():  # a fixed length, so that it fits even in another font
            length = text_width(shape.text, shape.size)
            position = f'x="{shape.x:.1f}" y="{shape.y:.1f}" dominant-baseline="central" textLength="{length:.1f}"'
            turn = f' transform="rotate(-90 {shape.x:.1f} {shape.y:.1f})"' if shape.upright else ""
            anchor = "" if shape.left else ' text-anchor="middle"'
            style = f'font-size="{shape.size:.1f}" fill="{shape.colour}" lengthAdjust="spacingAndGlyphs"'
            return f"<text {position} {style}{anchor}{turn}>{escape(shape.text)}</text>"


def _titled(kind: str, attributes: str, title: str) -> str:
    return f"<{kind} {attributes}><title>{escape(title)}</title></{kind}>" if title else f"<{kind} {attributes}/>"


@lru_cache(maxsize=1)
def _font_file() -> str:
    """Return the path of DejaVu Sans, which is part of matplotlib."""
    import matplotlib as mpl

    return str(FilePath(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


@lru_cache(maxsize=1)
def _font() -> FreeTypeFont:
    from PIL import ImageFont

    return ImageFont.truetype(_font_file(), _MEASURED, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Return the width of a line of text."""
    return float(_font().getlength(text)) * size / _MEASURED
