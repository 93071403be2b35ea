"""A loss on tokens: the focal loss (Lin et al. 2017, eq. 4).

Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dither.registry import Misfit, Spec, hookimpl
from dither.registry.kinds import TOKENS, LossSpec, ProcessFacts

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Loss
    from dither.registry.contracts.records import Measured, Noised


class ExampleLoss(LossSpec):
    """-(1 - p)^gamma log p of the true token: cross entropy with less weight on the easy tokens."""

    name = "example-loss"
    serves = TOKENS
    gamma: float = Field(1.0, ge=0, le=5)
    """Strength of the down-weighting; 0 is cross entropy."""

    def check(self, process: ProcessFacts) -> Iterator[Misfit]:
        """Yield incompatibilities; `related` shows the line of the process as well."""
        yield from super().check(process)
        if process.space.data == "tokens" and process.predict != "posterior":
            message = f'loss "{self.name}" requires predict = "posterior", not "{process.predict}"'
            yield Misfit(message, related=("process",))

    def build(self, process: ProcessFacts) -> Loss:
        """Return a pure function with a value and a weight per position; positions must not mix."""
        import torch

        from dither.registry.contracts.records import Measured

        def loss(pred: Any, noised: Noised) -> Measured:
            log_p = pred.log_clean().gather(-1, noised.x0[..., None])[..., 0]
            # First of all: -inf elsewhere would spoil the gradient.
            log_p = torch.where(noised.target_mask, log_p, 0.0)
            doubt = -log_p.expm1()
            # At p = 1 the gradient of doubt^gamma is infinite for gamma < 1, but the loss is 0.
            weight = torch.where(doubt > 0, doubt, 1.0) ** self.gamma
            return Measured(-weight * log_p, noised.target_mask.to(log_p.dtype))

        return loss


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleLoss]
