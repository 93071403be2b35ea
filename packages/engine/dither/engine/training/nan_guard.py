"""Stops training before an update with a loss or a gradient that is no number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dither.registry.config.errors import dotted
from dither.registry.spec.aliases import components_in

from ..config.experiment import Experiment

__all__ = ["FiniteGuard", "NonFinite", "NonFiniteWeights", "Skips", "all_finite", "describe_data"]

SHOWN = 20


class NonFinite(Exception):  # noqa: N818 - it says what happened, as the exit code does
    """The loss or the gradient of a step is no number.

    Attributes:
        step: Number of the step, from 0.
        rows: The samples at fault, or the whole batch where that is not known.
        certain: Whether the samples at fault are known.
    """

    def __init__(self, step: int, loss: float, norm: float) -> None:
        super().__init__(step, loss, norm)
        self.step, self.loss, self.norm = step, loss, norm
        self.rows: list[int] = []
        self.certain = False

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.rows[:SHOWN])) + (", ..." if len(self.rows) > SHOWN else "")
        which = "the training samples at fault are" if self.certain else "the batch holds the training samples"
        return (
            f"step {self.step + 1}: the loss is {self.loss:g} and the gradient norm {self.norm:g}; "
            f"the weights were not changed by it; {which} {shown}"
        )


class NonFiniteWeights(NonFinite):
    """The update of a step was too large: it made weights that are no numbers, though loss and gradient were.

    Attributes:
        step: Number of the step, from 0; -1 where none was made.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step, math.nan, math.nan)

    def __str__(self) -> str:
        if self.step < 0:
            return "the weights that training began with are no numbers"
        return f"step {self.step + 1}: its update, by too large a learning rate, made weights that are no numbers"


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Tell whether all values of some tensors on one device are numbers; waits for it once, and makes no copies."""
    flags = [torch.stack(tensor.aminmax()).isfinite().all() for tensor in tensors if tensor.numel()]
    return not flags or bool(torch.stack(flags).all())


def describe_data(experiment: Experiment) -> str:
    """Return what an experiment is trained on: the task, and each part of kind data with the files that it names."""
    told = [f"task {experiment.task.name}"]
    for path, part in components_in(experiment):
        if part.kind == "data":
            files = {name: getattr(part, name) for name in ("path", "paths") if hasattr(part, name)}
            told.append(", ".join([f"{dotted(path)} {part.name}", *(f"{k} {v!r}" for k, v in files.items())]))
    return "; ".join(told)


class FiniteGuard:
    """Looks at the figures of each step before the weights are changed.

    On the CPU it raises at once. A GPU would have to be waited for, so there the update is made void on the device, as
    `GradScaler` does it, along with all that follow, until `ask` is called; an optimizer that cannot do this is waited
    for.

    Args:
        optimizer: What changes the weights.
        device: Where they are.
        deferred: Whether to make updates void rather than to wait; by default what suits the device and the optimizer.

    Attributes:
        figures: Those of the newest step, where it is deferred.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device, deferred: bool | None = None) -> None:
        able = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self.deferred = able and device.type != "cpu" if deferred is None else deferred
        self.optimizer = optimizer
        self.first = 0
        self.alive = torch.ones((), device=device)
        self.good = torch.zeros((), dtype=torch.int64, device=device)
        self.figures = self.last = torch.zeros(3, device=device)

    def start(self, step: int) -> None:
        """Begin to count at a step."""
        self.first = step
        self.alive.fill_(1)
        self.good.zero_()

    def look(self, step: int, total: Any, weight: Any, norm: Any) -> None:
        """Take in loss times weight, weight and gradient norm of a step, before its update: numbers, or tensors.

        Raises:
            NonFinite: They are no numbers; not where it is deferred.
        """
        if not self.deferred:
            if not math.isfinite(total + weight + norm):
                raise NonFinite(step, total / weight, norm)
            return
        self.figures = torch.stack((total, weight, norm))
        self.last = torch.where(self.alive > 0, self.figures, self.last)
        self.alive = self.alive * self.figures.isfinite().all()
        self.good += self.alive > 0
        self.optimizer.found_inf = 1 - self.alive  # type: ignore[attr-defined]

    def ask(self) -> None:
        """Wait for the device.

        Raises:
            NonFinite: A step was made void.
        """
        if self.deferred and not self.alive:
            total, weight, norm = self.last.tolist()
            raise NonFinite(self.first + int(self.good), total / weight, norm)


class Skips:
    """Steps that are passed over because their loss or gradient is no number; the guard waits for the device then.

    Args:
        limit: How many in a row there may be; 0 for none.

    Attributes:
        counted: How many there were since `take`.
        row: How many there were without a good step between them.
        told: Told of each.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.counted = self.row = 0
        self.on_skip: Callable[[str], object] = lambda line: None

    def one_more(self, error: NonFinite) -> bool:
        """Tell whether the step of an error may be passed over; it is counted then."""
        if self.row >= self.limit:
            if self.limit:
                error.add_note(f"it is the last of {self.row + 1} such steps in a row; train.skip_limit = {self.limit}")
            return False
        self.counted += 1
        self.row += 1
        self.on_skip(f"{error}; it is skipped, {self.row} in a row of at most {self.limit}")
        return True

    def take(self) -> dict[str, float]:
        """Return how many there were since the last call, as a figure; nothing where there may be none."""
        counted, self.counted = self.counted, 0
        return {"skipped": counted} if self.limit else {}

    def state(self) -> dict[str, int]:
        """Return what a resumed run needs."""
        return {"skipped": self.counted, "skipped_in_row": self.row}

    def load_state(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state` returned; a checkpoint of before there was this policy has nothing of it."""
        self.counted, self.row = int(plain.get("skipped", 0)), int(plain.get("skipped_in_row", 0))
