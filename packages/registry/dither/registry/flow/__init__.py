"""Records, spaces and protocols of what components do at run time. Torch is imported when a name is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .protocols import (
        BoundedProcess,
        BucketedTask,
        DataWarnings,
        Denoiser,
        Exports,
        GaussianProcess,
        ImportanceSampledProcess,
        KeyValueCache,
        Loss,
        MaskedFeatureProcess,
        Metrics,
        PatientProcess,
        Picture,
        PredictionMetric,
        Process,
        RatioSums,
        RawLater,
        SampledMetrics,
        SampleMetric,
        Sampler,
        Schedule,
        Session,
        ShowsTrajectories,
        Split,
        Task,
        TimelessProcess,
        TokenProcess,
        Tracker,
    )
    from .records import (
        Clean,
        Context,
        FeaturePrediction,
        Goal,
        Measured,
        Noise,
        Noised,
        Prediction,
        State,
        TokenPrediction,
    )

__all__ = [
    "BoundedProcess",
    "BucketedTask",
    "Clean",
    "Context",
    "DataWarnings",
    "Denoiser",
    "Exports",
    "FeaturePrediction",
    "GaussianProcess",
    "Goal",
    "ImportanceSampledProcess",
    "KeyValueCache",
    "Loss",
    "MaskedFeatureProcess",
    "Measured",
    "Metrics",
    "Noise",
    "Noised",
    "PatientProcess",
    "Picture",
    "Prediction",
    "PredictionMetric",
    "Process",
    "RatioSums",
    "RawLater",
    "SampleMetric",
    "SampledMetrics",
    "Sampler",
    "Schedule",
    "Session",
    "ShowsTrajectories",
    "Split",
    "State",
    "Task",
    "TimelessProcess",
    "TokenPrediction",
    "TokenProcess",
    "Tracker",
]

_RECORDS = frozenset(
    [
        "Clean",
        "Context",
        "FeaturePrediction",
        "Goal",
        "Measured",
        "Noise",
        "Noised",
        "Prediction",
        "State",
        "TokenPrediction",
    ]
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".records" if name in _RECORDS else ".protocols", __name__), name)
