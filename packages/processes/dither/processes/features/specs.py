"""The menu of processes over features. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Misfit, Slot, Space, named
from dither.registry.config.errors import nearest
from dither.registry.kinds import FEATURES, ProcessFacts
from dither.registry.kinds.process import ScheduleSpec

from ..timestep_specs import ScheduledProcess

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Process

__all__ = ["Gaussian", "MaskedRegion"]

Unit = Literal["region", "block", "column", "element", "group", "tss"]

BLOCK = 8
"""Regions of a block."""

MOST_DIVIDED = 30
"""Largest sigma at which x_0 may be worked out from eps: there 1 / sqrt(alpha) is 3e6, about what float32 can bear."""


class Gaussian(ScheduledProcess):
    """Gaussian noise: x_t = sqrt(alpha) x_0 + sqrt(1 - alpha) eps, on everything or on what a mask picks (DDPM, DDIM).

    With a mask the rest stays visible and clean, so that a model learns to fill in. What has noise is told to an
    embedding that takes it, as "regions" with elements = true.
    """

    name: ClassVar[str] = "gaussian"
    rev: ClassVar[int] = 2
    serves = FEATURES
    schedule: Slot[ScheduleSpec] = named("linear-beta")
    """How the noise grows with time."""
    predict: Literal["x0", "eps", "velocity"] = "x0"
    """What the raw output means; velocity is sqrt(alpha) eps - sqrt(1 - alpha) x_0."""
    mask: Unit | None = None
    """What gets noise as one, as in process "masked-region"; by default everything gets noise."""
    group: str | None = None
    """The only columns that a mask picks from; by default all."""
    ratio: float | None = Field(None, gt=0, le=1)
    """Share of the units that a mask picks; by default drawn for each sample, evenly from 0 to 1."""
    exact: bool = False
    """Pick the rounded number of units in each sample, not each unit by itself."""
    block: int = Field(BLOCK, ge=1)
    """Regions of a block."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the space, or would not end in noise."""
        yield from super().check(space)
        yield from _masks(self.mask, self.group, self.block, space)
        for option, unset in (("ratio", None), ("exact", False)):
            if self.mask is None and getattr(self, option) != unset:
                yield Misfit(f"{option} has no effect without a mask", (option,), help='set mask = "region"')
        yield from self.check_signal_at_end("of the variance would still be signal")
        end = self.schedule.sigma_end()
        if self.predict == "eps" and end is not None and end > MOST_DIVIDED:
            message = f'predict = "eps" divides by exp(-sigma / 2), and the schedule goes on to sigma = {end:.3g}'
            yield Misfit(message, ("schedule",), help=f'end at sigma = {MOST_DIVIDED}, or set predict = "velocity"')

    def facts(self, space: Space) -> ProcessFacts:
        """Tell what losses and samplers need to know."""
        return ProcessFacts(self.name, _features(self, space), self.predict, "gaussian", masked=self.mask is not None)

    def warn(self, space: Space) -> Iterable[Misfit]:
        """Yield that the columns are on scales of their own, which noise of one variance blurs unevenly."""
        yield from super().warn(space)
        if isinstance(space, FeatureSpace) and space.standardised is False:
            message = "the columns are not standardised, but Gaussian noise is for those of mean 0 and deviation 1"
            yield Misfit(message, related=("task",), help="set task.standardise = true")

    def build(self, space: Space) -> Process:
        """Return the process."""
        from .gaussian import GaussianProcess

        masks = (self.mask, self.group, self.ratio, self.exact, self.block)
        return GaussianProcess(_features(self, space), self.clock(), self.predict, *masks)


class MaskedRegion(ScheduledProcess):
    """Features are hidden, to be filled in (GET regions): whole regions, single elements, or columns."""

    name: ClassVar[str] = "masked-region"
    rev: ClassVar[int] = 2
    serves = FEATURES
    mask: Unit = "region"
    """What is hidden as one. region: all of a region. block: consecutive regions. column: a column over all regions.
    element: each number by itself. group: the columns of a group in a region. tss: a region at which a transcription
    starts, where the condition "tss" is not 0, and no other."""
    group: str | None = None
    """The only columns that may be hidden; by default all. mask = "group" needs one."""
    ratio: float | None = Field(None, gt=0, le=1)
    """Share that is hidden at every time, which then says nothing to the model; by default 1 - alpha."""
    exact: bool = False
    """Hide the rounded number of units in each sample, not each unit by itself."""
    block: int = Field(BLOCK, ge=1)
    """Regions of a block."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the space, or its options contradict each other."""
        yield from super().check(space)
        yield from _masks(self.mask, self.group, self.block, space)
        if self.ratio is None:
            yield from self.check_signal_at_end("would not be hidden")

    def facts(self, space: Space) -> ProcessFacts:
        """Tell what losses and samplers need to know."""
        whole = self.mask in ("region", "block") and self.group is None
        hidden = (self.ratio or 0.0) if whole else 0.0
        return ProcessFacts(self.name, _features(self, space), "x0", "hidden", self.ratio is not None, hidden)

    def build(self, space: Space) -> Process:
        """Return the process."""
        from .masked_features import MaskedRegionProcess

        masks = (self.mask, self.group, self.ratio, self.exact, self.block)
        return MaskedRegionProcess(_features(self, space), self.clock(), *masks)


def _masks(mask: Unit | None, group: str | None, block: int, space: Space) -> Iterable[Misfit]:
    """Yield what is wrong with the options of a mask, together and for the space."""
    if mask in (None, "region") and group is not None:
        message = f'group = "{group}" has no effect ' + ("without a mask" if mask is None else 'with mask = "region"')
        yield Misfit(message, ("group",), help='set mask = "group"')
    if mask != "block" and block != BLOCK:
        yield Misfit(f"block = {block} has no effect", ("block",), help='set mask = "block"')
    if not isinstance(space, FeatureSpace):
        return
    names = [known.name for known in space.groups]
    if (mask == "group" and group is None) or (group not in (None, *names) and mask not in (None, "region")):
        said = f'no group is named "{group}"' if group else 'mask = "group" needs the name of a group'
        hint = nearest(group, names) if group else None
        message = f"{said}; groups: {', '.join(names) or 'none'}"
        yield Misfit(
            message, ("group",) if group else ("mask",), ("task",), f'did you mean "{hint}"?' if hint else None
        )
    if group in space.given and mask not in (None, "region"):
        left = ", ".join(name for name in names if name not in space.given)
        message = f'group = "{group}" leaves nothing to learn: the task gives it to the model, so none of it is hidden'
        yield Misfit(message, ("group",), ("task", "given"), f"groups that are not given: {left or 'none'}")
    told = [condition.name for condition in space.conditions if condition.size is None]
    if mask == "tss" and "tss" not in told:
        message = (
            f'mask = "tss" needs the condition "tss" at every position; the task tells: {", ".join(told) or "none"}'
        )
        yield Misfit(message, ("mask",), ("task",), "take data that tell where transcription starts")


def _features(spec: ScheduledProcess, space: Space) -> FeatureSpace:
    if not isinstance(space, FeatureSpace):
        raise TypeError(f'process "{spec.name}" is for features, but here a sample is {space}')
    return space
