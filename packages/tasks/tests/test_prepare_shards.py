"""`dither prepare --shard I/N` and `--merge`: text, plans and regions equal those of one process."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from dither.engine.cli import main
from dither.tasks.bubble_diagram.formats.jsonl import plan_line
from dither.tasks.get_region.data import region_matrix

pytestmark = pytest.mark.usefixtures("cache")


def write_text(folder):
    """Files with a document in common, rejected documents, and a published split."""
    folder.mkdir()
    for number in range(7):
        rows = [
            {"text": f"Document {number}, row {row}.\n\nnaïve 河 {'word ' * row}"}
            for row in range(9)
        ]
        rows += [{"text": "the same text in every file"}, {"body": "no text"}]
        name = f"{number}-{'test' if number in (1, 3, 5) else 'train'}.jsonl"
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text(lines)
    (folder / "blank-train.jsonl").write_text('{"text": " "}\n')
    return folder


def text(tmp_path, _):
    """The shards and the result are in a folder of the source."""
    write_text(tmp_path / "text")
    return ["text", str(tmp_path), "--tokenizer", "bytes", "--to"]


def text_with_ends(tmp_path, _):
    folder = write_text(tmp_path / "text")
    learned = str(tmp_path / "bpe")
    assert (
        prepare(["text", str(folder), "--tokenizer", "bpe:280", "--to"], learned) == 0
    )
    return ["text", str(folder), "--tokenizer", f"{learned}/tokenizer.json", "--to"]


def plans(tmp_path, request):
    """Files of plans, of which the last one repeats a plan of the first, and one has doors."""
    folder = tmp_path / "plans"
    folder.mkdir()
    diagrams = request.getfixturevalue("make_diagrams")(30)
    lines = [plan_line(replace(diagram, doors=None)) for diagram in diagrams]
    lines += [lines[0], '{"types": ["Kitchen", "Bathrom"]}']
    lines[12] = plan_line(diagrams[12])
    for number in range(4):
        part = lines[number * 8 : number * 8 + 8]
        (folder / f"{number}.jsonl").write_text("\n".join(part) + "\n")
    return ["plans", "--source", str(folder), "--destination"]


def store(tmp_path, request):
    """A store of several blocks of rows, which do not end where shards end."""
    request.getfixturevalue("monkeypatch").setattr(region_matrix, "BLOCK", 500)
    rng = np.random.default_rng(0)
    rows = 2400
    arrays = {
        "features": rng.random((rows, 2)).astype(np.float32),
        "motifs": np.array(["A", "B"]),
        "chromosome": np.repeat(["chr1", "chr2"], rows // 2),
        "start": np.tile(np.arange(rows // 2) * 1000, 2),
        "end": np.tile(np.arange(rows // 2) * 1000, 2) + 500,
        "cells": np.array(["k562"]),
        "atpm": rng.random((rows, 1)).astype(np.float32),
    }
    request.getfixturevalue("write_store")(tmp_path / "x.zarr", arrays)
    return ["get", str(tmp_path / "x.zarr"), "--dtype", "float16", "--out"]


def genome(tmp_path, _):
    """Peaks of two chromosomes; none of the second is in the first of three shards."""
    rng = np.random.default_rng(0)
    records = [f">chr{n}\n{''.join(rng.choice(list('ACGT'), 400))}\n" for n in (1, 2)]
    (tmp_path / "genome.fa").write_text("".join(records))
    peaks = [
        f"chr{n}\t{at}\t{at + 30 + at % 7}\n"
        for n in (1, 2)
        for at in range(3, 340, 80)
    ]
    (tmp_path / "peaks.bed").write_text("".join(peaks))
    (tmp_path / "motifs.txt").write_text(
        ">M1 ONE\n" + "8 1 1 0\n0 1 9 0\n1 8 0 1\n1 0 0 9\n"
    )
    paths = [str(tmp_path / name) for name in ("peaks.bed", "genome.fa", "motifs.txt")]
    return ["motifs", *paths, "--p-value", "0.02", "--out"]


def prepare(words, out, *more):
    return main(["prepare", *words, str(out), *more])


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("source", [text, text_with_ends, plans, store, genome])
def test_merged_shards_equal_one_process(source, tmp_path, request):
    words = source(tmp_path, request)
    for number in (2, 1, 3):
        assert prepare(words, tmp_path / "out", "--shard", f"{number}/3") == 0
    # A shard that is there already is verified, not written again.
    folder = tmp_path / "out.shards" / "2-of-3"
    inode = folder.stat().st_ino
    assert prepare(words, tmp_path / "out", "--shard", "2/3") == 0
    assert folder.stat().st_ino == inode

    assert prepare(words, tmp_path / "out", "--merge") == 0
    merged = content(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    assert prepare(words, tmp_path / "out") == 0
    assert merged == content(tmp_path / "out")
    # A second merge on top finds the same.
    assert prepare(words, tmp_path / "out", "--merge") == 0
    assert merged == content(tmp_path / "out")


@pytest.fixture
def refused(capsys):
    """Return a function that prepares, expects a refusal, and returns what is reported."""

    def run(words, out, *more):
        capsys.readouterr()
        assert prepare(words, out, *more) == 2
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1/0", "3", "-1/3", "1/3/3"])
def test_a_number_outside_of_the_shards(tmp_path, refused, shard):
    words = ["text", str(tmp_path), "--to"]
    assert f'"{shard}"' in refused(words, tmp_path / "out", f"--shard={shard}")
    assert list(tmp_path.iterdir()) == []


def test_shards_that_cannot_be_merged(tmp_path, refused):
    words = text(tmp_path, None)
    out = tmp_path / "out"
    shards = tmp_path / "out.shards"
    assert "[not-prepared]" in refused(words, out, "--merge")
    for number in (1, 2, 3):
        assert prepare(words, out, "--shard", f"{number}/3") == 0

    (shards / "2-of-3").rename(shards / "away")
    message = refused(words, out, "--merge")
    assert "--shard 2/3" in message
    assert "[not-prepared]" in message

    damaged = shards / "1-of-3" / "train.npy"
    ids = damaged.read_bytes()
    damaged.write_bytes(ids[:-1] + b"x")
    (shards / "away").rename(shards / "2-of-3")
    assert "[damaged-file]" in refused(words, out, "--merge")
    damaged.write_bytes(ids)
    (shards / "2-of-3").rename(shards / "away")

    # One shard was copied to the place of another.
    shutil.copytree(shards / "1-of-3", shards / "2-of-3")
    assert "[duplicate]" in refused(words, out, "--merge")
    shutil.rmtree(shards / "2-of-3")
    (shards / "away").rename(shards / "2-of-3")

    # A shard of other options, and one of another division.
    assert "[changed-options]" in refused(
        [*words[:-1], "--valid", "0.2", "--to"], out, "--merge"
    )
    shutil.copytree(shards / "1-of-3", shards / "1-of-4")
    assert "of 3 and of 4" in refused(words, out, "--merge")
    shutil.rmtree(shards / "1-of-4")

    # A source that changed after its shard was prepared.
    source = next((tmp_path / "text").glob("3-*"))
    source.write_text(source.read_text() + '{"text": "more"}\n')
    assert "source changed" in refused(words, out, "--merge")
    assert "[changed-options]" in refused(words, out, "--shard", "3/3")
    assert not out.exists()


@pytest.mark.parametrize(
    "content_of_file",
    [None, *(pytest.param(c, marks=pytest.mark.slow) for c in (b"", b"\xff{"))],
)
@pytest.mark.parametrize("source", [text, plans])
def test_damage_of_any_file_of_a_shard_is_found(
    tmp_path, request, refused, source, content_of_file
):
    words = source(tmp_path, request)
    out = tmp_path / "out"
    assert prepare(words, out, "--shard", "1/1") == 0
    for path in sorted((tmp_path / "out.shards" / "1-of-1").iterdir()):
        sound = path.read_bytes()
        path.unlink()
        if content_of_file is not None:
            path.write_bytes(content_of_file)
        codes = ("[damaged-file]", "[file-not-found]", "[not-prepared]")
        assert any(code in refused(words, out, "--merge") for code in codes), path
        if path.name == "manifest.json":
            path.write_bytes(sound)
        # The help says that this repairs the shard.
        assert prepare(words, out, "--shard", "1/1") == 0
        assert path.read_bytes() == sound


@pytest.mark.parametrize("more", [(), ("--shard", "1/2"), ("--merge",)])
@pytest.mark.parametrize("target", [".", "..", "/"])
def test_a_target_without_a_name(tmp_path, refused, monkeypatch, target, more):
    write_text(tmp_path / "text")
    folder = tmp_path / "empty" / "folder"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    words = ["text", str(tmp_path / "text"), "--tokenizer", "bytes", "--to"]
    assert "[invalid-value]" in refused(words, target, *more)


def test_what_needs_all_data_at_once(tmp_path, refused):
    folder = str(write_text(tmp_path / "text"))
    out = tmp_path / "out"
    for option in (
        ("--tokenizer", "bpe:280"),
        ("--tokenizer", "chars"),
        ("--documents", "3"),
    ):
        words = ["text", folder, *option, "--to"]
        assert "[usage]" in refused(words, out, "--shard", "1/2")
    words = ["text", folder, "--tokenizer", "bytes", "--to"]
    assert "8 sources" in refused(words, out, "--shard", "1/9")
    assert "exclude" in refused(words, out, "--shard", "1/2", "--merge")
    assert "[usage]" in refused(["procedural-plans"], "--shard", "1/2")


def test_sources_in_another_order(tmp_path, refused):
    folder = write_text(tmp_path / "text")
    paths = sorted(map(str, folder.iterdir()))
    options = ["--tokenizer", "bytes", "--to"]
    assert prepare(["text", *paths, *options], tmp_path / "out", "--shard", "1/1") == 0
    words = ["text", *paths[::-1], *options]
    assert "source changed" in refused(words, tmp_path / "out", "--merge")


def test_two_documents_would_be_cut(tmp_path, refused):
    (tmp_path / "a.txt").write_text("one document\n" * 9)
    (tmp_path / "b.txt").write_text("another document\n" * 9)
    words = [
        "text",
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.txt"),
        "--tokenizer",
        "bytes",
        "--to",
    ]
    for number in (1, 2):
        assert prepare(words, tmp_path / "out", "--shard", f"{number}/2") == 0
    assert "[no-samples]" in refused(words, tmp_path / "out", "--merge")


@pytest.mark.parametrize(
    ("value", "mistake"), [(-1, "-1.0 is negative"), (1e5, "100000 is more than")]
)
def test_a_wrong_value_is_reported_by_its_shard(
    value, mistake, tmp_path, request, write_array, refused
):
    words = store(tmp_path, request)
    features = np.ones((2400, 2), np.float32)
    features[1700, 1] = value
    shutil.rmtree(tmp_path / "x.zarr" / "data")
    write_array(tmp_path / "x.zarr" / "data", features)
    assert prepare(words, tmp_path / "out", "--shard", "1/3") == 0
    message = refused(words, tmp_path / "out", "--shard", "3/3")
    assert f'row 1700, column "B": {mistake}' in message


def test_a_source_that_is_nearly_all_rejected_fails_its_shard(tmp_path, refused):
    folder = write_text(tmp_path / "text")
    (folder / "0-train.jsonl").write_text(
        '{"body": "no text"}\n' * 20 + '{"text": "a"}\n'
    )
    words = ["text", str(folder), "--tokenizer", "bytes", "--to"]
    assert "[invalid-sample]" in refused(words, tmp_path / "out", "--shard", "2/3")
    assert prepare(words, tmp_path / "out", "--shard", "1/3") == 0
