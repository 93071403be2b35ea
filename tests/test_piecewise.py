"""Samplers that say they ask for pieces never ask for the raw output at all positions; the others do."""

from pathlib import Path

import pytest

from dither.engine import later
from dither.engine.experiment import load_experiment
from dither.engine.session import draw
from dither.engine.system import Diffusion

TEXT = Path(__file__).resolve().parents[1] / "experiments/language_model/quick.toml"
SMALL = ["task.length=8", "model.width=16", "model.depth=1"]
SAMPLERS = {
    'ancestral", steps = 3': True,
    'ancestral", steps = 3, temperature = 0.5': True,
    'analytic", steps = 3': True,
    'euler", steps = 3': True,
    'predictor-corrector", steps = 3': True,
    "first-hitting": True,
    "ordered": True,
    'remdm", steps = 3': True,
    "guided": False,
}


class Whole(Exception):  # noqa: N818 - it is no error
    """All positions were asked for."""


@pytest.mark.parametrize(("sampler", "piecewise"), SAMPLERS.items())
def test_pieces_are_asked_for_as_it_is_said(sampler, piecewise, monkeypatch):
    text = sampler if '"' in sampler else f'{sampler}"'
    e = load_experiment(TEXT, [*SMALL, f'sampler={{ use = "{text} }}']).experiment
    assert e.sampler.piecewise() == piecewise
    monkeypatch.setattr(later, "HELD", 0)

    def whole(self):
        raise Whole

    monkeypatch.setattr(later.Later, "whole", whole)
    system = Diffusion.build(e)
    if piecewise:
        assert draw(system, system.task.like(2, 0), 0).shape == (2, 8)
    else:
        with pytest.raises(Whole):
            draw(system, system.task.like(2, 0), 0)


def test_blocks_ask_as_what_draws_a_block_does():
    for inner, piecewise in (("first-hitting", True), ("guided", False)):
        change = f'sampler={{ use = "blocks", size = 8, approximate = true, inner = "{inner}" }}'
        assert load_experiment(TEXT, [*SMALL, change]).experiment.sampler.piecewise() == piecewise
