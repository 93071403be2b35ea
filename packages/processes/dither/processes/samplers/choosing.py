"""Options of every sampler of tokens: how an id is chosen from what the model believes. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

if TYPE_CHECKING:
    from .choice import Choice

__all__ = ["Choosing", "Unmasking"]


class Choosing(SamplerSpec):
    """A sampler that may draw nearer to what is likeliest."""

    temperature: float = Field(1.0, ge=0, le=100)
    """What log p is divided by: below 1 samples are likelier and less varied, 0 takes the likeliest id. Tokens only."""
    top_k: int | None = Field(None, ge=1)
    """Keep so many of the likeliest ids; by default all. Tokens only."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the likeliest ids, as few as have this chance together (nucleus). Tokens only."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield where there are no ids to choose between."""
        if process.space.data == "tokens":
            return
        for option, unset in (("temperature", 1.0), ("top_k", None), ("top_p", 1.0)):
            if getattr(self, option) != unset:
                message = f'{option} is about ids, but process "{process.name}" has no tokens'
                yield Misfit(message, (option,), ("process",))

    def piecewise(self) -> bool:
        """Tell that predictions are asked for pieces."""
        return True

    def choice(self) -> Choice:
        """Build how ids are chosen."""
        from .choice import Choice

        return Choice(self.temperature, self.top_k, self.top_p)

    def as_said(self) -> bool:
        """Whether ids are drawn with the chances that the model says."""
        return (self.temperature, self.top_k, self.top_p) == (1.0, None, 1.0)


class Unmasking(Choosing):
    """A sampler that unmasks tokens."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process masks tokens."""
        yield from super().check(process, model)
        if process.prior != "mask":
            message = f'sampler "{self.name}" unmasks tokens, but process "{process.name}" does not mask them'
            yield Misfit(message, related=("process",), help='use sampler "ancestral"')
