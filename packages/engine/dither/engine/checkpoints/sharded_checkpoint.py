"""Weights that are cut up among ranks, written and read in pieces: each rank its own, all at the same time.

torch.distributed.checkpoint does it, in safetensors files that say where their pieces belong: a folder of them is read
by any number of ranks, or by a process alone. Its usual format would need a pickle beside them; this one does not. What
is not cut up, such as the counts of an optimizer, is alike on all ranks and stands in a file of its own.
It takes a second to import, and is only where there are pieces.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import fsync

from ..distributed.ranks import Ranks
from ..files.resource_errors import disk_errors

__all__ = ["Pieces", "is_sharded", "part_of", "read_into", "read_tensors", "readable"]

WHOLE = "whole.safetensors"
"""In a folder of pieces, the tensors that are not cut up."""


class Pieces:
    """What a checkpoint holds, where each rank has its own pieces of it. Every rank makes one, and takes part.

    Args:
        parts: Tensors by name, of model, average and optimizer.
        plain: Values that JSON holds.
        ranks: Who takes part.
    """

    def __init__(self, parts: Mapping[str, Mapping[str, Tensor]], plain: Mapping[str, Any], ranks: Ranks) -> None:
        self.parts, self.plain, self.ranks = parts, plain, ranks
        self._called = False

    def size(self) -> int:
        """Return the bytes that it takes on disk, nearly."""
        return sum(tensor.numel() * tensor.element_size() for part in self.parts.values() for tensor in part.values())

    def copied(self) -> Pieces:
        """Return itself: it is written in the loop, by all ranks at once."""
        return self

    def write(self, folder: Path) -> None:
        """Call the other ranks, and write with them; for the chief.

        Raises:
            OSError: A rank could not write.
        """
        self._called = True
        self.ranks.broadcast(str(folder))
        self._write(folder)

    def attend(self) -> None:
        """Wait for the chief, and write with it; for the other ranks.

        Raises:
            OSError: A rank could not write, or the chief did not come so far.
        """
        folder = self.ranks.broadcast(None)
        if folder is None:
            raise Refused("the first rank could not begin to write a checkpoint; it says why")
        self._write(Path(folder))

    def call_off(self) -> None:
        """Let the other ranks go where writing did not come so far; for the chief."""
        if not self._called:
            self.ranks.broadcast(None)

    def _write(self, folder: Path) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        if self.ranks.any(not folder.is_dir()):
            what = "not every rank sees this folder; share the disk between machines, or set train.async_save = true"
            raise OSError(errno.ENOENT, what, str(folder))
        for name, tensors in self.parts.items():
            cut = {key: value for key, value in tensors.items() if is_sharded(value)}
            rest = {key: value.detach().cpu().contiguous() for key, value in tensors.items() if key not in cut}
            try:
                writer = HuggingFaceStorageWriter(str(folder / name), save_distributed=True)
                save(cut, storage_writer=writer, process_group=self.ranks.host_group)
            except CheckpointException as error:
                raise _first(error) from None
            if self.ranks.is_main and rest:
                with disk_errors(folder / name / WHOLE):
                    save_file(rest, folder / name / WHOLE)
                    fsync(folder / name / WHOLE)


def is_sharded(value: Tensor) -> bool:
    """Tell whether a tensor is cut up among ranks."""
    return hasattr(value, "full_tensor")


def part_of(checkpoint: Path, name: str) -> Path:
    """Return where a checkpoint holds its model, average or optimizer: a folder of pieces, or a file."""
    folder = checkpoint / name
    return folder if folder.is_dir() else checkpoint / f"{name}.safetensors"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Make a refusal of what safetensors says of a file that holds something else."""
    try:
        yield
    except SafetensorError as error:
        raise Refused(f"{path} cannot be read as safetensors: {error}") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the whole tensors of a safetensors file or of a folder of pieces; every rank may do it by itself.

    Raises:
        Refused: A file holds something else.
    """
    if not path.is_dir():
        with readable(path):
            return load_file(path)
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(path))
    sizes: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in sizes.items()}
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # that it is alone, as it is meant
        try:
            load(tensors, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=True)
        except CheckpointException as error:
            raise _first(error) from None
    return tensors


def read_into(tensors: Mapping[str, Tensor], path: Path, ranks: Ranks) -> None:
    """Read a folder of pieces into tensors that are cut up in whatever way; every rank has to call it.

    Raises:
        Refused: They are of another model.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(path)), process_group=ranks.host_group)
    except CheckpointException as error:
        raise Refused(f"{path} does not hold the weights of this model: {_first(error)}") from None


def _first(error: Any) -> Exception:
    """Return what went wrong on a rank, an error of the disk before any other."""
    found = [wrapped[0] for wrapped in error.failures.values()]
    return next((one for one in found if isinstance(one, OSError)), RuntimeError("; ".join(map(repr, found))))
