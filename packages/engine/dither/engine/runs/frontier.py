"""Samples of a run over options of the sampler, compared with real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import FrontierTask
from dither.registry.contracts.records import Clean
from dither.registry.files.atomic import atomic_write

from ..config.load_experiment import SAMPLING_TABLES, load_for_sampling
from ..sampling.samples import make_samples
from .loading import Which, load_run
from .run_directory import resolved_file

__all__ = ["frontier"]


def frontier(
    run_directory: Path,
    grid: Mapping[str, Sequence[str]],
    checkpoint: Which = "newest",
    select: Sequence[str] | None = None,
    changes: Sequence[str] = (),
) -> tuple[list[dict[str, float]], Path]:
    """Sample with every combination of sampler options, numbers by name; return rows of metrics and a picture.

    The first row is that of real samples. There are evaluate.samples of each; rows and picture are
    written into the folder `frontier` of the run. Refused if the task has no frontier.
    """
    tables = ("evaluate", *SAMPLING_TABLES)
    loaded, system, _ = load_run(
        run_directory, None, None, checkpoint, changes, select=select, tables=tables
    )
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    options = [
        [*changes, *(f"sampler.{key}={value}" for key, value in point.items())] for point in points
    ]
    files = [
        load_for_sampling(resolved_file(run_directory), None, more, select, tables)
        for more in options
    ]
    if not isinstance(system.task, FrontierTask):
        message = f'task "{loaded.experiment.task.name}" has no frontier of samples'
        raise Refused(Problem(message, ("task",), code="misfit"))
    experiment = loaded.experiment
    count = experiment.evaluate.samples

    def draws() -> Iterator[tuple[dict[str, float], Tensor, Clean, dict[str, float]]]:
        for point, file in zip(points, files, strict=True):
            system.sampler = file.experiment.sampler.build()
            drawn = make_samples(
                system, count, experiment.seed, experiment.sample.batch_size, pictures=False
            )
            assert drawn is not None
            yield (
                {key: float(value) for key, value in point.items()},
                drawn.samples,
                drawn.like,
                drawn.figures,
            )

    rows, picture = system.task.frontier(draws(), count)
    assert picture.png is not None
    folder = run_directory / "frontier"
    with atomic_write(folder / "frontier.json") as file:
        file.write_text(json.dumps(rows, indent=2), "utf-8")
    with atomic_write(folder / "frontier.png") as file:
        file.write_bytes(picture.png)
    return rows, folder / "frontier.png"
