"""Labels as a condition. Letters: B batch, L length, C condition width."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["LabelEmbedding"]


class LabelEmbedding(nn.Module):
    """A vector per label, and one more for a label that is not told (DiT's LabelEmbedder; Peebles and Xie, 2023).

    A label is not told where its condition is absent, or -1. Training leaves it out at times, so that the same model
    also learns what holds without it (classifier-free guidance; Ho and Salimans, 2022).

    Args:
        of: Name of the condition.
        size: Number of labels.
        width: Width of the condition.
        dropout: Share of the samples whose label `leave_out` leaves out.
        std: Standard deviation of the vectors at the start.
    """

    def __init__(self, of: str, size: int, width: int, *, dropout: float = 0.0, std: float = 1.0) -> None:
        super().__init__()
        self.of, self.size, self.dropout = of, size, dropout
        self.table = nn.Embedding(size + 1, width)
        nn.init.normal_(self.table.weight, std=std)
        if not dropout:  # nothing trains the vector of a label that is not told: it adds nothing
            nn.init.zeros_(self.table.weight[-1].detach())

    def leave_out(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Leave the label out of some samples, drawn anew; it is called once for each batch of training."""
        label = cond.get(self.of)
        if label is None or not self.dropout:
            return cond
        left_out = torch.rand(label.shape, device=label.device) < self.dropout
        return {**cond, self.of: label.masked_fill(left_out, -1)}

    def forward(self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]) -> Float[Tensor, "B *L C"]:
        """Return the vector of each sample's label, the same at every position if the level has positions."""
        label = cond.get(self.of)
        if label is None:
            c = self.table.weight[-1].expand(len(level), -1)
        else:
            c = self.table(torch.where(label < 0, self.size, label))
        return c if level.ndim == 1 else c[:, None].expand(*level.shape, -1)
