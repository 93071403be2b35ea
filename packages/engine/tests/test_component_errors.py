"""A component that raises is named with its plugin."""

import pytest

from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.launch import run
from dither.engine.training.diffusion import Diffusion
from dither.registry.config.errors import Refused

LOSS = """
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.kinds import LossSpec

class Broken(LossSpec):
    '''Broken.'''
    name: ClassVar[str] = "broken"
    def check(self, process): return ()
    def build(self, process): raise KeyError("build")
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
    """Write a loss that fails in one method next to the experiment."""

    def broken(method="rev = 1"):
        (experiment_file.parent / "broken.py").write_text(LOSS.format(method=method))
        text = experiment_file.read_text().replace('["toy_plugin.py"]', '["toy_plugin.py", "broken.py"]')
        experiment_file.write_text(text.replace('"toy-ce"', '"broken"'))
        return experiment_file

    return broken


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("def check(self, process): raise KeyError('a')", "KeyError: 'a' (broken.py:11)"),
        ("def check(self, process): yield 1 / 0", "ZeroDivisionError: division by zero (broken.py:11)"),
        ("def check(self, process): exit(0)", "SystemExit: 0"),
        ("def check(self, process): return None", "TypeError: "),
        ("def check(self, process): return ['text']", "TypeError: "),
        ("def warn(self, process): raise KeyError('a')", "KeyError: 'a' (broken.py:11)"),
    ],
)
def test_exceptions_of_a_check_name_the_component(broken, method, reason):
    with pytest.raises(Refused) as refused:
        load_experiment(broken(method))
    (problem,) = refused.value.problems
    assert problem.message.startswith(f'loss "broken" of plugin "broken" failed: {reason}')
    assert (problem.code, problem.path, problem.origin.line) == ("plugin-failed", ("loss",), 7)


def test_refusals_of_a_component_are_not_wrapped(broken):
    with pytest.raises(Refused, match="error: task: no data"):
        load_experiment(broken(f"def check{REFUSING}"))


def test_exceptions_of_a_build_name_the_component(broken, tmp_path, console):
    loaded = load_experiment(broken())
    with pytest.raises(KeyError, match="build") as error:
        run(loaded, tmp_path / "runs", console=console)
    assert error.value.__notes__ == ['in build of loss "broken" of plugin "broken"']
    with pytest.raises(KeyError) as error:
        Diffusion.build(loaded.experiment)
    assert error.value.__notes__ == ['in build of loss "broken"']


def test_system_exit_in_a_build_is_an_error(broken, tmp_path, console):
    with pytest.raises(RuntimeError, match="SystemExit: 0") as error:
        run(load_experiment(broken("def build(self, process): exit(0)")), tmp_path / "runs", console=console)
    assert error.value.__notes__ == ['in build of loss "broken" of plugin "broken"']
    with pytest.raises(Refused, match="no data"):
        run(load_experiment(broken(f"def build{REFUSING}")), tmp_path / "runs", console=console)
