"""benchmarks/growth.py: a size in its own process, and the exponent of costs."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "benchmarks" / "growth.py"


@pytest.fixture
def growth():
    spec = importlib.util.spec_from_file_location("growth", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_exponents(growth):
    assert growth.exponent((1, 10, 20), [1.0, 3.0, 12.0]) == pytest.approx(2)
    assert growth.exponent((10, 20), [3.0, 3.0]) == 0


@pytest.mark.slow
def test_a_step_of_each_axis_is_measured(growth):
    measured = growth.in_process("batch", 16)
    assert 0 < measured["seconds"] < 10
    assert measured["bytes"] > 2**20
