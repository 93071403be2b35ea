"""One training step in the order in which it happens, and the state that a run is resumed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.config.errors import Refused
from dither.registry.contracts.records import Clean, Noised

from ..config.options import Train
from ..distributed.ranks import SINGLE_RANK, Ranks, local_shard
from ..optimizers.ema import MovingAverage
from ..optimizers.optimizer_state import flatten, restore
from .data_order import Batches
from .ddp_fsdp import ParallelModel
from .device import compile_mode, prepare_compiler, to_device
from .diffusion import Diffusion
from .lora import select_trained
from .loss_scale import LossScale
from .nan_guard import FiniteGuard, NonFinite, all_finite, step_where
from .peft_adapter import read_adapter
from .randomness import Stream, seed_generators

__all__ = ["Trainer", "divisor_of"]

TINY = 1e-30
"""Least weight of a batch, so that a batch without weighted positions does not divide by 0."""

MAX_UNREAD = 1000
"""Steps after which loss, norm and finiteness are read back from the device, even if nothing is logged.

Each step leaves a small tensor on the device, so that training never waits for a number; the bound
limits their memory, and how late a NaN is reported.
"""


class Trainer:
    """Trains a system on its device. A step is a function of weights, seed and its number.

    Attributes:
        step: Number of steps made, skipped ones included.
        average: Moving average of the weights, or None.
        sums: Loss times weight, weight and gradient norm of `counted` steps, since the last
            `pop_metrics`.
        skipped: Steps that were skipped since then, and `skipped_in_row` those up to the newest.
        on_skip: Called with a message for each of them.
        overflows: Number of steps since then whose gradients exceeded float16.
    """

    def __init__(
        self,
        system: Diffusion,
        train: Train,
        seed: int,
        ranks: Ranks = SINGLE_RANK,
    ) -> None:
        if system.task.size("train") < 1:
            raise Refused("the task has no training samples", code="no-samples")
        self.system = system
        self.train = train
        self.seed = seed
        self.ranks = ranks
        self.device = system.device
        self.batches = Batches(system.task, train, seed, self.device)

        # The order matters: LoRA adds parameters, the average copies them, FSDP replaces them all.
        select_trained(system.model, train, seed)
        if train.lora is not None and train.lora.start_from is not None:
            read_adapter(Path(train.lora.start_from), system.model, train.lora)
        self.average = MovingAverage(system.model, train.ema) if train.ema else None
        self.compiled = compile_mode(train.compile, self.device)
        if self.compiled:
            prepare_compiler(self.device)
            system.compile_model(self.compiled)
        self.parallel = ParallelModel(system, self.average, train, ranks)

        self.parameters = [p for p in system.model.parameters() if p.requires_grad]
        self.optimizer = train.optimizer.build(system.model)
        self.base_lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.lr_factor = train.lr_schedule.build(train.steps)
        self.loss_scale = None
        if system.precision == "float16":
            self.loss_scale = LossScale(self.device)
        self.guard = FiniteGuard(
            self.device, limit=train.skip_limit if train.non_finite == "skip" else 0
        )

        self.step = 0
        self.counted = 0
        self.sums: Float[Tensor, "3"] = torch.zeros(3, dtype=torch.float64)
        self.skipped = 0
        self.skipped_in_row = 0
        self.overflows = 0
        self.on_skip: Callable[[str], object] = lambda message: None

    def advance(self) -> dict[str, Tensor]:
        """Make one step and return its loss and gradient norm as tensors on the device.

        A step whose loss or gradient norm is NaN or inf changes no weights; `check` reports it.
        """
        # The 0 is in place of a rank: every rank makes the same draws for the whole batch.
        seed_generators(self.device, Stream.STEP, self.seed, self.step, 0)
        self._set_learning_rate()
        for parameter in self.parameters:
            parameter.grad = None

        clean = self.batches(self.step)
        # With buckets some batches have padding and others have none; if the mark differed between
        # batches, a model would be compiled for both.
        if not self.batches.has_buckets:
            clean = clean.mark_unpadded()
        clean = to_device(clean, self.device)
        # Noise is drawn for the whole batch, so that losses depend neither on accumulation nor on
        # ranks (dropout, drawn in the model, does).
        batch = self.system.prepare(clean)
        loss_sum, weight = self._backward(batch)
        weight = weight.clamp_min(TINY)

        # Gradients are those of the sum of losses, but the optimizer should see those of the
        # weighted mean. The weight is that of all ranks, over which gradients have been averaged:
        # they are already divided by the number of ranks.
        weight_per_rank = weight / self.ranks.size
        gradients = self.parallel.gradients(self.parameters)
        norm_of_sum = self.parallel.gradient_norm(gradients).to(weight)
        overflow = torch.zeros((), dtype=torch.bool, device=self.device)
        if self.loss_scale is not None:
            norm_of_sum = norm_of_sum / self.loss_scale.scale
            overflow = self.loss_scale.overflowed(loss_sum, norm_of_sum)
        divisor = divisor_of(weight_per_rank, self.train.clip, norm_of_sum)
        norm = norm_of_sum / weight_per_rank
        if self.loss_scale is not None:
            # With the scale of this step's gradients, which `update` changes for the next step.
            divisor = divisor * self.loss_scale.scale
            self.loss_scale.update(overflow)

        # Whether the step counts is decided on the device: `applied` is a tensor, and the update
        # is cancelled there without a copy to the host.
        applied = self.guard.record(loss_sum, weight, norm, overflow)
        step_where(
            applied,
            self.optimizer,
            gradients,
            divisor.float(),
            scale=not self.parallel.sharded,
        )
        if self.average is not None:
            self.average.update(applied)

        self.step += 1
        if len(self.guard.unread) == MAX_UNREAD:
            self.check()
        return {"loss": (loss_sum / weight).float(), "grad_norm": norm.float()}

    def _set_learning_rate(self) -> None:
        factor = self.lr_factor(self.step)
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * factor)
            else:
                group["lr"] = lr * factor

    def _backward(
        self, batch: tuple[Clean, Tensor, Noised]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Accumulate gradients of a batch; return the sums of loss times weight and of weight."""
        loss_sums = []
        weights = []
        # Sums of losses add up over micro-batches of any size; means would not.
        for number, rows in enumerate(self.parallel.micro_batches, 1):
            # Ranks exchange gradients once, after the last one.
            last = number == len(self.parallel.micro_batches)
            with self.parallel.accumulation_step(last) as forward:
                measured = forward(*_select(batch, self.parallel.local_rows(rows)))
                loss_sum = measured.total()
                scaled = loss_sum
                if self.loss_scale is not None:
                    scaled = loss_sum * self.loss_scale.scale
                scaled.backward()  # type: ignore[no-untyped-call]
            loss_sums.append(loss_sum.detach())
            weights.append(measured.weights.detach().sum())
        sums = self.ranks.all_reduce(torch.stack((sum(loss_sums), sum(weights))))  # type: ignore[arg-type]
        # Everything after the sums is in float64, as it is in the metrics; MPS has none.
        loss_sum, weight = sums.to(
            sums.dtype if self.device.type == "mps" else torch.float64
        )
        return loss_sum, weight

    def check(self) -> None:
        """Count the steps since the last call, report skipped ones. Waits for the device. Collective.

        Raises:
            NonFinite: Loss, gradient norm or weights were NaN or inf and the step may not be
                skipped; the weights are those before it.
        """
        outcomes = self.guard.read()
        for number, outcome in enumerate(outcomes):
            step = self.step - len(outcomes) + number
            if outcome.applied:
                self.sums += torch.tensor(outcome[:3], dtype=torch.float64)
                self.counted += 1
                self.skipped_in_row = 0
                continue
            if outcome.overflow:
                self.overflows += 1
                continue

            # If an update made the weights non-finite, the samples are not at fault.
            self.check_weights(step)
            error = NonFinite(step, outcome.loss_sum / outcome.weight, outcome.norm)
            error.later = any(other.applied for other in outcomes[number + 1 :])
            self._diagnose(error)
            if self.loss_scale is not None:
                error.add_note("float16 overflows early; train.precision = bfloat16")
            if outcome.stopped:
                if self.guard.limit:
                    row = f"{self.skipped_in_row + 1} such steps in a row"
                    error.add_note(f"{row}; train.skip_limit = {self.guard.limit}")
                raise error
            self.skipped += 1
            self.skipped_in_row += 1
            row = f"{self.skipped_in_row} in a row, at most {self.guard.limit}"
            self.on_skip(f"{error}; skipped ({row})")

    def check_weights(self, step: int | None = None) -> None:
        """Raise NonFinite, with the last update before a step, if weights are. Waits. Collective."""
        if step is None:
            step = self.step
        shards = [local_shard(parameter.detach()) for parameter in self.parameters]
        if self.ranks.any(not all_finite(shards)):
            raise NonFinite(step - 1 - self.skipped_in_row, weights=True)

    @torch.no_grad()
    def _diagnose(self, error: NonFinite) -> None:
        """Find the faulty samples of the batch: compute their losses again with the same noise.

        The weights are those of now. They are those of the step, too, unless later steps were
        applied before `check`, which is possible only where steps are skipped; the error then says so.
        """
        seed_generators(self.device, Stream.STEP, self.seed, error.step, 0)
        clean = to_device(self.batches.read(error.step), self.device)
        batch = self.system.prepare(clean)
        faulty: list[bool] = []
        for rows in self.parallel.micro_batches:
            with self.system.eager():
                measured = self.system(*_select(batch, rows))
            finite = (measured.values * measured.weights).isfinite()
            faulty += (~finite.flatten(1).all(1)).tolist()

        numbers = self.batches.rows(error.step)
        # The fault may not show again, such as one of the mean over the batch.
        error.rows = [
            row for row, bad in zip(numbers, faulty, strict=True) if bad
        ] or numbers
        # If all are faulty, the cause is the weights or the loss, not the data.
        error.certain = any(faulty) and not all(faulty)

    def pop_metrics(self) -> dict[str, float]:
        """Return mean loss and gradient norm since the last call, and the learning rate; `check`."""
        self.check()
        loss_sum, weight, norm_sum = self.sums.tolist()
        # The mean is undefined if all steps were skipped.
        loss = math.nan
        norm = math.nan
        if self.counted:
            loss = loss_sum / weight
            norm = norm_sum / self.counted
        metrics = {
            "loss": loss,
            "grad_norm": norm,
            "lr": float(self.optimizer.param_groups[0]["lr"]),
        }
        if self.guard.limit:
            metrics["skipped"] = self.skipped
        if self.loss_scale is not None:
            metrics["loss_scale"] = float(self.loss_scale.scale)
            metrics["overflows"] = self.overflows
        self.sums.zero_()
        self.counted = 0
        self.skipped = 0
        self.overflows = 0
        return metrics

    def state(self, gathered: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a checkpoint without weights, after `check`: tensors and JSON values.

        If `gathered`, tensors are full on the main rank; else they are shards.
        """
        self.check()
        tensors, plain = flatten(self.optimizer)
        if gathered:
            tensors = self.parallel.gather(tensors)
        counts = {
            "step": self.step,
            "counted": self.counted,
            "averaged": 0 if self.average is None else int(self.average.updates),
            "skipped": self.skipped,
            "skipped_in_row": self.skipped_in_row,
            "overflows": self.overflows,
        }
        if self.loss_scale is not None:
            tensors["loss_scale"] = self.loss_scale.scale.clone()
            counts["scaled_steps"] = int(self.loss_scale.steps)
        return {**tensors, "sums": self.sums.clone()}, {**counts, "optimizer": plain}

    def load_state(
        self, tensors: Mapping[str, Float[Tensor, "..."]], plain: Mapping[str, Any]
    ) -> None:
        """Restore what `state` returned; ValueError if it belongs to other parameters."""
        rest = dict(tensors)
        self.sums.copy_(rest.pop("sums"))
        # Under "auto" another device may have another precision.
        scale = rest.pop("loss_scale", None)
        if self.loss_scale is not None and scale is not None:
            self.loss_scale.scale.copy_(scale)
            self.loss_scale.steps.fill_(int(plain["scaled_steps"]))
        parameters = []
        for group in self.optimizer.param_groups:
            parameters += group["params"]
        sharded = self.parallel.shard_optimizer_state(rest, parameters)
        restore(self.optimizer, sharded, plain["optimizer"])

        self.step = int(plain["step"])
        self.counted = int(plain["counted"])
        self.skipped = int(plain["skipped"])
        self.skipped_in_row = int(plain["skipped_in_row"])
        self.overflows = int(plain["overflows"])
        self.guard.start(self.skipped_in_row)
        if self.average is not None:
            self.average.updates.fill_(int(plain["averaged"]))


def divisor_of(
    weight: Float[Tensor, ""], clip: float, norm: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Return the divisor of summed gradients for a weighted mean, clipped to the norm `clip`.

    `norm` is that of the summed gradients; without clipping, `clip` is 0.
    """
    return torch.maximum(weight, norm / clip) if clip else weight


def _select(
    batch: tuple[Clean, Tensor, Noised], rows: slice
) -> tuple[Clean, Tensor, Noised]:
    """Return some rows of a batch; slicing the whole batch would cost time."""
    clean, t, noised = batch
    if rows == slice(0, len(clean.valid)):
        return batch
    return clean[rows], t[rows], noised[rows]
