"""The task: windows, prompts, ended documents, metrics per token and character, and texts with known entropy."""

from itertools import product
from math import log
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dither.registry.contracts.records import Clean, Measured, Noise, Noised, State
from dither.registry.contracts.spaces import Field, TokenSpace
from dither.tasks.language_model.data import markov, token_store
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.markov import ALPHABET, MarkovChain
from dither.tasks.language_model.data.specs import (
    ConvertedText,
    MarkovText,
    Shakespeare,
    StdlibText,
    TextFiles,
)
from dither.tasks.language_model.data.token_store import TokenStream, Windows
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters, Ended
from dither.tasks.language_model.metrics.baselines import distribution_baselines
from dither.tasks.language_model.metrics.perplexity import TextMetrics, after_end
from dither.tasks.language_model.specs import LanguageModel
from dither.tasks.language_model.task import LanguageModelling

torch.set_num_threads(1)
SPACE = TokenSpace((Field("text", 6, 256),))
LETTERS = Characters("\nabcdefghijklmnopqrstuvwxyz")


def task(*train, length=8, tokenizer=None, valid="over the lazy dog", **options):
    texts = [
        Document.of(str(n), text)
        for n, text in enumerate(train or ["the quick brown fox jumps"])
    ]
    splits = {"train": texts, "valid": [Document.of("v", valid)], "test": []}
    return LanguageModelling(
        Corpus("mine", splits), tokenizer or Bytes(), length=length, **options
    )


def test_windows_cover_the_split():
    made = task()
    assert made.size("train") == 4  # 25 bytes
    clean = made.batch("train", range(4))
    assert clean.x0.dtype == torch.int64
    assert clean.valid.sum(1).tolist() == [8, 8, 8, 1]
    assert clean.x0[~clean.valid].eq(0).all()
    assert bytes(clean.x0[clean.valid].tolist()) == b"the quick brown fox jumps"
    assert not clean.known.any()


def streams():
    return st.tuples(
        st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 9)
    )


@given(streams(), st.sampled_from(["stream", "separate"]), st.integers(0, 2))
def test_windows_equal_slices(shape, documents, gap):
    sizes, length = shape
    ids = np.arange(1, sum(sizes) + gap * (len(sizes) - 1) + 1, dtype=np.uint16)
    starts = np.cumsum([0, *(size + gap for size in sizes)])[:-1]
    windows = Windows(TokenStream(ids, starts, gap), length, documents, pad=9999)
    if documents == "stream":
        expected = [ids[at : at + length].tolist() for at in range(0, len(ids), length)]
    else:
        texts = [
            ids[start : start + size].tolist()
            for start, size in zip(starts, sizes, strict=True)
        ]
        expected = [
            text[at : at + length]
            for text in texts
            for at in range(0, len(text), length)
        ]
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


def test_samples_begin_with_the_prompt_and_are_as_long_as_documents():
    like = task(prompt="To be").like(3, seed=0)
    assert like.x0.shape == (3, 8)
    assert like.valid.all()
    assert like.known.tolist() == [[True] * 5 + [False] * 3] * 3
    assert bytes(like.x0[0, :5].tolist()) == b"To be"
    assert not task().like(2, seed=0).known.any()
    made = task(
        "one",
        "three!",
        "x",
        tokenizer=Ended(Bytes()),
        length=4,
        documents="separate",
        prompt="a",
    )
    lengths = made.like(400, seed=1).valid.sum(1)
    assert set(lengths.tolist()) == {2, 3, 4}
    assert abs((lengths == 4).float().mean().item() - 0.5) < 0.1
    assert torch.equal(made.like(5, seed=3).valid, made.like(5, seed=3).valid)
    assert made.like(2, seed=0).known.tolist() == [[True, False, False, False]] * 2


@pytest.fixture(scope="module")
def ended() -> LanguageModelling:
    return task(
        "one", "three!", "x", tokenizer=Ended(Bytes()), length=4, documents="ended"
    )


def test_ended_documents_fill_their_window(ended):
    clean = ended.batch("train", range(ended.size("train")))
    assert clean.valid.all()
    assert clean.x0.tolist() == [
        [111, 110, 101, 256],
        [*b"thre"],
        [*b"e!", 256, 256],
        [120, 256, 256, 256],
    ]
    assert ended.like(3, seed=0).valid.all()
    rows = torch.tensor([[97, 256, 256, 256], [97, 98, 99, 256]])
    assert ended.sample_metrics(rows, ended.like(2, seed=0))["distinct_1"] == 1
    assert [picture.text for picture in ended.plots(rows, ended.like(2, seed=0))] == [
        "a",
        "abc",
    ]


def test_a_sample_ends_with_its_own_end():
    """Not with those of a prompt."""
    x = torch.tensor([[256, 97, 256, 98, 256, 256, 99]])
    known = torch.tensor([[True] * 3 + [False] * 4])
    assert after_end(x, 256, known).tolist() == [[False] * 5 + [True] * 2]


def test_fill_counts_nats_but_no_tokens(ended):
    clean = ended.batch("train", range(ended.size("train")))
    metrics = ended.metrics()
    measured = Measured(torch.full((4, 4), 2.0), torch.ones(4, 4))
    metrics.update(clean, None, None, measured)
    tokens = len("one.three!.x.")
    assert metrics.compute()["nats_per_token"] == pytest.approx(16 * 2 / tokens)
    assert metrics.compute()["bits_per_char"] == pytest.approx(
        16 * 2 / np.log(2) / len("onethree!x")
    )
    nats, count = metrics.per_sample(clean, measured)["nats_per_token"]
    assert (nats.tolist(), count.tolist()) == ([8.0] * 4, [4.0, 4.0, 3.0, 2.0])
    bits, characters = metrics.per_sample(clean, measured)["bits_per_char"]
    assert bits.sum() / characters.sum() == pytest.approx(
        metrics.compute()["bits_per_char"]
    )


def test_ended_documents_require_an_end_of_text(refusal):
    assert refusal(task, documents="ended").codes == ["misfit"]
    (misfit,) = LanguageModel(
        data=StdlibText(), tokenizer="bytes", documents="ended"
    ).check()
    assert misfit.path == ("documents",)
    assert not [
        *LanguageModel(
            data=StdlibText(), tokenizer="bytes", documents="ended", end_of_text=True
        ).check()
    ]


def test_invalid_options_and_prompts(refusal):
    for make, says in (
        (lambda: StdlibText(valid=0.6, test=0.4), "leave no training data"),
        (lambda: Shakespeare(valid=["hamlett"]), "'hamlet'"),
        (lambda: Shakespeare(valid=["hamlet"], test=["hamlet"]), "hamlet in both"),
        (lambda: ConvertedText(paths=["a"], tokenizer="bpe:12"), "bpe:N requires"),
        (lambda: MarkovText(states=62, order=3), "65,536"),
    ):
        with pytest.raises(ValidationError, match=says):
            make()
    for prompt, code in (
        ("12345678", "misfit"),
        ("123456789", "misfit"),
        ("aZ!Z", "unknown-value"),
    ):
        refused = refusal(
            task, prompt=prompt, tokenizer=LETTERS if "Z" in prompt else Bytes()
        )
        assert (refused.codes, refused.problems[0].path) == ([code], ("task", "prompt"))


def test_text_shorter_than_a_window(tmp_path, refusal):
    (tmp_path / "a.txt").write_text("a few words, and a few more of them\n")
    data = TextFiles(paths=[str(tmp_path / "a.txt")])
    assert LanguageModel(data=data, length=8).build().size("train") > 1
    assert refusal(LanguageModel(data=data, length=64).build).codes == ["no-samples"]


def windows(texts, known=0):
    """Texts as a batch with padding, the first positions known."""
    rows = [list(text.encode()) for text in texts]
    longest = max(map(len, rows))
    x0 = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    valid = torch.tensor(
        [[place < len(row) for place in range(longest)] for row in rows]
    )
    given = torch.zeros_like(valid)
    given[:, :known] = True
    return Clean.of(x0, valid, given & valid)


def noised(clean, sigma):
    """A clean state at given noise levels per row."""
    level = torch.as_tensor(sigma, dtype=torch.float32).expand(len(clean.x0))
    return Noised(
        clean.x0,
        State.of(clean.x0),
        Noise(level, level),
        ~clean.fixed,
        clean.valid,
        clean.fixed,
    )


def test_sums_per_window_exclude_known_positions_and_padding():
    clean = windows(["zwölf", "abc", "é"], known=1)
    measured = Measured(torch.rand(3, 6), (~clean.fixed).float())
    metrics = TextMetrics(Bytes(), SPACE)
    metrics.update(clean, noised(clean, 1.0), None, measured)
    sums, figures = metrics.per_sample(clean, measured), metrics.compute()
    assert sums["nats_per_token"][1].tolist() == [5, 2, 1]
    assert sums["bits_per_char"][1].tolist() == [
        4,
        2,
        0,
    ]  # the first byte of the only letter is known
    for name, (above, below) in sums.items():
        assert figures[name] == pytest.approx(float(above.sum() / below.sum()))


def test_parts_of_the_bound():
    clean = windows(["abc", "abcd"])
    free = (~clean.fixed).float()
    metrics = TextMetrics(Bytes(), SPACE)
    whole = torch.full((2, 4), 3.0)
    for rows in (slice(0, 1), slice(1, 2)):
        parts = {
            "prior": torch.tensor([[1.0, 2, 3, 4]] * 2) * free,
            "reconstruction": 0.5 * free,
        }
        metrics.update(
            clean[rows],
            noised(clean[rows], 1.0),
            None,
            Measured(whole, free, parts=parts)[rows],
        )
    found = metrics.compute()
    assert found["nats_per_token"] == pytest.approx(3)
    assert found["nats_per_token_prior"] == pytest.approx(
        (1 + 2 + 3 + 1 + 2 + 3 + 4) / 7
    )
    assert found["nats_per_token_reconstruction"] == pytest.approx(0.5)


def test_accuracy_counts_targets_only():
    clean = windows(["abcd", "abcd", "abc"])
    sigma = torch.tensor([0.1, 5.0, 5.0])  # 10 % and 99 % lost
    state = noised(clean, sigma)
    wanted = state.target_mask.clone()
    wanted[1, 0] = False
    state = Noised(state.x0, state.state, state.noise, wanted, state.valid, state.fixed)
    guess = torch.zeros(3, 4, 256)
    guess.scatter_(-1, clean.x0[..., None], 1.0)  # right everywhere
    guess[1, 2:] = 0.0
    guess[1, 2:, 7] = 2.0  # but in two places
    metrics = TextMetrics(Bytes(), SPACE)
    metrics.update(
        clean,
        state,
        SimpleNamespace(log_clean=lambda: guess),
        Measured(guess[..., 0], state.valid.float()),
    )
    found = metrics.compute()
    assert found["text_accuracy_0_25"] == 1
    assert found["text_accuracy_75_100"] == pytest.approx(4 / 6)
    assert not any(name.startswith("text_accuracy_25") for name in found)


def test_no_measurements_are_nan_and_perplexity_does_not_overflow():
    assert np.isnan(TextMetrics(Bytes(), SPACE).compute()["bits_per_char"])
    metrics = TextMetrics(Bytes(), SPACE)
    clean = Clean.of(torch.zeros(1, 1, dtype=torch.int64))
    metrics.update(
        clean,
        noised(clean, 0.0),
        None,
        Measured(torch.full((1, 1), 1e5), torch.ones(1, 1)),
    )
    assert metrics.compute()["perplexity"] == float("inf")


@pytest.mark.parametrize(("states", "order"), [(2, 1), (3, 1), (2, 3), (3, 2)])
def test_distribution_sums_to_one_with_its_entropy(states, order):
    chain = MarkovChain(states, order=order, concentration=0.5, seed=3)
    for length in range(1, 6):
        texts = [
            "".join(letters) for letters in product(ALPHABET[:states], repeat=length)
        ]
        nats = np.array([chain.nats(text) for text in texts])
        assert np.exp(-nats).sum() == pytest.approx(1, abs=1e-12)
        assert chain.entropy(length) == pytest.approx(
            (np.exp(-nats) * nats).sum(), abs=1e-12
        )


def test_text_follows_the_distribution():
    chain = MarkovChain(4, concentration=0.3, seed=5)
    text = chain.text(40_000)
    counts = np.zeros((4, 4))
    np.add.at(
        counts,
        ([ALPHABET.index(a) for a in text[:-1]], [ALPHABET.index(b) for b in text[1:]]),
        1,
    )
    expected = chain.stationary[:, None] * chain.transitions * counts.sum()
    seen = expected > 5
    chi = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
    assert chi < 60  # 16 pairs at most, correlated
    assert chain.nats(text) / len(text) == pytest.approx(chain.rate, rel=0.03)


def test_texts_are_a_function_of_seed_and_stream(monkeypatch):
    one = MarkovChain(8, seed=2)
    text = one.text(200)
    assert text[:100] == one.text(100) != one.text(100, stream=1)
    assert MarkovChain(8, seed=3).text(200) != text
    for stretch, stretches in (
        (7, 1),
        (3, 5),
        (16, 4),
    ):  # how it is cut makes no difference
        monkeypatch.setattr(markov, "STRETCH", stretch)
        monkeypatch.setattr(markov, "STRETCHES", stretches)
        assert one.text(200) == text


@pytest.mark.parametrize(
    ("states", "order", "concentration"),
    [(2, 1, 0.01), (3, 4, 0.05), (4, 8, 0.1), (62, 1, 1e3)],
)
def test_text_is_drawn_symbol_by_symbol(states, order, concentration, monkeypatch):
    """Stretches that start from guessed contexts end up as the chain that draws one symbol after the other."""
    monkeypatch.setattr(markov, "STRETCHES", 9)
    chain, rng = (
        MarkovChain(states, order=order, concentration=concentration),
        np.random.default_rng([0, 1, 0]),
    )
    context, rows, symbols = (
        int(rng.choice(len(chain.stationary), p=chain.stationary)),
        chain.transitions.cumsum(1),
        [],
    )
    for u in rng.random(5000):
        symbols.append(min(int(np.searchsorted(rows[context], u, "right")), states - 1))
        context = (context * states + symbols[-1]) % len(rows)
    assert chain.text(5000) == "".join(ALPHABET[symbol] for symbol in symbols)


@pytest.mark.parametrize("length", [1, 40, 3000])
def test_space_without_drawing_the_text(length):
    """Some of the 30 letters are rare and missing in short texts; space and corpus agree."""
    data = MarkovText(states=30, concentration=0.05, length=length, held=10, seed=4)
    corpus = data.build()
    assert corpus.characters() == "".join(sorted(set("".join(corpus.texts()))))
    for more in ({}, {"end_of_text": True}):
        spec = LanguageModel(data=data, tokenizer="chars", length=1, **more)
        assert spec.space() == spec.build().space


def test_encoded_text_of_a_chain_is_not_drawn_again(monkeypatch):
    monkeypatch.setattr(token_store, "RESIDENT", 100)
    spec = LanguageModel(
        data=MarkovText(length=3_000, held=100, seed=6), tokenizer="chars", length=10
    )
    first = spec.build().batch("train", range(300)).x0
    monkeypatch.setattr(MarkovChain, "text", lambda *_: pytest.fail("drawn again"))
    assert torch.equal(spec.build().batch("train", range(300)).x0, first)


@pytest.mark.parametrize("ngrams", [None, 3])
def test_baselines_of_an_empty_split_are_nan(ngrams):
    baselines = task(ngrams=ngrams).baselines("test")
    metrics = TextMetrics(Bytes(), SPACE).compute()
    for name in ("bits_per_char", "nats_per_token"):
        assert np.isnan(metrics[name])
        assert np.isnan(baselines[f"{name}/unigram"])


@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_entropy_baselines(tokenizer):
    spec = LanguageModel(
        data=MarkovText(states=5, length=2_000, held=1_003, seed=4),
        tokenizer=tokenizer,
        length=10,
    )
    found, chain = spec.build().baselines(), MarkovChain(5, seed=4)
    exact = (100 * chain.entropy(10) + chain.entropy(3)) / 1_003
    assert found["nats_per_token/source-entropy"] == pytest.approx(exact, rel=1e-12)
    assert found["bits_per_char/source-entropy"] == pytest.approx(
        exact / log(2), rel=1e-12
    )
    text = chain.text(1_003, stream=1)
    windows = sum(chain.nats(text[start : start + 10]) for start in range(0, 1_003, 10))
    assert found["nats_per_token/source"] == pytest.approx(windows / 1_003, rel=1e-12)
    assert found["nats_per_token/source"] < found["nats_per_token/unigram"]
    chain = MarkovChain(3)  # none if a text is not that of the chain
    assert distribution_baselines(chain, [], Bytes()) == {}
    assert distribution_baselines(chain, [Bytes().encode("abé")], Bytes()) == {}
