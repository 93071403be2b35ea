"""The components of this package: optimizers, learning-rate schedules and trackers. No torch."""

from __future__ import annotations

from dither.registry import Spec, hookimpl

from .optimizers.components import WSD, AdamW, Constant, Cosine, Linear, Muon
from .tracking.trackers import CSV, MLflow, TensorBoard, Trackio, WandB

__all__ = ["register_components"]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Register the optimizers, learning-rate schedules and trackers."""
    return [
        AdamW,
        CSV,
        Constant,
        Cosine,
        Linear,
        MLflow,
        Muon,
        TensorBoard,
        Trackio,
        WSD,
        WandB,
    ]
