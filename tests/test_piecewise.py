"""Samplers that say they ask for pieces never ask for the raw output at all positions."""

from pathlib import Path

import pytest

from dither.engine.config.load_experiment import load_experiment
from dither.engine.sampling import lazy_output as later
from dither.engine.sampling.session import draw
from dither.engine.training.diffusion import Diffusion

TEXT = Path(__file__).resolve().parents[1] / "experiments/language_model/quick.toml"
SMALL = ["task.length=8", "model.width=16", "model.depth=1"]
SAMPLERS = [
    'ancestral", steps = 3',
    'ancestral", steps = 3, temperature = 0.5',
    'analytic", steps = 3',
    'euler", steps = 3',
    'predictor-corrector", steps = 3',
    'first-hitting"',
    'ordered"',
    'remdm", steps = 3',
]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_pieces_are_asked_for_as_it_is_said(sampler, monkeypatch):
    e = load_experiment(TEXT, [*SMALL, f'sampler={{ use = "{sampler} }}']).experiment
    assert e.sampler.piecewise()
    monkeypatch.setattr(later, "HELD", 0)
    monkeypatch.setattr(later.Later, "whole", lambda self: pytest.fail("all positions were asked for"))
    system = Diffusion.build(e)
    assert draw(system, system.task.like(2, 0), 0).shape == (2, 8)


def test_blocks_ask_as_what_draws_a_block_does():
    for inner, piecewise in (("first-hitting", True), ("guided", False)):
        change = f'sampler={{ use = "blocks", size = 8, approximate = true, inner = "{inner}" }}'
        assert load_experiment(TEXT, [*SMALL, change]).experiment.sampler.piecewise() == piecewise
