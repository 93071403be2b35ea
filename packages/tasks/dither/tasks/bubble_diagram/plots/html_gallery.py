"""Samples on one page of HTML, each as a diagram and as a floor plan; nothing else is needed to read it, no network.

The page filters by verdict and number of rooms with the browser's own means: radio buttons and `:has`. A browser that
does not know `:has` shows all samples.
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
from .floorplan import draw_floorplans
from .svg import Page, to_svg

__all__ = ["draw_html_gallery"]

_SIZE: Final = 300.0
_TAGGED: Final = 9
"""Rooms of the largest diagrams with letters on their lines; in others there is no room for them."""

_CHIPS: Final = ("#c8443c", "#b4632a", "#8a6d1a", "#5c6b2f", "#2f6f8f", "#1d6b45")
"""Colours of the verdicts, from unreadable to level 4; all dark enough for white words."""

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
.wrong { color: #c8443c; font-size: .85rem; margin: .4rem 0 0 }
"""


def draw_html_gallery(exhibits: Sequence[DecodedSample], title: str = "Samples") -> str:
    """Return a page of samples: a summary, filters, a legend, and a card for each."""
    count = Counter(exhibit.level for exhibit in exhibits)
    levels = {
        level: "unreadable" if level < 0 else f"L{level} {LEVELS[level]}" for level in sorted(count, reverse=True)
    }
    rooms = Counter(_rooms(exhibit) for exhibit in exhibits if exhibit.arrangement)
    filters = _filter("Verdict", "level", {f"{level}": f"{name} ({count[level]})" for level, name in levels.items()})
    filters += _filter("Rooms", "rooms", {f"{size}": f"{size} ({rooms[size]})" for size in sorted(rooms)})
    hidden = [f"level-{level}" for level in levels] + [f"rooms-{size}" for size in rooms]
    rules = "".join(f"body:has(#{name}:checked) article:not(.{name}) {{ display: none }}\n" for name in hidden)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}{rules}</style></head><body>',
            f"<header><h1>{escape(title)}</h1><p>{_summary(exhibits)}</p>{filters}{_legend(exhibits)}</header><main>",
            *map(_card, exhibits),
            "</main></body></html>\n",
        ]
    )


def _summary(exhibits: Sequence[DecodedSample]) -> str:
    reached = [
        f"{sum(one.level >= level for one in exhibits)} reach L{level} {name}" for level, name in enumerate(LEVELS)
    ]
    return f"{len(exhibits)} samples: {', '.join(reached)}. What the boxes do not show of a diagram is red."


def _filter(words: str, name: str, values: Mapping[str, str]) -> str:
    """Return radio buttons of which the first shows all."""
    buttons = {"all": "all", **values}
    inputs = (
        f'<label><input type="radio" name="{name}" id="{name}-{value}"{" checked" * (value == "all")}> {said}</label>'
        for value, said in buttons.items()
    )
    return f"<fieldset><legend>{words}</legend>{''.join(inputs)}</fieldset>"


def _legend(exhibits: Iterable[DecodedSample]) -> str:
    shown = [exhibit.arrangement.diagram.types for exhibit in exhibits if exhibit.arrangement]
    kinds = sorted({kind for types in shown for kind in types})
    marks = (f'<span><i style="background:{COLOURS[kind]}"></i>{ROOMS[kind]}</span>' for kind in kinds)
    return f'<div class="legend">{"".join(marks)}</div>' if kinds else ""


def _card(exhibit: DecodedSample) -> str:
    chip = f'<span class="chip" style="background:{_CHIPS[exhibit.level + 1]}">{exhibit.verdict}</span>'
    kinds, words, body = f"level-{exhibit.level}", f"Sample {exhibit.number}", ""
    if exhibit.arrangement:
        kinds += f" rooms-{_rooms(exhibit)}"
        words += f": {_rooms(exhibit)} rooms, {len(exhibit.arrangement.diagram.edges)} relations"
        body = f'<div class="pictures">{"".join(map(_inline, _pictures(exhibit.arrangement)))}</div>'
    wrong = "; ".join([*exhibit.wrong, *_broken(exhibit.arrangement)])
    wrong = f'<p class="wrong">{escape(wrong)}</p>' if wrong else ""
    return f'<article class="{kinds}"><h2>{words}{chip}</h2>{body}{wrong}</article>'


def _rooms(exhibit: DecodedSample) -> int:
    return len(exhibit.arrangement.diagram.types) if exhibit.arrangement else 0


def _pictures(arrangement: Placement) -> list[Page]:
    tags = len(arrangement.diagram.types) <= _TAGGED
    bubbles = draw_bubbles(Scene(arrangement, 6, 6, _SIZE - 12, _SIZE - 12), tags=tags)
    return [Page(_SIZE, _SIZE, tuple(shapes)) for shapes in (bubbles, draw_floorplans(arrangement, 0, 0, _SIZE, _SIZE))]


def _broken(arrangement: Placement | None) -> list[str]:
    """Return in words what the boxes do not show as it is told."""
    if arrangement is None:
        return []
    told = zip(arrangement.sentences(), arrangement.holds, strict=True)
    return [f"not shown: {' '.join(sentence.split())}" for sentence, holds in told if not holds] + [
        f"shown near each other without a relation: {names}" for names in arrangement.extra_names()
    ]


def _inline(page: Page) -> str:
    """Return SVG as it stands in HTML, where it needs no name space."""
    return to_svg(page).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
