"""Components of this package. Read without torch."""

from __future__ import annotations

from dither.registry import Spec, hookimpl

from .features.specs import Gaussian, MaskedRegion
from .features.variance_spec import LearnedVariance
from .flow_matching.specs import FlowMatching, Kappa, RectifiedFlow
from .samplers.analytic import Analytic
from .samplers.ancestral import Ancestral
from .samplers.blocks import Blocks
from .samplers.constraint_smc import Guided
from .samplers.ddim import DDIM
from .samplers.diffusers_scheduler import DiffusersScheduler
from .samplers.discrete_flow import DiscreteFlow
from .samplers.dpm_solver import DPMSolver
from .samplers.dpm_solver_sde import DPMSolverSDE
from .samplers.euler import Euler
from .samplers.first_hitting import FirstHitting
from .samplers.heun import Heun
from .samplers.ode import ODE
from .samplers.ordered import Ordered
from .samplers.ordered_regions import OrderedRegions
from .samplers.particle_gibbs import ParticleGibbs
from .samplers.predictor_corrector import PredictorCorrector
from .samplers.remdm import ReMDM
from .samplers.repaint import RePaint
from .samplers.reward import BestOfN, RewardSMC
from .samplers.self_correction import SelfCorrect
from .samplers.semi_autoregressive import SemiAutoregressive
from .samplers.unipc import UniPC
from .schedules.alpha import Cosine, CosineSquared, LogLinear, Polynomial, SigmoidAlpha
from .schedules.betas import CosineBeta, LinearBeta, ScaledLinearBeta, SigmoidBeta
from .schedules.sigma import Geometric, LinearSigma
from .tokens.specs import GIDD, Absorbing, Hybrid, Marginal, Uniform

__all__ = ["register_components"]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Register schedules, processes and samplers."""
    return [
        Absorbing,
        Analytic,
        Ancestral,
        BestOfN,
        Blocks,
        Cosine,
        CosineBeta,
        CosineSquared,
        DDIM,
        DPMSolver,
        DPMSolverSDE,
        DiffusersScheduler,
        DiscreteFlow,
        Euler,
        FirstHitting,
        FlowMatching,
        GIDD,
        Gaussian,
        Geometric,
        Guided,
        Heun,
        Hybrid,
        Kappa,
        LearnedVariance,
        LinearBeta,
        LinearSigma,
        LogLinear,
        Marginal,
        MaskedRegion,
        ODE,
        Ordered,
        OrderedRegions,
        ParticleGibbs,
        Polynomial,
        PredictorCorrector,
        ReMDM,
        RePaint,
        RectifiedFlow,
        RewardSMC,
        ScaledLinearBeta,
        SelfCorrect,
        SemiAutoregressive,
        SigmoidAlpha,
        SigmoidBeta,
        UniPC,
        Uniform,
    ]
