"""Sampling steps of the reference language model (79 M parameters, B = 1, L = 1024, V = 50,257).

The rival's step uses the model of dither, so that only the step differs: logits of all positions,
exp, rates, and a race of Gumbel numbers, in float32, as SEDD writes Euler's method. A block after a
KV cache is compared with the same block computed with all before it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from dither.engine.config.load_experiment import load_experiment
from dither.engine.sampling.session import Session
from dither.engine.training.diffusion import Diffusion
from dither.registry import Field, TokenSpace
from dither.registry.contracts.records import Clean, State

FILE = Path(__file__).parent.parent / "experiments" / "language_model" / "seed.toml"
V = 50_257
LENGTH = 1024
STEPS = 128
BLOCK = 16
TIMES = (0.9, 0.7, 0.5, 0.3, 0.1)
"""Midpoints of five equal parts: the mean over them is about that over all steps."""
CASES = {
    "ancestral, uniform, scores": ("uniform", "score", "float32"),
    "ancestral, uniform, scores, bf16": ("uniform", "score", "bfloat16"),
    "ancestral, uniform, posterior, bf16": ("uniform", "posterior", "bfloat16"),
    "ancestral, absorbing, posterior": ("absorbing", "posterior", "float32"),
    "ancestral, absorbing, posterior, bf16": ("absorbing", "posterior", "bfloat16"),
}
"""Process, prediction target and precision."""
Step = Callable[[float], object]


def build(kind: str, predict: str, precision: str, *changes: str) -> Diffusion:
    """Return the reference model under a process, with a random head instead of a zero one."""
    schedule = (
        '"log-linear"'
        if kind == "absorbing"
        else '{ use = "geometric", sigma_min = 1e-4, sigma_max = 20.0 }'
    )
    change = f'process={{ use = "{kind}", predict = "{predict}", level = "sigma", schedule = {schedule} }}'
    changes = (change, "loss=score-entropy", *changes)
    experiment = load_experiment(FILE, changes).experiment
    process = experiment.process.build(TokenSpace((Field("text", LENGTH, V),)))
    torch.manual_seed(0)
    model = experiment.model.build(process.space)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    none = cast(Any, None)
    system = Diffusion(
        none, process, model, none, none, precision=cast(Any, precision)
    ).eval()
    # For the rest of the process, as while samples are drawn.
    system.keep_casts().__enter__()
    return system


def straightforward(precision: str) -> Step:
    """Return a step of Euler's method as SEDD writes it."""
    system = build("uniform", "score", precision)
    like = Clean.of(torch.randint(V, (1, LENGTH)))
    ids = like.x0[..., None]

    def step(t: float) -> None:
        times = torch.tensor([t])
        now = system.process.schedule(times)
        log_score = system.raw(State.of(like.x0), times, like)
        score = log_score.scatter(-1, ids, 0.0).exp()
        # Rates of leaving an id for each other one, and of staying
        edge = torch.ones_like(score) / V
        edge = edge.scatter(-1, ids, (1 - V) / V)
        rate = edge * score
        rate = rate.scatter(-1, ids, 0.0)
        leaving = rate.sum(-1, keepdim=True)
        rate = rate.scatter(-1, ids, -leaving)
        stay = torch.nn.functional.one_hot(like.x0, V).to(rate)
        probs = stay + now.rate * rate / STEPS
        # The first of exponential clocks
        clocks = 1e-10 - (torch.rand_like(probs) + 1e-10).log()
        (probs / clocks).argmax(-1)

    return step


def ancestral(kind: str, predict: str, precision: str) -> Step:
    """Return an ancestral step of dither."""
    system = build(kind, predict, precision)
    process: Any = system.process
    like = Clean.of(torch.randint(V, (1, LENGTH)))
    session = Session(system, like)

    def step(t: float) -> None:
        now, then = (
            process.schedule(torch.tensor([time])) for time in (t, t - 1 / STEPS)
        )
        state = (
            process.corrupt(like, torch.tensor([t])).state
            if kind == "absorbing"
            else State.of(like.x0)
        )
        plan = process.begin_step(state, now, then, like)
        plan.complete(session(state, torch.tensor([t]), at=plan.at))

    return step


def last_block(*, cached: bool) -> Step:
    """Return the call of a model of blocks for the last one, after a cache or with the whole sample."""
    options = [f"model.block_size={BLOCK}", f"sampler.size={BLOCK}"]
    system = build("absorbing", "posterior", "bfloat16", *options)
    like = Clean.of(torch.randint(V, (1, LENGTH)))
    session = Session(system, like)
    state = system.process.prior(like)
    if cached:
        with torch.no_grad():
            session.append(like.x0[:, :-BLOCK])
        state = State.of(state.x[:, -BLOCK:])
    return lambda t: session(state, torch.tensor([t]))
