"""What breaks a run from within its own process, before it begins. Functions take plain values, for they are sent."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from fault_save_hooks import ones_after_saves  # noqa: F401

DISK = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
"""Events of the audit hook that change a disk."""


def die(*_: object) -> None:
    """End as if by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def calls(place: str, tell: Any) -> None:
    """Have `tell` called before every call to the disk in a folder of this name, fsync and safetensors' among them."""
    from dither.engine.checkpoints import checkpoint

    def audit(event: str, given: tuple[Any, ...]) -> None:
        if event in DISK and any(place in str(word) for word in given[:2] if isinstance(word, str | os.PathLike)):
            if event == "open" and not (given[2] or 0) & (os.O_WRONLY | os.O_RDWR):
                return
            tell()

    def told(name: str, at: int) -> None:
        plain = getattr(checkpoint, name)

        def call(*given: Any) -> Any:
            if place in str(given[at]):
                tell()
            return plain(*given)

        setattr(checkpoint, name, call)

    told("fsync", 0)
    told("save_file", 1)
    told("save_model", 1)
    sys.addaudithook(audit)


def count_calls(place: str, file: str) -> None:
    """Write into a file how many calls there are."""
    seen = [0]

    def tell() -> None:
        seen[0] += 1
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(handle, str(seen[0]).encode())
        os.close(handle)

    calls(place, tell)


def kill_at(place: str, number: int) -> None:
    """Die before a call to the disk, counted from 1."""
    seen = [0]

    def tell() -> None:
        seen[0] += 1
        if seen[0] == number:
            die()

    calls(place, tell)


def kill_in_file(name: str, nth: int) -> None:
    """Die when half of a file of a checkpoint is written, the nth time."""
    from dither.engine.checkpoints import checkpoint

    seen = [0]
    fsync = checkpoint.fsync

    def half(path: Path) -> None:
        if path.name == name:
            seen[0] += 1
            if seen[0] == nth:
                os.truncate(path, path.stat().st_size // 2)
                die()
        fsync(path)

    checkpoint.fsync = half


def largest_file(size: int) -> None:
    """Limit the size of files, like a quota."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def memory(kind: str, step: int, need: int = 2**32) -> None:
    """Let this process have 64 MiB more than it has when training begins, and need more than that in a step."""
    import torch

    from dither.engine.runs.loop import Run
    from dither.engine.training.trainer import Trainer

    fit, advance = Run.fit, Trainer.advance

    def limited(self: Any) -> bool:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))
        return fit(self)

    def needy(self: Any) -> Any:
        if self.step == step:
            torch.ones(need // 4) if kind == "torch" else np.ones(need // 8) if kind == "numpy" else bytearray(need)
        return advance(self)

    Run.fit, Trainer.advance = limited, needy


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


def poison(kind: str, step: int) -> None:
    """Make the loss, or only its gradient, NaN or inf in a step."""
    from dither.engine.training.trainer import Trainer

    backward = Trainer._backward

    def poisoned(self: Any) -> Any:
        total, weight = backward(self)
        if self.step == step:
            if kind.startswith("loss"):
                total = total * float(kind.partition(" ")[2])
            else:
                self.parameters[0].grad.view(-1)[0] = float(kind.partition(" ")[2])
        return total, weight

    Trainer._backward = poisoned


def bound_by_permissions() -> None:
    """Let permissions bind this process, root's too."""
    import ctypes

    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]

    class Data(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]

    library = ctypes.CDLL(None, use_errno=True)
    header, data = Header(0x20080522, 0), (Data * 2)()
    library.capget(ctypes.byref(header), ctypes.byref(data))
    for entry in data:
        entry.effective = entry.permitted = entry.inheritable = 0
    library.capset(ctypes.byref(header), ctypes.byref(data))


def broken_log() -> None:
    """Let no line of metrics be written until the tenth, as on a full disk; TensorBoard finds none at any time."""
    from dither.engine.files import metrics_file
    from dither.engine.tracking.tensorboard import TensorBoardTracker

    write, seen = os.write, [0]

    def full(handle: int, data: bytes) -> int:
        if data.startswith(b'{"step"'):
            seen[0] += 1
            if seen[0] <= 10:
                raise OSError(28, "No space left on device")
        return write(handle, data)

    metrics_file.os = type("os", (), {**{k: getattr(os, k) for k in dir(os)}, "write": staticmethod(full)})

    def nothing(self: Any, *given: Any) -> None:
        raise OSError(28, "No space left on device")

    TensorBoardTracker.log = nothing


def kill_after(moment: str) -> None:
    """Die after a step, before its checkpoint: the first, one in an epoch, at its end, the last; or in what follows.

    A number names a step, too.
    """
    from dither.engine.runs.loop import Run
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
        return trainer.step * trainer.train.batch_size == trainer.order.size

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
    """Write into a file how many bytes of addresses the process takes from here on at most."""
    before, leave = _addresses("VmSize"), os._exit
    resource.setrlimit(resource.RLIMIT_AS, (2**46, 2**46))  # under a limit, no addresses are taken beforehand

    def told(code: int) -> None:
        Path(file).write_text(str(_addresses("VmPeak") - before))
        leave(code)

    os._exit = told


def limit_memory(size: int) -> None:
    """Limit the address space of the process to this many more bytes."""
    most = _addresses("VmSize") + size
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _addresses(name: str) -> int:
    return 1024 * int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])


def pretend(kind: str) -> None:
    """Make this process another one: of another torch, another Python, a processor that can less, another optimizer."""
    import platform

    import torch

    from dither.engine.optimizers import adamw as optim

    if kind == "torch":
        torch.__version__ = "99.1.0"
    elif kind == "python":
        platform.python_version = lambda: "3.99"
    elif kind == "capability":
        torch.backends.cpu.get_cpu_capability = lambda: "OTHER"
    else:
        optim.FUSED = set()


def be_rank(rank: int, size: int, port: int, launch: str) -> None:
    """Be one of several processes on this machine, as torchrun would say it."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": launch}
    os.environ.update({name: str(value) for name, value in {**told, **where}.items()})
