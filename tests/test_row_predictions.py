"""Sampling with the head applied to single positions gives the states of sampling with the whole output."""

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dither.engine.sampling.session import ModelCalls, Session
from dither.engine.training.diffusion import Diffusion
from dither.registry import Field, TokenSpace
from dither.registry.contracts.records import Clean, State
from dither.registry.kinds import ModelFacts
from dither.registry.plugins.manager import load_plugins

V, LENGTH, ROWS = 40, 6, 5
SPACE = TokenSpace((Field("text", LENGTH, V),))
STEPS = {"steps": 4}
SAMPLERS: dict[str, list[dict[str, Any]]] = {
    "ancestral": [STEPS, {**STEPS, "temperature": 0.7, "top_k": 5}],
    "analytic": [STEPS],
    "euler": [STEPS, {**STEPS, "top_p": 0.8}],
    "predictor-corrector": [STEPS],
    "discrete-flow": [STEPS],
    "particle-gibbs": [{**STEPS, "particles": 2, "sweeps": 1}],
    "self-correct": [{"iterations": 2, "inner": {"use": "ancestral", "steps": 4}}],
    "first-hitting": [{}],
    "guided": [{}],
    "ordered": [{**STEPS, "by": by} for by in ("confidence", "drawn", "margin")],
    "remdm": [
        {**STEPS, "strategy": name} for name in ("cap", "conf-compensated", "loop")
    ],
}
"""Options of each sampler of tokens to walk with; of one that is not named here the defaults are taken."""
OTHERS = {
    "blocks",
    "ode",
    "semi-autoregressive",
    "ddim",
    "dpm-solver",
    "ordered-regions",
    "repaint",
    "best-of-n",
    "reward-smc",
}
"""Tested elsewhere: in pieces, of features, and those that predict all positions."""
PROCESSES = [
    (kind, predict)
    for kind in ("absorbing", "uniform", "marginal")
    for predict in ("posterior", "plug-in", "score")
]


@cache
def catalog():
    return load_plugins(
        ["core-blocks", "embeddings", "engine", "losses", "processes", "tasks"]
    ).catalog


class Whole(Session):
    """A session that calls the model at once for every position."""

    def __call__(self, state: State, t: Tensor, at: Tensor | None = None) -> Any:
        pred = self.system.denoise(state, t, self.branches[0].clean)
        return pred if at is None else pred.at(at)


def system_of(kind: str, predict: str) -> Diffusion:
    parse = catalog().parse
    options = (
        {"frequencies": {"text": [1.0 + i for i in range(V)]}}
        if kind == "marginal"
        else {}
    )
    process = parse(
        "process",
        {"use": kind, "predict": predict, "schedule": "log-linear", **options},
    ).build(SPACE)
    torch.manual_seed(3)
    block = {
        "use": "adaln-zero",
        "heads": 2,
        "ratio": 2.0,
        "rope": True,
    }  # no two masks are told the same
    embedding = {"use": "tokens", "known": True}
    model = {
        "use": "denoiser",
        "width": 16,
        "depth": 2,
        "embedding": embedding,
        "head": "tokens",
        "block": block,
    }
    built = parse(
        "model", {**model, "condition": {"use": "level", "frequencies": 8}}
    ).build(process.space)
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.3)
    none: Any = None
    return Diffusion(none, process, built, none, none).eval()


def like_of() -> Clean:
    torch.manual_seed(4)
    known = torch.rand(ROWS, LENGTH) < 0.3
    known[0] = False
    valid = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    valid[1, 4:] = False
    return Clean.of(torch.randint(V, (ROWS, LENGTH)), valid, known)


def walks() -> list[Any]:
    """Every sampler of tokens with each process that it supports."""
    parse, found = catalog().parse, []
    for name in (
        part.spec.name
        for part in catalog().parts("sampler")
        if part.spec.name not in OTHERS
    ):
        for options, (kind, predict) in itertools.product(
            SAMPLERS.get(name, [{}]), PROCESSES
        ):
            spec = parse("sampler", {"use": name, **options})
            facts = parse("process", {"use": kind, "predict": predict}).facts(SPACE)
            if not list(spec.check(facts, ModelFacts(LENGTH))):
                found.append(
                    pytest.param(
                        spec, kind, predict, id=f"{name} {options} {kind} {predict}"
                    )
                )
    return found


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("spec", "kind", "predict"), walks())
def test_rowwise_and_whole_predictions_give_the_same_states(
    spec, kind: str, predict: str
) -> None:
    system, like = system_of(kind, predict), like_of()
    found = []
    for session in (Whole(system, like), Session(system, like)):
        torch.manual_seed(11)
        states = list(spec.build()(system.process, session, like))
        for x in states:
            assert torch.equal(x[like.fixed], like.x0[like.fixed])
        assert states[-1].max() < V
        found.append(states)
    for ours, plain in zip(found[1], found[0], strict=True):
        assert torch.equal(ours, plain)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
def test_the_output_of_all_positions_is_never_held(monkeypatch, kind: str) -> None:
    """Only positions that the step may change are read: under absorbing those that are unmasked."""
    system, like = (
        system_of(kind, "posterior"),
        Clean.of(torch.zeros(8, LENGTH, dtype=torch.long)),
    )
    read, made = [], system.process.read
    monkeypatch.setattr(
        system.process,
        "read",
        lambda raw, *rest: (read.append(raw.shape), made(raw, *rest))[1],
    )
    session = Session(system, like)
    now, then = (system.process.schedule(torch.full((8,), t)) for t in (0.5, 0.4))
    state = system.process.corrupt(like, torch.full((8,), 0.5)).state
    step = system.process.begin_step(state, now, then, like)
    new = step.complete(session(state, torch.full((8,), 0.5), at=step.at))
    if kind == "absorbing":
        assert sum(shape[1] for shape in read) == int((new.x != state.x).sum()) > 0
    else:  # of positions at t = 0.5 a step to 0.4 moves 1 in 6 at most: 1 - alpha_ts over 1 - alpha_t is 1/3
        assert 0 < sum(shape[1] for shape in read) < 28


@torch.no_grad()
@pytest.mark.parametrize("size", [LENGTH, 4, 2])
def test_blocks_between_cached_positions(size: int) -> None:
    """The dual cache: the first call of a block equals one of the whole sample; all do with one block."""
    system, like, calls = system_of("absorbing", "posterior"), like_of(), ModelCalls()
    options = {
        "use": "semi-autoregressive",
        "size": size,
        "inner": {"use": "ordered", "steps": 3},
    }
    found, seen = [], []
    for cached in (False, True):
        torch.manual_seed(11)
        spec, session = (
            catalog().parse("sampler", {**options, "approximate": cached}),
            Session(system, like, calls),
        )
        found.append(list(spec.build()(system.process, session, like)))
        assert torch.equal(found[-1][-1][like.fixed], like.x0[like.fixed])
        seen.append(calls.rows)
    assert seen[1] - 2 * seen[0] == ROWS * -(-LENGTH // size), (
        "a call for each block more"
    )
    assert size < LENGTH or all(
        torch.equal(ours, exact) for ours, exact in zip(*found, strict=True)
    )
    x, t, part = found[0][0], torch.rand(ROWS), slice(LENGTH - size, LENGTH)
    session.refresh(x, t, part.start)
    whole = system.denoise(State.of(x), t, like).log_clean()
    torch.testing.assert_close(
        session(State.of(x[:, part]), t).log_clean(), whole[:, part]
    )


@torch.no_grad()
def test_rows_are_those_of_the_whole_and_none_calls_no_model() -> None:
    system, like = (
        system_of("uniform", "posterior"),
        Clean.of(torch.randint(V, (2, LENGTH))),
    )
    state, t, calls = State.of(like.x0), torch.full((2,), 0.5), ModelCalls()
    session = Session(system, like, calls)
    few = torch.zeros(2, LENGTH, dtype=torch.bool)
    few[0, 1] = few[1, 4] = True
    whole = system.denoise(state, t, like)
    for where in (few, ~few):
        rows = session(state, t, at=where)
        torch.testing.assert_close(rows.log_clean()[0], whole.log_clean()[where])
        torch.testing.assert_close(rows.log_score()[0], whole.log_score()[where])
    assert calls.rows == 4
    assert session(state, t, at=few & ~few).log_context().shape == (1, 0, V)
    assert calls.rows == 4
