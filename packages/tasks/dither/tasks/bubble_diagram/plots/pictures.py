"""All pictures of samples and sampling trajectories, and their PNG and GIF files.

Letters: N samples, K samples with a known trajectory, T states, L tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Final

import numpy as np
from jaxtyping import Int

from dither.registry.flow.protocols import Picture

from ..decoded_samples import decode_samples, read_samples
from ..formats.jsonl import plan_line
from .animation import animate, draw_stages, to_animated_svg
from .diagram import draw_diagram, draw_gallery
from .floorplan import draw_floorplan
from .html_gallery import draw_html_gallery
from .svg import Page, font_file, to_svg

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["GRID_SAMPLES", "PAGE_SAMPLES", "sample_pictures", "to_gif", "to_png", "trajectory_pictures"]

GRID_SAMPLES: Final = 16
"""Samples in the grid."""

PAGE_SAMPLES: Final = 64
"""Samples on the HTML page."""

_COLOURS: Final = 128
"""Colours of a GIF; one palette for all frames, so that colours do not change between frames."""


def sample_pictures(samples: Int[np.ndarray, "N L"], rooms: int) -> Iterator[Picture]:
    """Yield the first sample as diagram and floor plan, a grid, an HTML page, all samples as JSON lines, and errors.

    Args:
        samples: Tokens.
        rooms: Room slots.
    """
    decoded = read_samples(samples, rooms)
    diagrams = [diagram for diagram, _ in decoded if diagram]
    page_samples = list(decode_samples(samples[: PAGE_SAMPLES if diagrams else 0], rooms))
    placements = [sample.placement for sample in page_samples if sample.placement]
    if placements:
        yield _picture("diagram", draw_diagram(placements[0].diagram, placement=placements[0]))
        yield _picture("floorplan", draw_floorplan(placements[0]))
        grid = placements[:GRID_SAMPLES]
        page = draw_gallery([placement.diagram for placement in grid], placements=grid)
        shown, total = len(page_samples), len(samples)
        title = f"{shown} of {total} samples" if total > shown else "Samples"
        yield Picture("gallery", png=to_png(page), svg=to_svg(page), html=draw_html_gallery(page_samples, title))
    if diagrams:
        yield Picture("diagrams", text="".join(plan_line(diagram) + "\n" for diagram in diagrams))
    errors = [f"sample {number}: {error}\n" for number, (_, errors) in enumerate(decoded) for error in errors]
    if errors:
        yield Picture("unreadable", text="".join(errors))


def trajectory_pictures(path: Int[np.ndarray, "T K L"], rooms: int) -> Iterator[Picture]:
    """Yield a sampling trajectory as animation and in stages; nothing if no sample decodes."""
    decoded = [sample for sample in decode_samples(path[-1], rooms) if sample.placement]
    placements = [sample.placement for sample in decoded if sample.placement]
    if placements:
        path = path[:, [sample.number for sample in decoded]]
        animation = animate(path, placements)
        stages = to_png(draw_stages(path, placements))
        gif = to_gif(animation.pages(), animation.seconds)
        yield Picture("path", png=stages, svg=to_animated_svg(animation), gif=gif)


def _picture(name: str, page: Page) -> Picture:
    return Picture(name, png=to_png(page), svg=to_svg(page))


def to_png(page: Page, scale: float = 2.0) -> bytes:
    """Render a page as PNG with `scale` dots per pixel."""
    from resvg_py import svg_to_bytes

    # Without system fonts the result is the same on every machine.
    return bytes(svg_to_bytes(svg_string=to_svg(page), zoom=scale, font_files=[font_file()], skip_system_fonts=True))


def to_gif(pages: Sequence[Page], seconds: Sequence[float], scale: float = 1.0) -> bytes:
    """Return pages of one size as a looping GIF, each shown for its number of seconds.

    Equal consecutive pages become one frame.
    """
    from PIL import Image

    frames = [_image(page, scale) for page in pages]
    samples = [frames[0], frames[len(frames) // 2], frames[-1]]
    sheet = Image.new("RGB", (sum(frame.width for frame in samples), frames[0].height))
    for index, frame in enumerate(samples):
        sheet.paste(frame, (index * frame.width, 0))
    palette = sheet.quantize(_COLOURS)
    shown = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    content = BytesIO()
    durations = [round(1000 * duration) for duration in seconds]
    shown[0].save(content, format="GIF", save_all=True, append_images=shown[1:], duration=durations, loop=0)
    return content.getvalue()


def _image(page: Page, scale: float) -> Image:
    from PIL import Image

    with Image.open(BytesIO(to_png(page, scale))) as image:
        return image.convert("RGB")
