import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from dither.registry.config.errors import Refused
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.tokenizers import SIZES
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters
from dither.tasks.language_model.data.tokenizers.factory import load_tokenizer
from dither.tasks.language_model.data.tokenizers.huggingface import Learned, gpt2

SENTENCES = [
    "Der Fluß fließt.\n\nThe river — 河 — flows;  two  blanks.\n",
    "naïve café 🐍🐍\n\n\nend\t",
    "".join(map(chr, range(0x80, 0x100))),  # every byte that may continue a character
    "\n",
    "",
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


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
        assert tokenizer.characters(ids) == len(text)
        assert not len(ids) or (ids.min() >= 0 and ids.max() < tokenizer.size)


def test_parts_of_a_text_have_the_characters_of_the_whole(byte_pairs):
    # a window may begin or end inside a character: what it counts must add up all the same
    for tokenizer in offered(byte_pairs):
        ids = tokenizer.encode(SENTENCES[1])
        for cut in range(len(ids) + 1):
            assert tokenizer.characters(ids[:cut]) + tokenizer.characters(ids[cut:]) == len(SENTENCES[1])


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


def test_gpt2_ids():
    try:
        tokenizer = gpt2()
    except Refused as refused:
        pytest.skip(f"the files of GPT-2's tokenizer not available: {refused}")
    assert tokenizer.size == SIZES["gpt2"]
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert tokenizer.end == 50256
    assert tokenizer.characters(np.array([50256])) == 0
    assert 50256 not in tokenizer.encode("<|endoftext|>")  # in a text it is encoded as letters
    for text in SENTENCES:
        assert tokenizer.decode(tokenizer.encode(text)) == text
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
