"""The menu of this package: embeddings, positions, the noise level, heads. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Group, Misfit, Space, TokenSpace, hookimpl
from dither.registry.kinds import FEATURES, TOKENS, HeadSpec
from dither.registry.kinds.costs import Cost

from .options import ANGLE_FREQUENCIES, misfit_groups

if TYPE_CHECKING:
    from torch import nn

    from .heads import SoftplusHead, TokenHead
    from .token_diffusion import TokenDiffusion as Head

__all__ = ["FeatureValues", "Softplus", "TokenDiffusion", "TokenLogits", "check_experiment"]


class TokenLogits(HeadSpec):
    """One number per id: a linear map for each field."""

    name: ClassVar[str] = "tokens"
    serves = TOKENS
    zero: bool = True
    """Whether the maps start at zero, so that every id is as likely as any other."""
    bias: bool = True
    """Whether the maps have a bias."""

    def traits(self) -> frozenset[str]:
        """Promise maps that may share the tables of an embedding."""
        return frozenset({"maps"})

    def cost(self, space: Space, width: int) -> Cost:
        """What the maps take; what goes in is kept, and what comes out is there for a moment."""
        assert isinstance(space, TokenSpace)
        parameters = sum(field.size for field in space.fields) * (width + self.bias)
        return Cost(parameters, space.length * width, space.length * space.vocab)

    def build(self, space: Space, width: int) -> TokenHead:
        """Return the maps."""
        from .heads import TokenHead

        assert isinstance(space, TokenSpace)
        return TokenHead(space, width, zero=self.zero, bias=self.bias)


class FeatureValues(HeadSpec):
    """A linear map back to the features."""

    name: ClassVar[str] = "features"
    serves = FEATURES
    zero: bool = False
    """Whether the map starts at zero."""
    bias: bool = True
    """Whether the map has a bias."""

    def cost(self, space: Space, width: int) -> Cost:
        """What the map takes; what goes in is kept, and what comes out is there for a moment."""
        assert isinstance(space, FeatureSpace)
        return Cost(space.width * (width + self.bias), space.length * width, space.length * space.width)

    def build(self, space: Space, width: int) -> nn.Linear:
        """Return the map."""
        from .heads import make_linear

        assert isinstance(space, FeatureSpace)
        return make_linear(width, space.width, zero=self.zero, bias=self.bias)


class Softplus(HeadSpec):
    """Numbers above 0, log(1 + exp(linear map)), for all columns or for one group; then the others are 0 (GET).

    With a group, nothing else is predicted: hide nothing else.
    """

    name: ClassVar[str] = "softplus"
    serves = FEATURES
    group: str | None = None
    """The columns that are predicted, such as "expression". By default all."""
    zero: bool = False
    """Whether the map starts at zero."""
    bias: bool = True
    """Whether the map has a bias."""

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Yield a group that there is not, and samples with numbers below 0."""
        yield from super().check(space, width)
        if isinstance(space, FeatureSpace) and space.standardised:
            what = (
                'head "softplus" gives numbers above 0 only, and standardised samples are below 0 where below the mean'
            )
            yield Misfit(what, related=("task", "standardise"), help="set task.standardise = false")
        if self.group is not None:
            yield from misfit_groups(space, [self.group], ("group",))

    def cost(self, space: Space, width: int) -> Cost:
        """What the map takes; what goes in is kept, and what comes out of the map."""
        assert isinstance(space, FeatureSpace)
        group = self._group(space)
        out = space.width if group is None else group.stop - group.start
        return Cost(out * (width + self.bias), space.length * (width + out), space.length * (space.width + out))

    def build(self, space: Space, width: int) -> SoftplusHead:
        """Return the map."""
        from .heads import SoftplusHead

        assert isinstance(space, FeatureSpace)
        return SoftplusHead(space.width, width, self._group(space), zero=self.zero, bias=self.bias)

    def _group(self, space: FeatureSpace) -> Group | None:
        return next((group for group in space.groups if group.name == self.group), None)


class TokenDiffusion(HeadSpec):
    """A small diffusion model of each hidden position, from which values are drawn instead of guessed (MAR).

    An MLP with adaLN denoises the values of one position, given what the transformer made of it. Loss "mse" trains it
    on its own noise; figures are of its mean, and samples are draws. Samples should be standardised.
    """

    name: ClassVar[str] = "token-diffusion"
    serves = FEATURES
    hidden: int = Field(256, ge=1, le=16_384)
    """Width of the MLP."""
    depth: int = Field(3, ge=1, le=64)
    """Blocks of the MLP."""
    steps: int = Field(32, ge=1, le=10_000)
    """Steps of a draw; each takes the MLP alone."""
    repeats: int = Field(4, ge=1, le=256)
    """Noise levels that each position is trained on at once."""
    predict: Literal["velocity", "eps"] = "velocity"
    """What the MLP says. velocity is good at every noise level; from eps (MAR) the mean is worked out less well."""

    def cost(self, space: Space, width: int) -> Cost:
        """What the MLP takes in training, for every position and noise level."""
        assert isinstance(space, FeatureSpace)
        h, m = self.hidden, space.width
        level = (ANGLE_FREQUENCIES + 1 + h + 1) * h
        weights = level + (width + 1 + m + 1) * h + (5 * self.depth + 2) * (h + 1) * h + (h + 1) * m
        rows = self.repeats * space.length
        return Cost(weights, rows * (ANGLE_FREQUENCIES + width + 2 * m + (8 * self.depth + 8) * h), rows * (3 * h + m))

    def build(self, space: Space, width: int) -> Head:
        """Return the head."""
        from .token_diffusion import TokenDiffusion

        assert isinstance(space, FeatureSpace)
        return TokenDiffusion(space.width, width, **self.model_dump())


@hookimpl
def check_experiment(experiment: Any) -> Iterator[Misfit]:
    """Yield what cannot go with a head that tells a law."""
    head = getattr(experiment.model, "head", None)
    if not isinstance(head, TokenDiffusion):
        return
    process, path = experiment.process, ("model", "head")
    space = experiment.task.space()
    if space.data in process.serves and process.facts(space).prior != "hidden":
        message = f'head "{head.name}" tells laws of hidden values, but process "{process.name}" hides none'
        yield Misfit(message, ("process",), path, 'use process "masked-region"')
    if experiment.loss.name != "mse":
        message = f'loss "{experiment.loss.name}" would train the mean of head "{head.name}" and nothing else'
        yield Misfit(message, ("loss",), path, 'use loss "mse"')
    if experiment.sample.guidance is not None:
        message = f'guidance is of values, but head "{head.name}" tells laws'
        yield Misfit(message, ("sample", "guidance"), path, 'use head "features"')
    if experiment.train.strategy == "fsdp":
        message = f'head "{head.name}" is called apart from the model, so that the model cannot be cut up'
        yield Misfit(message, ("train", "strategy"), path, 'use strategy "ddp"')
