"""Labels as a condition. Letters: B batch, L length, C condition width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["ConditionSum", "LabelEmbedding", "Unconditional"]


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


class ConditionSum(nn.Module):
    """The sum of several conditions, as DiT adds noise level and label.

    Args:
        parts: (level, cond) -> `B C` or `B L C`, one of them at least.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def leave_out(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Leave out what the parts leave out in training, one after the other."""
        for part in self.parts:
            leave_out = getattr(part, "leave_out", None)
            cond = cond if leave_out is None else leave_out(cond)
        return cond

    def forward(self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]) -> Float[Tensor, "B *L C"]:
        """Add them up; one condition per sample holds at each of its positions."""
        found: list[Tensor] = [part(level, cond) for part in self.parts]
        longest = max(c.ndim for c in found)
        total = found[0] if found[0].ndim == longest else found[0][:, None]
        for c in found[1:]:
            total = total + (c if c.ndim == longest else c[:, None])
        return total


class Unconditional(nn.Module):
    """Zeros, whatever the level and the conditions are.

    Args:
        width: Width of the condition.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]) -> Float[Tensor, "B *L C"]:
        """Return a vector of zeros per level."""
        return level.new_zeros(*level.shape, self.width)
