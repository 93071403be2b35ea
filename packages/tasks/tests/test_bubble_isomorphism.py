from itertools import permutations

import numpy as np

from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.isomorphism import PlanIndex, is_first_occurrence
from dither.tasks.bubble_diagram.plans import Plans
from dither.tasks.bubble_diagram.relations import labels_of
from dither.tasks.bubble_diagram.vocabulary import NO_EDGE, NODE_PAD, pairs


def reordered(plans, random):
    """Return the plans with their rooms in another order."""
    slots = plans.types.shape[1]
    order = np.argsort(np.where(plans.types != NODE_PAD, random.random(plans.types.shape), 2), 1)[:, :slots]
    boxes = np.take_along_axis(plans.boxes, order[..., None], 1)
    return Plans.from_boxes(np.take_along_axis(plans.types, order, 1), boxes)


def random_boxes(random):
    low = random.integers(0, 30, (100_000, 2, 2))
    boxes = np.concatenate([low, low + random.integers(1, 30, low.shape)], -1)
    return boxes[:, 0], boxes[:, 1]


def small_plans(count, random):
    """Plans of three rooms of few types, so that many are isomorphic."""
    types = random.integers(0, 2, (count, 3)).astype(np.int8)
    low = random.integers(0, 3, (count, 3, 2)) * 12
    return Plans.from_boxes(types, np.concatenate([low, low + 10], -1).astype(np.int16))


def test_index_with_boxes_holds_exactly_the_isomorphic_diagrams():
    random = np.random.default_rng(0)
    plans, queries = small_plans(40, random), small_plans(300, random)
    everything = set()
    for order in permutations(range(3)):
        turned = Plans.from_boxes(plans.types[:, order], plans.boxes[:, order])
        everything |= {tuple(row) for row in turned.tokens(3).tolist()}
    expected = [tuple(row) in everything for row in queries.tokens(3).tolist()]
    assert 20 < sum(expected) < 280
    assert PlanIndex(plans.tokens(3), 3, plans.boxes).holds(queries.tokens(3)).tolist() == expected


def test_index_without_boxes_holds_all_possibly_isomorphic_diagrams():
    random = np.random.default_rng(1)
    back = np.zeros((10, 10), bool)
    u, v = random_boxes(random)
    back[labels_of(u, v), labels_of(v, u)] = True
    plans, queries = small_plans(25, random), small_plans(120, random)

    def same(one, other):
        """Brute force: some order of rooms in which no pair is contradictory."""
        edges, others = (dict(zip(pairs(3), row[3:].tolist(), strict=True)) for row in (one, other))
        for order in permutations(range(3)):
            fits = all(one[room] == other[order[room]] for room in range(3))
            for (i, j), relation in edges.items():
                a, b = order[i], order[j]
                relation_there = others[min(a, b), max(a, b)]
                if a < b or NO_EDGE in (relation_there, relation):
                    fits = fits and relation_there == relation
                else:
                    fits = fits and back[relation, relation_there]
            if fits:
                return True
        return False

    rows, tokens = plans.tokens(3), queries.tokens(3)
    expected = [any(same(one, other) for other in rows) for one in tokens]
    assert 10 < sum(expected) < 110
    assert PlanIndex(rows, 3).holds(tokens).tolist() == expected
    assert (PlanIndex(rows, 3, plans.boxes).holds(tokens) <= PlanIndex(rows, 3).holds(tokens)).all()
    first = []
    for row, one in enumerate(tokens):
        if not any(same(one, tokens[other]) for other in first):
            first.append(row)
    assert np.flatnonzero(is_first_occurrence(tokens, 3)).tolist() == first


def test_training_plans_are_found_in_any_order():
    plans, random = make_plans(0, 0, 1500), np.random.default_rng(0)
    train, held = plans[:1000], plans[1000:]
    index = PlanIndex(train.tokens(8), 8, train.boxes)
    other = reordered(train, random)
    assert (other.tokens(8) != train.tokens(8)).any(1).mean() > 0.99
    assert index.holds(train.tokens(8)).all()
    assert index.holds(other.tokens(8)).all()
    assert index.holds(held.tokens(8)).mean() < 0.05
    changed = other.tokens(8).copy()
    changed[:, 8] = np.where(changed[:, 8] == NO_EDGE, NO_EDGE, (changed[:, 8] + 5) % 10)
    related = other.edges[:, 0] != NO_EDGE
    assert index.holds(changed)[related].mean() < 0.05
    both = np.concatenate([train.tokens(8), other.tokens(8)])
    first = is_first_occurrence(both, 8)
    assert not (first[:1000] & first[1000:]).any()
    assert is_first_occurrence(train.tokens(8), 8).mean() > 0.97
