"""Extras of dither-tasks: a task names the libraries it lacks, and specs are read without them."""

import subprocess
import sys
from pathlib import Path

import pytest

from dither.tasks import specs
from dither.tasks.bubble_diagram.specs import BubbleDiagram
from dither.tasks.missing_library import MODULES

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
HEAVY = {
    module for extra in ("language", "plans", "regions") for module in MODULES[extra]
}
TASKS = {
    "bubble-diagram": ("bubble_diagram/quick", "plans"),
    "dna-sequence": ("dna_sequence/quick", "regions"),
    "get-region": ("get_region/quick", "regions"),
    "language-model": ("language_model/quick", "language"),
}


def run_without(modules, code, **options):
    """Run Python code in a process in which these modules are not installed."""
    block = f"import sys\nsys.modules |= dict.fromkeys({sorted(modules)!r})\n"
    command = [sys.executable, "-c", block + code]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )


def dither(*arguments):
    return f"from dither.engine.cli import main\nsys.exit(main({[*map(str, arguments)]!r}))"


@pytest.mark.parametrize("name", TASKS)
def test_an_experiment_is_valid_without_the_libraries_of_its_task(name):
    experiment = TASKS[name][0]
    done = run_without(HEAVY, dither("validate", EXPERIMENTS / f"{experiment}.toml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", TASKS)
def test_a_task_without_a_library_names_the_extra(name, monkeypatch, refusal):
    extra = TASKS[name][1]
    missing = MODULES[extra][0]
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, missing, None)
    task = next(spec for spec in specs.register_components() if spec.name == name)
    (problem,) = refusal(lambda: task().build()).problems
    assert (problem.code, problem.path) == ("missing-dependency", ("task",))
    assert missing in problem.message
    assert f"extra {extra}" in problem.message


def test_export_formats_name_their_missing_library(monkeypatch):
    task = BubbleDiagram()
    monkeypatch.setitem(sys.modules, "ifcopenshell", None)
    (misfit,) = task.check_export("ifc")
    assert (misfit.code, "ifcopenshell" in misfit.help) == ("missing-dependency", True)
    assert not [*task.check_export("svg")]


@pytest.mark.slow
def test_a_run_of_bubble_diagrams_needs_no_library_of_another_task(tmp_path):
    run = dither(
        *("run", EXPERIMENTS / "bubble_diagram" / "quick.toml", "--runs", tmp_path),
        *("train.steps=2", "evaluate.samples=16", "sample.count=2"),
    )
    done = run_without(HEAVY - set(MODULES["plans"]) - {"jinja2"}, run)
    assert done.returncode == 0, done.stdout + done.stderr
