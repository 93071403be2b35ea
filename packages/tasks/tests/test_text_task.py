import subprocess
import sys
from math import exp, log

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dither.registry.config.errors import Refused
from dither.registry.flow.protocols import Metrics, Task
from dither.registry.flow.records import Clean, Measured, Noise, Noised, State
from dither.registry.flow.spaces import Field, TokenSpace
from dither.registry.kinds.task import DataSpec
from dither.tasks.language_model.data.corpus import Corpus, Document
from dither.tasks.language_model.data.specs import Shakespeare, StdlibText, TextFiles
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters
from dither.tasks.language_model.metrics.diversity import distinct, diversity_metrics
from dither.tasks.language_model.metrics.ngrams import WittenBell
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


def test_task_satisfies_the_protocols():
    made = task()
    assert isinstance(made, Task)
    assert isinstance(made.metrics(), Metrics)
    assert (made.space.length, made.space.vocab, made.space.data) == (8, 256, "tokens")


def test_windows_cover_the_split():
    made = task()
    assert made.size("train") == 4  # 25 bytes
    clean = made.batch("train", range(4))
    assert clean.x0.dtype == torch.int64
    assert clean.valid.sum(1).tolist() == [8, 8, 8, 1]
    assert clean.x0[~clean.valid].eq(0).all()
    assert bytes(clean.x0[clean.valid].tolist()) == b"the quick brown fox jumps"
    assert not clean.known.any()


def test_batch_is_a_function_of_its_rows():
    made = task()
    mixed = made.batch("train", [3, 0, 3])
    assert torch.equal(mixed.x0, made.batch("train", range(4)).x0[[3, 0, 3]])
    assert torch.equal(mixed.valid, made.batch("train", [0, 1, 2, 3]).valid[[3, 0, 3]])
    assert made.batch("train", []).x0.shape == (0, 8)


def test_windows_outside_a_split():
    for rows in ([4], [-1]):
        with pytest.raises(IndexError, match=r"numbered 0\.\.3"):
            task().batch("train", rows)
    assert task().size("test") == 0
    with pytest.raises(IndexError):
        task().batch("test", [0])


def test_documents_are_separated_by_an_empty_line():
    splits = {"train": [Document.of("1", "one"), Document.of("2", "two")], "valid": [Document.of("3", "x")], "test": []}
    made = LanguageModelling(Corpus("mine", splits), Bytes(), length=8)
    assert bytes(made.batch("train", [0]).x0[0].tolist()) == b"one\n\ntwo"


def test_samples_begin_with_the_prompt():
    like = task(prompt="To be").like(3, seed=0)
    assert like.x0.shape == (3, 8)
    assert like.valid.all()
    assert like.known.tolist() == [[True] * 5 + [False] * 3] * 3
    assert bytes(like.x0[0, :5].tolist()) == b"To be"
    assert not task().like(2, seed=0).known.any()


@pytest.mark.parametrize("prompt", ["12345678", "123456789"])
def test_prompt_that_fills_the_window(prompt):
    with pytest.raises(Refused) as refused:
        task(prompt=prompt)
    assert (refused.value.codes, refused.value.problems[0].path) == (["misfit"], ("task", "prompt"))


def test_prompt_with_unknown_characters():
    with pytest.raises(Refused, match="'!', 'Z'") as refused:
        task(prompt="aZ!Z", tokenizer=LETTERS)
    assert refused.value.codes == ["unknown-value"]


def test_window_length_must_be_positive():
    with pytest.raises(ValueError, match="length"):
        task(length=0)


def test_empty_split(tmp_path):
    for name, text in (("a", "\ufeff"), ("b", "some text"), ("c", "\ufeff\ufeff")):
        (tmp_path / name).write_text(text, "utf-8")
    spec = LanguageModel(data=TextFiles(paths=[f"{tmp_path}/a"]))
    with pytest.raises(Refused) as refused:
        spec.build()
    assert refused.value.codes == ["no-samples"]


def test_metrics_do_not_depend_on_the_batch_size():
    made = task(tokenizer=Bytes(), valid="zwölf Boxkämpfer jagen Viktor quer über")
    values = torch.rand(made.size("valid"), 8)
    found = []
    for size in (1, 2, made.size("valid")):
        metrics = made.metrics()
        for start in range(0, made.size("valid"), size):
            rows = range(start, min(start + size, made.size("valid")))
            clean = made.batch("valid", rows)
            measured = Measured(values[rows.start : rows.stop], clean.valid.float())
            metrics.update(clean, noised(clean), None, measured)
        found.append(metrics.compute())
    valid = made.batch("valid", range(made.size("valid"))).valid
    nats = values[valid].double().sum().item()
    text = "zwölf Boxkämpfer jagen Viktor quer über"
    for figures in found:
        assert figures["nats_per_token"] == pytest.approx(nats / len(text.encode()))
        assert figures["bits_per_char"] == pytest.approx(nats / log(2) / len(text))
        assert figures["perplexity"] == pytest.approx(exp(nats / len(text.encode())))


def test_known_positions_and_padding_are_excluded():
    valid, known = (torch.tensor([places]).bool() for places in ([1, 1, 1, 1, 0], [1, 1, 0, 0, 0]))
    clean = Clean.of(torch.tensor([list("éabc".encode())]), valid=valid, known=known)
    metrics = TextMetrics(Bytes(), SPACE)
    measured = Measured(torch.tensor([[9.0, 9.0, 1.0, 2.0, 9.0]]), torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.0]]))
    metrics.update(clean, noised(clean), None, measured)
    assert metrics.compute()["nats_per_token"] == pytest.approx(1.5)
    assert metrics.compute()["bits_per_char"] == pytest.approx(1.5 / log(2))


def test_uniform_model_reaches_the_uniform_baseline():
    made = task(valid="grüße aus köln")
    metrics = made.metrics()
    clean = made.batch("valid", range(made.size("valid")))
    metrics.update(clean, noised(clean), None, Measured(torch.full(clean.x0.shape, log(256)), clean.valid.float()))
    baselines, figures = made.baselines(), metrics.compute()
    assert figures["bits_per_char"] == pytest.approx(baselines["bits_per_char/uniform"], rel=1e-6)
    assert figures["nats_per_token"] == pytest.approx(baselines["nats_per_token/uniform"], rel=1e-6)


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


def test_diversity_of_real_text_is_reported():
    made = task(length=4, valid="abcdabab")
    clean = made.batch("valid", range(2))
    judged = made.sample_metrics(clean.x0, clean)
    assert {f"{name}/real": value for name, value in judged.items()}.items() <= made.baselines().items()
    assert judged["sample_unigram_bits"] == pytest.approx((2 + 1) / 2)


def test_ngrams_are_optional_and_score_samples():
    assert not any("gram" in name and "unigram" not in name for name in task().baselines())
    made = task(length=64, train="abcabcabcabc" * 20, valid="abcabc", ngrams=3)
    asked = {"bits_per_char/2-gram", "bits_per_char/3-gram", "bits_per_char/xz", "ngram_bits_per_char/real"}
    assert asked <= set(made.baselines())
    good, bad = (torch.from_numpy(Bytes().encode(text * 32)).view(1, -1) for text in ("ab", "zq"))
    like = made.like(1, seed=0)
    low, high = (made.sample_metrics(ids, like)["ngram_bits_per_char"] for ids in (good, bad))
    assert low < high
    model = WittenBell(made.ids["train"], size=256, order=3)
    assert low == pytest.approx(model.nats(good[0].numpy())[-1] / log(2) / 64)


def test_samples_are_text_without_control_characters():
    made = task(length=8)
    samples = torch.tensor([list(b"ab\ncd\t\x1b\x07"), list("grüße!".encode())])
    shown = list(made.plots(samples, made.like(2, seed=0)))
    assert [picture.text for picture in shown] == ["ab\ncd\t\ufffd\ufffd", "grüße!"]
    assert len({picture.name for picture in shown}) == 2


def test_space_of_fixed_tokenizers_reads_nothing(monkeypatch):
    monkeypatch.setattr(StdlibText, "build", lambda self: pytest.fail("the text was read"))
    monkeypatch.setattr(
        "dither.tasks.language_model.data.tokenizers.huggingface.gpt2",
        lambda: pytest.fail("the tokenizer was downloaded"),
    )
    data = StdlibText()
    for tokenizer, size in (("gpt2", 50_257), ("bytes", 256)):
        (field,) = LanguageModel(data=data, tokenizer=tokenizer).space().fields
        assert (field.name, field.length, field.size, field.mask, field.pad) == ("text", 1024, size, None, None)


def test_space_of_spec_and_task_are_equal():
    for tokenizer in ("bytes", "chars"):
        spec = LanguageModel(data=StdlibText(), tokenizer=tokenizer, length=128)
        assert spec.space() == spec.build().space


def test_unigram_of_the_default_text():
    found = LanguageModel(data=StdlibText()).build().baselines()
    assert 4 < found["bits_per_char/unigram-of-split"] < found["bits_per_char/unigram"] < 5.5
    assert found["bits_per_char/uniform"] > 8


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LanguageModel(data=StdlibText(), length=0), "greater than or equal to 1"),
        (lambda: LanguageModel(data=StdlibText(), ngrams=1), "greater than or equal to 2"),
        (lambda: LanguageModel(data=StdlibText(), tokenizer=""), "at least 1 character"),
        (lambda: StdlibText(valid=0.0), "greater than 0"),
        (lambda: StdlibText(valid=0.6, test=0.4), "leave no training text"),
        (lambda: TextFiles(paths=[]), "at least 1 item"),
        (lambda: TextFiles(paths=["a"], valid=0.6, test=0.5), "leave no training text"),
        (lambda: Shakespeare(valid=["hamlett"]), "'hamlet'"),
        (lambda: Shakespeare(valid=["hamlet"], test=["hamlet"]), "hamlet in both"),
        (lambda: Shakespeare(valid=[]), "at least 1 item"),
    ],
)
def test_invalid_options(make, says):
    with pytest.raises(ValidationError, match=says):
        make()


def test_missing_files_are_found_by_check(tmp_path):
    (tmp_path / "here.txt").write_text("text")
    data = TextFiles(paths=[str(tmp_path / "here.txt"), str(tmp_path / "hero.txt"), str(tmp_path / "*.md")])
    found = list(LanguageModel(data=data, prompt="x" * 9, length=9).check())
    assert [misfit.path for misfit in found] == [("data", "paths", 1), ("data", "paths", 2), ("prompt",)]
    assert found[0].help == 'did you mean "here.txt"?'
    assert list(LanguageModel(data=StdlibText(), prompt="x" * 8, length=9).check()) == []


def test_source_without_text():
    class Plans(DataSpec):
        name = "plans"
        gives = "plans"

        def build(self):
            return None

    (misfit,) = LanguageModel(data=Plans()).check()
    assert (misfit.code, misfit.path) == ("misfit", ("data",))


def test_specs_import_neither_torch_nor_numpy():
    code = "import sys, dither.tasks.language_model.specs; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_text_shorter_than_a_window(tmp_path):
    (tmp_path / "a.txt").write_text("a few words, and a few more of them\n")
    data = TextFiles(paths=[str(tmp_path / "a.txt")])
    assert LanguageModel(data=data, length=8).build().size("train") > 1
    with pytest.raises(Refused) as refused:
        LanguageModel(data=data, length=64).build()
    assert refused.value.codes == ["no-samples"]
