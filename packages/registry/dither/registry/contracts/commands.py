"""Operations of the engine for the commands of a plugin; `register_commands` receives an `Engine`.

Letters: N samples, L length, M features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from jaxtyping import Shaped
    from torch import Tensor

    from .records import Clean
    from .task_protocols import Task, TrainedModel

__all__ = ["DrawnSamples", "Engine", "RunOptions", "SampleRequest", "Templates"]

Templates = Callable[[Any, int, int], "Clean"]
"""Task, number of samples, seed -> templates to sample from."""


@dataclass(frozen=True)
class RunOptions:
    """Options of every command that applies the model of a run.

    Attributes:
        checkpoint: newest, best or a step, as after --checkpoint.
        changes: Overrides `key=value`.
        plugins: As after -p.
    """

    checkpoint: str = "newest"
    changes: Sequence[str] = ()
    plugins: Sequence[str] | None = None


@dataclass(frozen=True)
class SampleRequest:
    """Samples to draw and the files to write.

    Attributes:
        count: Number of samples.
        seed: Seed.
        out: New or empty folder; by default inside the run.
        formats: Export formats of the task in which samples are also written.
        constraints: TOML file with [task.constraints], in place of those of the run.
        metrics: Whether to compare the samples with data.
        pictures: Whether to draw the samples.
        length: Positions of a sample; by default those of the task.
        figures: Formats in which plots are written in addition to PNG: svg, pdf.
    """

    count: int
    seed: int = 0
    out: Path | None = None
    formats: Sequence[str] = ()
    constraints: Path | None = None
    metrics: bool = True
    pictures: bool = True
    length: int | None = None
    figures: Sequence[str] = ()


class DrawnSamples(NamedTuple):
    """Samples, the templates that they were drawn from, and their metrics."""

    samples: Shaped[Tensor, "N L *M"]
    like: Clean
    metrics: dict[str, float]


class Engine(Protocol):
    """The engine as commands of plugins call it. It imports torch when a method is called."""

    def load(self, path: Path, options: RunOptions) -> TrainedModel:
        """Return the model of a run directory or an export."""

    def sample(
        self,
        run: Path,
        options: RunOptions,
        request: SampleRequest,
        templates: Templates,
        as_json: bool = False,
    ) -> None:
        """Write samples drawn from templates, as `dither sample` does."""

    def evaluate(
        self,
        run: Path,
        options: RunOptions,
        task: Callable[[Any], Task],
        as_json: bool = False,
    ) -> None:
        """Print the metrics of the validation split of another task, made from that of the run."""

    def draw(
        self, run: Path, options: RunOptions, points: Sequence[Sequence[str]]
    ) -> tuple[Any, int, Iterator[DrawnSamples]]:
        """Return the task of a run, and evaluate.samples samples for each point of sampler options.

        Points are overrides in addition to those of `options`; samples are drawn on iteration.
        """

    def echo_json(self, as_json: bool, value: object) -> bool:
        """Print a value as JSON if --json or --format json requests it; return whether it does.

        stdout then has nothing else.
        """

    def new_folder(
        self, run: Path, default: Sequence[str], out: Path | None
    ) -> AbstractContextManager[Path]:
        """Create a folder for the files of a command, and remove it if it remains empty.

        It is `out`, which must not exist or be empty, or a new one inside the run with the path
        `default`. Names in `default` may come from data.
        """
