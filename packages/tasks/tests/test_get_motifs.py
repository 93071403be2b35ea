"""Motif files, the scan of a genome against a loop over words, thresholds against the enumeration of all words."""

import gzip
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from dither.engine.cli import main
from dither.tasks.get_region.data.motif_scan import (
    Motif,
    encode,
    log_odds,
    scan,
    score_distribution,
    threshold,
)
from dither.tasks.get_region.data_specs import RegionArrays, ScannedRegions
from dither.tasks.get_region.formats import tables
from dither.tasks.get_region.formats.motif_files import read_motifs, scan_regions
from dither.tasks.get_region.specs import GetRegion

torch.set_num_threads(1)
COMPLEMENT = str.maketrans("ACGTN", "TGCAN")


def reference(sequence, motif):
    """Sum of the scores of all hits on both strands, in bits, with nothing but loops."""
    total, width, sequence = 0, len(motif.scores), sequence.upper()
    for strand in (sequence, sequence.translate(COMPLEMENT)[::-1]):
        for start in range(len(strand) - width + 1):
            word = strand[start : start + width]
            if "N" in word:
                continue
            score = sum(
                int(motif.scores[i]["ACGT".index(base)]) for i, base in enumerate(word)
            )
            total += score if score >= motif.threshold else 0
    return total / 100


@pytest.mark.parametrize("letters", ["ACGT", "ACGTACGTACGTN"])
def test_the_scan_equals_a_loop_over_words(letters):
    random = np.random.default_rng(0)
    sequences = ["".join(random.choice(list(letters), 40)) for _ in range(23)]
    counts = [random.integers(0, 30, (width, 4)) + 1.0 for width in (4, 5, 5, 7, 4, 12)]
    motifs = [Motif.of(f"M{i}", table, 0.02) for i, table in enumerate(counts)]
    found = scan(encode(sequences), motifs, rows=5)
    expected = np.array(
        [[reference(sequence, motif) for motif in motifs] for sequence in sequences]
    )
    assert (expected > 0).mean() > 0.1  # there is something to find
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_both_strands_count():
    motif = Motif.of("M", 9 * np.eye(4)[[0, 0, 1, 2]], 1 / 256)
    best = motif.scores.max(1).sum() / 100
    assert encode(["ACGTN", "acgt-"]).tolist() == [[0, 1, 2, 3, 4]] * 2
    with pytest.raises(ValueError, match=r"lengths \[2, 3\]"):
        encode(["AC", "ACG"])
    found = scan(encode(["TTAACGTT", "GGAACGGG", "GGCGTTGG", "GGGGGGGG"]), [motif])[
        :, 0
    ]
    np.testing.assert_allclose(
        found, [2 * best, best, best, 0], rtol=1e-6
    )  # AACG, and CGTT as its other strand
    assert scan(encode(["ACG"]), [motif])[0, 0] == 0


TABLE = np.array(
    [[8, 1, 1, 0], [0, 10, 0, 0], [3, 3, 2, 2], [0, 0, 1, 9], [5, 0, 5, 0]], dtype=float
)


def scores_of_all_words(scores):
    words = product(range(4), repeat=len(scores))
    return np.array(
        [
            sum(column[base] for column, base in zip(scores, word, strict=True))
            for word in words
        ]
    )


def test_log_odds_are_hundredths_of_a_bit():
    # Ten counts and a pseudocount of 1/4 per base: (8.25 / 11) / (1/4) = 3, (0.25 / 11) / (1/4) = 1/11.
    assert log_odds(TABLE)[0].tolist() == [
        round(100 * np.log2(value)) for value in (3, 5 / 11, 5 / 11, 1 / 11)
    ]
    assert (log_odds(np.full((3, 4), 7.0)) == 0).all()


def test_the_distribution_by_enumeration():
    scores = log_odds(TABLE)
    lowest, chance = score_distribution(scores)
    words = scores_of_all_words(scores)
    counted = np.bincount(words - words.min(), minlength=len(chance)) / len(words)
    assert lowest == words.min()
    np.testing.assert_allclose(chance, counted, atol=1e-15)


def test_the_threshold_is_the_lowest_score_that_is_rare_enough():
    scores = log_odds(TABLE)
    words = scores_of_all_words(scores)
    for p_value in (0.5, 0.1, 0.02, 1 / 128, 1 / 256):
        level = threshold(scores, p_value, floor=-10_000)
        assert (words >= level).mean() <= p_value < (words >= level - 1).mean()
    assert (
        threshold(scores, 1e-4) == words.max()
    )  # of a short motif: 1 of 1,024 words is more than 1e-4
    assert (
        threshold(log_odds(np.full((6, 4), 5.0)), 0.9) == 50
    )  # without preference: half a bit


@pytest.mark.parametrize(
    "counts",
    [[], [[1, 2, 3]], [[1, 2, 3, -1]], [[0, 0, 0, 0]], [[1, 2, 3, float("nan")]]],
    ids=str,
)
def test_invalid_counts_are_refused(counts):
    with pytest.raises(
        (ValueError, TypeError)
    ):  # a TypeError where shapes are checked before
        Motif.of("X", np.array(counts, dtype=float))


COUNTS = {
    "ONE": [[18, 1, 0, 1], [0, 20, 0, 0], [0, 0, 20, 0], [2, 2, 2, 14]],
    "TWO": [[20, 0, 0, 0], [0, 0, 0, 20]],
}


def in_jaspar(name, key, table, form="{base} [ {numbers} ]"):
    rows = zip("ACGT", np.transpose(table), strict=True)
    lines = [
        form.format(base=base, numbers=" ".join(map(str, row))) for base, row in rows
    ]
    return "\n".join([f">{key} {name}", *lines, ""])


def in_meme(name, key, table):
    rows = "".join(
        " ".join(f"{count / 20:.6f}" for count in row) + "\n" for row in table
    )
    head = f"letter-probability matrix: alength= 4 w= {len(table)} nsites= 20 E= 0"
    return f"MOTIF {key} {name}\nlog-odds matrix: alength= 4 w= 1\n 9 9 9 9\n{head}\n{rows}URL http://x\n\n"


NAMED = [
    (name, f"MA{number}.1", table)
    for number, (name, table) in enumerate(COUNTS.items())
]
JASPAR = "".join(in_jaspar(*motif) for motif in NAMED)
BARE = "".join(in_jaspar("", name, table, "{numbers}") for name, _, table in NAMED)
MEME = (
    "MEME version 4\n\nBackground letter frequencies\nA 0.25 C 0.25 G 0.25 T 0.25\n\n"
)
MEME += "".join(in_meme(*motif) for motif in NAMED)
FORMS = {
    "jaspar": JASPAR,
    "bare": BARE,
    "meme": MEME,
    "sites": MEME.replace("nsites= 20 ", ""),
}


def test_motif_files(tmp_path):
    path = tmp_path / "motifs.txt"
    for text in FORMS.values():
        path.write_text(text)
        for motif, (name, counts) in zip(
            read_motifs(path, 0.02), COUNTS.items(), strict=True
        ):
            expected = Motif.of(name, np.array(counts, float), 0.02)
            assert (motif.name, motif.threshold) == (name, expected.threshold)
            assert np.array_equal(motif.scores, expected.scores)
    path.write_text(JASPAR.replace("TWO", "ONE"))
    assert [motif.name for motif in read_motifs(path)] == ["MA0.1", "MA1.1"]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("", ["unknown-format"]),
        ("chr1\t1\t2\n", ["unknown-format"]),
        (
            ">A\nA [1 2]\nC [1]\nG [1 2]\nT [1 2]\n>B\nA [1]\nC [1]\nG [1]\n",
            ["invalid-sample"] * 2,
        ),
        (JASPAR.replace("18", "-18"), ["invalid-sample"]),
        (
            "MEME version 5\nMOTIF A\nMOTIF B\nletter-probability matrix:\n",
            ["invalid-sample"] * 2,
        ),
        # What a file states is compared with what it has.
        (MEME.replace("w= 4", "w= 5"), ["invalid-sample"]),
        (MEME.replace("alength= 4 w= 4", "alength= 20 w= 4"), ["invalid-sample"]),
        (MEME.replace("nsites= 20 E", "nsites= many E"), ["invalid-sample"] * 2),
        (MEME.replace("0.700000", "0.7O0000"), ["invalid-sample"]),
        (MEME.replace("0.700000", "0.100000"), ["invalid-sample"]),
        (MEME.replace("C 0.25", "C 0.5"), ["invalid-sample"]),
        (MEME.replace("\n\nB", "\n\nALPHABET= ACGU\n\nB", 1), ["invalid-sample"]),
        (JASPAR.replace("C [", "A ["), ["invalid-sample"] * 2),
        (JASPAR.replace("T [", "U ["), ["invalid-sample"] * 2),
        (JASPAR.replace("18", "one"), ["invalid-sample"]),
        (JASPAR + JASPAR, ["invalid-sample"] * 2),
        (">A\n.1 .3\n.1 .3\n.1 .2\n.1 .2\n", ["invalid-sample"]),
    ],
)
def test_invalid_motif_files(text, codes, tmp_path, refusal):
    (tmp_path / "motifs.txt").write_text(text)
    assert refusal(read_motifs, tmp_path / "motifs.txt").codes == codes


def test_a_line_of_many_digits_is_refused_at_once(tmp_path, refusal):
    (tmp_path / "motifs.txt").write_text(f">A\n{'1' * 20_000}x\n")
    start = time.process_time()
    assert refusal(read_motifs, tmp_path / "motifs.txt").codes == ["invalid-sample"]
    assert time.process_time() - start < 1


def read(tmp_path, text):
    (tmp_path / "motifs.txt").write_text(text)
    return read_motifs(tmp_path / "motifs.txt", 0.02)


def test_what_a_motif_file_states_counts(tmp_path):
    """Numbers of sites in any notation, rows of bases in any order, fractions in place of counts."""
    many = read(tmp_path, MEME.replace("nsites= 20 ", "nsites= 1e+05 "))[0]
    table = np.array(COUNTS["ONE"]) / 20
    assert np.array_equal(many.scores, log_odds(table * 1e5))

    expected = read(tmp_path, JASPAR)
    head, *rows = in_jaspar(*NAMED[0]).splitlines()
    shuffled = read(tmp_path, "\n".join([head, rows[2], rows[3], rows[0], rows[1]]))
    assert np.array_equal(shuffled[0].scores, expected[0].scores)
    for name, key, counts in NAMED:
        shares = (np.array(counts) / 20).tolist()
        (fractions,) = read(tmp_path, in_jaspar(name, key, shares))
        assert np.array_equal(fractions.scores, log_odds(np.array(counts, float)))


def test_the_background_of_a_meme_file(tmp_path):
    """Log odds against it, and the probability of a hit in a random word of it, on both strands alike."""
    stated = MEME.replace("A 0.25 C 0.25 G 0.25 T 0.25", "A 0.35 C 0.15\nG 0.05 T 0.45")
    motif = read(tmp_path, stated)[0]
    background = (0.4, 0.1, 0.1, 0.4)
    counts = np.array(COUNTS["ONE"], float)
    share = (counts + background) / 21
    assert np.array_equal(
        motif.scores, np.rint(100 * np.log2(share / background)).astype(int)
    )
    words = np.array(list(product(range(4), repeat=4)))
    chance = np.array(background)[words].prod(1)
    reached = scores_of_all_words(motif.scores)
    assert chance[reached >= motif.threshold].sum() <= 0.02
    assert chance[reached >= motif.threshold - 1].sum() > 0.02


@pytest.fixture
def files(tmp_path):
    """A genome of three chromosomes, peaks of several widths in it, and motifs."""
    rng = np.random.default_rng(0)
    genome = {f"chr{n}": "".join(rng.choice(list("ACGTacgtN"), 400)) for n in (1, 2, 3)}
    lines = {
        name: "\n".join(text[i : i + 60] for i in range(0, 400, 60))
        for name, text in genome.items()
    }
    records = [f">{name} of a yeast\n{text}\n" for name, text in lines.items()]
    (tmp_path / "genome.fa").write_text(">other\nACGT\n" + "".join(records))
    peaks = [
        (name, start, start + 20 + 5 * (start % 7))
        for name in genome
        for start in range(3, 340, 70)
    ]
    bed = "".join(
        f"{name}\t{start}\t{end}\t{start % 3}\n" for name, start, end in peaks
    )
    (tmp_path / "yeast.atac.bed").write_text(bed)
    (tmp_path / "motifs.meme").write_text(MEME)
    return (
        genome,
        peaks,
        [
            str(tmp_path / name)
            for name in ("yeast.atac.bed", "genome.fa", "motifs.meme")
        ],
    )


@pytest.mark.parametrize("packed", [False, True])
def test_a_genome_is_scanned(files, tmp_path, packed, capsys):
    genome, peaks, paths = files
    if packed:
        (tmp_path / "genome.fa.gz").write_bytes(
            gzip.compress((tmp_path / "genome.fa").read_bytes())
        )
        paths[1] += ".gz"
    out = str(tmp_path / "out")
    assert main(["prepare", "motifs", *paths, "--out", out, "--p-value", "0.02"]) == 0
    assert "15 regions x 2 motifs, 1 cell type with" in capsys.readouterr().out
    matrix = RegionArrays(path=out, scale=False, valid=["chr2"], test=["chr3"]).build()
    motifs = read_motifs(tmp_path / "motifs.meme", 0.02)
    expected = [
        [reference(genome[name][start:end], motif) for motif in motifs]
        for name, start, end in peaks
    ]
    assert (np.array(expected) > 0).mean() > 0.2
    np.testing.assert_allclose(matrix.scaled(slice(None)), expected, rtol=1e-6)
    assert matrix.open[:, 0].tolist() == [start % 3 > 0 for _, start, _ in peaks]
    again = ScannedRegions(
        paths=paths, out=out, p_value=0.02, valid=["chr2"], test=["chr3"]
    )
    task = GetRegion(data=again, regions=5, cell_type="yeast").build()
    assert task.batch("train", [0]).x0.shape == (1, 5, 3)
    assert "exists already" in again.prepare()


def test_all_problems_of_peaks_and_genome(files, tmp_path, refusal):
    _, _, paths = files
    (tmp_path / "peaks.bed").write_text("chr1\t5\t50\nchr1\t380\t401\nchr9\t1\t20\n")
    spec = ScannedRegions(
        paths=[str(tmp_path / "peaks.bed"), *paths[1:]], out=str(tmp_path / "out")
    )
    assert refusal(spec.prepare).codes == ["out-of-range", "unknown-value"]
    (tmp_path / "peaks.bed").write_text("chr1\t50\t70\nchr1\t5\t20\n")
    assert refusal(spec.prepare).codes == ["unsorted"]
    (tmp_path / "peaks.bed").write_text("chr1\t5\t50\nchr1\t30\t60\n")
    assert len(refusal(spec.prepare).codes) == 1
    assert (
        "2 regions"
        in spec.model_copy(
            update={"overlaps": True, "out": str(tmp_path / "both")}
        ).prepare()
    )
    missing = ScannedRegions(
        paths=[str(tmp_path / "no.bed"), str(tmp_path / "no.fa")],
        out=str(tmp_path / "out"),
    )
    assert refusal(missing.prepare).codes == ["file-not-found"] * 2
    assert not (tmp_path / "out").exists()


def test_a_genome_of_long_lines_and_other_names(files, tmp_path, monkeypatch, refusal):
    """One line per chromosome, longer than lines of other text; chr1 in the peaks, 1 in the genome."""
    genome, _, (peaks, _, motifs) = files
    monkeypatch.setattr(tables, "LINE_BYTES", 100)
    text = "".join(f">{name}\n{bases}\n" for name, bases in genome.items())
    path = tmp_path / "long.fa.gz"
    path.write_bytes(gzip.compress(text.encode()))
    raw = scan_regions(Path(peaks), path, Path(motifs), p_value=0.02)
    assert raw.arrays["features"].any()

    path.write_bytes(gzip.compress(text.replace(">chr", ">").encode()))
    refused = refusal(scan_regions, Path(peaks), path, Path(motifs))
    assert refused.codes == ["unknown-value"] * 3
    assert '"1"' in refused.problems[0].help
