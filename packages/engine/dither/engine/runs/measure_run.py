"""Measure the weights of a run with another sampler or evaluation, as a run directory of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dither.registry.files.limits import read_text

from ..checkpoints.checkpoint import weights_of
from ..config.load_experiment import Loaded
from ..config.provenance import provenance
from ..files.metrics_file import MetricsFile
from ..files.per_sample import write_per_sample
from ..sampling.samples import make_samples, write_samples
from ..training.evaluation import SampleSums, evaluate
from ..training.lora import load_merged
from .loading import build, find_checkpoint
from .run_directory import RunDirectory, read_manifest
from .summary import reading_aids

__all__ = ["measure_run"]


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
    experiment = loaded.experiment
    settings = experiment.evaluate
    checkpoint = find_checkpoint(run)
    step = int(checkpoint.name.removeprefix("step-"))
    system, _ = build(loaded)
    load_merged(weights_of(checkpoint), system.model)
    system.eval()

    batch_size = settings.batch_size or experiment.train.batch_size
    per_sample: SampleSums = {}
    metrics = evaluate(
        system,
        samples=settings.samples,
        batch_size=batch_size,
        repeats=settings.repeats,
        seed=experiment.seed,
        per_sample=per_sample.update,
    )
    figures = {"valid": metrics or {}}
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
        figures["sample"] = samples.metrics

    # An attempt that was stopped leaves no directory, so that the next one starts again.
    trained = read_manifest(run)
    summary: dict[str, Any] = {}
    # The sampler of that run may have failed.
    with suppress(FileNotFoundError):
        summary = json.loads(read_text(run / "summary.json"))
    with RunDirectory.create(runs, experiment.name) as directory:
        manifest = {
            "format": 1,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "argv": list(argv),
            "seed": experiment.seed,
            "weights_of": str(run),
            **provenance(loaded),
            "parameters": trained.get("parameters"),
        }
        folder = directory.path
        log = MetricsFile(folder / "metrics.jsonl")
        for kind, values in figures.items():
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
                "figures": figures,
                "baselines": summary.get("baselines", {}),
                "steps_per_second": summary.get("steps_per_second"),
            },
        )
        directory.record(loaded, manifest)
    return folder
