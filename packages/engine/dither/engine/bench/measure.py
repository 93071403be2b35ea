"""Measure the training step of an experiment."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ..environment import environment, peak_memory
from ..experiment import Loaded
from ..loading import build
from ..log import Log
from ..machine import size
from ..optimizer_state import flatten
from ..trainer import Trainer
from .flops import step_flops
from .peak import matmul_peak, wait
from .phases import PHASES, marked

__all__ = ["bench", "show_bench"]


def bench(loaded: Loaded, steps: int = 20, repeats: int = 3, warmup: int = 3) -> dict[str, Any]:
    """Measure the training step of an experiment; nothing is saved.

    The time of a step is the median over repeats of so many steps each, with nothing but the loop running. Then the
    same number of steps is taken apart, where each phase is the median over the steps.

    Args:
        loaded: The experiment.
        steps: Steps in a repeat.
        repeats: Repeats.
        warmup: Steps before.

    Returns:
        Tables of plain numbers: seconds, rates, memory in bytes, flops.
    """
    train = loaded.experiment.train
    system, device = build(loaded, training=True)
    trainer = Trainer(system, train, loaded.experiment.seed)
    first = _timed(trainer.advance, device)
    for _ in range(warmup):
        trainer.advance()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    whole = [_timed(lambda: [trainer.advance() for _ in range(steps)], device) / steps for _ in range(repeats)]
    with marked(trainer) as step:
        parts = [step() for _ in range(steps)]
    seconds = {phase: statistics.median(part[phase] for part in parts) for phase in PHASES}
    seconds["logging"] = _logging(trainer, train.log_every, repeats)
    memory = _memory(trainer)
    median = statistics.median(whole)
    rows = trainer.rows(trainer.step)
    result = {
        "name": loaded.experiment.name,
        "environment": environment(device),
        "batch_size": train.batch_size,
        "steps": steps,
        "repeats": repeats,
        "first_step_seconds": first,
        "step_seconds": median,
        "step_seconds_least": min(whole),
        "step_seconds_most": max(whole),
        "phases": seconds,
        "samples_per_second": train.batch_size / median,
        "positions_per_second": int(system.task.batch("train", rows).valid.sum()) / median,
        "memory": memory,
    }
    return result | _use(trainer, rows, median)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def _logging(trainer: Trainer, every: int, repeats: int) -> float:
    """Return the seconds that logging takes per step, with the files and the display that a run has."""
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder), Console(quiet=True), 10**9)
        spent = []
        for number in range(1, repeats + 4):
            trainer.advance()
            wait(trainer.device)
            began = time.perf_counter()
            for step in range(every):
                log.display.step(number * every + step)
            log.figures(number * every, "train", trainer.read())
            spent.append((time.perf_counter() - began) / every)
        log.close()
    return statistics.median(spent[1:])  # the first one opens files


def _memory(trainer: Trainer) -> dict[str, int]:
    """Return bytes: what the weights, the optimizer and the average hold, and the peaks so far."""
    tensors, _ = flatten(trainer.optimizer)

    def held(items: Any) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in items)

    memory = {"weights": held(trainer.parameters), "optimizer": held(tensors.values()), "peak_rss": peak_memory()}
    if trainer.average is not None:
        memory["average"] = held(trainer.average.module.parameters())
    if trainer.device.type == "cuda":
        memory["peak_cuda"] = torch.cuda.max_memory_allocated(trainer.device)
        memory["reserved_cuda"] = torch.cuda.max_memory_reserved(trainer.device)
    return memory


def _use(trainer: Trainer, rows: list[int], seconds: float) -> dict[str, float]:
    """Return the operations of a step and their share of what the machine can do in the same number format."""
    dtype = torch.bfloat16 if trainer.system.precision == "bfloat16" else torch.float32
    share = max(1, len(rows) // trainer.train.accumulate)
    flops = step_flops(trainer.system, rows[:share], trainer.device) * len(rows) / share
    peak = matmul_peak(trainer.device, dtype)
    rate = flops / seconds
    return {"step_flops": flops, "flops_per_second": rate, "matmul_peak": peak, "utilisation": rate / peak}


def show_bench(console: Console, result: dict[str, Any]) -> None:
    """Print what was measured."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, side in (("of a step", "left"), ("ms", "right"), ("share", "right")):
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    whole = result["step_seconds"]
    for name, seconds in result["phases"].items():
        table.add_row(name, f"{seconds * 1e3:.3f}", f"{seconds / whole:.1%}")
    table.add_row("step", f"{whole * 1e3:.3f}", "")
    console.print(table)
    least, most = result["step_seconds_least"], result["step_seconds_most"]
    memory = ", ".join(f"{name} {size(count)}" for name, count in result["memory"].items())
    words = result["environment"]
    for line in (
        f"step {least * 1e3:.3f} to {most * 1e3:.3f} ms over {result['repeats']} times {result['steps']} steps; "
        f"the first one took {result['first_step_seconds'] * 1e3:.0f} ms",
        f"{result['samples_per_second']:,.1f} samples/s, {result['positions_per_second']:,.0f} valid positions/s",
        f"memory: {memory}",
        f"{result['step_flops'] / 1e9:,.2f} GFLOP a step, {result['flops_per_second'] / 1e9:,.1f} GFLOP/s: "
        f"{result['utilisation']:.1%} of the {result['matmul_peak'] / 1e9:,.1f} of a matrix product here",
        f"{words['device']}, {words['threads']} threads, torch {words['torch']}",
    ):
        console.print(line, highlight=False, markup=False)
