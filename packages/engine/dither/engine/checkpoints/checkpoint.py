"""Checkpoints: written aside, named only when complete, verified before they are read. Nothing is ever unpickled.

    checkpoints/step-00000100/  model.safetensors  average.safetensors  optimizer.safetensors  state.json  MANIFEST.json

Where ranks write their pieces, model, average and optimizer are folders of safetensors files instead (`shards.py`).

MANIFEST.json is written last and holds size and sha256 of every other file. The folder gets its name in one rename
after everything is on disk, so a folder of that name is whole, or was damaged afterwards, which the hashes show.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_file, save_model
from torch import Tensor, nn

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import fsync, sha256_of

from ..files.checksums import FORMAT, MANIFEST, verify, with_checksum
from ..files.resource_errors import FULL, disk_errors
from .sharded_checkpoint import Pieces, part_of, read_tensors

__all__ = ["Checkpoints", "Contents", "Damage", "Damaged", "load_state", "load_weights", "weights_of"]

HEADERS = 64 * 1024
"""Bytes of a checkpoint beside its tensors, or a few more."""


class Damaged(Refused):
    """No intact checkpoint is left. The command line exits with 3."""

    exit_code = 3


@dataclass(frozen=True)
class Damage:
    """A checkpoint that cannot be used, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"checkpoint {self.path} is damaged and is not used: {self.reason}"


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    Attributes:
        model: The weights.
        average: Their moving average, or None.
        tensors: Of the optimizer and the trainer, by name.
        plain: Values that JSON holds.
    """

    model: nn.Module | Weights
    average: nn.Module | Weights | None
    tensors: Mapping[str, Tensor]
    plain: Mapping[str, Any]

    def size(self) -> int:
        """Return the bytes that it takes on disk, nearly; weights under several names count once."""
        weights = [module.state_dict() for module in (self.model, self.average) if module is not None]
        tensors = {_place(tensor): tensor for held in (*weights, self.tensors) for tensor in held.values()}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) + HEADERS

    def write(self, folder: Path) -> None:
        """Write all but MANIFEST.json into a folder."""
        files: dict[str, Callable[[Path], Any]] = {
            "model.safetensors": lambda path: _save_weights(self.model, path),
            "optimizer.safetensors": lambda path: save_file({k: v.contiguous() for k, v in self.tensors.items()}, path),
        }
        if (average := self.average) is not None:
            files["average.safetensors"] = lambda path: _save_weights(average, path)
        for name, write in files.items():
            with disk_errors(folder / name):
                write(folder / name)
                fsync(folder / name)

    def copied(self) -> Contents:
        """Return a copy on the CPU, which stays as it is while training goes on."""
        average = None if self.average is None else Weights(self.average.state_dict())
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.tensors.items()}
        return Contents(Weights(self.model.state_dict()), average, tensors, copy.deepcopy(self.plain))


class Weights:
    """A copy of weights on the CPU; those that were one tensor under several names still are."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        copies: dict[tuple[Any, ...], Tensor] = {}
        for tensor in weights.values():
            copies.setdefault(_place(tensor), tensor.detach().to("cpu", copy=True))
        self._weights = {name: copies[_place(tensor)] for name, tensor in weights.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights by name."""
        return dict(self._weights)


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: Where they are; made when the first is written.
        keep: How many of the newest stay.
        every: Those of each multiple of so many steps stay too; None for none.

    Attributes:
        spared: The step of another one that stays, such as the best; None for none.
    """

    def __init__(self, folder: Path, keep: int = 2, every: int | None = None) -> None:
        self.folder, self.keep, self.every = folder, keep, every
        self.spared: int | None = None

    def steps(self) -> list[tuple[int, Path]]:
        """Return the named checkpoints, newest first."""
        found = []
        for path in self.folder.glob("step-*") if self.folder.is_dir() else ():
            number = path.name.removeprefix("step-")
            if number.isascii() and number.isdigit():
                found.append((int(number), path))
        return sorted(found, reverse=True)

    def newest(self) -> tuple[Path | None, list[Damage]]:
        """Return the newest intact checkpoint, or None if there is none at all, and the damaged ones passed over.

        Raises:
            Damaged: There are checkpoints, and none is intact.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise Damaged(f"{self.folder} is not a folder")
        damaged: list[Damage] = []
        for _, path in self.steps():
            reason = verify(path)
            if reason is None:
                return path, damaged
            damaged.append(Damage(path, reason))
        if damaged:
            raise Damaged("no intact checkpoint is left:\n  " + "\n  ".join(map(str, damaged)))
        return None, []

    def clear(self, damaged: list[Damage]) -> None:
        """Remove what broken-off writes left, and put damaged checkpoints aside; for the holder of the lock."""
        for path in self.folder.glob(".tmp-*") if self.folder.is_dir() else ():
            shutil.rmtree(path, ignore_errors=True)
        for damage in damaged:
            damage.path.rename(damage.path.with_name(f"damaged-{damage.path.name}-{secrets.token_hex(3)}"))

    def save(self, step: int, contents: Contents | Pieces) -> Path:
        """Write a checkpoint and drop the older ones that need not stay.

        Raises:
            OSError: It cannot be written, ENOSPC where there is no space; what there was before is untouched.
        """
        final = self.folder / f"step-{step:08d}"
        if final.exists():
            raise FileExistsError(errno.EEXIST, "this checkpoint exists already", str(final))
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            fsync(self.folder.parent)
        needed = contents.size()
        if shutil.disk_usage(self.folder).free < needed:
            raise self._no_space(errno.ENOSPC, final, needed)
        aside = self.folder / f".tmp-{step}-{os.getpid()}-{secrets.token_hex(3)}"
        aside.mkdir()
        try:
            _write(aside, step, contents)
            aside.rename(final)
        except BaseException as error:
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in FULL:
                raise self._no_space(error.errno, error.filename or final, needed) from error
            raise
        fsync(self.folder)
        for older, path in self.steps()[self.keep :]:
            if older != self.spared and not (self.every and older % self.every == 0):
                self._drop(path)
        return final

    def _drop(self, path: Path) -> None:
        """Take the name away first, so that a half-deleted folder is never taken for a checkpoint."""
        aside = self.folder / f".tmp-old-{path.name}-{secrets.token_hex(3)}"
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _no_space(self, number: int, path: str | Path, needed: int) -> OSError:
        free = shutil.disk_usage(self.folder).free
        message = f"{os.strerror(number)}: no space for a checkpoint: {needed:,} bytes needed, {free:,} free"
        return OSError(number, message, str(path))


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def weights_of(path: Path) -> Path:
    """Return the file, or folder of pieces, that evaluation and sampling use: the average where there is one."""
    average = part_of(path, "average")
    return average if average.exists() else part_of(path, "model")


def load_weights(path: Path, model: nn.Module) -> None:
    """Read the weights of a file into a model.

    Raises:
        Refused: They are of another model.
    """
    try:
        given = read_tensors(path)
        if path.is_dir() or given.keys() == model.state_dict().keys():
            model.load_state_dict(given)
        else:  # what is one tensor under several names stands there under one
            load_model(model, path)
    except RuntimeError as error:
        raise Refused(f"{path} does not hold the weights of this model: {error}") from None


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the plain values of a checkpoint."""
    return read_tensors(part_of(path, "optimizer")), json.loads((path / "state.json").read_text(encoding="utf-8"))


def _write(folder: Path, step: int, contents: Contents | Pieces) -> None:
    contents.write(folder)
    with disk_errors(folder / "state.json"):
        (folder / "state.json").write_text(json.dumps(contents.plain))
        fsync(folder / "state.json")
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    entries = {name: {"size": path.stat().st_size, "sha256": sha256_of(path)} for name, path in files.items()}
    manifest = {"format": FORMAT, "step": step, "files": entries}
    with disk_errors(folder / MANIFEST):
        (folder / MANIFEST).write_text(json.dumps(with_checksum(manifest), indent=2))
        fsync(folder / MANIFEST)
        for inner in (*{path.parent for path in files.values()}, folder):
            fsync(inner)


def _save_weights(weights: nn.Module | Weights, path: Path) -> None:
    save_model(weights, str(path))  # type: ignore[arg-type]  # it asks for no more than state_dict()
