"""Every ratio and table of docs/results.md in one run.

    python benchmarks/all.py [--minutes 10]

Each ratio is paired: a rival and dither run one step in turn, each in its own process with one
thread, at the same precision, allocator and attention kernel. Printed are medians of CPU time and
of the ratios, with the bootstrap 95 % interval of these. Other work on the machine changes both
alike; the load is printed first.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO, cast

import numpy as np
import peers
import rivals
import sampling
import torch
from alternate import Step, alternate, serve

from dither.engine.training.device import keep_freed_memory

ROOT = Path(__file__).parent.parent
HALF = "train.precision=bfloat16"
FULL = "train.precision=float32"
SEPARATE = "separate"
"""Compute each masked region by itself."""
PAIRS = {
    "GET float32, each region": ("regions", FULL, SEPARATE),
    "GET bf16, each region": ("regions", HALF, SEPARATE),
    "GET bf16, identical regions once": ("regions", HALF, ""),
    "bubble small, B = 64": ("bubbles", f"{FULL} train.batch_size=64", ""),
    "bubble small, B = 16": ("bubbles", f"{FULL} train.batch_size=16", ""),
    "bubble small, B = 4": ("bubbles", f"{FULL} train.batch_size=4", ""),
    "bubble small, bf16, B = 64": ("bubbles", f"{HALF} train.batch_size=64", ""),
    "1 layer, width 32, B = 4": (
        "bubbles",
        f"{FULL} train.batch_size=4 model.depth=1 model.width=32",
        "",
    ),
    "LM bf16, B = 1": ("text", f"{HALF} train.batch_size=1", ""),
    "LM bf16, B = 4": ("text", f"{HALF} train.batch_size=4", ""),
}
"""Task, options of both, options of dither."""


def sampled(step: Callable[[float], object]) -> Step:
    """Return sampling steps at all of `TIMES` under torch.no_grad, as one step."""
    keep_freed_memory()

    @torch.no_grad()
    def all_times() -> None:
        for t in sampling.TIMES:
            step(t)

    return all_times


def steps() -> dict[str, tuple[Callable[[], Step], Callable[[], Step]]]:
    """Return the steps of rival and dither of each row."""
    rows: dict[str, tuple[Callable[[], Step], Callable[[], Step]]] = {}
    for name, (task, both, own) in PAIRS.items():
        rows[name] = (
            partial(rivals.rival, task, both),
            partial(rivals.engine, task, f"{both} {own}"),
        )
    for precision in ("float32", "bfloat16"):
        case = partial(sampling.ancestral, "uniform", "score", precision)
        euler = partial(sampling.straightforward, precision)
        rows[f"{len(sampling.TIMES)} sampling steps, {precision}"] = (
            lambda euler=euler: sampled(euler()),
            lambda case=case: sampled(case()),
        )
    rows["last block of 16, whole sample and KV cache, 5 times"] = (
        lambda: sampled(sampling.last_block(cached=False)),
        lambda: sampled(sampling.last_block(cached=True)),
    )
    return rows | peers.PEERS


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, 1), (0.025, 0.975))
    return float(low), float(high)


def start_up() -> Iterator[tuple[str, float]]:
    """Yield CPU seconds of commands, those of a run to its first line of metrics; modules are compiled, as by pip."""
    quick = [
        f"experiments/{task}/quick.toml"
        for task in ("bubble_diagram", "get_region", "language_model")
    ]
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": "/tmp/bench/modules",
    }
    few = ["--set", "train.log_every=1", "--runs", "/tmp/bench"]
    verbs = (
        ["list"],
        *(["validate", file] for file in quick),
        *(["run", file, *few] for file in quick),
    )
    for words in (
        ["-c", "import torch"],
        *(["-m", "experiments.run", *verb] for verb in verbs),
    ):
        for _ in range(2):  # the first compiles
            command = [sys.executable, *words]
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            next(
                (
                    line
                    for line in cast(IO[str], process.stdout)
                    if line.startswith("step ")
                ),
                None,
            )
            os.kill(process.pid, signal.SIGKILL)
            usage = os.wait4(process.pid, 0)[2]
        yield " ".join(words[1:4]), usage.ru_utime + usage.ru_stime


MODELS = {
    "GET seed": (128_767_003, 901 * 16),
    "LM seed": (79_245_137, 1024 * 32),
    "1B": (1_000_000_000, 2048 * 16),
}
"""Parameters, and tokens of a rank in a step."""
PEAK = 989e12 * 0.45
LINKS = {8: 450e9, 64: 50e9, 512: 50e9}
"""Assumed: H100 at 45 % MFU in bf16; bytes/s of a GPU over NVLink in one machine, over 400 Gb/s
between machines."""


def traffic(parameters: int, ranks: int, gather_bytes: int = 4) -> tuple[float, float]:
    """Return the bytes that a rank sends in a step under DDP and under FSDP2; equal to a count over the ring's chunks.

    DDP all-reduces float32 gradients in a ring; FSDP2 gathers weights twice and reduce-scatters
    gradients.
    """
    share = (ranks - 1) / ranks * parameters
    return 2 * share * 4, share * (2 * gather_bytes + 4)


def many_machines() -> None:
    """Print the traffic of a step and the time it takes relative to computation, with which it overlaps."""
    for name, (parameters, tokens) in MODELS.items():
        for ranks, speed in LINKS.items():
            ddp, fsdp = traffic(parameters, ranks)
            half = traffic(parameters, ranks, 2)[1]
            seconds = 6 * parameters * tokens / PEAK
            cells = (
                f"{b / 1e9:.2f} GB {b / speed / seconds:.0%}" for b in (ddp, fsdp, half)
            )
            print(f"  {name:9} {ranks:4} GPUs   " + "   ".join(cells))


def main() -> None:
    """Print all rows."""
    torch.set_num_threads(1)
    rows = steps()
    if serve(
        {f"{name} {side}": pair[side] for name, pair in rows.items() for side in (0, 1)}
    ):
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", default="", help="rows whose names contain this text")
    options = parser.parse_args()
    print(
        f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; CPU ms, one thread"
    )
    chosen = [name for name in rows if options.only in name]
    if not getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)():
        print("bfloat16 left out: this CPU has no instructions for it")
        chosen = [
            name for name in chosen if "bf16" not in name and "bfloat16" not in name
        ]
    deadline = time.monotonic() + 60 * options.minutes
    for number, name in enumerate(chosen):
        left = (deadline - time.monotonic()) / (len(chosen) - number)
        times, peaks = alternate([f"{name} 0", f"{name} 1"], left)
        rival, ours = times.values()
        ratios = [a / b for a, b in zip(rival, ours, strict=True)]
        low, high = interval(ratios)
        counts = f"[{low:.2f}, {high:.2f}], {len(ratios)} pairs"
        memory = "{:.0f}, {:.0f} MB".format(*peaks.values())
        print(
            f"{name:40} {median(rival):8.1f} {median(ours):8.1f} {median(ratios):6.2f} {counts}, {memory}",
            flush=True,
        )
    if not options.only:
        for name, seconds in start_up():
            print(f"{name:60} {seconds:5.2f} CPU s", flush=True)
        print(
            "traffic per step and rank, share of the computation: DDP, FSDP2, FSDP2 gathering bf16"
        )
        many_machines()
    if not torch.cuda.is_available():
        print("no GPU: nothing was run on one")
        return
    for task in ("get_region/seed", "language_model/seed", "bubble_diagram/seed_small"):
        command = [
            sys.executable,
            "-m",
            "experiments.run",
            "bench",
            f"experiments/{task}.toml",
            "--set",
            HALF,
        ]
        subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
