from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.data.plan_files import divide, hold_out
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.isomorphism import canonical_forms, plan_groups
from dither.tasks.bubble_diagram.plans import Diagram, Plans, decode, encode, real_edges
from dither.tasks.bubble_diagram.vocabulary import EDGE_MASK, EDGE_PAD, NO_EDGE, NODE_MASK, NODE_PAD, pairs


@st.composite
def diagrams(draw, most=6):
    rooms = draw(st.integers(1, most))
    types = draw(st.lists(st.integers(0, 12), min_size=rooms, max_size=rooms))
    labels = draw(st.lists(st.integers(0, 10), min_size=len(pairs(rooms)), max_size=len(pairs(rooms))))
    edges = [(i, j, r) for (i, j), r in zip(pairs(rooms), labels, strict=True) if r != NO_EDGE]
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


def test_tokens_of_three_rooms_in_four_slots():
    tokens = encode(Diagram((0, 2, 3), ((0, 1, 7), (1, 2, 4))), 4)
    # pairs 01 02 03 12 13 23
    assert tokens.tolist() == [0, 2, 3, NODE_PAD, 7, NO_EDGE, EDGE_PAD, 4, EDGE_PAD, EDGE_PAD]


def errors(tokens, rooms=3):
    with pytest.raises(Refused) as info:
        decode(np.array(tokens), rooms)
    assert set(info.value.codes) == {"invalid-sample"}
    return [problem.message for problem in info.value.problems]


@pytest.mark.parametrize(
    ("tokens", "texts"),
    [
        ([0, NODE_MASK, 3, 1, EDGE_MASK, 2], ["room 1: remaining MASK", "pair 0, 2: remaining MASK"]),
        ([0, NODE_PAD, 3, 1, EDGE_PAD, 2], ["room 1: PAD", "pair 0, 2: PAD"]),
        ([0, 1, NODE_PAD, 1, EDGE_PAD, 2], ["pair 1, 2: 2"]),
        ([0, 1, 99, 1, 13, -1], ["room 2: invalid id 99", "pair 0, 2: invalid id 13", "pair 1, 2: invalid id -1"]),
        ([NODE_PAD] * 3 + [EDGE_PAD] * 3, ["no rooms"]),
    ],
)
def test_invalid_tokens(tokens, texts):
    messages = errors(tokens)
    assert len(messages) == len(texts)
    assert all(message.startswith(text) for message, text in zip(messages, texts, strict=True))


@pytest.mark.parametrize(
    ("types", "edges", "message"),
    [
        ((0, 13), (), "0..12"),
        ((0, 1), ((1, 0, 2),), "i < j < 2"),
        ((0, 1), ((0, 0, 2),), "i < j < 2"),
        ((0, 1), ((0, 1, 10),), "relation < 10"),
        ((0, 1), ((0, 1, 3), (0, 1, 4)), "more than one relation"),
    ],
)
def test_invalid_diagrams(types, edges, message):
    with pytest.raises(ValueError, match=message):
        Diagram(types, edges)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="2 rooms, but 1 boxes"):
        Diagram((0, 1), (), ((0, 0, 1, 1),))
    with pytest.raises(ValueError, match="3 rooms does not fit into 2"):
        encode(Diagram((0, 1, 2), ()), 2)
    with pytest.raises(ValueError, match="3 rooms do not fit into 2"):
        Plans.from_diagrams([Diagram((0, 1, 2), ())], 3).tokens(2)


def test_relations_follow_from_boxes():
    diagram = Diagram.from_boxes((0, 2, 9), [(50, 50, 100, 100), (104, 60, 130, 90), (180, 50, 200, 70)], "a")
    assert diagram.edges == ((0, 1, 2),)  # the third is too far away
    plans = Plans.from_diagrams([diagram, Diagram((0, 1), ((0, 1, 3),))], 3)
    assert plans.rooms.tolist() == [3, 2]
    assert plans.diagram(0).boxes == diagram.boxes
    assert plans.diagram(1).boxes is None
    again = Plans.from_boxes(plans.types[:1], plans.boxes[:1])
    assert (again.edges == plans.edges[:1]).all()


def chain_of(length, kind=0):
    """Rooms, each left of the next."""
    return Diagram((kind,) * length, tuple((i, i + 1, 2) for i in range(length - 1)))


def test_splits_depend_on_content_only():
    plans = [chain_of(length, kind) for length in range(2, 9) for kind in range(10)]
    first = hold_out(Plans.from_diagrams(plans, 8), valid=0.2, test=0.1)
    second = hold_out(Plans.from_diagrams([*plans[::-1], *plans[:20]], 8), valid=0.2, test=0.1)
    rows = [[{row.tobytes() for row in part.tokens(8)} for part in (s.train, s.valid, s.test)] for s in (first, second)]
    assert rows[0] == rows[1], "order or copies changed the split of a plan"
    assert [len(part) for part in rows[0]] == [49, 14, 7]
    assert len(second.train) + len(second.valid) + len(second.test) == 90, "a plan was lost"


def shuffled(diagram, random):
    """Return the plan with its rooms in another order."""
    order = random.permutation(len(diagram.types))
    return Diagram.from_boxes([diagram.types[r] for r in order], [diagram.boxes[r] for r in order])


def matrix_of(rooms, relations):
    labels = np.full((rooms, rooms), NO_EDGE)
    for (u, v), relation in relations.items():
        labels[u, v] = relation
    return labels


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(1, 2), st.integers(1, 2))
def test_canonical_forms_are_exact(seed, rooms, kinds, relations):
    """Against all orders of the rooms, on graphs that colour refinement alone does not separate."""
    random = np.random.default_rng(seed)
    types = random.integers(0, kinds, (2, rooms))
    labels = np.where(random.random((2, rooms, rooms)) < 0.5, random.integers(0, relations, (2, rooms, rooms)), NO_EDGE)
    order = random.permutation(rooms)
    if seed % 2:
        types[1], labels[1] = types[0, order], labels[0][np.ix_(order, order)]
    labels[:, range(rooms), range(rooms)] = NO_EDGE
    first, second = canonical_forms(types, labels)
    same = any(
        (types[0, list(p)] == types[1]).all() and (labels[0][np.ix_(p, p)] == labels[1]).all()
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
    one, two = canonical_forms(np.ones((2, 12), int), np.stack([both, both[np.ix_(order, order)]]))
    assert one == two
    # Takes exponential time unless interchangeable rooms are tried once.
    list(canonical_forms(np.ones((1, 40), int), np.full((1, 40, 40), NO_EDGE)))


def test_reordered_copies_share_a_split():
    random = np.random.default_rng(1)
    plans = make_plans(3, 0, 200)
    some = [plans.diagram(row) for row in range(200)]
    both = Plans.from_diagrams([*some, *(shuffled(diagram, random) for diagram in some)], 8)
    groups = plan_groups(both)
    assert groups[:200] == groups[200:]
    assert len(set(groups)) > 190, "different plans share a group"
    bare = [Diagram(diagram.types, diagram.edges) for diagram in some]
    assert plan_groups(Plans.from_diagrams([*some, *bare], 8))[200:] == groups[:200]
    split = divide(groups, valid=0.2, test=0.2)
    assert (split[:200] == split[200:]).all()
    assert np.bincount(split).tolist() == [240, 80, 80]


def test_every_split_has_a_plan():
    three = Plans.from_diagrams([chain_of(2), chain_of(3), chain_of(4)], 4)
    assert [len(p) for p in vars(hold_out(three, valid=0.01, test=0.01)).values()] == [1, 1, 1]
    assert [len(p) for p in vars(hold_out(three, valid=0.9, test=0.05)).values()] == [1, 1, 1]
    assert [len(p) for p in vars(hold_out(three[:2], valid=0.1, test=0.0)).values()] == [1, 1, 0]
    with pytest.raises(Refused) as info:
        hold_out(Plans.from_diagrams([chain_of(2)] * 5, 4), valid=0.1, test=0.1)
    assert info.value.codes == ["no-samples"]
