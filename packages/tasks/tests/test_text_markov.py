from itertools import product
from math import log

import numpy as np
import pytest

from dither.tasks.language_model.data import markov
from dither.tasks.language_model.data.markov import ALPHABET, MarkovChain
from dither.tasks.language_model.data.specs import MarkovText
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters
from dither.tasks.language_model.metrics.baselines import distribution_baselines
from dither.tasks.language_model.specs import LanguageModel


@pytest.mark.parametrize(("states", "order"), [(2, 1), (3, 1), (2, 3), (3, 2)])
def test_distribution_sums_to_one_with_its_entropy(states, order):
    chain = MarkovChain(states, order=order, concentration=0.5, seed=3)
    for length in range(1, 6):
        texts = ["".join(letters) for letters in product(ALPHABET[:states], repeat=length)]
        nats = np.array([chain.nats(text) for text in texts])
        assert np.exp(-nats).sum() == pytest.approx(1, abs=1e-12)
        assert chain.entropy(length) == pytest.approx((np.exp(-nats) * nats).sum(), abs=1e-12)


def test_text_follows_the_distribution():
    chain = MarkovChain(4, concentration=0.3, seed=5)
    text = chain.text(40_000)
    counts = np.zeros((4, 4))
    np.add.at(counts, ([ALPHABET.index(a) for a in text[:-1]], [ALPHABET.index(b) for b in text[1:]]), 1)
    expected = chain.stationary[:, None] * chain.transitions * counts.sum()
    seen = expected > 5
    chi = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
    assert chi < 60  # 16 pairs at most, correlated
    assert chain.nats(text) / len(text) == pytest.approx(chain.rate, rel=0.03)


def test_texts_are_a_function_of_seed_and_stream(monkeypatch):
    one, other = MarkovChain(8, seed=2), MarkovChain(8, seed=2)
    assert one.text(100) == other.text(100)
    assert one.text(100, stream=1) != one.text(100)
    assert MarkovChain(8, seed=3).text(100) != one.text(100)
    text = one.text(200)
    assert text[:100] == one.text(100)
    monkeypatch.setattr(markov, "PIECE", 7)
    assert one.text(200) == text


@pytest.mark.parametrize("length", [1, 3, 40, 300, 3000])
def test_space_without_drawing_the_text(length):
    """Some of the 30 letters are rare and missing in short texts; space and corpus agree."""
    data = MarkovText(states=30, concentration=0.05, length=length, held=10, seed=4)
    assert data.characters() == data.build().characters()
    for more in ({}, {"end_of_text": True}):
        spec = LanguageModel(data=data, tokenizer="chars", length=1, **more)
        assert spec.space() == spec.build().space


@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_entropy_baselines(tokenizer):
    spec = LanguageModel(data=MarkovText(states=5, length=2_000, held=1_003, seed=4), tokenizer=tokenizer, length=10)
    found, chain = spec.build().baselines(), MarkovChain(5, seed=4)
    exact = (100 * chain.entropy(10) + chain.entropy(3)) / 1_003
    assert found["nats_per_token/source-entropy"] == pytest.approx(exact, rel=1e-12)
    assert found["bits_per_char/source-entropy"] == pytest.approx(exact / log(2), rel=1e-12)
    text = chain.text(1_003, stream=1)
    windows = sum(chain.nats(text[start : start + 10]) for start in range(0, 1_003, 10))
    assert found["nats_per_token/source"] == pytest.approx(windows / 1_003, rel=1e-12)
    assert found["nats_per_token/source"] < found["nats_per_token/unigram"]


def test_no_entropy_baseline_for_other_tokenizers():
    chain = MarkovChain(3)
    assert distribution_baselines(chain, [], Bytes()) == {}
    assert distribution_baselines(chain, [Bytes().encode("abé")], Bytes()) == {}
    assert distribution_baselines(chain, [Characters("abc").encode("ab")], Characters("abc"))
