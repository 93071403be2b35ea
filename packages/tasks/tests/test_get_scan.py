"""The motif scan against a loop over words; log-odds and thresholds against the enumeration of every word."""

from itertools import product

import numpy as np
import pytest
import torch

from dither.tasks.get_region.data.motif_scan import Motif, encode, log_odds, scan, score_distribution, threshold

torch.set_num_threads(1)
COMPLEMENT = str.maketrans("ACGTN", "TGCAN")


def reference(sequence, motif):
    """Sum of the scores of all hits on both strands, in bits, with nothing but loops."""
    total, width = 0, len(motif.scores)
    for strand in (sequence, sequence.translate(COMPLEMENT)[::-1]):
        for start in range(len(strand) - width + 1):
            word = strand[start : start + width]
            if "N" in word:
                continue
            score = sum(int(motif.scores[i]["ACGT".index(base)]) for i, base in enumerate(word))
            total += score if score >= motif.threshold else 0
    return total / 100


def some_motifs(random, widths=(4, 5, 5, 7, 4, 12)):
    return [Motif.of(f"M{i}", random.integers(0, 30, (width, 4)) + 1.0, 0.02) for i, width in enumerate(widths)]


@pytest.mark.parametrize("letters", ["ACGT", "ACGTACGTACGTN"])
def test_the_scan_equals_a_loop_over_words(letters):
    random = np.random.default_rng(0)
    sequences = ["".join(random.choice(list(letters), 40)) for _ in range(23)]
    motifs = some_motifs(random)
    found = scan(encode(sequences), motifs, rows=5)
    expected = np.array([[reference(sequence, motif) for motif in motifs] for sequence in sequences])
    assert (expected > 0).mean() > 0.1  # there is something to find
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_both_strands_count():
    motif = Motif.of("M", 9 * np.eye(4)[[0, 0, 1, 2]], 1 / 256)
    best = motif.scores.max(1).sum() / 100
    found = scan(encode(["TTAACGTT", "GGAACGGG", "GGCGTTGG", "GGGGGGGG"]), [motif])[:, 0]
    np.testing.assert_allclose(found, [2 * best, best, best, 0], rtol=1e-6)  # AACG, and CGTT as its other strand


def test_a_motif_longer_than_the_sequence_is_not_found():
    motifs = some_motifs(np.random.default_rng(1), (9, 3))
    assert scan(encode(["ACGTAC"]), motifs)[0, 0] == 0


def test_bases_as_numbers():
    assert encode(["ACGTN", "acgt-"]).tolist() == [[0, 1, 2, 3, 4]] * 2
    with pytest.raises(ValueError, match=r"lengths \[2, 3\]"):
        encode(["AC", "ACG"])


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
