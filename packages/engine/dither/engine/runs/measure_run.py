"""Measure the weights of a run with another sampler or evaluation, as a run directory of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from dither.registry.files.limits import read_text

from ..config.load_experiment import Loaded
from ..config.provenance import provenance
from ..files.checksums import MANIFEST
from ..files.metrics_file import MetricsFile
from ..files.per_sample import write_per_sample
from ..sampling.samples import make_samples, write_samples
from ..training.evaluation import SampleSums, evaluate
from ..training.lora import load_merged
from .exports import load_trained
from .loading import build, find_weights
from .run_directory import RunDirectory, experiment_key, now, read_manifest
from .summary import reading_aids
from .system import System

__all__ = ["measure_export", "measure_run"]


def measure_run(
    loaded: Loaded,
    run: Path,
    runs: Path,
    argv: Sequence[str],
    warn: Callable[[str], object],
) -> Path:
    """Evaluate and sample an experiment with the newest weights of `run`; return the directory.

    It is a run directory inside `runs` without checkpoints; the weights must fit the model.
    """
    weights, step = find_weights(run)
    system, _ = build(loaded)
    load_merged(weights, system.model)
    # The sampler of that run may have failed.
    summary: dict[str, Any] = {}
    with suppress(FileNotFoundError):
        summary = json.loads(read_text(run / "summary.json"))
    of_training = {
        "parameters": read_manifest(run).get("parameters"),
        "baselines": summary.get("baselines", {}),
        "steps_per_second": summary.get("steps_per_second"),
        "cpu_seconds_per_step": summary.get("cpu_seconds_per_step"),
    }
    return _measure(
        loaded,
        system.eval(),
        step=step,
        # A comparison may be moved: relative to the new directory inside `runs`.
        source=Path(os.pardir, os.path.relpath(run, runs)),
        runs=runs,
        argv=argv,
        warn=warn,
        of_training=of_training,
    )


def measure_export(export: Path, runs: Path, warn: Callable[[str], object]) -> Path:
    """Evaluate and sample the weights of an export with its own experiment, unless that was done before.

    Returns:
        A run directory without checkpoints, below `runs`.

    Raises:
        Refused: Its data are missing. Damaged: Files do not match their checksums.
    """
    loaded, system, step = load_trained(export)
    # The same weights are measured once for each experiment.
    key = sha256(experiment_key(loaded).encode())
    key.update((export / MANIFEST).read_bytes())
    folder = runs / export.name / f"measured-{key.hexdigest()[:12]}"
    # resolved.toml is written last.
    for file in sorted(folder.glob("*/resolved.toml")):
        return file.parent
    return _measure(
        loaded,
        system,
        step=step,
        source=export.resolve(),
        runs=folder,
        argv=["dither", "compare", str(export)],
        warn=warn,
        of_training={"parameters": {"total": sum(system.parameter_counts().values())}},
    )


def _measure(
    loaded: Loaded,
    system: System,
    *,
    step: int,
    source: Path,
    runs: Path,
    argv: Sequence[str],
    warn: Callable[[str], object],
    of_training: Mapping[str, Any],
) -> Path:
    """Evaluate and sample a system; write a run directory with the facts `of_training`.

    `source` has the weights, absolute or relative to that directory.
    """
    experiment = loaded.experiment
    settings = experiment.evaluate
    batch_size = experiment.evaluation_batch
    per_sample: SampleSums = {}
    metrics = evaluate(
        system,
        samples=settings.samples,
        batch_size=batch_size,
        repeats=settings.repeats,
        seed=experiment.seed,
        per_sample=per_sample.update,
    )
    measured = {"valid": metrics or {}}
    samples = None
    if experiment.sample.count:
        samples = make_samples(
            system,
            experiment.sample.count,
            experiment.sample.seed,
            experiment.sample.batch_size,
            tries=experiment.sample.tries,
            warn=warn,
        )
    if samples is not None:
        measured["sample"] = samples.metrics

    # An attempt that was stopped leaves no directory, so that the next one starts again.
    with RunDirectory.create(runs, experiment.name) as directory:
        manifest = {
            "format": 1,
            "started": now(),
            "argv": list(argv),
            "seed": experiment.seed,
            "weights_of": str(source),
            **provenance(loaded),
            "parameters": of_training.get("parameters"),
        }
        folder = directory.path
        log = MetricsFile(folder / "metrics.jsonl")
        for kind, values in measured.items():
            log.write(step, kind, values)
        log.close()
        write_per_sample(
            folder,
            "valid",
            per_sample,
            step=step,
            seed=experiment.seed,
            batch_size=batch_size,
            repeats=settings.repeats,
        )
        if samples is not None:
            write_samples(samples, folder / "samples" / f"step-{step:08d}")
        directory.write_json(
            "summary.json",
            {
                "name": experiment.name,
                "step": step,
                "steps": experiment.train.steps,
                "headline": list(experiment.task.headline),
                "legend": experiment.task.legend,
                **reading_aids(experiment.task),
                "metrics": measured,
                "baselines": of_training.get("baselines", {}),
                "steps_per_second": of_training.get("steps_per_second"),
                "cpu_seconds_per_step": of_training.get("cpu_seconds_per_step"),
            },
        )
        # Last: resolved.toml marks a complete directory.
        directory.record(loaded, manifest)
    return folder
