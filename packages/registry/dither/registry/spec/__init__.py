"""Spec, Slot, options and compatibility checks."""

from .base import Alias, Options, Place, Slot, Spec, default_part, merge_tables, named, summary_of, with_article
from .misfit import Misfit, Path, below, misfits_of, raise_misfits

__all__ = [
    "Alias",
    "Misfit",
    "Options",
    "Path",
    "Place",
    "Slot",
    "Spec",
    "below",
    "default_part",
    "merge_tables",
    "misfits_of",
    "named",
    "raise_misfits",
    "summary_of",
    "with_article",
]
