"""Samples drawn from a system: judged, and written where they can be looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count as count_up
from pathlib import Path

import torch
from jaxtyping import Shaped
from safetensors.torch import save_file
from torch import Tensor

from dither.registry.flow import Clean
from dither.registry.parts import Picture, ShowsPaths, Task
from dither.registry.storage import write_aside

from .disk import disk_errors
from .later import Spent
from .meeting import Met, draw_until_met
from .session import draw
from .system import Diffusion
from .watching import Watch

__all__ = ["Drawing", "make_drawing", "unused_folder", "write_drawing"]

PATHS = 4
"""Samples, the first ones, whose way is shown by tasks that can show it."""

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Drawing:
    """Samples, what they were drawn from, and what the task says of them."""

    samples: Shaped[Tensor, "N L *M"]
    like: Clean
    figures: dict[str, float]
    pictures: list[Picture]


def make_drawing(
    system: Diffusion,
    count: int,
    seed: int,
    batch_size: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    tries: int = 64,
) -> Drawing | None:
    """Draw and judge samples; None where it was stopped. See `draw` for what the samples depend on.

    Where the task has a goal, samples are drawn up to `tries` times to meet it; those that do not are left out.
    """
    task, like = system.task, system.like(count, seed)
    watch = Watch(PATHS) if isinstance(task, ShowsPaths) else None
    if like.goal is None:
        spent = Spent()
        samples = draw(system, like, seed, batch_size, stopped, watch, spent)
        if samples is None:
            return None
        if watch is not None:
            watch.keep(torch.arange(count), torch.ones(count, dtype=torch.bool))
        met = Met(samples, like, {"model_calls_per_sample": spent.rows / max(len(samples), 1)})
    else:
        found = draw_until_met(system, like, seed, batch_size, tries, stopped, watch)
        if found is None:
            return None
        met = found
    if not len(met.samples):
        return Drawing(met.samples, met.like, met.figures, [])
    pictures = [*task.show(met.samples, met.like), *_ways(task, like, watch)]
    return Drawing(met.samples, met.like, {**met.figures, **task.judge(met.samples, met.like)}, pictures)


def _ways(task: Task, like: Clean, watch: Watch | None) -> Iterator[Picture]:
    """Yield how the samples that were watched came about."""
    path = None if watch is None else watch.path()
    if watch is not None and path is not None and isinstance(task, ShowsPaths):
        yield from task.show_path(path, like.apply(lambda value: value[watch.rows]))


def write_drawing(drawing: Drawing, folder: Path) -> list[Path]:
    """Write pictures as .png, .svg, .txt, .gif and .html, and the samples themselves as safetensors; return the files.

    Raises:
        ValueError: A picture has a name that is no file name.
    """
    files = []
    for picture in drawing.pictures:
        if not FILE_NAME.fullmatch(picture.name):
            raise ValueError(f"a picture is called {picture.name!r}, which is no file name")
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
    with disk_errors(folder / "samples.safetensors"), write_aside(folder / "samples.safetensors") as beside:
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, beside)
    return [*files, folder / "samples.safetensors"]


def unused_folder(folder: Path) -> Path:
    """Return the folder, or the first of folder-2, folder-3 .. that does not exist."""
    names = (folder.name if number == 1 else f"{folder.name}-{number}" for number in count_up(1))
    return next(path for path in map(folder.with_name, names) if not path.exists())


def _write(path: Path, data: bytes) -> Path:
    with write_aside(path) as beside:
        beside.write_bytes(data)
    return path
