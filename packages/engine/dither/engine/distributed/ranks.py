"""The processes that train one model together, as torchrun starts them: rank r of `size`, each with its own device.

All of them walk through the same run in step. Each takes its share of every batch; what is not shared out (evaluation,
drawing) each does alike, since under sharded weights it takes all of them to do it. Only the first, the chief, writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dither.registry.config.errors import Refused

__all__ = ["SINGLE_RANK", "Ranks", "join_ranks", "local_shard"]

PATIENCE = timedelta(minutes=30)
"""How long ranks wait for each other: the chief may be writing a large checkpoint."""


@dataclass(frozen=True)
class Ranks:
    """One of the processes of a run.

    Attributes:
        rank: Number of this process among all.
        size: How many there are.
        local: Its number on this machine, which is that of its GPU.
        restarts: How often all of them were started again because one had died.
        launch: What all of them, and those started again, have in common; "" for a process alone.
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    restarts: int = 0
    launch: str = ""
    _words: Any = field(default=None, compare=False)

    @property
    def words(self) -> Any:
        """The group in which hosts speak to each other, not GPUs."""
        return self._words

    @property
    def chief(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Tell whether the flag is set on any rank; every rank has to ask."""
        if self.size == 1:
            return flag
        word = torch.tensor(float(flag))
        dist.all_reduce(word, dist.ReduceOp.MAX, group=self._words)
        return bool(word)

    def share(self, value: Any) -> Any:
        """Return the chief's value, of what JSON holds, on every rank."""
        if self.size == 1:
            return value
        text = bytearray(json.dumps(value).encode()) if self.chief else bytearray()
        length = torch.tensor(len(text))
        dist.broadcast(length, 0, group=self._words)
        said = torch.frombuffer(text, dtype=torch.uint8) if self.chief else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(said, 0, group=self._words)
        return json.loads(bytes(said.tolist()))

    def add(self, value: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier(group=self._words)


SINGLE_RANK = Ranks()
"""A process by itself."""


@contextmanager
def join_ranks(device: str = "auto") -> Iterator[Ranks]:
    """Yield this process among those that torchrun started, or by itself where nothing did.

    Args:
        device: As in the experiment.

    Raises:
        Refused: The environment speaks of ranks, but they cannot meet.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield SINGLE_RANK
        return
    rank, size, local = (int(os.environ.get(key, "0")) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu and local >= torch.cuda.device_count():
        raise Refused(f"rank {rank} is number {local} of this machine, which has {torch.cuda.device_count()} GPUs")
    if not dist.is_available():
        raise Refused("this build of torch has no torch.distributed, so that it cannot train on several ranks")
    if on_gpu:
        torch.cuda.set_device(local)
    try:
        from .rendezvous import meet

        store, rank, size = meet(PATIENCE)
        dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise Refused(f"rank {rank} of {size} cannot meet the others: {error}") from None
    words = dist.new_group(backend="gloo", timeout=PATIENCE)  # what the host asks must not wait for a GPU
    launch = "-".join(os.environ.get(key, "") for key in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR")) + f"-{os.getppid()}"
    ranks = Ranks(rank, size, local, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), "", words)
    yield Ranks(rank, size, local, ranks.restarts, ranks.share(launch), words)
    # Not after an error: the others may never come, and torchrun ends them.
    ranks.wait()
    dist.destroy_process_group()


def local_shard(value: Tensor) -> Tensor:
    """Return what of a tensor lies on this rank; a view."""
    return value.to_local() if hasattr(value, "to_local") else value
