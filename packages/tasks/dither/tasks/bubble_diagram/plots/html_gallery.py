"""Self-contained HTML page of samples, each as a diagram and as a floor plan.

Filters by verdict and number of rooms use radio buttons and `:has`, without JavaScript; browsers without `:has` show
all samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from ..decoded_samples import LEVELS, DecodedSample
from ..geometry.placement import Placement
from ..vocabulary import COLOURS, ROOMS
from .diagram import Scene, draw_bubbles
from .floorplan import floorplan_shapes
from .svg import Page, to_svg

__all__ = ["draw_html_gallery"]

_SIZE: Final = 300.0
_MAX_TAGGED: Final = 9
"""Rooms of the largest diagrams with relation tags; larger ones have no space for them."""

_CHIPS: Final = ("#c8443c", "#b4632a", "#8a6d1a", "#5c6b2f", "#2f6f8f", "#1d6b45")
"""Colours of the verdicts, from unreadable to level 4; dark enough for white text."""

_STYLE: Final = """
:root { color: #2b2f36; background: #f4f5f7; font: 15px/1.45 "DejaVu Sans", Verdana, Arial, sans-serif }
body { margin: 0 auto; padding: 1rem 1.25rem 3rem; max-width: 1980px }
h1 { font-size: 1.35rem; margin: .3rem 0 }
header p { margin: .3rem 0; color: #565d68 }
fieldset, .legend, article { background: #fff; border: 1px solid #d5d8dd; border-radius: 8px }
fieldset { display: inline-block; margin: .4rem .6rem .4rem 0 }
fieldset label { margin-right: .9rem; white-space: nowrap; cursor: pointer }
.legend { margin: .4rem 0 1rem; padding: .4rem .9rem; font-size: .85rem }
.legend span { margin-right: 1.1rem; white-space: nowrap; display: inline-block }
.legend i { display: inline-block; width: .8em; height: .8em; border: 1px solid #2b2f36; border-radius: 3px }
.legend i { margin-right: .4em; vertical-align: -.05em }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(640px, 100%), 1fr)); gap: 1rem }
article { padding: .7rem .9rem }
h2 { font-size: 1rem; margin: 0 0 .3rem; font-weight: normal }
.chip { color: #fff; border-radius: 999px; padding: .1rem .6rem; margin-left: .5rem; font-size: .85rem }
.pictures { display: flex; flex-wrap: wrap; gap: .5rem }
.pictures svg { flex: 1 1 260px; min-width: 0; height: auto }
.errors { color: #c8443c; font-size: .85rem; margin: .4rem 0 0 }
"""


def draw_html_gallery(samples: Sequence[DecodedSample], title: str = "Samples") -> str:
    """Return a page with a summary, filters, a legend, and a card per sample."""
    count = Counter(sample.level for sample in samples)
    levels = {
        level: "unreadable" if level < 0 else f"L{level} {LEVELS[level]}" for level in sorted(count, reverse=True)
    }
    rooms = Counter(_rooms(sample) for sample in samples if sample.placement)
    filters = _filter("Verdict", "level", {f"{level}": f"{name} ({count[level]})" for level, name in levels.items()})
    filters += _filter("Rooms", "rooms", {f"{size}": f"{size} ({rooms[size]})" for size in sorted(rooms)})
    hidden = [f"level-{level}" for level in levels] + [f"rooms-{size}" for size in rooms]
    rules = "".join(f"body:has(#{name}:checked) article:not(.{name}) {{ display: none }}\n" for name in hidden)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}{rules}</style></head><body>',
            f"<header><h1>{escape(title)}</h1><p>{_summary(samples)}</p>{filters}{_legend(samples)}</header><main>",
            *map(_card, samples),
            "</main></body></html>\n",
        ]
    )


def _summary(samples: Sequence[DecodedSample]) -> str:
    reached = [
        f"{sum(sample.level >= level for sample in samples)} reach L{level} {name}" for level, name in enumerate(LEVELS)
    ]
    return f"{len(samples)} samples: {', '.join(reached)}. Violated relations are red."


def _filter(title: str, name: str, values: Mapping[str, str]) -> str:
    """Return radio buttons; the first shows all samples."""
    buttons = {"all": "all", **values}
    inputs = (
        f'<label><input type="radio" name="{name}" id="{name}-{value}"{" checked" * (value == "all")}> {label}</label>'
        for value, label in buttons.items()
    )
    return f"<fieldset><legend>{title}</legend>{''.join(inputs)}</fieldset>"


def _legend(samples: Iterable[DecodedSample]) -> str:
    every = [sample.placement.diagram.types for sample in samples if sample.placement]
    kinds = sorted({kind for types in every for kind in types})
    marks = (f'<span><i style="background:{COLOURS[kind]}"></i>{ROOMS[kind]}</span>' for kind in kinds)
    return f'<div class="legend">{"".join(marks)}</div>' if kinds else ""


def _card(sample: DecodedSample) -> str:
    chip = f'<span class="chip" style="background:{_CHIPS[sample.level + 1]}">{sample.verdict}</span>'
    classes, title, body = f"level-{sample.level}", f"Sample {sample.number}", ""
    if sample.placement:
        classes += f" rooms-{_rooms(sample)}"
        title += f": {_rooms(sample)} rooms, {len(sample.placement.diagram.edges)} relations"
        body = f'<div class="pictures">{"".join(map(_inline, _pictures(sample.placement)))}</div>'
    errors = "; ".join([*sample.errors, *_violations(sample.placement)])
    errors = f'<p class="errors">{escape(errors)}</p>' if errors else ""
    return f'<article class="{classes}"><h2>{title}{chip}</h2>{body}{errors}</article>'


def _rooms(sample: DecodedSample) -> int:
    return len(sample.placement.diagram.types) if sample.placement else 0


def _pictures(placement: Placement) -> list[Page]:
    tags = len(placement.diagram.types) <= _MAX_TAGGED
    bubbles = draw_bubbles(Scene(placement, 6, 6, _SIZE - 12, _SIZE - 12), tags=tags)
    return [Page(_SIZE, _SIZE, tuple(shapes)) for shapes in (bubbles, floorplan_shapes(placement, 0, 0, _SIZE, _SIZE))]


def _violations(placement: Placement | None) -> list[str]:
    """Return in words the relations that the boxes violate, and those they add."""
    if placement is None:
        return []
    edges = zip(placement.sentences(), placement.holds, strict=True)
    return [f"violated: {sentence}" for sentence, holds in edges if not holds] + [
        f"close without a relation: {names}" for names in placement.extra_names()
    ]


def _inline(page: Page) -> str:
    """Return inline SVG, which needs no namespace in HTML."""
    return to_svg(page).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
