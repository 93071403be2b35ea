"""One training step in the order in which it happens, and the state that a run is resumed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import BucketedTask, Task
from dither.registry.contracts.records import Clean, Noised

from ..config.options import Train
from ..distributed.ranks import SINGLE_RANK, Ranks, local_shard
from ..optimizers.ema import MovingAverage
from ..optimizers.optimizer_state import flatten, restore
from .cuda_graph import StepGraph, require_capturable, set_capturable
from .ddp_fsdp import ParallelModel
from .device import compile_mode, prepare_compiler, to_device
from .diffusion import Diffusion
from .lora import select_trained
from .nan_guard import FiniteGuard, NonFinite, Skips, all_finite
from .randomness import Stream, seed_generators

__all__ = ["BucketOrder", "Prefetcher", "SampleOrder", "Trainer", "divide", "divisor_of"]

TINY = 1e-30
"""Least weight of a batch, so that a batch without weighted positions does not divide by 0."""
Scalar = float | Float[Tensor, ""]


SHUFFLED = 1 << 20
CHUNK = 1 << 18
ROUNDS = 6
"""Samples up to which an epoch is shuffled in memory, otherwise divided into buckets at once;
rounds of the cipher."""


def permute(numbers: np.ndarray, size: int, key: Sequence[int]) -> np.ndarray:
    """Return the places of numbers in a pseudo-random permutation of `range(size)`, in memory independent of `size`.

    A generalised Feistel cipher on pairs of digits, repeated where it exceeds the range (Black and
    Rogaway 2002, https://doi.org/10.1007/3-540-45760-7_9), with the finaliser of SplitMix64.
    """
    base = np.uint64(math.isqrt(size - 1) + 1)
    keys = np.random.default_rng(key).integers(1 << 63, size=ROUNDS)
    places = numbers.astype(np.uint64)
    outside = np.ones(len(numbers), bool)
    while outside.any():
        high, low = np.divmod(places[outside], base)
        for round_key in keys.astype(np.uint64):
            mixed = (low ^ round_key) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            high, low = low, (high + (mixed ^ (mixed >> np.uint64(31))) % base) % base
        places[outside] = high * base + low
        outside = places >= size
    return places.astype(np.int64)


class SampleOrder:
    """Order of `size` training samples: one permutation per epoch, a function of the seed alone."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed

    def rows(self, start: int, count: int) -> list[int]:
        """Return the numbers of the next `count` samples after `start` samples; a batch may cross epochs."""
        rows: list[int] = []
        while len(rows) < count:
            epoch, offset = divmod(start + len(rows), self.size)
            places = slice(offset, min(offset + count - len(rows), self.size))
            if self.size <= SHUFFLED:
                rows += _permutation(self.size, self.seed, epoch)[places].tolist()
            else:
                rows += permute(
                    np.arange(places.start, places.stop), self.size, [self.seed, epoch]
                ).tolist()
        return rows


@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)


class BucketOrder:
    """Order in which most batches hold samples of one bucket, such as equal padding; a function of the seed alone.

    Each epoch shuffles the samples, cuts those of a bucket into batches, cuts the remainders of all
    buckets into mixed batches, and shuffles the batches. Samples that do not fill the last batch
    are dropped for this epoch. Very many samples are shuffled and then treated in chunks.
    """

    def __init__(self, buckets: Sequence[int], size: int, seed: int) -> None:
        self.samples = len(buckets)
        self.size = size
        self.seed = seed
        whole = not hasattr(buckets, "__array__") or self.samples <= SHUFFLED
        self.buckets: Any = np.asarray(buckets[:]) if whole else buckets
        self.chunk = self.samples if self.samples <= SHUFFLED else -(-CHUNK // size) * size
        self._chunk = lru_cache(maxsize=2)(self._batches)

    def rows(self, start: int, count: int) -> list[int]:
        """Return the numbers of the samples in the batch after `start` samples, a multiple of the batch size."""
        epoch, batch = divmod(start // count, self.samples // self.size)
        chunk, place = divmod(batch, max(self.chunk // self.size, 1))
        rows: list[int] = self._chunk(epoch, chunk)[place].tolist()
        return rows

    def _batches(self, epoch: int, chunk: int) -> np.ndarray:
        """Return the batches of a chunk of an epoch, `batches size`."""
        generator = np.random.default_rng(
            [self.seed, epoch, chunk][: 2 + (self.chunk < self.samples)]
        )
        if self.chunk < self.samples:
            numbers = np.arange(chunk * self.chunk, min((chunk + 1) * self.chunk, self.samples))
            shuffled = permute(numbers, self.samples, [self.seed, epoch])
        else:
            shuffled = generator.permutation(self.samples)
        buckets = np.asarray(self.buckets[shuffled])
        pure = []
        remainders = []
        for bucket in np.unique(buckets):
            rows = shuffled[buckets == bucket]
            full = len(rows) // self.size * self.size
            pure.append(rows[:full])
            remainders.append(rows[full:])
        mixed = generator.permutation(np.concatenate(remainders))
        batches = np.concatenate([*pure, mixed[: len(mixed) // self.size * self.size]]).reshape(
            -1, self.size
        )
        return batches[generator.permutation(len(batches))]


def make_order(task: Task, train: Train, seed: int) -> SampleOrder | BucketOrder:
    """Return the order of the training samples; Refused if buckets are required and the task or its size has none."""
    size = task.size("train")
    place = ("train", "buckets")
    possible = isinstance(task, BucketedTask) and size >= train.batch_size
    if train.buckets is False or (train.buckets is None and not possible):
        return SampleOrder(size, seed)
    if not isinstance(task, BucketedTask):
        raise Refused(Problem("the task defines no buckets of equal padding", place, code="misfit"))
    if size < train.batch_size:
        message = f"{size} training samples do not fill a batch of {train.batch_size}"
        raise Refused(Problem(message, place, code="no-samples"))
    return BucketOrder(task.buckets("train"), train.batch_size, seed)


BATCHES_PER_WORKER = 2
"""Prefetched batches for each of `train.workers`."""
DEFAULT_WORKERS = 2
MAX_SHARE = 0.05
"""Threads by default on a GPU, and the share of a step that reading may take before `dither bench`
suggests them."""


class Prefetcher:
    """Reads the batch of a step, and those of the next steps in `workers` threads; with 0, each on request.

    Reading is numpy and torch working on files and memory, which release the GIL, so threads are as
    fast as processes and copy neither the data nor the batches.
    """

    def __init__(self, read: Callable[[int], Clean], workers: int) -> None:
        self._read = read
        self._capacity = BATCHES_PER_WORKER * workers
        self._threads = ThreadPoolExecutor(workers, "dither-reader") if workers else None
        self._pending: dict[int, Future[Clean]] = {}

    def __call__(self, step: int, last: int) -> Clean:
        """Return the batch of a step; steps from `last` on are not read."""
        if self._threads is None or (
            self._pending and step < min(self._pending)
        ):  # read again to diagnose it
            return self._read(step)
        for passed in [other for other in self._pending if other < step]:
            self._pending.pop(passed).cancel()
        for coming in range(step, max(min(step + 1 + self._capacity, last), step + 1)):
            if coming not in self._pending:
                self._pending[coming] = self._threads.submit(self._read, coming)
        return self._pending.pop(step).result()


class Trainer:
    """Trains the model of a system on its device. A step is a function of the weights, the seed and its number.

    Attributes:
        step: Number of steps made, skipped ones included.
        average: Moving average of the weights, or None.
        sums: Loss times weight, weight and gradient norm of `counted` steps, since the last
            `pop_metrics`.
        skips: Which steps may be skipped, and how many were.
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
        self.order = make_order(system.task, train, seed)
        self.device = next(system.model.parameters()).device
        workers = train.workers
        if workers is None:
            workers = DEFAULT_WORKERS if self.device.type in ("cuda", "mps") else 0
        self._copy_stream: Any = None
        if self.device.type == "cuda":
            self._copy_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._read = Prefetcher(self._load, workers)
        select_trained(system.model, train, seed)
        self.average = MovingAverage(system.model, train.ema) if train.ema else None
        self.compiled = compile_mode(train.compile, self.device)
        if self.compiled:
            prepare_compiler(self.device)
            system.compile_model(self.compiled)
        self.parallel = ParallelModel(system, self.average, train, ranks)
        self.parameters = [p for p in system.model.parameters() if p.requires_grad]
        self.optimizer = train.optimizer.build(system.model)
        self._divides = None if self.parallel.sharded else self.optimizer
        self.base_lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.factor = train.lr_schedule.build(train.steps)
        self.skips = Skips(train.skip_limit if train.non_finite == "skip" else 0)
        self.guard = FiniteGuard(self.optimizer, self.device, limit=self.skips.limit)
        self.graph: StepGraph | None = None
        if self.compiled == "reduce-overhead" and self.device.type == "cuda":
            self.capture(StepGraph(self.update))
        self.step = self.counted = 0
        self.sums: Float[Tensor, "3"] = torch.zeros(3, device=self.device)
        if not self.guard.deferred:
            self.sums = torch.zeros(3, dtype=torch.float64)

    def capture(self, graph: StepGraph) -> None:
        """Make steps through a CUDA graph; Refused if that is not possible."""
        require_capturable(self.system.model, self.optimizer, self.ranks, self.guard)
        set_capturable(self.optimizer, self.device)
        self.graph = graph

    def advance(self) -> dict[str, Tensor]:
        """Make one step and return its loss and gradient norm as tensors on the device.

        Raises:
            NonFinite: Loss, gradient norm or weights are NaN or inf, and the step may not be
                skipped; the weights are those before the step.
        """
        seed_generators(self.device, Stream.STEP, self.seed, self.step, 0)
        factor = self.factor(self.step)
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            rate: Any = group["lr"]
            group["lr"] = rate.fill_(lr * factor) if isinstance(rate, Tensor) else lr * factor
        try:
            metrics = (self.graph or self.update)(self._clean(self.step))
        except NonFinite as error:
            # If an update made the weights non-finite, the samples are not at fault
            self.check_weights()
            self._diagnose(error)
            if not self.skips.allow(error):
                raise
            metrics = {"loss": as_tensor(error.loss), "grad_norm": as_tensor(error.norm)}
        else:
            if self.average is not None:
                self.average.update_parameters()
            self.counted += 1
            self.skips.in_row = 0
        self.step += 1
        return metrics

    def update(self, clean: Clean) -> dict[str, Tensor]:
        """Make the part of a step that may be captured as a CUDA graph."""
        for parameter in self.parameters:
            parameter.grad = None
        total, weight = self._backward(self.system.prepare(clean))
        gradients = self.parallel.gradients(self.parameters)
        norm: Any = self.parallel.gradient_norm(gradients)
        if (
            not self.guard.deferred
        ):  # the guard synchronises anyway, and host arithmetic launches no kernels
            total = total.item()
            weight = weight.item()
            norm = norm.item()
        weight = weight.clamp_min(TINY) if isinstance(weight, Tensor) else max(weight, TINY)
        local_weight = weight / self.ranks.size  # ranks average gradients, where sums are needed
        divide(self._divides, gradients, divisor_of(local_weight, self.train.clip, norm))
        norm = norm / local_weight
        self.guard.record(self.step, total, weight, norm)
        self.optimizer.step()
        self.sums += (
            self.guard.metrics
            if self.guard.deferred
            else self.sums.new_tensor((total, weight, norm))
        )
        return {"loss": as_tensor(total / weight), "grad_norm": as_tensor(norm)}

    def _backward(self, batch: tuple[Clean, Tensor, Noised]) -> Any:
        """Accumulate the gradients of the weighted loss of a batch; return the sums of loss times weight and weight.

        Noise is drawn for the whole batch, so that losses depend neither on accumulation nor on
        ranks.
        """
        totals = []
        weights = []
        for number, rows in enumerate(self.parallel.micro_batches, 1):
            with self.parallel.accumulation_step(
                last=number == len(self.parallel.micro_batches)
            ) as forward:
                measured = forward(*_select(batch, self.parallel.local_rows(rows)))
                total = measured.total()
                total.backward()  # type: ignore[no-untyped-call]
            totals.append(total.detach())
            weights.append(measured.weights.detach().sum())
        sums = sum(totals[1:], totals[0]), sum(weights[1:], weights[0])
        return sums if self.ranks.size == 1 else self.ranks.all_reduce(torch.stack(sums)).unbind()

    def _clean(self, step: int) -> Clean:
        """Return the batch of a step on the device."""
        clean = self._read(step, self.train.steps)
        if self._copy_stream is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_stream(self._copy_stream)

            def keep(tensor: Tensor) -> Tensor:
                tensor.record_stream(stream)  # else its memory may be reused while it is read
                return tensor

            clean.apply(keep)
        return to_device(clean, self.device)

    def _load(self, step: int) -> Clean:
        """Read the batch of a step; copy it to a GPU on a stream of its own, so that this overlaps with training."""
        clean = self.system.task.batch("train", self.rows(step))
        if self._copy_stream is None:  # other devices, such as MPS, allow only one thread
            return clean
        with torch.cuda.stream(self._copy_stream):
            return to_device(clean, self.device)

    def rows(self, step: int) -> list[int]:
        """Return the numbers of the samples in the batch of a step."""
        return self.order.rows(step * self.train.batch_size, self.train.batch_size)

    def pop_metrics(self) -> dict[str, float]:
        """Return mean loss and gradient norm since the last call, and the learning rate, after `check`."""
        self.check()
        if skipped := int(self.guard.skipped):
            self.skips.on_skip(
                f"{skipped} of {self.counted} steps skipped: loss or gradient norm is NaN or inf"
            )
            self.skips.counted = self.skips.counted + skipped
            self.counted = self.counted - skipped
            self.guard.skipped.zero_()
        total, weight, norm = self.sums.tolist()
        counted = max(self.counted, 1)
        self.counted = 0
        self.sums.zero_()
        loss, norm = (
            (total / weight, norm / counted) if weight else (math.nan, math.nan)
        )  # all steps were skipped
        metrics = {
            "loss": loss,
            "grad_norm": norm,
            "lr": float(self.optimizer.param_groups[0]["lr"]),
        }
        if self.skips.limit:
            metrics["skipped"] = self.skips.counted
            self.skips.counted = 0
        return metrics

    def check(self) -> None:
        """Raise NonFinite if an update was cancelled. Synchronises."""
        try:
            self.guard.check()
        except NonFinite as error:
            self._diagnose(error)
            raise

    def check_weights(self) -> None:
        """Raise NonFinite, with the last step that was not skipped, if weights are. Synchronises. Collective."""
        if self.ranks.any(
            not all_finite(local_shard(parameter.detach()) for parameter in self.parameters)
        ):
            raise NonFinite(self.step - 1 - self.skips.in_row, weights=True)

    @torch.no_grad()
    def _diagnose(self, error: NonFinite) -> None:
        """Find the faulty samples of the batch by computing their losses again with the same noise."""
        rows = self.rows(error.step)
        faulty = []
        seed_generators(self.device, Stream.STEP, self.seed, error.step, 0)
        batch = self.system.prepare(self._clean(error.step))
        for part in self.parallel.micro_batches:
            with self.system.eager():
                measured = self.system(*_select(batch, part))
            finite = (measured.values * measured.weights).isfinite().flatten(1).all(1)
            faulty += (~finite).tolist()
        error.rows = [row for row, bad in zip(rows, faulty, strict=True) if bad] or rows
        error.certain = any(faulty) and not all(
            faulty
        )  # if all are faulty, the cause is the weights or the loss

    def state(self, gathered: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a checkpoint without weights: tensors (full on the main rank, or sharded) and JSON values."""
        tensors, plain = flatten(self.optimizer)
        tensors = (self.parallel.gather(tensors) if gathered else tensors) | {
            "sums": self.sums.clone()
        }
        averaged = 0 if self.average is None else self.average.updates
        in_row = int(self.guard.in_row) if self.guard.deferred else self.skips.in_row
        skipped = {
            "skipped": self.skips.counted + int(self.guard.skipped),
            "skipped_in_row": in_row,
        }
        counted = self.counted - int(
            self.guard.skipped
        )  # which `advance` counted, as it does not wait for the device
        counts = {"step": self.step, "counted": counted, "averaged": averaged}
        return tensors, counts | skipped | {"optimizer": plain}

    def load_state(
        self, tensors: Mapping[str, Float[Tensor, "..."]], plain: Mapping[str, Any]
    ) -> None:
        """Restore what `state` returned; ValueError if it belongs to another optimizer or other parameters."""
        rest = dict(tensors)
        self.sums.copy_(rest.pop("sums"))
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        own = [group.get("capturable") for group in self.optimizer.param_groups]
        restore(
            self.optimizer,
            self.parallel.shard_optimizer_state(rest, parameters),
            plain["optimizer"],
        )
        if own != [group.get("capturable") for group in self.optimizer.param_groups]:
            set_capturable(self.optimizer, None)
        if self.graph is not None:  # the state is at other addresses now
            self.capture(type(self.graph)(self.update))
        self.step = int(plain["step"])
        self.counted = int(plain["counted"])
        self.guard.start(self.step, int(plain.get("skipped_in_row", 0)))
        self.guard.skipped.zero_()
        # checkpoints of older versions have no skipped steps
        self.skips.counted = int(plain.get("skipped", 0))
        self.skips.in_row = int(plain.get("skipped_in_row", 0))
        if self.average is not None:
            self.average.updates = int(plain["averaged"])


def _select(batch: tuple[Clean, Tensor, Noised], rows: slice) -> tuple[Clean, Tensor, Noised]:
    """Return some rows of a batch; slicing the whole batch would cost time."""
    clean, t, noised = batch
    return batch if rows == slice(0, len(clean.valid)) else (clean[rows], t[rows], noised[rows])


def as_tensor(value: Scalar) -> Float[Tensor, ""]:
    """Return a number as a tensor, faster than `torch.as_tensor`."""
    return value if isinstance(value, Tensor) else torch.scalar_tensor(value)


def divisor_of(weight: Scalar, clip: float, norm: Scalar) -> Scalar:
    """Return the divisor that turns summed gradients into those of a weighted mean, clipped to the norm `clip`.

    `norm` is that of the summed gradients; without clipping, `clip` is 0.
    """
    if not clip:
        return weight
    if isinstance(norm, Tensor):
        return torch.maximum(as_tensor(weight), norm / clip)
    return max(weight, norm / clip)


def divide(optimizer: Optimizer | None, gradients: list[Tensor], divisor: Any) -> None:
    """Divide gradients in place, or have a fused optimizer kernel divide them in its next step, as `GradScaler` does.

    Without an optimizer they are divided here.
    """
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.grad_scale = as_tensor(divisor)  # type: ignore[union-attr]
    else:
        torch._foreach_div_(gradients, divisor)
