"""Constraints as sampling needs them: what holds of samples, and how likely it is that they will be met.

Letters: N diagrams, R room slots, L tokens, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.flow import Clean
from dither.registry.problems import dotted

from ..levels import can_be_built
from ..vocabulary import EDGE_PAD, NO_EDGE, NODE_MASK, NODE_PAD, NODE_SIZE, pair_index, pairs
from .building import Building
from .contradictions import possible
from .counting import Counting, countings
from .nearness import Nearness
from .rules import Adjacency, Buildable, Count, PairRelation, RoomType, Rule, Size, turned

__all__ = ["PlanGoal"]


class PlanGoal:
    """What samples must fulfil; a `dither.registry.parts.Goal`.

    Args:
        rules: What the constraints come down to; they do not contradict each other.
        slots: Room slots.

    Attributes:
        allowed: Ids that each token may have, PAD included where there need be no room.
    """

    def __init__(self, rules: Sequence[Rule], slots: int) -> None:
        self.rules, self.slots = list(rules), slots
        self.ends = torch.tensor(pairs(slots)).T
        self.allowed = self._allowed()
        built = [rule for rule in rules if isinstance(rule, Buildable)]
        counts = [rule for rule in rules if isinstance(rule, Count)] + [one for rule in built for one in rule.counts()]
        self._parts: list[Counting | Nearness | Building] = [
            *countings(counts, slots),
            *(Nearness(rule, slots) for rule in rules if isinstance(rule, Adjacency)),
            *(Building(slots) for _ in built),
        ]

    def _allowed(self) -> Bool[Tensor, "L V"]:
        allowed = torch.zeros(self.slots + self.ends.shape[1], NODE_SIZE, dtype=torch.bool)
        allowed[: self.slots, :NODE_MASK] = allowed[: self.slots, NODE_PAD] = True
        allowed[self.slots :, : NO_EDGE + 1] = allowed[self.slots :, EDGE_PAD] = True
        for rule in self.rules:
            if isinstance(rule, RoomType):
                allowed[rule.room] &= _some(rule.types)
            elif isinstance(rule, PairRelation):
                allowed[self.slots + pair_index(rule.i, rule.j, self.slots)] &= _some(rule.relations)
        return allowed

    def room_counts(self, counts: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return how often diagrams of 0, 1, 2 .. rooms are to be drawn: as in `counts`, of those that can be.

        Where none of these is in `counts`, all that can be are drawn alike.
        """

        def can(n: int) -> bool:
            return 0 < n <= self.slots and possible([*self.rules, Size((), n, n)], self.slots)

        kept: Int[np.ndarray, " n"] = np.array([some if some and can(n) else 0 for n, some in enumerate(counts)])
        return kept if kept.any() else np.array([int(can(n)) for n in range(len(counts))])

    def begin(self, empty: Clean) -> Clean:
        """Return what sampling starts from: tokens that have one way to be are known, and the rest has this goal."""
        only = (self.allowed.sum(1) == 1) & empty.valid
        # PAD is among what a token may be unless there must be a room.
        x0 = torch.where(only, self.allowed.long().argmax(1), empty.x0)
        return Clean(x0, empty.valid, only, empty.cond, self)

    def held(self, x: Int[Tensor, "N L"]) -> dict[str, Bool[Tensor, " N"]]:
        """Return which constraints samples meet, by the key of the constraint; False where a token is no clean id."""
        clean = ((x >= 0) & (x < NODE_SIZE)).all(1)
        return {dotted(rule.path): self._holds(rule, x) & clean for rule in self.rules}

    def _holds(self, rule: Rule, x: Int[Tensor, "N L"]) -> Bool[Tensor, " N"]:
        types = x[:, : self.slots]
        match rule:
            case Size():
                rooms = (types != NODE_PAD).sum(1)
                return (rooms >= rule.low) & (rooms <= rule.high)
            case RoomType():
                return _among(types[:, rule.room], rule.types)
            case PairRelation():
                return _among(x[:, self.slots + pair_index(rule.i, rule.j, self.slots)], rule.relations)
            case Count():
                number = _among(types, rule.types).sum(1)
                return (number >= rule.low) & (number <= rule.high)
            case Adjacency():
                return self._lie(rule, x) == rule.wanted
            case Buildable():
                return torch.from_numpy(can_be_built(x.cpu().numpy(), self.slots)).to(x.device)

    def _lie(self, rule: Adjacency, x: Int[Tensor, "N L"]) -> Bool[Tensor, " N"]:
        """Whether any room of the first types lies to one of the second as it is said."""
        (i, j), relations = self.ends.to(x.device), x[:, self.slots :]
        ahead = _among(x[:, i], rule.first) & _among(x[:, j], rule.second) & _among(relations, rule.relations)
        seen = turned(rule.relations)
        behind = _among(x[:, j], rule.first) & _among(x[:, i], rule.second) & _among(relations, seen)
        return (ahead | behind).any(1)

    def log_chance(self, log_clean: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return how likely the constraints are met if the token `at` becomes v and the others are independent draws.

        Allowed ids and counts are exact, up to `counting.STATES`; adjacencies, and that the diagram can be built, are
        an estimate, until the last token is decided. -inf only where the constraints cannot be met any more, or the
        search for boxes gave up.

        Args:
            log_clean: Log-probabilities of every token; a decided one has 0 at its id.
            at: The token in question, in each row.
        """
        dtype = torch.float32 if at.device.type == "mps" else torch.float64
        allowed = self.allowed.to(at.device)
        weight = log_clean.to(dtype).exp() * torch.nn.functional.pad(allowed, (0, log_clean.shape[-1] - NODE_SIZE))
        mass = weight.sum(-1)
        believed = weight / mass.clamp_min(torch.finfo(dtype).tiny)[..., None]
        own = torch.arange(mass.shape[1], device=at.device) == at[:, None]
        chance = allowed[at].to(dtype).log() + mass.masked_fill(own, 1).log().sum(1)[:, None]
        chance = torch.nn.functional.pad(chance, (0, log_clean.shape[-1] - NODE_SIZE), value=-torch.inf)
        for part in self._parts:
            chance = chance + part.log_chance(believed, at)
        return chance


def _some(ids: frozenset[int]) -> Bool[Tensor, " V"]:
    return torch.tensor([v in ids for v in range(NODE_SIZE)])


def _among(x: Int[Tensor, "*n"], ids: frozenset[int]) -> Bool[Tensor, "*n"]:
    return torch.isin(x, torch.tensor(sorted(ids), dtype=x.dtype, device=x.device))
