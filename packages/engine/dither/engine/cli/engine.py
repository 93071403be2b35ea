"""The engine as commands of plugins receive it. Methods import torch, the module does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dither.registry.contracts.commands import (
        DrawnSamples,
        RunOptions,
        SampleRequest,
        Templates,
    )
    from dither.registry.contracts.protocols import Split, Task

    from ..runs.system import SystemModel

__all__ = ["RunEngine"]


class RunEngine:
    """Implements `dither.registry.contracts.commands.Engine`."""

    def load(self, path: Path, options: RunOptions) -> SystemModel:
        from ..runs.evaluate_run import load_model

        return load_model(_local(path), options)

    def sample(
        self,
        run: Path,
        options: RunOptions,
        request: SampleRequest,
        templates: Templates | None = None,
        as_json: bool = False,
    ) -> None:
        from ..runs.evaluate_run import sample_run
        from ..runs.progress import Screen
        from .output import echo_json, wants_json

        screen = Screen(stderr=wants_json(as_json))
        result = sample_run(_local(run), request, options, templates, screen)
        echo_json(as_json, asdict(result))

    def evaluate(
        self,
        run: Path,
        options: RunOptions,
        task: Callable[[Any], Task] | None = None,
        as_json: bool = False,
        split: Split = "valid",
        **likelihood: Any,
    ) -> None:
        """Show metrics next to baselines; `likelihood` has options of `evaluate_run`."""
        from ..files.metrics_file import (
            is_companion_metric,
            shown_baselines,
            with_interval,
        )
        from ..runs.evaluate_run import evaluate_run
        from ..runs.progress import Screen
        from .output import echo, echo_json

        # The status goes to stderr, so that the metrics can be piped.
        with Screen(stderr=True).status(f"evaluating on the {split} split"):
            local = _local(run)
            metrics, baselines = evaluate_run(local, options, split, task, **likelihood)
        if echo_json(as_json, metrics | baselines):
            return
        for name in metrics:
            # Intervals and noise floors are shown next to their metric.
            if not is_companion_metric(name, metrics):
                shown = shown_baselines(split, name, baselines)
                echo(f"{name:40} {with_interval(name, metrics, 6):24} {shown}".rstrip())

    def draw(
        self, run: Path, options: RunOptions, points: Sequence[Sequence[str]]
    ) -> tuple[Task, int, Iterator[DrawnSamples]]:
        from ..runs.evaluate_run import draw_points

        return draw_points(_local(run), options, points)

    def echo_json(self, as_json: bool, value: object) -> bool:
        from .output import echo_json

        return echo_json(as_json, value)

    def new_folder(
        self, run: Path, default: Sequence[str], out: Path | None
    ) -> AbstractContextManager[Path]:
        from ..runs.evaluate_run import new_folder

        return new_folder(_local(run), default, out)


def _local(run: Path) -> Path:
    """Return a run directory; one of a mirror is downloaded."""
    from ..files.mirror import local_run

    return local_run(run)
