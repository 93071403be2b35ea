"""Levels of validity and realisability against enumeration and CP-SAT."""

from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.geometry.realisability import realise
from dither.tasks.bubble_diagram.geometry.wall_constraints import Canvas
from dither.tasks.bubble_diagram.plans import Diagram, encode
from dither.tasks.bubble_diagram.relations import (
    NEAR,
    RULE,
    edges_of,
    exclusive,
    overlapping,
)
from dither.tasks.bubble_diagram.validity import token_validity, validity_levels
from dither.tasks.bubble_diagram.vocabulary import (
    EDGE_PAD,
    INSIDE,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    RELATIONS,
    SURROUNDING,
    pairs,
)

LEFT, RIGHT = RELATIONS.index("left-of"), RELATIONS.index("right-of")


def along_an_axis(side, smallest):
    """Walls of three rooms along one axis, one example for each combination of comparisons."""
    walls = np.array(
        [(a, b) for a in range(side + 1) for b in range(a + smallest, side + 1)]
    )
    every = np.stack(
        np.meshgrid(*[walls[:, 0] * 100 + walls[:, 1]] * 3, indexing="ij"), -1
    ).reshape(-1, 3)
    low, high = every // 100, every % 100
    ways = []
    for i, j in pairs(3):
        middle, start, end = low[:, i] + high[:, i], 2 * low[:, j], 2 * high[:, j]
        place = (
            (middle >= start) * 1 + (middle > start) + (middle >= end) + (middle > end)
        )
        near = (low[:, i] - NEAR <= high[:, j]) & (low[:, j] <= high[:, i] + NEAR)
        overlap = (low[:, i] < high[:, j]) & (low[:, j] < high[:, i])
        contains = (low[:, i] < low[:, j]) & (high[:, i] > high[:, j])
        ways.append(place * 8 + near * 4 + contains * 2 + overlap)
    _, first = np.unique(np.stack(ways, 1), axis=0, return_index=True)
    return low[first], high[first]


def possible_diagrams(side, smallest, disjoint):
    """Enumerate integer boxes: True for each realisable diagram of three rooms."""
    low, high = along_an_axis(side, smallest)
    found = np.zeros((NO_EDGE + 1,) * 3, bool)
    for x0, x1 in zip(low, high, strict=True):
        boxes = np.stack(
            [
                np.broadcast_to(x0, low.shape),
                low,
                np.broadcast_to(x1, high.shape),
                high,
            ],
            -1,
        )
        found[tuple(edges_of(boxes[~(overlapping(boxes) & disjoint).any(1)]).T)] = True
    return found


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("disjoint", [False, [True, False, True]])
def test_small_canvas_equals_enumeration(disjoint, step):
    """Diagrams of three rooms at levels 3 to 5, on a canvas so small that ties and rounding matter; all if slow."""
    side, smallest = 11, 1
    possible, canvas = (
        possible_diagrams(side, smallest, disjoint),
        Canvas(side, smallest),
    )
    assert 0.15 < possible.mean() < 0.7
    for edges in list(product(range(NO_EDGE + 1), repeat=3))[::step]:
        found = realise(np.array(edges), 3, canvas=canvas, disjoint=disjoint)
        assert found.verdict == ("realisable" if possible[edges] else "impossible"), (
            edges
        )
        if disjoint is False:
            shown = possible[
                tuple(slice(None) if edge == NO_EDGE else edge for edge in edges)
            ].any()
            loose = realise(np.array(edges), 3, canvas=canvas, apart=False)
            assert loose.verdict == ("realisable" if shown else "impossible"), edges


def drawn(plans, row):
    rooms = int(plans.rooms[row])
    return edges_of(plans.boxes[row, :rooms]), rooms


def solver_verdict(edges, rooms, disjoint, side=256, smallest=12):
    """Level 5 by OR-tools CP-SAT, formulated from the rule itself."""
    model = cp_model.CpModel()
    walls = [[model.new_int_var(0, side, "") for _ in range(4)] for _ in range(rooms)]

    def at_most(low, high):
        literal = model.new_bool_var("")
        model.add(low <= high).only_enforce_if(literal)
        model.add(low > high).only_enforce_if(~literal)
        return literal

    for box, axis in product(walls, (0, 1)):
        model.add(box[axis] + smallest <= box[axis + 2])
    for (i, j), relation, apart in zip(pairs(rooms), edges, disjoint, strict=True):
        u, v = walls[i], walls[j]
        near = [
            at_most(a[axis] - NEAR, b[axis + 2])
            for axis in (0, 1)
            for a, b in ((u, v), (v, u))
        ]
        beyond = [at_most(u[a] + 1, v[a]) for a in (0, 1)] + [
            at_most(v[a] + 1, u[a]) for a in (2, 3)
        ]
        if relation == NO_EDGE:
            model.add_bool_or([~literal for literal in near])
            continue
        model.add_bool_and(near)
        if relation == SURROUNDING:
            model.add_bool_and(beyond)
            continue
        model.add_bool_or([~literal for literal in beyond])
        cells = [model.new_int_var(0, 4, "") for _ in (0, 1)]
        for a, cell in enumerate(cells):
            centre, low, high = u[a] + u[a + 2], 2 * v[a], 2 * v[a + 2]
            model.add(
                cell
                == sum(
                    at_most(mark + tie, centre)
                    for mark in (low, high)
                    for tie in (0, 1)
                )
            )
        model.add_allowed_assignments(
            cells, [(x, y) for y, x in np.argwhere(np.equal(RULE, relation)).tolist()]
        )
        if apart and relation != INSIDE:
            model.add_bool_or(
                [
                    at_most(a[axis + 2], b[axis])
                    for axis in (0, 1)
                    for a, b in ((u, v), (v, u))
                ]
            )
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return {"OPTIMAL": "realisable", "INFEASIBLE": "impossible"}[
        solver.status_name(solver.solve(model))
    ]


@pytest.mark.parametrize(
    ("most", "count"), [(5, 6), pytest.param(7, 30, marks=pytest.mark.slow)]
)
def test_level_5_agrees_with_an_integer_programming_solver(most, count):
    plans, random, verdicts = make_plans(8, 0, 60), np.random.default_rng(0), []
    for row in np.flatnonzero(plans.rooms <= most)[:count]:
        edges, rooms = drawn(plans, row)
        exclude = exclusive(plans.types[row, :rooms])
        assert not (overlapping(plans.boxes[row, :rooms]) & exclude).any(), (
            "procedural plans reach level 5"
        )
        for place in random.choice(
            np.flatnonzero(edges < NO_EDGE), random.integers(0, 3), replace=False
        ):
            edges[place] = random.integers(0, 10)
        found = realise(edges, rooms, disjoint=exclude)
        verdicts.append(found.verdict)
        assert found.verdict == solver_verdict(edges.tolist(), rooms, exclude), row
        if found.boxes is not None:
            assert (edges_of(found.boxes) == edges).all()
            assert not (overlapping(found.boxes) & exclude).any()
    assert {"realisable", "impossible"} == {*verdicts}


def test_search_limit_gives_unknown():
    plans = make_plans(2, 0, 40)
    tokens = plans.tokens(8)
    assert realise(*drawn(plans, 0), limit=0).verdict == "unknown"
    cycle = np.array(
        [LEFT if j == i + 1 else RIGHT if j == i + 4 else NO_EDGE for i, j in pairs(5)]
    )
    assert realise(cycle, 5, limit=0).verdict == "impossible", (
        "propagation alone proves this"
    )
    found = validity_levels(tokens, 8, limit=1)
    assert 0 < found.unknown.sum() < 40
    assert not (found.unknown & found.buildable).any()
    assert (found.unknown | found.buildable).all()
    assert not found.boxes[~found.realisable].any()
    rates = found.rates()
    assert rates["unknown"] == found.unknown.mean()
    assert rates["level_4"] == found.realisable.mean()


def test_levels_are_nested_and_deterministic():
    plans, random = make_plans(4, 0, 40), np.random.default_rng(0)
    tokens = plans.tokens(8)
    damaged, broken = tokens.copy(), tokens[:5].copy()
    for row in damaged:
        row[random.choice(np.flatnonzero(row[8:] < EDGE_PAD)) + 8] = random.integers(
            0, NO_EDGE + 1
        )
    broken[:, 0] = 13
    found = validity_levels(np.concatenate([tokens, damaged, tokens, broken]), 8)
    for lower, upper in pairwise(found.reached()):
        assert (upper <= lower).all()
    assert found.buildable[:40].all()
    assert found.buildable[80:120].all()
    assert found.buildable.sum() < found.realisable.sum()
    assert not found.structure.tokens[120:].any()
    assert 0 < found.realisable[40:80].sum() < 40
    assert (found.boxes[:40] == found.boxes[80:120]).all()
    assert (validity_levels(tokens, 8, boxes=plans.boxes).boxes == plans.boxes).all(), (
        "known boxes are the proof"
    )
    moved = validity_levels(tokens, 8, boxes=plans.boxes[::-1])
    assert moved.buildable.all(), "wrong boxes are ignored"
    assert (moved.boxes != plans.boxes[::-1]).any()


NODE = st.sampled_from([0, 0, 1, 2, 10, NODE_MASK, NODE_PAD])
EDGE = st.sampled_from([*range(11), NO_EDGE, NO_EDGE, EDGE_PAD])


@st.composite
def legal(draw):
    """Tokens of a diagram of up to four rooms in four slots."""
    rooms = draw(st.integers(1, 4))
    types = draw(st.lists(st.sampled_from([0, 1, 10]), min_size=rooms, max_size=rooms))
    edges = [
        (i, j, r)
        for i, j in pairs(rooms)
        if (r := draw(st.sampled_from([*range(10), NO_EDGE, NO_EDGE]))) != NO_EDGE
    ]
    return encode(Diagram(tuple(types), tuple(edges)), 4)


def slow_levels(tokens):
    types, edges = (
        tokens[:4].tolist(),
        dict(zip(pairs(4), tokens[4:].tolist(), strict=True)),
    )
    rooms = sum(kind != NODE_PAD for kind in types)
    good = (
        rooms > 0
        and all(kind < NODE_MASK for kind in types[:rooms])
        and set(types[rooms:]) <= {NODE_PAD}
    )
    good = good and all(
        (0 <= r <= NO_EDGE) if j < rooms else r == EDGE_PAD
        for (_, j), r in edges.items()
    )
    if not good:
        return [False, False, False]
    real = [(i, j, r) for (i, j), r in edges.items() if r < NO_EDGE]
    reached = {0}
    for _ in range(4):
        reached |= {
            k for i, j, _ in real for k in (i, j) if i in reached or j in reached
        }
    program = (
        types.count(0) == 1 and types.count(10) <= 1 and reached == set(range(rooms))
    )

    def sortable(before, behind):
        """Whether some order of the centres satisfies every relation."""
        return any(
            all(
                (before not in RELATIONS[r] or place[i] < place[j])
                and (behind not in RELATIONS[r] or place[i] > place[j])
                for i, j, r in real
            )
            for place in permutations(range(4))
        )

    return [
        True,
        program,
        program and sortable("left", "right") and sortable("above", "below"),
    ]


@given(st.one_of(legal(), st.tuples(*[NODE] * 4, *[EDGE] * 6).map(np.array)))
def test_levels_equal_enumeration(tokens):
    found = token_validity(tokens[None], 4)
    assert [found.tokens[0], found.program[0], found.order[0]] == slow_levels(tokens)


def test_long_cycles_are_found():
    ring = [(i, i + 1, RELATIONS.index("left-of")) for i in range(7)]
    for last, fine in (("left-of", True), ("right-of", False), ("above", True)):
        tokens = encode(
            Diagram((0, *[1] * 7), (*ring, (0, 7, RELATIONS.index(last)))), 8
        )
        found = token_validity(tokens[None], 8)
        assert found.program[0]
        assert found.order[0] == fine
    two = encode(Diagram((0, 1, 1), ((0, 1, 3), (1, 2, 3), (0, 2, 6))), 8)
    assert not token_validity(two[None], 8).order[0], "above contains a cycle"
