"""Skip or abort the optimizer step if the loss or the gradient norm is NaN or inf."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.optim import Optimizer

from dither.registry.config.errors import Problem, Refused, dotted
from dither.registry.spec.base import components_in, path_mark

from ..config.experiment import Experiment

__all__ = [
    "FiniteGuard",
    "NonFinite",
    "NonFiniteData",
    "NonFiniteMetric",
    "Outcome",
    "all_finite",
    "describe_data",
    "rows_with_nan",
    "step_where",
]

SHOWN = 20
"""Sample numbers in a message."""


class Outcome(NamedTuple):
    """A step as read back from the device.

    Attributes:
        loss_sum: Loss times weight.
        weight: Sum of the weights of all positions.
        norm: Gradient norm of the weighted mean.
        applied: 1 if the weights were updated.
        stopped: 1 if no later step is applied, either.
        overflow: 1 if gradients exceeded float16, and the loss scale was halved.
    """

    loss_sum: float
    weight: float
    norm: float
    applied: float
    stopped: float
    overflow: float


class FiniteGuard:
    """Decides on the device whether a step is applied, so that the host never waits for it.

    More than `limit` steps in a row with a NaN or inf cancel all later ones, until `read` reports
    them.
    """

    def __init__(self, device: torch.device, limit: int = 0) -> None:
        self.device = device
        self.limit = limit
        self.unread: list[Float[Tensor, "6"]] = []
        self.start()

    def start(self, in_row: int = 0) -> None:
        """Forget all steps, except that the last `in_row` were cancelled."""
        self.unread.clear()
        self._in_row = torch.full((), in_row, device=self.device)
        self._stopped = torch.zeros((), dtype=torch.bool, device=self.device)

    def record(
        self,
        loss_sum: Float[Tensor, ""],
        weight: Float[Tensor, ""],
        norm: Float[Tensor, ""],
        overflow: Bool[Tensor, ""],
    ) -> Bool[Tensor, ""]:
        """Return whether to apply a step, given loss times weight, weight and gradient norm.

        An `overflow` of float16 cancels a step, but is not a failure.
        """
        metrics = torch.stack((loss_sum, weight, norm))
        finite = metrics.isfinite().all()
        failed = ~finite & ~overflow
        # An overflow of float16 neither counts as a failure nor ends a row of them.
        self._in_row = torch.where(finite, 0, self._in_row + failed)
        self._stopped = self._stopped | (self._in_row > self.limit)
        applied = finite & ~self._stopped

        # One tensor a step: all are read back in one copy.
        flags = torch.stack((applied, self._stopped, overflow))
        self.unread.append(torch.cat((metrics, flags.to(metrics))))
        return applied

    def read(self) -> list[Outcome]:
        """Return the outcomes of the steps since the last call. Waits for the device."""
        if not self.unread:
            return []
        rows = torch.stack(self.unread).tolist()
        self.unread.clear()
        return [Outcome(*row) for row in rows]


@runtime_checkable
class ScalingOptimizer(Protocol):
    """An optimizer that `torch.amp.GradScaler` can drive, such as the fused ones of torch.

    If the attribute is True, it divides gradients by `grad_scale` and changes nothing where
    `found_inf` is 1.
    """

    _step_supports_amp_scaling: bool


def step_where(
    applied: Bool[Tensor, ""],
    optimizer: Optimizer,
    gradients: list[Tensor],
    divisor: Float[Tensor, ""],
    *,
    scale: bool = True,
) -> None:
    """Divide gradients, and make an optimizer step where `applied`; otherwise nothing changes.

    With `scale`, an optimizer that can divides them in the kernel of its update.
    """
    fused = (
        isinstance(optimizer, ScalingOptimizer) and optimizer._step_supports_amp_scaling
    )
    if not (fused and scale):
        torch._foreach_div_(gradients, divisor)
    if fused:
        optimizer.grad_scale = divisor if scale else None  # type: ignore[attr-defined]
        optimizer.found_inf = (~applied).to(divisor)  # type: ignore[attr-defined]
        optimizer.step()
        return

    # Gradients of 0 would still decay weights and momentum: an optimizer without `found_inf`
    # cancels a step only by not being called, for which the host must know.
    if bool(applied):
        optimizer.step()


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether tensors on one device are finite, with one synchronisation and no copies."""
    # The extremes show NaN and inf without a mask of the size of the tensor.
    flags = [
        torch.stack(tensor.aminmax()).isfinite().all()
        for tensor in tensors
        if tensor.numel()
    ]
    return not flags or bool(torch.stack(flags).all())


class NonFinite(Exception):  # noqa: N818 - the name of an event, like the exit code
    """NaN or inf in loss or gradient of a step (from 0), or in the `weights` after its update.

    Step -1 means the initial weights.
    `rows` are the faulty samples, or those of the whole batch if they could not be identified (not
    `certain`). They were found with the weights of a `later` step if some followed before the
    outcomes were read.
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
        self.later = False

    def __str__(self) -> str:
        if self.weights and self.step < 0:
            return "initial weights contain NaN or inf"
        if self.weights:
            return f"step {self.step + 1}: the update made weights NaN or inf; lower train.optimizer.lr"
        rows = ", ".join(map(str, self.rows[:SHOWN]))
        if len(self.rows) > SHOWN:
            rows += ", ..."
        which = "training samples of the batch"
        if self.certain:
            which = "faulty training samples"
            if self.later:
                which += " (found with the weights of a later step)"
        return (
            f"step {self.step + 1}: loss is {self.loss:g}, gradient norm is {self.norm:g}; "
            "the weights were not updated; lower train.optimizer.lr, or set train.clip to 1 or less; "
            f"{which}: {rows}"
        )


class NonFiniteData(Refused):
    """NaN or inf in the data of an evaluation. The command line exits with 4."""

    exit_code = 4

    def __init__(self, split: str, rows: Sequence[int], reason: str = "") -> None:
        listed = ", ".join(map(str, rows[:SHOWN]))
        if len(rows) > SHOWN:
            listed += ", ..."
        message = f"NaN or inf in the evaluation of the {split} split"
        if rows:
            message = f"NaN or inf in the {split} split: samples {listed}"
        if reason:
            message += f" ({reason})"
        super().__init__(Problem(message, ("task",), code="non-finite"))


class NonFiniteMetric(Refused):
    """The metric by which evaluations are compared is NaN or inf. The command line exits with 4."""

    exit_code = 4

    def __init__(self, step: int, name: str, value: float) -> None:
        message = (
            f"step {step}: {name} of the validation split is {value:g}, which is the metric of evaluate.best; "
            'lower train.optimizer.lr, choose another metric, or set train.non_finite = "skip" to continue'
        )
        super().__init__(Problem(message, ("evaluate", "best"), code="non-finite"))


def rows_with_nan(tensors: Iterable[Tensor], rows: Sequence[int]) -> list[int]:
    """Return the rows at which a tensor on the CPU, whose first dimension they are, is NaN or inf."""
    bad = torch.zeros(len(rows), dtype=torch.bool)
    for tensor in tensors:
        if tensor.is_floating_point():
            bad |= ~tensor.isfinite().reshape(len(rows), -1).all(1)
    return [rows[place] for place in bad.nonzero()[:, 0].tolist()]


def describe_data(experiment: Experiment) -> str:
    """Return the training data of an experiment: task, and data components with their files."""
    lines = [f"task {experiment.task.name}"]
    for path, component in components_in(experiment):
        if component.kind != "data":
            continue
        words = [f"{dotted(path)} {component.name}"]
        options = component.model_dump()
        for name, info in type(component).model_fields.items():
            if path_mark(info):
                words.append(f"{name} {options[name]!r}")
        lines.append(", ".join(words))
    return "; ".join(lines)
