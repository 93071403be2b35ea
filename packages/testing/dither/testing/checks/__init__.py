"""Checks by kind: data, each with a function that takes a situation and fails if the part does wrong there."""

from __future__ import annotations

from . import (
    blocks,
    builds,
    every,
    inside,
    laws,
    losses,
    models,
    optimization,
    processes,
    samplers,
    schedules,
    tasks,
    verbs,
)
from .check import Check

__all__ = ["CHECKS", "Check"]

CHECKS: tuple[Check, ...] = (
    *every.CHECKS,
    *builds.CHECKS,
    *schedules.CHECKS,
    *processes.CHECKS,
    *laws.CHECKS,
    *verbs.CHECKS,
    *samplers.CHECKS,
    *losses.CHECKS,
    *models.CHECKS,
    *blocks.CHECKS,
    *inside.CHECKS,
    *optimization.CHECKS,
    *tasks.CHECKS,
)
"""Every check of the kit. Names are unique within a kind."""
