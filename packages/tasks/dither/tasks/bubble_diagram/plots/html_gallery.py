"""Self-contained HTML page of samples, each as a diagram and as a floor plan.

Filters by verdict and number of rooms use radio buttons and `:has`, without JavaScript.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from ..decoded_samples import LEVELS, DecodedSample
from ..vocabulary import COLOURS, ROOMS
from .diagram import Scene, draw_bubbles, draw_floorplan
from .svg import Page, to_svg

__all__ = ["draw_html_gallery"]

_SIZE: Final = 300.0

_CHIPS: Final = ("#c8443c", "#b4632a", "#8a6d1a", "#5c6b2f", "#2f6f8f", "#1d6b45")
"""Colours of the verdicts, from unreadable to level 4; dark enough for white text."""

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


def draw_html_gallery(samples: Sequence[DecodedSample], title: str = "Samples") -> str:
    """Return a page with a summary, filters, a legend, and a card per sample."""
    levels = Counter(sample.level for sample in samples)
    rooms = Counter(_rooms(sample) for sample in samples if sample.placement)
    names = {-1: "unreadable"} | {level: f"L{level} {name}" for level, name in enumerate(LEVELS)}
    filters = _filter("Verdict", "level", {n: f"{names[n]} ({levels[n]})" for n in sorted(levels, reverse=True)})
    filters += _filter("Rooms", "rooms", {n: f"{n} ({rooms[n]})" for n in sorted(rooms)})
    hidden = [f"level-{level}" for level in levels] + [f"rooms-{size}" for size in rooms]
    rules = "".join(f"body:has(#{name}:checked) article:not(.{name}) {{ display: none }}\n" for name in hidden)
    reached = ", ".join(
        f"{sum(sample.level >= level for sample in samples)} reach {names[level]}" for level in range(len(LEVELS))
    )
    kinds = sorted({kind for sample in samples if sample.placement for kind in sample.placement.diagram.types})
    legend = "".join(f'<span><i style="background:{COLOURS[kind]}"></i>{ROOMS[kind]}</span>' for kind in kinds)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    lines = [
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}{rules}</style></head><body>',
        f"<h1>{escape(title)}</h1><p>{len(samples)} samples: {reached}. Violated relations are red.</p>",
        f'{filters}<p class="legend">{legend}</p><main>',
        *map(_card, samples),
        "</main></body></html>\n",
    ]
    return "\n".join(lines)


def _rooms(sample: DecodedSample) -> int:
    return len(sample.placement.diagram.types) if sample.placement else 0


def _filter(title: str, name: str, values: Mapping[int, str]) -> str:
    """Return radio buttons; the first shows all samples."""
    buttons: dict[int | str, str] = {"all": "all", **values}
    inputs = (
        f'<label><input type="radio" name="{name}" id="{name}-{value}"{" checked" * (value == "all")}> {label}</label>'
        for value, label in buttons.items()
    )
    return f"<fieldset><legend>{title}</legend>{''.join(inputs)}</fieldset>"


def _card(sample: DecodedSample) -> str:
    chip = f'<span class="chip" style="background:{_CHIPS[sample.level + 1]}">{sample.verdict}</span>'
    classes, title, body, errors = f"level-{sample.level}", f"Sample {sample.number}", "", list(sample.errors)
    if placement := sample.placement:
        classes += f" rooms-{_rooms(sample)}"
        title += f": {_rooms(sample)} rooms, {len(placement.diagram.edges)} relations"
        bubbles = Page(_SIZE, _SIZE, tuple(draw_bubbles(Scene(placement, 6, 6, _SIZE - 12, _SIZE - 12))))
        body = f'<div class="pictures">{_inline(bubbles)}{_inline(draw_floorplan(placement, size=_SIZE))}</div>'
        edges = zip(placement.sentences(), placement.holds, strict=True)
        errors += [f"violated: {sentence}" for sentence, holds in edges if not holds]
        errors += [f"close without a relation: {names}" for names in placement.extra_names()]
    body += f'<p class="errors">{escape("; ".join(errors))}</p>' * bool(errors)
    return f'<article class="{classes}"><h2>{title}{chip}</h2>{body}</article>'


def _inline(page: Page) -> str:
    """Return inline SVG, which needs no namespace in HTML."""
    return to_svg(page).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
