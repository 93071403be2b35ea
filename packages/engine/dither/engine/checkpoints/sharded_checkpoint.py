"""Sharded weights (FSDP), written by all ranks, read by any number: torch.distributed.checkpoint.

Its safetensors format needs no pickled metadata (docs/adr/0004). Its import takes a second, so only
shards import it.
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
from dither.registry.files.atomic import follow_umask
from dither.registry.files.lookup import is_folder

from ..distributed.ranks import Ranks, ShardedTensor
from ..files.resource_errors import disk_errors

__all__ = ["Shards", "part_of", "read_into", "read_tensors", "readable"]

WHOLE = "whole.safetensors"
"""In a folder of shards, the replicated tensors."""


class Shards:
    """The content of a checkpoint of a sharded model, which all ranks create and write.

    `parts` are the tensors of model, average and optimizer by name, `plain` values that JSON can
    hold.
    """

    def __init__(
        self,
        parts: Mapping[str, Mapping[str, Tensor]],
        plain: dict[str, Any],
        ranks: Ranks,
    ) -> None:
        self.parts = parts
        self.plain = plain
        self.ranks = ranks
        self._started = False

    def size(self) -> int:
        size = 0
        for part in self.parts.values():
            size += sum(tensor.nbytes for tensor in part.values())
        return size

    def write(self, folder: Path) -> None:
        """Write on the main rank, together with the others; OSError if any rank could not write."""
        self._started = True
        self.ranks.broadcast(str(folder))
        self._write(folder)

    def join(self) -> None:
        """Wait for the main rank and write with it; Refused if it could not start to write."""
        folder = self.ranks.broadcast(None)
        if folder is None:
            raise Refused(
                "the main rank could not start to write a checkpoint; see its message"
            )
        self._write(Path(folder))

    def cancel(self) -> None:
        """Release the other ranks if the main rank did not start to write."""
        if not self._started:
            self.ranks.broadcast(None)

    def _write(self, folder: Path) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        # Each rank writes into the folder of the main rank, which may be on a local disk.
        if self.ranks.any(not is_folder(folder)):
            message = "not visible to every rank; use a disk shared by all machines, or train.async_save = true"
            raise OSError(errno.ENOENT, message, str(folder))
        for name, tensors in self.parts.items():
            sharded = {}
            replicated = {}
            for key, value in tensors.items():
                if isinstance(value, ShardedTensor):
                    sharded[key] = value
                else:
                    replicated[key] = value.detach().cpu().contiguous()
            try:
                writer = HuggingFaceStorageWriter(
                    str(folder / name), save_distributed=True
                )
                save(
                    sharded, storage_writer=writer, process_group=self.ranks.host_group
                )
            except CheckpointException as error:
                raise _first_failure(error) from None
            if self.ranks.is_main and replicated:
                with disk_errors(folder / name / WHOLE):
                    save_file(replicated, folder / name / WHOLE)
                    follow_umask(folder / name / WHOLE)


def part_of(checkpoint: Path, name: str) -> Path:
    """Return the file or folder of shards of the model, ema or optimizer of a checkpoint."""
    folder = checkpoint / name
    return folder if is_folder(folder) else checkpoint / f"{name}.safetensors"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn a SafetensorError of a file in another format into `Refused`."""
    try:
        yield
    except SafetensorError as error:
        raise Refused(
            f"{path} cannot be read as safetensors: {error}", code="unreadable-file"
        ) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the full tensors of a safetensors file or of a folder of shards. Not collective."""
    if not is_folder(path):
        with readable(path):
            return load_file(path)
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(path))
    sizes: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    # `load` fills these tensors in place.
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in sizes.items()
    }
    # It warns that there is a single process.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        try:
            load(tensors, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            raise _first_failure(error) from None
    return tensors


def read_into(tensors: Mapping[str, Tensor], path: Path, ranks: Ranks) -> None:
    """Read shards into tensors with any sharding; Refused if they do not fit. Collective."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        load(
            dict(tensors),
            storage_reader=HuggingFaceStorageReader(str(path)),
            process_group=ranks.host_group,
        )
    except CheckpointException as error:
        message = (
            f"{path} does not hold the weights of this model: {_first_failure(error)}"
        )
        raise Refused(message, code="shape-mismatch") from None


def _first_failure(error: Any) -> Exception:
    """Return the exception of a rank, an OSError before any other."""
    failures = [wrapped[0] for wrapped in error.failures.values()]
    os_error = next(
        (failure for failure in failures if isinstance(failure, OSError)), None
    )
    return os_error or RuntimeError("; ".join(map(repr, failures)))
