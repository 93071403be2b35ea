"""What losses say they take: a fused form has a cost, and only one that there is."""

import pytest

from dither.losses.specs import MaskedCE, MaskedCEActive, ScoreEntropy, SeedLoss
from dither.registry.flow.fused_loss import FusedLoss
from dither.registry.flow.spaces import Field, TokenSpace
from dither.registry.kinds import ProcessFacts

SPACE = TokenSpace((Field("text", 8, 50_000, mask=0),))
LOSSES = [
    (MaskedCE(), "mask", "posterior"),
    (MaskedCE(reduction="sample"), "mask", "posterior"),
    (MaskedCEActive(), "mask", "posterior"),
    (MaskedCEActive(weights={"text": 2.0}), "mask", "posterior"),
    (ScoreEntropy(), "uniform", "score"),
    (ScoreEntropy(), "frequencies", "posterior"),
    (SeedLoss(), "uniform", "score"),
]


@pytest.mark.parametrize(("spec", "prior", "predict"), LOSSES, ids=lambda value: str(value)[:40])
def test_a_fused_form_has_a_cost(spec, prior, predict):
    facts = ProcessFacts("any", SPACE, predict, prior)
    said = spec.fused_cost(facts)
    assert (said is not None) == isinstance(spec.build(facts), FusedLoss)
    if said is not None:
        assert said.momentary(1) <= spec.cost(facts).passing * 8
        assert said.momentary(10**6) == said.tile < spec.cost(facts).passing * 10**6
        assert spec.fused_cost(facts, half=True).tile > said.tile


def test_a_process_that_reads_rows_takes_more_than_a_closed_form():
    closed, read, frequent = (
        ScoreEntropy().fused_cost(ProcessFacts("any", SPACE, predict, prior)).tile
        for predict, prior in (("score", "uniform"), ("posterior", "uniform"), ("score", "frequencies"))
    )
    assert read == frequent == 20 * closed
