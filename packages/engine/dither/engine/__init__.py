"""Assembles experiments from names and runs them. No torch at import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiment import Experiment, Loaded, load_experiment

__all__ = ["Experiment", "Loaded", "load_experiment"]


def __getattr__(name: str) -> Any:
    """Import pydantic and the registry only for those who ask; the help of the command line does not."""
    if name in __all__:
        from . import experiment

        return getattr(experiment, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
