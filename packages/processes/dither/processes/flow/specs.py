"""Processes of flow matching. No torch at import."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dither.registry import FeatureSpace, Slot, Space, named
from dither.registry.kinds import ProcessFacts, ScheduleSpec

from ..features.specs import Gaussian

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Process

__all__ = ["FlowMatching"]


class FlowMatching(Gaussian):
    """Flow matching (rectified flow): x_t = (1 - u) x_0 + u eps on a straight line from each sample to noise.

    u is t under schedule "rectified-flow"; another schedule gives u = b / (a + b) with a, b the factors of x_0 and eps
    under process "gaussian". Sampler "ode" follows the velocity.
    """

    name: ClassVar[str] = "flow-matching"
    rev: ClassVar[int] = 1
    schedule: Slot[ScheduleSpec] = named("rectified-flow")
    """Noise as a function of time."""
    predict: Literal["velocity", "x0"] = "velocity"
    """Meaning of the raw output: the velocity eps - x_0, or x_0."""

    def facts(self, space: Space) -> ProcessFacts:
        predict = "flow-velocity" if self.predict == "velocity" else self.predict
        facts = super().facts(space)
        return ProcessFacts(self.name, facts.space, predict, "gaussian", masked=facts.masked, linear_path=True)

    def build(self, space: Space) -> Process:
        from .process import FlowMatchingProcess

        if not isinstance(space, FeatureSpace):
            raise TypeError(f'process "{self.name}" requires features, not {space}')
        mask = (self.mask, self.group, self.ratio, self.exact, self.block)
        return FlowMatchingProcess(space, self.timesteps(), self.predict, *mask)
