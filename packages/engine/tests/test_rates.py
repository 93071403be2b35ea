import math

import pytest

from dither.engine.optimizers.lr_schedules import Constant, Cosine, Linear


@pytest.mark.parametrize("spec", [Constant(warmup=4), Cosine(warmup=4), Linear(warmup=4)])
def test_linear_warmup(spec):
    factor = spec.build(20)
    assert [factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine():
    factor = Cosine(warmup=10, final=0.2).build(110)
    for step in (10, 35, 60, 109):
        expected = 0.2 + 0.8 * (1 + math.cos(math.pi * (step - 10) / 100)) / 2
        assert factor(step) == pytest.approx(expected)
    assert factor(60) == pytest.approx(0.6)
    assert factor(500) == pytest.approx(0.2)  # a run with more steps


def test_linear_and_constant():
    assert [Linear(final=0.5).build(10)(step) for step in (0, 5, 10, 20)] == [1.0, 0.75, 0.5, 0.5]
    assert [Constant().build(10)(step) for step in (0, 9, 99)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("spec", [Constant(), Cosine(), Linear(), Cosine(warmup=5), Linear(warmup=5)])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_very_short_runs(spec, steps):
    factor = spec.build(steps)
    assert all(0 < factor(step) <= 1 for step in range(steps))
