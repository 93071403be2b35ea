"""`dither prepare text`, the token store that it writes, and the cache of large corpora."""

import json

import numpy as np
import pyarrow
import pyarrow.ipc
import pytest
from pyarrow import parquet

from dither.tasks.language_model.data import prepare, text_files, token_store
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.manifest import read_store
from dither.tasks.language_model.data.specs import ConvertedText, ShardFolder
from dither.tasks.language_model.data.token_store import encode_corpus, open_store
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters, Ended
from dither.tasks.language_model.specs import LanguageModel

TEXTS = [
    f"Document number {n}.\n\nIt says: {'word ' * (n % 7)}and no more, naïve {n * 37} 河.\n"
    for n in range(40)
]


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def folder(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, text in enumerate(TEXTS):
        (texts / f"{number:02d}.txt").write_text(text, "utf-8")
    return texts


def convert(folder, to, **options):
    spec = ConvertedText(
        paths=[str(folder)], to=str(to), **{"tokenizer": "bytes", **options}
    )
    return spec, spec.prepare()


def documents(stream, tokenizer):
    stops = stream.stops()
    return [
        tokenizer.decode(stream.ids[a:b])
        for a, b in zip(stream.starts, stops, strict=True)
    ]


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "bpe:300"])
def test_every_document_is_in_exactly_one_split(folder, tmp_path, tokenizer):
    spec, _ = convert(folder, tmp_path / "shards", tokenizer=tokenizer)
    store = spec.build()
    texts = {
        split: documents(stream, store.tokenizer)
        for split, stream in store.splits.items()
    }
    if store.tokenizer.end is not None:
        assert all(
            text.endswith("<|endoftext|>") for split in texts.values() for text in split
        )
        texts = {
            split: [text.removesuffix("<|endoftext|>") for text in found]
            for split, found in texts.items()
        }
    assert sum(map(len, texts.values())) == len(TEXTS)
    if tokenizer == "chars":  # characters outside the training split are <unk>
        assert set(texts["train"]) < set(TEXTS)
    else:
        assert sorted(text for split in texts.values() for text in split) == sorted(
            TEXTS
        )


def test_shares_do_not_depend_on_names_or_order(folder, tmp_path):
    renamed = tmp_path / "other"
    renamed.mkdir()
    for number, text in enumerate(reversed(TEXTS)):
        (renamed / f"{number}.md").write_text(text, "utf-8")
    one, other = (
        convert(path, tmp_path / path.name / "out", valid=0.2, test=0.1)[0].build()
        for path in (folder, renamed)
    )
    for split, share in (("valid", 0.2), ("test", 0.1)):
        first, second = (
            documents(store.splits[split], Bytes()) for store in (one, other)
        )
        assert set(first) == set(second)
        assert len("".join(first)) == pytest.approx(
            share * len("".join(TEXTS)), rel=0.25
        )


def test_output_is_deterministic(folder, tmp_path, monkeypatch):
    """Also with small batches and chunks."""
    for name in ("a", "b"):
        convert(folder, tmp_path / name, tokenizer="bpe:300")
        monkeypatch.setattr(token_store, "BATCH", 100)
        monkeypatch.setattr(text_files, "PIECE", 20)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (
            tmp_path / "b" / name
        ).read_bytes()


def test_rejected_documents_are_counted_and_listed(tmp_path):
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
    lines = [
        '{"text": "line one"}',
        '{"text": broken',
        '{"body": "b"}',
        "",
        '{"text": 7}',
        '{"text": "\\ud800"}',
        "[]",
    ]
    (mixed / "c.jsonl").write_text("\n".join([*lines, '{"text": "the last line"}']))
    spec, report = convert(mixed, tmp_path / "shards")
    counts = {
        "duplicate": 1,
        "empty": 2,
        "binary": 1,
        "encoding": 2,
        "missing": 1,
        "json": 1,
        "key": 3,
    }
    assert read_store(tmp_path / "shards")[0].rejected == counts
    assert sum(split.documents for split in spec.record().splits.values()) == 7
    assert "11 rejected:" in report
    assert "tool.bin: binary, not text: zero byte at offset 2" in report
    rows = [
        json.loads(line)
        for line in (tmp_path / "shards" / "rejected.jsonl").read_text().splitlines()
    ]
    places = {(row["place"].rpartition("/")[2], row["sort"]) for row in rows}
    assert places == {
        ("copy.txt", "duplicate"), ("empty.txt", "empty"), ("blank.txt", "empty"), ("tool.bin", "binary"),
        ("latin.txt", "encoding"), ("gone.txt", "missing"), ("c.jsonl, line 2", "json"), ("c.jsonl, line 3", "key"),
        ("c.jsonl, line 5", "key"), ("c.jsonl, line 6", "encoding"), ("c.jsonl, line 7", "key"),
    }  # fmt: skip
    assert len(rows) == 11


def test_second_preparation_does_nothing_and_changes_require_force(
    folder, tmp_path, refusal
):
    shards = tmp_path / "shards"
    convert(folder, shards)
    before = {path.name: path.stat().st_mtime_ns for path in shards.iterdir()}
    assert "nothing was done" in convert(folder, shards)[1]
    (folder / "new.txt").write_text("one document more")
    assert refusal(convert, folder, shards).codes == ["changed-options"]
    assert before == {path.name: path.stat().st_mtime_ns for path in shards.iterdir()}
    spec, _ = convert(folder, shards, tokenizer="chars", force=True)
    assert spec.build().tokenizer.name == "chars"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cache",
        "shards",
        "texts",
    ]


def test_file_that_changes_between_the_passes(folder, tmp_path, monkeypatch, refusal):
    real = prepare._split_codes

    def change(*args, **options):
        (folder / "07.txt").write_text("something else")
        return real(*args, **options)

    monkeypatch.setattr(prepare, "_split_codes", change)
    refused = refusal(convert, folder, tmp_path / "shards")
    assert refused.codes == ["changed-data"]
    assert "07.txt" in str(refused)


def cut(folder):
    path = folder / "train.npy"
    path.write_bytes(path.read_bytes()[:-1])


def flip(folder):
    path = folder / "valid.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def unlink(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "by_validate", "code", "file"),
    [
        (cut, True, "damaged-file", "train.npy"),
        (unlink("manifest.json"), True, "not-prepared", "manifest.json"),
        (write("manifest.json", "{"), True, "damaged-file", "manifest.json"),
        (flip, False, "damaged-file", "valid.npy"),
        (unlink("tokenizer.json"), False, "damaged-file", "tokenizer.json"),
        (write("tokenizer.json", "{"), False, "damaged-file", "tokenizer.json"),
    ],
)
def test_damage_is_found_before_training(
    folder, tmp_path, refusal, damage, by_validate, code, file
):
    convert(folder, tmp_path / "shards", tokenizer="bpe:300")
    open_store(tmp_path / "shards")  # checksums are correct, and this is noted
    damage(tmp_path / "shards")
    spec = LanguageModel(data=ShardFolder(path=str(tmp_path / "shards")), length=16)
    assert bool(list(spec.check())) == by_validate
    refused = refusal(spec.build)
    assert refused.codes == [code]
    assert file in str(refused)


def test_a_tokenizer_that_missing_data_will_not_have_is_reported_with_them(folder):
    def codes(name):
        data = ConvertedText(paths=[str(folder)], tokenizer="bytes")
        spec = LanguageModel(data=data, tokenizer=name, length=16)
        return [(misfit.code, misfit.path[0]) for misfit in spec.check()]

    missing = ("not-prepared", "data")
    assert codes("chars") == [missing, ("misfit", "tokenizer")]
    assert codes("bytes") == codes("auto") == codes("other/tokenizer.json") == [missing]


def test_task_uses_the_tokenizer_of_the_store(folder, tmp_path, refusal):
    convert(folder, tmp_path / "shards", tokenizer="chars", end_of_text=True)
    data = ShardFolder(path=str(tmp_path / "shards"))
    spec = LanguageModel(data=data, length=16)
    task = spec.build()
    assert spec.space() == task.space
    assert task.space.fields[0].end == task.tokenizer.end == task.tokenizer.size - 1
    clean = task.batch("train", range(task.size("train")))
    assert clean.x0[clean.valid].tolist() == task.corpus.splits["train"].ids.tolist()
    assert task.baselines()["nats_per_token/uniform"] == pytest.approx(
        np.log(task.tokenizer.size)
    )
    assert LanguageModel(data=data, length=16, tokenizer="chars").build().size(
        "train"
    ) == task.size("train")
    for other in ("bytes", "bpe:300"):
        spec = LanguageModel(data=data, length=16, tokenizer=other)
        (misfit,) = spec.check()
        assert misfit.path == ("tokenizer",)
        assert refusal(spec.build).codes == ["misfit"]
    for size in (300, 301):  # tokenizers of equal name are compared by fingerprint
        convert(folder, tmp_path / f"{size}", tokenizer=f"bpe:{size}")
    data, names = (
        ShardFolder(path=str(tmp_path / "300")),
        [f"{tmp_path}/{n}/tokenizer.json" for n in (300, 301)],
    )
    own, other = (LanguageModel(data=data, length=16, tokenizer=name) for name in names)
    assert not [*own.check()]
    (misfit,) = other.check()
    assert "hash" in misfit.message


def test_parquet_and_arrow(tmp_path, refusal):
    rows = [*TEXTS[:10], None, ""]
    parquet.write_table(
        pyarrow.table({"body": rows, "n": list(range(12))}),
        tmp_path / "a.parquet",
        row_group_size=4,
    )
    spec, report = convert(tmp_path / "a.parquet", tmp_path / "shards", column="body")
    texts = [
        text
        for stream in spec.build().splits.values()
        for text in documents(stream, Bytes())
    ]
    assert sorted(texts) == sorted(TEXTS[:10])
    assert "row 11: null" in report
    assert "row 12: empty" in report
    for column in ("text", "n"):
        refused = refusal(
            convert, tmp_path / "a.parquet", tmp_path / "other", column=column
        )
        assert refused.codes == ["missing-array"]
    (tmp_path / "set").mkdir()  # as `save_to_disk` of `datasets` writes it
    table = pyarrow.table({"body": rows, "n": list(range(12))})
    with pyarrow.ipc.new_stream(
        tmp_path / "set" / "data-00000-of-00001.arrow", table.schema
    ) as file:
        file.write_table(table, max_chunksize=5)
    for name in ("dataset_info.json", "state.json"):
        (tmp_path / "set" / name).write_text("{}")
    same, _ = convert(tmp_path / "set", tmp_path / "arrow", column="body")
    texts = [
        text
        for stream in same.build().splits.values()
        for text in documents(stream, Bytes())
    ]
    assert sorted(texts) == sorted(TEXTS[:10])
    assert refusal(convert, tmp_path / "set", tmp_path / "other", column="n").codes == [
        "missing-array"
    ]
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing")
    assert refusal(convert, tmp_path / "b.parquet", tmp_path / "other").codes == [
        "no-samples"
    ]


TRAIN = [
    Document.of("a", "first ü"),
    Document.of("b", "second"),
    Document.of("c", "third"),
]
CORPUS = Corpus(
    "mine", {"train": TRAIN, "valid": [Document.of("v", "held out")], "test": []}
)
TEXT = "first ü\n\nsecond\n\nthird"


def encode(tmp_path, corpus=CORPUS, tokenizer=None):
    return encode_corpus(
        corpus, tokenizer or Bytes(), folder=tmp_path / "tokens"
    ).splits


@pytest.fixture
def on_disk(monkeypatch):
    """Cache even small corpora."""
    monkeypatch.setattr(token_store, "RESIDENT", 3)


def test_small_corpora_stay_in_memory(tmp_path):
    splits = encode(tmp_path)
    ids = splits["train"].ids
    assert ids.dtype == np.uint8
    assert Bytes().decode(ids) == TEXT
    assert splits["train"].starts.tolist() == [0, 10, 18]
    assert len(splits["test"].ids) == len(splits["test"].starts) == 0
    assert not (tmp_path / "tokens").exists()
    assert (
        Ended(Bytes()).decode(encode(tmp_path, tokenizer=Ended(Bytes()))["valid"].ids)
        == "held out<|endoftext|>"
    )


def test_ids_have_the_smallest_type(tmp_path):
    letters = "".join(map(chr, [*range(32, 0xD800), *range(0xE000, 0x30000)]))
    for size, dtype in (
        (256, np.uint8),
        (257, np.uint16),
        (65_536, np.uint16),
        (65_537, np.uint32),
    ):
        text = letters[size - 2] + "\x00"  # the largest id of a character, and <unk>
        corpus = Corpus("mine", {**CORPUS.splits, "train": [Document.of("a", text)]})
        ids = encode(tmp_path, corpus, Characters(letters[: size - 1]))["train"].ids
        assert ids.dtype == dtype
        assert ids.tolist() == [size - 2, size - 1]


def test_large_corpora_are_cached(tmp_path, on_disk):
    memory = encode_corpus(CORPUS, Bytes(), folder=tmp_path / "tokens")
    assert Bytes().decode(memory.splits["train"].ids) == TEXT
    (store,) = (tmp_path / "tokens").iterdir()
    assert Bytes().decode(open_store(store).splits["train"].ids) == TEXT

    def never():
        raise AssertionError("read again")

    unread = [
        Document(document.name, document.digest, document.size, never)
        for document in TRAIN
    ]
    again = Corpus("mine", {**CORPUS.splits, "train": unread})
    assert Bytes().decode(encode(tmp_path, again)["train"].ids) == TEXT
    for corpus, tokenizer in (
        (again, Characters("abc")),
        (Corpus("m", {**again.splits, "train": unread[:2]}), None),
    ):
        with pytest.raises(AssertionError, match="read again"):
            encode(tmp_path, corpus, tokenizer)


@pytest.mark.parametrize(
    "damage", [cut, flip, unlink("manifest.json"), write("manifest.json", "[]")]
)
def test_damaged_cache_is_written_again(tmp_path, on_disk, damage):
    encode(tmp_path)
    (store,) = (tmp_path / "tokens").iterdir()
    damage(store)
    assert Bytes().decode(encode(tmp_path)["train"].ids) == TEXT
    assert list((tmp_path / "tokens").iterdir()) == [store]


def write_splits(folder, layout, sizes):
    """Write `sizes` documents by split; return their texts."""
    texts = {
        name: [f"Document {n} of {name}: {'word ' * (n % 5)}" for n in range(count)]
        for name, count in sizes.items()
    }
    for name, rows in texts.items():
        lines = "\n".join(json.dumps({"text": text}) for text in rows)
        table = pyarrow.table({"text": rows})
        if layout == "datasets":
            (folder / name).mkdir(parents=True)
            file = folder / name / "data-00000-of-00001.arrow"
            with pyarrow.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
            (folder / name / "state.json").write_text("{}")
        elif layout == "folders":
            (folder / "sets" / name).mkdir(parents=True)
            for n, text in enumerate(rows):
                (folder / "sets" / name / f"{n}.md").write_text(text)
        else:
            folder.mkdir(exist_ok=True)
            (folder / f"my.{name}-00000-of-00001.jsonl").write_text(lines)
    if layout == "datasets":
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*sizes]}))
    return texts


@pytest.mark.parametrize("layout", ["datasets", "folders", "files"])
@pytest.mark.parametrize("names", ["train validation test", "train test", "train dev"])
def test_published_splits_are_kept(tmp_path, layout, names):
    sizes = dict(zip(names.split(), (30, 10, 8), strict=False))
    source = tmp_path / "source"
    published = write_splits(source, layout, sizes)
    spec, report = convert(source, tmp_path / "shards")
    store = spec.build()
    found = {
        split: set(documents(stream, store.tokenizer))
        for split, stream in store.splits.items()
    }
    assert "published splits are kept" in report
    for name, split in (("validation", "valid"), ("dev", "valid"), ("test", "test")):
        if name in sizes:
            assert found[split] == set(published[name])
    # A split that the source lacks is held out of its training split.
    assert found["train"] <= set(published["train"])
    assert found["valid"]
    assert found["test"]
    assert sum(map(len, found.values())) == sum(sizes.values())


def test_a_limit_is_one_of_training_documents(tmp_path):
    source = tmp_path / "source"
    sizes = {"train": 30, "validation": 10, "test": 8}
    published = write_splits(source, "files", sizes)
    spec, _ = convert(source, tmp_path / "shards", documents=12)
    store = spec.build()
    for name, split in (("validation", "valid"), ("test", "test")):
        found = documents(store.splits[split], store.tokenizer)
        assert set(found) == set(published[name])
    assert len(documents(store.splits["train"], store.tokenizer)) == 12


def test_a_document_of_test_and_training_is_in_test_only(tmp_path):
    source = tmp_path / "source"
    published = write_splits(source, "files", {"train": 20, "test": 5})
    path = source / "my.train-00000-of-00001.jsonl"
    leaked = json.dumps({"text": published["test"][0]})
    path.write_text(f"{leaked}\n{path.read_text()}")
    spec, _ = convert(source, tmp_path / "shards")
    store = spec.build()
    assert published["test"][0] in documents(store.splits["test"], store.tokenizer)
    assert published["test"][0] not in documents(store.splits["train"], store.tokenizer)


@pytest.mark.parametrize(
    "names", [["train.py", "test.py"], ["train.txt", "more.txt"], ["a.txt", "test.txt"]]
)
def test_other_names_are_not_splits(tmp_path, names):
    folder = tmp_path / "source"
    folder.mkdir()
    for number, name in enumerate(names):
        (folder / name).write_text(f"text number {number} " * 20)
    _, report = convert(folder, tmp_path / "shards")
    assert "published" not in report


@pytest.mark.parametrize("sort", ["lines", "files", "rows"])
def test_nearly_all_documents_rejected_is_an_error(tmp_path, refusal, sort):
    folder = tmp_path / "source"
    folder.mkdir()
    bad = [{"text": 7}] * 199
    lines = [*map(json.dumps, bad), json.dumps({"text": "one good line of text"})]
    if sort == "lines":
        (folder / "a.jsonl").write_text("\n".join(lines))
    if sort == "files":
        for number in range(20):
            (folder / f"{number}.txt").write_bytes(b"caf\xe9")
        (folder / "good.txt").write_text("one good file of text")
    if sort == "rows":
        # Other files are good.
        (folder / "a.csv").write_text("text\n" + "   \n" * 60 + "good\n")
        for number in range(100):
            (folder / f"{number}.txt").write_text(f"good text {number}")
    refused = refusal(convert, folder, tmp_path / "shards")
    assert refused.codes == ["invalid-sample"]
    assert not (tmp_path / "shards").exists()
