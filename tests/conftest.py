"""Shared by the tests: one thread, a small experiment, a run of it, and a count of the conformance checks."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dither.engine.cli import main
from dither.testing.summary import pytest_terminal_summary

__all__ = ["pytest_terminal_summary", "text_experiment", "trained"]

torch.set_num_threads(1)
SLOW_CASES = {
    "block:pre-norm-cached_equals_full",
    "model:denoiser-cached_equals_full",
    "sampler:analytic-samples_exact_distribution",
    "sampler:blocks-samples_exact_distribution_with_any_options",
    "sampler:euler-samples_exact_distribution",
    "sampler:particle-gibbs-ends_clean",
    "sampler:particle-gibbs-fixed_untouched",
    "sampler:particle-gibbs-samples_exact_distribution",
    "sampler:particle-gibbs-seeded",
    "sampler:particle-gibbs-truth_unseen",
    "sampler:particle-gibbs-yields_samples",
    "sampler:predictor-corrector-samples_exact_distribution",
    "task:bubble-diagram-baselines_are_finite",
    "task:dna-sequence-evaluates_samples",
    "task:get-region-evaluates_samples",
    "tracker:mlflow-tracker_life_cycle",
    "tracker:wandb-tracker_life_cycle",
}
"""Cases of the conformance kit, which parametrises by itself, above one CPU second."""
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
