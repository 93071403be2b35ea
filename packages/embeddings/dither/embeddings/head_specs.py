"""Specs of the output heads. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Group, Misfit, Space, TokenSpace, hookimpl
from dither.registry.kinds import FEATURES, TOKENS, EmbeddingSpec, HeadSpec
from dither.registry.spec.base import components_in
from dither.registry.spec.misfit import Path

from .options import check_groups

if TYPE_CHECKING:
    from torch import nn

    from .heads import SigmoidHead, SoftplusHead, TokenHead
    from .token_diffusion import TokenDiffusion as Head

__all__ = [
    "FeatureValues",
    "Sigmoid",
    "Softplus",
    "TokenDiffusion",
    "TokenLogits",
    "check_experiment",
]


class TokenLogits(HeadSpec):
    """Logits: a linear layer per field."""

    name = "tokens"
    serves = TOKENS
    zero: bool = True
    """Whether the layers start at zero, so that all ids are equally likely."""
    bias: bool = True
    """Whether the layers have a bias."""

    def traits(self) -> frozenset[str]:
        """The weights may be shared with the tables of an embedding."""
        return frozenset({"maps"})

    def build(self, space: Space, width: int) -> TokenHead:
        from .heads import TokenHead

        assert isinstance(space, TokenSpace)
        return TokenHead(space, width, zero=self.zero, bias=self.bias)


class FeatureValues(HeadSpec):
    """A linear layer back to the features."""

    name = "features"
    serves = FEATURES
    zero: bool = False
    """Whether the layer starts at zero."""
    bias: bool = True
    """Whether the layer has a bias."""

    def build(self, space: Space, width: int) -> nn.Linear:
        from .heads import make_linear

        assert isinstance(space, FeatureSpace)
        return make_linear(width, space.raw_width, zero=self.zero, bias=self.bias)


class _GroupHead(HeadSpec):
    """Values of a restricted range, for all columns or for one group with 0 for the others."""

    serves = FEATURES
    values: ClassVar[str]
    group: str | None = None
    """The predicted columns, such as "expression". Defaults to all."""
    zero: bool = False
    """Whether the layer starts at zero."""
    bias: bool = True
    """Whether the layer has a bias."""

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Reject an unknown group, and samples with values out of range."""
        yield from super().check(space, width)
        if isinstance(space, FeatureSpace) and space.standardised:
            message = f'head "{self.name}" is {self.values}, but standardised samples have negative values'
            yield Misfit(
                message,
                related=("task", "standardise"),
                help="set task.standardise = false",
            )
        yield from _check_outputs(self, space)
        if self.group is not None:
            yield from check_groups(space, [self.group], ("group",))

    def predicted(self, space: FeatureSpace) -> Group:
        """Return the predicted columns."""
        for group in space.groups:
            if group.name == self.group:
                return group
        return Group("all", 0, space.width)


class Softplus(_GroupHead):
    """Positive values, softplus of a linear layer, for all columns or for one group with 0 for the others (GET).

    With a group, mask only its columns: no others are predicted.
    """

    name = "softplus"
    values = "positive"

    def build(self, space: Space, width: int) -> SoftplusHead:
        from .heads import SoftplusHead

        assert isinstance(space, FeatureSpace)
        return SoftplusHead(
            space.width, width, self.predicted(space), zero=self.zero, bias=self.bias
        )


class Sigmoid(_GroupHead):
    """Probabilities, sigmoid of a linear layer, for all columns or for one group with 0 for the others.

    For columns of 0 and 1, or of shares; loss "bce" trains it. With a group, mask only its columns.
    """

    name = "sigmoid"
    values = "a probability"

    def traits(self) -> frozenset[str]:
        """The output is a probability."""
        return frozenset({"probabilities"})

    def build(self, space: Space, width: int) -> SigmoidHead:
        from .heads import SigmoidHead

        assert isinstance(space, FeatureSpace)
        return SigmoidHead(
            space.width, width, self.predicted(space), zero=self.zero, bias=self.bias
        )


class TokenDiffusion(HeadSpec):
    """A small diffusion model per masked position, which samples values instead of regressing them (MAR).

    An MLP with adaLN denoises the values of one position, conditioned on the transformer's output.
    Loss "mse" trains it with its own noise; metrics use its mean, samples are draws. Samples should
    be standardised.
    """

    name = "token-diffusion"
    serves = FEATURES
    hidden: int = Field(256, ge=1, le=16_384)
    """Width of the MLP."""
    depth: int = Field(3, ge=1, le=64)
    """Blocks of the MLP."""
    steps: int = Field(32, ge=1, le=10_000)
    """Sampling steps; each runs the MLP only."""
    repeats: int = Field(4, ge=1, le=256)
    """Noise levels per position and training step."""
    predict: Literal["velocity", "eps"] = "velocity"
    """Prediction target. velocity is accurate at every noise level; the mean is less accurate from
    eps (MAR)."""

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Reject predicted variances, and patches, whose distribution is not that of positions."""
        yield from super().check(space, width)
        yield from _check_outputs(self, space)
        if isinstance(space, FeatureSpace) and space.merged > 1:
            message = f'head "{self.name}" draws values of positions, not of patches'
            yield Misfit(message, related=("model", "patch"), help="remove patch")

    def build(self, space: Space, width: int) -> Head:
        from .token_diffusion import TokenDiffusion

        assert isinstance(space, FeatureSpace)
        return TokenDiffusion(space.width, width, **self.model_dump())


def _check_outputs(head: HeadSpec, space: Space) -> Iterator[Misfit]:
    """Reject a process that has a model predict more than one number per column."""
    if isinstance(space, FeatureSpace) and space.outputs > 1:
        message = (
            f'head "{head.name}" predicts one number per column, the process requires'
        )
        yield Misfit(
            f"{message} {space.outputs}",
            related=("process",),
            help='use head "features"',
        )


@hookimpl
def check_experiment(experiment: Any) -> Iterator[Misfit]:
    """Reject components that an embedding without masks or a head that predicts distributions cannot serve."""
    # A model of another package may have them under other names, or none.
    for path, part in components_in(experiment.model, ("model",)):
        if isinstance(part, EmbeddingSpec) and "unmarked-masks" in part.traits():
            yield from _check_unmasked(part, path, experiment)
        elif isinstance(part, TokenDiffusion):
            yield from _check_distribution(part, path, experiment)


def _check_distribution(
    head: TokenDiffusion, path: Path, experiment: Any
) -> Iterator[Misfit]:
    """Reject components that a head that predicts distributions cannot serve."""
    process = experiment.process
    space = experiment.task.space()

    # Masked values are drawn given the visible ones; noised values are all visible.
    if space.data in process.serves and process.facts(space).prior != "hidden":
        message = (
            f'head "{head.name}" requires a process that masks values, '
            f'but "{process.name}" does not'
        )
        yield Misfit(message, ("process",), path, 'use process "masked-region"')
    # The head's own error is that of "mse"; any other loss sees the mean alone.
    if experiment.loss.name != "mse":
        message = (
            f'loss "{experiment.loss.name}" would train only the mean of head '
            f'"{head.name}"'
        )
        yield Misfit(message, ("loss",), path, 'use loss "mse"')
    if experiment.sample.guidance is not None:
        message = (
            f'guidance requires predicted values, but head "{head.name}" '
            "predicts distributions"
        )
        yield Misfit(message, ("sample", "guidance"), path, 'use head "features"')
    if experiment.train.strategy == "fsdp":
        message = (
            f'head "{head.name}" is called outside the model\'s forward, '
            "which FSDP does not support"
        )
        yield Misfit(message, ("train", "strategy"), path, 'use strategy "ddp"')


def _check_unmasked(
    embedding: EmbeddingSpec, path: Path, experiment: Any
) -> Iterator[Misfit]:
    """Reject a process that masks values, which look like zeros."""
    process = experiment.process
    space = experiment.task.space()
    if space.data in process.serves and process.facts(space).prior == "hidden":
        message = f'embedding "{embedding.name}" does not distinguish masked values from zeros'
        yield Misfit(
            message,
            path,
            ("process",),
            'use embedding "regions", or process "gaussian"',
        )
