"""Plans: tokens, relations of boxes, isomorphism, splits."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.tasks.bubble_diagram.data.plan_files import divide, hold_out
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.isomorphism import (
    PlanIndex,
    canonical_forms,
    is_first_occurrence,
    plan_groups,
)
from dither.tasks.bubble_diagram.plans import Diagram, Plans, decode, encode, real_edges
from dither.tasks.bubble_diagram.relations import edges_of, labels_of
from dither.tasks.bubble_diagram.vocabulary import (
    COLOURS,
    EDGE_MASK,
    EDGE_PAD,
    INSIDE,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    RELATIONS,
    ROOMS,
    SHORT,
    SURROUNDING,
    pair_index,
    pairs,
)


@st.composite
def diagrams(draw, most=6):
    rooms = draw(st.integers(1, most))
    types = draw(st.lists(st.integers(0, 12), min_size=rooms, max_size=rooms))
    labels = draw(
        st.lists(
            st.integers(0, 10), min_size=len(pairs(rooms)), max_size=len(pairs(rooms))
        )
    )
    edges = [
        (i, j, r)
        for (i, j), r in zip(pairs(rooms), labels, strict=True)
        if r != NO_EDGE
    ]
    return Diagram(tuple(types), tuple(edges))


@given(diagrams(), st.integers(6, 9))
def test_token_round_trip(diagram, rooms):
    tokens = encode(diagram, rooms)
    assert tokens.shape == (rooms + rooms * (rooms - 1) // 2,)
    assert decode(tokens, rooms) == diagram
    real = np.arange(rooms) < len(diagram.types)
    assert ((tokens[:rooms] == NODE_PAD) == ~real).all()
    assert ((tokens[rooms:] == EDGE_PAD) == ~real_edges(real[None])[0]).all()
    plans = Plans.from_diagrams([diagram, diagram], 6)
    assert (plans.tokens(rooms) == tokens).all()
    assert plans.diagram(1) == diagram


@pytest.mark.parametrize(
    ("tokens", "texts"),
    [
        (
            [0, NODE_MASK, 3, 1, EDGE_MASK, 2],
            ["room 1: remaining MASK", "pair 0, 2: remaining MASK"],
        ),
        ([0, NODE_PAD, 3, 1, EDGE_PAD, 2], ["room 1: PAD", "pair 0, 2: PAD"]),
        ([0, 1, NODE_PAD, 1, EDGE_PAD, 2], ["pair 1, 2: 2"]),
        (
            [0, 1, 99, 1, 13, -1],
            [
                "room 2: invalid id 99",
                "pair 0, 2: invalid id 13",
                "pair 1, 2: invalid id -1",
            ],
        ),
        ([NODE_PAD] * 3 + [EDGE_PAD] * 3, ["no rooms"]),
    ],
)
def test_invalid_tokens(refusal, tokens, texts):
    refused = refusal(decode, np.array(tokens), 3)
    assert {*refused.codes} == {"invalid-sample"}
    messages = [problem.message for problem in refused.problems]
    assert all(
        message.startswith(text) for message, text in zip(messages, texts, strict=True)
    )


def test_invalid_diagrams_and_sizes():
    for types, edges, message in (
        ((0, 13), (), "0..12"),
        ((0, 1), ((1, 0, 2),), "i < j < 2"),
        ((0, 1), ((0, 0, 2),), "i < j < 2"),
        ((0, 1), ((0, 1, 10),), "relation < 10"),
        ((0, 1), ((0, 1, 3), (0, 1, 4)), "more than one relation"),
    ):
        with pytest.raises(ValueError, match=message):
            Diagram(types, edges)
    with pytest.raises(ValueError, match="2 rooms, but 1 boxes"):
        Diagram((0, 1), (), ((0, 0, 1, 1),))
    with pytest.raises(ValueError, match="3 rooms does not fit into 2"):
        encode(Diagram((0, 1, 2), ()), 2)
    with pytest.raises(ValueError, match="3 rooms do not fit into 2"):
        Plans.from_diagrams([Diagram((0, 1, 2), ())], 3).tokens(2)


def chain_of(length, kind=0):
    """Rooms, each left of the next."""
    return Diagram((kind,) * length, tuple((i, i + 1, 2) for i in range(length - 1)))


def test_splits_depend_on_content_only():
    plans = [chain_of(length, kind) for length in range(2, 9) for kind in range(10)]
    first = hold_out(Plans.from_diagrams(plans, 8), valid=0.2, test=0.1)
    second = hold_out(
        Plans.from_diagrams([*plans[::-1], *plans[:20]], 8), valid=0.2, test=0.1
    )
    rows = [
        [
            {row.tobytes() for row in part.tokens(8)}
            for part in (s.train, s.valid, s.test)
        ]
        for s in (first, second)
    ]
    assert rows[0] == rows[1], "order or copies changed the split of a plan"
    assert [len(part) for part in rows[0]] == [49, 14, 7]
    assert len(second.train) + len(second.valid) + len(second.test) == 90, (
        "a plan was lost"
    )


def reordered(plans, random):
    """Return the plans with their rooms in another order."""
    order = np.argsort(
        np.where(plans.types != NODE_PAD, random.random(plans.types.shape), 2), 1
    )
    boxes = np.take_along_axis(plans.boxes, order[..., None], 1)
    return Plans.from_boxes(np.take_along_axis(plans.types, order, 1), boxes)


def matrix_of(rooms, relations):
    labels = np.full((rooms, rooms), NO_EDGE)
    for (u, v), relation in relations.items():
        labels[u, v] = relation
    return labels


@given(
    st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(1, 2), st.integers(1, 2)
)
def test_canonical_forms_are_exact(seed, rooms, kinds, relations):
    """Against all orders of the rooms, on graphs that colour refinement alone does not separate."""
    random = np.random.default_rng(seed)
    types = random.integers(0, kinds, (2, rooms))
    labels = np.where(
        random.random((2, rooms, rooms)) < 0.5,
        random.integers(0, relations, (2, rooms, rooms)),
        NO_EDGE,
    )
    order = random.permutation(rooms)
    if seed % 2:
        types[1], labels[1] = types[0, order], labels[0][np.ix_(order, order)]
    labels[:, range(rooms), range(rooms)] = NO_EDGE
    first, second = canonical_forms(types, labels)
    same = any(
        (types[0, list(p)] == types[1]).all()
        and (labels[0][np.ix_(p, p)] == labels[1]).all()
        for p in permutations(range(rooms))
    )
    assert (first == second) == same


def test_canonical_forms_of_symmetric_plans():
    ring = matrix_of(6, {(k, (k + 1) % 6): 2 for k in range(6)})
    triangles = matrix_of(6, {(k, 3 * (k // 3) + (k + 1) % 3): 2 for k in range(6)})
    turned = np.roll(np.roll(ring, 2, 0), 2, 1)
    types = np.ones((3, 6), int)
    one, two, three = canonical_forms(types, np.stack([ring, triangles, turned]))
    assert one == three
    assert one != two
    # Refinement gives rooms of a ring and of triangles the same colour, but they are not interchangeable.
    both = np.full((12, 12), NO_EDGE)
    both[:6, :6], both[6:, 6:] = ring, triangles
    order = np.r_[6:12, 0:6]
    one, two = canonical_forms(
        np.ones((2, 12), int), np.stack([both, both[np.ix_(order, order)]])
    )
    assert one == two
    # Takes exponential time unless interchangeable rooms are tried once.
    list(canonical_forms(np.ones((1, 40), int), np.full((1, 40, 40), NO_EDGE)))


def test_reordered_copies_share_a_split():
    plans = make_plans(3, 0, 200)
    other = reordered(plans, np.random.default_rng(1))
    some = [plans.diagram(row) for row in range(200)]
    groups = plan_groups(
        Plans.from_diagrams([*some, *(other.diagram(row) for row in range(200))], 8)
    )
    assert groups[:200] == groups[200:]
    assert len(set(groups)) > 190, "different plans share a group"
    bare = [Diagram(diagram.types, diagram.edges) for diagram in some]
    assert plan_groups(Plans.from_diagrams([*some, *bare], 8))[200:] == groups[:200]
    split = divide(groups, valid=0.2, test=0.2)
    assert (split[:200] == split[200:]).all()
    assert np.bincount(split).tolist() == [240, 80, 80]


def test_every_split_has_a_plan(refusal):
    three = Plans.from_diagrams([chain_of(2), chain_of(3), chain_of(4)], 4)

    def sizes(plans, **shares):
        splits = hold_out(plans, **shares)
        return [len(splits.train), len(splits.valid), len(splits.test)]

    assert sizes(three, valid=0.01, test=0.01) == [1, 1, 1]
    assert sizes(three, valid=0.9, test=0.05) == [1, 1, 1]
    assert sizes(three[:2], valid=0.1, test=0.0) == [1, 1, 0]
    assert refusal(
        hold_out, Plans.from_diagrams([chain_of(2)] * 5, 4), valid=0.1, test=0.1
    ).codes == ["no-samples"]


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
    assert (
        PlanIndex(plans.tokens(3), 3, plans.boxes).holds(queries.tokens(3)).tolist()
        == expected
    )


def test_index_without_boxes_holds_all_possibly_isomorphic_diagrams():
    random = np.random.default_rng(1)
    back = np.zeros((10, 10), bool)
    low = random.integers(0, 30, (2, 100_000, 2))
    u, v = np.concatenate([low, low + random.integers(1, 30, low.shape)], -1)
    back[labels_of(u, v), labels_of(v, u)] = True
    plans, queries = small_plans(25, random), small_plans(120, random)

    def same(one, other):
        """Brute force: some order of rooms in which no pair is contradictory."""
        edges, others = (
            dict(zip(pairs(3), row[3:].tolist(), strict=True)) for row in (one, other)
        )
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
    assert (
        PlanIndex(rows, 3, plans.boxes).holds(tokens)
        <= PlanIndex(rows, 3).holds(tokens)
    ).all()
    first = []
    for row, one in enumerate(tokens):
        if not any(same(one, tokens[other]) for other in first):
            first.append(row)
    assert np.flatnonzero(is_first_occurrence(tokens, 3)).tolist() == first


@st.composite
def boxes(draw, largest=8):
    """Small boxes, so that centres often fall on walls."""
    x0, y0 = draw(st.integers(0, largest - 1)), draw(st.integers(0, largest - 1))
    return np.array(
        [x0, y0, draw(st.integers(x0 + 1, largest)), draw(st.integers(y0 + 1, largest))]
    )


def test_vocabulary():
    assert len(set(ROOMS)) == len(set(SHORT)) == len(set(COLOURS)) == len(ROOMS) == 13
    assert (len(RELATIONS), RELATIONS[INSIDE], RELATIONS[SURROUNDING], NO_EDGE) == (
        10,
        "inside",
        "surrounding",
        10,
    )
    # Graph2Plan orders them so that 9 - r is the opposite.
    opposite = {"left": "right", "above": "below", "inside": "surrounding"}
    opposite |= {b: a for a, b in opposite.items()} | {"of": "of"}
    for r, name in enumerate(RELATIONS):
        assert RELATIONS[9 - r] == "-".join(opposite[word] for word in name.split("-"))


def test_pairs_are_the_upper_triangle():
    assert pairs(4) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    for rooms in (2, 5, 8, 14):
        assert [pair_index(i, j, rooms) for i, j in pairs(rooms)] == list(
            range(rooms * (rooms - 1) // 2)
        )
    for i, j in ((1, 1), (2, 1), (-1, 2), (0, 4)):
        with pytest.raises(ValueError, match="0 <= i < j < 4"):
            pair_index(i, j, 4)


# Position of the first centre relative to the second box: the 25 cells in words.
CELLS = {
    "before": {
        "before": "left-above",
        "start": "above",
        "in": "above",
        "end": "right-above",
        "behind": "right-above",
    },
    "start": {
        "before": "left-above",
        "start": "left-above",
        "in": "above",
        "end": "right-above",
        "behind": "right-of",
    },
    "in": {
        "before": "left-of",
        "start": "left-of",
        "in": "inside",
        "end": "right-of",
        "behind": "right-of",
    },
    "end": {
        "before": "left-of",
        "start": "left-below",
        "in": "below",
        "end": "right-below",
        "behind": "right-below",
    },
    "behind": {
        "before": "left-below",
        "start": "left-below",
        "in": "below",
        "end": "below",
        "behind": "right-below",
    },
}


def slow_label(u, v):
    """The reference implementation: comparisons in their published order, in half pixels."""
    ux0, uy0, ux1, uy1 = (2 * int(wall) for wall in u)
    vx0, vy0, vx1, vy1 = (2 * int(wall) for wall in v)
    if ux0 < vx0 and uy0 < vy0 and ux1 > vx1 and uy1 > vy1:
        return "surrounding"
    if ux0 >= vx0 and uy0 >= vy0 and ux1 <= vx1 and uy1 <= vy1:
        return "inside"
    x, y = (ux0 + ux1) // 2, (uy0 + uy1) // 2

    def place(centre, low, high):
        words = {
            centre < low: "before",
            centre == low: "start",
            low < centre < high: "in",
            centre == high: "end",
        }
        return words.get(True, "behind")

    return CELLS[place(y, vy0, vy1)][place(x, vx0, vx1)]


@given(boxes(), boxes())
def test_labels_equal_the_reference(u, v):
    assert RELATIONS[int(labels_of(u, v))] == slow_label(u, v)


def test_edges_of_a_batch():
    low, size = np.random.default_rng(0).integers(
        [[[[0]]], [[[1]]]], [[[[60]]], [[[40]]]], (2, 30, 5, 2)
    )
    plans = np.concatenate([low, low + size], -1)
    edges = edges_of(plans)
    for plan, row in zip(plans, edges, strict=True):
        for (i, j), label in zip(pairs(5), row, strict=True):
            u, v = plan[i], plan[j]
            gaps = [max(u[a], v[a]) - min(u[a + 2], v[a + 2]) for a in (0, 1)]
            assert label == (
                RELATIONS.index(slow_label(u, v)) if max(gaps) <= 9 else NO_EDGE
            )
    assert len({*edges.ravel().tolist()}) == 11, (
        "some relation does not occur in the example"
    )
