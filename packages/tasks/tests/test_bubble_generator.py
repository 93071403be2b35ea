import hashlib
from itertools import pairwise

import numpy as np
import pytest

from dither.tasks.bubble_diagram.data import procedural as generator
from dither.tasks.bubble_diagram.data.procedural import (
    BLOCK,
    LARGER_COUNTS,
    SHARED,
    draw_counts,
    draw_room_programs,
    grow_living_rooms,
    make_plans,
    partition_outlines,
    shared_walls,
)
from dither.tasks.bubble_diagram.relations import GRID, edges_of, labels_of
from dither.tasks.bubble_diagram.specs import ProceduralPlans
from dither.tasks.bubble_diagram.validity import token_validity
from dither.tasks.bubble_diagram.vocabulary import (
    EDGE_PAD,
    INSIDE,
    LIVING,
    NO_EDGE,
    NODE_PAD,
    ROOM_COUNTS,
    ROOM_IDS,
    ROOMS,
    SURROUNDING,
    pairs,
)

COUNT = 8192


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


def test_only_the_living_room_overlaps(plans):
    i, j = np.array(pairs(8)).T
    u, v = plans.boxes[:, i].astype(int), plans.boxes[:, j].astype(int)
    overlap = (np.minimum(u[..., 2:], v[..., 2:]) - np.maximum(u[..., :2], v[..., :2])).min(-1) > 0
    living = (plans.types[:, i] == LIVING) | (plans.types[:, j] == LIVING)
    assert not (overlap & ~living).any()
    assert (overlap & living).any(1).mean() > 0.3


def test_rooms_have_required_walls(plans):
    """Bedrooms, balconies and entrances have an outer wall; all but baths and balconies touch the living room."""
    real, boxes = plans.types != NODE_PAD, plans.boxes.astype(int)
    low = np.where(real[..., None], boxes[..., :2], GRID).min(1, keepdims=True)
    high = np.where(real[..., None], boxes[..., 2:], 0).max(1, keepdims=True)
    outer = ((boxes[..., :2] == low) | (boxes[..., 2:] == high)).any(-1)
    bedrooms = [ROOM_IDS[name] for name in ("MasterRoom", "ChildRoom", "StudyRoom", "SecondRoom", "GuestRoom")]
    assert outer[np.isin(plans.types, [*bedrooms, ROOM_IDS["Balcony"], ROOM_IDS["Entrance"]])].all()
    u, v = boxes[:, :, None], boxes[:, None]
    gap = np.maximum(u[..., :2], v[..., :2]) - np.minimum(u[..., 2:], v[..., 2:])
    beside = (gap.max(-1) <= 4) & real[:, :, None] & real[:, None]
    at_living = (beside & (plans.types == LIVING)[:, None]).any(2)
    at_bedroom = (beside & np.isin(plans.types, bedrooms)[:, None]).any(2)
    apart = np.isin(plans.types, [ROOM_IDS["Bathroom"], ROOM_IDS["Balcony"]])
    assert at_living[real & ~apart].all()
    assert (at_living | at_bedroom)[real].all()
    assert 0.01 < (~at_living)[real & apart].mean() < 0.5, "no bath or balcony is reached through a bedroom"


def test_living_room_is_the_largest(plans):
    sides = (plans.boxes[..., 2:] - plans.boxes[..., :2]).astype(int)
    area = sides.prod(-1)
    living = np.where(plans.types == LIVING, area, 0).max(1)
    assert (living >= 0.85 * area.max(1)).all()


def test_directions_are_uniform(plans):
    """Plans are rotated by random quarter turns, so left, right, above and below are equally frequent."""
    edges = related(plans)
    straight = np.array([(plans.edges[edges] == relation).sum() for relation in (2, 7, 3, 6)])
    diagonal = np.array([(plans.edges[edges] == relation).sum() for relation in (0, 1, 8, 9)])
    for counts in (straight, diagonal):
        assert (abs(counts / counts.mean() - 1) < 0.05).all(), counts


class Turning:
    """Random numbers that centre all plans, and rotate plan k by k quarter turns."""

    def random(self, shape):
        return np.full(shape, 0.5) if isinstance(shape, tuple) else np.arange(shape) / 4


def test_quarter_turns():
    boxes = np.tile([[0, 0, 10, 30], [10, 0, 40, 60], [0, 0, 0, 0]], (4, 1, 1))
    real = np.array([[True, True, False]] * 4)
    placed = generator._place(boxes, real, np.array([[40, 60]] * 4), Turning())
    assert placed[0].tolist() == [[108, 98, 118, 128], [118, 98, 148, 158], [0, 0, 0, 0]]
    for before, after in pairwise(placed):
        for (x0, y0, x1, y1), turned in zip(before[:2].tolist(), after[:2].tolist(), strict=True):
            assert turned == [GRID - y1, x0, GRID - y0, x1]


def test_turns_are_equally_frequent(plans):
    """Outlines are wider than high before the rotation, so a missing quarter turn shifts the mean."""
    real = (plans.types != NODE_PAD)[..., None]
    sides = np.where(real, plans.boxes[..., 2:], 0).max(1) - np.where(real, plans.boxes[..., :2], GRID).min(1)
    difference = (sides[:, 0] - sides[:, 1]).astype(float)
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(COUNT)


def test_order_of_rooms_is_uniform(plans):
    place = (plans.types == LIVING).argmax(1)[plans.rooms == 7]
    assert (abs(np.bincount(place, minlength=7) / len(place) * 7 - 1) < 0.15).all()


def test_plan_is_a_function_of_seed_and_number(plans):
    whole = plans.tokens(8)
    generator._make_block.cache_clear()
    for start, stop in ((0, 1), (BLOCK - 1, BLOCK + 1), (700, 731), (BLOCK, BLOCK), (1000, 3 * BLOCK)):
        part = make_plans(0, start, stop)
        assert len(part) == stop - start
        assert (part.tokens(8) == whole[start:stop]).all()
        assert (part.boxes == plans.boxes[start:stop]).all()
    assert (make_plans(1, 0, 100).tokens(8) != whole[:100]).any(1).mean() > 0.9


def test_plans_differ(plans):
    assert len({row.tobytes() for row in plans.tokens(8)}) > 0.99 * COUNT


@pytest.mark.parametrize("most", [4, 5, 6])
def test_small_plans(most):
    plans = make_plans(3, 0, 200, most)
    assert plans.types.shape == (200, most)
    assert plans.rooms.max() == most
    assert plans.rooms.min() >= 4


@pytest.mark.parametrize(("start", "stop", "most", "message"), [(0, 5, 15, "15"), (0, 5, 3, "3"), (5, 2, 8, "5 and 2")])
def test_invalid_arguments(start, stop, most, message):
    with pytest.raises(ValueError, match=message):
        make_plans(0, start, stop, most)


def test_plans_are_reproducible_across_versions():
    """After a deliberate change of the generator, raise `ProceduralPlans.rev` and update the digest."""
    digest = hashlib.sha256(make_plans(0, 0, 64).tokens(8).tobytes()).hexdigest()
    assert (ProceduralPlans.rev, digest[:16]) == (1, "6bdcde028f8249e4")


def test_pieces_partition_the_outline():
    random = np.random.default_rng(0)
    pieces = random.integers(5, 11, 300)
    boxes = partition_outlines(pieces, random)
    sides = boxes[..., 2:] - boxes[..., :2]
    assert ((sides > 0).all(-1).sum(1) == pieces).all()
    assert (sides.prod(-1).sum(1) == boxes.max(1)[:, 2:].prod(1)).all()
    u, v = boxes[:, :, None], boxes[:, None]
    common = (np.minimum(u[..., 2:], v[..., 2:]) - np.maximum(u[..., :2], v[..., :2])).min(-1) > 0
    assert (common.sum((1, 2)) == pieces).all(), "pieces overlap"


def test_shared_walls():
    boxes = np.array(
        [[[0, 0, 20, 40], [20, 0, 60, SHARED], [20, SHARED, 60, 40], [60, 0, 80, SHARED - 1], [0, 0, 0, 0]]]
    )
    found = shared_walls(boxes)[0]
    assert {(int(i), int(j)) for i, j in np.argwhere(found) if i < j} == {(0, 1), (0, 2), (1, 2)}
    assert (found == found.T).all()


def test_living_rooms_are_connected():
    random = np.random.default_rng(1)
    extra = np.repeat([0, 1, 2], 50)
    boxes = partition_outlines(np.full(150, 9), random)
    touching = shared_walls(boxes)
    living = grow_living_rooms(boxes, touching, extra, random)
    for near, chosen, more in zip(touching, living, extra, strict=True):
        some = np.flatnonzero(chosen)
        assert len(some) <= 1 + more
        reached = {int(some[0])}
        for _ in some:
            reached |= {int(k) for k in some if any(near[k, r] for r in reached)}
        assert reached == set(some.tolist())


def test_room_programs_are_drawn_without_replacement():
    random = np.random.default_rng(2)
    rooms = np.full(20_000, 5)
    types = draw_room_programs(rooms, random)
    assert types.shape == (20_000, 4)
    names = {name: (types == kind).sum(1) for kind, name in enumerate(ROOMS)}
    assert abs(names["MasterRoom"].mean() - 0.985) < 0.005
    # With all usual rooms one position is left: SecondRoom has 16.5 of the weights.
    usual = (names["MasterRoom"] == 1) & (names["Kitchen"] == 1)
    total = 12 + 4 + 0.5 + 6 + 0.6 + 1.6 + 0.12 + 1.1 + 0.7 + 0.45 + 0.35 + 0.25 + 0.15 + 0.08
    assert abs((names["SecondRoom"][usual] == 1).mean() - 16.5 / total) < 0.015
    assert (draw_room_programs(np.array([4, 8]), random) == -1).sum(1).tolist() == [4, 0]


def test_room_counts_are_truncated_at_most():
    counts = draw_counts(20_000, 5, np.random.default_rng(0))
    assert set(counts.tolist()) == {4, 5}
    assert abs((counts == 4).mean() - 0.003 / 0.075) < 0.006
