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

    `rows` are the faulty samples, or those of the whole batch if they could not be identified (not
    `certain`).
    """

    def __init__(
        self,
        step: int,
        loss: float = math.nan,
        norm: float = math.nan,
        *,
        weights: bool = False,
    ) -> None:
        super().__init__(step, loss, norm)
        self.step = step
        self.loss = loss
        self.norm = norm
        self.weights = weights
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
                name: getattr(component, name)
                for name, info in type(component).model_fields.items()
                if path_mark(info)
            }
            lines.append(
                ", ".join(
                    [f"{dotted(path)} {component.name}", *(f"{k} {v!r}" for k, v in files.items())]
                )
            )
    return "; ".join(lines)


class FiniteGuard:
    """Checks loss and gradient norm of each step before the update.

    On the CPU it raises immediately. On a GPU that would synchronise, so if `deferred`, the update
    is cancelled on the device through `found_inf`, as `GradScaler` does, and after more than
    `limit` such steps in a row so are all later ones until `check` is called. An optimizer without
    `found_inf` gets gradients of 0 instead; because that is not a skipped step, it synchronises if
    there is a limit. `metrics` are loss times weight, weight and gradient norm of the newest
    deferred step, 0 if it was cancelled; `skipped` and `in_row` count cancelled steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        device: torch.device,
        deferred: bool | None = None,
        limit: int = 0,
    ) -> None:
        self.cancels = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self.deferred = (
            device.type != "cpu" and (self.cancels or not limit) if deferred is None else deferred
        )
        self.optimizer = optimizer
        self.first = 0
        self.limit = limit
        self.alive = torch.ones((), device=device)
        self.good, self.skipped, self.in_row = torch.zeros(
            3, dtype=torch.int64, device=device
        ).unbind()
        self.metrics, self.last = torch.zeros(2, 3, device=device).unbind()

    def start(self, step: int, in_row: int = 0) -> None:
        """Restart the count of good steps at a step, after `in_row` skipped ones."""
        self.first = step
        self.alive.fill_(1)
        self.good.zero_()
        self.in_row.fill_(in_row)

    def record(
        self,
        step: int,
        total: Any,
        weight: Any,
        norm: Any,
    ) -> None:
        """Record loss times weight, weight and gradient norm of a step before its update, as floats or 0-d tensors.

        Raise NonFinite if one is NaN or inf and the guard is not deferred.
        """
        if not self.deferred:
            if not math.isfinite(total + weight + norm):
                raise NonFinite(step, total / weight, norm)
            return
        metrics = torch.stack((total, weight, norm))
        self.last.copy_(
            torch.where(self.alive > 0, metrics, self.last)
        )  # in place, so that a CUDA graph may hold it
        finite = metrics.isfinite().all()
        self.in_row.add_(1).masked_fill_(finite, 0)
        self.alive *= self.in_row <= self.limit
        self.good += self.alive > 0
        self.skipped += (self.alive > 0) & ~finite
        applied = self.alive * finite
        self.metrics.copy_(torch.where(applied > 0, metrics, 0.0))
        if self.cancels:
            self.optimizer.found_inf = 1 - applied  # type: ignore[attr-defined]
            return
        cancelled = applied == 0
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.masked_fill_(cancelled, 0.0)

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
                error.add_note(
                    f"{self.in_row + 1} such steps in a row; train.skip_limit = {self.limit}"
                )
            return False
        self.counted += 1
        self.in_row += 1
        self.on_skip(f"{error}; skipped ({self.in_row} in a row, at most {self.limit})")
        return True
