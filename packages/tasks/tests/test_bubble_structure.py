from collections import Counter
from itertools import permutations
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.metrics import Frequencies
from dither.tasks.bubble_diagram.plans import Diagram, encode
from dither.tasks.bubble_diagram.validity import token_validity
from dither.tasks.bubble_diagram.vocabulary import EDGE_PAD, NO_EDGE, NODE_MASK, NODE_PAD, RELATIONS, pairs

NODE = st.sampled_from([0, 0, 1, 2, 10, NODE_MASK, NODE_PAD])
EDGE = st.sampled_from([*range(11), NO_EDGE, NO_EDGE, EDGE_PAD])


@st.composite
def legal(draw):
    """Tokens of a diagram of up to four rooms in four slots."""
    rooms = draw(st.integers(1, 4))
    types = draw(st.lists(st.sampled_from([0, 1, 10]), min_size=rooms, max_size=rooms))
    edges = [
        (i, j, r) for i, j in pairs(rooms) if (r := draw(st.sampled_from([*range(10), NO_EDGE, NO_EDGE]))) != NO_EDGE
    ]
    return encode(Diagram(tuple(types), tuple(edges)), 4)


def slow_levels(tokens):
    types, edges = tokens[:4].tolist(), dict(zip(pairs(4), tokens[4:].tolist(), strict=True))
    rooms = sum(kind != NODE_PAD for kind in types)
    good = rooms > 0 and all(kind < NODE_MASK for kind in types[:rooms]) and set(types[rooms:]) <= {NODE_PAD}
    good = good and all((0 <= r <= NO_EDGE) if j < rooms else r == EDGE_PAD for (_, j), r in edges.items())
    if not good:
        return [False, False, False]
    real = [(i, j, r) for (i, j), r in edges.items() if r < NO_EDGE]
    reached = {0}
    for _ in range(4):
        reached |= {k for i, j, _ in real for k in (i, j) if i in reached or j in reached}
    program = types.count(0) == 1 and types.count(10) <= 1 and reached == set(range(rooms))

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

    return [True, program, program and sortable("left", "right") and sortable("above", "below")]


@given(st.one_of(legal(), st.tuples(*[NODE] * 4, *[EDGE] * 6).map(np.array)))
def test_levels_equal_enumeration(tokens):
    found = token_validity(tokens[None], 4)
    assert [found.tokens[0], found.program[0], found.order[0]] == slow_levels(tokens)


def test_long_cycles_are_found():
    ring = [(i, i + 1, RELATIONS.index("left-of")) for i in range(7)]
    for last, fine in (("left-of", True), ("right-of", False), ("above", True)):
        tokens = encode(Diagram((0, *[1] * 7), (*ring, (0, 7, RELATIONS.index(last)))), 8)
        found = token_validity(tokens[None], 8)
        assert found.program[0]
        assert found.order[0] == fine
    two = encode(Diagram((0, 1, 1), ((0, 1, 3), (1, 2, 3), (0, 2, 6))), 8)
    assert not token_validity(two[None], 8).order[0], "above contains a cycle"


def test_unigram_nats_equal_brute_force():
    train, held = make_plans(0, 0, 100).tokens(8), make_plans(0, 100, 150).tokens(8)
    fitted, counted = Frequencies.of(train, 8), Frequencies.of(held, 8)
    nats, uniform, tokens = fitted.unigram_nats(counted), counted.uniform_nats(), counted.tokens_per_graph()
    for field, part, pad in (("nodes", slice(8), NODE_PAD), ("edges", slice(8, None), EDGE_PAD)):
        seen, asked = (rows[:, part][rows[:, part] != pad].tolist() for rows in (train, held))
        counts = Counter(range(13 if field == "nodes" else 11)) + Counter(seen)
        assert nats[field] == pytest.approx(-sum(log(counts[token] / counts.total()) for token in asked) / 50)
        assert uniform[field] == pytest.approx(len(asked) * log(13 if field == "nodes" else 11) / 50)
        assert tokens[field] == pytest.approx(len(asked) / 50)
