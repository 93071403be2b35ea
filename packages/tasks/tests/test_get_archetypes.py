"""Pooling of motifs, against numpy and average linkage by hand."""

import numpy as np
import pytest

from dither.tasks.get_region.data.build_human_dhs import archetype_names, cluster, correlation, pool


def average_linkage(r, number):
    """Merge the two groups that are closest on average until `number` are left."""
    groups = [[i] for i in range(len(r))]
    while len(groups) > number:
        pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
        a, b = max(pairs, key=lambda pair: r[np.ix_(groups[pair[0]], groups[pair[1]])].mean())
        groups[b] += groups.pop(a)
    return {frozenset(group) for group in groups}


def test_correlation_is_pearson_and_0_for_a_constant_column():
    found = np.random.default_rng(0).random((50, 6)).astype(np.float32)
    np.testing.assert_allclose(correlation(found), np.corrcoef(found.T), atol=1e-6)
    found[:, 2] = 3
    assert (np.delete(correlation(found)[2], 2) == 0).all()


@pytest.mark.parametrize("number", [1, 3, 5, 8, 12])
def test_clusters_are_those_of_average_linkage(number):
    random = np.random.default_rng(number)
    hidden = random.random((80, 4))
    r = correlation((hidden[:, random.integers(0, 4, 12)] + 0.4 * random.random((80, 12))).astype(np.float32))
    labels = cluster(r, number)
    assert {frozenset(np.flatnonzero(labels == i).tolist()) for i in range(number)} == average_linkage(r, number)
    firsts = [int(np.flatnonzero(labels == i)[0]) for i in range(number)]
    assert firsts == sorted(firsts)


def test_an_impossible_number_of_archetypes_is_refused():
    r = correlation(np.random.default_rng(0).random((20, 4)).astype(np.float32))
    with pytest.raises(ValueError, match="1 to 4 archetypes, not 5"):
        cluster(r, 5)
    with pytest.raises(ValueError, match="some are equal"):
        cluster(np.ones((4, 4)), 3)


def test_pooling_sums_members():
    found = np.arange(12, dtype=np.float32).reshape(3, 4)
    labels = np.array([0, 1, 0, 1])
    np.testing.assert_array_equal(pool(found, labels), [[2, 4], [10, 12], [18, 20]])


def test_an_archetype_is_named_after_its_most_typical_motif():
    r = np.eye(5)
    for a, b, value in ((0, 1, 0.9), (1, 2, 0.8), (0, 2, 0.5)):
        r[a, b] = r[b, a] = value
    labels = np.array([0, 0, 0, 1, 2])
    assert archetype_names(["A", "B", "C", "D", "E"], r, labels) == ["B+2", "D", "E"]
    assert archetype_names(["A", "B", "C", "D", "D"], r, labels) == ["B+2", "D (1)", "D (2)"]
