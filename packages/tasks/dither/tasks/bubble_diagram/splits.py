"""Plans divided into training, validation and test by their content alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from dither.registry.problems import Refused

from .canonical import plan_groups
from .plans import Plans, PlanSplits

__all__ = ["divide", "hold_out"]


def hold_out(plans: Plans, *, valid: float, test: float) -> PlanSplits:
    """Divide plans so that neither their order nor their names matter, and equal plans stay together.

    Args:
        plans: What is to be divided.
        valid: Share of the different plans for validation, above 0; at least one.
        test: Share for testing; at least one, or none if it is 0.

    Raises:
        Refused: There are fewer different plans than splits.
    """
    split = divide(plan_groups(plans), valid=valid, test=test)
    return PlanSplits(*(plans[np.flatnonzero(split == place)] for place in range(3)))


def divide(groups: Sequence[bytes], *, valid: float, test: float) -> Int[np.ndarray, " N"]:
    """Return the split of each plan: 0 to train on, 1 validation, 2 testing; a group stays together.

    Args:
        groups: Which plans are the same; see `plan_groups`.
        valid: Share of the groups for validation, above 0; at least one.
        test: Share for testing; at least one, or none if it is 0.

    Raises:
        Refused: There are fewer groups than splits.
    """
    number = {mark: place for place, mark in enumerate(sorted(set(groups)))}
    splits, different = 2 + (test > 0), len(number)
    if different < splits:
        raise Refused(f"{splits} splits need {splits} different plans or more, here are {different}")
    # Digests are as good as random, so their order is a fair one.
    tested = max(1, round(test * different)) if test else 0
    validated = min(max(1, round(valid * different)), different - tested - 1)
    tested = min(tested, different - validated - 1)
    place = np.array([number[mark] for mark in groups], np.int64)
    return ((place < tested + validated).astype(np.int8) + (place < tested)).astype(np.int8)
