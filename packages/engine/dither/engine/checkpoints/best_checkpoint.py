"""The best evaluation of a run, for the best checkpoint and early stopping; from the lines of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from dither.registry.config.errors import Problem, Refused, nearest

from ..files.metrics_file import read_metrics

__all__ = ["Scores"]


class Scores:
    """The metric of every evaluation of a run.

    Args:
        metric: Name of the metric.
        better: Which values are better.
        values: The metric by step.
    """

    def __init__(self, metric: str, better: Literal["lower", "higher"], values: Mapping[int, float]) -> None:
        self.metric, self.better, self.values = metric, better, dict(values)

    @classmethod
    def read(cls, run_directory: Path, metric: str, better: Literal["lower", "higher"]) -> Scores:
        """Return the scores in metrics.jsonl of a run.

        Raises:
            Refused: The file is missing or damaged.
        """
        path = run_directory / "metrics.jsonl"
        try:
            lines = [line for line in read_metrics(path) if line["kind"] == "valid" and metric in line]
            values = {line["step"]: math.nan if line[metric] is None else float(line[metric]) for line in lines}
        except (OSError, ValueError, TypeError) as error:
            raise Refused(f"{path} is damaged: {error}", code="damaged-file") from None
        return cls(metric, better, values)

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the first of equal ones; None without evaluations."""
        sign = 1 if self.better == "lower" else -1
        finite = [(sign * value, step) for step, value in self.values.items() if math.isfinite(value)]
        return min(finite)[1] if finite else None

    @property
    def since(self) -> int:
        """Number of evaluations after the best one."""
        return sum(self.best is not None and step > self.best for step in self.values)

    def add(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Add an evaluation; return whether it is the best so far.

        Raises:
            Refused: The evaluation does not compute the metric.
        """
        if self.metric not in metrics:
            close = nearest(self.metric, metrics)
            hint = f'did you mean "{close}"?' if close else None
            message = f'unknown metric "{self.metric}"; evaluation computes {", ".join(metrics)}'
            raise Refused(Problem(message, ("evaluate", "best"), help=hint, code="unknown-metric"))
        self.values[step] = metrics[self.metric]
        return self.best == step
