"""Loss and head in one: what lets a loss be measured without the raw output of all positions at once.

Letters: B batch, L length, V vocabulary, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor, nn

    from .protocols import Process
    from .records import Measured, Noised

__all__ = ["FUSED_FROM", "FusedLoss", "LiteralProcess"]

FUSED_FROM = 256
"""Ids of a vocabulary from which on the fused form of a loss is taken where there is one: on a CPU it is at least 1.5
times as fast from here on (measured: width 128, 2,048 positions); below there is little to save."""


@runtime_checkable
class LiteralProcess(Protocol):
    """A token process that takes the raw output of a model as it is, wherever an id is in doubt.

    With `predict` = "posterior" or "plug-in" the log-softmax over `support` is what the model says of the clean id;
    with "score" the raw output is the log score, but 0 at x_t. Off the support all is -inf.
    """

    predict: Any

    def support(self, device: Any) -> Bool[Tensor, "rows V"]:
        """Ids of which the raw output says anything."""
        ...


@runtime_checkable
class FusedLoss(Protocol):
    """A loss that can also measure from what the head reads, so that raw values of all positions are never held.

    It needs a head that is one linear map, and a token space with a single field.
    """

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Measure a prediction."""
        ...

    def fused(
        self,
        h: Float[Tensor, "B L D"],
        linear: nn.Linear,
        process: Process,
        noised: Noised,
        t: Float[Tensor, "B *L"],
        *,
        half: bool = False,
        share: Float[Tensor, "B #L"] | None = None,
    ) -> Measured:
        """Return what the loss is for `process.read(linear(h), noised.state, process.schedule(t))`.

        Only `Measured.total_with_grad` carries a gradient. With `half` matrix products run in bfloat16 and accumulate
        in float32. `share` multiplies the values.
        """
        ...
