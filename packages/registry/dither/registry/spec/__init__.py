"""Spec, Slot, options and compatibility checks."""

from .base import Options, PathStr, Slot, Spec, named
from .misfit import Misfit, Path, below, raise_misfits

__all__ = [
    "Misfit",
    "Options",
    "Path",
    "PathStr",
    "Slot",
    "Spec",
    "below",
    "named",
    "raise_misfits",
]
