"""Baselines, diversity and the judge: n-grams against counters, published values, a tiny GPT-2 in a folder."""

import importlib.util
import itertools
import json
import lzma
import shutil
from collections import Counter
from math import exp, log, log2

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from dither.registry.config.errors import Refused
from dither.registry.contracts.records import Measured
from dither.tasks.language_model.data.builtin_texts import fetch_plays, read_plays
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.specs import Shakespeare, StdlibText
from dither.tasks.language_model.data.tokenizers import SIZES
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters
from dither.tasks.language_model.data.tokenizers.factory import load_tokenizer
from dither.tasks.language_model.data.tokenizers.huggingface import Learned
from dither.tasks.language_model.metrics import baselines
from dither.tasks.language_model.metrics.baselines import (
    WittenBell,
    count,
    distinct,
    diversity_metrics,
    strong_baselines,
    trivial_baselines,
)
from dither.tasks.language_model.metrics.frontier import mauve, pair_features
from dither.tasks.language_model.metrics.judge import READ, FolderJudge, judge_problems
from dither.tasks.language_model.specs import LanguageModel
from dither.tasks.language_model.task import LanguageModelling


def test_diversity():
    rows = np.array([[0, 0, 0, 0], [0, 1, 2, 3], [0, 1, 0, 1], [5, 6, 9, 9]])
    valid = np.array([[True] * 4] * 3 + [[True, True, False, False]])
    found = diversity_metrics(rows, valid)  # a mean over samples
    assert found["sample_unigram_bits"] == pytest.approx((0 + 2 + 1 + 1) / 4)
    assert found["distinct_2"] == pytest.approx((1 / 3 + 1 + 2 / 3 + 1) / 4)
    assert distinct(np.array([1]), 2) == 1
    rows = np.stack([np.arange(40), np.tile(np.arange(5), 8)])
    found = diversity_metrics(rows, np.ones_like(rows, bool))
    assert found["repetition"] == pytest.approx((1 - 5 / 33) / 2)
    assert found["distinct_1"] == pytest.approx((1 + 5 / 40) / 2)
    assert found["unique"] == 1
    assert (
        diversity_metrics(rows[[0, 0, 1, 0]], np.ones((4, 40), bool))["unique"] == 0.5
    )


def test_ngram_perplexity():
    splits = {
        "train": [Document.of("t", "abab" * 50)],
        "valid": [Document.of("v", "abab")],
        "test": [],
    }
    task = LanguageModelling(Corpus("mine", splits), Bytes(), length=4, ngrams=2)
    like = task.like(2, seed=0)
    found = task.sample_metrics(torch.tensor([list(b"abab"), list(b"bbbb")]), like)
    model = WittenBell(task.ids["train"], size=256, order=2)
    nats = (
        model.nats(np.array(list(b"abab")))[-1]
        + model.nats(np.array(list(b"bbbb")))[-1]
    )
    assert log(found["ngram_perplexity"]) == pytest.approx(nats / 8)
    assert found["ngram_bits_per_char"] == pytest.approx(nats / 8 / log(2))
    assert task.baselines()["ngram_perplexity/real"] < found["ngram_perplexity"]


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
        after = Counter(
            train[i + n - 1]
            for i in range(len(train) - n + 1)
            if tuple(train[i : i + n - 1]) == h
        )
        if after:
            total, kinds = sum(after.values()), len(after)
            p = np.array(
                [(after[c] + kinds * p[c]) / (total + kinds) for c in range(size)]
            )
    return p


@pytest.mark.parametrize(("size", "order"), [(3, 1), (3, 2), (3, 4), (5, 3)])
def test_ngrams_are_witten_bell_and_sum_to_one(size, order):
    train = stream(60, size)
    model = WittenBell(train, size=size, order=order)
    for history in itertools.product(range(size), repeat=order):
        p = np.array(
            [
                list(model.probabilities(np.array([*history, c])))[-1][-1]
                for c in range(size)
            ]
        )
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert p == pytest.approx(
            by_hand(train.tolist(), size, history, order), abs=1e-12
        )


def test_every_order_with_short_contexts_at_the_start():
    train, held = stream(200, 4), stream(30, 4, seed=1)
    model = WittenBell(train, size=4, order=3)
    orders = list(model.probabilities(held))
    assert len(orders) == 3
    for order, p in enumerate(orders, 1):
        wanted = [
            by_hand(train.tolist(), 4, held[:i].tolist(), order)[held[i]]
            for i in range(len(held))
        ]
        assert p == pytest.approx(wanted, abs=1e-12)
    assert model.nats(held) == pytest.approx([-np.log(p).sum() for p in orders])


def test_trivial_baselines():
    tokenizer = Characters("ab")
    train, held = tokenizer.encode("aaab"), tokenizer.encode("abab")
    found = trivial_baselines(count(train, tokenizer.size), held, tokenizer)
    assert found["bits_per_char/uniform"] == pytest.approx(log2(3))
    learned = [4 / 7, 2 / 7]  # counts 3, 1 and 0 with one added to each
    assert found["bits_per_char/unigram"] == pytest.approx(
        -(log2(learned[0]) + log2(learned[1])) / 2
    )
    assert found["bits_per_char/unigram-of-split"] == pytest.approx(1)
    assert found["nats_per_token/unigram-of-split"] == pytest.approx(log(2))


def test_strong_baselines_measure_added_bits(monkeypatch):
    rng = np.random.default_rng(0)
    words = ["alpha ", "beta ", "gamma ", "delta "]
    train, held = (Bytes().encode("".join(rng.choice(words, n))) for n in (1000, 400))
    model = WittenBell(train, size=256, order=3)
    found = strong_baselines(model, train, held, Bytes())
    names = [
        name.removeprefix("bits_per_char/")
        for name in found
        if name.startswith("bits_per_char/")
    ]
    assert names == ["2-gram", "3-gram", "xz"]
    best = 9 | lzma.PRESET_EXTREME
    packed = [
        len(lzma.compress(bytes(ids.tolist()), preset=best))
        for ids in (train, np.append(train, held))
    ]
    assert found["bits_per_char/xz"] == pytest.approx(
        8 * (packed[1] - packed[0]) / len(held)
    )
    assert found["bits_per_char/3-gram"] == pytest.approx(
        model.nats(held)[2] / log(2) / len(held)
    )
    monkeypatch.setattr(
        baselines, "LIMIT", 900
    )  # of large splits the end of train and the beginning of the other
    monkeypatch.setattr(baselines, "EVALUATED", 300)
    assert strong_baselines(model, train, held, Bytes()) == strong_baselines(
        model, train[-900:], held[:300], Bytes()
    )


@pytest.mark.slow
def test_published_values_of_downloaded_texts_and_tokenizers():
    try:
        plays, gpt2 = read_plays(fetch_plays()), load_tokenizer("gpt2", lambda: None)
    except Refused as refused:
        pytest.skip(f"cannot be downloaded: {refused}")
    assert sum(play.size for play in plays.values()) == 4_973_374
    assert len({letter for play in plays.values() for letter in play.load()}) == 83
    options = Shakespeare.model_json_schema()["properties"]["valid"]["items"]["enum"]
    assert sorted(options) == sorted(plays)
    assert (gpt2.size, gpt2.end, gpt2.encode("Hello world").tolist()) == (
        SIZES["gpt2"],
        50256,
        [15496, 995],
    )
    held = [plays.pop("hamlet"), plays.pop("macbeth")]
    train_ids, held_ids = (
        Bytes().encode("".join(play.load() for play in some))
        for some in (plays.values(), held)
    )
    found = strong_baselines(
        WittenBell(train_ids, size=256, order=5), train_ids, held_ids, Bytes()
    )
    known = {
        "2-gram": 3.670,
        "3-gram": 3.017,
        "4-gram": 2.640,
        "5-gram": 2.487,
        "xz": 2.438,
    }
    for name, bits in known.items():  # counted elsewhere, on nearly the same text
        assert found[f"bits_per_char/{name}"] == pytest.approx(bits, abs=0.004), name


def test_mauve_of_equal_apart_and_mixed_features():
    """1 where clusters have equal frequencies; 5 B(6, 5), the area for disjoint ones, up to the half counts."""
    rng = np.random.default_rng(0)
    near, far = (center + 1e-3 * rng.normal(size=(400, 5)) for center in (0.0, 10.0))
    assert mauve(near[:200], near[200:]) > 0.9
    apart = mauve(near[:200], far[:200])
    assert 5 / 1260 < apart < 0.02
    shares = [
        mauve(np.concatenate([near[:k], far[: 200 - k]]), near[200:])
        for k in (200, 150, 50, 0)
    ]
    assert shares == sorted(shares, reverse=True)
    assert mauve(near[:200], far[:200]) == apart


def test_features_are_pairs_of_neighbours():
    rows = ([1, 2, 1, 2], [1, 2, 1, 2], [2, 2, 2, 2])
    one, swapped, other = pair_features([np.array(ids, np.uint16) for ids in rows])
    assert np.array_equal(one, swapped)
    assert sorted(one[one > 0] ** 2) == pytest.approx([1 / 3, 2 / 3])
    assert other.max() == 1.0
    assert not pair_features([np.array([3])]).any()


WORDS = {"the": 0, "cat": 1, "sat": 2, "mat": 3, "[UNK]": 4}
TEXT = "the cat sat mat the cat"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    ).save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=5, n_positions=8, n_embd=16, n_layer=2, n_head=2
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    torch.nn.init.normal_(model.transformer.wte.weight, std=2.0)
    model.save_pretrained(folder)
    return folder, model


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(saved[0], tmp_path / "judge")


def test_scores_are_those_of_the_model(saved):
    folder, model = saved
    ids = torch.tensor([[WORDS[word] for word in TEXT.split()]])
    loss = model(ids, labels=ids).loss.item()
    judge = FolderJudge(folder)
    nats, count = judge.nats(TEXT)
    assert (count, nats / count) == (5, pytest.approx(loss, rel=1e-5))
    assert (
        judge.nats(" ".join([TEXT] * 2))[1] == 10
    )  # pieces of 8 and 4, the first token of each not counted
    assert judge.nats("the") == judge.nats("") == (0.0, 0)
    found = judge.metrics([TEXT, "mat mat"])
    nats += judge.nats("mat mat")[0]
    assert found["judge_perplexity"] == pytest.approx(exp(nats / 6))
    assert found["judge_bits_per_char"] == pytest.approx(
        nats / log(2) / (len(TEXT) + 7)
    )
    assert judge.metrics([TEXT] * READ + ["mat mat"]) == pytest.approx(
        judge.metrics([TEXT])
    )
    assert str(judge.metrics([])["judge_perplexity"]) == "nan"


@pytest.mark.parametrize("without", ["config.json", "model.safetensors", "tokenizer"])
def test_incomplete_folders_are_refused_and_pickled_weights_not_read(
    saved, folder, refusal, without
):
    for path in folder.glob(f"{without}*"):
        path.unlink()
    torch.save(saved[1].state_dict(), folder / "pytorch_model.bin")
    assert [problem.code for problem in judge_problems(folder)] == ["file-not-found"]
    assert refusal(FolderJudge, folder).codes == ["file-not-found"]


def test_missing_weights_damage_and_remote_code_are_refused(folder, refusal):
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.0.attn.c_attn.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert refusal(FolderJudge, folder).codes == ["damaged-file"]
    (folder / "model.safetensors").write_text("{}")
    assert refusal(FolderJudge, folder).codes == ["damaged-file"]
    (folder / "config.json").write_text(
        json.dumps({"auto_map": {"AutoModelForCausalLM": "evil.Model"}})
    )
    (folder / "evil.py").write_text("raise SystemExit('was run')")
    assert refusal(FolderJudge, folder).codes == ["damaged-file"]


def test_missing_extra_and_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    spec = LanguageModel(data=StdlibText(), judge=str(tmp_path / "nowhere"))
    extra, missing = spec.check()
    assert extra.path == missing.path == ("judge",)
    assert [extra.code, missing.code] == ["missing-dependency", "file-not-found"]


@pytest.mark.parametrize("kind", ["chars", "words"])
def test_unknown_tokens_are_counted_next_to_the_metrics(kind, refusal):
    tokenizer = Characters(" ab")
    if kind == "words":
        words = {"a": 0, "b": 1, " ": 2, "<unk>": 3}
        engine = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        engine.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer = Learned("words", engine)
    splits = {
        split: [Document.of(split, text)]
        for split, text in {
            "train": "ab ab ab",
            "valid": "ab äö a",
            "test": "a",
        }.items()
    }
    task = LanguageModelling(Corpus("mine", splits), tokenizer, length=4)
    metrics = task.metrics()
    clean = task.batch("valid", range(task.size("valid")))
    shape = clean.x0.shape
    metrics.update(clean, None, None, Measured(torch.ones(shape), torch.ones(shape)))
    assert metrics.compute()["unknown_tokens"] == 2
    assert [line[:8] for line in task.data_warnings()] == ["2 of 7 i"]
    other = task.over_texts(["xyz"])
    assert [line[:8] for line in other.data_warnings()] == ["3 of 3 i"]
    for text in ("é", "a é"):
        assert refusal(task.infill, text, 1, 0).codes == ["unknown-value"]
    plain = LanguageModelling(Corpus("mine", splits), Bytes(), length=4)
    assert "unknown_tokens" not in plain.metrics().compute()
    assert not [*plain.data_warnings()]
