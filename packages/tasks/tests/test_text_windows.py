from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dither.registry.config.errors import Refused
from dither.registry.flow.records import Measured
from dither.tasks.language_model.data import text_files as pieces
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.specs import StdlibText
from dither.tasks.language_model.data.token_store import TokenStream, Windows
from dither.tasks.language_model.data.tokenizers import huggingface as learning
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters, Ended
from dither.tasks.language_model.data.tokenizers.factory import load_tokenizer
from dither.tasks.language_model.data.tokenizers.huggingface import Learned
from dither.tasks.language_model.specs import LanguageModel
from dither.tasks.language_model.task import LanguageModelling

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TRAIN = "the cat sat on the mat, the rat ran; naïve 河 café\n\nthat is that, and this is this\n" * 8


def corpus(*train: str) -> Corpus:
    held = {"valid": [Document.of("v", "abc")], "test": []}
    return Corpus("mine", {"train": [Document.of(str(n), text) for n, text in enumerate(train)], **held})


@pytest.fixture(scope="module")
def byte_pairs(tmp_path_factory) -> Learned:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITHER_DATA", str(tmp_path_factory.mktemp("cache")))
        return load_tokenizer("bpe:290", lambda: corpus(TRAIN))


@settings(deadline=None)
@given(TEXT, TEXT)
def test_round_trip_with_end_of_text(byte_pairs, text, other):
    marked = text + "<|endoftext|>" + other  # in a text it is encoded as letters
    known = Ended(Characters("".join(sorted({*marked, "\n"}))))
    for tokenizer in (byte_pairs, Ended(Bytes()), known):
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


def test_byte_pairs_have_the_requested_size(byte_pairs, tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    assert (byte_pairs.name, byte_pairs.size, byte_pairs.end) == ("bpe:290", 290, 289)
    assert load_tokenizer("bpe:290", lambda: corpus(TRAIN)).fingerprint == byte_pairs.fingerprint
    assert load_tokenizer("bpe:290", lambda: corpus(TRAIN + "other")).fingerprint != byte_pairs.fingerprint
    with pytest.raises(Refused, match='use at most "bpe:294"'):
        load_tokenizer("bpe:5000", lambda: corpus(TRAIN))
    for wrong in ("bpe:", "bpe:x", "bpe:12", "bpe:9999999999", "bpe:²"):
        with pytest.raises(Refused) as refused:
            load_tokenizer(wrong, lambda: corpus(TRAIN))
        assert refused.value.codes == ["out-of-range"]
        assert [m.path for m in LanguageModel(data=StdlibText(), tokenizer=wrong).check()] == [("tokenizer",)]


def test_byte_pairs_are_cached_and_damage_is_repaired(tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    first = load_tokenizer("bpe:280", lambda: corpus(TRAIN))
    with monkeypatch.context() as patch:
        patch.setattr(learning, "_learn", lambda *given: pytest.fail("learned again"))
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
    monkeypatch.setattr(learning, "gpt2", lambda: pytest.fail("the tokenizer was downloaded"))
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


def streams():
    return st.tuples(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 9), st.integers(1, 7))


@given(streams(), st.sampled_from(["stream", "separate"]), st.integers(0, 2))
def test_windows_equal_slices(shape, documents, gap):
    sizes, length, shard = shape
    ids = np.arange(1, sum(sizes) + gap * (len(sizes) - 1) + 1, dtype=np.uint16)
    starts = np.cumsum([0, *(size + gap for size in sizes)])[:-1]
    arrays = tuple(ids[at : at + shard] for at in range(0, len(ids), shard))
    windows = Windows(TokenStream(arrays, starts, gap), length, documents, pad=9999)
    if documents == "stream":
        expected = [ids[at : at + length].tolist() for at in range(0, len(ids), length)]
    else:
        texts = [ids[start : start + size].tolist() for start, size in zip(starts, sizes, strict=True)]
        expected = [text[at : at + length] for text in texts for at in range(0, len(text), length)]
    assert len(windows) == len(expected)
    x0, valid = windows.take(range(len(windows)))
    assert [row[keep].tolist() for row, keep in zip(x0, valid, strict=True)] == expected
    assert (x0[~valid] == 9999).all()
    some, kept = windows.take([len(expected) - 1, 0, 0])
    assert (some == x0[[-1, 0, 0]]).all()
    assert (kept == valid[[-1, 0, 0]]).all()
    for wrong in ([-1], [len(expected)]):
        with pytest.raises(IndexError, match="numbered"):
            windows.take(wrong)


def test_samples_are_as_long_as_documents():
    made = LanguageModelling(corpus("one", "three!", "x"), Ended(Bytes()), length=4, documents="separate", prompt="a")
    lengths = made.like(400, seed=1).valid.sum(1)
    assert set(lengths.tolist()) == {2, 3, 4}
    assert abs((lengths == 4).float().mean().item() - 0.5) < 0.1
    assert torch.equal(made.like(5, seed=3).valid, made.like(5, seed=3).valid)
    assert made.like(2, seed=0).known.tolist() == [[True, False, False, False]] * 2


@pytest.fixture(scope="module")
def ended() -> LanguageModelling:
    return LanguageModelling(corpus("one", "three!", "x"), Ended(Bytes()), length=4, documents="ended")


def test_ended_documents_fill_their_window(ended):
    clean = ended.batch("train", range(ended.size("train")))
    assert clean.valid.all()
    assert clean.x0.tolist() == [[111, 110, 101, 256], [*b"thre"], [*b"e!", 256, 256], [120, 256, 256, 256]]
    assert ended.like(3, seed=0).valid.all()
    rows = torch.tensor([[97, 256, 256, 256], [97, 98, 99, 256]])
    assert ended.sample_metrics(rows, ended.like(2, seed=0))["distinct_1"] == 1
    assert [picture.text for picture in ended.plots(rows, ended.like(2, seed=0))] == ["a", "abc"]


def test_fill_counts_nats_but_no_tokens(ended):
    clean = ended.batch("train", range(ended.size("train")))
    metrics = ended.metrics()
    measured = Measured(torch.full((4, 4), 2.0), torch.ones(4, 4))
    metrics.update(clean, None, None, measured)
    tokens = len("one.three!.x.")
    assert metrics.compute()["nats_per_token"] == pytest.approx(16 * 2 / tokens)
    assert metrics.compute()["bits_per_char"] == pytest.approx(16 * 2 / np.log(2) / len("onethree!x"))
    nats, count = metrics.per_sample(clean, measured)["nats_per_token"]
    assert (nats.tolist(), count.tolist()) == ([8.0] * 4, [4.0, 4.0, 3.0, 2.0])
    bits, characters = metrics.per_sample(clean, measured)["bits_per_char"]
    assert bits.sum() / characters.sum() == pytest.approx(metrics.compute()["bits_per_char"])


def test_ended_documents_require_an_end_of_text(refusal):
    made = corpus("one", "two")
    assert refusal(LanguageModelling, made, Bytes(), length=4, documents="ended").codes == ["misfit"]
    (misfit,) = LanguageModel(data=StdlibText(), tokenizer="bytes", documents="ended").check()
    assert misfit.path == ("documents",)
    assert not [*LanguageModel(data=StdlibText(), tokenizer="bytes", documents="ended", end_of_text=True).check()]
