"""Losses fused with the last linear layer, so that the logits of all positions are never in memory.

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
"""Vocabulary size from which the fused form of a loss is used: on a CPU it is at least 1.5 times as fast from here on
(measured: width 128, 2,048 positions); below there is little to gain."""


@runtime_checkable
class LiteralProcess(Protocol):
    """A token process that uses the raw output of a model unchanged at every position whose id is uncertain.

    With `predict` = "posterior" or "plug-in", the log-softmax over `support` is log p(x_0 | x_t); with "score", the raw
    output is the log score, except 0 at x_t. Outside the support all is -inf.
    """

    predict: Any

    def support(self, device: Any) -> Bool[Tensor, "rows V"]:
        """Return the ids for which the raw output is used."""


@runtime_checkable
class FusedLoss(Protocol):
    """A loss that can also be computed from the input of the head.

    It requires a head that is one linear layer, and a token space with a single field.
    """

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Return the loss of a prediction."""

    def fused(
        self, h: Float[Tensor, "B L D"], linear: nn.Linear, process: Process, noised: Noised, t: Float[Tensor, "B *L"],
        *, half: bool = False, share: Float[Tensor, "B #L"] | None = None,
    ) -> Measured:  # fmt: skip
        """Return the loss of `process.read(linear(h), noised.state, process.schedule(t))`.

        Only `Measured.total_with_grad` carries a gradient. With `half`, matrix products run in bfloat16 and accumulate
        in float32. `share` multiplies the values.
        """
