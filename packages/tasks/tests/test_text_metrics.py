"""Text metrics and baselines: intervals, parts of the bound, accuracy, diversity, n-grams."""

import itertools
import lzma
from collections import Counter
from math import log, log2
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dither.registry.config.errors import Refused
from dither.registry.flow.protocols import SampledMetrics
from dither.registry.flow.records import Clean, Measured, Noise, Noised, State
from dither.registry.flow.spaces import Field, TokenSpace
from dither.tasks.language_model.data.builtin_texts import fetch_plays, read_plays
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters
from dither.tasks.language_model.metrics import baselines
from dither.tasks.language_model.metrics.baselines import (
    WittenBell,
    diversity_metrics,
    strong_baselines,
    trivial_baselines,
)
from dither.tasks.language_model.metrics.perplexity import TextMetrics
from dither.tasks.language_model.task import LanguageModelling

SPACE = TokenSpace((Field("text", 6, 256),))


def windows(texts, known=0):
    """Texts as a batch with padding, the first positions known."""
    rows = [list(text.encode()) for text in texts]
    longest = max(map(len, rows))
    x0 = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    valid = torch.tensor([[place < len(row) for place in range(longest)] for row in rows])
    given = torch.zeros_like(valid)
    given[:, :known] = True
    return Clean.of(x0, valid, given & valid)


def noised(clean, sigma):
    """A clean state at given noise levels per row."""
    level = torch.as_tensor(sigma, dtype=torch.float32).expand(len(clean.x0))
    return Noised(clean.x0, State.of(clean.x0), Noise(level, level), ~clean.fixed, clean.valid, clean.fixed)


def test_sums_per_window():
    clean = windows(["zwölf", "abc", "é"], known=1)
    measured = Measured(torch.rand(3, 6), (~clean.fixed).float())
    metrics = TextMetrics(Bytes(), SPACE)
    assert isinstance(metrics, SampledMetrics)
    metrics.update(clean, noised(clean, 1.0), None, measured)
    sums, figures = metrics.per_sample(clean, measured), metrics.compute()
    assert sums["nats_per_token"][1].tolist() == [5, 2, 1]
    assert sums["bits_per_char"][1].tolist() == [4, 2, 0]  # the first byte of the only letter is known
    for name, (above, below) in sums.items():
        assert figures[name] == pytest.approx(float(above.sum() / below.sum()))


def test_parts_of_the_bound():
    clean = windows(["abc", "abcd"])
    free = (~clean.fixed).float()
    metrics = TextMetrics(Bytes(), SPACE)
    whole = torch.full((2, 4), 3.0)
    for rows in (slice(0, 1), slice(1, 2)):
        parts = {"prior": torch.tensor([[1.0, 2, 3, 4]] * 2) * free, "reconstruction": 0.5 * free}
        metrics.update(clean[rows], noised(clean[rows], 1.0), None, Measured(whole, free, parts=parts)[rows])
    found = metrics.compute()
    assert found["nats_per_token"] == pytest.approx(3)
    assert found["nats_per_token_prior"] == pytest.approx((1 + 2 + 3 + 1 + 2 + 3 + 4) / 7)
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
    metrics.update(clean, state, SimpleNamespace(log_clean=lambda: guess), Measured(guess[..., 0], state.valid.float()))
    found = metrics.compute()
    assert found["text_accuracy_0_25"] == 1
    assert found["text_accuracy_75_100"] == pytest.approx(4 / 6)
    assert not any(name.startswith("text_accuracy_25") for name in found)


def test_repetition():
    rows = np.stack([np.arange(40), np.tile(np.arange(5), 8)])
    found = diversity_metrics(rows, np.ones_like(rows, bool))
    assert found["repetition"] == pytest.approx((1 - 5 / 33) / 2)
    assert found["distinct_1"] == pytest.approx((1 + 5 / 40) / 2)
    assert found["unique"] == 1
    assert diversity_metrics(rows[[0, 0, 1, 0]], np.ones((4, 40), bool))["unique"] == 0.5


def test_ngram_perplexity():
    splits = {"train": [Document.of("t", "abab" * 50)], "valid": [Document.of("v", "abab")], "test": []}
    task = LanguageModelling(Corpus("mine", splits), Bytes(), length=4, ngrams=2)
    like = task.like(2, seed=0)
    found = task.sample_metrics(torch.tensor([list(b"abab"), list(b"bbbb")]), like)
    model = WittenBell(task.ids["train"], size=256, order=2)
    nats = model.nats(np.array(list(b"abab")))[-1] + model.nats(np.array(list(b"bbbb")))[-1]
    assert log(found["ngram_perplexity"]) == pytest.approx(nats / 8)
    assert found["ngram_bits_per_char"] == pytest.approx(nats / 8 / log(2))
    assert task.baselines()["ngram_perplexity/real"] < found["ngram_perplexity"]


def test_strong_baselines_of_large_splits(monkeypatch):
    """They learn from the end of the training ids and predict the beginning of the others."""
    rng = np.random.default_rng(0)
    train, held = (rng.integers(97, 101, n) for n in (4000, 3000))
    model = WittenBell(train, size=256, order=2)
    monkeypatch.setattr(baselines, "LIMIT", 1000)
    monkeypatch.setattr(baselines, "EVALUATED", 500)
    found = strong_baselines(model, train, held, Bytes())
    assert found == strong_baselines(model, train[-1000:], held[:500], Bytes())
    assert found["nats_per_token/2-gram"] == pytest.approx(model.nats(held[:500])[1] / 500)


def stream(n, size, seed=0):
    """A Markov chain, so that context matters."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(size, 0.3), size)
    ids = [0]
    for _ in range(n - 1):
        ids.append(rng.choice(size, p=table[ids[-1]]))
    return np.array(ids)


def by_hand(train, size, history, order):
    """P(c | history) for every c by the formula, with counters."""
    p = np.full(size, 1 / size)
    for n in range(1, order + 1):
        if n - 1 > len(history):
            break
        h = tuple(history[len(history) - (n - 1) :])
        after = Counter(train[i + n - 1] for i in range(len(train) - n + 1) if tuple(train[i : i + n - 1]) == h)
        if after:
            total, kinds = sum(after.values()), len(after)
            p = np.array([(after[c] + kinds * p[c]) / (total + kinds) for c in range(size)])
    return p


@pytest.mark.parametrize(("size", "order"), [(3, 1), (3, 2), (3, 4), (5, 3)])
def test_ngrams_are_witten_bell_and_sum_to_one(size, order):
    train = stream(60, size)
    model = WittenBell(train, size=size, order=order)
    for history in itertools.product(range(size), repeat=order):
        p = np.array([list(model.probabilities(np.array([*history, c])))[-1][-1] for c in range(size)])
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert p == pytest.approx(by_hand(train.tolist(), size, history, order), abs=1e-12)


def test_every_order_with_short_contexts_at_the_start():
    train, held = stream(200, 4), stream(30, 4, seed=1)
    model = WittenBell(train, size=4, order=3)
    orders = list(model.probabilities(held))
    assert len(orders) == 3
    for order, p in enumerate(orders, 1):
        wanted = [by_hand(train.tolist(), 4, held[:i].tolist(), order)[held[i]] for i in range(len(held))]
        assert p == pytest.approx(wanted, abs=1e-12)
    assert model.nats(held) == pytest.approx([-np.log(p).sum() for p in orders])


def test_trivial_baselines():
    tokenizer = Characters("ab")
    train, held = tokenizer.encode("aaab"), tokenizer.encode("abab")
    found = trivial_baselines(train, held, tokenizer)
    assert found["bits_per_char/uniform"] == pytest.approx(log2(3))
    learned = [4 / 7, 2 / 7]  # counts 3, 1 and 0 with one added to each
    assert found["bits_per_char/unigram"] == pytest.approx(-(log2(learned[0]) + log2(learned[1])) / 2)
    assert found["bits_per_char/unigram-of-split"] == pytest.approx(1)
    assert found["nats_per_token/unigram-of-split"] == pytest.approx(log(2))


def test_strong_baselines_measure_added_bits():
    rng = np.random.default_rng(0)
    words = ["alpha ", "beta ", "gamma ", "delta "]
    train, held = (Bytes().encode("".join(rng.choice(words, n))) for n in (3000, 400))
    model = WittenBell(train, size=256, order=3)
    found = strong_baselines(model, train, held, Bytes())
    names = [name.removeprefix("bits_per_char/") for name in found if name.startswith("bits_per_char/")]
    assert names == ["2-gram", "3-gram", "xz"]
    best = 9 | lzma.PRESET_EXTREME
    packed = [len(lzma.compress(bytes(ids.tolist()), preset=best)) for ids in (train, np.append(train, held))]
    assert found["bits_per_char/xz"] == pytest.approx(8 * (packed[1] - packed[0]) / len(held))
    assert found["bits_per_char/3-gram"] == pytest.approx(model.nats(held)[2] / log(2) / len(held))


@pytest.mark.slow
def test_published_values_on_shakespeare():
    try:
        plays = read_plays(fetch_plays())
    except Refused as refused:
        pytest.skip(f"the plays cannot be had: {refused}")
    held = [plays.pop("hamlet"), plays.pop("macbeth")]
    tokenizer = Bytes()
    train_ids, held_ids = (tokenizer.encode("".join(play.load() for play in some)) for some in (plays.values(), held))
    model = WittenBell(train_ids, size=256, order=5)
    found = strong_baselines(model, train_ids, held_ids, tokenizer)
    known = {"2-gram": 3.670, "3-gram": 3.017, "4-gram": 2.640, "5-gram": 2.487, "xz": 2.438}
    for name, bits in known.items():  # counted elsewhere, on nearly the same text
        assert found[f"bits_per_char/{name}"] == pytest.approx(bits, abs=0.004), name
