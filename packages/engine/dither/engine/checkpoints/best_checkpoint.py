"""How a run did at each evaluation, by one figure: which was best, and how long ago that was.

scores.json holds [step, value] of every evaluation. A resumed run makes the evaluation of its first step again, which
changes nothing, and forgets those of later steps.
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
        folder: The run directory; None to write nothing.
        figure: Name of the figure that decides.
        better: Which values of it are better.
        step: Evaluations after this step are forgotten.
        before: What a checkpoint kept of them; by default what the file holds.

    Attributes:
        values: The figure by step.
    """

    def __init__(
        self,
        folder: Path | None,
        figure: str,
        better: Literal["lower", "higher"],
        step: int = 0,
        before: Mapping[str, object] | None = None,
    ) -> None:
        self._path, self.figure, self.better = None if folder is None else folder / FILE, figure, better
        kept = before or ({} if self._path is None else _load(self._path))
        values = _values(kept, self._path)
        alike = (kept.get("figure"), kept.get("better")) == (figure, better)  # else judged otherwise than before
        self.values = {at: value for at, value in values.items() if at <= step} if alike else {}

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the first of equals; None before there is one."""
        return _best(self.values, self.better)

    @property
    def since(self) -> int:
        """Evaluations made after the best one."""
        return sum(self.best is not None and step > self.best for step in self.values)

    def add(self, step: int, figures: Mapping[str, float]) -> bool:
        """Take in an evaluation; tell whether it is the best so far.

        Raises:
            Refused: The figure is not among those that were measured.
        """
        if self.figure not in figures:
            close = nearest(self.figure, figures)
            hint = f'did you mean "{close}"?' if close else None
            message = f'evaluation gives no figure "{self.figure}"; it gives {", ".join(figures)}'
            raise Refused(Problem(message, ("evaluate", "best"), help=hint))
        self.values[step] = figures[self.figure]
        if self._path is not None:
            with atomic_write(self._path) as beside:
                beside.write_text(json.dumps(with_checksum(self.kept())), encoding="utf-8")
        return self.best == step

    def kept(self) -> dict[str, object]:
        """Return them as JSON holds them, for a checkpoint."""
        entries = [[at, value if math.isfinite(value) else None] for at, value in sorted(self.values.items())]
        return {"figure": self.figure, "better": self.better, "evaluations": entries}


def best_step(folder: Path) -> int:
    """Return the step of the best evaluation of a run.

    Raises:
        Refused: None is known.
    """
    kept = _load(folder / FILE)
    values = _values(kept, folder / FILE)
    best = _best(values, "higher" if kept.get("better") == "higher" else "lower")
    if best is None:
        raise Refused(f"{folder} knows no best checkpoint: {FILE} holds no evaluation")
    return best


def _best(values: Mapping[int, float], better: Literal["lower", "higher"]) -> int | None:
    sign = 1 if better == "lower" else -1
    finite = [(sign * value, step) for step, value in values.items() if math.isfinite(value)]
    return min(finite)[1] if finite else None


def _values(kept: Mapping[str, object], path: Path | None) -> dict[int, float]:
    entries = kept.get("evaluations")
    try:
        pairs = list(entries) if isinstance(entries, list) else []
        return {int(step): math.nan if value is None else float(value) for step, value in pairs}
    except (ValueError, TypeError, OverflowError) as error:
        raise _damaged(path or Path(FILE), f"evaluations are no numbers: {error}") from None


def _load(path: Path) -> dict[str, object]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    if not isinstance(kept, dict) or checksum_differs(kept):
        raise _damaged(path, "it is not what was written")
    return kept


def _damaged(path: Path, reason: str) -> Refused:
    hint = f"remove {path}: the evaluations made so far are then forgotten"
    return Refused(Problem(f"{path} is damaged: {reason}", help=hint))
