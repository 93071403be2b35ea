"""Pages of SVG elements, their SVG and PNG, and text measurement. Lengths are in pixels, y down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from ...child_process import map_in_processes, usable_cores

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

_MEASURED = 100
"""Font size at which text is measured."""

_RENDER = """
import json, sys
from resvg_py import svg_to_bytes
pages, font = json.load(sys.stdin)
options = {"font_files": [font], "skip_system_fonts": True}
images = [svg_to_bytes(svg_string=page, zoom=scale, **options) for page, scale in pages]
json.dump([bytes(image).hex() for image in images], sys.stdout)
"""


@dataclass(frozen=True)
class Page:
    """SVG elements on a white background, bottom to top; a PNG of it has `scale` dots per pixel."""

    width: float
    height: float
    shapes: tuple[str, ...]
    scale: float = 2.0


def to_svg(page: Page) -> str:
    """Return the page as an SVG document."""
    width = f"{page.width:g}"
    height = f"{page.height:g}"
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    font = "DejaVu Sans, Verdana, Arial, sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{font}">'
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, background, *page.shapes, "</svg>\n"])


def to_pngs(pages: Sequence[Page]) -> list[bytes]:
    """Render pages as PNG, each core a share of them.

    The renderer holds the GIL, so each share has its own process: of 6.3 s of `dither sample` of 24
    diagrams it takes 2.4 s on one core.
    """
    # Without system fonts the result is the same on every machine.
    font = _font_file()
    sources = [(to_svg(page), page.scale) for page in pages]
    cores = min(usable_cores(), len(pages))
    shares = [(sources[first::cores], font) for first in range(cores)]
    images = [b""] * len(pages)
    for first, rendered in enumerate(map_in_processes(_RENDER, shares)):
        # JSON has no bytes: images come as hexadecimal digits.
        images[first::cores] = map(bytes.fromhex, rendered)
    return images


def rectangle(
    x: float,
    y: float,
    width: float,
    height: float,
    radius: float,
    fill: str,
    stroke: str,
    stroke_width: float = 1.0,
    title: str = "",
) -> str:
    """Return a rectangle with rounded corners; browsers show `title` as a tooltip."""
    corner = f'x="{x:.1f}" y="{y:.1f}"'
    size = f'width="{width:.1f}" height="{height:.1f}" rx="{radius:.1f}"'
    attributes = f'{corner} {size} fill="{fill}"'
    if stroke_width:
        attributes += f' stroke="{stroke}" stroke-width="{stroke_width:g}"'
    return _titled("rect", attributes, title)


def line(
    x0: float,
    y0: float,
    x1: float,
    y1: float,
    colour: str,
    width: float = 1.0,
    *,
    dashed: bool = False,
    title: str = "",
) -> str:
    """Return a straight line; browsers show `title` as a tooltip."""
    ends = f'x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"'
    style = f'stroke="{colour}" stroke-width="{width:g}" stroke-linecap="round"'
    if dashed:
        style += ' stroke-dasharray="3 3"'
    return _titled("line", f"{ends} {style}", title)


def path(
    commands: str,
    fill: str,
    stroke: str,
    stroke_width: float,
    title: str = "",
) -> str:
    """Return outlines and arcs in SVG's path language; browsers show `title` as a tooltip."""
    style = f'fill="{fill}" stroke="{stroke}" stroke-width="{stroke_width:.2f}"'
    return _titled("path", f'd="{commands}" {style}', title)


def text(
    x: float,
    y: float,
    words: str,
    size: float,
    colour: str,
    upright: bool = False,
    left: bool = False,
) -> str:
    """Return a line of text, centred at a point or starting there; upright text is rotated."""
    position = f'x="{x:.1f}" y="{y:.1f}" dominant-baseline="central"'
    style = f'font-size="{size:.1f}" fill="{colour}" lengthAdjust="spacingAndGlyphs"'
    if not left:
        style += ' text-anchor="middle"'
    if upright:
        style += f' transform="rotate(-90 {x:.1f} {y:.1f})"'
    # A fixed length, so that it fits even in another font.
    length = f'textLength="{text_width(words, size):.1f}"'
    return f"<text {position} {length} {style}>{escape(words)}</text>"


def _titled(
    kind: str,
    attributes: str,
    title: str,
) -> str:
    if not title:
        return f"<{kind} {attributes}/>"
    return f"<{kind} {attributes}><title>{escape(title)}</title></{kind}>"


@lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Return the width of a line of text."""
    return float(_font().getlength(text)) * size / _MEASURED


@lru_cache(maxsize=1)
def _font() -> FreeTypeFont:
    from PIL import ImageFont

    # Raqm, where it is installed, would measure other widths.
    return ImageFont.truetype(
        _font_file(), _MEASURED, layout_engine=ImageFont.Layout.BASIC
    )


@lru_cache(maxsize=1)
def _font_file() -> str:
    """Return the path of DejaVu Sans, which is part of matplotlib."""
    import matplotlib as mpl

    return str(FilePath(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
