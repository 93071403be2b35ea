"""The head and the loss of the language model, there and back, against SEDD's mathematics on all logits at once.

    python benchmarks/language_head.py [B] [PAIRS]
    python benchmarks/language_head.py memory
    python benchmarks/language_head.py errors

V = 50,257, width 512, B x 1,024 positions, a uniform process with scores. The straightforward form is what SEDD's
graph_lib does in float32: logits of all positions, exp, gather, three terms. Each pair takes the straightforward form
and one of ours in turn; printed are medians in milliseconds and the median of the ratios. "memory" prints the largest
memory beyond weights, what the head reads, and gradients, each form in a process of its own; "errors" how far gradients
are from those in float64.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from dither.losses.fused.losses import FusedScoreEntropy
from dither.processes.schedules.specs import Geometric
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.process import TokenProcess, even_prior
from dither.registry.flow.records import Clean, Noised
from dither.registry.flow.spaces import Field, TokenSpace

V, WIDTH, LENGTH = 50_257, 512, 1024
MIB = 2**20
NAMES = ("straightforward", "straightforward, bf16 autocast", "ours, float32", "ours, bf16 products")


def given(batch: int, length: int = LENGTH) -> tuple[TokenProcess, nn.Linear, Tensor, Noised, Tensor]:
    """Return a process, a head, what it reads, a noised batch and its times."""
    torch.manual_seed(0)
    space = TokenSpace((Field("text", length, V),))
    process = TokenProcess(space, even_prior(space), TimestepSampling(Geometric().build()), "score")
    linear = nn.Linear(WIDTH, V)
    nn.init.normal_(linear.weight, std=0.02)
    h = torch.randn(batch, length, WIDTH, requires_grad=True)
    t = torch.linspace(0.5, 0.8, batch)
    return process, linear, h, process.corrupt(Clean.of(torch.randint(V, (batch, length))), t), t


def straightforward(linear: nn.Linear, h: Tensor, noised: Noised) -> Tensor:
    """SEDD's score entropy of a uniform graph, weighted, summed; its ratio without the cancellation of the original."""
    x, x0, sigma = noised.state.x, noised.x0, noised.noise.sigma.float()[:, None]
    score = linear(h).float()
    score = torch.scatter(score, -1, x[..., None], torch.zeros_like(score[..., :1]))
    esigm1 = sigma.expm1()
    ratio = (esigm1 / (esigm1 + V)).expand(x.shape)
    neg_term = score.mean(-1) - score.gather(-1, x[..., None])[..., 0] / V
    there = score.gather(-1, x0[..., None])[..., 0] / esigm1
    neg_term = torch.where(x == x0, ratio * neg_term, there + neg_term)
    const = torch.where(x == x0, (V - 1) / V * ratio * (ratio.log() - 1), ((-ratio.log() - 1) / ratio - (V - 2)) / V)
    sexp = score.exp()
    pos_term = sexp.mean(-1) - sexp.gather(-1, x[..., None])[..., 0] / V
    return ((pos_term - neg_term + const) * noised.noise.rate.float()[:, None]).sum()


def forms(batch: int) -> dict[str, Callable[[], None]]:
    """Return each form as a function that goes there and back, and leaves gradients."""
    process, linear, h, noised, t = given(batch)
    loss = FusedScoreEntropy()

    def clear() -> None:
        h.grad = linear.weight.grad = None
        assert linear.bias is not None
        linear.bias.grad = None

    def plain(half: bool = False) -> None:
        clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            straightforward(linear, h, noised).backward()  # type: ignore[no-untyped-call]

    def fused(half: bool = False) -> None:
        clear()
        loss.fused(h, linear, process, noised, t, half=half).total().backward()  # type: ignore[no-untyped-call]

    return dict(zip(NAMES, (plain, lambda: plain(True), fused, lambda: fused(True)), strict=True))


def measure(batch: int, pairs: int) -> None:
    """Time each form in turn with the straightforward one."""
    every = forms(batch)
    plain = every.pop("straightforward")
    print(f"B = {batch}: {'ms':>36} {'straightforward':>16} {'ratio':>6}")
    for name, form in every.items():
        times = []
        for number in range(pairs + 1):
            pair = [_milliseconds(run) for run in (plain, form)]
            times += [pair] if number else []
        base, own = (median(column) for column in zip(*times, strict=True))
        print(f"  {name:32} {own:8.0f} {base:16.0f} {median(a / b for a, b in times):6.2f}", flush=True)


def errors() -> None:
    """Print how far gradients are from those in float64, on a short text."""
    process, linear, h, noised, t = given(1, 64)
    exact = nn.Linear(WIDTH, V).double()
    exact.load_state_dict(linear.state_dict())
    h64 = h.detach().double().requires_grad_()
    generic = FusedScoreEntropy()(process.read(exact(h64), noised.state, process.schedule(t)), noised)
    truth = _gradients(generic.total(), h64, exact)
    with torch.autocast("cpu", torch.bfloat16):
        plain = straightforward(linear, h, noised)
    some: dict[str, Any] = {"straightforward, bf16 autocast": plain}
    some["straightforward"] = straightforward(linear, h, noised)
    for half in (False, True):
        name = "ours, bf16 products" if half else "ours, float32"
        some[name] = FusedScoreEntropy().fused(h, linear, process, noised, t, half=half).total()
    for name, total in some.items():
        found = zip(_gradients(total, h, linear), truth, strict=True)
        text = "  ".join(f"{float((a.double() - b).norm() / b.norm()):.1e}" for a, b in found)
        print(f"  {name:32} dh, dW, db off by  {text}")


def _gradients(total: Tensor, h: Tensor, linear: nn.Linear) -> tuple[Tensor, ...]:
    return torch.autograd.grad(total, [h, *linear.parameters()])


def _milliseconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - began)


def _peak(batch: int, name: str) -> None:
    """Print the MiB that one form takes beyond weights, gradients and what the head reads."""
    run = forms(batch)[name]
    started = _status("VmRSS")
    run()
    gradients = (V * (WIDTH + 1) + batch * LENGTH * WIDTH) * 4 / MIB
    print(_status("VmHWM") - started - gradients)


def _status(key: str) -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(key))


def memory() -> None:
    """Print the largest memory of each form."""
    for batch in (1, 4):
        found = {}
        for name in NAMES:
            command = [sys.executable, __file__, "peak", str(batch), name]
            found[name] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for name, extra in found.items():
            print(f"  B = {batch}  {name:32} {extra:7.0f} MiB   1/{found['straightforward'] / extra:.1f}", flush=True)


def main() -> None:
    """Measure time and precision, or memory."""
    if sys.argv[1:2] == ["memory"]:
        memory()
    elif sys.argv[1:2] == ["peak"]:
        _peak(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["errors"]:
        errors()
    else:
        measure(*(int(word) for word in (*sys.argv[1:3], *("1", "3")[len(sys.argv) - 1 :])))


if __name__ == "__main__":
    main()
