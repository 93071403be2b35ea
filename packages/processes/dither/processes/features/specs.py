"""Processes over features. Read without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dither.registry import FeatureSpace, Misfit, Slot, Space, named
from dither.registry.config.errors import did_you_mean
from dither.registry.kinds import FEATURES, ProcessFacts, ScheduleSpec

from ..options import FeaturePredictionType, Mask, no_effect
from ..schedules.betas import MAX_SIGMA
from ..timestep_specs import ScheduledProcess

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Process, Schedule

__all__ = ["Gaussian", "MaskedRegion"]

MAX_SIGMA_FOR_EPS = 30
"""Largest sigma at which x_0 may be computed from eps: there 1 / sqrt(alpha) is 3e6, about the
limit of float32."""

MAX_MEAN_LOST = 0.01
"""Largest sqrt(alpha) at t = 1 without a warning; DDPM's own betas leave .006."""

WHOLE = (None, "region", "block", "tss")
"""Masks of all columns of a position."""


class _MaskedProcess(ScheduledProcess):
    mask: Mask | None = None
    group: str | None = None
    """The only columns that a mask picks from; by default all."""
    ratio: float | None = Field(None, gt=0, le=1)
    exact: bool = False
    """Pick the rounded number of units in each sample, not each unit independently."""
    block: int = Field(8, ge=1)
    """Regions of a block."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Reject options of the mask that contradict each other or the space."""
        yield from super().check(space)
        if self.mask in (None, "region") and self.group is not None:
            where = "without a mask" if self.mask is None else 'with mask = "region"'
            message = f'group = "{self.group}" has no effect {where}'
            yield Misfit(
                message, ("group",), help='set mask = "group"', code="no-effect"
            )
        if self.mask != "block":
            where = f'with mask = "{self.mask}"' if self.mask else "without a mask"
            yield from no_effect(self, ("block",), where, 'set mask = "block"')
        if isinstance(space, FeatureSpace) and self.mask not in (None, "region"):
            yield from self._check_space(space)

    def features(self, space: Space) -> FeatureSpace:
        """Return the space; TypeError for tokens."""
        if not isinstance(space, FeatureSpace):
            raise TypeError(f'process "{self.name}" requires features, not {space}')
        return replace(space, level_end=self.level_end())

    def covers_positions(self, space: Space) -> bool:
        """Return whether noise covers all columns of a position."""
        given = isinstance(space, FeatureSpace) and space.given
        return self.mask in WHOLE and self.group is None and not given

    def mask_options(self) -> dict[str, Any]:
        """Return the arguments of a process for its mask."""
        return self.model_dump(include={"mask", "group", "ratio", "exact", "block"})

    def _check_space(self, space: FeatureSpace) -> Iterable[Misfit]:
        yield from self._check_group(space)
        if self.mask == "tss":
            yield from _check_tss(space)

    def _check_group(self, space: FeatureSpace) -> Iterable[Misfit]:
        names = [group.name for group in space.groups]
        listed = f"groups: {', '.join(names) or 'none'}"
        if self.group is None:
            if self.mask == "group":
                message = f'mask = "group" requires the name of a group; {listed}'
                yield Misfit(message, ("mask",), ("task",), code="missing-key")
            return

        if self.group not in names:
            yield Misfit(
                f'unknown group "{self.group}"; {listed}',
                ("group",),
                ("task",),
                help=did_you_mean(self.group, names),
                code="unknown-value",
            )

        # Given columns are never masked, so that no position would have a target.
        if self.group in space.given:
            rest = [name for name in names if name not in space.given]
            yield Misfit(
                f'group = "{self.group}" leaves nothing to learn: '
                "the task gives it to the model as known",
                ("group",),
                ("task", "given"),
                help=f"groups that are not given: {', '.join(rest) or 'none'}",
            )


def _check_tss(space: FeatureSpace) -> Iterable[Misfit]:
    """Reject a mask of transcription start sites in data without them."""
    conditions = [
        condition.name for condition in space.conditions if condition.per_position
    ]
    if "tss" not in conditions:
        yield Misfit(
            'mask = "tss" requires the condition "tss" at every position; '
            f"the task has: {', '.join(conditions) or 'none'}",
            ("mask",),
            ("task",),
            help="use data with transcription start sites",
        )


class Gaussian(_MaskedProcess):
    """Gaussian noise: x_t = sqrt(alpha) x_0 + sqrt(1 - alpha) eps, everywhere or where a mask picks (DDPM, DDIM).

    With a mask the rest stays visible and clean, so that a model learns to fill in. Which values
    are noisy is passed to an embedding that accepts it, such as "regions" with elements = true.
    """

    name = "gaussian"
    rev = 2
    serves = FEATURES
    schedule: Slot[ScheduleSpec] = named("linear-beta")
    """Noise as a function of time."""
    predict: FeaturePredictionType = "x0"
    """Meaning of the raw output; velocity is sqrt(alpha) eps - sqrt(1 - alpha) x_0."""
    mask: Mask | None = None
    """Unit that gets noise as one, as in process "masked-region"; by default everything gets
    noise."""
    ratio: float | None = Field(None, gt=0, le=1)
    """Share of the units that a mask picks; by default drawn for each sample, uniformly from 0 to
    1."""
    zero_snr: bool | None = None
    """Shift and scale sqrt(alpha) to 0 at t = 1, so that sampling starts from the last state of
    training (Lin et al. 2023). By default unless predict = "eps", which says nothing of x_0
    there."""

    def rescales(self) -> bool:
        """Return whether the schedule is rescaled to zero terminal signal."""
        if self.zero_snr is None:
            return self.predict != "eps"
        return self.zero_snr

    def sigma_end(self) -> float | None:
        end = super().sigma_end()
        if end is None or not self.rescales():
            return end
        return max(end, MAX_SIGMA)

    def build_schedule(self) -> Schedule:
        schedule = super().build_schedule()
        end = self.schedule.built_sigma_end()
        # Beyond, float32 cannot distinguish the signal from 0.
        if not self.rescales() or end >= MAX_SIGMA:
            return schedule

        from ..schedules.zero_snr import zero_terminal_snr

        return zero_terminal_snr(schedule, end)

    def check(self, space: Space) -> Iterable[Misfit]:
        """Require features, mask options that have an effect, and a schedule that ends in noise."""
        yield from super().check(space)
        if self.mask is None:
            fix = 'set mask = "region"'
            yield from no_effect(self, ("ratio", "exact"), "without a mask", fix)
        yield from self.check_signal_at_end("of the variance would still be signal")
        end = self.sigma_end()
        if self.predict == "eps" and end is not None and end > MAX_SIGMA_FOR_EPS:
            message = (
                'predict = "eps" divides by exp(-sigma / 2), and the schedule ends at '
                f"sigma = {end:.3g}"
            )
            fix = f'end at sigma = {MAX_SIGMA_FOR_EPS}, or set predict = "velocity"'
            key = "zero_snr" if self.zero_snr else "schedule"
            yield Misfit(message, (key,), help=fix)

    def facts(self, space: Space) -> ProcessFacts:
        return ProcessFacts(
            self.name,
            self.features(space),
            self.predict,
            "gaussian",
            masked=self.mask is not None,
            whole_positions=self.covers_positions(space),
        )

    def warn(self, space: Space) -> Iterable[Misfit]:
        """Warn about columns of different scales, which noise of one variance treats unevenly."""
        yield from super().warn(space)
        if isinstance(space, FeatureSpace) and space.standardised is False:
            message = (
                "Gaussian noise requires columns of mean 0 and standard deviation 1; "
                "these are not standardised"
            )
            yield Misfit(message, related=("task",), help="set task.standardise = true")

        end = self.sigma_end()
        signal = 0.0 if end is None else math.exp(-end / 2)
        if signal > MAX_MEAN_LOST:
            message = (
                f"{100 * signal:.2g} % of the mean of the data is left at t = 1, "
                "but sampling starts from noise of mean 0"
            )
            yield Misfit(message, ("schedule",), help='set predict = "velocity"')

    def build(self, space: Space) -> Process:
        from .gaussian import GaussianProcess

        return GaussianProcess(
            self.features(space), self.timesteps(), self.predict, **self.mask_options()
        )


class MaskedRegion(_MaskedProcess):
    """Features are masked and filled in (GET regions): whole regions, single elements, or columns."""

    name = "masked-region"
    rev = 2
    serves = FEATURES
    mask: Mask = "region"
    """Unit of the mask. region: all of a region. block: consecutive regions. column: a column over
    all regions.
    element: each number by itself. group: the columns of a group in a region. tss: a region with a
    transcription start, where the condition "tss" is not 0, and no other."""
    group: str | None = None
    """The only columns that may be masked; by default all. mask = "group" requires one."""
    ratio: float | None = Field(None, gt=0, le=1)
    """Share that is masked at every time, so that states do not depend on time; by default 1 -
    alpha."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Require features, mask options that agree, and a schedule that masks nearly everything."""
        yield from super().check(space)
        # With a fixed ratio the schedule decides about no mask.
        if self.ratio is None:
            yield from self.check_signal_at_end("would not be masked")

    def facts(self, space: Space) -> ProcessFacts:
        return ProcessFacts(
            self.name,
            self.features(space),
            "x0",
            "hidden",
            timeless=self.ratio is not None,
            whole_positions=self.covers_positions(space),
        )

    def build(self, space: Space) -> Process:
        from .masked_features import MaskedRegionProcess

        # With a fixed ratio the schedule may leave any signal.
        max_signal = None if self.ratio is None else 1.0
        timesteps = self.timesteps(max_signal)
        return MaskedRegionProcess(
            self.features(space), timesteps, **self.mask_options()
        )
