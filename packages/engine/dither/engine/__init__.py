"""Assemble experiments from named components and run them. No torch at import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config.experiment import Experiment
    from .config.load_experiment import Loaded, load_experiment
    from .runs.api import evaluate, sample, save_experiment, train
    from .runs.exports import load
    from .runs.system import System
    from .runs.system import System as Diffusion
    from .sampling.session import draw
    from .sweeps.compare import compare

__all__ = [
    "Diffusion",
    "Experiment",
    "Loaded",
    "System",
    "compare",
    "draw",
    "evaluate",
    "load",
    "load_experiment",
    "sample",
    "save_experiment",
    "train",
]

MODULES = {
    # Users build a `Diffusion` and call `sample` or `evaluate` on it, which `System` adds.
    "Diffusion": ("runs.system", "System"),
    "Experiment": ("config.experiment", "Experiment"),
    "Loaded": ("config.load_experiment", "Loaded"),
    "System": ("runs.system", "System"),
    "compare": ("sweeps.compare", "compare"),
    "draw": ("sampling.session", "draw"),
    "evaluate": ("runs.api", "evaluate"),
    "load": ("runs.exports", "load"),
    "load_experiment": ("config.load_experiment", "load_experiment"),
    "sample": ("runs.api", "sample"),
    "save_experiment": ("runs.api", "save_experiment"),
    "train": ("runs.api", "train"),
}
"""Module and attribute of each public name."""


def __getattr__(name: str) -> Any:
    """Import pydantic, the registry and torch on first use, so that `dither --help` is fast."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = MODULES[name]
    return getattr(import_module(f".{module}", __name__), attribute)
