"""A page of shapes, and its two forms: SVG text and PNG bytes. Lengths are in pixels, y grows downwards."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Line", "Page", "Rectangle", "Shape", "Text", "to_png", "to_svg"]

_FONT: Final = "DejaVu Sans, Verdana, Arial, sans-serif"
_WHITE: Final = "#ffffff"
_DASHES: Final = (3.0, 3.0)


@dataclass(frozen=True)
class Rectangle:
    """A box with rounded corners."""

    x: float
    y: float
    width: float
    height: float
    radius: float
    fill: str
    stroke: str
    stroke_width: float = 1.0


@dataclass(frozen=True)
class Line:
    """A straight line."""

    x0: float
    y0: float
    x1: float
    y1: float
    colour: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Text:
    """A line of text with its middle, or its left end, at a point; upright text reads from below."""

    x: float
    y: float
    text: str
    size: float
    colour: str
    upright: bool = False
    left: bool = False


Shape = Rectangle | Line | Text


@dataclass(frozen=True)
class Page:
    """Shapes on a white ground, the first at the bottom."""

    width: float
    height: float
    shapes: tuple[Shape, ...]


def to_svg(page: Page) -> str:
    """Return the page as an SVG document."""
    size = f'width="{page.width:g}" height="{page.height:g}" viewBox="0 0 {page.width:g} {page.height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}">'
    ground = f'<rect width="100%" height="100%" fill="{_WHITE}"/>'
    return "\n".join([head, ground, *map(_element, page.shapes), "</svg>", ""])


def _element(shape: Shape) -> str:
    match shape:
        case Rectangle():
            place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
            line = f'stroke="{shape.stroke}" stroke-width="{shape.stroke_width:g}"'
            return f'<rect {place} rx="{shape.radius:.1f}" fill="{shape.fill}" {line}/>'
        case Line():
            place = f'x1="{shape.x0:.1f}" y1="{shape.y0:.1f}" x2="{shape.x1:.1f}" y2="{shape.y1:.1f}"'
            dashes = f' stroke-dasharray="{_DASHES[0]:g} {_DASHES[1]:g}"' if shape.dashed else ""
            line = f'stroke="{shape.colour}" stroke-width="{shape.width:g}" stroke-linecap="round"'
            return f"<line {place} {line}{dashes}/>"
        case Text():
            return _text_element(shape)


def _text_element(text: Text) -> str:
    place = f'x="{text.x:.1f}" y="{text.y:.1f}" dominant-baseline="central"'
    turn = f' transform="rotate(-90 {text.x:.1f} {text.y:.1f})"' if text.upright else ""
    anchor = "" if text.left else ' text-anchor="middle"'
    look = f'font-size="{text.size:.1f}" fill="{text.colour}"'
    return f"<text {place} {look}{anchor}{turn}>{escape(text.text)}</text>"


def to_png(page: Page, scale: float = 2.0) -> bytes:
    """Return the page as a PNG of `scale` dots per pixel."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.family": "DejaVu Sans"}):
        figure = Figure((page.width / 72, page.height / 72), facecolor=_WHITE)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, page.width), ylim=(page.height, 0))
        axes.set_axis_off()
        for order, shape in enumerate(page.shapes):
            _paint(axes, shape, order)
        written = BytesIO()
        figure.savefig(written, format="png", dpi=72 * scale, metadata={"Software": None})
    return written.getvalue()


def _paint(axes: Axes, shape: Shape, order: int) -> None:
    """Put a shape on axes in which one unit is one point, so that widths and sizes carry over."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyBboxPatch

    match shape:
        case Rectangle():
            style = f"round,pad=0,rounding_size={shape.radius}"
            box = FancyBboxPatch((shape.x, shape.y), shape.width, shape.height, style, zorder=order)
            box.set(facecolor=shape.fill, edgecolor=shape.stroke, linewidth=shape.stroke_width)
            axes.add_patch(box)
        case Line():
            line = Line2D([shape.x0, shape.x1], [shape.y0, shape.y1], zorder=order)
            line.set(color=shape.colour, linewidth=shape.width, solid_capstyle="round", dash_capstyle="round")
            line.set_linestyle((0, [dash / shape.width for dash in _DASHES]) if shape.dashed else "solid")
            axes.add_line(line)
        case Text():
            text = axes.text(shape.x, shape.y, shape.text, fontsize=shape.size, color=shape.colour, zorder=order)
            text.set(ha="left" if shape.left else "center", va="center", rotation=90 if shape.upright else 0)
            text.set(rotation_mode="anchor", parse_math=False)
