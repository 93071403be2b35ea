import hashlib

import numpy as np
import pytest

from dither.tasks.bubble_diagram import isomorphism, metrics
from dither.tasks.bubble_diagram.data import procedural as generator
from dither.tasks.bubble_diagram.data.procedural import BLOCK, LARGER_COUNTS, make_plans
from dither.tasks.bubble_diagram.isomorphism import PlanIndex
from dither.tasks.bubble_diagram.metrics import Frequencies
from dither.tasks.bubble_diagram.relations import GRID, edges_of, labels_of
from dither.tasks.bubble_diagram.specs import ProceduralPlans
from dither.tasks.bubble_diagram.validity import token_validity
from dither.tasks.bubble_diagram.vocabulary import (
    EDGE_PAD,
    INSIDE,
    NO_EDGE,
    NODE_PAD,
    ROOM_COUNTS,
    ROOMS,
    SURROUNDING,
    pairs,
)

COUNT = 4096


@pytest.fixture(scope="module")
def plans():
    return make_plans(0, 0, COUNT)


def related(plans):
    """True for related pairs of rooms."""
    return (plans.edges != EDGE_PAD) & (plans.edges != NO_EDGE)


@pytest.fixture(scope="module", params=[8, 14])
def any_plans(request, plans):
    """Plans of up to 8 and of up to 14 rooms."""
    return plans if request.param == 8 else make_plans(5, 0, 1024, 14)


def test_distribution_of_room_counts(any_plans):
    slots, count = any_plans.types.shape[1], len(any_plans)
    shares = {rooms: share for rooms, share in {**ROOM_COUNTS, **LARGER_COUNTS}.items() if rooms <= slots}
    for rooms, weight in shares.items():
        share = weight / sum(shares.values())
        assert abs((any_plans.rooms == rooms).mean() - share) < 4 * np.sqrt(share * (1 - share) / count), rooms
    assert set(any_plans.rooms.tolist()) == set(shares)


def test_plans_have_one_living_room_and_are_connected(any_plans):
    slots = any_plans.types.shape[1]
    assert token_validity(any_plans.tokens(slots), slots).order.all()


def test_boxes_are_valid_and_give_the_relations(any_plans):
    slots, real = any_plans.types.shape[1], any_plans.types != NODE_PAD
    boxes = any_plans.boxes[real]
    assert boxes.min() >= 0
    assert boxes.max() <= GRID
    assert (boxes[:, 2:] - boxes[:, :2] >= 13).all()
    assert not any_plans.boxes[~real].any()
    assert (np.sort(~real, axis=1) == ~real).all(), "empty slots do not come last"
    expected = np.where(any_plans.edges == EDGE_PAD, EDGE_PAD, edges_of(any_plans.boxes))
    assert (expected == any_plans.edges).all()
    padding = len(pairs(slots)) * len(any_plans) - (any_plans.rooms * (any_plans.rooms - 1) // 2).sum()
    assert (any_plans.edges == EDGE_PAD).sum() == padding


def test_relations_are_distributed_as_in_rplan(plans):
    edges = related(plans)
    assert abs(edges.sum() / COUNT - 10.2) < 0.6
    i, j = np.array(pairs(8)).T
    back = labels_of(plans.boxes[:, j], plans.boxes[:, i])
    assert 0.60 < (back == 9 - plans.edges)[edges].mean() < 0.75
    assert 0.05 < np.isin(plans.edges, [INSIDE, SURROUNDING])[edges].mean() < 0.08


def test_distribution_of_types(plans):
    share = np.bincount(plans.types[plans.types != NODE_PAD], minlength=13) / COUNT
    by_name = dict(zip(ROOMS, share, strict=True))
    assert max(by_name, key=by_name.get) == "SecondRoom"
    assert min(by_name, key=by_name.get) == "Entrance"
    assert by_name["Entrance"] > 0
    assert 0.97 < by_name["MasterRoom"] < 1
    assert 0.97 < by_name["Kitchen"] < 1
    assert by_name["Bathroom"] >= 1
    most = (plans.types[:, :, None] == np.arange(13)).sum(1).max(0)
    caps = {"SecondRoom": 3, "Balcony": 2, "Bathroom": 3}
    assert all(most[kind] <= caps.get(name, 1) for kind, name in enumerate(ROOMS))


def test_turns_are_equally_frequent(plans):
    """Outlines are wider than high before the rotation, so a missing quarter turn shifts the mean."""
    real = (plans.types != NODE_PAD)[..., None]
    sides = np.where(real, plans.boxes[..., 2:], 0).max(1) - np.where(real, plans.boxes[..., :2], GRID).min(1)
    difference = (sides[:, 0] - sides[:, 1]).astype(float)
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(COUNT)


def test_plan_is_a_function_of_seed_and_number(plans):
    whole = plans.tokens(8)
    generator._make_block.cache_clear()
    for start, stop in ((0, 1), (BLOCK - 1, BLOCK + 1), (700, 731), (BLOCK, BLOCK), (1000, 3 * BLOCK)):
        part = make_plans(0, start, stop)
        assert len(part) == stop - start
        assert (part.tokens(8) == whole[start:stop]).all()
        assert (part.boxes == plans.boxes[start:stop]).all()
    assert (make_plans(1, 0, 100).tokens(8) != whole[:100]).any(1).mean() > 0.9


def test_many_plans_are_cached_and_indexed_in_pieces(plans, cache, monkeypatch):
    monkeypatch.setattr(generator, "CACHED", 700)
    made, cached = make_plans(0, 5, 1500), make_plans(0, 5, 1500)
    assert len(list(cache.rglob("*.npz"))) == 1
    assert (made.tokens(8) == plans[5:1500].tokens(8)).all()
    assert (cached.tokens(8) == made.tokens(8)).all()
    assert (cached.boxes == made.boxes).all()
    tokens = made.tokens(8)
    whole, frequencies = PlanIndex(tokens, 8, made.boxes), Frequencies.of(tokens, 8)
    monkeypatch.setattr(isomorphism, "_PIECE", 400)
    monkeypatch.setattr(metrics, "_PIECE", 400)
    assert (PlanIndex(tokens, 8, made.boxes).relations == whole.relations).all()
    assert (PlanIndex(tokens, 8).keys == whole.keys).all()
    assert frequencies.distances(Frequencies.of(tokens, 8)) == frequencies.distances(frequencies)
    next(cache.rglob("*.npz")).write_bytes(b"damaged")
    assert (make_plans(0, 5, 1500).tokens(8) == tokens).all()


def test_plans_are_reproducible_across_versions():
    """After a deliberate change of the generator, raise `ProceduralPlans.rev` and update the digest."""
    digest = hashlib.sha256(make_plans(0, 0, 64).tokens(8).tobytes()).hexdigest()
    assert (ProceduralPlans.rev, digest[:16]) == (1, "6bdcde028f8249e4")
