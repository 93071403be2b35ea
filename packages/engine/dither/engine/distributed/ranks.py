"""The processes that train one model, as torchrun starts them: rank r of `size`, each with its own device.

All ranks run the same loop; each takes its share of every batch. Evaluation and sampling run on all
ranks, as sharded weights need all of them. Only rank 0, the main rank, writes files.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from dither.registry.config.errors import Refused

from ..signals import SIGNALS, STOPPED, kill_suspended_ranks, record_exit_code

__all__ = [
    "JOB",
    "SINGLE_RANK",
    "Ranks",
    "ShardedTensor",
    "full_tensor",
    "is_lost_rank",
    "join_ranks",
    "local_shard",
]

JOB = "DITHER_JOB"
"""Variable with the name of a job, which a cluster may start again: it resumes its run."""
SILENCE = 60.0
"""Seconds without a heartbeat of a rank after which the others report it."""
BEAT = 1.0
"""Seconds between two heartbeats, and with more than 100 ranks longer."""
LOST = 3.0
"""Heartbeats after which a signal no longer waits for a silent rank: a collective with it hangs until
`train.timeout`, and torchrun kills its ranks 30 seconds after a signal."""
ABANDONED = 1
"""Exit code of a rank that ends although a collective hangs."""


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of a run.

    All ranks of a launch and its restarts, which torchrun counts, share the id `launch` ("" for a
    single process). `host_group` is a gloo process group for values on the host, so that these do
    not wait for a GPU.
    """

    rank: int = 0
    size: int = 1
    restarts: int = 0
    launch: str = ""
    host_group: Any = field(default=None, compare=False, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    @property
    def launched(self) -> bool:
        """Whether torchrun started this process, perhaps as the only one."""
        return bool(self.launch)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank. Collective."""
        if self.size == 1:
            return flag
        value = torch.tensor(float(flag))
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.host_group)
        return bool(value)

    def broadcast(self, value: Any) -> Any:
        """Return the JSON value of the main rank on every rank. Collective."""
        if self.size == 1:
            return value
        # Not broadcast_object_list, which unpickles.
        text = json.dumps(value).encode() if self.is_main else b""
        # The length first: only the main rank knows the size of the buffer.
        length = torch.tensor(len(text))
        dist.broadcast(length, 0, group=self.host_group)
        data = torch.tensor(list(text or bytes(int(length))), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self.host_group)
        return json.loads(bytes(data.tolist()))

    def all_reduce(self, value: Tensor) -> Tensor:
        """Sum a tensor over all ranks in place. Collective."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.host_group)


SINGLE_RANK = Ranks()
"""A process that was not started by torchrun."""


class _Signals:
    """The signals to stop, as they come in.

    Their handlers in Python run only after the call in which the main thread waits.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # Only the main thread may set it.
        self._former = -1
        with suppress(ValueError):
            self._former = signal.set_wakeup_fd(
                self._writer.fileno(), warn_on_full_buffer=False
            )

    def received(self, seconds: float) -> bool:
        """Wait for a while at most; return whether a signal to stop has come in."""
        ready, _, _ = select.select([self._reader], [], [], seconds)
        numbers = self._reader.recv(64) if ready else b""
        return not {number.value for number in SIGNALS}.isdisjoint(numbers)

    def restore(self) -> None:
        """Let another object receive them, and end a wait in `received`."""
        with suppress(ValueError):
            signal.set_wakeup_fd(self._former)
        # No signal has the number 0.
        with suppress(BlockingIOError):
            self._writer.send(b"\0")

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the process on a signal if its handler does not: torch waits for other ranks without Python."""
    signals = _Signals()
    connected = threading.Event()

    def watch() -> None:
        while not connected.is_set():
            if signals.received(BEAT / 2) and not connected.wait(2 * BEAT):
                text = "stopped while the ranks connect; nothing is lost, repeat the command\n"
                with suppress(OSError):
                    os.write(2, text.encode())
                record_exit_code(STOPPED)
                kill_suspended_ranks()
                os._exit(STOPPED)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        connected.set()
        signals.restore()
        thread.join(BEAT)
        signals.close()


class _Heartbeats:
    """Report ranks that are stopped or gone: rank 0 watches all others, which watch rank 0.

    The store, through which a thread exchanges counters, blocks if its host is stopped; so another
    looks at their age, and at signals.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        report: Callable[[str], object],
    ) -> None:
        # Other calls block a client.
        self._store = store.clone()
        self._rank = rank
        self._report = report
        # Rank 0 reads the counters of all others, at most 100 a second.
        self._interval = max(BEAT, size / 100)
        self._seen = {
            other: (b"", time.monotonic())
            for other in (range(1, size) if rank == 0 else [0])
        }
        self._signals = _Signals()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=loop, daemon=True)
            for loop in (self._beat, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def _beat(self) -> None:
        # The host of the store has ended.
        with suppress(RuntimeError):
            for number in count():
                self._store.set(f"beat/{self._rank}", str(number))
                for other, (value, _) in list(self._seen.items()):
                    key = f"beat/{other}"
                    if (
                        self._store.check([key])
                        and (new := self._store.get(key)) != value
                    ):
                        self._seen[other] = new, time.monotonic()
                if self._ended.wait(self._interval):
                    return

    def _watch(self) -> None:
        reported: set[int] = set()
        now = time.monotonic()
        stopped_at: float | None = None
        while not self._ended.is_set():
            # Every half heartbeat.
            if self._signals.received(self._interval / 2) and stopped_at is None:
                stopped_at = time.monotonic()
            earlier = now
            now = time.monotonic()
            # This process was stopped itself.
            if now - earlier > LOST * self._interval:
                self._seen = {
                    other: (value, now) for other, (value, _) in self._seen.items()
                }

            silent = self._silent_since(now - SILENCE)
            for other in sorted(silent - reported):
                self._report(
                    f"rank {self._rank} waits for rank {other}, which has not responded for {SILENCE:.0f} s"
                )
            reported = silent
            # Others may end a moment earlier after the same signal.
            if stopped_at is not None and now - stopped_at > self._interval:
                for other in self._silent_since(now - LOST * self._interval):
                    self._abandon(other)

    def _silent_since(self, moment: float) -> set[int]:
        return {other for other, (_, at) in self._seen.items() if at < moment}

    def _abandon(self, other: int) -> None:
        """End the process: the main thread may wait in a collective, which nothing interrupts."""
        text = (
            f"stopped: rank {self._rank} has received a signal, and rank {other} does not respond; "
            "the run can be resumed from its last checkpoint\n"
        )
        with suppress(OSError):
            os.write(2, text.encode())
        # A job is queued again: the run goes on from its last checkpoint.
        record_exit_code(STOPPED)
        kill_suspended_ranks()
        os._exit(ABANDONED)

    def stop(self) -> None:
        """End the threads before the store ends."""
        self._ended.set()
        self._signals.restore()
        for thread in self._threads:
            thread.join(1.0 + self._interval)
        self._signals.close()


@contextmanager
def join_ranks(
    device: str = "auto", seconds: float = 1800, report: Callable[[str], object] = print
) -> Iterator[Ranks]:
    """Yield this process among the ranks of torchrun, or `SINGLE_RANK` without torchrun.

    `seconds` is the timeout of collectives; `report` is called in a thread with a message on ranks
    that do not respond. Refused if the environment describes ranks, but they cannot connect.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield SINGLE_RANK
        return
    rank, size, local = (
        int(os.environ.get(key, "0")) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    )
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu and local >= torch.cuda.device_count():
        raise Refused(
            f"rank {rank} has local rank {local}, but this machine has {torch.cuda.device_count()} GPUs",
            code="out-of-range",
        )
    if not dist.is_available():
        raise Refused(
            "this build of torch lacks torch.distributed", code="missing-dependency"
        )
    if on_gpu:
        # NCCL takes the current device of the process.
        torch.cuda.set_device(local)
    try:
        from torch.distributed.rendezvous import rendezvous

        timeout = timedelta(seconds=seconds)
        # Not by init_process_group, whose keys are those of a failed start; see `_agree_on_prefix`.
        with _ended_by_signals():
            store, rank, size = next(rendezvous("env://", timeout=timeout))
            store.set_timeout(timeout)
            prefix = _agree_on_prefix(store, rank, size, seconds)
            store = dist.PrefixStore(f"dither/{prefix}", store)  # type: ignore[attr-defined]
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timeout,
            )
            host_group = dist.new_group(backend="gloo", timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise Refused(
            f"rank {rank} of {size} cannot connect to the other ranks: {error}",
            code="lost-rank",
        ) from None
    heartbeats = _Heartbeats(store, rank, size, report)
    # The parent process is torchrun, which stays over its restarts.
    launch = (
        "-".join(
            os.environ.get(key, "") for key in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR")
        )
        + f"-{os.getppid()}"
    )
    launch = os.environ.get(JOB, launch)
    ranks = Ranks(
        rank,
        size,
        int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        "",
        host_group,
    )
    try:
        yield replace(ranks, launch=ranks.broadcast(launch))
        # Not after an error: the other ranks may never arrive, and torchrun ends them
        ranks.barrier()
    finally:
        heartbeats.stop()
    dist.destroy_process_group()


def _agree_on_prefix(
    store: Any,
    rank: int,
    size: int,
    seconds: float,
) -> str:
    """Return a prefix that the ranks of this start share and no earlier start has used.

    torchrun keeps one store for all restarts. A rank that reads keys of a failed start too early
    connects to a process that has ended. A restart count does not work: each machine has its own.
    So every rank sends a random token, the main rank answers each token, old or new, with its own,
    and continues once every rank has acknowledged the answer.
    """
    token = secrets.token_hex(8)
    if rank:
        store.set(f"dither/asks/{rank}", token)
        # Blocks until the answer is there.
        prefix = str(store.get(f"dither/answer/{token}").decode())
        store.set(f"dither/{prefix}/thanks/{rank}", "")
        return prefix
    missing = set(range(1, size))
    deadline = time.monotonic() + seconds
    while missing:
        for other in sorted(missing):
            if store.check([f"dither/{token}/thanks/{other}"]):
                missing.discard(other)
            elif store.check([f"dither/asks/{other}"]):
                store.set(
                    f"dither/answer/{store.get(f'dither/asks/{other}').decode()}", token
                )
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"ranks {', '.join(map(str, sorted(missing)))} did not connect"
            )
        time.sleep(0.01)
    return token


def is_lost_rank(error: BaseException) -> bool:
    """Return whether a collective failed because another rank ended or did not respond in time."""
    # Without first letters, whose case differs between backends.
    lost = (
        "third_party/gloo",
        "imeout",
        "imed out",
        "onnection closed",
        "onnection reset",
    )
    return (
        isinstance(error, RuntimeError)
        and dist.is_initialized()
        and any(part in str(error) for part in lost)
    )


@runtime_checkable
class ShardedTensor(Protocol):
    """A tensor of FSDP: `torch.distributed.tensor.DTensor`, whose import takes a second."""

    device: torch.device
    device_mesh: Any
    placements: Any

    def to_local(self) -> Tensor:
        """Return the part that is stored on this rank, as a view."""

    def full_tensor(self) -> Tensor:
        """Gather the whole tensor. Collective."""


def local_shard(value: Tensor) -> Tensor:
    """Return the part of a tensor that is stored on this rank, as a view."""
    return value.to_local() if isinstance(value, ShardedTensor) else value


def full_tensor(value: Tensor) -> Tensor:
    """Return the whole of a tensor that may be sharded. Collective."""
    return value.full_tensor() if isinstance(value, ShardedTensor) else value
