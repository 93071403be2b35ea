"""Types of options shared by Specs and implementations. Read without torch."""

from typing import Literal

__all__ = [
    "MAX_POSITIONS",
    "Estimator",
    "FeaturePredictionType",
    "Level",
    "Mask",
    "PredictionType",
]

Mask = Literal["region", "block", "column", "element", "group", "tss"]
FeaturePredictionType = Literal["x0", "eps", "velocity"]
PredictionType = Literal["posterior", "plug-in", "score"]
Level = Literal["t", "sigma", "log-sigma", "index"]
Estimator = Literal["time", "importance", "mask-count", "exact"]
"""Estimator of the bound of an absorbing process; see `tokens.nelbo`."""

MAX_POSITIONS = 12
"""Largest number of positions whose masks may be enumerated."""
