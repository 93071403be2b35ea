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
from math import ceil, isqrt

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from dither.registry.contracts.protocols import Picture

from ..arrays import Boundaries, BoxBatch, TokenRow, Tokens
from ..decoded_samples import LEVELS, DecodedSample, decode_samples, read_samples
from ..formats.jsonl import plan_line
from ..geometry.placement import Placement
from ..plans import Diagram
from ..relations import edges_of
from ..vocabulary import COLOURS, NO_EDGE, NODE_MASK, ROOMS, SHORT, pair_index, pairs
from . import svg
from .diagram import (
    BROKEN,
    LINK,
    PALE,
    Label,
    Rectangle,
    Scene,
    common_scale,
    draw_bubbles,
    draw_floorplan,
    draw_gallery,
    draw_room,
    label_shapes,
)

GRID_SAMPLES = 16
"""Samples in the grid."""

PAGE_SAMPLES = 36
"""Samples on the HTML page."""

MAX_FRAMES = 30
"""Frames of an animation; longer trajectories are subsampled."""

_STAGES = 6
"""Stages of a sample."""

_MILLISECONDS = 220
"""Duration of a frame."""

_LAST = 3000
"""Duration of the last one."""

_COLOURS = 128
"""Colours of a GIF."""

_SIZE = 300.0

_CHIPS = (
    "#c8443c",
    "#b4632a",
    "#8a6d1a",
    "#5c6b2f",
    "#2f6f8f",
    "#4f5ba8",
    "#1d6b45",
    "#0f4d2f",
)
"""Colours of the verdicts, from unreadable to level 6; dark enough for white text."""

_STYLE = """
body { margin: 0 auto; padding: 1rem; max-width: 1980px; color: #2b2f36; \
background: #f4f5f7; font: 15px sans-serif }
fieldset, article { background: #fff; border: 1px solid #d5d8dd; border-radius: 8px; \
padding: .6rem .9rem }
fieldset { display: inline-block; margin: .4rem .6rem .4rem 0 }
label, .legend span { margin-right: .9rem; white-space: nowrap }
.legend i { display: inline-block; width: .8em; height: .8em; border: 1px solid; \
margin-right: .4em }
main { display: grid; \
grid-template-columns: repeat(auto-fill, minmax(min(640px, 100%), 1fr)); gap: 1rem }
h2 { font-size: 1rem; margin: 0 0 .3rem; font-weight: normal }
.chip { color: #fff; border-radius: 999px; padding: .1rem .6rem; margin-left: .5rem; \
font-size: .85rem }
.pictures { display: flex; flex-wrap: wrap; gap: .5rem }
.pictures svg { flex: 1 1 260px; min-width: 0; height: auto }
.errors { color: #c8443c; font-size: .85rem; margin: .4rem 0 0 }
"""

_GREY = "#c9ced6"
_UNDECIDED = "#dfe2e7"

_Path = Int[ndarray, "T K L"]

Narrow = Callable[[Diagram], Diagram] | None
"""Restricts the areas of a diagram to constraints."""


def sample_pictures(
    samples: Tokens,
    rooms: int,
    boundaries: Boundaries | None,
    narrow: Narrow,
    boxes: BoxBatch | None = None,
) -> Iterator[Picture]:
    """Yield the best sample as diagram and floor plan, a grid, an HTML page, and texts.

    The texts are all samples as JSON lines, and the errors of those that do not decode.
    """
    decoded = read_samples(samples, rooms, boxes)
    diagrams = [diagram for diagram, _ in decoded if diagram]
    if diagrams:
        # A list, since each sample is in several pictures.
        first = slice(PAGE_SAMPLES)
        drawn = None if boxes is None else boxes[first]
        page = list(decode_samples(samples[first], rooms, boundaries, narrow, drawn))
        yield from sample_drawings(page, len(samples))
        text = "".join(plan_line(diagram) + "\n" for diagram in diagrams)
        yield Picture("diagrams", text=text)

    errors = []
    for number, (_, messages) in enumerate(decoded):
        errors += [f"sample {number}: {message}\n" for message in messages]
    if errors:
        yield Picture("unreadable", text="".join(errors))


def sample_drawings(samples: Sequence[DecodedSample], count: int) -> Iterator[Picture]:
    """Yield pictures of samples, the first ones of `count`; none if no sample decodes."""
    # The best ones first, so that a short look shows what there is.
    ranked = sorted(samples, key=lambda sample: -sample.level)
    drawn = [
        (sample.placement, sample.verdict) for sample in ranked if sample.placement
    ]
    if not drawn:
        return
    placements, verdicts = zip(*drawn, strict=True)
    title = "Samples" if count <= len(samples) else f"{len(samples)} of {count} samples"
    html = draw_html_gallery(ranked, title)
    pages = {
        "diagram": draw_gallery(placements[:1], verdicts[:1], size=420.0),
        "floorplan": draw_floorplan(*drawn[0]),
        "gallery": draw_gallery(placements[:GRID_SAMPLES], verdicts, plans=True),
    }
    images = svg.to_pngs(list(pages.values()))
    for (name, page), png in zip(pages.items(), images, strict=True):
        is_gallery = name == "gallery"
        yield Picture(
            name, png=png, svg=svg.to_svg(page), html=html if is_gallery else None
        )


def trajectory_pictures(
    path: _Path,
    rooms: int,
    narrow: Narrow = None,
    boxes: BoxBatch | None = None,
) -> Iterator[Picture]:
    """Yield a sampling trajectory as GIF and in stages; nothing if no sample decodes.

    `boxes` are those of the finished samples, if a model drew them.
    """
    decoded = list(
        decode_samples(
            tokens=path[-1],
            rooms=rooms,
            boundaries=None,
            narrow=narrow,
            boxes=boxes,
        )
    )
    placements = [sample.placement for sample in decoded if sample.placement]
    if not placements:
        return
    numbers = [sample.number for sample in decoded if sample.placement]
    # Cells show rooms and relations, which come before the tokens of doors and areas.
    path = path[:, numbers, : rooms * (rooms + 1) // 2]
    pages = [_draw_stages(path, placements), *draw_frames(path, placements)]
    # Rendered together, as each call starts processes.
    stages, *images = svg.to_pngs(pages)
    yield Picture("path", png=stages, gif=_to_gif(images))


def draw_frames(
    path: _Path,
    placements: Sequence[Placement],
) -> list[svg.Page]:
    """Return the frames of an animation of K samples side by side.

    `path` holds all states, the finished samples last; states without changes are skipped.
    """
    size = 260.0
    columns = max(1, round(len(placements) ** 0.5))
    cells = []
    for number, placement in enumerate(placements):
        row, column = divmod(number, columns)
        cells.append(
            _Cell(
                placement=placement,
                x=column * size,
                y=row * size,
                size=size,
            )
        )
    width = columns * size
    height = ceil(len(placements) / columns) * size
    frames = []
    for state in _subsample(path, MAX_FRAMES):
        shapes: list[str] = []
        for cell, tokens in zip(cells, state, strict=True):
            shapes += cell.shapes(tokens)
        frames.append(svg.Page(width, height, tuple(shapes), 1.0))
    return frames


def _draw_stages(
    path: _Path,
    placements: Sequence[Placement],
) -> svg.Page:
    """Return a page with a row of stages for each sample."""
    size = 190.0
    shapes: list[str] = []
    for row, placement in enumerate(placements):
        for column, state in enumerate(_subsample(path[:, [row]], _STAGES)):
            cell = _Cell(
                placement=placement,
                x=column * size,
                y=row * size,
                size=size,
            )
            shapes += cell.shapes(state[0])
    return svg.Page(_STAGES * size, len(placements) * size, tuple(shapes))


def _subsample(path: _Path, most: int) -> _Path:
    """Return at most `most` states that differ from the one before, the first and last included."""
    changed = np.ones(len(path), bool)
    changed[1:] = (path[1:] != path[:-1]).any((1, 2))
    path = path[changed]
    if len(path) <= most:
        return path
    steps = np.linspace(0, len(path) - 1, most)
    return path[np.round(steps).astype(int)]


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
        self.scene = Scene(placement, Rectangle(x + 8, y + 8, size - 16, size - 34))
        self.scene.label_rooms()
        self.edges = edges_of(placement.boxes).tolist()

    def shapes(self, tokens: TokenRow) -> list[str]:
        """Return the shapes of a state: rooms, links, names, and progress."""
        scene = self.scene
        # L = R (R + 1) / 2 tokens
        slots = (isqrt(8 * len(tokens) + 1) - 1) // 2
        types = tokens[: len(self.types)].tolist()
        places = [pair_index(i, j, slots) for i, j in pairs(len(types))]
        edges = tokens[slots:][places].tolist()
        shapes: list[str] = []
        for room in scene.order:
            kind = types[room]
            if kind < NODE_MASK:
                shapes.append(draw_room(scene, room, COLOURS[kind]))
            else:
                shapes.append(draw_room(scene, room, _GREY, PALE))
        # Links above rooms, and names above links.
        shapes += self._links(edges)
        for room, kind in enumerate(types):
            shapes += label_shapes(self._label(room, kind))
        known = sum(kind < NODE_MASK for kind in types)
        known += sum(edge <= NO_EDGE for edge in edges)
        return [*shapes, *self._progress(known, len(types) + len(edges))]

    def _links(self, edges: Sequence[int]) -> Iterator[str]:
        """Yield links; pale if undecided, red if the boxes do not show them."""
        labelled = zip(pairs(len(self.types)), edges, self.edges, strict=True)
        for (i, j), edge, shown in labelled:
            ends = (*self.scene.anchor(i), *self.scene.anchor(j))
            if edge > NO_EDGE:
                yield svg.line(*ends, _UNDECIDED, 0.8)
            elif edge == NO_EDGE:
                continue
            elif edge == shown:
                yield svg.line(*ends, LINK, 1.2)
            else:
                yield svg.line(*ends, BROKEN, 1.2, dashed=True)

    def _label(self, room: int, kind: int) -> Label:
        """Return the label of a room of a type; in a smaller font if its text is longer."""
        label = self.scene.labels[room]
        if kind == self.types[room]:
            return label

        text = "?"
        if kind < NODE_MASK:
            text = SHORT[kind]

        # Names of types differ in length, and the label has space for the finished one.
        width = svg.text_width(label.lines[0], label.size)
        shrink = min(1.0, width / svg.text_width(text, label.size))
        return replace(label, lines=(text,), size=label.size * shrink)

    def _progress(self, known: int, count: int) -> list[str]:
        """Return a bar with the share of known tokens, and its caption."""
        length = self.size - 110
        x = self.corner[0] + 14
        y = self.corner[1] + self.size - 13
        done = length * known / count
        return [
            svg.rectangle(
                x,
                y - 2.5,
                length,
                5,
                2.5,
                _UNDECIDED,
                _UNDECIDED,
                0.0,
            ),
            svg.rectangle(
                x,
                y - 2.5,
                done,
                5,
                2.5,
                PALE,
                PALE,
                0.0,
            ),
            svg.text(
                x + length + 8, y, f"{known} of {count} known", 9.0, PALE, left=True
            ),
        ]


def _to_gif(images: Sequence[bytes]) -> bytes:
    """Return PNGs of one size as a looping GIF with one palette.

    So colours do not change between frames.
    """
    from PIL import Image

    frames = [Image.open(BytesIO(image)).convert("RGB") for image in images]
    # The palette of a few frames: colours appear in turn while a sample is decided.
    chosen = [frames[0], frames[len(frames) // 2], frames[-1]]
    samples = np.concatenate([np.asarray(frame) for frame in chosen])
    palette = Image.fromarray(samples).quantize(_COLOURS)
    # Dithering would flicker from frame to frame.
    first, *others = [
        frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames
    ]
    content = BytesIO()
    first.save(
        content,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=[*[_MILLISECONDS] * len(others), _LAST],
        loop=0,
    )
    return content.getvalue()


def draw_html_gallery(samples: Sequence[DecodedSample], title: str = "Samples") -> str:
    """Return a page with a summary, filters, a legend, and a card per sample."""
    placements = [sample.placement for sample in samples if sample.placement]
    scale = common_scale(placements, _SIZE)
    diagrams = [placement.diagram for placement in placements]
    levels = Counter(sample.level for sample in samples)
    rooms = Counter(len(diagram.types) for diagram in diagrams)
    names = {-1: "unreadable"} | {
        level: f"L{level} {name}" for level, name in enumerate(LEVELS)
    }
    verdicts = {n: f"{names[n]} ({levels[n]})" for n in sorted(levels, reverse=True)}
    sizes = {n: f"{n} ({rooms[n]})" for n in sorted(rooms)}
    filters = _filter("Verdict", "level", verdicts) + _filter("Rooms", "rooms", sizes)

    # Filters need no script: a checked button hides the articles of other classes.
    rules = ""
    for name in (*(f"level-{n}" for n in levels), *(f"rooms-{n}" for n in rooms)):
        rules += f"body:has(#{name}:checked) article:not(.{name}) {{ display: none }}\n"
    counts = []
    for level in range(len(LEVELS)):
        count = sum(sample.level >= level for sample in samples)
        counts.append(f"{count} reach {names[level]}")

    legend = ""
    kinds: set[int] = set()
    for diagram in diagrams:
        kinds.update(diagram.types)
    for kind in sorted(kinds):
        legend += (
            f'<span><i style="background:{COLOURS[kind]}"></i>{ROOMS[kind]}</span>'
        )

    charset = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    )
    head = f"{charset}<title>{escape(title)}</title><style>{_STYLE}{rules}</style>"
    summary = (
        f"{len(samples)} samples: {', '.join(counts)}. Violated relations are red."
    )
    lines = [
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>',
        f"<h1>{escape(title)}</h1><p>{summary}</p>",
        f'{filters}<p class="legend">{legend}</p><main>',
        *(_card(sample, scale) for sample in samples),
        "</main></body></html>\n",
    ]
    return "\n".join(lines)


def _filter(
    title: str,
    name: str,
    values: Mapping[int, str],
) -> str:
    """Return radio buttons; the first shows all samples."""
    inputs = (
        f'<label><input type="radio" name="{name}" id="{name}-all" checked> all</label>'
    )
    for value, label in values.items():
        button = f'<input type="radio" name="{name}" id="{name}-{value}">'
        inputs += f"<label>{button} {label}</label>"
    return f"<fieldset><legend>{title}</legend>{inputs}</fieldset>"


def _card(sample: DecodedSample, scale: float) -> str:
    # The first colour is that of level -1, unreadable.
    colour = _CHIPS[sample.level + 1]
    chip = f'<span class="chip" style="background:{colour}">{sample.verdict}</span>'
    classes = f"level-{sample.level}"
    title = f"Sample {sample.number}"
    body = ""
    errors = list(sample.errors)
    placement = sample.placement
    if placement is not None:
        rooms = len(placement.diagram.types)
        classes += f" rooms-{rooms}"
        title += f": {rooms} rooms, {len(placement.diagram.edges)} relations"
        place = Rectangle(6, 6, _SIZE - 12, _SIZE - 12)
        shapes = draw_bubbles(Scene(placement, place, scale=scale))
        bubbles = _inline(svg.Page(_SIZE, _SIZE, tuple(shapes)))
        plan = _inline(draw_floorplan(placement, size=_SIZE, scale=scale))
        body = f'<div class="pictures">{bubbles}{plan}</div>'
        edges = zip(placement.sentences(), placement.holds, strict=True)
        errors += [f"violated: {sentence}" for sentence, holds in edges if not holds]
        errors += [
            f"close without a relation: {names}" for names in placement.extra_names()
        ]
        errors += placement.unmet
    if errors:
        body += f'<p class="errors">{escape("; ".join(errors))}</p>'
    return f'<article class="{classes}"><h2>{title}{chip}</h2>{body}</article>'


def _inline(page: svg.Page) -> str:
    """Return inline SVG, which needs no namespace in HTML."""
    return svg.to_svg(page).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
