"""Log-odds and thresholds against the enumeration of every word."""

from itertools import product

import numpy as np
import pytest

from dither.tasks.get_region.data.motif_scan import Motif, log_odds, score_distribution, threshold

COUNTS = np.array([[8, 1, 1, 0], [0, 10, 0, 0], [3, 3, 2, 2], [0, 0, 1, 9], [5, 0, 5, 0]], dtype=float)


def scores_of_all_words(scores):
    return np.array(
        [
            sum(column[base] for column, base in zip(scores, word, strict=True))
            for word in product(range(4), repeat=len(scores))
        ]
    )


def test_log_odds_are_hundredths_of_a_bit():
    # Ten counts and a pseudocount of 1/4 per base: (8.25 / 11) / (1/4) = 3, (0.25 / 11) / (1/4) = 1/11.
    assert log_odds(COUNTS)[0].tolist() == [round(100 * np.log2(value)) for value in (3, 5 / 11, 5 / 11, 1 / 11)]
    assert (log_odds(np.full((3, 4), 7.0)) == 0).all()


def test_the_distribution_by_enumeration():
    scores = log_odds(COUNTS)
    lowest, chance = score_distribution(scores)
    words = scores_of_all_words(scores)
    counted = np.bincount(words - words.min(), minlength=len(chance)) / len(words)
    assert lowest == words.min()
    np.testing.assert_allclose(chance, counted, atol=1e-15)


@pytest.mark.parametrize("p_value", [0.5, 0.1, 0.02, 1 / 128, 1 / 256])
def test_the_threshold_is_the_lowest_score_that_is_rare_enough(p_value):
    scores = log_odds(COUNTS)
    words = scores_of_all_words(scores)
    level = threshold(scores, p_value, floor=-10_000)
    assert (words >= level).mean() <= p_value
    assert (words >= level - 1).mean() > p_value


def test_the_threshold_of_a_short_motif_is_its_best_word():
    scores = log_odds(COUNTS)
    best = scores_of_all_words(scores).max()
    assert threshold(scores, 1e-4) == best  # 1 of 1,024 words is more than 1e-4
    assert threshold(scores, 1e-4) > threshold(scores, 1e-2)


def test_a_motif_without_preference_has_a_threshold_of_half_a_bit():
    assert threshold(log_odds(np.full((6, 4), 5.0)), 0.9) == 50


@pytest.mark.parametrize(
    "counts", [[], [[1, 2, 3]], [[1, 2, 3, -1]], [[0, 0, 0, 0]], [[1, 2, 3, float("nan")]]], ids=str
)
def test_invalid_counts_are_refused(counts):
    with pytest.raises((ValueError, TypeError)):  # a TypeError where shapes are checked before
        Motif.of("X", np.array(counts, dtype=float))
