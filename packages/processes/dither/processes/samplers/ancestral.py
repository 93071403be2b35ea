"""Ancestral sampling: draw x_s from p(x_s | x_t), step by step (DDPM, Ho et al. 2020, algorithm 2).

Letters: B batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Shaped
    from torch import Tensor

    from dither.registry.contracts.protocols import Process, Session
    from dither.registry.contracts.records import Clean

__all__ = ["Ancestral"]


class Ancestral(TokenSteps):
    """Steps on an even grid of times, then the clean sample. For every process.

    A step draws from p(x_s | x_t) of the process: DDPM, the exact posterior of tokens, or
    unmasking.
    """

    name = "ancestral"
    steps: int = Field(64, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end."""

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield options of steps if one call fills in all."""
        yield from super().warn(process, model)
        for option in ("steps", "t_min") if process.timeless else ():
            if getattr(self, option) != type(self).model_fields[option].default:
                message = f'{option} has no effect: under a fixed process.ratio "ancestral" takes one step'
                fix = f"remove {option}, or remove process.ratio"
                yield Misfit(message, (option,), ("process", "ratio"), fix, code="no-effect")

    def sample(
        self, process: Process, model: Session, like: Clean
    ) -> Iterator[Shaped[Tensor, "B L *M"]]:
        """Yield every state, the clean sample last; a process whose states do not depend on time takes one call."""
        import torch

        from dither.registry.contracts.protocols import TimelessProcess

        from ..tokens.temperature import warp_prediction

        if isinstance(process, TimelessProcess) and process.fixed_time is not None:
            t = torch.full((len(like.valid),), process.fixed_time, device=like.valid.device)
            state = process.prior(like)
            yield process.finish(state, warp_prediction(model(state, t), self), like)
            return
        yield from super().sample(process, model, like)
