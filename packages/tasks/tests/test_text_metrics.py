"""Text metrics: intervals, parts of the bound, accuracy by noise level, and diversity."""

from math import log
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dither.registry.flow.protocols import SampledMetrics
from dither.registry.flow.records import Clean, Measured, Noise, Noised, State
from dither.registry.flow.spaces import Field, TokenSpace
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.tokenizers.base import Bytes
from dither.tasks.language_model.metrics import baselines
from dither.tasks.language_model.metrics.baselines import (
    WittenBell,
    diversity_metrics,
    strong_baselines,
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


def test_no_interval_of_bits_for_unequal_weights():
    clean = windows(["abc", "abcd"])
    measured = Measured(torch.rand(2, 4), torch.rand(2, 4) * ~clean.fixed)
    sums = TextMetrics(Bytes(), SPACE).per_sample(clean, measured)
    assert list(sums) == ["nats_per_token"]
    assert float(sums["nats_per_token"][0].sum()) == pytest.approx(float(measured.total()))


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
