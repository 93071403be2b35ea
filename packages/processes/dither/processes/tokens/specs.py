"""Processes over tokens. Read without torch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dither.registry import Misfit, Slot, Space, TokenSpace, named
from dither.registry.config.errors import did_you_mean
from dither.registry.kinds import TOKENS, ProcessFacts, ScheduleSpec

from ..options import MAX_POSITIONS, Estimator, PredictionType
from ..timestep_specs import ScheduledProcess

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.contracts.protocols import Process, Schedule
    from dither.registry.contracts.spaces import Field as TokenField

__all__ = ["GIDD", "Absorbing", "Hybrid", "Marginal", "Uniform", "uniform_prior_kl"]

Share = Annotated[float, Field(ge=0)]

MAX_SIGNAL = 0.5
"""Largest alpha at t = 1 of a schedule under process "uniform", which otherwise only warns."""


class _Tokens(ScheduledProcess):
    """A process whose replaced tokens are draws from a prior."""

    serves = TOKENS
    predict: PredictionType = "posterior"
    """Meaning of the raw output: logits of p(x_0 | x_t), of the x_0 to plug in, or log ratios
    p_t(y) / p_t(x_t)."""
    prior: ClassVar[Literal["mask", "uniform", "frequencies", "mixture"]]
    left_at_end: ClassVar[str] = "of the tokens would still be clean"

    def check(self, space: Space) -> Iterable[Misfit]:
        """Require tokens with a clean id in every field, and a schedule that replaces nearly all."""
        yield from super().check(space)
        if self.prior != "uniform":
            yield from self.check_signal_at_end(self.left_at_end)
        for field in space.fields if isinstance(space, TokenSpace) else ():
            if not _count_clean(field):
                yield Misfit(
                    f'field "{field.name}" has no id except MASK and PAD',
                    related=("task",),
                )

    def facts(self, space: Space) -> ProcessFacts:
        return ProcessFacts(self.name, self.tokens(space), self.predict, self.prior)

    def tokens(self, space: Space) -> TokenSpace:
        """Return the space of the model, with MASK if the prior has it."""
        if not isinstance(space, TokenSpace):
            raise TypeError(f'process "{self.name}" requires tokens, not {space}')
        masked = space.with_mask() if self.prior in ("mask", "mixture") else space
        return replace(masked, level_end=self.level_end())

    @abstractmethod
    def table(self, space: TokenSpace) -> Float[Tensor, "rows V"]:
        """Return the prior over the space of the model."""

    def build(self, space: Space) -> Process:
        from .process import TokenProcess

        tokens = self.tokens(space)
        timesteps = self.timesteps(MAX_SIGNAL if self.prior == "uniform" else None)
        return TokenProcess(
            tokens, self.table(tokens), timesteps, self.predict, self.bound_estimator()
        )

    def bound_estimator(self) -> Estimator:
        """Return the estimator of the bound; only that of an absorbing process can be chosen."""
        return "time"


class Absorbing(_Tokens):
    """Replaced tokens become MASK (MDLM).

    A field without a MASK id gets one. Ids that clean data cannot hold have probability 0, and an
    unmasked token does not change (SUBS).
    """

    name = "absorbing"
    prior = "mask"
    left_at_end = "of the tokens would stay unmasked"
    estimator: Estimator = "mask-count"
    """Estimator of the bound; all have the same mean. mask-count: at least one token is masked, so
    that the number k of N masked tokens is uniform in 1..N with weight N / k, the least variance.
    time: uniform times, whose weights make training slow. importance: uniform log(1 - alpha), so
    that all times have the same weight (MDLM; more variance on short samples). exact: evaluation
    enumerates the masks of at most 12 positions."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Require tokens, a schedule that masks nearly all, and an estimator that fits both."""
        yield from super().check(space)
        if self.estimator == "importance" and self.t_min == 0:
            message = 'estimator "importance" draws log(1 - alpha), which is -inf at t_min = 0'
            yield Misfit(message, ("estimator",), help="set t_min = 1e-3")
        if self.estimator == "exact" and space.length > MAX_POSITIONS:
            message = (
                f'estimator "exact" enumerates masks of at most {MAX_POSITIONS} '
                f"positions, not of {space.length}"
            )
            yield Misfit(
                message, ("estimator",), ("task",), 'use estimator "mask-count"'
            )

    def bound_estimator(self) -> Estimator:
        return self.estimator

    def table(self, space: TokenSpace) -> Float[Tensor, "rows V"]:
        from .priors import mask_prior

        return mask_prior(space)


class Uniform(_Tokens):
    """Replaced tokens become any clean id of their field (SEDD uniform, UDLM, DUO)."""

    name = "uniform"
    prior = "uniform"
    schedule: Slot[ScheduleSpec] = named("geometric")
    """Noise as a function of time."""
    predict: PredictionType = "score"
    """Meaning of the raw output: logits of p(x_0 | x_t), of the x_0 to plug in, or log ratios
    p_t(y) / p_t(x_t)."""

    def warn(self, space: Space) -> Iterable[Misfit]:
        """Warn about the cost of signal left at t = 1, which is allowed because SEDD's default has it."""
        for misfit in self.check_signal_at_end("of the tokens would still be clean"):
            fields = self.tokens(space).fields
            sigma = self.schedule.sigma_end() or 0.0
            costs = [
                f.length * uniform_prior_kl(_count_clean(f), sigma) for f in fields
            ]
            nats = sum(costs) / space.length
            message = (
                f"{misfit.message}: {nats:.3g} nats per token, "
                "KL(q(x_1|x_0) || uniform), are added to any bound"
            )
            yield replace(misfit, message=message)

    def table(self, space: TokenSpace) -> Float[Tensor, "rows V"]:
        from .priors import even_prior

        return even_prior(space)


def uniform_prior_kl(ids: int, sigma: float) -> float:
    """Return KL(q(x_1 | x_0) || uniform) in nats, for a token replaced by one of `ids` ids with 1 - exp(-sigma).

    A token stays with s = exp(-sigma) + (1 - exp(-sigma)) / ids, and each other id has 1 -
    exp(-sigma) times its probability under the prior: s log(ids s) + (1 - s) log(1 - exp(-sigma)).
    """
    level = -math.expm1(-sigma)
    stays = math.exp(-sigma) + level / ids
    nats = stays * math.log(ids * stays)
    # Without noise no token moves.
    if level:
        nats += (1 - stays) * math.log(level)
    return nats


class Marginal(_Tokens):
    """Replaced tokens become clean ids with given frequencies, such as those of the data (DiGress)."""

    name = "marginal"
    prior = "frequencies"
    frequencies: dict[str, list[Share]] = {}
    """By name of the field: the frequency of each clean id, in order, of any sum. Other fields:
    uniform."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Require tokens, a schedule that replaces nearly all, and one frequency per clean id."""
        yield from super().check(space)
        if not isinstance(space, TokenSpace):
            return
        counts = {field.name: _count_clean(field) for field in space.fields}
        for name, odds in self.frequencies.items():
            path = ("frequencies", name)
            if name not in counts:
                hint = did_you_mean(name, counts)
                message = f'unknown field "{name}"; fields: {", ".join(counts)}'
                yield Misfit(message, path, ("task",), hint, code="unknown-value")
            elif len(odds) != counts[name] or not sum(odds) > 0:
                message = (
                    f"expected {counts[name]} frequencies with a positive sum, "
                    f"got {odds}"
                )
                yield Misfit(message, path, ("task",))

    def table(self, space: TokenSpace) -> Float[Tensor, "rows V"]:
        from .priors import frequency_prior

        return frequency_prior(space, self.frequencies)


class Hybrid(_Tokens):
    """Replaced tokens become MASK, or any clean id of their field with probability `uniform` (GIDD).

    The model sees wrong tokens in training, and so can correct its own: sampler "self-correct". The
    share of wrong tokens is constant; under "gidd" it falls with time.
    """

    name = "hybrid"
    prior = "mixture"
    uniform: float = Field(0.1, gt=0, lt=1)
    """Share of the replaced tokens that become any clean id; the others become MASK."""

    def table(self, space: TokenSpace) -> Float[Tensor, "rows V"]:
        from .priors import even_prior, mask_prior

        return self.uniform * even_prior(space) + (1 - self.uniform) * mask_prior(space)


class GIDD(_Tokens):
    """Tokens become wrong ones, and MASK in the end: the share of wrong tokens falls to 0 (von Ruette et al. 2025).

    The model sees wrong tokens in training, and so can correct its own: sampler "self-correct".
    """

    name = "gidd"
    prior = "mixture"
    schedule: Slot[ScheduleSpec] = named("log-linear")
    """Odds of MASK to a clean token as a function of time; wrong tokens come on top, and only their
    level is an option."""
    predict: PredictionType = "plug-in"
    """Meaning of the raw output: logits of p(x_0 | x_t), of the x_0 to plug in, or log ratios
    p_t(y) / p_t(x_t)."""
    uniform: float = Field(0.1, gt=0, lt=1)
    """Share of wrong tokens where it is largest, at t = 1/2 under log-linear noise (p_u; gamma =
    1)."""

    def facts(self, space: Space) -> ProcessFacts:
        return replace(super().facts(space), prior_varies=True)

    def sigma_end(self) -> float | None:
        end = super().sigma_end()
        if end is None:
            return None
        root = math.sqrt(math.expm1(end))
        # As in `gidd_schedule`, with B = 2 p / (1 - p)
        return math.log1p(2 * self.uniform / (1 - self.uniform) * root + root**2)

    def build_schedule(self) -> Schedule:
        from .gidd import gidd_schedule

        return gidd_schedule(super().build_schedule(), self.uniform)

    def table(self, space: TokenSpace) -> Float[Tensor, "rows V"]:
        from .priors import mask_prior

        return mask_prior(space)

    def build(self, space: Space) -> Process:
        from .gidd import GIDDProcess
        from .priors import even_prior

        tokens = self.tokens(space)
        return GIDDProcess(
            space=tokens,
            mask=self.table(tokens),
            wrong=even_prior(tokens),
            share=self.uniform,
            timesteps=self.timesteps(),
            predict=self.predict,
        )


def _count_clean(field: TokenField) -> int:
    return len(set(range(field.size)) - {field.mask, field.pad})
