"""Settings of torch for the whole process, which the code of one plugin must not change for all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["GENERATOR", "SettingsChanged", "restored_settings"]

GENERATOR = "random generator"
"""The state of the generator of the CPU: a component may use it when it is built."""


class SettingsChanged(UserWarning):
    """A component changed settings of torch when it was built; they are restored."""


def read_settings() -> dict[str, Any]:
    """Return the settings by name; none before torch is imported."""
    torch: Any = sys.modules.get("torch")
    # A failed import leaves half a module.
    if torch is None or "initial_seed" not in vars(torch):
        return {}
    settings = {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "anomaly detection": torch.is_anomaly_enabled(),
        "number of threads": torch.get_num_threads(),
        GENERATOR: torch.get_rng_state().numpy().tobytes(),
    }
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
        "deterministic algorithms": False,
        "cudnn.benchmark": False,
        "cudnn.deterministic": False,
        "anomaly detection": False,
    }


def _write(name: str, value: Any) -> None:
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
    else:
        setattr(torch.backends.cudnn, name.removeprefix("cudnn."), value)


@contextmanager
def restored_settings(ignore: str = "") -> Iterator[list[str]]:
    """Restore the settings at the end of the block; the list then has a text for each change."""
    changes: list[str] = []
    before = read_settings()
    try:
        yield changes
    finally:
        after = read_settings()
        # torch was imported inside of the block.
        if after and not before:
            before = _initial_settings()
        for name, value in before.items():
            if name == ignore or name not in after or after[name] == value:
                continue
            _write(name, value)
            shown = "" if name == GENERATOR else f" from {value} to {after[name]}"
            changes.append(f"{name}{shown}")
