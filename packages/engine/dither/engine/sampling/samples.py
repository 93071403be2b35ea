"""Draw samples, compute their metrics and pictures, and write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_up
from pathlib import Path

import torch
from jaxtyping import Shaped
from safetensors.torch import save_file
from torch import Tensor

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.files.atomic import atomic_write
from dither.registry.flow.protocols import Exports, Picture, ShowsTrajectories, Task
from dither.registry.flow.records import Clean
from dither.registry.kinds.task import TaskSpec

from ..files.resource_errors import disk_errors
from ..training.diffusion import Diffusion
from ..training.evaluation import merge_metrics
from .rejection_sampling import AcceptedSamples, draw_accepted
from .row_prediction import ModelCalls
from .session import draw
from .trajectory import TrajectoryRecorder

__all__ = ["SampleSet", "check_forms", "export_samples", "make_samples", "unused_folder", "write_samples"]

PATHS = 4
"""Number of samples whose trajectory is shown."""

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class SampleSet:
    """Samples with their conditions, metrics and pictures."""

    samples: Shaped[Tensor, "N L *M"]
    like: Clean
    figures: dict[str, float]
    pictures: list[Picture]


def make_samples(
    system: Diffusion,
    count: int,
    seed: int,
    batch_size: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    tries: int = 64,
) -> SampleSet | None:
    """Draw samples and compute their metrics; None if stopped. `draw` states which inputs samples depend on.

    If the task has a goal, samples are drawn up to `tries` times to meet it; those that do not are omitted.
    """
    task, like = system.task, system.like(count, seed)
    watch = TrajectoryRecorder(PATHS) if isinstance(task, ShowsTrajectories) else None
    if like.goal is None:
        calls = ModelCalls()
        samples = draw(system, like, seed, batch_size, stopped, watch, calls)
        if samples is None:
            return None
        if watch is not None:
            watch.keep(torch.arange(count), torch.ones(count, dtype=torch.bool))
        met = AcceptedSamples(samples, like, {"model_calls_per_sample": calls.rows / max(len(samples), 1)})
    else:
        found = draw_accepted(system, like, seed, batch_size, tries, stopped, watch)
        if found is None:
            return None
        met = found
    if not len(met.samples):
        return SampleSet(met.samples, met.like, met.figures, [])
    pictures = [*task.plots(met.samples, met.like), *_trajectories(task, like, watch)]
    extra = [metric(met.samples, met.like) for metric in system.metrics if callable(metric)]
    metrics = merge_metrics({**met.figures, **task.sample_metrics(met.samples, met.like)}, *extra)
    return SampleSet(met.samples, met.like, metrics, pictures)


def _trajectories(task: Task, like: Clean, watch: TrajectoryRecorder | None) -> Iterator[Picture]:
    """Yield pictures of the recorded trajectories."""
    path = None if watch is None else watch.path()
    if watch is not None and path is not None and isinstance(task, ShowsTrajectories):
        yield from task.trajectory_plots(path, like.apply(lambda value: value[watch.rows]))


def write_samples(drawing: SampleSet, folder: Path) -> list[Path]:
    """Write pictures as .png, .svg, .txt, .gif and .html, and the samples themselves as safetensors; return the files.

    Raises:
        ValueError: The name of a picture is not a valid file name.
    """
    files = []
    for picture in drawing.pictures:
        if not FILE_NAME.fullmatch(picture.name):
            raise ValueError(f"not a valid file name of a picture: {picture.name!r}")
        forms = {
            "png": picture.png,
            "svg": picture.svg,
            "txt": picture.text,
            "gif": picture.gif,
            "html": picture.html,
        }
        for suffix, content in forms.items():
            if content is not None:
                data = content.encode() if isinstance(content, str) else content
                files.append(_write(folder / f"{picture.name}.{suffix}", data))
    like = drawing.like
    tensors = {"samples": drawing.samples, "x0": like.x0, "valid": like.valid, "known": like.known}
    with disk_errors(folder / "samples.safetensors"), atomic_write(folder / "samples.safetensors") as beside:
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, beside)
    return [*files, folder / "samples.safetensors"]


def unused_folder(folder: Path) -> Path:
    """Return the folder, or the first of folder-2, folder-3 .. that does not exist."""
    names = (folder.name if number == 1 else f"{folder.name}-{number}" for number in count_up(1))
    return next(path for path in map(folder.with_name, names) if not path.exists())


def _write(path: Path, data: bytes) -> Path:
    with atomic_write(path) as beside:
        beside.write_bytes(data)
    return path


SHOWN = 5
"""Lines about omitted samples to print; further ones are counted."""


def check_forms(task: TaskSpec, forms: Sequence[str]) -> None:
    """Raise Refused for export formats that the task does not have."""
    offered = ", ".join(task.exports) or "none"
    wrong = []
    for form in dict.fromkeys(forms):
        if form not in task.exports:
            close = nearest(form, task.exports)
            what = f'task "{task.name}" does not export "{form}"; its forms: {offered}'
            wrong.append(Problem(what, help=f'did you mean "{close}"?' if close else None, code="unknown-format"))
    if wrong:
        raise Refused(wrong)


def export_samples(system: Diffusion, drawing: SampleSet, forms: Sequence[str], folder: Path) -> Iterator[str]:
    """Write samples in each format to a folder of its name; yield lines to print.

    Raises:
        TypeError: The task lists formats but has no method export.
    """
    task = system.task
    for form in dict.fromkeys(forms):
        if not isinstance(task, Exports):
            raise TypeError(f"{type(task).__name__} offers exports, but has no method export")
        files, lines = task.export(drawing.samples, drawing.like, form, folder / form)
        yield str(files[0]) if len(files) == 1 else f"{folder / form}: {len(files):,} files of {form}"
        yield from (f"{form}: {line}" for line in lines[:SHOWN])
        if len(lines) > SHOWN:
            yield f"{form}: and {len(lines) - SHOWN:,} more"
