"""Probabilities that adjacencies, and constraints on areas and doors, are met.

Letters: N diagrams, R room slots, E pairs or doors, L tokens, V ids, K properties of an id.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..validity import connects
from ..vocabulary import DOOR, NO_DOOR, NODE_PAD, NODE_SIZE, RELATED, door_ends
from .rules import FRONT, Adjacency, Area

__all__ = ["AdjacencyProbability", "AreaProbability", "ReachableProbability"]


def _properties(*sets: frozenset[int]) -> Float[Tensor, "V K"]:
    """Whether each id is in each of some sets."""
    return torch.tensor([[float(v in ids) for ids in sets] for v in range(NODE_SIZE)])


def _by_id(
    probs: Float[Tensor, "N L V"], properties: Float[Tensor, "V K"], at: Int[Tensor, " N"], start: int, count: int
) -> Float[Tensor, "N V count K"]:
    """Return the probability that tokens `start`, ... have properties, for each id that token `at` may become."""
    table, size = properties.to(probs), min(probs.shape[-1], NODE_SIZE)
    shares = probs[:, start : start + count, :size] @ table[:size]
    own = torch.arange(start, start + count, device=at.device) == at[:, None]
    return torch.where(own[:, None, :, None], table[None, :, None], shares[:, None])


def _padded(log_prob: Float[Tensor, "N 15"], probs: Float[Tensor, "N L V"]) -> Float[Tensor, "N V"]:
    return torch.nn.functional.pad(log_prob, (0, probs.shape[-1] - NODE_SIZE))


class AdjacencyProbability:
    """Probability that one adjacency constraint is met; pairs of rooms are treated as independent."""

    def __init__(self, rule: Adjacency, slots: int) -> None:
        self.rule, self.slots = rule, slots
        forward, backward = rule.relations, rule.reversed
        self.sorts = _properties(rule.first, rule.second, rule.first & rule.second)
        """Whether a type is in the first set, in the second, and in both."""
        self.relations = _properties(forward, backward, forward & backward)
        """Whether a relation of a pair i < j matches with i as the first room, with j as the first, and both."""
        base = slots * (slots + 1) // 2
        self.start = base if rule.doors else slots
        self.ends = torch.tensor(door_ends(slots)).T[:, : base if rule.doors else base - slots]
        self.outside = torch.tensor([0.0, float(rule.second == FRONT), 0.0])

    def log_prob(self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the log-probability for each id of token `at`, others distributed as `probs`."""
        i, j = self.ends.to(at.device)
        room = _by_id(probs, self.sorts, at, 0, self.slots)
        room = torch.cat([room, self.outside.to(room).expand(*room.shape[:2], 1, 3)], 2)
        (a, b, ab), (c, d, cd) = room[:, :, i].unbind(-1), room[:, :, j].unbind(-1)
        forward, backward, either = _by_id(probs, self.relations, at, self.start, len(i)).unbind(-1)
        match = (a * d * forward + b * c * backward - ab * cd * either).clamp(0, 1)  # inclusion-exclusion
        none = torch.log1p(-match).sum(2)
        return _padded(torch.log(-torch.expm1(none)) if self.rule.required else none, probs)


class AreaProbability:
    """Probability that all rooms of some types have an area within bounds; exact for independent tokens.

    Args:
        rule: The constraint, on types.
        slots: Room slots.
        start: Index of the first area token.
    """

    def __init__(self, rule: Area, slots: int, start: int) -> None:
        self.slots, self.start = slots, start
        self.kinds, self.inside = _properties(rule.types), _properties(rule.bins)

    def log_prob(self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the log-probability for each id of token `at`, others distributed as `probs`."""
        of_type = _by_id(probs, self.kinds, at, 0, self.slots)
        wrong = _by_id(probs, 1 - self.inside, at, self.start, self.slots)
        return _padded(torch.log1p(-(of_type * wrong).clamp(0, 1)).sum((2, 3)), probs)


class ReachableProbability:
    """Probability that doors join all rooms, only close ones, with one front door: 0 if impossible, else taken as 1.

    A door is possible where neither it nor the relation of its rooms is excluded. Exact once all tokens are decided.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def log_prob(self, probs: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the log-probability for each id of token `at`, others distributed as `probs`."""
        slots, base = self.slots, self.slots * (self.slots + 1) // 2
        pairs = base - slots
        related = _properties(RELATED)
        near = (_by_id(probs, related, at, slots, pairs)[..., 0] > 0).flatten(0, 1).cpu().numpy()
        doors = _by_id(probs, _properties(frozenset({NO_DOOR}), frozenset({DOOR})), at, base, base) > 0
        without, may = doors.flatten(0, 1).cpu().numpy().transpose(2, 0, 1)
        must = may & ~without
        real = np.repeat((probs[:, :slots, NODE_PAD] == 0).cpu().numpy(), NODE_SIZE, 0)
        possible = connects(may[:, :pairs] & near, real) & ~(must[:, :pairs] & ~near).any(1)
        possible &= may[:, pairs:].any(1) & (must[:, pairs:].sum(1) <= 1)
        return _padded(torch.from_numpy(possible).to(probs).reshape(len(at), NODE_SIZE).log(), probs)
