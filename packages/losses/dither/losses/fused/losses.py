"""Token losses that can also be measured from what the head reads: no table of all ids at all positions is held then.

Rows are independent of each other: a position by itself is a sample of length 1, whose noise is its own. Letters: B
batch, L length, D width, V vocabulary, N rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from dither.registry.flow.fused_loss import FusedLoss, LiteralProcess
from dither.registry.flow.protocols import Loss, Process
from dither.registry.flow.records import Measured, Noise, Noised, State, over

from ..tokens import masked_ce, score_entropy
from .cross_entropy import masked_ce_of_logits
from .score_entropy import score_entropy_of_scores, simple_prior
from .tiled_linear import TiledLinear

__all__ = ["FusedMaskedCE", "FusedScoreEntropy", "TiledLoss", "fused_form"]

Closed = Callable[[TiledLinear, Noised, Bool[Tensor, "rows V"], Float[Tensor, " N"]], Float[Tensor, " N"]]
"""(head, rows, support, share) -> loss per row; its slope times `share` was pulled."""


@dataclass(frozen=True)
class TiledLoss:
    """Any loss per token, a few rows at a time: each tile is read by the process, measured, and gone back through.

    Attributes:
        loss: The loss, which mixes nothing between positions.
    """

    loss: Loss

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        """Measure a prediction."""
        return self.loss(pred, noised)

    def counts(self, noised: Noised) -> Bool[Tensor, "B L"]:
        """Where the loss may differ from 0."""
        return ~noised.fixed

    def closed(self, process: Process, noised: Noised) -> Closed | None:
        """Return a closed form for this process, or None to let it read each tile."""
        return None

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
        """Measure what the head would make of h; arguments as of `parts.FusedLoss`."""
        counted = self.counts(noised)
        rows = counted.flatten().nonzero()[:, 0]  # on a GPU this waits, once, for less work afterwards
        read = h.flatten(0, 1)
        head = TiledLinear(read if len(rows) == len(read) else read[rows], linear, half=half)
        some = _rows(noised, rows)
        closed = self.closed(process, noised)
        part = (~noised.fixed if share is None else share * ~noised.fixed).flatten()[rows].double()
        with torch.no_grad():
            if closed is not None:
                support = process.support(h.device)  # type: ignore[attr-defined]
                values = closed(head, some, support, part)
            else:
                values = self._read(head, some, _each(process.schedule(t), noised.x0, rows), process, part)
            values = values.to(head.h.dtype)
            total = (values * part.to(values.dtype)).sum()
        joined = head.joined(total)
        every = torch.zeros(counted.numel(), dtype=values.dtype, device=h.device).index_copy_(0, rows, values)
        every = every.view_as(counted) if share is None else every.view_as(counted) * share.to(every.dtype)
        return Measured(every, (~noised.fixed).to(every.dtype), joined)

    def _read(
        self, head: TiledLinear, some: Noised, noise: Noise, process: Process, share: Float[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """Go through rows that the process reads; autograd follows what lies between output and loss."""
        values, one = [], head.h.new_ones(len(head.h), 1)
        for rows in head.rows():
            raw = head.table(rows)
            with torch.set_grad_enabled(head.followed):
                raw.requires_grad_(head.followed)
                part = some[rows]
                loss = self.loss(process.read(raw[:, None], part.state, noise[rows]), part).values[:, 0]
                if head.followed:
                    (slope,) = torch.autograd.grad((loss * share[rows].to(loss.dtype)).sum(), raw)
                    head.backward_rows(slope, one[rows], rows)
            values.append(loss.detach())
        return torch.cat(values) if values else head.h.new_zeros(0)


class FusedScoreEntropy(TiledLoss):
    """Score entropy; in closed form where the model says scores, and the prior is even or all on one id."""

    def __init__(self) -> None:
        super().__init__(score_entropy)

    def counts(self, noised: Noised) -> Bool[Tensor, "B L"]:
        """Where the prior can have put the id, and nothing is fixed."""
        if noised.prior is None:
            raise TypeError("score entropy needs a token process; features have no prior over ids")
        return ~noised.fixed & (noised.prior[0][noised.state.x] > 0)

    def closed(self, process: Process, noised: Noised) -> Closed | None:
        """Return the closed form for scores."""
        if not isinstance(process, LiteralProcess) or process.predict != "score":
            return None
        return score_entropy_of_scores if simple_prior(noised, process.support(noised.x0.device)) else None


class FusedMaskedCE(TiledLoss):
    """Masked cross entropy; only masked positions are computed at all."""

    def __init__(self) -> None:
        super().__init__(masked_ce)

    def counts(self, noised: Noised) -> Bool[Tensor, "B L"]:
        """Where the clean id is in doubt."""
        return noised.target_mask

    def closed(self, process: Process, noised: Noised) -> Closed | None:
        """Return the closed form for logits of the posterior."""
        literal = isinstance(process, LiteralProcess) and process.predict == "posterior"
        return masked_ce_of_logits if literal else None


def fused_form(loss: Loss) -> FusedLoss:
    """Return a loss per token that can be measured from what the head reads: itself where it can."""
    return loss if isinstance(loss, FusedLoss) else TiledLoss(loss)


def _rows(noised: Noised, rows: Int[Tensor, " N"]) -> Noised:
    """Return chosen positions as samples of length 1."""

    def chosen(value: Shaped[Tensor, "B L"]) -> Shaped[Tensor, "N 1"]:
        return value.flatten()[rows][:, None]

    state = State(chosen(noised.state.x), chosen(noised.state.masked))
    noise = _each(noised.noise, noised.x0, rows)
    target_mask, valid, fixed = (chosen(value) for value in (noised.target_mask, noised.valid, noised.fixed))
    return Noised(chosen(noised.x0), state, noise, target_mask, valid, fixed, noised.prior)


def _each(noise: Noise, x0: Int[Tensor, "B L"], rows: Int[Tensor, " N"]) -> Noise:
    """Return the noise of chosen positions, `N 1`."""
    return noise.apply(lambda value: over(value, x0).expand_as(x0).flatten()[rows][:, None])
