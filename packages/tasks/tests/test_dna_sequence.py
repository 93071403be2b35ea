"""The task dna-sequence: exact likelihoods, baselines, metrics against closed forms, and every sampler and process."""

import gzip
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import chisquare

from dither.registry.config.errors import Refused
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import NumberRange
from dither.tasks.dna_sequence import sequences as sequences_module
from dither.tasks.dna_sequence.facts import SequenceFacts
from dither.tasks.dna_sequence.metrics import (
    COPIED,
    Group,
    Markov,
    Reference,
    kmer_codes,
)
from dither.tasks.dna_sequence.plots import (
    draw_logo,
    draw_logos,
    hit_words,
    logo_heights,
)
from dither.tasks.dna_sequence.sequences import Planted, Sequences, as_text
from dither.tasks.dna_sequence.specs import (
    DHSSequences,
    DnaSequence,
    PlantedMotifs,
    SequenceFile,
)
from dither.tasks.get_region.data.human_dhs import CELLS
from dither.tasks.get_region.data.human_dhs import Sequences as Regions
from dither.tasks.get_region.data.motif_scan import Motif, encode, scan

torch.set_num_threads(1)
SMALL = {
    "use": "planted-motifs",
    "length": 30,
    "cells": 3,
    "width": 5,
    "rate": 0.1,
    "train": 600,
    "held": 300,
}


def spec(**options):
    data = PlantedMotifs(
        **{k: v for k, v in (SMALL | options.pop("data", {})).items() if k != "use"}
    )
    return DnaSequence(data=data, **options)


@pytest.fixture(scope="module")
def task():
    return spec().build()


def every_word(length):
    return np.array(list(product(range(4), repeat=length)), np.uint8)


@pytest.mark.parametrize(
    ("length", "width", "rate"), [(5, 2, 0.3), (4, 4, 0.5), (6, 3, 0.9), (3, 1, 0.2)]
)
def test_the_likelihood_of_planted_sequences_sums_to_one(length, width, rate):
    planted, words = (
        Planted(cells=2, motifs=2, width=width, rate=rate, seed=3),
        every_word(length),
    )
    for cell in range(2):
        assert np.exp(
            -planted.nats(words, np.full(len(words), cell))
        ).sum() == pytest.approx(1, abs=1e-12)


def test_planted_sequences_have_their_likelihood():
    planted, words = (
        Planted(cells=2, motifs=2, width=3, rate=0.3, seed=1),
        every_word(4),
    )
    bases, labels = planted.draw(20_000, 4, [0])
    for cell in range(2):
        counts = np.bincount(kmer_codes(bases[labels == cell], 4)[:, 0], minlength=256)
        expected = np.exp(-planted.nats(words, np.full(256, cell))) * counts.sum()
        rare = expected < 5
        counts, expected = (
            np.append(v[~rare], v[rare].sum() + 1e-9) for v in (counts, expected)
        )
        assert chisquare(counts, expected).pvalue > 1e-4


def test_planted_splits_are_independent_of_the_training_size():
    first, again = (
        PlantedMotifs(train=50, held=40).build(),
        PlantedMotifs(train=90, held=40).build(),
    )
    assert np.array_equal(first.bases["valid"], again.bases["valid"])
    with pytest.raises(ValueError, match="does not fit"):
        PlantedMotifs(length=5, width=6)


def test_a_markov_chain_counts_what_follows_each_context():
    bases = encode(["ACACACAC", "AAAAAAAA"])
    chain = Markov(bases, np.array([0, 1]), 2, order=1)
    start, after = chain.tables
    np.testing.assert_allclose(
        start[0, 0], (np.array([4, 4, 0, 0]) + 1) / 12
    )  # 8 bases, and 4 shared by all bases
    np.testing.assert_allclose(
        after[0, 0], (np.array([0, 4, 0, 0]) + 4 * start[0, 0]) / 8
    )  # A is followed by C
    np.testing.assert_allclose(
        after[0, 1], (np.array([3, 0, 0, 0]) + 4 * start[0, 0]) / 7
    )
    np.testing.assert_allclose(
        after[1, 2], start[1, 0]
    )  # never seen: the shorter context
    nats = -np.log(start[0, 0, 0]) - np.log(after[0, 0, 1])
    assert chain.nats(encode(["AC"]), np.array([0])) == pytest.approx([nats])


@pytest.mark.parametrize("order", [0, 1, 5])
def test_a_markov_chain_is_a_distribution_and_draws_from_it(order):
    rng, words = np.random.default_rng(0), every_word(4)
    chain = Markov(
        rng.integers(4, size=(30, 9)).astype(np.uint8),
        rng.integers(2, size=30),
        2,
        order,
    )
    for cell in range(2):
        probability = np.exp(-chain.nats(words, np.full(256, cell)))
        assert probability.sum() == pytest.approx(1)
        drawn = chain.draw(np.full(20_000, cell), 4, seed=5)
        counts = np.bincount(kmer_codes(drawn, 4)[:, 0], minlength=256)
        assert chisquare(counts, probability * 20_000).pvalue > 1e-4


def tiny(valid, test=None, train=None, motifs=(), cells=("a", "b")):
    """Sequences from texts by cell type: {"a": [...], "b": [...]}."""
    texts = {"train": train or valid, "valid": valid, "test": test or valid}
    rows = {
        split: [(t, n) for n, cell in enumerate(cells) for t in of[cell]]
        for split, of in texts.items()
    }
    bases = {split: encode([text for text, _ in of]) for split, of in rows.items()}
    labels = {split: np.array([label for _, label in of]) for split, of in rows.items()}
    return Sequences("tiny", cells, bases, labels, lambda: list(motifs))


def test_metrics_of_known_sequences():
    """Held-out sequences of a cell type are all alike, so that every distance has a closed form."""
    motifs = [
        Motif.of("AC", 20 * np.eye(4)[[0, 1]], 0.1),
        Motif.of("GGG", 20 * np.eye(4)[[2, 2, 2]], 0.1),
    ]
    held = {"a": ["ACACAC"] * 8, "b": ["TTGGGG"] * 8}
    reference = Reference(tiny(held, motifs=motifs), 2)
    same = reference.sample_metrics(encode(["ACACAC", "TTGGGG"]), np.array([0, 1]))
    for name, best in {
        "kmer_js": 0,
        "gc_distance": 0,
        "motif_difference": 0,
        "motif_r": 1,
        "accuracy": 1,
    }.items():
        assert same[name] == pytest.approx(best, abs=1e-12)
        assert same[f"{name}_floor"] == pytest.approx(best, abs=1e-12)
    assert same["gc"] == pytest.approx((3 / 6 + 4 / 6) / 2)
    swapped = reference.sample_metrics(encode(["ACACAC", "TTGGGG"]), np.array([1, 0]))
    assert swapped["kmer_js"] == pytest.approx(1)  # no k-mer in common: one bit
    assert swapped["gc_distance"] == pytest.approx(1 / 6)
    assert swapped["motif_difference"] == 1
    assert swapped["motif_r"] == pytest.approx(-1)
    assert (swapped["accuracy"], swapped["accuracy_a"], swapped["accuracy_floor"]) == (
        0,
        0,
        1,
    )


def test_js_distance_by_hand():
    reference = Reference(tiny({"a": ["AC"] * 2, "b": ["GG"] * 2}), 1)
    p, q = (
        np.array([0.5, 0.5]),
        np.array([1, 0.0]),
    )  # of A and C: held out, and of the sample AA
    m = (p + q) / 2
    divergence = (np.sum(p * np.log2(p / m)) + np.log2(1 / m[0])) / 2
    found = reference.compare(reference.groups(encode(["AA"]), np.array([0])))
    assert found["kmer_js"] == pytest.approx(math.sqrt(divergence))


def test_rivals_are_as_many_as_the_samples_and_share_nothing_with_the_reference(task):
    labels = np.array([0] * 7 + [2] * 11)
    for groups in task._reference.rivals(labels).values():
        assert {label: len(group.bases) for label, group in groups.items()} == {
            0: 7,
            2: 11,
        }
    assert [len(part) for part, _ in task._reference._halves] == [150, 150]
    everything = task._reference.rivals(np.repeat([0, 1, 2], 1000))["floor"]
    assert [len(group.bases) for group in everything.values()] == [
        50,
        50,
        50,
    ]  # all there are
    held = {"a": as_text(every_word(4)[::4]), "b": ["GGGG"] * 4}
    halves = [
        as_text(part[labels == 0]) for part, labels in Reference(tiny(held), 2)._halves
    ]
    assert not {*halves[0]} & {*halves[1]}
    assert sorted(halves[0] + halves[1]) == sorted(held["a"])


def test_the_classifier_is_trained_on_the_test_split_and_reads_both_strands():
    texts = {"a": ["AAAAAAAC", "CAAAAAAA"], "b": ["CGCGCGCG", "GCGCGCGC"]}
    reference = Reference(
        tiny({"a": ["CCCCCCCC"] * 2, "b": ["AAAAAAAA"] * 2}, test=texts), 2
    )
    groups = reference.groups(
        encode(["TTTTTTTT", "AAAAAAAA", "CGCGCGCG"]), np.array([0, 0, 1])
    )
    assert reference.accuracies(groups) == {
        "accuracy": 1,
        "accuracy_a": 1,
        "accuracy_b": 1,
    }


def test_copied_sequences_are_found(task):
    train = task.sequences.bases["train"]
    half = np.concatenate(
        [train[:4], 3 - train[:4]]
    )  # every 20-mer copied, and practically none
    groups = task._reference.groups(half, np.zeros(8, np.int64))
    assert task._reference.compare(groups)["copied"] == pytest.approx(0.5, abs=0.02)
    assert task._reference.sample_metrics(train[:9], np.arange(9) % 3)["copied"] == 1
    assert COPIED == 20


def test_fasta_and_unlabelled_or_few_samples(task, tmp_path):
    metrics = task._reference.sample_metrics(
        task.sequences.bases["test"][:60], np.full(60, -1)
    )
    assert "accuracy" not in metrics
    assert metrics["kmer_js"] < metrics["kmer_js_floor"] * 1.3, (
        "compared with all sequences"
    )
    clean = task.batch("valid", range(4))
    (path,), notes = task.export(clean.x0, clean, "fasta", tmp_path / "fasta")
    records = [
        ">sample-0 cell-1",
        as_text(clean.x0[:1].numpy().astype(np.uint8))[0],
        ">sample-1 cell-2",
    ]
    assert (path.read_text().splitlines()[:3], notes) == (records, [])
    unlabelled = Clean.of(clean.x0[:1], cell=torch.tensor([-1]))
    bases = task.sequences.bases["test"][:1]
    assert ">sample-0 any\n" in task._fasta(bases, unlabelled)
    for labels in ([0], [2, -1], [1, 1, 1]):
        found = task._reference.sample_metrics(
            task.sequences.bases["test"][: len(labels)], np.array(labels)
        )
        assert np.isfinite(list(found.values())).all()


def test_cell_types_without_a_reference_are_left_out():
    """One half of two validation sequences has one cell type, the other half another."""
    data = PlantedMotifs(length=20, cells=4, motifs=1, width=4, train=50, held=2)
    task = DnaSequence(data=data).build()
    like = task.like(8, 0)
    samples = torch.randint(4, (8, 20), generator=torch.Generator().manual_seed(0))
    metrics = task.sample_metrics(samples, like)

    of_first = (like.cond["cell"] == 0).numpy()
    rows = samples[of_first].numpy().astype(np.uint8)
    group = Group.of(0, rows, 6, task._reference.motifs)
    assert metrics["gc"] == pytest.approx(group.gc.mean())
    assert "kmer_js_floor" not in metrics
    assert "accuracy_cell-2" in metrics
    assert next(picture.name for picture in task.plots(samples, like)) == "comparison"


def test_baselines(task):
    baselines = task.baselines()
    order = ["nats_per_base/truth", "nats_per_base/markov", "nats_per_base/uniform"]
    assert sorted(baselines, key=baselines.get) == order
    assert baselines["nats_per_base/uniform"] == math.log(4)
    assert task.baselines("test") != baselines


def test_the_other_strand_of_each_training_sequence(task):
    both = spec(reverse_complement=True).build()
    assert (both.size("train"), both.size("valid")) == (
        2 * task.size("train"),
        task.size("valid"),
    )
    one, other = both.batch("train", [7, 7 + task.size("train")]).x0
    assert torch.equal(other, 3 - one.flip(0))
    assert both.batch("train", [7, 607]).cond["cell"].tolist() == [7 % 3] * 2


def test_problems_of_the_task(refusal):
    from dither.tasks.language_model.data.specs import StdlibText

    assert [m.code for m in DnaSequence(data=StdlibText()).check()] == ["wrong-kind"]
    assert [(m.path, m.code) for m in spec(motifs="no-such-file.meme").check()] == [
        (("motifs",), "file-not-found")
    ]
    assert [(m.path, m.code) for m in spec(data={"length": 5}, kmer=6).check()] == [
        (("kmer",), "out-of-range")
    ]
    empty = tiny({"a": ["AC"], "b": ["GT"]})
    empty.bases["test"] = empty.bases["test"][:0]
    from dither.tasks.dna_sequence.task import DnaSequences

    assert refusal(DnaSequences, empty).codes == ["no-samples"]


def test_human_sequences_are_split_by_chromosome(monkeypatch):
    chromosome, rng = (
        np.array(["chr1", "chr2", "chr3", "chrX", "chr2"]),
        np.random.default_rng(0),
    )
    texts = ["".join(rng.choice(list("ACGT"), 200)) for _ in chromosome]
    regions = Regions(
        chromosome,
        np.arange(5),
        np.arange(5) + 200,
        texts,
        np.eye(4, dtype=bool)[[0, 1, 2, 3, 0]],
    )
    monkeypatch.setattr(sequences_module, "fetch_wheel", lambda *wheel: wheel[0])
    monkeypatch.setattr(sequences_module, "read_sequences", lambda wheel: regions)
    built = DHSSequences().build()
    split = {split: as_text(rows) for split, rows in built.bases.items()}
    assert split == {
        "train": [texts[2], texts[3]],
        "valid": [texts[1], texts[4]],
        "test": [texts[0]],
    }
    labels = {split: rows.tolist() for split, rows in built.labels.items()}
    assert labels == {"train": [2, 3], "valid": [1, 0], "test": [0]}
    facts = SequenceFacts(200, tuple(CELLS))
    assert built.facts() == DHSSequences().facts() == facts


def own(path, **options):
    return SequenceFile(path=str(path), **options)


def test_own_sequences_of_fasta_and_tables(tmp_path):
    fasta = tmp_path / "own.fa.gz"
    records = [f">r{n} {'ab'[n % 2]} x\nACG\n{'tA'[n % 2]}T\n" for n in range(20)]
    fasta.write_bytes(gzip.compress("".join(records).encode()))
    assert not list(own(fasta).check())
    assert own(fasta).facts() == SequenceFacts(5, ("a", "b"))
    read = own(fasta, held=0.2).build()
    assert [len(bases) for bases in read.bases.values()] == [12, 4, 4]
    for split, bases in read.bases.items():
        texts = {
            (text, label)
            for text, label in zip(as_text(bases), read.labels[split], strict=True)
        }
        assert texts == {("ACGTT", 0), ("ACGAT", 1)}

    table = tmp_path / "own.tsv"
    rows = [f"{part}\tACGT\n" for part in ("valid", "test", "train", "train")]
    table.write_text("split\tsequence\n" + "".join(rows))
    read = own(table).build()
    assert read.cells == ("all",)
    assert [len(bases) for bases in read.bases.values()] == [2, 1, 1]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "unknown-format"),
        ("bases,cell\nACGT,a\n", "unknown-format"),
        ("sequence\n", "no-samples"),
        ("sequence,cell\nACGT,a\nACG,a\n", "invalid-sample"),
        ("sequence,cell\nACGT,a\nACGN,a\n", "invalid-sample"),
        ("sequence,cell\nACGT,a\nACGT,\n", "invalid-sample"),
        ("sequence,split\nACGT,train\nACGT,dev\n", "invalid-sample"),
        (">a\nACGT\n>b\n", "invalid-sample"),
        (None, "file-not-found"),
    ],
)
def test_wrong_files_of_sequences_are_refused(tmp_path, text, code):
    path = tmp_path / "own"
    if text is not None:
        path.write_text(text)
    (misfit,) = own(path).check()
    assert (misfit.code, misfit.path) == (code, ("path",))
    assert str(path) in misfit.message


def test_every_label_is_in_every_split(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("sequence,label,split\nAC,a,train\nAC,a,valid\nAC,b,test\n")
    with pytest.raises(Refused) as error:
        own(path).build()
    assert error.value.codes == ["no-samples"]


def test_known_bases_of_a_text_with_gaps(task):
    like = task.infill("ac[MASK:3]GT", 2, seed=0)
    assert like.x0[1, like.known[1]].tolist() == [0, 1, 2, 3]
    assert like.known[0].nonzero().flatten().tolist() == [0, 1, 5, 6]
    for text, code in (("ACN", "unknown-value"), ("A" * 31, "misfit")):
        with pytest.raises(Refused) as error:
            task.infill(text, 1, seed=0)
        assert error.value.codes == [code]


def test_words_at_hits_have_the_scores_of_a_scan():
    rng = np.random.default_rng(0)
    bases = rng.integers(4, size=(40, 30)).astype(np.uint8)
    motif = Motif.of("m", rng.integers(0, 20, (5, 4)), 0.02)
    words = hit_words(bases, motif)
    scores = motif.scores[np.arange(5), words].sum(1)
    assert len(words) > 10
    assert (scores >= motif.threshold).all()
    assert scores.sum() / 100 == pytest.approx(scan(bases, [motif]).sum())


def test_heights_of_a_logo():
    words = encode(["ACG"] * 4 + ["ACT"] * 4)
    correction = 3 / (2 * math.log(2) * 8)
    whole = 2 - correction
    half = (1 - correction) / 2
    expected = [[whole, 0, 0, 0], [0, whole, 0, 0], [0, 0, half, half]]
    np.testing.assert_allclose(logo_heights(words), expected, atol=1e-9)
    axis = Figure().subplots()
    draw_logo(axis, words)
    tops = sorted(patch.get_path().get_extents().y1 for patch in axis.patches)
    np.testing.assert_allclose(tops[-4:], [half, 2 * half, whole, whole], atol=1e-9)
    assert axis.get_ylim() == (0, 2)


def test_logos_show_the_motifs_of_cell_types():
    motifs = [
        Motif.of("both", 20 * np.eye(4)[[0, 1]], 0.1),
        Motif.of("of b", 20 * np.eye(4)[[2, 2, 2]], 0.1),
        Motif.of("none", 20 * np.eye(4)[[0, 0, 0]], 0.1),
    ]
    held = {"a": ["ACACAC"] * 8, "b": ["ACGGGG"] * 8}
    figure = draw_logos(Reference(tiny(held, motifs=motifs), 2), encode(["ACACAC"]))
    titles = [axis.get_title() for axis in figure.axes]
    assert [title.partition(":")[0] for title in titles] == ["of b"] * 2 + ["both"] * 2
    assert titles[1:3] == [
        "of b: 0 hits per sequence, samples",
        "both: 2 hits per sequence, held-out sequences",
    ]
    assert draw_logos(Reference(tiny(held), 2), encode(["ACACAC"])) is None


def with_activity(tmp_path, rows, header="sequence,split,activity"):
    path = tmp_path / "own.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return own(path, numbers=["activity"])


SPLIT_ROWS = ["ACGT,train,1", "ACGA,train,3", "AAAA,valid,70", "CCCC,test,-5"]


def test_numbers_are_standardised_by_the_training_split(tmp_path):
    data = with_activity(tmp_path, SPLIT_ROWS)
    assert not list(data.check())
    (number,) = data.facts().numbers
    assert (number.name, number.number) == ("activity", NumberRange(2, 1, 1, 3))
    task = DnaSequence(data=data, reverse_complement=True).build()
    assert task.space == DnaSequence(data=data).space()
    clean = task.batch("train", range(4))
    assert clean.cond["activity"].tolist() == [1, 3, 1, 3]
    assert clean.cond["activity"].dtype == torch.float32
    assert task.batch("valid", [0]).cond["activity"].tolist() == [70]
    # Templates have numbers of validation sequences.
    assert task.like(3, 0).cond["activity"].tolist() == [70] * 3


def test_templates_have_numbers_of_their_cell_type(tmp_path):
    """The cell types of the validation split are in another order than those of the others."""
    rows = ["ACGT,train,a,0", "ACGT,train,b,1", "ACGT,test,a,3", "ACGT,test,b,4"]
    rows += ["ACGT,valid,b,0", "ACGT,valid,a,2"]
    data = with_activity(tmp_path, rows, "sequence,split,label,activity")
    like = DnaSequence(data=data).build().like(4, 0)
    assert like.cond["cell"].tolist() == [0, 1, 0, 1]
    assert like.cond["activity"].tolist() == [2, 0, 2, 0]


def test_a_random_training_split_has_its_own_statistics(tmp_path):
    rows = [f"ACGT,{n**2}" for n in range(30)]
    data = with_activity(tmp_path, rows, "sequence,activity")
    built = data.build()
    train = built.numbers["activity"]["train"].astype(float)
    (number,) = data.facts().numbers
    assert number.number.mean == pytest.approx(train.mean())
    assert number.number.std == pytest.approx(train.std())
    assert (number.number.low, number.number.high) == (train.min(), train.max())
    assert built.facts() == data.facts()


@pytest.mark.parametrize(
    ("rows", "header", "code", "line"),
    [
        (["ACGT,1", "ACGT,"], "sequence,activity", "invalid-sample", 3),
        (["ACGT,1", "ACGT"], "sequence,activity", "invalid-sample", 3),
        (["ACGT,high", "ACGT,1"], "sequence,activity", "invalid-sample", 2),
        (["ACGT,1", "ACGT,nan"], "sequence,activity", "invalid-sample", 3),
        (["ACGT,1", "ACGT,-inf"], "sequence,activity", "invalid-sample", 3),
        (["ACGT,1", "ACGT,1e39"], "sequence,activity", "invalid-sample", 3),
        (["ACGT,1", "ACGT,2"], "sequence,activty", "missing-array", 1),
        # Constant in the training split, also if the others vary
        (["ACGT,train,2", "ACGT,train,2.0", "ACGT,test,3", "ACGT,valid,4"],
         "sequence,split,activity", "invalid-sample", 2),
        # Equal as float32
        (["ACGT,train,1e9", "ACGT,train,1000000001", "ACGT,test,3", "ACGT,valid,4"],
         "sequence,split,activity", "invalid-sample", 2),
    ],
)  # fmt: skip
def test_wrong_numbers_are_refused(tmp_path, rows, header, code, line):
    data = with_activity(tmp_path, rows, header)
    (misfit,) = data.check()
    assert misfit.code == code
    assert f"{data.path}, line {line}: " in misfit.message
    assert "activity" in misfit.message
    if code == "missing-array":
        assert misfit.help == 'did you mean "activty"?'


def test_names_of_numbers():
    for names in (["label"], ["a", "a"], ["known"]):
        with pytest.raises(ValueError, match="numbers must be unique"):
            own("own.csv", numbers=names)


def test_numbers_of_fasta_are_read_as_they_are_exported(tmp_path):
    task = DnaSequence(data=with_activity(tmp_path, SPLIT_ROWS)).build()
    clean = task.batch("train", range(2))
    like = Clean(
        clean.x0,
        clean.valid,
        clean.known,
        clean.cond | {"activity": torch.tensor([0.5, -1e-7])},
    )
    (path,), _ = task.export(clean.x0, like, "fasta", tmp_path / "fasta")
    lines = path.read_text().splitlines()
    assert lines[0] == ">sample-0 all activity=0.5"
    path.write_text(path.read_text() * 5)
    read = own(path, numbers=["activity"], held=0.2).build()
    values = np.concatenate([*read.numbers["activity"].values()])
    np.testing.assert_allclose(np.unique(values), [-1e-7, 0.5])
    assert read.cells == ("all",)
    (misfit,) = own(path, numbers=["activty"]).check()
    assert (misfit.code, misfit.help) == ("missing-array", 'did you mean "activity"?')
    path.write_text(">a x activity=1\nAC\n>b x\nAC\n")
    (misfit,) = own(path, numbers=["activity"]).check()
    assert misfit.code == "invalid-sample"
    assert f"{path}, line 3: " in misfit.message


def test_metrics_of_requested_numbers():
    """Two sequences with the numbers 1 and 3: half of each are predicted as 2 on the mean."""
    sequences = tiny({"a": ["AAAAAAA", "CCCCCCC"] * 8}, cells=("a",))
    numbers = {split: np.array([1.0, 3.0] * 8) for split in sequences.bases}
    reference = Reference(replace(sequences, numbers={"activity": numbers}), 2)
    bases = encode(["AAAAAAA", "CCCCCCC"])

    def metrics(*requested):
        return reference.number_metrics("activity", bases, np.array(requested))

    assert metrics(1.0, 3.0) == pytest.approx(
        {
            "activity_requested": 2,
            "activity_predicted": 2,
            "activity_r": 1,
            "activity_r_floor": 1,
        }
    )
    assert metrics(3.0, 1.0)["activity_r"] == pytest.approx(-1)
    # Of one requested number there is no correlation, and of none nothing.
    alone = metrics(3.0, np.nan)
    assert alone["activity_requested"] == 3
    assert alone["activity_predicted"] < 2
    assert "activity_r" not in alone
    assert metrics(2.5, 2.5).keys() == alone.keys()
    assert metrics(np.nan, np.nan) == {}
