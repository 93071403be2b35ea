"""Assemble experiments from named components and run them. No torch at import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config.experiment import Experiment
    from .config.load_experiment import Loaded, load_experiment
    from .runs.api import evaluate, save_experiment, train
    from .runs.exports import load
    from .runs.system import System
    from .sampling.session import draw
    from .training.diffusion import Diffusion

__all__ = [
    "Diffusion",
    "Experiment",
    "Loaded",
    "System",
    "draw",
    "evaluate",
    "load",
    "load_experiment",
    "save_experiment",
    "train",
]

MODULES = {
    "Diffusion": "training.diffusion",
    "Experiment": "config.experiment",
    "Loaded": "config.load_experiment",
    "load_experiment": "config.load_experiment",
    "load": "runs.exports",
    **dict.fromkeys(("evaluate", "save_experiment", "train"), "runs.api"),
    "System": "runs.system",
    "draw": "sampling.session",
}


def __getattr__(name: str) -> Any:
    """Import pydantic, the registry and torch on first use, so that `dither --help` is fast."""
    if name in __all__:
        return getattr(import_module(f".{MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
