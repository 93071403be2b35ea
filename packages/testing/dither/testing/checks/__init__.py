"""Checks by kind: data, each with a function that takes a situation and fails if the part does wrong there."""

from __future__ import annotations

from . import (
    all_kinds as every,
)
from . import (
    blocks,
    losses,
    models,
    processes,
    samplers,
    schedules,
    tasks,
)
from . import (
    construction as builds,
)
from . import (
    embeddings as inside,
)
from . import (
    optimizers as optimization,
)
from . import (
    process_distributions as laws,
)
from . import (
    process_methods as verbs,
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
