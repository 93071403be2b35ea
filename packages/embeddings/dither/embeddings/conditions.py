"""Labels and other conditions. Letters: B batch, L length, C condition width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["ConditionSum", "LabelEmbedding", "Unconditional"]


class LabelEmbedding(nn.Module):
    """A vector per label and one for no label (DiT's LabelEmbedder; Peebles and Xie, 2023).

    A label is missing if its condition is absent or -1. Training drops it at random, so that the same model also learns
    the unconditional distribution (classifier-free guidance; Ho and Salimans, 2022).

    Args:
        condition: Name of the condition.
        size: Number of labels.
        width: Width of the condition.
        dropout: Probability with which `drop_conditions` drops a label.
        std: Initial standard deviation of the vectors.
    """

    def __init__(self, condition: str, size: int, width: int, *, dropout: float, std: float) -> None:
        super().__init__()
        self.condition, self.size, self.dropout = condition, size, dropout
        self.table = nn.Embedding(size + 1, width)
        nn.init.normal_(self.table.weight, std=std)
        if not dropout:  # the vector for no label is never trained
            nn.init.zeros_(self.table.weight[-1].detach())

    def drop_conditions(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Drop the label of random samples; called once per training batch."""
        label = cond.get(self.condition)
        if label is None or not self.dropout:
            return cond
        dropped = torch.rand(label.shape, device=label.device) < self.dropout
        return {**cond, self.condition: label.masked_fill(dropped, -1)}

    def forward(self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]) -> Float[Tensor, "B *L C"]:
        """Return the vector of each sample's label, repeated per position if the level is per position."""
        label = cond.get(self.condition)
        if label is None:
            c = self.table.weight[-1].expand(len(level), -1)
        else:
            c = self.table(torch.where(label < 0, self.size, label))
        return c if level.ndim == 1 else c[:, None].expand(*level.shape, -1)


class ConditionSum(nn.Module):
    """Sum of several conditions, as DiT adds noise level and label.

    Args:
        parts: (level, cond) -> `B C` or `B L C`, at least one.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def drop_conditions(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Let each part drop conditions of random samples."""
        for part in self.parts:
            drop = getattr(part, "drop_conditions", None)
            cond = cond if drop is None else drop(cond)
        return cond

    def forward(self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]) -> Float[Tensor, "B *L C"]:
        """Add the parts; a condition per sample is repeated per position where another one is per position."""
        vectors: list[Tensor] = [part(level, cond) for part in self.parts]
        ndim = max(c.ndim for c in vectors)
        first, *others = (c if c.ndim == ndim else c[:, None] for c in vectors)
        return sum(others, first)


class Unconditional(nn.Module):
    """Zeros for any level and conditions.

    Args:
        width: Width of the condition.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]) -> Float[Tensor, "B *L C"]:
        return level.new_zeros(*level.shape, self.width)
