"""The motif scan against a loop over words."""

import numpy as np
import pytest
import torch

from dither.tasks.get_region.data.motif_scan import Motif, encode, scan

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


def test_chunks_do_not_matter():
    random = np.random.default_rng(2)
    bases = random.integers(0, 4, (17, 30)).astype(np.uint8)
    motifs = some_motifs(random)
    assert (scan(bases, motifs, rows=1) == scan(bases, motifs, rows=100)).all()


def test_bases_as_numbers():
    assert encode(["ACGTN", "acgt-"]).tolist() == [[0, 1, 2, 3, 4]] * 2
    with pytest.raises(ValueError, match=r"lengths \[2, 3\]"):
        encode(["AC", "ACG"])
