"""All pictures of samples, under the names of their files.

Letters: N samples, K samples of which the way is known, T states, L tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from jaxtyping import Int

from dither.registry.parts import Picture
from dither.registry.problems import Refused

from .animation import film_of, film_strip, to_animated_svg
from .drawing import draw_diagram, draw_gallery
from .exhibits import exhibits_of
from .floorplan import draw_floorplan
from .gallery import draw_page
from .jsonl import plan_line
from .page import Page, to_svg
from .painting import to_gif, to_png
from .plans import Diagram, decode

__all__ = ["GRID_SAMPLES", "PAGE_SAMPLES", "path_pictures", "sample_pictures"]

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
    exhibits = list(exhibits_of(samples[: PAGE_SAMPLES if diagrams else 0], rooms))
    shown = [exhibit.arrangement for exhibit in exhibits if exhibit.arrangement]
    if shown:
        yield _drawn("diagram", draw_diagram(shown[0].diagram, arrangement=shown[0]))
        yield _drawn("floorplan", draw_floorplan(shown[0]))
        grid = shown[:GRID_SAMPLES]
        page = draw_gallery([one.diagram for one in grid], arrangements=grid)
        title = f"{len(exhibits)} of {len(samples)} samples" if len(samples) > len(exhibits) else "Samples"
        yield Picture("gallery", png=to_png(page), svg=to_svg(page), html=draw_page(exhibits, title))
    if diagrams:
        yield Picture("diagrams", text="".join(plan_line(diagram) + "\n" for diagram in diagrams))
    if wrong:
        yield Picture("unreadable", text="".join(line + "\n" for line in wrong))


def path_pictures(path: Int[np.ndarray, "T K L"], rooms: int) -> Iterator[Picture]:
    """Yield the way of samples from noise to diagrams, as it moves and in stages; nothing where none is a diagram."""
    kept = [exhibit for exhibit in exhibits_of(path[-1], rooms) if exhibit.arrangement]
    shown = [exhibit.arrangement for exhibit in kept if exhibit.arrangement]
    if shown:
        path = path[:, [exhibit.number for exhibit in kept]]
        film = film_of(path, shown)
        strip = to_png(film_strip(path, shown))
        yield Picture("path", png=strip, svg=to_animated_svg(film), gif=to_gif(film.pages(), film.seconds))


def _drawn(name: str, page: Page) -> Picture:
    return Picture(name, png=to_png(page), svg=to_svg(page))
