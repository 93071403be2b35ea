"""Fields of samples: distances of doors and areas to real plans, baselines, and errors of layouts.

Letters: N samples, L tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log

import numpy as np
from jaxtyping import Int

from .decoded_samples import DecodedSample
from .geometry.placement import area_errors
from .metrics import divergence
from .plans import split_fields
from .validity import is_reachable
from .vocabulary import AREA_MASK, DOOR, IDS, NODE_MASK, door_ends

__all__ = ["field_metrics", "field_nats", "layout_area_error"]


def field_metrics(tokens: Int[np.ndarray, "N L"], reference: Int[np.ndarray, "M L"], rooms: int) -> dict[str, float]:
    """Return the share of samples with all rooms reachable by doors, and distances to a reference.

    `door_js` and `area_js` are Jensen-Shannon divergences in nats of doors given the types of both sides, and of areas
    given the type of the room, weighted by their frequency in the reference.
    """
    if not (len(tokens) and len(reference)):
        return {}
    fields, metrics = split_fields(tokens, rooms), dict[str, float]()
    if fields.doors is not None:
        metrics["reachable"] = float(is_reachable(tokens, rooms).mean())
        metrics["door_js"] = divergence(_door_counts(tokens, rooms), _door_counts(reference, rooms))
    if fields.areas is not None:
        both = fields, split_fields(reference, rooms)
        metrics["area_js"] = divergence(*(_counts((NODE_MASK, AREA_MASK), one.types, one.areas) for one in both))
    return metrics


def _door_counts(tokens: Int[np.ndarray, "N L"], rooms: int) -> Int[np.ndarray, "T T 2"]:
    """Count pairs of rooms, and rooms and the outside, by both types in ascending order, without and with a door."""
    types, _, doors, _ = split_fields(tokens, rooms)
    i, j = np.array(door_ends(rooms)).T
    sides = np.pad(types.astype(np.int64), ((0, 0), (0, 1)), constant_values=NODE_MASK)
    ends = np.minimum(sides[:, i], sides[:, j]), np.maximum(sides[:, i], sides[:, j])
    return _counts((NODE_MASK, NODE_MASK + 1, DOOR + 1), *ends, doors)


def _counts(shape: tuple[int, ...], *ids: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*T"]:
    """Count combinations of ids within a shape; others are ignored."""
    real = np.all([(part >= 0) & (part < size) for part, size in zip(ids, shape, strict=True)], axis=0)
    counts = np.zeros(shape, np.int64)
    np.add.at(counts, tuple(part[real] for part in ids), 1)
    return counts


def field_nats(
    train: Int[np.ndarray, "N L"], held: Int[np.ndarray, "M L"], rooms: int
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return nats of each field per held-out diagram, uniform and unigram (add-one), and its number of tokens."""
    uniform, unigram, count = dict[str, float](), dict[str, float](), dict[str, float]()
    for (name, size), *parts in zip(IDS.items(), split_fields(train, rooms), split_fields(held, rooms), strict=True):
        if parts[0] is not None:
            fitted, counts = (np.array([np.count_nonzero(part == number) for number in range(size)]) for part in parts)
            shares, graphs = (fitted + 1) / (fitted + 1).sum(), max(len(held), 1)
            count[name] = float(counts.sum()) / graphs
            uniform[name], unigram[name] = count[name] * log(size), float(-(counts * np.log(shares)).sum()) / graphs
    return uniform, unigram, count


def layout_area_error(samples: Iterable[DecodedSample]) -> dict[str, float]:
    """Return how well the layouts of samples of level 5 keep their areas.

    `area_kept` is the share of rooms whose box has an area in its bin, `area_error` the mean relative distance to it.
    """
    placements = [sample.placement for sample in samples if sample.level == 5 and sample.placement is not None]
    if not placements:
        return {}
    errors = np.concatenate([area_errors(one.diagram, one.boxes) for one in placements])
    return {"area_kept": float((errors == 0).mean()), "area_error": float(errors.mean())}
