"""The menu entry of a sampler that is kept to compare with. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

if TYPE_CHECKING:
    from dither.registry.parts import Sampler

__all__ = ["SeedSampler"]


class SeedSampler(SamplerSpec):
    """The "Euler" sampler of seed 004 as its document writes it: x ~ softmax(logits) at every step. To compare with.

    Samples do not have the law of the data however good the model is: docs/seed-004.md has by how much.
    """

    name: ClassVar[str] = "seed-004"
    steps: int = Field(128, ge=1, le=1_000_000)
    """Times from 1 to 0, both ends included; the model is called once at each."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process is the seed's: uniform, with a model that gives the logarithms of scores."""
        yield from super().check(process, model)
        if (process.prior, process.predict) != ("uniform", "score"):
            message = f'sampler "seed-004" is for process "uniform" with predict = "score", not "{process.name}" with '
            told = f'{message}predict = "{process.predict}"'
            yield Misfit(told, related=("process",), help='use sampler "ancestral"')

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield what is wrong with it."""
        message = 'sampler "seed-004" draws every token anew at every step, whatever the noise between two times'
        yield Misfit(f"{message}: samples have another law than the model's", help='use sampler "ancestral"')

    def build(self) -> Sampler:
        """Return the walk."""
        from .seed_004 import SeedWalk

        return SeedWalk(self.steps)
