"""Evaluate and sample a checkpoint of a run, and load it as the model of a command."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float64
from rich.console import Console
from torch import Tensor

from dither.registry.config.errors import Refused
from dither.registry.contracts.commands import (
    DrawnSamples,
    RunOptions,
    SampleRequest,
    Templates,
)
from dither.registry.contracts.pictures import Picture, check_figure_formats
from dither.registry.contracts.protocols import Split, Task
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import FeatureSpace
from dither.registry.kinds import TaskSpec

from ..config.load_experiment import load_for_sampling
from ..config.options import warn_conditions
from ..files.per_sample import write_per_sample
from ..files.run_folders import require_folder
from ..sampling.samples import (
    SampleSet,
    export_samples,
    make_samples,
    missing_samples,
    write_samples,
)
from ..training.diffusion import Diffusion
from ..training.evaluation import (
    SampleSums,
    evaluate,
    mean_half_width,
    without_likelihoods,
)
from ..training.likelihood import (
    LogLikelihood,
    Method,
    free_values,
    log_likelihood,
    log_likelihood_of,
    tight_log_likelihood,
)
from .exports import load_trained
from .progress import Screen, say, show_metrics
from .request_checks import (
    DEFAULTS,
    EVALUATION,
    POINT_TABLES,
    check_forms,
    experiment_file,
    is_export,
    new_folder,
    require_empty,
)
from .summary import reading_aids
from .system import System, SystemModel

__all__ = [
    "SampleResult",
    "draw_points",
    "evaluate_run",
    "load_model",
    "sample_run",
]

MAX_TEXTS = 4
"""Samples whose text is printed."""
MAX_CHARACTERS = 2000
"""Characters printed of a text."""
DRAWS = 16
"""Draws of noise for the likelihood of each sample."""


@dataclass(frozen=True)
class SampleResult:
    """Samples of a checkpoint: its step, the files in `folder`, the first texts, metrics.

    `exports` has a line for each export format, and for each sample that it leaves out.
    """

    step: int
    folder: Path
    files: list[str]
    exports: list[str]
    texts: list[str]
    metrics: dict[str, float]
    baselines: dict[str, float]


def evaluate_run(
    run: Path,
    options: RunOptions = DEFAULTS,
    split: Split = "valid",
    task: Callable[[Any], Task] | None = None,
    tight: int | None = None,
    likelihood: Method | None = None,
    draws: int = DRAWS,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics of a checkpoint, as during the run, and baselines by `metric/baseline`.

    With `tight`, also bounds per sample of that many draws: the plain one, and one with less slack.
    With `likelihood`, also that of each sample by this method; see `System.log_likelihood`.

    With `task`, the whole split of the task that it makes from that of the run is evaluated.
    Without any options, values per sample of the test split are stored in the run. Refused if the
    split is empty.
    """
    loaded, system, step = load_trained(run, options, tables=EVALUATION)
    settings = loaded.experiment.evaluate
    samples = settings.samples
    if task is not None:
        system.task = task(system.task)
        samples = system.task.size(split)

    if not system.task.size(split):
        name = loaded.experiment.task.name
        raise Refused(
            f'the split "{split}" of task "{name}" is empty', code="no-samples"
        )
    seed = loaded.experiment.seed
    batch_size = loaded.experiment.evaluation_batch
    per_sample: SampleSums = {}
    metrics = evaluate(
        system,
        samples=samples,
        batch_size=batch_size,
        repeats=settings.repeats,
        seed=seed,
        split=split,
        per_sample=per_sample.update,
    )
    # Those of the validation split are written by the run itself.
    unchanged = task is None and options.checkpoint == "newest" and not options.changes
    if split == "test" and unchanged and not is_export(run):
        write_per_sample(
            run,
            split,
            per_sample,
            step=step,
            seed=seed,
            batch_size=batch_size,
            repeats=settings.repeats,
        )
    measured = metrics or {}
    count = min(samples, system.task.size(split))
    if tight is not None:
        clean = system.task.batch(split, range(count))
        measured |= _tightened(system, clean, tight, seed)
    of_normal: dict[str, float] = {}
    if likelihood is not None:
        clean = system.task.batch(split, range(count))
        found = log_likelihood(
            system, clean, samples=draws, seed=seed, method=likelihood
        )
        measured |= _in_bits(system, clean, found)
        of_normal = _bits_of_normal(system, clean)

    # Baselines of metrics of samples are not shown next to those of an evaluation.
    baselines = {
        name: value
        for name, value in system.task.baselines(split, samples).items()
        if name.partition("/")[0] in measured
    }
    return measured, baselines | of_normal


def _in_bits(system: Diffusion, clean: Clean, found: LogLikelihood) -> dict[str, float]:
    """Return nats per sample and bits per dimension, of groups of columns, too, with intervals over samples."""
    free = free_values(system, clean)
    bits = -found.values / math.log(2)
    table = {
        "nats_per_sample": -found.values,
        "bits_per_position": bits / _per_sample(free),
    }
    space = system.process.space
    if isinstance(space, FeatureSpace):
        # A position of features counts once, for any number of free columns.
        table["bits_per_position"] = bits / _per_sample(free.any(-1))
        table["bits_per_dim"] = bits / _per_sample(free)
    if found.of_values is not None and isinstance(space, FeatureSpace):
        for group in space.groups:
            columns = slice(group.start, group.stop)
            of_group = free[..., columns]
            if of_group.any():
                nats = -found.of_values[..., columns].flatten(1).sum(1)
                name = f"bits_per_dim_{group.name}"
                table[name] = nats / math.log(2) / _per_sample(of_group)
    # A sample may have no free values.
    return _means({name: values[values.isfinite()] for name, values in table.items()})


def _means(table: Mapping[str, Float64[Tensor, " B"]]) -> dict[str, float]:
    """Return means over samples with their 95 % intervals."""
    metrics = {}
    for name, values in table.items():
        metrics[name] = float(values.mean())
        metrics[f"{name}_ci95"] = mean_half_width(values)
    return metrics


def _per_sample(free: Bool[Tensor, "B ..."]) -> Float64[Tensor, " B"]:
    return free.flatten(1).sum(1).double()


def _bits_of_normal(system: Diffusion, clean: Clean) -> dict[str, float]:
    """Return the bits per dimension of the standard normal distribution, from which sampling starts."""
    if not isinstance(system.process.space, FeatureSpace):
        return {}
    nats = (clean.x0.double().square() + math.log(2 * math.pi)) / 2
    bins = system.task.bin_widths
    # The probability of a bin is its density times its width.
    if bins is not None:
        nats = nats - torch.where(bins > 0, bins, 1.0).log()
    mean = nats[free_values(system, clean)].mean()
    return {"bits_per_dim/normal": float(mean) / math.log(2)}


def _tightened(
    system: Diffusion, clean: Clean, draws: int, seed: int
) -> dict[str, float]:
    """Return two bounds in nats per sample and their difference, with 95 % intervals over samples."""
    tight = -tight_log_likelihood(system, clean, draws, seed).values
    plain = -log_likelihood_of(system, clean, draws, seed).values
    return _means(
        {
            "plain_nats_per_sample": plain,
            "tight_nats_per_sample": tight,
            "slack_removed": plain - tight,
        }
    )


def sample_run(
    run: Path,
    request: SampleRequest,
    options: RunOptions = DEFAULTS,
    templates: Templates | None = None,
    console: Console | None = None,
) -> SampleResult:
    """Write samples of a checkpoint into a new or empty folder.

    `templates` are by default those of the task. Refused for a folder that is not empty or an
    unknown export format.
    """
    screen = console or Screen()
    # Before the weights are read, which may take long.
    require_empty(request.out)
    check_figure_formats(request.figures)
    loaded, system, step = load_trained(
        run, options, console=console, constraints=request.constraints
    )
    check_forms(loaded.experiment.task, request.formats)
    requested = loaded.experiment.sample.cond
    facts = loaded.experiment.model.facts()
    for misfit in warn_conditions(requested, system.task.space, facts):
        say(screen, misfit.message, "yellow")
    if request.length is not None:
        system = _of_length(system, request.length, screen)
    like = None
    if templates is not None:
        known = templates(system.task, request.count, request.seed)
        like = system.with_labels(known)
    if templates is not None or loaded.experiment.task.starts_known():
        # A sampler that the user names is kept.
        kept = any(change.startswith("sampler") for change in options.changes)
        start = like if like is not None else system.like(1, request.seed)
        system, lines = system.for_known_tokens(start, keep_sampler=kept)
        for line in lines:
            say(screen, line, "yellow")

    name = f"step-{step:08d}-seed-{request.seed}-count-{request.count}"
    with new_folder(run, ("samples", name), request.out) as folder:
        with screen.status(f"sampling {request.count} samples"):
            samples = make_samples(
                system,
                request.count,
                request.seed,
                loaded.experiment.sample.batch_size,
                tries=loaded.experiment.sample.tries,
                metrics=request.metrics,
                pictures=request.pictures,
                like=like,
                warn=lambda line: say(screen, line, "yellow"),
            )
        # None means stopped, and nothing here stops it.
        assert samples is not None
        # The run may have been deleted while samples were drawn.
        if request.out is None and not is_export(run):
            require_folder(run, "resolved.toml")
        texts = _texts(samples.pictures)
        _show_texts(screen, texts)
        if request.figures and not any(picture.render for picture in samples.pictures):
            say(screen, "no picture of this task is a plot: no --figures", "yellow")
        files = [str(path) for path in write_samples(samples, folder, request.figures)]
        exports = list(export_samples(system, samples, request.formats, folder))
        for line in (*files, *exports):
            say(screen, line)
    baselines = _show_sample_metrics(
        screen, system, samples, request.metrics, loaded.experiment.task
    )
    return SampleResult(
        step=step,
        folder=folder,
        files=files,
        exports=exports,
        texts=[_shortened(str(picture.text)) for picture in texts[:MAX_TEXTS]],
        metrics=samples.metrics,
        baselines=baselines,
    )


def _of_length(system: System, length: int, screen: Console) -> System:
    """Return a system with samples of a length; show options of the sampler that follow from it."""
    resized = system.with_length(length)
    if resized.experiment is not None and system.experiment is not None:
        before = system.experiment.sampler.model_dump()
        for key, value in resized.experiment.sampler.model_dump().items():
            if value != before[key]:
                line = f"sampler.{key} = {value}, as in training; --set sampler.{key} changes it"
                say(screen, line)
    return resized


def draw_points(
    run: Path, options: RunOptions, points: Sequence[Sequence[str]]
) -> tuple[Task, int, Iterator[DrawnSamples]]:
    """Return the task of a run, evaluate.samples, and that many samples for each point.

    A point is a list of overrides of sampling, in addition to those of `options`.
    """
    loaded, system, _ = load_trained(run, options, tables=POINT_TABLES)
    # All points are validated before the first one is sampled.
    experiments = [
        load_for_sampling(
            experiment_file(run),
            None,
            [*options.changes, *point],
            options.plugins,
            POINT_TABLES,
        ).experiment
        for point in points
    ]
    count = loaded.experiment.evaluate.samples

    def draws() -> Iterator[DrawnSamples]:
        for experiment in experiments:
            # The weights stay, as options of sampling do not affect them.
            system.sampler = experiment.sampler.build()
            samples = make_samples(
                system,
                count,
                loaded.experiment.seed,
                loaded.experiment.sample.batch_size,
                pictures=False,
            )
            assert samples is not None
            yield DrawnSamples(samples.samples, samples.like, samples.metrics)

    return system.task, count, draws()


def load_model(path: Path, options: RunOptions = DEFAULTS) -> SystemModel:
    """Return the system of a run or export as a `TrainedModel`."""
    loaded, system, _ = load_trained(path, options)
    # A sampler that the user names is kept.
    kept = any(change.startswith("sampler") for change in options.changes)
    return SystemModel(system, loaded.experiment.seed, keep_sampler=kept)


def _texts(pictures: Sequence[Picture]) -> list[Picture]:
    """Return the samples of a task whose samples are texts."""
    # Where samples are drawn, their text is a file format.
    if any(picture.png or picture.svg for picture in pictures):
        return []
    return [picture for picture in pictures if picture.text]


def _shortened(text: str) -> str:
    text = text.rstrip("\n")
    rest = text[MAX_CHARACTERS:]
    more = f" ... and {len(rest):,} characters more" if rest else ""
    return text[:MAX_CHARACTERS] + more


def _show_texts(console: Console, texts: Sequence[Picture]) -> None:
    """Print the first texts, each under its name."""
    for picture in texts[:MAX_TEXTS]:
        say(console, picture.name, "bold")
        say(console, _shortened(str(picture.text)) + "\n")
    if len(texts) > MAX_TEXTS:
        say(console, f"and {len(texts) - MAX_TEXTS:,} more texts in the files\n")


def _show_sample_metrics(
    console: Console,
    system: Diffusion,
    samples: SampleSet,
    measured: bool,
    task: TaskSpec,
) -> dict[str, float]:
    """Print metrics of samples next to those of real ones, and warnings; return the baselines."""
    shown: dict[str, float] = {}
    if measured and samples.metrics:
        baselines = without_likelihoods(system, system.task.baselines("valid"))
        of_samples = {
            key: value for key, value in baselines.items() if key.startswith("sample ")
        } or baselines
        for key, value in of_samples.items():
            metric = key.removeprefix("sample ").partition("/")[0]
            if metric in samples.metrics:
                shown[key] = value
    metrics = {"sample": samples.metrics}
    aids = reading_aids(task)
    show_metrics(console, {"metrics": metrics, "baselines": shown, **aids})

    warnings: list[str] = []
    warnings += system.task.data_warnings()
    warnings += missing_samples(samples.metrics)
    for line in warnings:
        say(console, line, "yellow")
    return shown
