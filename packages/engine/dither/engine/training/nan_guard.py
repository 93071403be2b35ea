"""Skip or abort the optimizer step if the loss or the gradient norm is NaN or inf."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dither.registry.config.errors import dotted
from dither.registry.spec.base import components_in, path_mark

from ..config.experiment import Experiment

__all__ = ["FiniteGuard", "NonFinite", "Skips", "all_finite", "describe_data"]

SHOWN = 20
"""Sample numbers in a message."""


class NonFinite(Exception):  # noqa: N818 - the name of an event, like the exit code
    """The loss or gradient of a step (from 0), or the `weights` after its update (-1: initial), contain NaN or inf.

    `rows` are the faulty samples, or those of the whole batch if they could not be identified (not `certain`).
    """

    def __init__(self, step: int, loss: float = math.nan, norm: float = math.nan, *, weights: bool = False) -> None:
        super().__init__(step, loss, norm)
        self.step, self.loss, self.norm, self.weights = step, loss, norm, weights
        self.rows: list[int] = []
        self.certain = False

    def __str__(self) -> str:
        if self.weights and self.step < 0:
            return "initial weights contain NaN or inf"
        if self.weights:
            return f"step {self.step + 1}: the update made weights NaN or inf; lower train.optimizer.lr"
        rows = ", ".join(map(str, self.rows[:SHOWN])) + (", ..." if len(self.rows) > SHOWN else "")
        which = "faulty training samples" if self.certain else "training samples of the batch"
        return (
            f"step {self.step + 1}: loss is {self.loss:g}, gradient norm is {self.norm:g}; "
            f"the weights were not updated; lower train.optimizer.lr, or set train.clip to 1 or less; {which}: {rows}"
        )


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether tensors on one device are finite, with one synchronisation and no copies."""
    flags = [torch.stack(tensor.aminmax()).isfinite().all() for tensor in tensors if tensor.numel()]
    return not flags or bool(torch.stack(flags).all())


def describe_data(experiment: Experiment) -> str:
    """Return the training data of an experiment: its task, and each data component with its files."""
    lines = [f"task {experiment.task.name}"]
    for path, component in components_in(experiment):
        if component.kind == "data":
            files = {
                name: getattr(component, name) for name, info in type(component).model_fields.items() if path_mark(info)
            }
            lines.append(", ".join([f"{dotted(path)} {component.name}", *(f"{k} {v!r}" for k, v in files.items())]))
    return "; ".join(lines)


class FiniteGuard:
    """Checks loss and gradient norm of each step before the update.

    On the CPU it raises immediately. On a GPU that would synchronise, so if `deferred`, the update and all later ones
    are cancelled on the device through `found_inf`, as `GradScaler` does, until `check` is called. Optimizers without
    `found_inf` synchronise. `metrics` are loss times weight, weight and gradient norm of the newest deferred step.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device, deferred: bool | None = None) -> None:
        supported = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self.deferred = supported and device.type != "cpu" if deferred is None else deferred
        self.optimizer, self.first = optimizer, 0
        self.alive = torch.ones((), device=device)
        self.good = torch.zeros((), dtype=torch.int64, device=device)
        self.metrics = self.last = torch.zeros(3, device=device)

    def start(self, step: int) -> None:
        """Restart the count of good steps at a step."""
        self.first = step
        self.alive.fill_(1)
        self.good.zero_()

    def record(self, step: int, total: Any, weight: Any, norm: Any) -> None:
        """Record loss times weight, weight and gradient norm of a step before its update, as floats or 0-d tensors.

        Raise NonFinite if one is NaN or inf and the guard is not deferred.
        """
        if not self.deferred:
            if not math.isfinite(total + weight + norm):
                raise NonFinite(step, total / weight, norm)
            return
        self.metrics = torch.stack((total, weight, norm))
        self.last = torch.where(self.alive > 0, self.metrics, self.last)
        self.alive = self.alive * self.metrics.isfinite().all()
        self.good += self.alive > 0
        self.optimizer.found_inf = 1 - self.alive  # type: ignore[attr-defined]

    def check(self) -> None:
        """Synchronise with the device; raise NonFinite if an update was cancelled."""
        if self.deferred and not self.alive:
            total, weight, norm = self.last.tolist()
            raise NonFinite(self.first + int(self.good), total / weight, norm)


@dataclass
class Skips:
    """Counts steps that are skipped because their loss or gradient is NaN or inf, at most `limit` in a row."""

    limit: int
    counted: int = 0
    in_row: int = 0
    on_skip: Callable[[str], object] = lambda message: None

    def allow(self, error: NonFinite) -> bool:
        """Return whether the step of an error may be skipped, and count it."""
        if self.in_row >= self.limit:
            if self.limit:
                error.add_note(f"{self.in_row + 1} such steps in a row; train.skip_limit = {self.limit}")
            return False
        self.counted += 1
        self.in_row += 1
        self.on_skip(f"{error}; skipped ({self.in_row} in a row, at most {self.limit})")
        return True
