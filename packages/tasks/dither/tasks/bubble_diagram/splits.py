"""Plans divided into training, validation and test by their content alone."""

from __future__ import annotations

import numpy as np

from dither.registry.problems import Refused

from .plans import Plans, PlanSplits
from .structure import fingerprints

__all__ = ["hold_out"]


def hold_out(plans: Plans, *, valid: float, test: float) -> PlanSplits:
    """Divide plans so that neither their order nor their names matter, and equal plans stay together.

    Args:
        plans: What is to be divided.
        valid: Share of the different plans for validation, above 0; at least one.
        test: Share for testing; at least one, or none if it is 0.

    Raises:
        Refused: There are fewer different plans than splits.
    """
    marks, group = np.unique(
        fingerprints(plans.tokens(plans.types.shape[1]), plans.types.shape[1]), return_inverse=True
    )
    splits = 2 + (test > 0)
    if len(marks) < splits:
        raise Refused(f"{splits} splits need {splits} different plans or more, here are {len(marks)}")
    # Fingerprints are as good as random, so their order is a fair one.
    tested = max(1, round(test * len(marks))) if test else 0
    validated = min(max(1, round(valid * len(marks))), len(marks) - tested - 1)
    tested = min(tested, len(marks) - validated - 1)
    places = (group >= tested + validated, (group >= tested) & (group < tested + validated), group < tested)
    return PlanSplits(*(plans[np.flatnonzero(place)] for place in places))
