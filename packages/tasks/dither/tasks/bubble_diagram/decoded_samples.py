"""Decoded samples with validity levels and room boxes, ready for pictures and export.

Letters: N samples, L tokens, R rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock

import numpy as np

from dither.registry.config.errors import Refused

from .arrays import Boundaries, BoxBatch, Tokens
from .box_tokens import box_problems
from .edit_distance import graph_edit_distance
from .geometry.boundary import corners_of
from .geometry.outline_fit import outline_iou, outline_outside, place_in_outline
from .geometry.placement import (
    Placement,
    area_errors,
    area_problems,
    dwelling_problems,
    place_diagram,
    place_edited,
)
from .plans import Diagram, decode
from .relations import edges_of, exclusive, overlapping
from .validity import validity_levels
from .vocabulary import NO_EDGE

_PLACEMENT_LOCK = Lock()
"""Metrics and pictures are made at the same time; the second to come finds the placement in the
cache."""

LEVELS = (
    "tokens",
    "program",
    "order",
    "edges",
    "realisable",
    "buildable",
    "dwelling",
)
"""Names of the validity levels 0 to 6; the last one is that of the layout."""


@dataclass(frozen=True)
class DecodedSample:
    """One sample.

    Attributes:
        level: Highest validity level reached, -1 if the tokens do not decode; 6 if the layout of a
            buildable diagram is a dwelling.
        unknown: The search gave up before levels 3 to 5 were decided.
        placement: The diagram with room boxes; None, and errors, if the tokens do not decode.
        errors: Why the tokens do not decode, or why a layout of level 5 is not a dwelling.
    """

    number: int
    level: int
    unknown: bool
    placement: Placement | None
    errors: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The level in words."""
        if self.level < 0:
            return "unreadable"
        verdict = f"L{self.level} {LEVELS[self.level]}"
        return f"{verdict}, search gave up" if self.unknown else verdict


def read_samples(
    tokens: Tokens, rooms: int, boxes: BoxBatch | None = None
) -> list[tuple[Diagram | None, tuple[str, ...]]]:
    """Return for each sample with `rooms` room slots the diagram, or None and its errors.

    `boxes` are those that a model drew (`box_tokens.decode_boxes`).
    """
    samples: list[tuple[Diagram | None, tuple[str, ...]]] = []
    for number, row in enumerate(tokens):
        try:
            diagram = decode(row, rooms)
        except Refused as refused:
            samples.append(
                (None, tuple(problem.message for problem in refused.problems))
            )
            continue
        if boxes is not None:
            count = len(diagram.types)
            errors = tuple(box_problems(boxes[number], count))
            if errors:
                samples.append((None, errors))
                continue
            walls = boxes[number, :count].tolist()
            diagram = replace(diagram, boxes=tuple(map(tuple, walls)))
        samples.append((diagram, ()))
    return samples


def decode_samples(
    tokens: Tokens,
    rooms: int,
    boundaries: Boundaries | None = None,
    narrow: Callable[[Diagram], Diagram] | None = None,
    boxes: BoxBatch | None = None,
) -> Iterator[DecodedSample]:
    """Yield samples with `rooms` room slots, placed in their boundaries if there are any.

    `narrow` restricts the areas of a diagram to constraints. With `boxes`, which a model drew,
    samples are placed there, and levels are those of these boxes.
    """
    if not len(tokens):
        return
    levels = validity_levels(tokens, rooms, boxes=boxes, search=boxes is None)
    # Each level includes those before it: their number gives the highest.
    reached = np.sum(levels.reached(), 0) - 1
    for number, (diagram, errors) in enumerate(read_samples(tokens, rooms, boxes)):
        if diagram is None:
            yield DecodedSample(
                number=number,
                level=-1,
                unknown=False,
                placement=None,
                errors=errors,
            )
            continue
        narrowed = diagram if narrow is None else narrow(diagram)
        boundary = b""
        if boundaries is not None and corners_of(boundaries[number]):
            boundary = boundaries[number].astype(np.int64).tobytes()
        # Bytes, as the key of a cache must be hashable.
        proof = levels.boxes[number, : len(diagram.types)].tobytes()
        with _PLACEMENT_LOCK:
            placement = _place_checked(narrowed, proof, boundary)
        level = int(reached[number])
        reasons: tuple[str, ...] = ()
        if level == 5:
            reasons = _dwelling_errors(placement)
            if not reasons:
                level = 6
        yield DecodedSample(
            number=number,
            level=level,
            unknown=bool(levels.unknown[number]),
            placement=placement,
            errors=reasons,
        )


# Samples are checked, drawn, compared with their tokens, and exported.
@lru_cache(maxsize=1024)
def _place_checked(
    diagram: Diagram,
    proof: bytes,
    boundary: bytes,
) -> Placement:
    placement = _place(diagram, proof, boundary)
    return replace(placement, unmet=(*placement.unmet, *area_problems(placement)))


def _dwelling_errors(placement: Placement) -> tuple[str, ...]:
    if not placement.exact:
        return ("no dwelling: the layout violates relations",)
    return tuple(f"no dwelling: {problem}" for problem in dwelling_problems(placement))


def _place(
    diagram: Diagram,
    proof: bytes,
    boundary: bytes,
) -> Placement:
    if diagram.edit is not None and not boundary:
        edited = place_edited(diagram)
        if edited is not None:
            return edited
    boxes = np.frombuffer(proof, np.int16).reshape(-1, 4)
    free = replace(diagram, edit=None)
    placement = place_diagram(free, boxes if boxes.any() else None, search=False)
    if not boundary:
        if diagram.edit is None:
            return placement
        # The kept rooms cannot keep their boxes: the sample is turned back as it is laid out.
        restored = diagram.restored(placement.boxes)
        return Placement.of(replace(restored, boxes=None), np.array(restored.boxes))
    return place_in_outline(placement, np.frombuffer(boundary, np.int64).reshape(-1, 2))


def edit_distance(placement: Placement) -> int:
    """Return the graph edit distance of a diagram and its drawn plan; 0 if adjacencies agree.

    Rooms match by type, and relations by whether there is one.
    """
    from scipy.spatial.distance import squareform

    diagram = placement.diagram
    wanted, drawn = (
        squareform(relations != NO_EDGE)
        for relations in (diagram.relations, edges_of(placement.boxes))
    )
    return graph_edit_distance(diagram.types, wanted, drawn)


def box_metrics(
    tokens: Tokens, rooms: int, boxes: BoxBatch, drawn: int
) -> dict[str, float]:
    """Return what boxes that a model drew are worth, whether or not they show the relations.

    `boxes_legal` is the share of samples whose boxes have sides, `boxes_disjoint` of those without
    forbidden overlap too, and `boxes_dwelling` of dwellings among the first `drawn` samples, which
    take longer. `relations_shown` is the share of the relations of samples with legal boxes that
    these show.
    """
    legal = 0
    disjoint = 0
    dwellings = 0
    holds: list[bool] = []
    for number, (diagram, _) in enumerate(read_samples(tokens, rooms, boxes)):
        if diagram is None:
            continue
        legal += 1
        placed = place_diagram(diagram)
        holds += placed.holds
        if not _is_disjoint(placed):
            continue
        disjoint += 1
        if number < drawn and not any(dwelling_problems(placed)):
            dwellings += 1

    metrics = {
        "boxes_legal": legal / len(tokens),
        "boxes_disjoint": disjoint / len(tokens),
        "boxes_dwelling": dwellings / min(drawn, len(tokens)),
    }
    if holds:
        metrics["relations_shown"] = sum(holds) / len(holds)
    return metrics


def _is_disjoint(placement: Placement) -> bool:
    forbidden = exclusive(placement.diagram.types)
    return not (overlapping(placement.boxes) & forbidden).any()


def compatibility(
    tokens: Tokens,
    rooms: int,
    narrow: Callable[[Diagram], Diagram] | None = None,
    boxes: BoxBatch | None = None,
) -> dict[str, float]:
    """Return the mean graph edit distance of the samples that decode and their layouts.

    Compatibility of HouseGAN (Nauata et al., 2020). Of more than 8 rooms it is an upper bound; see
    `graph_edit_distance`.
    """
    levels = validity_levels(tokens, rooms, boxes=boxes, search=boxes is None)
    legal = levels.structure.tokens
    if not legal.any():
        return {}
    # The layout of a realisable diagram shows its relations.
    rows = legal & ~levels.realisable
    drawn = None if boxes is None else boxes[rows]
    samples = decode_samples(tokens[rows], rooms, narrow=narrow, boxes=drawn)
    distances = [edit_distance(s.placement) for s in samples if s.placement]
    return {"compatibility": sum(distances) / int(legal.sum())}


def layout_area_error(samples: Iterable[DecodedSample]) -> dict[str, float]:
    """Return how well the layouts of samples of level 5 keep their areas.

    `area_kept` is the share of rooms whose drawn area is in its bin, `area_error` the mean
    relative distance to it.
    """
    placements = [
        sample.placement for sample in samples if sample.level >= 5 and sample.placement
    ]
    if not placements:
        return {}
    errors = np.concatenate(
        [area_errors(placed.diagram, placed.boxes) for placed in placements]
    )
    return {
        "area_kept": float((errors == 0).mean()),
        "area_error": float(errors.mean()),
    }


def layout_met(samples: Iterable[DecodedSample]) -> dict[str, float]:
    """Return the share of samples of level 5 whose layout meets everything that it has to."""
    unmet = []
    for sample in samples:
        if sample.level >= 5:
            unmet.append(bool(sample.placement and sample.placement.unmet))

    if unmet:
        return {"layout_met": 1 - float(np.mean(unmet))}
    return {}


def outline_metrics(samples: Iterable[DecodedSample]) -> dict[str, float]:
    """Return the means of intersection over union, share outside, and graph edit distance.

    Those of layouts in an outline.
    """
    placements = []
    for sample in samples:
        if sample.placement and sample.placement.outline:
            placements.append(sample.placement)
    if not placements:
        return {}
    return {
        "outline_iou": float(np.mean([*map(outline_iou, placements)])),
        "outline_outside": float(np.mean([*map(outline_outside, placements)])),
        "compatibility": float(np.mean([*map(edit_distance, placements)])),
    }
