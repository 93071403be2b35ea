"""All pictures of samples and sampling trajectories.

A trajectory is drawn as frames with the rooms at their boxes in the finished diagram. Grey rooms
are masked; pale lines are undecided pairs. Letters: N samples, K samples with a known trajectory, T
states, L tokens (room slots, then pairs, then doors and areas if they are modelled).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from io import BytesIO
from math import isqrt
from typing import Final

import numpy as np
from jaxtyping import Int

from dither.registry.contracts.protocols import Picture

from ..decoded_samples import LEVELS, DecodedSample, decode_samples, read_samples
from ..formats.jsonl import plan_line
from ..geometry.placement import Placement
from ..plans import Diagram
from ..relations import edges_of
from ..vocabulary import COLOURS, NO_EDGE, NODE_MASK, ROOMS, SHORT, pair_index, pairs
from . import svg
from .diagram import (
    BROKEN,
    INK,
    LINK,
    PALE,
    Scene,
    draw_bubbles,
    draw_floorplan,
    draw_gallery,
    draw_room,
    label_shapes,
)

__all__ = ["draw_frames", "draw_html_gallery", "sample_pictures", "trajectory_pictures"]

GRID_SAMPLES = 16
PAGE_SAMPLES = 64
MAX_FRAMES = 30
"""Samples in the grid and on the HTML page; frames of an animation, of which longer trajectories
are subsampled."""

_STAGES = 6
_MILLISECONDS = 220
_LAST = 3000
_COLOURS = 128
"""Stages of a sample; duration of a frame, and of the last one; colours of a GIF."""

_SIZE: Final = 300.0

_CHIPS: Final = ("#c8443c", "#b4632a", "#8a6d1a", "#5c6b2f", "#2f6f8f", "#4f5ba8", "#1d6b45")
"""Colours of the verdicts, from unreadable to level 5; dark enough for white text."""

_STYLE: Final = """
body { margin: 0 auto; padding: 1rem; max-width: 1980px; color: #2b2f36; background: #f4f5f7; font: 15px sans-serif }
fieldset, article { background: #fff; border: 1px solid #d5d8dd; border-radius: 8px; padding: .6rem .9rem }
fieldset { display: inline-block; margin: .4rem .6rem .4rem 0 }
label, .legend span { margin-right: .9rem; white-space: nowrap }
.legend i { display: inline-block; width: .8em; height: .8em; border: 1px solid; margin-right: .4em }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(640px, 100%), 1fr)); gap: 1rem }
h2 { font-size: 1rem; margin: 0 0 .3rem; font-weight: normal }
.chip { color: #fff; border-radius: 999px; padding: .1rem .6rem; margin-left: .5rem; font-size: .85rem }
.pictures { display: flex; flex-wrap: wrap; gap: .5rem }
.pictures svg { flex: 1 1 260px; min-width: 0; height: auto }
.errors { color: #c8443c; font-size: .85rem; margin: .4rem 0 0 }
"""

_GREY = "#c9ced6"
_UNDECIDED = "#dfe2e7"

Narrow = Callable[[Diagram], Diagram] | None
"""Restricts the areas of a diagram to constraints."""


def sample_pictures(
    samples: Int[np.ndarray, "N L"],
    rooms: int,
    boundaries: Int[np.ndarray, "N P 2"] | None = None,
    narrow: Narrow = None,
) -> Iterator[Picture]:
    """Yield the first sample as diagram and floor plan, a grid, an HTML page, all samples as JSON lines, and errors."""
    decoded = read_samples(samples, rooms)
    diagrams = [diagram for diagram, _ in decoded if diagram]
    page_samples = list(
        decode_samples(samples[: PAGE_SAMPLES if diagrams else 0], rooms, boundaries, narrow)
    )
    drawn = [(sample.placement, sample.verdict) for sample in page_samples if sample.placement]
    if drawn:
        placements, verdicts = zip(*drawn, strict=True)
        shown = len(page_samples)
        total = len(samples)
        html = draw_html_gallery(
            page_samples, f"{shown} of {total} samples" if total > shown else "Samples"
        )
        pages = {
            "diagram": draw_gallery(placements[:1], verdicts[:1], size=420.0),
            "floorplan": draw_floorplan(*drawn[0]),
            "gallery": draw_gallery(placements[:GRID_SAMPLES], verdicts),
        }
        for (name, page), png in zip(pages.items(), svg.to_pngs([*pages.values()]), strict=True):
            yield Picture(
                name, png=png, svg=svg.to_svg(page), html=html if name == "gallery" else None
            )
    if diagrams:
        yield Picture("diagrams", text="".join(plan_line(diagram) + "\n" for diagram in diagrams))
    errors = [
        f"sample {number}: {error}\n"
        for number, (_, errors) in enumerate(decoded)
        for error in errors
    ]
    if errors:
        yield Picture("unreadable", text="".join(errors))


def trajectory_pictures(
    path: Int[np.ndarray, "T K L"], rooms: int, narrow: Narrow = None
) -> Iterator[Picture]:
    """Yield a sampling trajectory as GIF and in stages; nothing if no sample decodes."""
    decoded = [
        sample for sample in decode_samples(path[-1], rooms, None, narrow) if sample.placement
    ]
    placements = [sample.placement for sample in decoded if sample.placement]
    if placements:
        path = path[:, [sample.number for sample in decoded], : rooms * (rooms + 1) // 2]
        stages, *images = svg.to_pngs(
            [_draw_stages(path, placements), *draw_frames(path, placements)]
        )
        yield Picture("path", png=stages, gif=_to_gif(images))


def draw_frames(
    path: Int[np.ndarray, "T K L"], placements: Sequence[Placement], size: float = 260.0
) -> list[svg.Page]:
    """Return the frames of an animation of K samples side by side.

    `path` holds all states, the finished samples last; states without changes are skipped.
    """
    columns = max(1, round(len(placements) ** 0.5))
    width = columns * size
    height = -(-len(placements) // columns) * size
    cells = [
        _Cell(one, k % columns * size, k // columns * size, size)
        for k, one in enumerate(placements)
    ]
    frames = []
    for state in _subsample(path, MAX_FRAMES):
        shapes = [
            shape
            for cell, tokens in zip(cells, state, strict=True)
            for shape in cell.shapes(tokens)
        ]
        frames.append(svg.Page(width, height, tuple(shapes), 1.0))
    return frames


def _draw_stages(
    path: Int[np.ndarray, "T K L"], placements: Sequence[Placement], *, size: float = 190.0
) -> svg.Page:
    """Return a page with a row of stages for each sample."""
    shapes: list[str] = []
    for row, placement in enumerate(placements):
        for column, state in enumerate(_subsample(path[:, [row]], _STAGES)):
            shapes += _Cell(placement, column * size, row * size, size).shapes(state[0])
    return svg.Page(_STAGES * size, len(placements) * size, tuple(shapes))


def _subsample(path: Int[np.ndarray, "T K L"], most: int) -> Int[np.ndarray, "t K L"]:
    """Return at most `most` states that differ from the previous one, including the first and the last."""
    changed = np.ones(len(path), bool)
    changed[1:] = (path[1:] != path[:-1]).any((1, 2))
    path = path[changed]
    return (
        path
        if len(path) <= most
        else path[np.round(np.linspace(0, len(path) - 1, most)).astype(int)]
    )


class _Cell:
    """One sample in a square cell of a page."""

    def __init__(
        self,
        placement: Placement,
        x: float,
        y: float,
        size: float,
    ) -> None:
        self.types = placement.diagram.types
        self.corner = (x, y)
        self.size = size
        self.scene = Scene(placement, x + 8, y + 8, size - 16, size - 34)
        self.scene.label_rooms()
        self.edges = edges_of(placement.boxes).tolist()

    def shapes(self, tokens: Int[np.ndarray, " L"]) -> list[str]:
        """Return the shapes of a state: rooms, links, names, and progress."""
        slots = (isqrt(8 * len(tokens) + 1) - 1) // 2
        scene = self.scene
        types = tokens[: len(self.types)].tolist()
        shapes: list[str] = []
        for room in scene.order:
            fill, stroke = (COLOURS[types[room]], INK) if types[room] < NODE_MASK else (_GREY, PALE)
            shapes.append(draw_room(scene, room, fill, stroke))
        known = sum(kind < NODE_MASK for kind in types)
        for (i, j), shown in zip(pairs(len(types)), self.edges, strict=True):
            edge = int(tokens[slots + pair_index(i, j, slots)])
            ends = (*scene.anchor(i), *scene.anchor(j))
            known += edge <= NO_EDGE
            if edge > NO_EDGE:
                shapes.append(svg.line(*ends, _UNDECIDED, 0.8))
            elif edge < NO_EDGE:
                shapes.append(
                    svg.line(*ends, LINK if edge == shown else BROKEN, 1.2, dashed=edge != shown)
                )
        for room, kind in enumerate(types):
            label = scene.labels[room]
            if kind != self.types[room]:  # another text, in a smaller font if it is longer
                text = SHORT[kind] if kind < NODE_MASK else "?"
                shrink = svg.text_width(label.lines[0], label.size) / svg.text_width(
                    text, label.size
                )
                label = replace(label, lines=(text,), size=label.size * min(1.0, shrink))
            shapes += label_shapes(label)
        total, (x, y), length = len(types) + len(self.edges), self.corner, self.size - 110
        x = x + 14
        y = y + self.size - 13
        shapes.append(svg.rectangle(x, y - 2.5, length, 5, 2.5, _UNDECIDED, _UNDECIDED, 0.0))
        shapes.append(svg.rectangle(x, y - 2.5, length * known / total, 5, 2.5, PALE, PALE, 0.0))
        return [
            *shapes,
            svg.text(x + length + 8, y, f"{known} of {total} known", 9.0, PALE, left=True),
        ]


def _to_gif(images: Sequence[bytes]) -> bytes:
    """Return PNGs of one size as a looping GIF with one palette, so that colours do not change between frames."""
    from PIL import Image

    frames = [Image.open(BytesIO(image)).convert("RGB") for image in images]
    samples = np.concatenate([np.asarray(frames[index]) for index in (0, len(frames) // 2, -1)])
    palette = Image.fromarray(samples).quantize(_COLOURS)
    shown = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [*[_MILLISECONDS] * (len(frames) - 1), _LAST]
    content = BytesIO()
    shown[0].save(
        content,
        format="GIF",
        save_all=True,
        append_images=shown[1:],
        duration=durations,
        loop=0,
    )
    return content.getvalue()


def draw_html_gallery(samples: Sequence[DecodedSample], title: str = "Samples") -> str:
    """Return a page with a summary, filters, a legend, and a card per sample."""
    levels = Counter(sample.level for sample in samples)
    rooms = Counter(len(sample.placement.diagram.types) for sample in samples if sample.placement)
    names = {-1: "unreadable"} | {level: f"L{level} {name}" for level, name in enumerate(LEVELS)}
    filters = _filter(
        "Verdict", "level", {n: f"{names[n]} ({levels[n]})" for n in sorted(levels, reverse=True)}
    )
    filters += _filter("Rooms", "rooms", {n: f"{n} ({rooms[n]})" for n in sorted(rooms)})
    hidden = [f"level-{level}" for level in levels] + [f"rooms-{size}" for size in rooms]
    rules = "".join(
        f"body:has(#{name}:checked) article:not(.{name}) {{ display: none }}\n" for name in hidden
    )
    reached = ", ".join(
        f"{sum(sample.level >= level for sample in samples)} reach {names[level]}"
        for level in range(len(LEVELS))
    )
    kinds = sorted(
        {kind for sample in samples if sample.placement for kind in sample.placement.diagram.types}
    )
    legend = "".join(
        f'<span><i style="background:{COLOURS[kind]}"></i>{ROOMS[kind]}</span>' for kind in kinds
    )
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    lines = [
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}{rules}</style></head><body>',
        f"<h1>{escape(title)}</h1><p>{len(samples)} samples: {reached}. Violated relations are red.</p>",
        f'{filters}<p class="legend">{legend}</p><main>',
        *map(_card, samples),
        "</main></body></html>\n",
    ]
    return "\n".join(lines)


def _filter(title: str, name: str, values: Mapping[int, str]) -> str:
    """Return radio buttons; the first shows all samples."""
    buttons = {"all": "all"} | {str(value): label for value, label in values.items()}
    inputs = (
        f'<label><input type="radio" name="{name}" id="{name}-{value}"{" checked" * (value == "all")}> {label}</label>'
        for value, label in buttons.items()
    )
    return f"<fieldset><legend>{title}</legend>{''.join(inputs)}</fieldset>"


def _card(sample: DecodedSample) -> str:
    chip = (
        f'<span class="chip" style="background:{_CHIPS[sample.level + 1]}">{sample.verdict}</span>'
    )
    classes = f"level-{sample.level}"
    title = f"Sample {sample.number}"
    body = ""
    errors = list(sample.errors)
    if placement := sample.placement:
        rooms = len(placement.diagram.types)
        classes += f" rooms-{rooms}"
        title += f": {rooms} rooms, {len(placement.diagram.edges)} relations"
        bubbles = svg.Page(
            _SIZE, _SIZE, tuple(draw_bubbles(Scene(placement, 6, 6, _SIZE - 12, _SIZE - 12)))
        )
        body = f'<div class="pictures">{_inline(bubbles)}{_inline(draw_floorplan(placement, size=_SIZE))}</div>'
        edges = zip(placement.sentences(), placement.holds, strict=True)
        errors += [f"violated: {sentence}" for sentence, holds in edges if not holds]
        errors += [f"close without a relation: {names}" for names in placement.extra_names()]
    body += f'<p class="errors">{escape("; ".join(errors))}</p>' * bool(errors)
    return f'<article class="{classes}"><h2>{title}{chip}</h2>{body}</article>'


def _inline(page: svg.Page) -> str:
    """Return inline SVG, which needs no namespace in HTML."""
    return svg.to_svg(page).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
