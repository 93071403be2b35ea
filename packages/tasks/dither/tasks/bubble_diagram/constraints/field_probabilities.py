"""Probabilities that constraints on areas and on doors are met. Letters: N diagrams, R room slots, L tokens, V ids."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..validity import connects
from ..vocabulary import DOOR, NO_DOOR, NO_EDGE, NODE_PAD, NODE_SIZE
from .rules import Area

__all__ = ["AreaProbability", "ReachableProbability"]


class AreaProbability:
    """Probability that all rooms of some types have an area within bounds; exact for independent tokens.

    Args:
        rule: The constraint, on types.
        slots: Room slots.
        start: Index of the first area token.
    """

    def __init__(self, rule: Area, slots: int, start: int) -> None:
        self.slots, self.start = slots, start
        self.kinds, self.outside = (torch.tensor([float((v in ids) == among) for v in range(NODE_SIZE)])
                                    for ids, among in ((rule.types, True), (rule.bins, False)))  # fmt: skip

    def log_prob(self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the log-probability for each id of token `at`, others distributed as `probs`."""
        kinds, outside = self.kinds.to(probs), self.outside.to(probs)
        of_type = probs[:, : self.slots, :NODE_SIZE] @ kinds
        wrong = probs[:, self.start : self.start + self.slots, :NODE_SIZE] @ outside
        room = torch.where(at < self.slots, at, at - self.start)
        own = torch.arange(self.slots, device=at.device) == room[:, None]
        rest = torch.log1p(-(of_type * wrong).clamp(0, 1).masked_fill(own, 0)).sum(1)
        numbers, room = torch.arange(len(at), device=at.device), room.clamp(0, self.slots - 1)
        violated = torch.where((at < self.slots)[:, None], wrong[numbers, room, None] * kinds,
                               of_type[numbers, room, None] * outside)  # fmt: skip
        own_part = torch.log1p(-violated.clamp(0, 1)).masked_fill(~own.any(1, keepdim=True), 0)
        return torch.nn.functional.pad(rest[:, None] + own_part, (0, probs.shape[-1] - NODE_SIZE))


class ReachableProbability:
    """Probability that doors join all rooms, only close ones, with one front door: 0 if impossible, else taken as 1.

    A door is possible where neither it nor the relation of its rooms is excluded. Exact once all tokens are decided.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def log_prob(self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the log-probability for each id of token `at`, others distributed as `probs`."""
        slots, base = self.slots, self.slots * (self.slots + 1) // 2
        p, own, pairs = probs.cpu().numpy(), at.cpu().numpy(), base - slots
        rows, real = np.arange(len(own)), np.asarray(p[:, :slots, NODE_PAD] == 0)
        may = np.asarray(p[:, base : 2 * base, DOOR] > 0)
        must = may & (p[:, base : 2 * base, NO_DOOR] == 0)
        near = np.asarray((p[:, slots:base, :NO_EDGE] > 0).any(-1))
        edge, door = (own >= slots) & (own < base), (own >= base) & (own < base + pairs)
        front = (own >= base + pairs) & (own < 2 * base)
        pair, room = (own - np.where(edge, slots, base)).clip(0, pairs - 1), (own - base - pairs).clip(0, slots - 1)
        own_near, own_may, own_must = near[rows, pair], may[rows, pair], must[rows, pair]
        # All others: doors that must be between rooms that may be close, and front doors.
        joins, broken, fronts, sure = (
            may[:, :pairs] & near,
            must[:, :pairs] & ~near,
            may[:, pairs:],
            must[:, pairs:].copy(),
        )
        with_own = joins.copy()
        for matrix, value in ((joins, False), (broken, False), (with_own, True)):
            matrix[rows[edge | door], pair[edge | door]] = value
        fronts = fronts & ~(front[:, None] & (np.arange(slots) == room[:, None]))
        sure &= fronts
        apart, joined = connects(joins, real), connects(with_own, real)
        some, single, none = fronts.any(1), sure.sum(1) <= 1, ~sure.any(1)
        possible = np.repeat((apart & some & single & ~broken.any(1))[:, None], probs.shape[-1], 1)
        others = single & some & ~broken.any(1)
        possible[edge, :NO_EDGE] = (others & np.where(own_may, joined, apart))[edge, None]
        possible[edge, NO_EDGE] = (others & apart & ~own_must)[edge]
        possible[door, DOOR] = (others & joined & own_near)[door]
        possible[front, DOOR] = (none & apart & ~broken.any(1))[front]
        return torch.from_numpy(possible).to(probs.device, probs.dtype).log()
