"""Shared by the tests: one thread, a small experiment, a run of it, and a count of the conformance checks."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dither.engine.cli import main
from dither.tasks.get_region.metrics import baselines
from dither.testing.summary import pytest_terminal_summary

__all__ = ["pytest_terminal_summary", "text_experiment", "trained"]

torch.set_num_threads(1)
SLOW_CASES = {
    "block:adaln-zero-cached_equals_full",
    "block:adaln-zero-weighted_equals_repeated",
    "block:pre-norm-cached_equals_full",
    "data:dhs-sequences-builds",
    "data:dhs-sequences-builds_share_nothing",
    "executor:local-commands_run",
    "executor:slurm-commands_run",
    "model:denoiser-builds_on_meta",
    "model:denoiser-cached_equals_full",
    "model:denoiser-context_equals_cache",
    "model:denoiser-gradients_reach_all",
    "model:denoiser-padding_inert",
    "model:denoiser-raw_output",
    "model:denoiser-seeded_build",
    "process:learned-variance-renoise_keeps_fixed",
    "process:marginal-joint_distributions",
    "process:uniform-chapman_kolmogorov",
    "process:uniform-joint_distributions",
    "sampler:analytic-samples_exact_distribution",
    "sampler:ancestral-samples_exact_distribution",
    "sampler:blocks-fixed_untouched",
    "sampler:blocks-samples_exact_distribution",
    "sampler:blocks-samples_exact_distribution_with_any_options",
    "sampler:blocks-yields_samples",
    "sampler:discrete-flow-samples_exact_distribution",
    "sampler:euler-samples_exact_distribution",
    "sampler:ode-fixed_untouched",
    "sampler:ode-samples_exact_distribution",
    "sampler:particle-gibbs-ends_clean",
    "sampler:particle-gibbs-fixed_untouched",
    "sampler:particle-gibbs-samples_exact_distribution",
    "sampler:particle-gibbs-seeded",
    "sampler:particle-gibbs-truth_unseen",
    "sampler:particle-gibbs-yields_samples",
    "sampler:predictor-corrector-samples_exact_distribution",
    "sampler:repaint-samples_exact_distribution",
    "sampler:self-correct-draws_are_new",
    "sampler:self-correct-fixed_untouched",
    "sampler:self-correct-samples_exact_distribution",
    "sampler:self-correct-truth_unseen",
    "sampler:self-correct-yields_samples",
    "sampler:semi-autoregressive-samples_exact_distribution_with_any_options",
    "task:bubble-diagram-baselines_are_finite",
    "task:bubble-diagram-builds",
    "task:bubble-diagram-evaluates_samples",
    "task:dna-sequence-builds",
    "task:dna-sequence-evaluates_samples",
    "task:get-region-baselines_are_finite",
    "task:get-region-evaluates_samples",
    "task:language-model-baselines_are_finite",
    "task:language-model-evaluates_samples",
    "tracker:mlflow-tracker_life_cycle",
    "tracker:trackio-options_round_trip",
    "tracker:wandb-tracker_life_cycle",
}
"""Cases of the conformance kit, which parametrises by itself, above half a CPU second."""
TEXT = """
loss = "masked-ce"
process = "absorbing"
sampler = "first-hitting"
[task]
use = "language-model"
length = 8
tokenizer = "{tokenizer}"
ngrams = 2
data = {{ use = "text-files", paths = {paths}, valid = 0.2, test = 0.1 }}
[model]
use = "denoiser"
width = 8
depth = 1
embedding = "tokens"
condition = "level"
block = {{ use = "adaln-zero", heads = 2 }}
head = "tokens"
[train]
steps = 2
batch_size = 4
device = "cpu"
threads = 1
[evaluate]
samples = 4
[sample]
count = 1
"""


# Before pytest selects by markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name.partition("[")[2].removesuffix("]") in SLOW_CASES:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def _quick_boosting(tmp_path_factory, monkeypatch):
    """Few rounds of boosting in this process, whose cache is not that of the user."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setitem(baselines.BOOSTING, "max_iter", 20)
    monkeypatch.setattr(baselines, "cache_folder", lambda: folder)


@pytest.fixture(scope="session")
def text_experiment() -> Callable[..., str]:
    """The TOML of an experiment on text files, whose two steps take half a second."""

    def written(*paths: str, tokenizer: str = "bytes") -> str:
        return TEXT.format(paths=json.dumps(paths), tokenizer=tokenizer)

    return written


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory, text_experiment: Callable[..., str]
) -> tuple[Path, Path]:
    """An experiment file, and a run of it with three steps and two checkpoints; tests change copies."""
    folder = tmp_path_factory.mktemp("trained")
    for n in range(6):
        (folder / f"{n}.txt").write_text(
            f"the cat {n} sat on the mat, and the dog {n + 1} on the log. " * 2
        )
    text = text_experiment(str(folder / "*.txt")).replace(
        "steps = 2", "steps = 3\ncheckpoint_every = 2"
    )
    (folder / "exp.toml").write_text(text)
    assert main(["run", str(folder / "exp.toml"), "--runs", str(folder / "runs")]) == 0
    (run,) = (folder / "runs").glob("*-*")
    return folder / "exp.toml", run
