"""Traps that nothing reported: blind models, the scale of levels, losses that bound nothing, estimators."""

import json
from pathlib import Path

import pytest
import torch

import dither
from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.registry.contracts.protocols import is_likelihood

ROOT = Path(__file__).parents[1]
TEXT = {"model.width": 16, "model.depth": 1, "task.length": 16}
BLIND = {**TEXT, "model.block.rope": False}
REGIONS = {"model.width": 16, "model.depth": 1, "task.regions": 8}


def warned(name, overrides=(), **options):
    loaded = load_experiment(name, overrides, **options)
    return "no-positions" in [problem.code for problem in loaded.warnings]


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("language_model/attention", TEXT, False),
        ("language_model/attention", BLIND, True),
        ("language_model/attention", {**BLIND, "model.embedding.position": "none"}, True),
        ("language_model/attention", {**BLIND, "model.embedding.position": "learned"}, False),
        ("language_model/attention", {**BLIND, "model.embedding.position": "sinusoid"}, False),
        ("language_model/attention", {**BLIND, "model.block": "pre-norm", "model.condition": "level"}, True),
        ("language_model/attention", {**TEXT, "model.block": "conv"}, False),
        # Within a block, positions look the same; blocks of one position are causal.
        ("language_model/blocks", {**BLIND, "model.block_size": 4, "sampler.size": 4}, True),
        ("language_model/blocks", {**BLIND, "model.block_size": 1, "sampler.size": 1}, False),
        ("dna_sequence/quick", {}, False),
        ("dna_sequence/quick", {"model.block": "adaln-zero"}, True),
        ("bubble_diagram/quick", {}, False),
        ("bubble_diagram/quick", {"model.embedding": {"use": "tokens"}}, True),
        # Whole regions are masked, and nothing of them is known.
        ("get_region/faithful", {}, True),
        ("get_region/faithful", {"model.embedding.position": "learned"}, False),
        ("get_region/faithful", {"process.mask": "element"}, False),
        ("get_region/quick", {}, False),
        ("images/digits", {}, False),
        ("images/digits", {"model.embedding.position": "none"}, True),
        ("images/digits", {"model.embedding.position": "none", "model.block.rope": "grid"}, False),
        ("get_region/gaussian", {}, False),
        ("get_region/gaussian", {"task.given": "nothing"}, True),
    ],
)  # fmt: skip
def test_a_model_that_cannot_tell_positions_apart_is_warned_about(
    name, overrides, expected
):
    assert warned(name, overrides) is expected


LABELLED = {"use": "sum", "parts": ["level", {"use": "label", "of": "cell"}]}


@pytest.mark.parametrize(
    ("condition", "warns"),
    [
        ("level", True),
        ("none", True),
        ({"use": "sum", "parts": ["level", "level"]}, True),
        (LABELLED, False),
    ],
)
def test_a_requested_label_that_the_model_does_not_read_is_warned_about(
    condition, warns
):
    overrides = {"model.condition": condition, "sample.cond.cell": 2}
    loaded = load_experiment("dna_sequence/quick", overrides)
    assert [problem.path for problem in loaded.warnings] == [
        ("sample", "cond", "cell")
    ] * warns


BAG = '''
"""An embedding that declares nothing, and a task of sets."""
from dither.embeddings.specs import Tokens
from dither.registry import hookimpl
from dither.tasks.dna_sequence.specs import DnaSequence


class Bag(Tokens):
    """Own embedding."""

    name = "bag"

    def traits(self):
        return frozenset()


class Sets(DnaSequence):
    """Sets of bases."""

    name = "sets"
    order_matters = False


@hookimpl
def register_components():
    return [Bag, Sets]
'''


def test_third_party_components_decide_about_positions(tmp_path):
    plugin = tmp_path / "bag.py"
    plugin.write_text(BAG)
    blind = {"model.block": "adaln-zero"}
    bag = {**blind, "model.embedding": "bag"}
    assert not warned("dna_sequence/quick", bag, select=[str(plugin)])
    sets = {**blind, "task.use": "sets"}
    assert not warned("dna_sequence/quick", sets, select=[str(plugin)])


def test_validate_prints_the_warning(capsys):
    words = ["validate", "language_model/attention", "model.block.rope=false", "--format", "json"]  # fmt: skip
    assert main(words) == 0
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["code"] == "no-positions"
    assert problem["level"] == "warning"


def test_validate_leaves_the_generator_alone(capsys):
    before = torch.get_rng_state()
    assert main(["validate", "bubble_diagram/quick"]) == 0
    assert main(["validate", "bubble_diagram/quick", "--deep"]) == 0
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize(
    ("process", "scale"),
    [
        ({}, 1000),
        ({"process.level": "index"}, 1),
        ({"process.level": "sigma"}, 1),
        ({"process.level": "log-sigma"}, 1),
        ({"process": "uniform", "loss": "score-entropy"}, 1000),
        ({"process": {"use": "uniform", "level": "sigma"}, "loss": "score-entropy"}, 1),
    ],
)
def test_the_time_scale_fits_the_level(process, scale):
    overrides = {**TEXT, "model.condition": {"use": "sum", "parts": ["level"]}}
    experiment = load_experiment("language_model/attention", {**overrides, **process})
    system = dither.Diffusion.build(experiment.experiment)
    assert system.model.condition.parts[0].time_scale == scale


def test_the_time_scale_of_features_fits_the_level_and_can_be_given():
    for level, scale in (("t", 1000), ("index", 1)):
        overrides = {**REGIONS, "process.level": level, "model.condition": "level"}
        experiment = load_experiment("get_region/quick", overrides).experiment
        model = dither.Diffusion.build(experiment).model
        assert model.condition.time_scale == scale
    given = {**REGIONS, "model.condition": {"use": "level", "time_scale": 3.0}}
    experiment = load_experiment("get_region/quick", given).experiment
    assert dither.Diffusion.build(experiment).model.condition.time_scale == 3


@pytest.mark.parametrize("name", ["bubble_diagram/seed_small", "language_model/seed"])
def test_reference_models_keep_their_time_scale_and_estimator(name):
    experiment = load_experiment(name).experiment
    assert experiment.model.condition.time_scale == 1.0
    if experiment.process.name == "absorbing":
        assert experiment.process.estimator == "time"


def test_the_default_estimator_is_the_one_of_least_variance():
    parse = load_experiment("bubble_diagram/quick").plugins.catalog.parse
    assert parse("process", "absorbing").estimator == "mask-count"
    # Shipped experiments state theirs, so that a change of the default does not change them.
    for path in ROOT.glob("experiments/*/*.toml"):
        text = path.read_text()
        if 'use = "absorbing"' in text:
            assert "estimator = " in text, path


FOCAL = '''
"""A loss that bounds nothing."""
from dither.registry import hookimpl
from dither.registry.contracts.records import Measured
from dither.registry.kinds import TOKENS, LossSpec


class Focal(LossSpec):
    """Focal loss: cross-entropy with less weight on easy tokens."""

    name = "focal"
    serves = TOKENS

    def build(self, process):
        def loss(prediction, noised):
            log = prediction.log_clean().gather(-1, noised.x0[..., None])[..., 0]
            values = (1 - log.exp()).square() * -log
            return Measured(values, noised.target_mask.float())

        return loss


@hookimpl
def register_components():
    return [Focal]
'''
UNITS = ("nats", "bits", "perplexity")
NARROW = {"model.width": 16, "model.depth": 1}
FEW_PLANS = {
    **NARROW,
    "task.data": {"use": "procedural-plans", "train": 64, "valid": 16, "test": 16},
}
FEW_SEQUENCES = {
    **NARROW,
    "task.data.train": 64,
    "task.data.held": 32,
}


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("language_model/attention", TEXT),
        pytest.param("bubble_diagram/quick", FEW_PLANS, marks=pytest.mark.slow),
        pytest.param("dna_sequence/quick", FEW_SEQUENCES, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_loss_that_is_no_bound_has_no_likelihoods(name, overrides, tmp_path, capsys):
    plugin = tmp_path / "focal.py"
    plugin.write_text(FOCAL)
    small = {
        **overrides, "train.steps": 2, "train.batch_size": 4, "evaluate.samples": 8, "sample.count": 2,
        "tracking.use": [],
    }  # fmt: skip
    for loss, present in (("focal", False), ("masked-ce", True)):
        run = dither.train(
            name, {**small, "loss": loss}, tmp_path / "runs", [str(plugin)]
        )
        printed = capsys.readouterr().out
        summary = json.loads((run / "summary.json").read_text())
        metrics = [*summary["metrics"]["valid"]]
        baselines = [key for key in summary["baselines"] if not key.startswith("sample ")]  # fmt: skip
        of_likelihood = [key for key in (*metrics, *baselines) if is_likelihood(key)]
        assert bool(of_likelihood) is present, of_likelihood
        assert "loss" in metrics
        assert main(["evaluate", str(run), "-p", str(plugin)]) == 0
        printed += capsys.readouterr().out
        lines = [line for line in printed.splitlines() if "judge" not in line]
        found = [line for line in lines if any(f"{unit}_per" in line for unit in UNITS)]
        assert bool(found) is present, found


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("nats_per_token", True),
        ("nats_per_token_ci95", True),
        ("nats_per_token/unigram", True),
        ("nodes_nats_per_graph", True),
        ("bits_per_char", True),
        ("perplexity", True),
        ("perplexity_ci95", True),
        ("loss", False),
        ("accuracy", False),
        ("mse/mean", False),
    ],
)
def test_likelihoods_are_known_by_their_units(metric, expected):
    assert is_likelihood(metric) is expected
