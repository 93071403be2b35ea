"""Conditions added up. Letters: B batch, L length, C condition width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["ConditionSum"]


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
