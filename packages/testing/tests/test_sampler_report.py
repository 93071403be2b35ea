"""`dither test-sampler`: right samplers are near the distribution, each fault is found, names are resolved."""

import importlib
import json
import types

import pytest
import torch
import typer

from dither.registry.config.errors import Refused
from dither.testing.commands import register_commands
from dither.testing.sampler_adapters import sampler_of
from dither.testing.sampler_report import floor_of, measure_sampler
from dither.testing.toy_denoiser import LENGTH, ToyDenoiser

SAMPLES = 3000
FAR = 0.1
"""A distance that no sampling error of 3,000 samples has."""


def one_by_one(denoiser, x, known, steps):
    """Reveal one token a call."""
    for place in torch.randperm(LENGTH).tolist():
        probabilities = denoiser(x).softmax(-1)[:, place]
        drawn = torch.multinomial(probabilities, 1)[:, 0]
        x[:, place] = torch.where(known[:, place], x[:, place], drawn)
        yield x


def at_once(denoiser, x, known, steps):
    drawn = torch.distributions.Categorical(logits=denoiser(x)).sample()
    return torch.where(known, x, drawn)


def strands(denoiser, x, known, steps):
    return torch.where(torch.rand(x.shape) < 0.01, x, at_once(denoiser, x, known, 1))


def changes_prompts(denoiser, x, known, steps):
    return at_once(denoiser, x * 0 + denoiser.mask, known & False, steps)


def mixes_rows(denoiser, x, known, steps):
    return at_once(denoiser, x, known, 1)[:1].expand_as(x)


def ignores_seed(denoiser, x, known, steps):
    generator = torch.Generator()
    generator.seed()
    probabilities = denoiser(x).softmax(-1).flatten(0, 1)
    drawn = torch.multinomial(probabilities, 1, generator=generator)
    return torch.where(known, x, drawn.view(x.shape))


def wrong_time(denoiser, x, known, steps):
    """As the scheduler, but the model is told that there is less noise."""
    _, right = sampler_of("DDIMScheduler", None, {})
    return right(lambda x, t, known: denoiser(x, t / 2, known), x, known, steps)


def measured(sample, noise="absorbing", steps=4):
    return measure_sampler(sample, noise, steps, SAMPLES)


def test_a_right_sampler_is_as_near_as_exact_samples() -> None:
    row = measured(one_by_one)
    floor = floor_of("absorbing", SAMPLES)
    assert row.calls == LENGTH
    assert row.total_variation < 2 * floor.total_variation
    assert row.given_prompt < 2 * floor.given_prompt
    assert row.marginals < 2 * floor.marginals
    assert row.stranded == row.changed_prompts == 0
    assert row.repeats
    assert row.batches_agree > 1e-4


@pytest.mark.slow
def test_every_fault_is_found() -> None:
    assert measured(at_once).total_variation > FAR
    assert 0.01 < measured(strands).stranded < 0.05
    assert measured(changes_prompts).changed_prompts > 0.5
    assert measured(mixes_rows).batches_agree < 1e-9
    assert not measured(ignores_seed).repeats
    row = measured(wrong_time, "gaussian", 8)
    assert row.marginals > FAR
    # Far values are no fault, NaN is.
    assert row.stranded == 0
    nan = measured(lambda denoiser, x, known, steps: x / 0 * 0, "gaussian")
    assert nan.stranded == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "DPMSolverMultistepScheduler",
        pytest.param("DiscreteDDIMScheduler", marks=pytest.mark.slow),
        pytest.param("ancestral", marks=pytest.mark.slow),
        pytest.param("dpm-solver", marks=pytest.mark.slow),
    ],
)
def test_more_calls_are_nearer(name) -> None:
    noise, sample = sampler_of(name, None, {})
    near = measured(sample, noise, 16)
    assert near.total_variation < 0.06 < measured(sample, noise, 4).total_variation
    assert near.marginals < 0.06
    assert near.given_prompt < 0.06


@pytest.mark.parametrize("name", ["first-hitting", "generate"])
def test_a_call_per_token_is_exact(name) -> None:
    noise, sample = sampler_of(name, None, {})
    row = measured(sample, noise)
    assert row.calls == LENGTH
    assert row.total_variation < 0.06
    assert row.given_prompt < 0.04


@pytest.mark.slow
def test_confident_tokens_first_are_biased() -> None:
    for name in ("BlockRefinementScheduler", "EntropyBoundScheduler"):
        noise, sample = sampler_of(name, None, {})
        assert measured(sample, noise).total_variation > FAR


@pytest.mark.parametrize("noise", ["absorbing", "uniform", "gaussian"])
def test_states_have_the_marginals_of_their_time(noise) -> None:
    torch.manual_seed(0)
    denoiser = ToyDenoiser(noise)
    x = denoiser.corrupt(denoiser.draw(20_000), 0.4)
    ids = denoiser.ids_of(x) if noise != "gaussian" else None
    if ids is None:
        edges = 0.6**0.5 * torch.tensor([-0.5, 0.5])
        ids = torch.bucketize(x.float(), edges)
    for place, expected in enumerate(denoiser.marginals(0.4)):
        counts = torch.bincount(ids[:, place], minlength=4)[:3].double()
        assert (counts / counts.sum() - expected).abs().max() < 0.02


def run(*words):
    app = typer.Typer()
    register_commands(app, None)
    command = typer.main.get_command(app)
    return command([*words, "-n", "1000"], standalone_mode=False)


def test_the_command_exits_with_1_for_a_fault(tmp_path, capsys) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def keep(denoiser, x, known, steps):\n    return x\n")
    assert run(f"{file}:keep", "--json", "--steps", "3,5") == 1
    found = json.loads(capsys.readouterr().out)
    # It has no steps, so that it is measured once.
    (row,) = found["samples"][0]["rows"]
    assert row["stranded"] == 1
    assert len(found["faults"]) == 1
    assert run("first-hitting", "--steps", "3") == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nowhere:sample"], "plugin-failed"),
        (["nowhere.py:sample"], "file-not-found"),
        (["json:missing"], "unknown-value"),
        (["ancestrl"], "unknown-component"),
        (["ddim", "--noise", "uniform"], "process-mismatch"),
        (["DDIMScheduler", "--noise", "uniform"], "process-mismatch"),
        (["DDIMScheduler", "--set", "beta=1"], "invalid-value"),
        (["ancestral", "--set", "stps=1"], "invalid-value"),
        (["ancestral", "--steps", "0"], "usage"),
        (["json:dumps"], "plugin-failed"),
    ],
)
def test_wrong_names_and_functions_are_refused(words, code) -> None:
    with pytest.raises(Refused) as refused:
        run(*words)
    assert [problem.code for problem in refused.value.problems] == [code]


def test_a_file_that_fails_is_not_called_missing(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("open('nowhere')\n")
    with pytest.raises(Refused) as refused:
        run(f"{file}:sample")
    assert [problem.code for problem in refused.value.problems] == ["plugin-failed"]


def test_a_version_of_diffusers_without_the_class_is_named(monkeypatch) -> None:
    old = types.ModuleType("diffusers")
    old.__version__ = "0.1"
    monkeypatch.setattr(importlib, "import_module", lambda name: old)
    with pytest.raises(Refused) as refused:
        sampler_of("DiscreteDDIMScheduler", None, {})
    assert refused.value.problems[0].code == "missing-dependency"
    assert "0.1" in refused.value.problems[0].message
