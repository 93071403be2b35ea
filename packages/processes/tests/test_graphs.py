"""Every token process on a tiny graph of rooms and relations, with every sampler that takes it.

Fields have vocabularies of their own, PAD stands behind the rooms that a graph has, and some tokens are known.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from dither.processes.tokens.posterior import Posterior
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.processes.tokens.process import TokenProcess
from dither.registry.flow.records import Clean, State
from dither.registry.flow.spaces import Field, TokenSpace
from dither.registry.kinds import ModelFacts

GRAPH = TokenSpace((Field("nodes", 3, 5, mask=3, pad=4), Field("edges", 3, 4, mask=2, pad=3)))
NODE, EDGE = torch.tensor([0.6, 0.3, 0.1, 0, 0]).double(), torch.tensor([0.25, 0.75, 0, 0, 0]).double()
LAWS = torch.stack([NODE] * 3 + [EDGE] * 3)

PROCESSES: dict[str, dict[str, Any]] = {
    "absorbing": {},
    "uniform": {"schedule": "log-linear"},
    "marginal": {"frequencies": {"nodes": [3.0, 2.0, 1.0], "edges": [1.0, 2.0]}},
}
SAMPLERS: list[dict[str, Any]] = [
    {"use": "ancestral", "steps": 20},
    {"use": "euler", "steps": 200},
    {"use": "predictor-corrector", "steps": 6},
    {"use": "first-hitting"},
    *({"use": "ordered", "steps": 4, "by": by} for by in ("confidence", "margin", "entropy", "random")),
    *({"use": "remdm", "steps": 10, "strategy": name} for name in ("cap", "rescale", "conf-compensated", "loop")),
]
UNMASKING = {"first-hitting", "ordered", "remdm"}


class Independent:
    """A session that knows the law of each position, and keeps the states it was shown."""

    def __init__(self, process: TokenProcess) -> None:
        self.process, self.seen = process, list[Tensor]()

    def __call__(self, state: State, t: Tensor) -> CategoricalPrediction:
        self.seen.append(state.x)
        evidence = Posterior(
            state.x, self.process.schedule(t), self.process.prior_probs(), self.process.clean.on("cpu")
        )
        return CategoricalPrediction(evidence.normalize(LAWS.log().expand(len(state.x), -1, -1)), "plug-in", evidence)


def graphs(n: int) -> Clean:
    """Two rooms in every other graph; in half of them the first room and the first relation are known."""
    x0 = torch.zeros(n, 6).long()
    valid, known = torch.ones(n, 6, dtype=torch.bool), torch.zeros(n, 6, dtype=torch.bool)
    valid[::2, [2, 4, 5]] = False
    x0[::2, [2, 4, 5]] = torch.tensor([4, 3, 3])
    known[n // 2 :, [0, 3]] = True
    x0[n // 2 :, 0], x0[n // 2 :, 3] = 2, 1
    return Clean(x0, valid, known)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("kind", PROCESSES)
def test_samples_have_the_law_and_leave_alone_what_is_fixed(part, likely, kind: str, sampler: dict[str, Any]) -> None:
    spec, walk = part("process", kind, **PROCESSES[kind]), dict(sampler)
    name = walk.pop("use")
    chosen = part("sampler", name, **walk)
    misfits = list(chosen.check(spec.facts(GRAPH), ModelFacts()))
    assert bool(misfits) == (name in UNMASKING and kind != "absorbing")
    if misfits:
        return
    process, like = spec.build(GRAPH), graphs(3_000)
    session = Independent(process)
    states = list(chosen.build()(process, session, like))
    for x in [*session.seen, *states]:  # the first state that the model sees is among them
        assert torch.equal(x[like.fixed], like.x0[like.fixed])
    for place in range(6):
        drawn = states[-1][~like.fixed[:, place], place]
        assert likely(drawn, LAWS[place]) > 1e-4, f"position {place}"


@pytest.mark.parametrize("kind", PROCESSES)
def test_the_process_keeps_to_each_vocabulary(part, kind: str) -> None:
    process, like = part("process", kind, **PROCESSES[kind]).build(GRAPH), graphs(500)
    state = process.prior(like)
    clean = process.space.clean().gather(1, state.x.T).T
    assert (clean | like.fixed).all() == (kind != "absorbing")
    masks = torch.tensor([3, 3, 3, 2, 2, 2]).expand(500, -1)
    assert (state.x == masks)[~like.fixed].all() == (kind == "absorbing")
    _, noised = process.estimate(like, process.times(500))
    assert torch.equal(noised.state.x[like.fixed], like.x0[like.fixed])
    assert not (noised.target_mask & like.fixed).any()
