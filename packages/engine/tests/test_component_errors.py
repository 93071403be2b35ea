"""A component that raises is named with its plugin."""

import pytest

from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.run import run
from dither.registry import kinds
from dither.registry.config.errors import Refused
from dither.registry.contracts import Noise
from dither.registry.plugins.manager import default_catalog
from dither.registry.spec.base import WrongReturnError

LOSS = """
from dither.registry import hookimpl
from dither.registry.kinds import LossSpec

class Broken(LossSpec):
    '''Broken.'''
    name = "broken"
    def check(self, process): return ()
    def build(self, process): ...
    {method}

@hookimpl
def register_components(): return [Broken]
"""
REFUSING = """(self, process):
        from dither.registry import Refused
        raise Refused("no data")
"""


@pytest.fixture
def broken(experiment_file):
    def broken(method="rev = 1"):
        (experiment_file.parent / "broken.py").write_text(LOSS.format(method=method))
        text = experiment_file.read_text().replace(
            '["toy_plugin.py"]', '["toy_plugin.py", "broken.py"]'
        )
        experiment_file.write_text(text.replace('"toy-ce"', '"broken"'))
        return experiment_file

    return broken


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (
            "def check(self, process): raise KeyError('a')",
            "KeyError: 'a' (broken.py:10)",
        ),
        (
            "def check(self, process): yield 1 / 0",
            "ZeroDivisionError: division by zero (broken.py:10)",
        ),
        ("def check(self, process): exit(0)", "SystemExit: 0"),
        ("def check(self, process): return None", "TypeError: "),
        ("def check(self, process): return ['text']", "TypeError: "),
        (
            "def warn(self, process): raise KeyError('a')",
            "KeyError: 'a' (broken.py:10)",
        ),
    ],
)
def test_exceptions_of_a_check_name_the_component(broken, method, reason, refusal):
    (problem,) = refusal(load_experiment, broken(method)).problems
    assert problem.message.startswith(
        f'loss "broken" of plugin "broken" failed: {reason}'
    )
    assert (problem.code, problem.path, problem.origin.line) == (
        "plugin-failed",
        ("loss",),
        7,
    )


@pytest.mark.parametrize("returned", ["None", "'text'", "(1, 2)", "[lambda: 1]"])
def test_a_wrong_result_of_a_build_names_the_component(
    broken, tmp_path, console, returned, refused
):
    loaded = load_experiment(broken(f"def build(self, process): return {returned}"))
    with refused(
        "plugin-failed", match='loss "broken" of plugin "broken" failed: build returned'
    ):
        run(loaded, tmp_path / "runs", console=console)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "self.body(torch",
            "self.nobody(torch",
            'model "toy-net" of plugin "toy-plugin" failed: Attribute',
        ),
        (
            "cond, cache=cache, keep=keep))",
            "cond)[:, 1:])",
            'model "toy-net" of plugin "toy-plugin" failed: the',
        ),
        (
            "values, 0.0), noised.target_mask.float()",
            "values, 0.0), noised.valid[:, 1:]",
            'loss "toy-ce" of plugin "toy-plugin" failed: weights',
        ),
        (
            "return Measured(",
            "return max(",
            'loss "toy-ce" of plugin "toy-plugin" failed: ',
        ),
        (
            "State.of(x), noise",
            "State.of(x.T), noise",
            'process "toy-mask" of plugin "toy-plugin" failed: the noised',
        ),
        ("yield process.finish(", "yield from process.finish(", "ended with"),
    ],
)
def test_wrong_tensors_name_the_component(
    experiment_file, tmp_path, console, old, new, message
):
    plugin = experiment_file.parent / "toy_plugin.py"
    plugin.write_text(plugin.read_text().replace(old, new))
    with pytest.raises(Refused, match=message) as refused:
        run(load_experiment(experiment_file), tmp_path / "runs", console=console)
    (problem,) = refused.value.problems
    assert (problem.code, problem.origin is None) == ("plugin-failed", False)


@pytest.mark.parametrize(
    ("kind", "returned"),
    [
        ("task", None),
        ("process", object()),
        ("block", None),
        ("optimizer", 3),
        ("lr-schedule", 1.0),
        ("head", (1, 2)),
    ],
)
def test_results_are_checked_by_kind(kind, returned):
    spec = default_catalog().parts(kind)[0].spec
    with pytest.raises(WrongReturnError, match="build returned"):
        spec.check_built(spec.model_construct(), returned)


@pytest.mark.parametrize(
    "schedule",
    ["None", "-t, t", "t, -t", "t[:1], t", "t * float('nan'), t", "1.0, 2.0"],
)
def test_invalid_schedules_are_found_when_they_are_built(schedule):
    class Wrong(kinds.ScheduleSpec):
        """A schedule."""

        name = "wrong"

        def sigma_end(self):
            return "8"

        def build(self):
            return lambda t: Noise(*eval(schedule)) if schedule != "None" else None

    with pytest.raises(WrongReturnError, match="schedule"):
        Wrong().build()
    with pytest.raises(WrongReturnError, match="sigma_end returned '8'"):
        Wrong().sigma_end()


@pytest.mark.parametrize("method", ["check", "build"])
def test_refusals_of_a_component_are_not_wrapped(broken, tmp_path, console, method):
    with pytest.raises(Refused, match="no data"):
        run(
            load_experiment(broken(f"def {method}{REFUSING}")),
            tmp_path / "runs",
            console=console,
        )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('build')", "KeyError: 'build'"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("exit(0)", "SystemExit: 0"),
        ("raise GeneratorExit", "GeneratorExit"),
    ],
)
def test_exceptions_of_a_build_name_the_component(
    broken, tmp_path, console, body, message
):
    loaded = load_experiment(broken(f"def build(self, process): {body}"))
    events = []
    code = run(loaded, tmp_path / "runs", console=console, emit=events.append)
    assert (code, [event.code for event in events]) == (1, ["plugin-failed"])
    named = f'loss "broken" of plugin "broken" (broken.py) failed: {message}'
    text = " ".join(console.export_text().split())
    assert named in text
    assert "Traceback" in text
