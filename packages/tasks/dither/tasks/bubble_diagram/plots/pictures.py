"""All pictures of samples, under the names of their files.

Letters: N samples, K samples of which the way is known, T states, L tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import pairwise
from math import ceil, hypot
from typing import TYPE_CHECKING, Final

import numpy as np
from jaxtyping import Int

from dither.registry.config.errors import Refused
from dither.registry.flow.protocols import Picture

from ..decoded_samples import decode_samples
from ..formats.jsonl import plan_line
from ..plans import Diagram, decode
from .animation import film_of, film_strip, to_animated_svg
from .diagram import draw_diagram, draw_gallery
from .floorplan import draw_floorplan
from .html_gallery import draw_html_gallery
from .svg import DASHES, Line, Page, Rectangle, Text, font_of, to_svg

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

__all__ = ["GRID_SAMPLES", "PAGE_SAMPLES", "paint", "sample_pictures", "to_gif", "to_png", "trajectory_pictures"]

GRID_SAMPLES: Final = 16
"""Samples in the grid."""

PAGE_SAMPLES: Final = 64
"""Samples on the page of HTML."""


def sample_pictures(samples: Int[np.ndarray, "N L"], rooms: int) -> Iterator[Picture]:
    """Yield the first sample as diagram and floor plan, many in a grid and on a page, all as lines of JSON.

    What is wrong with samples that are no diagrams is said in a text. Samples have `rooms` room slots.
    """
    diagrams: list[Diagram] = []
    wrong: list[str] = []
    for number, row in enumerate(samples):
        try:
            diagrams.append(decode(row, rooms))
        except Refused as refused:
            wrong += [f"sample {number}: {problem.message}" for problem in refused.problems]
    exhibits = list(decode_samples(samples[: PAGE_SAMPLES if diagrams else 0], rooms))
    shown = [exhibit.arrangement for exhibit in exhibits if exhibit.arrangement]
    if shown:
        yield _drawn("diagram", draw_diagram(shown[0].diagram, arrangement=shown[0]))
        yield _drawn("floorplan", draw_floorplan(shown[0]))
        grid = shown[:GRID_SAMPLES]
        page = draw_gallery([one.diagram for one in grid], arrangements=grid)
        title = f"{len(exhibits)} of {len(samples)} samples" if len(samples) > len(exhibits) else "Samples"
        yield Picture("gallery", png=to_png(page), svg=to_svg(page), html=draw_html_gallery(exhibits, title))
    if diagrams:
        yield Picture("diagrams", text="".join(plan_line(diagram) + "\n" for diagram in diagrams))
    if wrong:
        yield Picture("unreadable", text="".join(line + "\n" for line in wrong))


def trajectory_pictures(path: Int[np.ndarray, "T K L"], rooms: int) -> Iterator[Picture]:
    """Yield the way of samples from noise to diagrams, as it moves and in stages; nothing where none is a diagram."""
    kept = [exhibit for exhibit in decode_samples(path[-1], rooms) if exhibit.arrangement]
    shown = [exhibit.arrangement for exhibit in kept if exhibit.arrangement]
    if shown:
        path = path[:, [exhibit.number for exhibit in kept]]
        film = film_of(path, shown)
        strip = to_png(film_strip(path, shown))
        yield Picture("path", png=strip, svg=to_animated_svg(film), gif=to_gif(film.pages(), film.seconds))


def _drawn(name: str, page: Page) -> Picture:
    return Picture(name, png=to_png(page), svg=to_svg(page))


_FINER: Final = 2
"""Dots are painted so many times finer along each axis."""

_COLOURS: Final = 128
"""Colours of a GIF: one palette for all frames, so that a room does not change its colour between them."""


def to_png(page: Page, scale: float = 2.0) -> bytes:
    """Return the page as a PNG of `scale` dots per pixel."""
    written = BytesIO()
    paint(page, scale).save(written, format="PNG")
    return written.getvalue()


def to_gif(pages: Sequence[Page], seconds: Sequence[float], scale: float = 1.0) -> bytes:
    """Return pages of one size, one after the other and again from the start, each for so many seconds.

    Pages that look the same as the one before become one frame with it.
    """
    from PIL import Image

    frames = [paint(page, scale) for page in pages]
    some = [frames[0], frames[len(frames) // 2], frames[-1]]
    sheet = Image.new("RGB", (sum(frame.width for frame in some), frames[0].height))
    for place, frame in enumerate(some):
        sheet.paste(frame, (place * frame.width, 0))
    palette = sheet.quantize(_COLOURS)
    shown = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    written = BytesIO()
    times = [round(1000 * one) for one in seconds]
    shown[0].save(written, format="GIF", save_all=True, append_images=shown[1:], duration=times, loop=0)
    return written.getvalue()


def paint(page: Page, scale: float) -> Image:
    """Return the page as an image."""
    from PIL import Image, ImageDraw

    width, height = ceil(page.width * scale), ceil(page.height * scale)
    image = Image.new("RGB", (_FINER * width, _FINER * height), "#ffffff")
    canvas = ImageDraw.Draw(image)
    for shape in page.shapes:
        match shape:
            case Rectangle():
                _paint_rectangle(canvas, shape, _FINER * scale)
            case Line():
                _paint_line(canvas, shape, _FINER * scale)
            case Text():
                _paint_text(image, canvas, shape, _FINER * scale)
    return image.reduce(_FINER)


def _paint_rectangle(canvas: ImageDraw, shape: Rectangle, scale: float) -> None:
    """The line goes along the edge, half of it on either side, as in SVG."""
    half = shape.stroke_width / 2
    for grown, colour in ((half, shape.stroke), (-half, shape.fill))[0 if half else 1 :]:
        x0, y0 = shape.x - grown, shape.y - grown
        x1, y1 = shape.x + shape.width + grown, shape.y + shape.height + grown
        corners = (round(x0 * scale), round(y0 * scale), round(x1 * scale) - 1, round(y1 * scale) - 1)
        if corners[0] <= corners[2] and corners[1] <= corners[3]:
            canvas.rounded_rectangle(corners, max(0.0, shape.radius + grown) * scale, fill=colour)


def _paint_line(canvas: ImageDraw, shape: Line, scale: float) -> None:
    length = hypot(shape.x1 - shape.x0, shape.y1 - shape.y0)
    dash, gap = DASHES if shape.dashed else (length, 1.0)
    cuts = [0.0]
    while cuts[-1] < length:
        cuts += [min(cuts[-1] + dash, length), cuts[-1] + dash + gap]
    width = max(1, round(shape.width * scale))
    for start, stop in list(pairwise(cuts))[::2]:
        ends = [at / length for at in (start, stop)]
        points = [(shape.x0 + at * (shape.x1 - shape.x0), shape.y0 + at * (shape.y1 - shape.y0)) for at in ends]
        canvas.line([(x * scale - 0.5, y * scale - 0.5) for x, y in points], fill=shape.colour, width=width)


def _paint_text(image: Image, canvas: ImageDraw, text: Text, scale: float) -> None:
    from PIL import Image, ImageDraw

    font = font_of(max(1, round(text.size * scale)))
    x, y = text.x * scale, text.y * scale
    if not text.upright:
        canvas.text((x, y), text.text, fill=text.colour, font=font, anchor="lm" if text.left else "mm")
        return
    width, height = ceil(font.getlength(text.text)) + 2, ceil(1.5 * font.size)
    stencil = Image.new("L", (width, height))
    ImageDraw.Draw(stencil).text((width / 2, height / 2), text.text, fill=255, font=font, anchor="mm")
    turned = stencil.transpose(Image.Transpose.ROTATE_90)
    image.paste(text.colour, (round(x - turned.width / 2), round(y - turned.height / 2)), turned)
