"""Decoded samples with validity levels and room boxes, ready for pictures and export.

Letters: N samples, L tokens, R rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Final

import numpy as np
from jaxtyping import Int

from dither.registry.config.errors import Refused

from .geometry.boundary import corners_of
from .geometry.outline_fit import place_in_outline
from .geometry.placement import Placement, area_errors, place_diagram
from .plans import Diagram, decode
from .validity import validity_levels

__all__ = [
    "LEVELS",
    "DecodedSample",
    "decode_samples",
    "edit_distance",
    "layout_area_error",
    "read_samples",
]

_PLACEMENT_LOCK: Final = Lock()
"""Metrics and pictures are made at the same time; the second to come finds the placement in the
cache."""

LEVELS: Final = ("tokens", "program", "order", "edges", "realisable", "buildable")
"""Names of the validity levels 0 to 5."""


@dataclass(frozen=True)
class DecodedSample:
    """One sample.

    Attributes:
        level: Highest validity level reached, -1 if the tokens do not decode.
        unknown: The search gave up before levels 3 to 5 were decided.
        placement: The diagram with room boxes; None, and errors, if the tokens do not decode.
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
        return f"L{self.level} {LEVELS[self.level]}" + ", search gave up" * self.unknown


def read_samples(
    tokens: Int[np.ndarray, "N L"], rooms: int
) -> list[tuple[Diagram | None, tuple[str, ...]]]:
    """Return for each sample with `rooms` room slots the diagram, or None and the errors in its tokens."""
    samples: list[tuple[Diagram | None, tuple[str, ...]]] = []
    for row in tokens:
        try:
            samples.append((decode(row, rooms), ()))
        except Refused as refused:
            samples.append((None, tuple(problem.message for problem in refused.problems)))
    return samples


def decode_samples(
    tokens: Int[np.ndarray, "N L"],
    rooms: int,
    boundaries: Int[np.ndarray, "N P 2"] | None = None,
    narrow: Callable[[Diagram], Diagram] | None = None,
) -> Iterator[DecodedSample]:
    """Yield samples with `rooms` room slots, placed in their boundaries if there are any.

    `narrow` restricts the areas of a diagram to constraints.
    """
    if not len(tokens):
        return
    levels = validity_levels(tokens[:, : rooms * (rooms + 1) // 2], rooms)
    for number, (diagram, errors) in enumerate(read_samples(tokens, rooms)):
        if diagram is None:
            yield DecodedSample(number, -1, False, None, errors)
            continue
        narrowed = diagram if narrow is None else narrow(diagram)
        boundary = b""
        if boundaries is not None and corners_of(boundaries[number]):
            boundary = boundaries[number].astype(np.int64).tobytes()
        with _PLACEMENT_LOCK:
            placement = _place(
                narrowed, levels.boxes[number, : len(diagram.types)].tobytes(), boundary
            )
        level = sum(bool(mask[number]) for mask in levels.reached()) - 1
        yield DecodedSample(number, level, bool(levels.unknown[number]), placement)


@lru_cache(maxsize=256)  # samples are drawn, compared with their tokens, and exported
def _place(diagram: Diagram, proof: bytes, boundary: bytes) -> Placement:
    boxes = np.frombuffer(proof, np.int16).reshape(-1, 4)
    placement = place_diagram(diagram, boxes if boxes.any() else None, search=False)
    return (
        place_in_outline(placement, np.frombuffer(boundary, np.int64).reshape(-1, 2))
        if boundary
        else placement
    )


def edit_distance(placement: Placement) -> float:
    """Return the graph edit distance between a diagram and its drawn plan; 0 means that all adjacencies agree.

    Rooms match by type, and relations by whether there is one (compatibility of HouseGAN; Nauata et
    al., 2020).
    """
    import networkx

    diagram = placement.diagram
    graphs = []
    drawn = Diagram.from_boxes(diagram.types, [tuple(box) for box in placement.boxes.tolist()])
    pairs = [{edge[:2] for edge in one.edges} for one in (diagram, drawn)]
    if pairs[0] == pairs[1]:
        return 0.0
    for edges in pairs:
        graph = networkx.Graph(edges)
        graph.add_nodes_from((room, {"type": kind}) for room, kind in enumerate(diagram.types))
        graphs.append(graph)
    most = len(pairs[0] ^ pairs[1])
    # One second to find a shorter edit path than the one that keeps all rooms.
    distance = networkx.graph_edit_distance(
        *graphs, node_match=lambda a, b: a == b, upper_bound=most, timeout=1
    )
    return float(most if distance is None else distance)


def layout_area_error(samples: Iterable[DecodedSample]) -> dict[str, float]:
    """Return how well the layouts of samples of level 5 keep their areas.

    `area_kept` is the share of rooms whose box has an area in its bin, `area_error` the mean
    relative distance to it.
    """
    placements = [
        sample.placement for sample in samples if sample.level == 5 and sample.placement is not None
    ]
    if not placements:
        return {}
    errors = np.concatenate([area_errors(one.diagram, one.boxes) for one in placements])
    return {"area_kept": float((errors == 0).mean()), "area_error": float(errors.mean())}
