"""`prepare motifs`: motif files in two formats, and a small genome scanned against a loop over words."""

import gzip

import numpy as np
import pytest

from dither.engine.cli import main
from dither.tasks.get_region.data.motif_scan import Motif
from dither.tasks.get_region.data_specs import RegionArrays, ScannedRegions
from dither.tasks.get_region.formats.motif_files import read_motifs
from dither.tasks.get_region.specs import GetRegion

COUNTS = {"ONE": [[18, 1, 0, 1], [0, 20, 0, 0], [0, 0, 20, 0], [2, 2, 2, 14]], "TWO": [[20, 0, 0, 0], [0, 0, 0, 20]]}


def in_jaspar(name, key, table, form="{base} [ {numbers} ]"):
    rows = zip("ACGT", np.transpose(table), strict=True)
    lines = [form.format(base=base, numbers=" ".join(map(str, row))) for base, row in rows]
    return "\n".join([f">{key} {name}", *lines, ""])


def in_meme(name, key, table):
    rows = "".join(" ".join(f"{count / 20:.6f}" for count in row) + "\n" for row in table)
    head = f"letter-probability matrix: alength= 4 w= {len(table)} nsites= 20 E= 0"
    return f"MOTIF {key} {name}\nlog-odds matrix: alength= 4 w= 1\n 9 9 9 9\n{head}\n{rows}URL http://x\n\n"


NAMED = [(name, f"MA{number}.1", table) for number, (name, table) in enumerate(COUNTS.items())]
JASPAR = "".join(in_jaspar(*motif) for motif in NAMED)
BARE = "".join(in_jaspar("", name, table, "{numbers}") for name, _, table in NAMED)
MEME = "MEME version 4\n\nBackground letter frequencies\nA 0.25 C 0.25 G 0.25 T 0.25\n\n"
MEME += "".join(in_meme(*motif) for motif in NAMED)
FORMS = {"jaspar": JASPAR, "bare": BARE, "meme": MEME, "sites": MEME.replace("nsites= 20 ", "")}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_motif_files(text, tmp_path):
    (tmp_path / "motifs.txt").write_text(text)
    motifs = read_motifs(tmp_path / "motifs.txt", 0.02)
    for motif, (name, counts) in zip(motifs, COUNTS.items(), strict=True):
        expected = Motif.of(name, np.array(counts, float), 0.02)
        assert (motif.name, motif.threshold) == (name, expected.threshold)
        assert np.array_equal(motif.scores, expected.scores)


def test_repeated_names_become_ids(tmp_path):
    (tmp_path / "motifs.jaspar").write_text(JASPAR.replace("TWO", "ONE"))
    assert [motif.name for motif in read_motifs(tmp_path / "motifs.jaspar")] == ["MA0.1", "MA1.1"]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("", ["unknown-format"]),
        ("chr1\t1\t2\n", ["unknown-format"]),
        (">A\nA [1 2]\nC [1]\nG [1 2]\nT [1 2]\n>B\nA [1]\nC [1]\nG [1]\n", ["invalid-sample"] * 2),
        (JASPAR.replace("18", "-18"), ["invalid-sample"]),
        ("MEME version 5\nMOTIF A\nMOTIF B\nletter-probability matrix:\n", ["invalid-sample"] * 2),
    ],
)
def test_invalid_motif_files(text, codes, tmp_path, refusal):
    (tmp_path / "motifs.txt").write_text(text)
    assert refusal(read_motifs, tmp_path / "motifs.txt").codes == codes


@pytest.fixture
def files(tmp_path):
    """A genome of three chromosomes, peaks of several widths in it, and motifs."""
    rng = np.random.default_rng(0)
    genome = {f"chr{n}": "".join(rng.choice(list("ACGTacgtN"), 400)) for n in (1, 2, 3)}
    lines = {name: "\n".join(text[i : i + 60] for i in range(0, 400, 60)) for name, text in genome.items()}
    records = [f">{name} of a yeast\n{text}\n" for name, text in lines.items()]
    (tmp_path / "genome.fa").write_text(">other\nACGT\n" + "".join(records))
    peaks = [(name, start, start + 20 + 5 * (start % 7)) for name in genome for start in range(3, 340, 70)]
    bed = "".join(f"{name}\t{start}\t{end}\t{start % 3}\n" for name, start, end in peaks)
    (tmp_path / "yeast.atac.bed").write_text(bed)
    (tmp_path / "motifs.meme").write_text(MEME)
    return genome, peaks, [str(tmp_path / name) for name in ("yeast.atac.bed", "genome.fa", "motifs.meme")]


def hits(sequence, motif):
    """Sum of the scores of all hits on both strands, with loops."""
    total, complement = 0, str.maketrans("ACGTN", "TGCAN")
    for strand in (sequence.upper(), sequence.upper().translate(complement)[::-1]):
        for start in range(len(strand) - len(motif.scores) + 1):
            word = strand[start : start + len(motif.scores)]
            score = sum(motif.scores[i]["ACGT".index(base)] for i, base in enumerate(word)) if "N" not in word else 0
            total += score if score >= motif.threshold else 0
    return total / 100


@pytest.mark.parametrize("packed", [False, True])
def test_a_genome_is_scanned(files, tmp_path, packed, capsys):
    genome, peaks, paths = files
    if packed:
        (tmp_path / "genome.fa.gz").write_bytes(gzip.compress((tmp_path / "genome.fa").read_bytes()))
        paths[1] += ".gz"
    out = str(tmp_path / "out")
    assert main(["prepare", "motifs", *paths, "--out", out, "--p-value", "0.02"]) == 0
    assert "15 regions x 2 motifs, 1 cell type with" in capsys.readouterr().out
    matrix = RegionArrays(path=out, scale=False, valid=["chr2"], test=["chr3"]).build()
    motifs = read_motifs(tmp_path / "motifs.meme", 0.02)
    expected = [[hits(genome[name][start:end], motif) for motif in motifs] for name, start, end in peaks]
    assert (np.array(expected) > 0).mean() > 0.2
    np.testing.assert_allclose(np.asarray(matrix.features), expected, rtol=1e-6)
    assert matrix.open[:, 0].tolist() == [start % 3 > 0 for _, start, _ in peaks]
    again = ScannedRegions(paths=paths, out=out, p_value=0.02, valid=["chr2"], test=["chr3"])
    task = GetRegion(data=again, regions=5, cell_type="yeast").build()
    assert task.batch("train", [0]).x0.shape == (1, 5, 3)
    assert "exists already" in again.prepare()


def test_all_problems_of_peaks_and_genome(files, tmp_path, refusal):
    _, _, paths = files
    (tmp_path / "peaks.bed").write_text("chr1\t5\t50\nchr1\t380\t401\nchr9\t1\t20\n")
    spec = ScannedRegions(paths=[str(tmp_path / "peaks.bed"), *paths[1:]], out=str(tmp_path / "out"))
    assert refusal(spec.prepare).codes == ["out-of-range", "unknown-value"]
    (tmp_path / "peaks.bed").write_text("chr1\t50\t70\nchr1\t5\t20\n")
    assert refusal(spec.prepare).codes == ["unsorted"]
    (tmp_path / "peaks.bed").write_text("chr1\t5\t50\nchr1\t30\t60\n")
    assert len(refusal(spec.prepare).codes) == 1
    assert "2 regions" in spec.model_copy(update={"overlaps": True, "out": str(tmp_path / "both")}).prepare()
    missing = ScannedRegions(paths=[str(tmp_path / "no.bed"), str(tmp_path / "no.fa")], out=str(tmp_path / "out"))
    assert refusal(missing.prepare).codes == ["file-not-found"] * 2
    assert not (tmp_path / "out").exists()
