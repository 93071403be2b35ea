"""Spec of the process with predicted variances. Read without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Space
from dither.registry.kinds import ProcessFacts

from ..options import FeaturePredictionType, Level
from .specs import Gaussian

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Process

__all__ = ["LearnedVariance"]


class LearnedVariance(Gaussian):
    """Gaussian noise in discrete steps whose reverse has a predicted variance (Improved DDPM, DiT).

    The model returns two numbers per column: the prediction, and where the log-variance of a step
    lies between the smallest and the largest possible one. Train it with loss "hybrid".
    """

    name = "learned-variance"
    rev = 1
    predict: FeaturePredictionType = "eps"
    """Meaning of the first number of each column; velocity is sqrt(alpha) eps - sqrt(1 - alpha)
    x_0."""
    steps: int = Field(1000, ge=100, le=100_000)
    """Steps of training; the times are 1 / steps to 1."""
    t_min: Literal[0] = 0
    """Training draws every step, from the first."""
    level: Level = "index"
    """Noise level passed to the model: the number of the step, from 0; t, sigma or log sigma."""

    def level_end(self) -> float | None:
        return self.steps - 1.0 if self.level == "index" else super().level_end()

    def features(self, space: Space) -> FeatureSpace:
        """Return the space, with two outputs per column."""
        return replace(super().features(space), outputs=2)

    def facts(self, space: Space) -> ProcessFacts:
        return replace(super().facts(space), space=self.features(space))

    def build(self, space: Space) -> Process:
        from .learned_variance import LearnedVarianceProcess

        return LearnedVarianceProcess(
            self.features(space),
            self.timesteps(),
            self.predict,
            **self.mask_options(),
            steps=self.steps,
        )
