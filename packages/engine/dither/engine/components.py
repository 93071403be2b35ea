"""The components of this package: optimizers, learning-rate schedules and trackers. No torch."""

from __future__ import annotations

from dither.registry import Spec, hookimpl

from .optimizers.components import AdamW, Muon
from .optimizers.lr_schedules import WSD, Constant, Cosine, Linear
from .tracking.csv import CSV
from .tracking.tensorboard import TensorBoard

__all__ = ["register_components"]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Register the optimizers, learning-rate schedules and trackers."""
    return [AdamW, CSV, Constant, Cosine, Linear, Muon, TensorBoard, WSD]
