"""Everything that a machine with one GPU can tell: whether results are right, and how fast they come.

    python benchmarks/gpu.py [--only steps,syncs] [--minutes 25]
    python benchmarks/gpu.py --write
    python benchmarks/gpu.py --device cpu --quick --out FILE

Sections run in order of importance until the time is up. Each adds its rows to docs/gpu.json as
soon as it has them, so that a machine that is lent for minutes can be used in pieces; `--write`
makes the table of docs/results.md of them. An exception ends its section only, and the exit code
is 1 at the end.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dither.engine.cli.benchmark import bench, peak_flops
from dither.engine.config.load_experiment import Loaded, load_experiment
from dither.engine.runs.loading import build
from dither.engine.training.device import peak_memory
from dither.engine.training.step_cost import synchronize
from dither.engine.training.trainer import Trainer

ROOT = Path(__file__).parent.parent
MODELS = {
    "GET": ("get_region/seed", 64),
    "bubble small": ("bubble_diagram/seed_small", 256),
    "bubble base": ("bubble_diagram/seed_base", 256),
    "LM": ("language_model/seed", 32),
}
"""Experiments of the reference models, and the batch sizes of their steps."""
QUICK = {
    "GET": ("get_region/quick", 2),
    "bubble small": ("bubble_diagram/quick", 4),
    "LM": ("language_model/attention", 2),
}
"""Small experiments in place of them for `--quick`."""
FILE = ROOT / "docs" / "gpu.json"
START = "<!-- gpu: python benchmarks/gpu.py --write -->"
END = "<!-- end of gpu -->"
TOLERANCE = 1e-5
"""Largest relative difference of a loss in float32 from that on the CPU."""
PRECISIONS = ("bfloat16", "float16", "tf32", "float32")
Tensors = dict[str, Tensor]
STEPS = 20
"""Steps between two synchronisations."""


@dataclass(frozen=True)
class Options:
    """What is run, and on which device."""

    device: torch.device
    quick: bool
    folder: Path
    precisions: tuple[str, ...]
    compiled: tuple[bool, ...]
    chosen: tuple[str, ...]
    changes: tuple[str, ...]

    @property
    def models(self) -> dict[str, tuple[str, int]]:
        known = QUICK if self.quick else MODELS
        return {name: case for name, case in known.items() if name in self.chosen}

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def load(self, file: str, batch: int, **train: Any) -> Loaded:
        """Return an experiment on the device with other options of training."""
        values = {"batch_size": batch, "device": str(self.device), **train}
        overrides = [
            f"train.{name}={str(value).lower()}" for name, value in values.items()
        ]
        overrides += self.changes
        return load_experiment(ROOT / "experiments" / f"{file}.toml", overrides)

    def trainer(self, file: str, batch: int, **train: Any) -> Trainer:
        """Return the trainer of an experiment on the device."""
        loaded = self.load(file, batch, **train)
        system, _ = build(loaded, training=True)
        return Trainer(system.train(), loaded.experiment.train, loaded.experiment.seed)


def free() -> None:
    """Free the memory of models that are no longer used, and forget compiled code."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, work on the device included."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def machine(options: Options) -> dict[str, Any]:
    """Device, versions and rates: products of matrices of 8192^2, and a copy of 4 GB."""
    device = options.device
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if options.on_gpu else "cpu",
    }
    if options.on_gpu:
        facts["memory"] = torch.cuda.get_device_properties(device).total_memory
    for precision in PRECISIONS:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        facts[f"{precision} FLOP/s"] = peak_flops(device, precision)
    torch.set_float32_matmul_precision("highest")

    block = torch.empty(2**30 if options.on_gpu else 2**24, device=device)
    copy = torch.empty_like(block)
    least = min(seconds_of(lambda: copy.copy_(block), device) for _ in range(5))
    facts["copied bytes/s"] = 2 * block.nbytes / least
    return facts


def correctness(options: Options) -> Iterator[tuple[str, Any]]:
    """Losses and gradients in float32 on the device and on the CPU, for equal weights and noise."""
    for name, (file, _) in options.models.items():
        loaded = options.load(file, 2, precision="float32", compile=False)
        system, _ = build(loaded, training=True)
        system.eval().to("cpu")
        randomize(system.model)
        clean = system.task.batch("train", [0, 1])
        torch.manual_seed(0)
        prepared = system.prepare(clean)
        expected, gradients = loss_and_gradients(system, prepared)

        system.to(options.device)
        moved = tuple(part.to(options.device) for part in prepared)
        got, found = loss_and_gradients(system, moved)
        distance = torch.stack(
            [(a.cpu() - b).norm() for a, b in zip(found, gradients, strict=True)]
        )
        norm = torch.stack([b.norm() for b in gradients]).norm()
        row = {
            "loss on the CPU": expected,
            "loss": got,
            "relative difference": abs(got - expected) / abs(expected),
            "relative difference of gradients": float(distance.norm() / norm),
        }
        yield name, row
        del system
        free()


def randomize(model: torch.nn.Module) -> None:
    """Replace weights of 0, with which a model ignores its blocks."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)


def loss_and_gradients(system: Any, prepared: Any) -> tuple[float, list[Tensor]]:
    """Return loss and gradients of a prepared batch."""
    system.zero_grad()
    loss = system(*prepared).mean()
    loss.backward()
    gradients = [
        p.grad.clone() for p in system.model.parameters() if p.grad is not None
    ]
    return float(loss.detach()), gradients


def resumption(options: Options) -> Iterator[tuple[str, Any]]:
    """Whether two runs are equal to the last bit, and a run that is interrupted in the middle, too."""
    for compiled, (name, (file, batch)) in product(
        options.compiled, options.models.items()
    ):
        precision = options.precisions[0]
        arguments = {"precision": precision, "compile": compiled}
        make = lambda: options.trainer(file, batch, **arguments)  # noqa: B023, E731

        expected = weights_after(make(), 6)
        again = weights_after(make(), 6)
        free()

        first = make()
        weights_after(first, 3)
        checkpoint = saved(first)
        del first
        free()
        second = make()
        restore(second, checkpoint)
        resumed = weights_after(second, 3)
        del second
        free()
        row = {
            "two runs": all(map(torch.equal, expected, again)),
            "resumed": all(map(torch.equal, expected, resumed)),
        }
        yield f"{name}{', compiled' if compiled else ''}", row


def weights_after(trainer: Trainer, count: int) -> list[Tensor]:
    """Make steps and return the weights on the CPU."""
    for _ in range(count):
        trainer.advance()
    return [parameter.detach().cpu().clone() for parameter in trainer.parameters]


def saved(trainer: Trainer) -> tuple[Tensors, Tensors, Tensors, dict[str, Any]]:
    """Return weights, average, and the state of a trainer, on the CPU."""
    state, plain = trainer.state()
    average = {}
    if trainer.average is not None:
        average = trainer.average.module.state_dict()
    weights = trainer.system.model.state_dict()
    return on_cpu(weights), on_cpu(average), on_cpu(state), plain


def restore(
    trainer: Trainer, checkpoint: tuple[Tensors, Tensors, Tensors, dict[str, Any]]
) -> None:
    """Continue from what `saved` returned."""
    weights, average, state, plain = checkpoint
    trainer.system.model.load_state_dict(weights)
    if trainer.average is not None:
        trainer.average.module.load_state_dict(average)
    trainer.load_state(state, plain)


def on_cpu(tensors: Tensors) -> Tensors:
    """Return copies of tensors."""
    return {name: value.detach().cpu().clone() for name, value in tensors.items()}


def kernels(options: Options) -> Iterator[tuple[str, Any]]:
    """The kernels in which a step spends its time, and those of attention, by precision."""
    cases = product(options.compiled, options.models.items())
    precision = options.precisions[0]
    for compiled, (name, (file, batch)) in cases:
        trainer = options.trainer(file, batch, precision=precision, compile=compiled)
        for _ in range(3):
            trainer.advance()
        activities = [ProfilerActivity.CPU]
        if options.on_gpu:
            activities = [ProfilerActivity.CUDA]
        with profile(activities=activities) as profiled:
            trainer.advance()
            synchronize(options.device)
        times = {
            event.key: event.self_device_time_total
            if options.on_gpu
            else event.self_cpu_time_total
            for event in profiled.key_averages()
        }
        launches = sum(event.count for event in profiled.key_averages())
        total = sum(times.values())
        largest = sorted(times, key=lambda key: -times[key])
        attention = [key for key in largest if is_attention(key)]
        row = {
            "attention": [key[:90] for key in attention],
            "kernels of a step": launches,
            "microseconds": total,
            "largest": {key[:90]: times[key] / total for key in largest[:16]},
        }
        yield f"{name}, {precision}{', compiled' if compiled else ''}", row
        del trainer, profiled
        free()


def is_attention(kernel: str) -> bool:
    """Return whether the name of a kernel or operation is one of fused attention."""
    return any(word in kernel.lower() for word in ("flash", "fmha", "sdpa", "sdp_"))


def syncs(options: Options) -> Iterator[tuple[str, Any]]:
    """Places at which a step waits for the device, each with the number of waits."""
    if not options.on_gpu:
        return
    for name, (file, batch) in options.models.items():
        trainer = options.trainer(file, batch, precision="bfloat16", compile=False)
        for _ in range(3):
            trainer.advance()
        synchronize(options.device)
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                trainer.advance()
        torch.cuda.set_sync_debug_mode("default")
        places: dict[str, int] = {}
        for warning in caught:
            if "synchroniz" in str(warning.message):
                place = f"{Path(warning.filename).name}:{warning.lineno}"
                places[place] = places.get(place, 0) + 1
        yield name, places
        del trainer
        free()


def steps(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Training steps of each model, by precision, with and without the compiler."""
    for precision, mode in product(options.precisions, options.compiled):
        for name, (file, batch) in options.models.items():
            label = f"{name}, {precision}{', compiled' if mode else ''}"
            loaded = options.load(file, batch, precision=precision, compile=mode)
            measured = bench(loaded, 2 if options.quick else STEPS, 3)
            kept = ("step_seconds", "step_seconds_least", "step_seconds_most")
            kept += ("first_step_seconds", "samples_per_second", "positions_per_second")
            kept += ("batch_size", "mfu", "flops_per_step", "memory", "phases")
            yield label, {key: measured[key] for key in kept}
            free()


def sampling(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Samples of each model with its own sampler, and of the language model also with the other one."""
    counts = {"GET": 8, "bubble small": 1000, "bubble base": 1000, "LM": 8}
    for name, (file, _) in options.models.items():
        count = 2 if options.quick else counts[name]
        precision = "bfloat16" if options.on_gpu else "float32"
        loaded = options.load(file, count, precision=precision)
        system, _ = build(loaded)
        randomize(system.model)
        system.eval()
        samplers: dict[str, Any] = {"own": None}
        if name == "LM":
            samplers["ancestral"] = {
                "use": "ancestral",
                "steps": 8 if options.quick else 128,
            }
        for sampler, value in samplers.items():
            draw = lambda: system.sample(count, batch_size=count, sampler=value)  # noqa: B023, E731
            draw()
            taken = [
                seconds_of(draw, options.device)
                for _ in range(1 if options.quick else 3)
            ]
            yield (
                f"{name}, {sampler}",
                {
                    "samples": count,
                    "seconds": statistics.median(taken),
                    "samples_per_second": count / statistics.median(taken),
                    "peak_cuda": torch.cuda.max_memory_allocated()
                    if options.on_gpu
                    else None,
                    "peak_rss": peak_memory(),
                },
            )
        del system
        free()


def runs(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Whole runs of the command line: a process, NCCL with one rank, FSDP2 with one rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "1"]
    plain = [sys.executable]
    few = ["train.steps=60", "train.checkpoint_every=30", "evaluate.samples=64"]
    few += ["sample.count=2", f"train.device={options.device}", "train.compile=false"]
    ways = {
        "one process": (plain, []),
        "torchrun, ddp": (launcher, ["train.strategy=ddp"]),
        "torchrun, fsdp": (launcher, ["train.strategy=fsdp"]),
    }
    for way, (start, more) in ways.items():
        command = [*start, "-m", "experiments.run"]
        command += ["run", "experiments/language_model/attention.toml"]
        command += ["--runs", str(options.folder / way.replace(", ", "-"))]
        for change in (*few, *more):
            command += ["--set", change]
        began = time.perf_counter()
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        found = sorted((options.folder / way.replace(", ", "-")).rglob("summary.json"))
        summary = json.loads(found[-1].read_text()) if found else {}
        yield (
            way,
            {
                "exit code": done.returncode,
                "seconds": time.perf_counter() - began,
                "steps per second": summary.get("steps_per_second"),
                "loss": summary.get("metrics", {}).get("valid", {}).get("loss"),
                "errors": ""
                if done.returncode == 0
                else (done.stdout + done.stderr)[-3000:],
            },
        )


SECTIONS: dict[str, Callable[[Options], Any]] = {
    "machine": machine,
    "correctness": correctness,
    "syncs": syncs,
    "resumption": resumption,
    "kernels": kernels,
    "runs": runs,
    "sampling": sampling,
    "steps": steps,
}


def measure(
    section: Callable[[Options], Any], options: Options, end: float
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a section so far, each time that there is a new one; its exception at the last."""
    rows: dict[str, Any] = {}
    try:
        found = section(options)
        for name, value in found.items() if isinstance(found, dict) else found:
            rows[name] = value
            yield rows
            if time.monotonic() > end:
                rows["stopped"] = "time is up"
                break
    except Exception as error:
        rows["error"] = "".join(traceback.format_exception(error))[-3000:]
    yield rows


def failures(results: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong: exceptions, runs that failed, and losses that differ from those of the CPU."""
    for section, rows in results.items():
        if "error" in rows:
            yield f"{section}: {rows['error']}"
    for name, row in rows_of(results, "correctness"):
        if not row["relative difference"] < TOLERANCE:
            yield f"{name}: the loss differs from that of the CPU: {row}"
        if not row["relative difference of gradients"] < 10 * TOLERANCE:
            yield f"{name}: gradients differ from those of the CPU: {row}"
    yield from failed_runs(dict(rows_of(results, "runs")))
    # On a GPU some kernels add in no fixed order.
    for name, row in rows_of(results, "resumption"):
        if results["machine"]["device"] == "cpu" and not all(row.values()):
            yield f"{name}: not equal to the last bit: {row}"


def failed_runs(runs: dict[str, Any]) -> Iterator[str]:
    """Yield runs that failed, and that their losses differ."""
    for name, row in runs.items():
        if row["exit code"] != 0:
            yield f"{name}: {row['errors']}"
    losses = [row["loss"] or math.nan for row in runs.values()]
    if not all(abs(loss - losses[0]) < 1e-3 for loss in losses):
        yield f"runs differ: {losses}"


def rows_of(results: dict[str, Any], section: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a section, without notes."""
    for name, row in results.get(section, {}).items():
        if isinstance(row, dict):
            yield name, row


def table(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of training steps."""
    facts = results["machine"]
    yield (
        f"{facts['device']}, torch {facts['torch']}; a bfloat16 product of 8192 x 8192 matrices reaches "
        f"{facts['bfloat16 FLOP/s'] / 1e12:.0f} TFLOP/s, a copy {facts['copied bytes/s'] / 1e12:.1f} TB/s."
    )
    yield ""
    yield "| training step | batch | ms | samples/s | MFU | peak memory, GB |"
    yield "|---|---|---|---|---|---|"
    for name, row in rows_of(results, "steps"):
        memory = row["memory"].get("peak_cuda", row["memory"]["peak_rss"])
        cells = (
            name,
            str(row["batch_size"]),
            f"{1e3 * row['step_seconds']:.1f}",
            f"{row['samples_per_second']:,.0f}",
            f"{row['mfu']:.1%}",
            f"{memory / 1e9:.1f}",
        )
        yield f"| {' | '.join(cells)} |"


def write(results: dict[str, Any]) -> None:
    """Replace the table in docs/results.md."""
    path = ROOT / "docs" / "results.md"
    before, _, rest = path.read_text().partition(START)
    after = rest.partition(END)[2]
    lines = "\n".join(table(results))
    path.write_text(f"{before}{START}\n\n{lines}\n\n{END}{after}")


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small models, few steps")
    parser.add_argument(
        "--precisions", help="with commas; the first is that of profiles"
    )
    parser.add_argument("--compile", help="true, false or both; on a GPU both")
    parser.add_argument(
        "--only", default=",".join(SECTIONS), help="sections, with commas"
    )
    parser.add_argument("--models", default=",".join(MODELS), help="with commas")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--write", action="store_true", help="the table, without runs")
    return parser.parse_args()


def main() -> None:
    """Run the sections, and add their rows to the file."""
    given = arguments()
    results: dict[str, Any] = {}
    if given.out.exists():
        results = json.loads(given.out.read_text())
    if given.write:
        write(results)
        return

    on_gpu = given.device.startswith("cuda")
    precisions = given.precisions or (",".join(PRECISIONS) if on_gpu else "float32")
    compiled = given.compile or ("true,false" if on_gpu else "false")
    folder = TemporaryDirectory(prefix="dither-gpu-")
    options = Options(
        torch.device(given.device),
        given.quick,
        Path(folder.name),
        tuple(precisions.split(",")),
        tuple(word == "true" for word in compiled.split(",")),
        tuple(given.models.split(",")),
        tuple(given.set),
    )
    end = time.monotonic() + 60 * given.minutes
    new: dict[str, Any] = {}
    for name in given.only.split(","):
        began = time.monotonic()
        new[name] = {"stopped": "time is up"}
        if began < end:
            for rows in measure(SECTIONS[name], options, end):
                new[name] = rows
                merged = results | {name: results.get(name, {}) | rows}
                given.out.write_text(json.dumps(merged, indent=1) + "\n")
            results = merged
        free()
        print(f"== {name} ({time.monotonic() - began:.0f} s)")
        print(json.dumps(new[name], indent=1), flush=True)
    folder.cleanup()
    if problems := list(failures(results | new)):
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
