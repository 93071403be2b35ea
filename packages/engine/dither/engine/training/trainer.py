"""One step of training, in the order in which it happens, and the state that a run is resumed from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.flow.records import Clean, Noised

from ..config.options import Train
from ..distributed.ranks import SINGLE_RANK, Ranks, local_shard
from ..optimizers.moving_average import MovingAverage
from ..optimizers.optimizer_state import flatten, restore
from .batches import Prefetcher, make_order
from .ddp_fsdp import ParallelModel
from .device import keep_compiled, require_compiler
from .diffusion import Diffusion
from .gradients import as_tensor, divide, divisor_of
from .lora import add_lora
from .nan_guard import FiniteGuard, NonFinite, NonFiniteWeights, Skips, all_finite
from .randomness import Stream, seed_generators

__all__ = ["Trainer", "freeze"]

TINY = 1e-30
"""Stands for the weight of a batch in which nothing is weighted."""

Prepared = tuple[Clean, Tensor, Noised]


class Trainer:
    """Trains the model of a system, step by step. A step is a function of the weights, the seed and its number.

    Args:
        system: What is trained, on its device already.
        train: The settings.
        seed: Of the run.
        ranks: The processes that train together, each on its share of every batch.

    Attributes:
        step: Steps done, those among them that were skipped.
        average: The moving average of the weights, or None.
        counted: Steps in `sums`.
        skips: Which steps may be skipped, and how many were.
    """

    def __init__(self, system: Diffusion, train: Train, seed: int, ranks: Ranks = SINGLE_RANK) -> None:
        size = system.task.size("train")
        if size < 1:
            raise Refused("the task has no training samples")
        self.system, self.train, self.seed, self.ranks = system, train, seed, ranks
        self.order = make_order(system.task, train, seed)
        self._read = Prefetcher(lambda rows: system.task.batch("train", rows), self.rows, train.workers)
        if train.lora is None:
            freeze(system.model, train.freeze)
        else:
            add_lora(system.model, **train.lora.model_dump(), seed=seed)
        self.average = MovingAverage(system.model, train.ema) if train.ema else None
        if train.compile:
            require_compiler(next(system.model.parameters()).device)
            keep_compiled()
            system.compile_model(blocks=train.compile == "blocks")
        self.parallel = ParallelModel(system, self.average, train, ranks)
        self.parameters = [p for p in system.model.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = train.optimizer.build(system.model)
        self._divides = None if self.parallel.sharded else self.optimizer
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.factor = train.lr_schedule.build(train.steps)
        self.skips = Skips(train.skip_limit if train.non_finite == "skip" else 0)
        self.guard = FiniteGuard(self.optimizer, self.device, deferred=False if self.skips.limit else None)
        self.step = 0
        self.counted = 0
        self._on_host = [0.0, 0.0, 0.0]
        self._on_device = torch.zeros(3, device=self.device)

    @property
    def sums(self) -> Float[Tensor, "3"]:
        """What `read` reports, added up since it was last called: loss times weight, weight, gradient norm."""
        return self._on_device if self.guard.deferred else torch.tensor(self._on_host, dtype=torch.float64)

    def advance(self) -> dict[str, Tensor]:
        """Do one step and return its figures, as tensors on the device.

        Raises:
            NonFinite: The loss or the gradient is no number, and the step may not be skipped; the weights are as they
                were before it.
            NonFiniteWeights: An update before it has made weights that are no numbers.
        """
        seed_generators(self.device, Stream.STEP, self.seed, self.step, 0)
        for parameter in self.parameters:
            parameter.grad = None
        figures = self._gradients()
        gradients = self.parallel.gradients(self.parameters)
        norm: Any = self.parallel.gradient_norm(gradients)
        if not self.guard.deferred:  # the host waits for them anyway, and its arithmetic takes no kernels
            figures = [figure.item() for figure in figures]
            norm = norm.item()
        total, weight = figures
        weight = weight.clamp_min(TINY) if isinstance(weight, Tensor) else max(weight, TINY)
        weight_here = self.parallel.scale(weight)
        divide(self._divides, gradients, divisor_of(weight_here, self.train.clip, norm))
        norm = norm / weight_here
        try:
            self.guard.look(self.step, total, weight, norm)
        except NonFinite as error:
            self.check_weights()  # where an update has destroyed them, the data are not to blame
            self._explain(error)
            if not self.skips.one_more(error):
                raise
        else:
            self._update()
            self._count(total, weight, norm)
        self.step += 1
        return {"loss": as_tensor(total / weight), "grad_norm": as_tensor(norm)}

    def _count(self, *figures: Any) -> None:
        """Add the figures of a step that was made to `sums`."""
        self.counted += 1
        self.skips.row = 0
        if self.guard.deferred:
            self._on_device += self.guard.figures
        else:
            self._on_host = [before + now for before, now in zip(self._on_host, figures, strict=True)]

    def _update(self) -> None:
        """Change the weights, and their average."""
        factor = self.factor(self.step)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters()

    def _gradients(self) -> Any:
        """Add up the gradients of the weighted losses of a batch; return the sum of the losses, and of the weights."""
        totals, weights = [], []
        batch = self._batch(self.step)
        for number, part in enumerate(self.parallel.parts, 1):
            with self.parallel.step(last=number == len(self.parallel.parts)) as measure:
                measured = measure(*self._taken(batch, self.parallel.own(part)))
                total = measured.total()
                total.backward()  # type: ignore[no-untyped-call]
            totals.append(total.detach())
            weights.append(measured.weights.detach().sum())
        figures = sum(totals[1:], totals[0]), sum(weights[1:], weights[0])
        return figures if self.ranks.size == 1 else self.ranks.all_reduce(torch.stack(figures)).unbind()

    def _batch(self, step: int) -> Prepared:
        """Return the whole batch of a step on the device, noised.

        Noise is drawn for all of it at once: a loss is the same in however many parts, and on however many ranks.
        """
        clean = self._read(step, self.train.steps)
        if self.device.type == "cuda":  # pinned memory lets the copy run beside the computation
            clean = clean.apply(Tensor.pin_memory).to(self.device, non_blocking=True)
        elif self.device.type != "cpu":
            clean = clean.to(self.device)
        return self.system.prepare(clean)

    def _taken(self, batch: Prepared, rows: slice) -> Prepared:
        """Return some rows of a batch; to take all of them takes time, too."""
        clean, t, noised = batch
        return batch if rows == slice(0, self.train.batch_size) else (clean[rows], t[rows], noised[rows])

    def rows(self, step: int) -> list[int]:
        """Return the numbers of the samples in the batch of a step."""
        return self.order.rows(step * self.train.batch_size, self.train.batch_size)

    def pop_metrics(self) -> dict[str, float]:
        """Return the means since the last call, and start anew. Waits for the device.

        Raises:
            NonFinite: A step since then was not made, because its loss or gradient was no number.
        """
        self.check()
        total, weight, norm = self.sums.tolist()
        counted, self.counted = max(self.counted, 1), 0
        self._on_host = [0.0, 0.0, 0.0]
        self._on_device.zero_()
        loss, norm = (total / weight, norm / counted) if weight else (math.nan, math.nan)  # all were skipped
        figures = {"loss": loss, "grad_norm": norm, "lr": self.optimizer.param_groups[0]["lr"]}
        return figures | self.skips.take()

    def check(self) -> None:
        """Make sure that every step so far was made. Waits for the device.

        Raises:
            NonFinite: One was not.
        """
        try:
            self.guard.ask()
        except NonFinite as error:
            self._explain(error)
            raise

    def check_weights(self) -> None:
        """Make sure that the weights are numbers. Waits for the device; every rank has to ask.

        Raises:
            NonFiniteWeights: They are not, on some rank; the last step that was not skipped is to blame.
        """
        if self.ranks.any(not all_finite(local_shard(parameter.detach()) for parameter in self.parameters)):
            raise NonFiniteWeights(self.step - 1 - self.skips.row)

    @torch.no_grad()
    def _explain(self, error: NonFinite) -> None:
        """Say which samples of the batch are at fault, by measuring them again with the same noise."""
        rows, faulty = self.rows(error.step), []
        seed_generators(self.device, Stream.STEP, self.seed, error.step, 0)
        batch = self._batch(error.step)
        for part in self.parallel.parts:
            with self.system.eager():
                measured = self.system(*self._taken(batch, part))
            finite = (measured.values * measured.weights).isfinite().flatten(1).all(1)
            faulty += (~finite).tolist()
        error.rows = [row for row, bad in zip(rows, faulty, strict=True) if bad] or rows
        error.certain = any(faulty) and not all(faulty)  # all of them: the weights are, or the loss

    def state(self, gathered: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a resumed run needs beside the weights: tensors, whole on the chief or in pieces, and values."""
        tensors, plain = flatten(self.optimizer)
        tensors = (self.parallel.gather(tensors) if gathered else tensors) | {"sums": self.sums}
        averaged = 0 if self.average is None else self.average.updates
        counts = {"step": self.step, "counted": self.counted, "averaged": averaged}
        return tensors, counts | self.skips.state() | {"optimizer": plain}

    def load_state(self, tensors: Mapping[str, Float[Tensor, "..."]], plain: Mapping[str, Any]) -> None:
        """Take over what `state` returned; the weights and their average are loaded apart.

        Raises:
            ValueError: It belongs to another optimizer or other parameters.
        """
        rest = dict(tensors)
        sums = rest.pop("sums")
        self._on_host = sums.tolist()
        self._on_device.copy_(sums)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        restore(self.optimizer, self.parallel.spread(rest, parameters), plain["optimizer"])
        self.step, self.counted = int(plain["step"]), int(plain["counted"])
        self.guard.start(self.step)
        self.skips.load_state(plain)
        if self.average is not None:
            self.average.updates = int(plain["averaged"])


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Let the weights whose names fit a pattern stay as they are in training; return the names.

    Args:
        model: Its parameters want no gradient any more where a pattern fits.
        patterns: Names with * and ?, such as "embedding.*".

    Raises:
        Refused: A pattern fits no weight, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    problems = []
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            close = nearest(pattern, parameters)
            hint = f'did you mean "{close}"?' if close else f"weights are called {', '.join(parameters)}"
            problems.append(Problem(f'no weight is called "{pattern}"', ("train", "freeze"), help=hint))
    frozen = [name for name in parameters if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if len(frozen) == len(parameters):
        problems.append(Problem("nothing is left to train", ("train", "freeze")))
    if problems:
        raise Refused(problems)
    for name in frozen:
        parameters[name].requires_grad_(False)
    return frozen
