"""The menu of this package: processes here, schedules and samplers from their folders. No torch at import."""

from __future__ import annotations

from dither.registry import Spec, hookimpl

from .features.specs import Gaussian, MaskedRegion
from .samplers.specs import (
    DDIM,
    Analytic,
    Ancestral,
    Blocks,
    DPMSolver,
    Euler,
    FirstHitting,
    Guided,
    Ordered,
    OrderedRegions,
    PredictorCorrector,
    ReMDM,
    RePaint,
    SeedSampler,
)
from .schedules.specs import (
    Cosine,
    CosineBeta,
    CosineSquared,
    Geometric,
    LinearBeta,
    LinearSigma,
    LogLinear,
    Polynomial,
    ScaledLinearBeta,
    SigmoidAlpha,
    SigmoidBeta,
)
from .tokens.specs import Absorbing, Marginal, Uniform

__all__ = ["register_components"]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer what this package makes."""
    curves: list[type[Spec]] = [Cosine, CosineSquared, Geometric, LinearSigma, LogLinear, Polynomial, SigmoidAlpha]
    tables: list[type[Spec]] = [CosineBeta, LinearBeta, ScaledLinearBeta, SigmoidBeta]
    processes: list[type[Spec]] = [Absorbing, Gaussian, Marginal, MaskedRegion, Uniform]
    samplers: list[type[Spec]] = [Analytic, Ancestral, Blocks, Euler, FirstHitting, Guided, Ordered]
    features: list[type[Spec]] = [DDIM, DPMSolver, OrderedRegions, RePaint]
    return [*curves, *tables, *processes, *samplers, *features, PredictorCorrector, ReMDM, SeedSampler]
