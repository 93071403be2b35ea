"""Settings of the whole process, most of them of torch, which the code of one plugin must not change for all."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

__all__ = ["GENERATOR", "SettingsChanged", "protected_settings", "restored_settings"]

GENERATOR = "random generator"
"""The state of the generator of the CPU: a component may use it when it is built."""
SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP")
"""Signals that may request a stop of a run. Windows has only two of them."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
"""Environment variables that torch reads when it is imported or first used."""
FOLDER = "working folder"
SIGNAL = "handler of "
VARIABLE = "variable "
OUTPUTS = {"sys.stdout": 1, "sys.stderr": 2}
"""Streams of Python, each with its file descriptor in most processes."""


class SettingsChanged(UserWarning):
    """Code of a third party changed settings of the process; they are restored."""


@contextmanager
def protected_settings(who: str) -> Iterator[None]:
    """Restore the settings after the code of `who`, and warn of changes; it may draw random numbers."""
    with restored_settings(ignore=GENERATOR) as changes:
        yield
    if changes:
        text = f"{who} changed settings of the process, which were restored: "
        warnings.warn(text + ", ".join(changes), SettingsChanged, stacklevel=3)


@contextmanager
def restored_settings(ignore: str = "") -> Iterator[list[str]]:
    """Restore the settings at the end of the block; the list then has a text for each change."""
    changes: list[str] = []
    before = _read_process()
    before_torch = read_settings(ignore)
    copies = _copied_descriptors()
    try:
        yield changes
    finally:
        # First: Python writes its streams, and warnings, to them.
        changes += _restore_descriptors(copies)
        after = _read_process()
        after_torch = read_settings(ignore)
        # torch was imported inside of the block.
        if after_torch and not before_torch:
            before_torch = _initial_settings()
        before |= before_torch
        after |= after_torch
        for name, value in before.items():
            if name not in after or after[name] == value:
                continue
            _write(name, value)
            shown = f" from {value} to {after[name]}"
            if name in (GENERATOR, *OUTPUTS) or name.startswith(SIGNAL):
                shown = ""
            changes.append(f"{name}{shown}")


class Output(NamedTuple):
    """A stream of Python, whether it is closed, and its file descriptor, if it has one."""

    stream: Any
    closed: bool
    descriptor: int | None

    @classmethod
    def of(cls, stream: Any) -> Output:
        """Return the state of a stream, which may be anything that a third party has set."""
        closed = isinstance(stream, io.IOBase) and stream.closed
        # Streams of a notebook or of a test have none, closed ones raise ValueError.
        with suppress(AttributeError, OSError, ValueError):
            return cls(stream, closed, stream.fileno())
        return cls(stream, closed, None)


def _copied_descriptors() -> list[tuple[int, int]]:
    """Return the descriptors of `OUTPUTS`, each with a duplicate."""
    copies = []
    for descriptor in OUTPUTS.values():
        # A service may have none of them.
        with suppress(OSError):
            copies.append((descriptor, os.dup(descriptor)))
    return copies


def _restore_descriptors(copies: list[tuple[int, int]]) -> list[str]:
    """Undo the closing and redirection of descriptors; return a text for each."""
    changes = []
    for descriptor, copy in copies:
        try:
            kept = os.path.sameopenfile(descriptor, copy)
        except OSError:
            kept = False
        if not kept:
            os.dup2(copy, descriptor)
            changes.append(f"file descriptor {descriptor}")
        os.close(copy)
    return changes


def _read_process() -> dict[str, Any]:
    """Return the settings of Python by name."""
    settings: dict[str, Any] = {}
    # The folder may be deleted.
    with suppress(OSError):
        settings[FOLDER] = os.getcwd()
    for name in VARIABLES:
        settings[VARIABLE + name] = os.environ.get(name)
    # Only the main thread may set handlers. It may redirect a stream while another calls a plugin.
    if threading.current_thread() is threading.main_thread():
        settings["sys.stdout"] = Output.of(sys.stdout)
        settings["sys.stderr"] = Output.of(sys.stderr)
        for name in SIGNALS:
            if name not in signal.Signals.__members__:
                continue
            handler = signal.getsignal(signal.Signals[name])
            # Other handlers are not those of Python, which cannot set them.
            if callable(handler) or isinstance(handler, signal.Handlers):
                settings[SIGNAL + name] = handler
    return settings


def read_settings(ignore: str = "") -> dict[str, Any]:
    """Return the settings of torch by name; none before torch is imported."""
    torch: Any = sys.modules.get("torch")
    # A failed import leaves half a module.
    if torch is None or "initial_seed" not in vars(torch):
        return {}
    settings = {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "autocast of cpu": torch.is_autocast_enabled("cpu"),
        "autocast of cuda": torch.is_autocast_enabled("cuda"),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "cudnn.enabled": torch.backends.cudnn.enabled,
        "anomaly detection": torch.is_anomaly_enabled(),
        "number of threads": torch.get_num_threads(),
    }
    if ignore != GENERATOR:
        settings[GENERATOR] = torch.get_rng_state().numpy().tobytes()
    # torch refuses to read it after it was set per backend, by `fp32_precision`.
    with suppress(RuntimeError):
        precision = torch.get_float32_matmul_precision()
        settings["precision of matrix products"] = precision
    return settings


def _initial_settings() -> dict[str, Any]:
    """Return the settings after `import torch`, except those that differ from process to process."""
    torch: Any = sys.modules["torch"]
    return {
        "default dtype": torch.float32,
        "default device": torch.device("cpu"),
        "grad mode": True,
        "autocast of cpu": False,
        "autocast of cuda": False,
        "deterministic algorithms": False,
        "cudnn.benchmark": False,
        "cudnn.deterministic": False,
        "cudnn.enabled": True,
        "anomaly detection": False,
    }


def _write(name: str, value: Any) -> None:
    if name == FOLDER:
        os.chdir(value)
    elif name in OUTPUTS:
        setattr(sys, name.removeprefix("sys."), _usable(value, OUTPUTS[name]))
    elif name.startswith(SIGNAL):
        signal.signal(signal.Signals[name.removeprefix(SIGNAL)], value)
    elif name.startswith(VARIABLE):
        os.environ.pop(name.removeprefix(VARIABLE), None)
        if value is not None:
            os.environ[name.removeprefix(VARIABLE)] = value
    else:
        _write_torch(name, value)


def _usable(output: Output, descriptor: int) -> Any:
    """Return the stream of an output, or a new one on a descriptor of `OUTPUTS` if it was closed."""
    stream = output.stream
    now = Output.of(stream)
    if now.closed == output.closed and now.descriptor == output.descriptor:
        return stream
    # That of another file was closed with it.
    if output.descriptor in {*OUTPUTS.values()}:
        descriptor = output.descriptor
    options: dict[str, Any] = {}
    # Others, as of a notebook or a logger, may have no encoding.
    if isinstance(stream, io.TextIOBase):
        options = {"encoding": stream.encoding, "errors": stream.errors}
    return open(descriptor, "w", buffering=1, closefd=False, **options)


def _write_torch(name: str, value: Any) -> None:
    torch: Any = sys.modules["torch"]
    setters = {
        "default dtype": torch.set_default_dtype,
        "default device": torch.set_default_device,
        "grad mode": torch.set_grad_enabled,
        "deterministic algorithms": torch.use_deterministic_algorithms,
        "precision of matrix products": torch.set_float32_matmul_precision,
        "anomaly detection": torch.autograd.set_detect_anomaly,
        "number of threads": torch.set_num_threads,
    }
    # Any default device but None makes every function of torch slower.
    if value == torch.device("cpu"):
        value = None
    if name in setters:
        setters[name](value)
    elif name == GENERATOR:
        state = torch.frombuffer(bytearray(value), dtype=torch.uint8)
        torch.set_rng_state(state)
    elif name.startswith("autocast of "):
        torch.set_autocast_enabled(name.removeprefix("autocast of "), value)
    else:
        setattr(torch.backends.cudnn, name.removeprefix("cudnn."), value)
