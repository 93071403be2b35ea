"""Records and protocols of what components do at run time. Torch is imported when a name is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .protocols import *  # noqa: F403
    from .records import *  # noqa: F403

__all__ = [  # noqa: F405
    "Clean",
    "Context",
    "Denoiser",
    "FeaturePrediction",
    "GaussianProcess",
    "Goal",
    "KeyValueCache",
    "Loss",
    "MaskedFeatureProcess",
    "Measured",
    "Metrics",
    "Noise",
    "Noised",
    "NoisedStep",
    "Picture",
    "Prediction",
    "PredictionMetric",
    "Process",
    "RatioSums",
    "SampleMetric",
    "Sampler",
    "Schedule",
    "Session",
    "Split",
    "State",
    "Task",
    "TokenPrediction",
    "TokenProcess",
    "TokenStep",
    "Tracker",
]


def __getattr__(name: str) -> Any:
    for module in (".records", ".protocols") if name in __all__ else ():
        found = import_module(module, __name__)
        if name in found.__all__:
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
