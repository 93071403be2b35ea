"""All checks: each has a function that takes a situation and fails if the component violates a property there."""

from __future__ import annotations

from . import (
    all_kinds,
    blocks,
    embeddings,
    losses,
    models,
    process_distributions,
    process_protocols,
    processes,
    run_components,
    samplers,
    schedules,
    tasks,
)
from .check import Check

__all__ = ["CHECKS", "Check"]

CHECKS: tuple[Check, ...] = (
    *all_kinds.CHECKS,
    *schedules.CHECKS,
    *processes.CHECKS,
    *process_distributions.CHECKS,
    *process_protocols.CHECKS,
    *samplers.CHECKS,
    *losses.CHECKS,
    *models.CHECKS,
    *blocks.CHECKS,
    *embeddings.CHECKS,
    *run_components.CHECKS,
    *tasks.CHECKS,
)
"""Every check of the kit. Names are unique within a kind."""
