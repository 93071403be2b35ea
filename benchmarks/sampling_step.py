"""One sampling step of the seed's language model (79 M parameters, B = 1, L = 1024, V = 50,257), against plain Euler.

    python benchmarks/sampling_step.py [ROUNDS] [CASE ...]
    python benchmarks/sampling_step.py memory

The straightforward step is what SEDD's code does in float32: logits of all positions, exp, rates, and a race of float32
Gumbel numbers over B L V. Its model is ours, so that only the step differs. Ours are steps of a walk of 128 under the
published schedule (sigma 1e-4 .. 20), at t = 0.9, 0.5 and 0.1 in turn, from random ids (or a share t of masks). Each
round takes every case in turn; printed are medians in milliseconds and the median of the ratios to the straightforward
step of the same round. "memory" prints the largest memory of one step beyond the weights, each in a fresh process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch

from dither.engine.config.experiment import Experiment
from dither.engine.config.load_experiment import load_experiment
from dither.engine.sampling.session import Session
from dither.engine.training.diffusion import Diffusion
from dither.processes.samplers import analytic, euler
from dither.processes.tokens.process import TokenProcess
from dither.registry.flow.protocols import Process
from dither.registry.flow.records import Clean, Noise, State
from dither.registry.flow.spaces import Field, TokenSpace

FILE = Path(__file__).parent.parent / "experiments" / "language_model" / "seed.toml"
V, LENGTH, STEPS = 50_257, 1024, 128
TIMES = (0.9, 0.5, 0.1)
PLAIN = "straightforward Euler, float32"
CASES = {
    "ancestral, uniform, scores": ("uniform", "score", "float32"),
    "ancestral, uniform, scores, bf16": ("uniform", "score", "bfloat16"),
    "ancestral, uniform, posterior, bf16": ("uniform", "posterior", "bfloat16"),
    "ancestral, absorbing, posterior": ("absorbing", "posterior", "float32"),
    "ancestral, absorbing, posterior, bf16": ("absorbing", "posterior", "bfloat16"),
    "euler, uniform, scores": ("uniform", "score", "float32"),
    "euler, uniform, scores, bf16": ("uniform", "score", "bfloat16"),
    "analytic, uniform, scores": ("uniform", "score", "float32"),
    "analytic, uniform, scores, bf16": ("uniform", "score", "bfloat16"),
}
"""Process, meaning of the output, and precision of each case."""


def build(kind: str, predict: str, precision: str) -> Diffusion:
    """Return the seed's model under a process, with a head that does not say the same of all ids."""
    schedule = "log-linear" if kind == "absorbing" else '{ use = "geometric", sigma_min = 1e-4, sigma_max = 20.0 }'
    text = f'{{ use = "{kind}", predict = "{predict}", level = "sigma", schedule = SCHEDULE }}'
    changes = [f"process={text.replace('SCHEDULE', schedule if '{' in schedule else repr(schedule))}"]
    experiment: Experiment = load_experiment(FILE, [*changes, "loss=score-entropy"]).experiment
    process = experiment.process.build(TokenSpace((Field("text", LENGTH, V),)))
    torch.manual_seed(0)
    model = experiment.model.build(process.space)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    none = cast(Any, None)
    return Diffusion(none, process, model, none, none, cast(Any, precision)).eval()


@torch.no_grad()
def straightforward(system: Diffusion) -> Callable[[float], None]:
    """Return a step of Euler's method as SEDD writes it."""
    x, valid = torch.randint(V, (1, LENGTH)), torch.ones(1, LENGTH, dtype=torch.bool)

    def step(t: float) -> None:
        now = system.process.schedule(torch.tensor([t]))
        logits = system.model(State.of(x), now.sigma, valid, {})
        score = logits.scatter(-1, x[..., None], 0.0).exp()
        edge = torch.ones_like(score) / V
        edge = edge.scatter(-1, x[..., None], (1 - V) / V)
        rate = (edge * score).scatter(-1, x[..., None], 0.0)
        rate = rate.scatter(-1, x[..., None], -rate.sum(-1, keepdim=True))
        probabilities = torch.nn.functional.one_hot(x, V).to(rate) + now.rate * rate / STEPS
        (probabilities / (1e-10 - (torch.rand_like(probabilities) + 1e-10).log())).argmax(-1)

    return step


def ours(name: str) -> Callable[[float], None]:
    """Return a step of one of our samplers."""
    system = build(*CASES[name])
    process = cast(TokenProcess, system.process)
    like = Clean.of(torch.randint(V, (1, LENGTH)))
    session, sampler = Session(system, like), name.partition(",")[0]

    def step(t: float) -> None:
        now, then = (process.schedule(torch.tensor([some])) for some in (t, t - 1 / STEPS))
        state = process.corrupt(like, torch.tensor([t])).state if process.masks else State.of(like.x0)
        _step(sampler, process, state, session(state, torch.tensor([t])), now, then, like)

    return step


def _step(sampler: str, process: TokenProcess, state: State, pred: Any, now: Noise, then: Noise, like: Clean) -> None:
    if sampler == "euler":
        euler._jump(process, state, pred, now, now.since(then), like)
    elif sampler == "analytic":
        analytic._step(process, state, pred, now, then, like)
    else:
        cast(Process, process).step(state, pred, now, then, like)


def case(name: str) -> Callable[[float], None]:
    """Return the step of a case by its name."""
    return straightforward(build("uniform", "score", "float32")) if name == PLAIN else ours(name)


@torch.no_grad()
def measure(rounds: int, names: list[str]) -> None:
    """Take each case in turn, at each time."""
    steps = {name: case(name) for name in (PLAIN, *names)}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for t in TIMES:
            for name, step in steps.items():
                if not number and t == TIMES[0]:
                    step(t)
                began = time.perf_counter()
                step(t)
                times[name].append(1000 * (time.perf_counter() - began))
    print(f"{'one step of 1,024 tokens':40} {'ms':>6}   ratio")
    for name, some in times.items():
        ratio = median(a / b for a, b in zip(times[PLAIN], some, strict=True))
        at = " ".join(f"{median(some[i::3]):5.0f} at {t}" for i, t in enumerate(TIMES))
        print(f"  {name:38} {median(some):6.0f}   {ratio:4.2f}x   ({at})", flush=True)


@torch.no_grad()
def peak(name: str) -> None:
    """Print the MiB that a step takes beyond the weights."""
    step = case(name)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    began = _status("VmRSS")
    step(TIMES[1])
    print(_status("VmHWM") - began)


def memory(names: list[str]) -> None:
    """Print the largest memory of each case."""
    found: dict[str, float] = {}
    for name in (PLAIN, *names):
        done = subprocess.run([sys.executable, __file__, "peak", name], capture_output=True, text=True, check=True)
        found[name] = float(done.stdout)
        print(f"  {name:38} {found[name]:6.0f} MiB   1/{found[PLAIN] / found[name]:.1f}", flush=True)


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def main() -> None:
    """Measure time, or memory."""
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2:] or list(CASES))
    elif sys.argv[1:2] == ["peak"]:
        peak(sys.argv[2])
    else:
        rounds, names = int(sys.argv[1]) if len(sys.argv) > 1 else 2, sys.argv[2:]
        measure(rounds, names or list(CASES)[:3])


if __name__ == "__main__":
    main()
