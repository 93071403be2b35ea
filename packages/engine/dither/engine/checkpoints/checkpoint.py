"""Checkpoints: written atomically, verified before they are read, never unpickled.

A folder step-00000100 holds model, ema and optimizer as .safetensors (with FSDP, folders of
shards), state.json and MANIFEST.json with their sha256. It is renamed to its final name last, so it
is complete unless it was damaged later.
"""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_model, save_file, save_model
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.atomic import (
    atomic_folder,
    follow_umask,
    fsync,
    move,
    remove_folder,
    remove_leftovers,
)
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import exists, is_file, is_folder
from dither.registry.files.write_errors import FULL

from ..files.checksums import MANIFEST, checkpoint_folders, verify, write_manifest
from ..files.damage import damage_of
from ..files.metrics_file import read_metrics, rounded
from ..files.resource_errors import disk_errors
from .sharded_checkpoint import Shards, part_of, read_tensors

__all__ = [
    "Checkpoints",
    "Contents",
    "Damaged",
    "Saver",
    "Scores",
    "load_state",
    "load_weights",
    "weights_of",
]

HEADER_BYTES = 64 * 1024
"""Upper bound of the bytes of a checkpoint besides its tensors."""


class Damaged(Refused):
    """A checkpoint, run or export does not match its checksums. The command line exits with 3."""

    exit_code = 3

    def __init__(
        self,
        problems: Problem | str | Sequence[Problem],
        *,
        code: str = "damaged-checkpoint",
    ) -> None:
        super().__init__(problems, code=code)


@dataclass(frozen=True)
class Contents:
    """The content of a checkpoint: weights, average, tensors of optimizer and trainer, JSON values."""

    model: nn.Module | Weights
    average: nn.Module | Weights | None
    tensors: Mapping[str, Tensor]
    plain: dict[str, Any]

    def size(self) -> int:
        """Return about the bytes on disk; tied weights count once."""
        named = [self.tensors]
        for module in (self.model, self.average):
            if module is not None:
                named.append(module.state_dict())
        # Tied weights are two names of one place.
        bytes_of: dict[tuple[Any, ...], int] = {}
        for tensors in named:
            for tensor in tensors.values():
                bytes_of[_place(tensor)] = tensor.nbytes
        return sum(bytes_of.values()) + HEADER_BYTES

    def write(self, folder: Path) -> None:
        """Write everything but MANIFEST.json into a folder."""
        for name, weights in (("model", self.model), ("ema", self.average)):
            if weights is not None:
                # save_file refuses tied weights, which save_model stores once.
                save = partial(save_model, weights)  # type: ignore[arg-type]
                _write_file(folder / f"{name}.safetensors", save)
        # safetensors stores contiguous tensors only.
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        _write_file(
            folder / "optimizer.safetensors", lambda path: save_file(tensors, path)
        )

    def copied(self) -> Contents:
        """Return a copy on the CPU, independent of further training."""
        average = None if self.average is None else Weights(self.average.state_dict())
        tensors = {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in self.tensors.items()
        }
        return Contents(
            Weights(self.model.state_dict()),
            average,
            tensors,
            copy.deepcopy(self.plain),
        )


class Weights:
    """A copy of weights on the CPU, in which tied weights stay tied."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        copies: dict[tuple[Any, ...], Tensor] = {}
        for tensor in weights.values():
            copies.setdefault(_place(tensor), tensor.detach().to("cpu", copy=True))
        self._weights = {
            name: copies[_place(tensor)] for name, tensor in weights.items()
        }

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._weights)


class Checkpoints:
    """The checkpoints of one run in a folder, which is created with the first of them.

    The `keep` newest are kept, those whose step is a multiple of `every`, and `protected_step`,
    such as the best.
    """

    def __init__(self, folder: Path, keep: int = 2, every: int | None = None) -> None:
        self.folder = folder
        self.keep = keep
        self.every = every
        self.protected_step: int | None = None

    def steps(self) -> list[tuple[int, Path]]:
        return checkpoint_folders(self.folder)

    def newest(self) -> tuple[Path | None, dict[Path, str]]:
        """Return the newest intact checkpoint, or None, and messages about newer damaged ones.

        Raises Damaged if there are checkpoints and none is intact.
        """
        if is_file(self.folder):
            raise Damaged(f"not a folder: {self.folder}")
        damaged: dict[Path, str] = {}
        for _, path in self.steps():
            reason = verify(path)
            if reason is None:
                return path, damaged
            damaged[path] = f"checkpoint {path} is damaged and was skipped: {reason}"
        if damaged:
            raise Damaged("no intact checkpoint:\n  " + "\n  ".join(damaged.values()))
        return None, {}

    def clear(self, damaged: Iterable[Path]) -> None:
        """Remove leftovers of interrupted writes, rename damaged checkpoints. Requires the lock."""
        remove_leftovers(self.folder)
        for path in damaged:
            # A step may be damaged, written again, and damaged again.
            move(path, path.with_name(f"damaged-{path.name}-{secrets.token_hex(3)}"))

    def save(self, step: int, contents: Contents | Shards) -> Path:
        """Write a checkpoint and delete older ones.

        OSError if it cannot be written, ENOSPC if the disk is full; earlier checkpoints are
        untouched.
        """
        final = self.folder / f"step-{step:08d}"
        if not is_folder(self.folder):
            # Never the run directory: if that is gone, nothing could read the checkpoint.
            self.folder.mkdir(exist_ok=True)
            fsync(self.folder.parent)

        # A full disk is reported before anything is written, with the bytes that are needed.
        needed = contents.size()
        if shutil.disk_usage(self.folder).free < needed:
            raise self._no_space(errno.ENOSPC, final, needed)
        try:
            with atomic_folder(final, overwrite=False) as temporary:
                _write(temporary, step, contents)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise self._no_space(
                error.errno, error.filename or final, needed
            ) from error

        # Only now: until the new checkpoint is complete, the older ones are all there is.
        for older, path in self.steps()[self.keep :]:
            if not self._protects(older):
                remove_folder(path)
        return final

    def _protects(self, step: int) -> bool:
        if step == self.protected_step:
            return True
        return self.every is not None and step % self.every == 0

    def _no_space(self, number: int, path: str | Path, needed: int) -> OSError:
        free = shutil.disk_usage(self.folder).free
        message = f"{os.strerror(number)}: a checkpoint needs {needed:,} bytes, {free:,} are free"
        return OSError(number, message, str(path))


def _place(tensor: Tensor) -> tuple[Any, ...]:
    # The address alone would take a view, such as the first row of a table, for the whole.
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def weights_of(path: Path) -> Path:
    """Return the file or folder of shards for evaluation and sampling: the average, if any."""
    average = part_of(path, "ema")
    return average if exists(average) else part_of(path, "model")


def load_weights(path: Path, model: nn.Module) -> None:
    """Load weights into a model; Refused if they belong to another model."""
    try:
        weights = read_tensors(path)
        if is_folder(path) or weights.keys() == model.state_dict().keys():
            model.load_state_dict(weights)
        else:
            # Tied weights are stored once.
            load_model(model, path)
    except RuntimeError as error:
        raise Refused(
            f"{path} does not hold the weights of this model: {error}",
            code="shape-mismatch",
        ) from None


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the optimizer tensors and the plain values of a checkpoint."""
    tensors = read_tensors(part_of(path, "optimizer"))
    return tensors, json.loads(read_text(path / "state.json"))


def _write(folder: Path, step: int, contents: Contents | Shards) -> None:
    contents.write(folder)
    _write_file(
        folder / "state.json", lambda path: path.write_text(json.dumps(contents.plain))
    )
    # The manifest cannot list itself.
    files = sorted(path for path in folder.rglob("*") if is_file(path))
    _write_file(folder / MANIFEST, lambda _: write_manifest(folder, files, step=step))


def _write_file(path: Path, write: Callable[[Path], Any]) -> None:
    with disk_errors(path):
        write(path)
        follow_umask(path)


class Saver:
    """Writes the checkpoints of a run, in the training loop or in a background thread.

    In the background the loop only copies the tensors, which takes the memory of a checkpoint.
    `written` is called in the loop with step and folder of each checkpoint on disk; `newest` is the
    step of the newest.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        background: bool = False,
        written: Callable[[int, Path], None] = lambda *_: None,
    ) -> None:
        self.checkpoints = checkpoints
        self.written = written
        self.newest: int | None = None
        self._pool = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: tuple[int, Future[Path]] | None = None

    def has(self, step: int) -> bool:
        """Return whether the checkpoint of a step is the newest or is being written."""
        return step == (self.newest if self._pending is None else self._pending[0])

    def save(self, step: int, contents: Contents | Shards) -> None:
        """Write a checkpoint, whose tensors may change afterwards; OSError if it or the last fails."""
        self.wait()
        # All ranks write shards together, which a thread cannot do.
        if self._pool is None or isinstance(contents, Shards):
            self._complete(step, self.checkpoints.save(step, contents))
            return
        # Training changes the tensors while the thread writes them.
        future = self._pool.submit(self.checkpoints.save, step, contents.copied())
        self._pending = (step, future)

    def wait(self, block: bool = True) -> None:
        """Complete the pending write, with `block` waiting for it; OSError if it failed."""
        if self._pending is not None and (block or self._pending[1].done()):
            step, future = self._pending
            # First, so that a failed write is reported once.
            self._pending = None
            self._complete(step, future.result())

    def close(self) -> None:
        """Wait for a pending write, ignoring its result."""
        if self._pool is not None:
            self._pool.shutdown()

    def _complete(self, step: int, path: Path) -> None:
        self.newest = step
        self.written(step, path)


class Scores:
    """A metric of every evaluation of a run, by step."""

    def __init__(
        self,
        metric: str,
        better: Literal["lower", "higher"],
        values: Mapping[int, float],
    ) -> None:
        self.metric = metric
        self.better = better
        self.values = dict(values)

    @classmethod
    def read(
        cls,
        run_directory: Path,
        metric: str,
        better: Literal["lower", "higher"],
        *,
        damaged: bool = False,
    ) -> Scores:
        """Return the scores in metrics.jsonl; of a `damaged` file, those in its valid lines.

        Refused if the file is missing or damaged.
        """
        path = run_directory / "metrics.jsonl"
        try:
            found = read_metrics(path, skip=damaged)
            lines = [
                line for line in found if line["kind"] == "valid" and metric in line
            ]
            values = {
                line["step"]: math.nan if line[metric] is None else float(line[metric])
                for line in lines
            }
        except (OSError, ValueError, TypeError) as error:
            message = f"{path} is damaged: {damage_of(error).reason}"
            raise Refused(message, code="damaged-file") from None
        return cls(metric, better, values)

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the first of equal ones; None without evaluations."""
        sign = 1 if self.better == "lower" else -1
        finite = [
            (sign * value, step)
            for step, value in self.values.items()
            if math.isfinite(value)
        ]
        return min(finite)[1] if finite else None

    @property
    def since(self) -> int:
        """Number of evaluations after the best one; all of them while none was finite."""
        best = self.best
        if best is None:
            return len(self.values)
        return sum(step > best for step in self.values)

    def add(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Add an evaluation; return whether it is the best so far. Refused without the metric."""
        self.require(metrics)
        # As a resumed run reads it.
        self.values[step] = rounded(metrics[self.metric])
        return self.best == step

    def require(self, metrics: Mapping[str, float]) -> None:
        """Raise Refused if the metric is not one of these."""
        if self.metric not in metrics:
            hint = did_you_mean(self.metric, metrics)
            message = f'unknown metric "{self.metric}"; evaluation computes {", ".join(metrics)}'
            raise Refused(
                Problem(message, ("evaluate", "best"), help=hint, code="unknown-metric")
            )
