"""Measure the training step of an experiment."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console

from ..config.component_errors import annotate_build_errors
from ..config.load_experiment import Loaded
from ..config.machine_memory import size
from ..optimizers.optimizer_state import flatten
from ..runs.loading import build
from ..runs.progress import table
from ..training.data_order import DEFAULT_WORKERS
from ..training.device import HALF, environment, peak_memory
from ..training.step_cost import step_flops, synchronize, timed
from ..training.trainer import Trainer

__all__ = ["PHASES", "bench", "show_bench", "timed_phases"]


WARMUP = 3
"""Steps before any is timed."""
MAX_DATA = 0.05
"""Share of a step for data above which `advice` names a remedy."""
LOW_MFU = 0.3
"""Share of the peak rate below which `advice` names a remedy."""
MAX_OPTIMIZER = 0.25
"""Share of a step for the optimizer above which `advice` names a remedy."""
SLOW_PRODUCT = 0.02
"""Seconds of a matrix product of which no larger one is timed."""


def bench(loaded: Loaded, steps: int = 20, repeats: int = 3) -> dict[str, Any]:
    """Measure the training step of an experiment: seconds, rates and memory in bytes.

    Nothing is saved. The time of a step is the median over repeats. Then the same number of steps
    is timed by phase, with the median over the steps.
    """
    train = loaded.experiment.train
    system, device = build(loaded, training=True)
    with annotate_build_errors(loaded.plugins.catalog):
        trainer = Trainer(system, train, loaded.experiment.seed)
    first = timed(trainer.advance, device)
    for _ in range(WARMUP):
        trainer.advance()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def several_steps() -> None:
        for _ in range(steps):
            trainer.advance()

    # Phases are timed apart: waiting for the device after each one slows a step down.
    whole = [timed(several_steps, device) / steps for _ in range(repeats)]
    with timed_phases(trainer) as step:
        parts = [step() for _ in range(steps)]
    median = statistics.median(whole)
    phases = {}
    for phase in PHASES:
        phases[phase] = statistics.median(part[phase] for part in parts)
    rows = trainer.batches.rows(trainer.step)
    flops = step_flops(trainer)
    peak = peak_flops(device, system.precision)
    return {
        "name": loaded.experiment.name,
        "environment": environment(device, precision=system.precision),
        "batch_size": train.batch_size,
        "steps": steps,
        "repeats": repeats,
        "first_step_seconds": first,
        "step_seconds": median,
        "step_seconds_least": min(whole),
        "step_seconds_most": max(whole),
        "phases": phases,
        "shares": shares(phases),
        "samples_per_second": train.batch_size / median,
        "positions_per_second": int(system.task.batch("train", rows).valid.sum())
        / median,
        "memory": _memory(trainer),
        "flops_per_step": flops,
        "peak_flops": peak,
        "mfu": flops / median / peak,
    }


def peak_flops(device: torch.device, precision: str) -> float:
    """Return the measured rate of a large matrix product, in operations per second."""
    # Large enough to reach the peak.
    largest = 8192 if device.type == "cuda" else 1024
    dtype = HALF.get(precision, torch.float32)
    size = 256
    seconds = _product_seconds(size, device, dtype)
    # A CPU that emulates float16 takes ten seconds for the largest.
    while size < largest and seconds < SLOW_PRODUCT:
        size *= 2
        seconds = _product_seconds(size, device, dtype)
    return 2 * size**3 / seconds


def _product_seconds(size: int, device: torch.device, dtype: torch.dtype) -> float:
    a = torch.randn(size, size, device=device, dtype=dtype)
    # Other work of the machine can only slow a product down.
    return min(timed(lambda: a @ a, device) for _ in range(5))


def advice(result: dict[str, Any]) -> Iterator[str]:
    """Yield what to change, from the result of `bench`."""
    share = result["shares"]
    if share["data"] > MAX_DATA:
        more = f"raise train.workers, for example to {2 * DEFAULT_WORKERS}"
        yield f"data takes {share['data']:.0%} of a step: {more}"
    if result["mfu"] < LOW_MFU:
        few = "many small kernels: a larger train.batch_size, or train.compile"
        yield f"{result['mfu']:.0%} of the peak: {few}"
    if share["optimizer"] > MAX_OPTIMIZER:
        yield f"the optimizer takes {share['optimizer']:.0%} of a step: a larger train.batch_size"


def _memory(trainer: Trainer) -> dict[str, int]:
    """Return the bytes of weights, optimizer state and EMA, and the peak memory so far."""
    tensors, _ = flatten(trainer.optimizer)

    def held(items: Any) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in items)

    memory = {
        "weights": held(trainer.parameters),
        "optimizer": held(tensors.values()),
        "peak_rss": peak_memory(),
    }
    if trainer.average is not None:
        memory["average"] = held(trainer.average.module.parameters())
    if trainer.device.type == "cuda":
        memory["peak_cuda"] = torch.cuda.max_memory_allocated(trainer.device)
    return memory


def show_bench(console: Console, result: dict[str, Any]) -> None:
    """Print the result of `bench`."""
    page = table("phase", "ms", "share", right=("ms", "share"))
    for name, seconds in result["phases"].items():
        page.add_row(name, f"{seconds * 1e3:.3f}", f"{result['shares'][name]:.1%}")
    phases = sum(result["phases"].values())
    page.add_row("phases, one by one", f"{phases * 1e3:.3f}", "100.0%")
    page.add_row("step as a whole", f"{result['step_seconds'] * 1e3:.3f}", "")
    console.print(page)

    fastest = result["step_seconds_least"] * 1e3
    slowest = result["step_seconds_most"] * 1e3
    first = result["first_step_seconds"] * 1e3
    memory = ", ".join(
        f"{name} {size(count)}" for name, count in result["memory"].items()
    )
    environment = result["environment"]
    lines = [
        f"step {fastest:.3f} to {slowest:.3f} ms in {result['repeats']} x {result['steps']} steps; "
        f"the first one {first:.0f} ms",
        f"{result['samples_per_second']:,.1f} samples/s, "
        f"{result['positions_per_second']:,.0f} valid positions/s",
        f"memory: {memory}",
        f"MFU {result['mfu']:.1%}: {result['flops_per_step'] / 1e9:,.2f} GFLOP a step; "
        f"a matrix product reaches {result['peak_flops'] / 1e9:,.1f} GFLOP/s",
    ]
    lines += [f"to do: {line}" for line in advice(result)]
    lines.append(
        f"{environment['device']}, {environment['threads']} threads, torch {environment['torch']}"
    )
    for line in lines:
        console.print(line, highlight=False, markup=False)


def shares(phases: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each phase in all, rounded to a thousandth such that they add up to 1.

    Phases are timed apart from whole steps, so that these are no measure of them.
    """
    total = sum(phases.values()) or 1.0
    exact = {name: 1000 * seconds / total for name, seconds in phases.items()}
    rounded = {name: math.floor(value) for name, value in exact.items()}
    # The largest remainders are rounded up.
    by_remainder = sorted(exact, key=lambda name: rounded[name] - exact[name])
    for name in by_remainder[: round(sum(exact.values())) - sum(rounded.values())]:
        rounded[name] += 1
    return {name: thousandths / 1000 for name, thousandths in rounded.items()}


PHASES = ("data", "forward", "backward", "optimizer")
"""Phases of a step: forward includes noising and the loss; optimizer includes clipping, the NaN
check and EMA."""


@contextmanager
def timed_phases(trainer: Trainer) -> Iterator[Callable[[], dict[str, float]]]:
    """Yield a function that runs one step, waits for the device after each phase, and returns their seconds."""
    moments: list[tuple[str, float]] = []

    def mark(phase: str) -> None:
        synchronize(trainer.device)
        moments.append((phase, time.perf_counter()))

    system = trainer.system
    parallel = trainer.parallel
    prepare = system.prepare
    gradients = parallel.gradients

    def marked(call: Callable[..., Any], phase: str) -> Any:
        def call_after_mark(*arguments: Any) -> Any:
            mark(phase)
            return call(*arguments)

        return call_after_mark

    handles = [
        system.register_forward_pre_hook(
            # With accumulation, a forward pass ends the backward pass of the batch before.
            lambda *_: mark("backward" if moments[-1][0] == "forward" else "forward")
        ),
        system.register_forward_hook(lambda *_: mark("forward")),
    ]
    system.prepare = marked(prepare, "data")  # type: ignore[method-assign]  # the batch is on the device
    parallel.gradients = marked(gradients, "backward")  # type: ignore[method-assign]

    def step() -> dict[str, float]:
        moments.clear()
        mark("begin")
        trainer.advance()
        mark("optimizer")
        seconds = dict.fromkeys(PHASES, 0.0)
        for (_, before), (phase, after) in pairwise(moments):
            seconds[phase] += after - before
        return seconds

    try:
        yield step
    finally:
        # Without these attributes of the instances, the methods are visible again.
        del system.prepare, parallel.gradients
        for handle in handles:
            handle.remove()
