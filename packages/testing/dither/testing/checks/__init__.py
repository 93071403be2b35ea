"""All checks: each has a function that takes a situation and fails if the component violates a property there."""

from __future__ import annotations

from itertools import chain

from ..situations import Check
from . import (
    all_kinds,
    embeddings,
    losses,
    models,
    process_distributions,
    processes,
    run_components,
    samplers,
    tasks,
)

__all__ = ["CHECKS", "Check"]

MODULES = (
    all_kinds,
    processes,
    process_distributions,
    samplers,
    losses,
    models,
    embeddings,
)
CHECKS: tuple[Check, ...] = tuple(
    chain.from_iterable(module.CHECKS for module in (*MODULES, run_components, tasks))
)
"""Every check of the kit. Names are unique within a kind."""
