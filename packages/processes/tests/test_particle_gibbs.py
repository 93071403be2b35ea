"""Samples given known tokens: the exact conditional law, from the exact model of whole noised samples."""

import pytest
import torch

from dither.processes.decoding.particle_gibbs import log_step_prob
from dither.registry.flow.records import Clean, State
from dither.registry.flow.spaces import Field, TokenSpace
from dither.registry.kinds import ModelFacts

CHAIN = torch.tensor([[0.8, 0.15, 0.05], [0.05, 0.8, 0.15], [0.15, 0.05, 0.8]], dtype=torch.float64)
JOINT = torch.einsum("ab,bc->abc", CHAIN, CHAIN) / 3
MARGINAL = {"frequencies": {"text": [1.0, 2, 3]}}


def process_of(part, kind: str, length: int):
    options = {"schedule": "log-linear", "predict": "posterior"} | (MARGINAL if kind == "marginal" else {})
    return part("process", kind, **options).build(TokenSpace((Field("text", length, 3),)))


@pytest.mark.parametrize(("kind", "free", "values"), [("uniform", 2, [0, 1, 0]), ("marginal", 1, [0, 0, 2])])
def test_the_conditional_law(part, oracle, kind: str, free: int, values: list[int]) -> None:
    """Total variation over the free token; ancestral sampling, which clamps known tokens, is far off."""
    rows, process = 1000, process_of(part, kind, 3)
    like = Clean.of(torch.tensor(values).expand(rows, 3), known=(torch.arange(3) != free).expand(rows, 3))
    law = JOINT[tuple(slice(None) if i == free else values[i] for i in range(3))]

    def distance(name: str, **options: int) -> float:
        *_, x = part("sampler", name, **options).build()(process, oracle(process, JOINT), like)
        assert torch.equal(x[like.known], like.x0[like.known])
        return float((torch.bincount(x[:, free], minlength=3) / rows - law / law.sum()).abs().sum() / 2)

    assert distance("ancestral", steps=32) > 0.08
    assert distance("particle-gibbs", steps=32, particles=4, sweeps=3) < 0.05  # the noise of the rows is 0.03


def test_the_probability_of_a_step_is_that_of_its_draws(part, oracle, likely) -> None:
    process, rows = process_of(part, "marginal", 2), 20_000
    now, then = (process.schedule(torch.full((rows,), t, dtype=torch.float64)) for t in (0.7, 0.3))
    state = State.of(torch.tensor([2, 1]).expand(rows, 2))
    pred = oracle(process, JOINT.sum(2))(state, torch.full((rows,), 0.7))
    like = Clean.of(state.x)
    drawn = process.step(state, pred, now, then, like).x
    for place in (0, 1):
        given = Clean.of(state.x, known=(torch.arange(2) == place).expand(rows, 2))
        p = [log_step_prob(process, state, pred, now, then, torch.full_like(state.x, y), given)[0] for y in range(3)]
        assert float(torch.stack(p).exp().sum()) == pytest.approx(1)
        assert likely(drawn[:, place], torch.stack(p).exp()) > 1e-3


def test_it_says_what_it_cannot_use(part) -> None:
    facts = part("process", "uniform").facts(TokenSpace((Field("text", 2, 3),)))
    assert [m.path for m in part("sampler", "particle-gibbs", top_k=2).check(facts, ModelFacts())] == [("top_k",)]
    assert len(list(part("sampler", "particle-gibbs").check(facts, ModelFacts(reads_known=True)))) == 1
