"""Types of options shared by Specs and implementations, and checks of options without effect. Read without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from dither.registry import Misfit, Spec

__all__ = [
    "MAX_POSITIONS",
    "Estimator",
    "FeaturePredictionType",
    "Level",
    "Mask",
    "PredictionType",
    "changed_options",
    "no_effect",
]

Mask = Literal["region", "block", "column", "element", "group", "tss"]
FeaturePredictionType = Literal["x0", "eps", "velocity"]
PredictionType = Literal["posterior", "plug-in", "score"]
Level = Literal["t", "sigma", "log-sigma", "index"]
Estimator = Literal["time", "importance", "mask-count", "exact"]
"""Estimator of the bound of an absorbing process; see `tokens.nelbo`."""

MAX_POSITIONS = 12
"""Largest number of positions whose masks may be enumerated."""


def changed_options(spec: Spec, options: Iterable[str]) -> Iterator[str]:
    """Yield the options whose values are not their defaults."""
    for option in options:
        if getattr(spec, option) != type(spec).model_fields[option].default:
            yield option


def no_effect(
    spec: Spec,
    options: Iterable[str],
    where: str,
    fix: str | None = None,
) -> Iterator[Misfit]:
    """Reject options that are set although they have no effect."""
    for option in changed_options(spec, options):
        message = f"{option} has no effect {where}"
        yield Misfit(message, (option,), help=fix, code="no-effect")
