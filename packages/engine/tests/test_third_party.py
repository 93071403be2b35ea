"""Trackers, hooks, metrics and tasks of third parties cannot change a run, nor end it silently."""

import json
from contextlib import suppress

import pytest

from dither.engine.cli import main
from dither.engine.files.metrics_file import read_metrics
from dither.engine.runs.run import run
from dither.registry.config.errors import Refused

GREEDY = """
from typing import ClassVar
import torch
from dither.registry import hookimpl
from dither.registry.contracts.protocols import Metrics
from dither.registry.kinds import MetricSpec, TrackerSpec

def spoil(value):
    if isinstance(value, dict):
        for key, inner in list(value.items()):
            spoil(inner)
            value[key] = -1.0
        value["loss"] = -1.0
        value["step"] = -1
        value.pop("accuracy", None)
    elif isinstance(value, list):
        value.clear()
    elif isinstance(value, torch.Tensor):
        value.zero_()
    elif hasattr(value, "__dict__"):
        spoil(vars(value)) if not vars(type(value)).get("__dataclass_params__") else [
            spoil(inner) for inner in vars(value).values()]

class Recorder:
    def start(self, folder, config, step=0):
        spoil(config)
    def log(self, step, kind, metrics):
        spoil(metrics)
    def log_pictures(self, step, pictures):
        spoil(pictures)
    def finish(self, error=None):
        pass

class Greedy(TrackerSpec):
    "Changes every table."
    name = "greedy"
    def build(self):
        return Recorder()

class Second(Greedy):
    "The same."
    name = "second"

class Zeroing(Metrics):
    def update(self, clean, noised, pred, measured):
        for value in (clean, noised, pred, measured):
            spoil(value)
    def compute(self):
        return {"constant": 1.0}

class Both:
    def metrics(self):
        return Zeroing()
    def __call__(self, samples, like):
        spoil(samples)
        spoil(like)
        return {"constant": torch.tensor(2.0)}

class Metric(MetricSpec):
    "Changes its arguments."
    name = "zeroing"
    serves: ClassVar[frozenset] = frozenset({"tokens"})
    def build(self, space):
        return Both()

class Metric2(Metric):
    "The sum of the ids, which the first metric has set to 0 for itself."
    name = "honest"
    def build(self, space):
        return Honest()

class Sum(Metrics):
    def __init__(self):
        self.sum = 0
    def update(self, clean, noised, pred, measured):
        self.sum += clean.x0.sum().item() + noised.x0.sum().item()
    def compute(self):
        return {"sum": self.sum}

class Honest:
    def metrics(self):
        return Sum()

@hookimpl
def register_components():
    return [Greedy, Second, Metric, Metric2]

@hookimpl
def after_step(run, step, metrics):
    spoil(metrics)

@hookimpl
def after_eval(metrics):
    spoil(metrics)
    spoil(RUN.metrics)

@hookimpl
def before_run(run):
    global RUN
    RUN = run

@hookimpl
def after_run(summary):
    spoil(summary)
"""
RAISING = """
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.contracts.protocols import Metrics
from dither.registry.kinds import MetricSpec, TrackerSpec

class Odd(BaseException):
    pass

class Unprintable(Exception):
    def __str__(self):
        return None

class Recorder:
    def _call(self, name):
        if name == "{method}":
            raise {error}
    def start(self, folder, config, step=0):
        self._call("start")
    def log(self, step, kind, metrics):
        self._call("log")
    def log_pictures(self, step, pictures):
        self._call("log_pictures")
    def finish(self, error=None):
        self._call("finish")

class Raising(TrackerSpec):
    "Raises."
    name = "raising"
    def build(self):
        if "{method}" == "build":
            raise {error}
        return Recorder()

class Summing(Metrics):
    def update(self, clean, noised, pred, measured):
        raise {error}
    def compute(self):
        return {{}}

class Metric(MetricSpec):
    "Raises."
    name = "raising"
    serves: ClassVar[frozenset] = frozenset({{"tokens"}})
    def build(self, space):
        return self
    def metrics(self):
        return Summing()

@hookimpl
def register_components():
    return [Raising, Metric]
"""
ERRORS = (
    "KeyboardInterrupt",
    "GeneratorExit",
    "BaseException('base')",
    "SystemExit(0)",
    "Unprintable",
    "Odd",
)


@pytest.fixture
def plugin(experiment_file):
    """Add a plugin file to the experiment."""

    def add(text):
        experiment_file.with_name("third.py").write_text(text)
        names = '["toy_plugin.py", "third.py"]'
        given = experiment_file.read_text().replace('["toy_plugin.py"]', names)
        experiment_file.write_text(given)

    return add


def test_tables_that_plugins_receive_are_copies(plugin, load, tmp_path, console):
    plugin(GREEDY)
    folders = []
    for number, changes in enumerate(
        (
            ("tracking.use=[]", "evaluate.metrics=['honest']"),
            (
                "tracking.use=['greedy', 'second', 'csv']",
                "evaluate.metrics=['zeroing', 'honest']",
            ),
        )
    ):
        runs = tmp_path / f"runs{number}"
        best = ("evaluate.best=accuracy", "evaluate.better=higher")
        code = run(load(*changes, *best), runs, console=console)
        assert code == 0, console.export_text()
        folders += runs.iterdir()
    plain, spoiled = folders

    def lines(folder):
        rows = read_metrics(folder / "metrics.jsonl")
        return [
            {key: value for key, value in row.items() if key != "constant"}
            for row in rows
        ]

    assert lines(plain) == lines(spoiled)
    figures = [
        json.loads((folder / "summary.json").read_text())["metrics"]
        for folder in folders
    ]
    assert figures[1]["valid"].pop("constant") == 1
    assert figures[1]["sample"].pop("constant") == 2
    assert figures[0] == figures[1]
    assert "-1" not in (spoiled / "metrics.csv").read_text()
    for name in ("step-00000020/words.txt", "step-00000020/samples.safetensors"):
        one, other = (folder / "samples" / name for folder in folders)
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("error", "method"),
    [
        *((error, "log") for error in ERRORS),
        *((ERRORS[0], name) for name in ("build", "start", "log_pictures", "finish")),
        *((ERRORS[-1], name) for name in ("build", "start", "log_pictures", "finish")),
    ],
)
def test_no_exception_of_a_tracker_ends_a_run(
    plugin, load, tmp_path, console, error, method
):
    plugin(RAISING.format(error=error, method=method))
    few = ("tracking.use=['raising', 'csv']", "train.steps=4", "evaluate.every=4")
    assert run(load(*few), tmp_path / "runs", console=console) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "summary.json").is_file()
    assert "valid,loss" in (folder / "metrics.csv").read_text()
    assert (
        console.export_text().count('tracker "raising" of plugin "third" is disabled')
        == 1
    )


@pytest.mark.parametrize(
    ("error", "hook"),
    [
        *((error, "after_step") for error in ERRORS),
        *((ERRORS[0], hook) for hook in ("before_run", "after_run")),
        *((ERRORS[-1], hook) for hook in ("before_run", "after_run")),
    ],
)
def test_any_exception_of_a_hook_is_a_failure(
    plugin, load, tmp_path, console, error, hook
):
    plugin(
        "from dither.registry import hookimpl\nclass Odd(BaseException): pass\n"
        "class Unprintable(Exception):\n    def __str__(self): return None\n"
        f"@hookimpl\ndef {hook}(run):\n    raise {error}\n"
    )
    loaded = load("train.steps=4")
    if error == "Odd":
        code = 1  # of a traceback
        with suppress(BaseException):
            code = run(loaded, tmp_path / "runs", console=console)
        assert code
        return
    assert run(loaded, tmp_path / "runs", console=console) == 1
    assert 'plugin "third"' in console.export_text()


@pytest.mark.parametrize("error", ERRORS)
def test_no_exception_of_a_metric_looks_like_success(
    plugin, load, tmp_path, console, capsys, error
):
    plugin(RAISING.format(error=error, method=""))
    loaded = load("evaluate.metrics=['raising']", "train.steps=4")
    # Ctrl-C raises KeyboardInterrupt, too, which typer turns into an exit code of its own.
    uncaught = error in ("Odd", "KeyboardInterrupt")
    code = 1  # of a traceback
    with suppress(*[BaseException] if uncaught else []):
        code = run(loaded, tmp_path / "runs", console=console)
    assert code == 1
    named = 'metric "raising" of plugin "third" (third.py) failed: '
    assert uncaught or named in console.export_text()

    (folder,) = (tmp_path / "runs").iterdir()
    code = 1  # of a traceback
    with suppress(*[BaseException] if uncaught else []):
        code = main(["evaluate", str(folder)])
    assert code == 1 or (uncaught and code)
    assert uncaught or named in capsys.readouterr().err


@pytest.mark.parametrize("returned", ["'text'", "None", "[1.0]", "10**400"])
def test_a_metric_that_is_no_number_is_refused(
    plugin, load, tmp_path, console, returned
):
    text = RAISING.format(error="None", method="")
    text = text.replace(
        "        raise None\n    def compute", "        pass\n    def compute"
    )
    plugin(text.replace("return {}", f"return {{'strange': {returned}}}"))
    with pytest.raises(Refused) as refused:
        run(
            load("evaluate.metrics=['raising']", "train.steps=4"),
            tmp_path / "runs",
            console=console,
        )
    assert refused.value.problems[0].code == "plugin-failed"
