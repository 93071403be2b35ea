"""The metric of every evaluation of a run, for the best checkpoint and early stopping.

scores.json holds [step, value] of every evaluation. A resumed run drops those after its first step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.files.atomic import atomic_write

from ..files.checksums import checksum_differs, with_checksum

__all__ = ["Scores", "best_step"]

FILE = "scores.json"


class Scores:
    """The evaluations of a run.

    Args:
        folder: The run directory; None to write no file.
        metric: Name of the metric.
        better: Which values are better.
        step: Evaluations after this step are dropped.
        before: The scores in a checkpoint; by default those of the file.

    Attributes:
        values: The metric by step.
    """

    def __init__(
        self,
        folder: Path | None,
        metric: str,
        better: Literal["lower", "higher"],
        step: int = 0,
        before: Mapping[str, object] | None = None,
    ) -> None:
        self._path, self.metric, self.better = None if folder is None else folder / FILE, metric, better
        state = before or ({} if self._path is None else _load(self._path))
        values = _values(state, self._path)
        comparable = (state.get("figure"), state.get("better")) == (metric, better)
        self.values = {at: value for at, value in values.items() if at <= step} if comparable else {}

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the first of equal ones; None without evaluations."""
        return _best(self.values, self.better)

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
        if self._path is not None:
            with atomic_write(self._path) as temporary:
                temporary.write_text(json.dumps(with_checksum(self.state())), encoding="utf-8")
        return self.best == step

    def state(self) -> dict[str, object]:
        """Return the scores as JSON values."""
        entries = [[at, value if math.isfinite(value) else None] for at, value in sorted(self.values.items())]
        return {"figure": self.metric, "better": self.better, "evaluations": entries}


def best_step(folder: Path) -> int:
    """Return the step of the best evaluation of a run.

    Raises:
        Refused: The run has no evaluation.
    """
    state = _load(folder / FILE)
    values = _values(state, folder / FILE)
    best = _best(values, "higher" if state.get("better") == "higher" else "lower")
    if best is None:
        raise Refused(f"{folder} has no best checkpoint: {FILE} holds no evaluation", code="missing-checkpoint")
    return best


def _best(values: Mapping[int, float], better: Literal["lower", "higher"]) -> int | None:
    sign = 1 if better == "lower" else -1
    finite = [(sign * value, step) for step, value in values.items() if math.isfinite(value)]
    return min(finite)[1] if finite else None


def _values(state: Mapping[str, object], path: Path | None) -> dict[int, float]:
    entries = state.get("evaluations")
    try:
        pairs = list(entries) if isinstance(entries, list) else []
        return {int(step): math.nan if value is None else float(value) for step, value in pairs}
    except (ValueError, TypeError, OverflowError) as error:
        raise _damaged(path or Path(FILE), f"invalid evaluations: {error}") from None


def _load(path: Path) -> dict[str, object]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path} cannot be read: {error}", code="unreadable-file") from None
    if not isinstance(state, dict) or checksum_differs(state):
        raise _damaged(path, "it does not match its checksum")
    return state


def _damaged(path: Path, reason: str) -> Refused:
    hint = f"delete {path} to drop the evaluations so far"
    return Refused(Problem(f"{path} is damaged: {reason}", help=hint, code="damaged-file"))
