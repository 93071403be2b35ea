"""Heads that tell a law, and what an experiment must be like around them. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Misfit, Space, hookimpl
from dither.registry.costs import Cost
from dither.registry.kinds import FEATURES, HeadSpec

if TYPE_CHECKING:
    from .token_diffusion import TokenDiffusion as Head

__all__ = ["TokenDiffusion", "check_experiment"]

FREQUENCIES = 256
"""Cosines and sines by which the head is told its noise."""


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
        level = (FREQUENCIES + 1 + h + 1) * h
        weights = level + (width + 1 + m + 1) * h + (5 * self.depth + 2) * (h + 1) * h + (h + 1) * m
        rows = self.repeats * space.length
        return Cost(weights, rows * (FREQUENCIES + width + 2 * m + (8 * self.depth + 8) * h), rows * (3 * h + m))

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
