"""Likelihoods of autoregressive models in lm-evaluation-harness: exact, from one call for several texts."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.system import System, SystemModel
from dither.registry.contracts.records import Clean
from dither.tasks.language_model import lm_eval
from dither.tasks.language_model.lm_eval import HarnessModel

FILE = Path(__file__).parents[3] / "experiments/language_model/autoregressive.toml"
SMALL = {"model.width": 32, "model.depth": 1, "task.length": 16}
TEXTS = [("the c", "at sat"), ("", "a"), ("def f(x):", " return x + 1"), ("", "")]


def model_of(**changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    experiment = load_experiment(FILE, {**SMALL, **changes}).experiment
    torch.manual_seed(0)
    system = System.build(experiment)
    # The head and the gates start at zero, where nothing depends on the text.
    for parameter in system.model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return HarnessModel(SystemModel(system), samples=2)


def requests(texts):
    return [SimpleNamespace(args=args) for args in texts]


@pytest.fixture(scope="module", params=["previous", "same"])
def model(request):
    """In one pass, and by masks after clean ids."""
    return model_of(model__reads=request.param)


def one_by_one(model, ids, cut):
    """Return log p of each id from the call that shows those before it, and whether all are likeliest."""
    total = 0.0
    likeliest = True
    positions = torch.arange(model.length)[None]
    for place in range(cut, len(ids)):
        row = torch.zeros(1, model.length, dtype=torch.long)
        row[0, : len(ids)] = torch.tensor(ids)
        like = Clean.of(row, positions < len(ids), positions < place)
        with torch.no_grad():
            log_p = model.model.log_clean(like)[0, place].double()
        total += float(log_p[ids[place]])
        likeliest &= int(log_p.argmax()) == ids[place]
    return total, likeliest


@pytest.mark.parametrize("logits", [1, 1 << 27])
def test_one_call_has_the_conditionals_of_all_texts(model, monkeypatch, logits):
    monkeypatch.setattr(lm_eval, "MAX_LOGITS", logits)
    for (value, likeliest), (context, text) in zip(
        model.loglikelihood(requests(TEXTS)), TEXTS, strict=True
    ):
        ids = model.task.tokens(context + text)[-model.length :]
        cut = max(len(ids) - len(text), 0)
        expected = one_by_one(model, ids, cut)
        assert value == pytest.approx(expected[0], abs=1e-4)
        assert likeliest == expected[1]


def likeliest_text(model, context, count):
    ids = list(model.task.tokens(context))
    positions = torch.arange(model.length)[None]
    for _ in range(count):
        row = model._row(ids)
        like = Clean.of(row, positions <= len(ids), positions < len(ids))
        with torch.no_grad():
            ids.append(int(model.model.log_clean(like)[0, len(ids)].argmax()))
    return model.task.text(ids)


def test_a_temperature_is_that_of_the_sampler_inside_of_blocks(caplog):
    model = model_of()
    options = {"max_gen_toks": 5, "temperature": 0.0}
    (text,) = model.generate_until(requests([("the ", options)]))
    assert "the " + text == likeliest_text(model, "the ", 5)
    assert "no temperature" not in caplog.text


def test_the_likeliest_continuation_is_greedy(model):
    text = likeliest_text(model, "the ", 5)
    other = text[:-1] + ("x" if text[-1] != "x" else "y")
    found = model.loglikelihood(requests([("the ", text[4:]), ("the ", other[4:])]))
    assert [likeliest for _, likeliest in found] == [True, False]


def test_rolling_windows_are_those_of_the_bound(model):
    """Without a condition on the level every draw of the bound is the exact log-likelihood."""
    blind = model_of()
    long = "for x in range(10): print(x, end=' ')"
    values = blind.loglikelihood_rolling(requests([("the cat",), (long,), ("",)]))
    assert values[2] == 0
    for value, text in zip(values, ("the cat", long), strict=False):
        ids = blind.task.tokens(text)
        bound = 0.0
        for start in range(0, len(ids), blind.length):
            window = torch.tensor([ids[start : start + blind.length]])
            bound += float(blind.model.log_likelihood(window, None, 2, 0).values)
        assert value == pytest.approx(bound, rel=1e-3)


def test_other_models_are_bounded(model):
    assert model.model.is_autoregressive
    blocks = model_of(model__reads="same", model__block_size=4, sampler__size=4)
    assert not blocks.model.is_autoregressive
    uniform = model_of(
        model__reads="same",
        process={"use": "uniform", "predict": "posterior"},
        loss="score-entropy",
        sampler__inner="ancestral",
    )
    assert not uniform.model.is_autoregressive
