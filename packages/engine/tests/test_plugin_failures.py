"""Each kind of component that fails late, when nothing but a run can find it, is named with its plugin."""

import json

import pytest

from dither.engine.cli import main
from dither.engine.runs.run import run
from dither.registry.plugins.culprit import culprit_of

TOY = 'of plugin "toy-plugin" (toy_plugin.py) failed: ZeroDivisionError'
EDITS = {
    "task": ("def batch(self, split, rows):", "assert split != 'valid' or 1 / 0"),
    "task (metrics)": ("def compute(self):", "1 / 0"),
    "task (samples)": ("def sample_metrics(self, samples, like):", "1 / 0"),
    "task (plots)": ("def plots(self, samples, like):", "1 / 0"),
    "process": ("def prior(self, like):", "1 / 0"),
    "model": (
        "def forward(self, state, level, valid, cond, *, cache=None, keep=False):",
        "self.training or 1 / 0",
    ),
    "loss": ("def measure(pred, noised):", "assert len(noised.x0) != 5 or 1 / 0"),
    "sampler": ("def walk(process, session, like):", "1 / 0"),
}
"""Component, the line after which it fails, and the code that fails."""
NAMES = {
    "task": "toy-words",
    "process": "toy-mask",
    "model": "toy-net",
    "loss": "toy-ce",
    "sampler": "toy-walk",
}
OTHERS = """
from typing import ClassVar
import torch
from dither.registry import hookimpl
from dither.registry.contracts.protocols import Metrics
from dither.registry.kinds import LRScheduleSpec, MetricSpec, OptimizerSpec

def fail(place):
    if place == "{place}":
        1 / 0

class Falling(LRScheduleSpec):
    "Fails at the third step."
    name = "falling"
    def build(self, steps):
        def rate(step):
            if step == 2:
                fail("lr-schedule")
            return 1.0
        return rate

class Descent(torch.optim.SGD):
    def step(self, closure=None):
        fail("optimizer")
        return super().step(closure)

class Plain(OptimizerSpec):
    "Fails at its first step."
    name = "plain"
    def build(self, model):
        return Descent(model.parameters(), lr=0.1)

class Sums(Metrics):
    def update(self, clean, noised, pred, measured):
        fail("update")
    def compute(self):
        fail("compute")
        return {{}}

class Both:
    def metrics(self):
        return Sums()
    def __call__(self, samples, like):
        fail("samples")
        return {{}}

class Metric(MetricSpec):
    "Fails."
    name = "failing"
    serves: ClassVar[frozenset] = frozenset({{"tokens"}})
    def build(self, space):
        return Both()

@hookimpl
def register_components():
    return [Falling, Plain, Metric]
"""
PLACES = {
    "lr-schedule": 'lr-schedule "falling"',
    "optimizer": 'optimizer "plain"',
    "update": 'metric "failing"',
    "compute": 'metric "failing"',
    "samples": 'metric "failing"',
}


@pytest.fixture
def others(experiment_file):
    """Add another plugin file, which fails at a place."""

    def add(place):
        experiment_file.with_name("o.py").write_text(OTHERS.format(place=place))
        names = '["toy_plugin.py", "o.py"]'
        text = experiment_file.read_text().replace('["toy_plugin.py"]', names)
        experiment_file.write_text(text)

    return add


def failure(loaded, runs, console):
    """Return the message of a run that a plugin ends."""
    events = []
    assert run(loaded, runs, console=console, emit=events.append) == 1
    assert events[-1].code == "plugin-failed"
    assert "Traceback" in console.export_text()
    return events[-1].message


@pytest.mark.parametrize("place", EDITS)
def test_a_component_that_fails_during_a_run_is_named(
    experiment_file, load, tmp_path, console, place
):
    file = experiment_file.with_name("toy_plugin.py")
    text = file.read_text()
    line, code = EDITS[place]
    assert line in text
    indent = len(text.partition(line)[0].rpartition("\n")[2]) + 4
    file.write_text(text.replace(line, f"{line}\n{' ' * indent}{code}", 1))
    kind = place.partition(" ")[0]
    message = failure(load("train.steps=2"), tmp_path / "runs", console)
    assert f'{kind} "{NAMES[kind]}" {TOY}' in message


@pytest.mark.parametrize("place", PLACES)
def test_another_component_that_fails_during_a_run_is_named(
    others, load, tmp_path, console, place
):
    others(place)
    loaded = load(
        "train.steps=4",
        "train.optimizer={use='plain'}",
        "train.lr_schedule='falling'",
        "evaluate.metrics=['failing']",
    )
    message = failure(loaded, tmp_path / "runs", console)
    assert f'{PLACES[place]} of plugin "o" (o.py) failed: ZeroDivision' in message


def test_commands_name_the_component(others, start, capsys):
    others("samples")
    code, folder = start(
        "train.steps=1", "sample.count=0", "evaluate.metrics=['failing']"
    )
    assert code == 0
    capsys.readouterr()
    words = ["sample", str(folder), "--count", "2"]
    assert main([*words, "--json"]) == 1
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    (problem,) = record["problems"]
    assert (record["exit_code"], problem["code"]) == (1, "plugin-failed")
    assert 'metric "failing" of plugin "o"' in problem["message"]
    assert main([*words, "--traceback"]) == 1
    assert "o.py" in capsys.readouterr().err.partition("Traceback")[2]


def test_own_code_is_no_plugin():
    with pytest.raises(ValueError, match="Expecting") as info:
        json.loads("{")
    assert culprit_of(info.value) is None
