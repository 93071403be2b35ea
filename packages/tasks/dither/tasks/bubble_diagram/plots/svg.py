"""Pages of SVG elements, their SVG and PNG, and text measurement. Lengths are in pixels, y points down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Final

from ...child_process import ChildProcess, usable_cores

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

__all__ = ["Page", "line", "path", "rectangle", "text", "text_width", "to_pngs", "to_svg"]

_MEASURED: Final = 100
"""Font size at which text is measured."""

_RENDER: Final = """
import json, sys
from resvg_py import svg_to_bytes
images = [svg_to_bytes(svg_string=page, zoom=scale, font_files=[font], skip_system_fonts=True)
          for page, scale, font in json.load(sys.stdin)]
json.dump([bytes(image).hex() for image in images], sys.stdout)
"""


@dataclass(frozen=True)
class Page:
    """SVG elements on a white background, bottom to top; a PNG of it has `scale` dots per pixel."""

    width: float
    height: float
    shapes: tuple[str, ...]
    scale: float = 2.0


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
    border = f' stroke="{stroke}" stroke-width="{stroke_width:g}"' if stroke_width else ""
    position = (
        f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:.1f}"'
    )
    return _titled("rect", f'{position} fill="{fill}"{border}', title)


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
    style = (
        f'stroke="{colour}" stroke-width="{width:g}" stroke-linecap="round"'
        + ' stroke-dasharray="3 3"' * dashed
    )
    return _titled(
        "line", f'x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" {style}', title
    )


def path(
    commands: str,
    fill: str,
    stroke: str,
    stroke_width: float,
    title: str = "",
) -> str:
    """Return outlines and arcs in SVG's path language; browsers show `title` as a tooltip."""
    return _titled(
        "path",
        f'd="{commands}" fill="{fill}" stroke="{stroke}" stroke-width="{stroke_width:.2f}"',
        title,
    )


def text(
    x: float,
    y: float,
    words: str,
    size: float,
    colour: str,
    upright: bool = False,
    left: bool = False,
) -> str:
    """Return a line of text, centred or starting at a point; upright text is rotated by 90 degrees."""
    # A fixed length, so that it fits even in another font.
    position = f'x="{x:.1f}" y="{y:.1f}" dominant-baseline="central" textLength="{text_width(words, size):.1f}"'
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' * upright
    anchor = ' text-anchor="middle"' * (not left)
    style = f'font-size="{size:.1f}" fill="{colour}" lengthAdjust="spacingAndGlyphs"'
    return f"<text {position} {style}{anchor}{turn}>{escape(words)}</text>"


def to_svg(page: Page) -> str:
    """Return the page as an SVG document."""
    size = f'width="{page.width:g}" height="{page.height:g}" viewBox="0 0 {page.width:g} {page.height:g}"'
    font = "DejaVu Sans, Verdana, Arial, sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{font}">'
    return "\n".join(
        [head, '<rect width="100%" height="100%" fill="#ffffff"/>', *page.shapes, "</svg>\n"]
    )


def to_pngs(pages: Sequence[Page]) -> list[bytes]:
    """Render pages as PNG, each core a share of them: the renderer holds the GIL, so each share has its own process."""
    # Without system fonts the result is the same on every machine.
    jobs = [(to_svg(page), page.scale, _font_file()) for page in pages]
    cores = min(usable_cores(), len(jobs))
    children = [ChildProcess(_RENDER, jobs[first::cores]) for first in range(cores)]
    images = [b""] * len(jobs)
    for first, child in enumerate(children):
        images[first::cores] = map(bytes.fromhex, child.result())
    return images


def _titled(kind: str, attributes: str, title: str) -> str:
    return (
        f"<{kind} {attributes}><title>{escape(title)}</title></{kind}>"
        if title
        else f"<{kind} {attributes}/>"
    )


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
