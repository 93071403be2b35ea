"""The components of this package: optimizers, learning-rate schedules, trackers and executors. No torch."""

from __future__ import annotations

from dither.registry import Spec, hookimpl

from .optimizers.components import WSD, AdamW, AdamW8bit, Constant, Cosine, Linear, Muon
from .sweeps.executors import Local, Processes, Slurm
from .tracking.trackers import CSV, MLflow, TensorBoard, Trackio, WandB

__all__ = ["register_components"]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Register the optimizers, learning-rate schedules, trackers and executors."""
    return [
        AdamW,
        AdamW8bit,
        CSV,
        Constant,
        Cosine,
        Linear,
        Local,
        MLflow,
        Muon,
        Processes,
        Slurm,
        TensorBoard,
        Trackio,
        WSD,
        WandB,
    ]
