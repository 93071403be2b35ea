from math import log

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dither.registry.config.errors import Refused
from dither.registry.flow.records import Clean, Measured, Noise, Noised, State
from dither.registry.flow.spaces import Field, TokenSpace
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.specs import ConvertedText, MarkovText, Shakespeare, StdlibText, TextFiles
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters
from dither.tasks.language_model.metrics.baselines import distinct, diversity_metrics
from dither.tasks.language_model.metrics.perplexity import TextMetrics
from dither.tasks.language_model.specs import LanguageModel
from dither.tasks.language_model.task import LanguageModelling

torch.set_num_threads(1)
SPACE = TokenSpace((Field("text", 8, 256),))
LETTERS = Characters("\nabcdefghijklmnopqrstuvwxyz")


def task(length=8, tokenizer=None, train="the quick brown fox jumps", valid="over the lazy dog", **options):
    splits = {"train": [Document.of("t", train)], "valid": [Document.of("v", valid)], "test": []}
    return LanguageModelling(Corpus("mine", splits), tokenizer or Bytes(), length=length, **options)


def noised(clean):
    nothing = torch.zeros(len(clean.x0))
    return Noised(clean.x0, State.of(clean.x0), Noise(nothing, nothing), clean.valid, clean.valid, clean.fixed)


def test_windows_cover_the_split():
    made = task()
    assert made.size("train") == 4  # 25 bytes
    clean = made.batch("train", range(4))
    assert clean.x0.dtype == torch.int64
    assert clean.valid.sum(1).tolist() == [8, 8, 8, 1]
    assert clean.x0[~clean.valid].eq(0).all()
    assert bytes(clean.x0[clean.valid].tolist()) == b"the quick brown fox jumps"
    assert not clean.known.any()


def test_samples_begin_with_the_prompt():
    like = task(prompt="To be").like(3, seed=0)
    assert like.x0.shape == (3, 8)
    assert like.valid.all()
    assert like.known.tolist() == [[True] * 5 + [False] * 3] * 3
    assert bytes(like.x0[0, :5].tolist()) == b"To be"
    assert not task().like(2, seed=0).known.any()


def test_known_positions_and_padding_are_excluded():
    valid, known = (torch.tensor([places]).bool() for places in ([1, 1, 1, 1, 0], [1, 1, 0, 0, 0]))
    clean = Clean.of(torch.tensor([list("éabc".encode())]), valid=valid, known=known)
    metrics = TextMetrics(Bytes(), SPACE)
    measured = Measured(torch.tensor([[9.0, 9.0, 1.0, 2.0, 9.0]]), torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.0]]))
    metrics.update(clean, noised(clean), None, measured)
    assert metrics.compute()["nats_per_token"] == pytest.approx(1.5)
    assert metrics.compute()["bits_per_char"] == pytest.approx(1.5 / log(2))


def test_no_measurements_are_nan_and_perplexity_does_not_overflow():
    assert np.isnan(TextMetrics(Bytes(), SPACE).compute()["bits_per_char"])
    metrics = TextMetrics(Bytes(), SPACE)
    clean = Clean.of(torch.zeros(1, 1, dtype=torch.int64))
    metrics.update(clean, noised(clean), None, Measured(torch.full((1, 1), 1e5), torch.ones(1, 1)))
    assert metrics.compute()["perplexity"] == float("inf")


def test_diversity_is_a_mean_over_samples():
    rows = np.array([[0, 0, 0, 0], [0, 1, 2, 3], [0, 1, 0, 1], [5, 6, 9, 9]])
    valid = np.array([[True] * 4] * 3 + [[True, True, False, False]])
    found = diversity_metrics(rows, valid)
    assert found["sample_unigram_bits"] == pytest.approx((0 + 2 + 1 + 1) / 4)
    assert found["distinct_2"] == pytest.approx((1 / 3 + 1 + 2 / 3 + 1) / 4)
    assert distinct(np.array([1]), 2) == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: StdlibText(valid=0.6, test=0.4), "leave no training text"),
        (lambda: TextFiles(paths=["a"], valid=0.6, test=0.5), "leave no training text"),
        (lambda: Shakespeare(valid=["hamlett"]), "'hamlet'"),
        (lambda: Shakespeare(valid=["hamlet"], test=["hamlet"]), "hamlet in both"),
        (lambda: ConvertedText(paths=["a"], tokenizer="bpe:12"), "bpe:N requires"),
        (lambda: MarkovText(states=62, order=3), "65,536"),
    ],
)
def test_invalid_options(make, says):
    with pytest.raises(ValidationError, match=says):
        make()


@pytest.mark.parametrize(
    ("prompt", "code"), [("12345678", "misfit"), ("123456789", "misfit"), ("aZ!Z", "unknown-value")]
)
def test_invalid_prompts(refusal, prompt, code):
    refused = refusal(task, prompt=prompt, tokenizer=LETTERS if "Z" in prompt else Bytes())
    assert (refused.codes, refused.problems[0].path) == ([code], ("task", "prompt"))


def test_text_shorter_than_a_window(tmp_path):
    (tmp_path / "a.txt").write_text("a few words, and a few more of them\n")
    data = TextFiles(paths=[str(tmp_path / "a.txt")])
    assert LanguageModel(data=data, length=8).build().size("train") > 1
    with pytest.raises(Refused) as refused:
        LanguageModel(data=data, length=64).build()
    assert refused.value.codes == ["no-samples"]
