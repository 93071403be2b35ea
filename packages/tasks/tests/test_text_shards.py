import hashlib
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

from dither.registry.config.errors import Refused
from dither.tasks.language_model.data import split_documents as surveying
from dither.tasks.language_model.data.corpus import hold_out
from dither.tasks.language_model.data.specs import ConvertedText, ShardFolder
from dither.tasks.language_model.data.text_files import read_files
from dither.tasks.language_model.data.token_store import open_shards
from dither.tasks.language_model.data.tokenizers import chunks as encoding
from dither.tasks.language_model.data.tokenizers import chunks as pieces
from dither.tasks.language_model.data.tokenizers.base import Bytes
from dither.tasks.language_model.specs import LanguageModel

TEXTS = [f"Document number {n}.\n\nIt says: {'word ' * (n % 7)}and no more, naïve {n * 37} 河.\n" for n in range(40)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "texts"
    made.mkdir()
    for number, text in enumerate(TEXTS):
        (made / f"{number:02d}.txt").write_text(text, "utf-8")
    return made


def convert(folder, to, **options):
    spec = ConvertedText(paths=[str(folder)], to=str(to), **{"tokenizer": "bytes", **options})
    return spec, spec.prepare()


def documents(stream, tokenizer):
    stops = stream.stops()
    return [tokenizer.decode(stream.ids[a:b]) for a, b in zip(stream.starts, stops, strict=True)]


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "bpe:300"])
@pytest.mark.parametrize("shard", [1 << 27, 50])
def test_every_document_comes_back_from_exactly_one_split(folder, tmp_path, tokenizer, shard):
    spec, _ = convert(folder, tmp_path / "shards", tokenizer=tokenizer, shard=shard)
    made = spec.build()
    found = {split: documents(stream, made.tokenizer) for split, stream in made.splits.items()}
    if made.tokenizer.end is not None:
        assert all(text.endswith("<|endoftext|>") for texts in found.values() for text in texts)
        found = {split: [text.removesuffix("<|endoftext|>") for text in texts] for split, texts in found.items()}
    known = set(TEXTS) if tokenizer != "chars" else set(found["train"])
    assert known >= set(found["train"])
    assert sum(map(len, found.values())) == len(TEXTS)
    if tokenizer != "chars":  # which has <unk> for what the training split lacks
        assert sorted(text for texts in found.values() for text in texts) == sorted(TEXTS)
    assert (shard == 50) == (len(made.splits["train"].arrays) > 1)
    assert all(len(array) <= shard for stream in made.splits.values() for array in stream.arrays)


def test_shares_are_kept_and_do_not_depend_on_names_or_order(folder, tmp_path):
    convert(folder, tmp_path / "a", valid=0.2, test=0.1)
    moved = tmp_path / "other"
    moved.mkdir()
    for number, text in enumerate(reversed(TEXTS)):
        (moved / f"{number}.md").write_text(text, "utf-8")
    convert(moved, tmp_path / "b", valid=0.2, test=0.1)
    one, other = (open_shards(tmp_path / name) for name in "ab")
    for split, share in (("valid", 0.2), ("test", 0.1)):
        first, second = (documents(made.splits[split], Bytes()) for made in (one, other))
        assert set(first) == set(second)
        assert len("".join(first)) == pytest.approx(share * len("".join(TEXTS)), rel=0.25)


def test_the_same_text_gives_the_same_bytes(folder, tmp_path):
    for name in ("a", "b"):
        convert(folder, tmp_path / name, tokenizer="bpe:300", shard=500)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_small_batches_and_pieces_change_nothing(folder, tmp_path, monkeypatch):
    convert(folder, tmp_path / "a", tokenizer="bpe:300")
    monkeypatch.setattr(encoding, "BATCH", 100)
    monkeypatch.setattr(pieces, "PIECE", 20)
    monkeypatch.setattr(surveying, "ROWS", 3)
    convert(folder, tmp_path / "b", tokenizer="bpe:300")
    for name in ("train-00000.bin", "train-starts.bin", "valid-00000.bin", "test-00000.bin"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_single_document_gives_its_end_for_validation_and_testing(tmp_path):
    text = "".join(f"line {n} ü\n" for n in range(500))
    (tmp_path / "one.txt").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    spec, _ = convert(tmp_path / "one.txt", tmp_path / "shards", valid=0.1, test=0.2)
    got = {split: documents(stream, Bytes()) for split, stream in spec.build().splits.items()}
    expected = hold_out(read_files([str(tmp_path / "one.txt")]), valid=0.1, test=0.2)
    assert got == {split: [document.load() for document in found] for split, found in expected.items()}
    assert "".join(got["train"] + got["valid"] + got["test"]) == text


def test_what_is_no_text_is_left_out_named_and_counted(tmp_path):
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for number in range(5):
        (mixed / f"{number}.txt").write_text(f"good text number {number}\n")
    (mixed / "copy.txt").write_text("good text number 3\n")
    (mixed / "empty.txt").write_text("")
    (mixed / "blank.txt").write_text(" \n\n")
    (mixed / "tool.bin").write_bytes(b"MZ\x00\x01")
    (mixed / "latin.txt").write_bytes(b"caf\xe9 latin")
    (mixed / "gone.txt").symlink_to(tmp_path / "nowhere")
    lines = ['{"text": "line one"}', '{"text": broken', '{"body": "b"}', "", '{"text": 7}', '{"text": "\\ud800"}', "[]"]
    (mixed / "c.jsonl").write_text("\n".join([*lines, '{"text": "the last line"}']))
    spec, said = convert(mixed, tmp_path / "shards")
    record = spec.record()
    assert record.left_out == {
        "duplicate": 1,
        "empty": 2,
        "binary": 1,
        "encoding": 2,
        "unreadable": 1,
        "json": 1,
        "key": 3,
    }
    assert sum(split.documents for split in record.splits.values()) == 7
    for words in (
        "11 left out:",
        "tool.bin is binary, not text: a zero byte at offset 2",
        "latin.txt is not UTF-8 text: byte 0xe9 at offset 3",
        "c.jsonl, line 2 is not JSON: Expecting value at column 10",
        'c.jsonl, line 3 has no key "text"',
        'c.jsonl, line 5 "text" is int, not a text',
        "c.jsonl, line 6 holds half a character, U+D800",
        "copy.txt is the same text as an earlier one",
    ):
        assert words in said
    listed = [json.loads(line) for line in (tmp_path / "shards" / "left-out.jsonl").read_text().splitlines()]
    assert len(listed) == 11


def test_limits_stop_the_reading(folder, tmp_path):
    spec, said = convert(folder, tmp_path / "a", documents=10)
    assert sum(split.documents for split in spec.record().splits.values()) == 10
    assert "stopped at the limit" in said
    spec, _ = convert(folder, tmp_path / "b", characters=len("".join(TEXTS[:5])))
    assert sum(split.characters for split in spec.record().splits.values()) == len("".join(TEXTS[:5]))


def test_the_second_time_nothing_is_done_and_something_else_wants_force(folder, tmp_path):
    _, first = convert(folder, tmp_path / "shards")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    assert "nothing was done" not in first
    assert "nothing was done" in convert(folder, tmp_path / "shards")[1]
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    with pytest.raises(Refused, match=r"tokenizer was 'bytes', is 'chars'.*\n.*--force"):
        convert(folder, tmp_path / "shards", tokenizer="chars")
    (folder / "new.txt").write_text("one document more")
    with pytest.raises(Refused, match="the text is another"):
        convert(folder, tmp_path / "shards")
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    spec, _ = convert(folder, tmp_path / "shards", tokenizer="chars", force=True)
    assert spec.build().tokenizer.name == "chars"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "shards", "texts"]


def test_a_folder_of_something_else_is_left_alone(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for force in (False, True):
        with pytest.raises(Refused, match=r"holds other files than shards \(letter.txt\)"):
            convert(folder, tmp_path / "mine", force=force)
    with pytest.raises(Refused, match="is a file"):
        convert(folder, folder / "00.txt")


def test_a_conversion_that_fails_leaves_nothing(folder, tmp_path, monkeypatch):
    def fails(self, texts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Bytes, "encode_each", fails)
    with pytest.raises(Refused, match="cannot be written: No space left"):
        convert(folder, tmp_path / "shards")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]


def test_a_file_that_changes_between_the_readings_is_noticed(folder, tmp_path, monkeypatch):
    real = surveying.survey

    def change(*given, **options):
        seen = real(*given, **options)
        (folder / "07.txt").write_text("something else")
        return seen

    monkeypatch.setattr("dither.tasks.language_model.data.prepare.survey", change)
    with pytest.raises(Refused, match="07.txt has changed while it was read"):
        convert(folder, tmp_path / "shards")


def test_paths_that_are_nothing_are_all_named(tmp_path):
    spec = ConvertedText(paths=[str(tmp_path / "a.txt"), str(tmp_path / "*.md"), str(tmp_path)], to=str(tmp_path / "x"))
    with pytest.raises(Refused) as refused:
        spec.prepare()
    assert len(refused.value.problems) == 3
    (tmp_path / "blank.txt").write_text(" ")
    with pytest.raises(Refused, match="there is no text in what was given\n1 left out"):
        convert(tmp_path / "blank.txt", tmp_path / "x")


def _cut(folder):
    path = folder / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-1])


def _flip(folder):
    path = folder / "valid-00000.bin"
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)


def _outside(folder):
    """An id that the vocabulary lacks, with a checksum that is right."""
    path, sidecar = folder / "train-00000.bin", folder / "shards.json"
    ids = np.fromfile(path, "<u2")
    ids[7] = 60_000
    ids.tofile(path)
    record = json.loads(sidecar.read_text())
    record["splits"]["train"]["shards"][0]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    sidecar.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("damage", "early", "says"),
    [
        (_cut, True, "train-00000.bin has .* it was cut short"),
        (lambda folder: (folder / "test-00000.bin").unlink(), True, "test-00000.bin is missing"),
        (lambda folder: (folder / "shards.json").unlink(), True, "holds no shards: there is no shards.json"),
        (lambda folder: (folder / "shards.json").write_text("{"), True, "shards.json is damaged"),
        (_flip, False, "valid-00000.bin is damaged: its checksum"),
        (_outside, False, "the id 60000 at place 7 is outside the vocabulary 0..299"),
        (lambda folder: (folder / "tokenizer.json").unlink(), False, "the tokenizer of the shards cannot be read"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), False, "cannot be read: .* is no tokenizer.json"),
    ],
)
def test_damage_is_named_before_training(folder, tmp_path, damage, early, says):
    convert(folder, tmp_path / "shards", tokenizer="bpe:300")
    open_shards(tmp_path / "shards")  # checksums are right, and this is noted
    damage(tmp_path / "shards")
    spec = LanguageModel(data=ShardFolder(path=str(tmp_path / "shards")), length=16)
    assert bool(list(spec.check())) == early
    with pytest.raises(Refused, match=says):
        spec.build()


@pytest.mark.parametrize("text", ["[]", "{", '{"alphabet": 1}'])
def test_an_alphabet_that_is_damaged_is_named(folder, tmp_path, text):
    convert(folder, tmp_path / "shards", tokenizer="chars")
    (tmp_path / "shards" / "alphabet.json").write_text(text)
    with pytest.raises(Refused, match=r"alphabet.json: the tokenizer of the shards cannot be read: it is damaged"):
        open_shards(tmp_path / "shards")


def test_ids_that_were_not_verified_are_refused_when_they_are_met(folder, tmp_path):
    convert(folder, tmp_path / "shards", tokenizer="bpe:300")
    _outside(tmp_path / "shards")
    made = LanguageModel(data=ShardFolder(path=str(tmp_path / "shards"), verify="never"), length=16).build()
    with pytest.raises(Refused, match=r"the id 60000, which is outside the vocabulary 0\.\.299"):
        made.baselines()
    with pytest.raises(Refused, match="an id outside the vocabulary 0..299: 60000"):
        made.batch("train", range(made.size("train")))


def test_checksums_are_read_once(folder, tmp_path, monkeypatch):
    convert(folder, tmp_path / "shards")
    read = []
    real = open_shards.__globals__["verify_shards"]
    monkeypatch.setitem(open_shards.__globals__, "verify_shards", lambda *given: read.append(1) or real(*given))
    for verify, times in (("once", 1), ("once", 1), ("never", 1), ("always", 2)):
        open_shards(tmp_path / "shards", verify)
        assert len(read) == times
    assert "every checksum is right" in ShardFolder(path=str(tmp_path / "shards")).prepare()


def test_the_task_takes_shards_and_their_tokenizer(folder, tmp_path):
    convert(folder, tmp_path / "shards", tokenizer="chars", end_of_text=True, shard=100)
    data = ShardFolder(path=str(tmp_path / "shards"))
    spec = LanguageModel(data=data, length=16)
    made = spec.build()
    assert spec.space() == made.space
    assert made.space.fields[0].end == made.tokenizer.end == made.tokenizer.size - 1
    clean = made.batch("train", range(made.size("train")))
    assert clean.x0[clean.valid].tolist() == np.concatenate(made.corpus.splits["train"].arrays).tolist()
    assert made.baselines()["nats_per_token/uniform"] == pytest.approx(np.log(made.tokenizer.size))
    assert LanguageModel(data=data, length=16, tokenizer="chars").build().size("train") == made.size("train")
    for other in ("bytes", "bpe:300"):
        spec = LanguageModel(data=data, length=16, tokenizer=other)
        (misfit,) = spec.check()
        assert misfit.path == ("tokenizer",)
        with pytest.raises(Refused, match=rf'"chars.*" .* made these shards, not "{other}'):
            spec.build()


def test_another_tokenizer_of_the_same_name_is_known_by_its_hash(folder, tmp_path):
    convert(folder, tmp_path / "shards", tokenizer="bpe:300")
    data = ShardFolder(path=str(tmp_path / "shards"))
    same = tmp_path / "same.json"
    same.write_bytes((tmp_path / "shards" / "tokenizer.json").read_bytes())
    assert not [*LanguageModel(data=data, length=16, tokenizer=str(same)).check()]
    assert LanguageModel(data=data, length=16, tokenizer=str(same)).build().size("train")
    convert(folder, tmp_path / "others", tokenizer="bpe:301")
    other = str(tmp_path / "others" / "tokenizer.json")
    (misfit,) = LanguageModel(data=data, length=16, tokenizer=other).check()
    assert "hash" in misfit.message


def test_shards_without_an_end_do_not_get_one_later(folder, tmp_path):
    convert(folder, tmp_path / "shards")
    with pytest.raises(Refused, match="no id that ends a text"):
        LanguageModel(data=ShardFolder(path=str(tmp_path / "shards")), length=16, end_of_text=True).build()


def test_a_text_is_a_source_once_it_is_prepared(folder, tmp_path):
    spec = ConvertedText(paths=[str(folder)], tokenizer="bytes", valid=0.2)
    (misfit,) = spec.check()
    assert "has not been prepared" in misfit.message
    assert misfit.help == f"run: dither prepare text {folder} --tokenizer bytes --valid 0.2"
    ended = ConvertedText(paths=["a.txt"], tokenizer="bytes", end_of_text=True)
    assert ended.command() == "dither prepare text a.txt --tokenizer bytes --end-of-text"
    spec.prepare()
    assert list(spec.check()) == []
    assert LanguageModel(data=spec, length=8).build().size("train") > 10
    to = ConvertedText(paths=[str(folder)], tokenizer="bytes", valid=0.2, to=str(tmp_path / "shards"))
    to.prepare()
    with pytest.raises(Refused, match="was prepared otherwise: valid changed"):
        ConvertedText(paths=[str(folder)], tokenizer="bytes", to=str(tmp_path / "shards")).build()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"valid": 0.6, "test": 0.4}, "leave nothing to train on"),
        ({"tokenizer": "bpe:12"}, "from 257 to 1,000,000"),
        ({"paths": []}, "at least 1 item"),
    ],
)
def test_options_that_cannot_be_are_refused(options, says):
    with pytest.raises(ValidationError, match=says):
        ConvertedText(**{"paths": ["a"], **options})


def test_parquet_is_read_by_rows(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [*TEXTS[:10], None, ""]
    parquet.write_table(arrow.table({"body": rows, "n": list(range(12))}), tmp_path / "a.parquet", row_group_size=4)
    spec, said = convert(tmp_path / "a.parquet", tmp_path / "shards", column="body")
    found = [text for stream in spec.build().splits.values() for text in documents(stream, Bytes())]
    assert sorted(found) == sorted(TEXTS[:10])
    assert "row 11 is null" in said
    assert "row 12 is empty" in said
    with pytest.raises(Refused, match='has no column "text"; columns of text are: body'):
        convert(tmp_path / "a.parquet", tmp_path / "other")
    with pytest.raises(Refused, match='"n" is int64'):
        convert(tmp_path / "a.parquet", tmp_path / "other", column="n")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(Refused, match="b.parquet cannot be read"):
        convert(tmp_path / "b.parquet", tmp_path / "other")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace())
    with pytest.raises(Refused, match=r"dither-tasks\[parquet\]"):
        convert(tmp_path / "a.parquet", tmp_path / "shards")
