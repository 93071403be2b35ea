"""The engine as commands of plugins receive it. Methods import torch, the module does not.

Wrong options are refused first: torch and the weights of a model take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
        from ..runs.request_checks import check_options

        local = _local(path)
        check_options(local, options)
        from ..runs.evaluate_run import load_model

        return load_model(local, options)

    def sample(
        self,
        run: Path,
        options: RunOptions,
        request: SampleRequest,
        templates: Templates | None = None,
        as_json: bool = False,
    ) -> None:
        from ..runs.progress import Screen
        from ..runs.request_checks import check_sampling
        from .output import echo_json, wants_json

        local = _local(run)
        check_sampling(local, options, request)
        from ..runs.evaluate_run import sample_run

        screen = Screen(stderr=wants_json(as_json))
        result = sample_run(local, request, options, templates, screen)
        echo_json(as_json, asdict(result))

    def evaluate(
        self,
        run: Path,
        options: RunOptions,
        task: Callable[[Any], Task] | None = None,
        as_json: bool = False,
        split: Split = "valid",
        tight: int | None = None,
        likelihood: Literal["bound", "ode"] | None = None,
        draws: int = 16,
    ) -> None:
        """Show metrics next to baselines; the last arguments are those of `evaluate_run`."""
        from ..files.metrics_file import (
            is_companion_metric,
            shown_baselines,
            with_interval,
        )
        from ..runs.progress import Screen, metric_lines
        from ..runs.request_checks import check_evaluation
        from .output import echo, echo_json

        local = _local(run)
        check_evaluation(local, options, tight, likelihood)
        from ..runs.evaluate_run import evaluate_run

        # The status goes to stderr, so that the metrics can be piped.
        with Screen(stderr=True).status(f"evaluating on the {split} split"):
            metrics, baselines = evaluate_run(
                local,
                options,
                split,
                task,
                tight=tight,
                likelihood=likelihood,
                draws=draws,
            )
        if echo_json(as_json, metrics | baselines):
            return
        rows: list[tuple[str, str, list[str]]] = []
        for name in metrics:
            # Intervals and noise floors are shown next to their metric.
            if not is_companion_metric(name, metrics):
                value = with_interval(name, metrics, 6)
                rows.append((name, value, shown_baselines(split, name, baselines)))
        has_leads = any("(" in text for _, _, texts in rows for text in texts)
        heading = "baselines (model minus each)" if has_leads else "baselines"
        rows.insert(0, ("metric", "model", [heading]))
        screen = Screen()
        # Elsewhere one line a metric, for grep
        width = screen.width if screen.is_terminal else None
        for line in metric_lines(rows, width):
            echo(line)

    def draw(
        self, run: Path, options: RunOptions, points: Sequence[Sequence[str]]
    ) -> tuple[Task, int, Iterator[DrawnSamples]]:
        from ..runs.request_checks import POINT_TABLES, check_options

        local = _local(run)
        for point in points:
            changed = replace(options, changes=[*options.changes, *point])
            check_options(local, changed, POINT_TABLES)
        from ..runs.evaluate_run import draw_points

        return draw_points(local, options, points)

    def echo_json(self, as_json: bool, value: object) -> bool:
        from .output import echo_json

        return echo_json(as_json, value)

    def new_folder(
        self, run: Path, default: Sequence[str], out: Path | None
    ) -> AbstractContextManager[Path]:
        from ..runs.request_checks import new_folder

        return new_folder(_local(run), default, out)


def _local(run: Path) -> Path:
    """Return a run directory; one of a mirror is downloaded."""
    from ..files.mirror import local_run

    return local_run(run)
