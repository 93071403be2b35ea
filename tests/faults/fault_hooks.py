"""Functions that break a run from within its own process. They take plain values, which are sent to it."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

DISK = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "shutil.rmtree",
}
"""Events of the audit hook that change a disk."""


def die(*_: object) -> None:
    """End as if by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def calls(place: str, callback: Callable[[], None]) -> None:
    """Call a function before every disk call in a folder of this name, including fsync and safetensors."""
    from dither.engine.checkpoints import checkpoint
    from dither.registry.files import atomic

    def audit(event: str, given: tuple[Any, ...]) -> None:
        if event in DISK and any(
            place in str(word)
            for word in given[:2]
            if isinstance(word, str | os.PathLike)
        ):
            if event == "open" and not (given[2] or 0) & (os.O_WRONLY | os.O_RDWR):
                return
            callback()

    def patch(module: ModuleType, name: str, at: int) -> None:
        plain = getattr(module, name)

        def call(*given: Any) -> Any:
            if place in str(given[at]):
                callback()
            return plain(*given)

        setattr(module, name, call)

    patch(atomic, "fsync", 0)
    patch(checkpoint, "save_file", 1)
    patch(checkpoint, "save_model", 1)
    sys.addaudithook(audit)


def kill_at(place: str, number: int, file: str | None = None) -> None:
    """Die before a disk call, counted from 1; `file` receives the number of calls so far."""
    seen = [0]

    def callback() -> None:
        seen[0] += 1
        if seen[0] == number:
            die()
        if file is not None:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(handle, str(seen[0]).encode())
            os.close(handle)

    calls(place, callback)


def largest_file(size: int) -> None:
    """Limit the size of files, like a quota."""
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )


def slow(seconds: float, what: str = "train") -> None:
    """Make each step last longer: of training, of an evaluation, of a drawing."""
    from dither.engine.sampling.session import Session
    from dither.engine.training.diffusion import Diffusion
    from dither.engine.training.trainer import Trainer

    owner, method = {
        "train": (Trainer, "advance"),
        "evaluate": (Diffusion, "bounded"),
        "sample": (Session, "__call__"),
    }[what]
    plain = getattr(owner, method)

    def waiting(*given: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return plain(*given, **named)

    setattr(owner, method, waiting)


def jump_clock(seconds: float) -> None:
    """Let the clock jump forward and back with every reading."""
    plain, readings = time.time, itertools.count()
    time.time = lambda: plain() + seconds * (-1) ** next(readings)


def poison(kind: str, step: int) -> None:
    """Make the loss, or only its gradient, NaN or inf in a step."""
    from dither.engine.training.trainer import Trainer

    backward = Trainer._backward

    def poisoned(self: Any, *batch: Any) -> Any:
        total, weight = backward(self, *batch)
        if self.step == step:
            if kind.startswith("loss"):
                total = total * float(kind.partition(" ")[2])
            else:
                self.parameters[0].grad.view(-1)[0] = float(kind.partition(" ")[2])
        return total, weight

    Trainer._backward = poisoned


def bound_by_permissions() -> None:
    """Drop the capabilities of root, so that permissions apply to this process."""
    import ctypes

    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]

    class Data(ctypes.Structure):
        _fields_ = [
            (name, ctypes.c_uint32)
            for name in ("effective", "permitted", "inheritable")
        ]

    library = ctypes.CDLL(None, use_errno=True)
    header, data = Header(0x20080522, 0), (Data * 2)()
    library.capget(ctypes.byref(header), ctypes.byref(data))
    for entry in data:
        entry.effective = entry.permitted = entry.inheritable = 0
    library.capset(ctypes.byref(header), ctypes.byref(data))


def broken_log() -> None:
    """Fail the first ten lines of metrics as on a full disk, and all of TensorBoard."""
    from dither.engine.files import metrics_file
    from dither.engine.tracking.trackers import TensorBoardTracker

    write, seen = os.write, [0]

    def full(handle: int, data: bytes) -> int:
        if data.startswith(b'{"step"'):
            seen[0] += 1
            if seen[0] <= 10:
                raise OSError(28, "No space left on device")
        return write(handle, data)

    metrics_file.os = type(
        "os", (), {**{k: getattr(os, k) for k in dir(os)}, "write": staticmethod(full)}
    )

    def nothing(self: Any, *given: Any) -> None:
        raise OSError(28, "No space left on device")

    TensorBoardTracker.log = nothing


def stop_after(step: int) -> None:
    """Send SIGSTOP after a step."""
    from dither.engine.training.trainer import Trainer

    plain = Trainer.advance

    def call(self: Any) -> Any:
        result = plain(self)
        if self.step == step:
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    Trainer.advance = call


def kill_after(moment: str) -> None:
    """Die after a step, before its checkpoint: the first, one in an epoch, at its end, the last; or in what follows.

    A number names a step, too.
    """
    from dither.engine.runs.run import Run
    from dither.engine.training.trainer import Trainer

    def dying(owner: Any, name: str, at: Any) -> None:
        plain = getattr(owner, name)

        def call(self: Any, *given: Any) -> Any:
            result = plain(self, *given)
            if at(getattr(self, "trainer", self)):
                die()
            return result

        setattr(owner, name, call)

    def boundary(trainer: Any) -> bool:
        return trainer.step * trainer.train.batch_size == trainer.batches.order.size

    if moment == "evaluation":
        dying(Run, "evaluate", lambda trainer: trainer.step == 5)
    elif moment == "drawing":
        dying(Run, "draw", lambda trainer: True)
    elif moment == "boundary":
        dying(Trainer, "advance", boundary)
    else:
        step = {"first": 1, "middle": 7, "last": 12}.get(moment) or int(moment)
        dying(Trainer, "advance", lambda trainer: trainer.step == step)


def kill_in_save(nth: int, share: float) -> None:
    """Die in the nth save of a checkpoint, at a share of the time that the first one took."""
    from dither.engine.checkpoints.checkpoint import Checkpoints

    save, seen = Checkpoints.save, []

    def timed(self: Any, *given: Any) -> Any:
        if len(seen) == nth - 1:
            signal.setitimer(signal.ITIMER_REAL, max(share * seen[0], 1e-6))
        began = time.perf_counter()
        result = save(self, *given)
        seen.append(time.perf_counter() - began)
        return result

    Checkpoints.save = timed


def measure_memory(file: str) -> None:
    """Write the peak growth of the address space of the process into a file."""
    before, leave = _addresses("VmSize"), os._exit
    resource.setrlimit(
        resource.RLIMIT_AS, (2**46, 2**46)
    )  # under a limit, no addresses are taken beforehand

    def leaving(code: int) -> None:
        Path(file).write_text(str(_addresses("VmPeak") - before))
        leave(code)

    os._exit = leaving


def limit_memory(size: int) -> None:
    """Limit the address space of the process to this many more bytes."""
    most = _addresses("VmSize") + size
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _addresses(name: str) -> int:
    return 1024 * int(
        Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]
    )


def be_rank(rank: int, size: int, port: int, launch: str, *then: Any) -> None:
    """Set the variables of torchrun for one of several processes on this machine; call another function of these."""
    from dither.engine.distributed import ranks as module

    module.SILENCE = 2.0
    ranks = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
    }
    address = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": launch,
    }
    os.environ.update(
        {name: str(value) for name, value in {**ranks, **address}.items()}
    )
    if then:
        globals()[then[0]](*then[1:])
