"""Token losses computed from hidden states, without raw output of all ids at all positions.

Rows are independent: each position becomes a sample of length 1 with its own noise. Letters: B
batch, L length, D width, V vocabulary, N rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from dither.registry.contracts.protocols import (
    FusedLoss,
    LiteralProcess,
    Loss,
    Process,
    TokenProcess,
)
from dither.registry.contracts.records import Measured, Noise, Noised, State, over

from ..tokens import cross_entropy, masked_ce, score_entropy
from .cross_entropy import masked_ce_of_logits
from .score_entropy import score_entropy_of_scores, simple_prior
from .tiled_linear import TiledLinear

__all__ = ["FusedCrossEntropy", "FusedMaskedCE", "FusedScoreEntropy", "TiledLoss", "fused_form"]

Closed = Callable[
    [TiledLinear, Noised, Bool[Tensor, "rows V"], Float[Tensor, " N"]], Float[Tensor, " N"]
]
"""(head, rows, support, share) -> loss per row; its gradient times `share` is accumulated in the
head."""


@dataclass(frozen=True)
class TiledLoss:
    """Any loss per token, a few rows at a time, with autograd between output and loss of each tile.

    Attributes:
        loss: The loss; positions must be independent.
    """

    loss: Loss

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        return self.loss(pred, noised)

    def active(self, noised: Noised) -> Bool[Tensor, "B L"]:
        """Return where the loss may differ from 0."""
        return ~noised.fixed

    def weights(self, noised: Noised) -> Bool[Tensor, "B L"]:
        """Return where the weight is 1; elsewhere it is 0."""
        return ~noised.fixed

    def closed_form(self, process: Process, noised: Noised) -> Closed | None:
        """Return a closed form for this process, or None to use autograd."""
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
        """Compute the loss from hidden states; arguments as of `FusedLoss`."""
        counted = self.active(noised)
        read = h.flatten(0, 1)
        weights = counted if share is None else share * counted
        rows = _rows_of(counted.flatten())
        head = TiledLinear(read if len(rows) == len(read) else read[rows], linear, half=half)
        some = _select_rows(noised, rows)
        closed = self.closed_form(process, noised)
        part = weights.flatten()[rows].double()
        with torch.no_grad():
            if closed is not None:
                support = process.support(h.device)  # type: ignore[attr-defined]
                values = closed(head, some, support, part)
            else:
                values = self._by_autograd(
                    head, some, _noise_of_rows(process.schedule(t), noised.x0, rows), process, part
                )
            values = values.to(head.h.dtype).masked_fill(part == 0, 0.0)
            total = (values * part.to(values.dtype)).sum()
        attached = head.attach_grads(total)
        every = torch.zeros(counted.numel(), dtype=values.dtype, device=h.device).index_copy_(
            0, rows, values
        )
        every = (
            every.view_as(counted)
            if share is None
            else every.view_as(counted) * share.to(every.dtype)
        )
        return Measured(every, self.weights(noised).to(every.dtype), attached)

    def _by_autograd(
        self,
        head: TiledLinear,
        some: Noised,
        noise: Noise,
        process: Process,
        share: Float[Tensor, " N"],
    ) -> Float[Tensor, " N"]:
        """Compute the loss of blocks of rows, with autograd between output and loss."""
        values = []
        one = head.h.new_ones(len(head.h), 1)
        for rows in head.rows():
            raw = head.table(rows)
            with torch.set_grad_enabled(head.needs_grad):
                raw.requires_grad_(head.needs_grad)
                part = some[rows]
                loss = self.loss(process.read(raw[:, None], part.state, noise[rows]), part).values[
                    :, 0
                ]
                if head.needs_grad:
                    (grad,) = torch.autograd.grad((loss * share[rows].to(loss.dtype)).sum(), raw)
                    head.backward_rows(grad, one[rows], rows)
            values.append(loss.detach())
        return torch.cat(values) if values else head.h.new_zeros(0)


class FusedScoreEntropy(TiledLoss):
    """Score entropy; in closed form for predicted scores and a prior that is uniform or all on one id."""

    def __init__(self) -> None:
        super().__init__(score_entropy)

    def active(self, noised: Noised) -> Bool[Tensor, "B L"]:
        """Return where the prior can produce the id, and nothing is fixed."""
        if noised.prior is None:
            raise TypeError("score entropy requires a token process")
        return noised.target_mask

    def closed_form(self, process: Process, noised: Noised) -> Closed | None:
        if not (
            isinstance(process, LiteralProcess)
            and isinstance(process, TokenProcess)
            and process.predict == "score"
        ):
            return None
        prior = process.prior_probs("cpu")
        support = process.support("cpu")
        return (
            partial(score_entropy_of_scores, absent=process.absorbing)
            if simple_prior(prior, support)
            else None
        )


class FusedMaskedCE(TiledLoss):
    """Masked cross-entropy; only masked positions are computed."""

    def __init__(self) -> None:
        super().__init__(masked_ce)

    def active(self, noised: Noised) -> Bool[Tensor, "B L"]:
        return noised.target_mask

    def closed_form(self, process: Process, noised: Noised) -> Closed | None:
        """Return the closed form for logits of clean ids: at MASK, "posterior" and "plug-in" are the same."""
        literal = isinstance(process, LiteralProcess) and process.predict != "score"
        return masked_ce_of_logits if literal else None


class FusedCrossEntropy(TiledLoss):
    """Unweighted cross-entropy of target tokens."""

    def __init__(self) -> None:
        super().__init__(cross_entropy)

    def active(self, noised: Noised) -> Bool[Tensor, "B L"]:
        return noised.target_mask

    weights = active

    def closed_form(self, process: Process, noised: Noised) -> Closed | None:
        literal = isinstance(process, LiteralProcess) and process.predict == "posterior"
        return partial(masked_ce_of_logits, weighted=False) if literal else None


def fused_form(loss: Loss) -> FusedLoss:
    """Return the fused form of a loss per token: itself if it has one."""
    return loss if isinstance(loss, FusedLoss) else TiledLoss(loss)


def _rows_of(counted: Bool[Tensor, " BL"]) -> Int[Tensor, " N"]:
    """Return the rows to compute: those counted; on a GPU all, as reading their number would synchronise."""
    if counted.device.type == "cpu":
        return counted.nonzero()[:, 0]
    return torch.arange(len(counted), device=counted.device)


def _select_rows(noised: Noised, rows: Int[Tensor, " N"]) -> Noised:
    """Return chosen positions as samples of length 1."""

    def chosen(value: Shaped[Tensor, "B L"]) -> Shaped[Tensor, "N 1"]:
        return value.flatten()[rows][:, None]

    state = State(chosen(noised.state.x), chosen(noised.state.masked))
    noise = _noise_of_rows(noised.noise, noised.x0, rows)
    target_mask, valid, fixed = (
        chosen(value) for value in (noised.target_mask, noised.valid, noised.fixed)
    )
    return Noised(chosen(noised.x0), state, noise, target_mask, valid, fixed, noised.prior)


def _noise_of_rows(noise: Noise, x0: Int[Tensor, "B L"], rows: Int[Tensor, " N"]) -> Noise:
    """Return the noise of chosen positions, `N 1`."""
    return noise.apply(lambda value: over(value, x0).expand_as(x0).flatten()[rows][:, None])
