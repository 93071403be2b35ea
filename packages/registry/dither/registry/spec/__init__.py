"""Spec, Slot, options and compatibility checks."""

from .base import Alias, Options, Slot, Spec, named
from .misfit import Misfit, Path, below, raise_misfits

__all__ = ["Alias", "Misfit", "Options", "Path", "Slot", "Spec", "below", "named", "raise_misfits"]
