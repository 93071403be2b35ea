"""Constraint guidance for sampling: which constraints a sample meets, and the probability of meeting them.

Letters: N diagrams, R room slots, L tokens, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.config.errors import dotted
from dither.registry.contracts.records import Clean

from ..plans import Diagram, Plans, split_fields
from ..validity import is_buildable, is_reachable, validity_levels
from ..vocabulary import IDS, NODE_PAD, NODE_SIZE, door_ends, door_index, pair_index
from .contradictions import feasible
from .probabilities import (
    AdjacencyProbability,
    AreaProbability,
    BuildableProbability,
    Probability,
    ReachableProbability,
    count_groups,
)
from .rules import (
    ALL,
    FRONT,
    Adjacency,
    Area,
    Buildable,
    Count,
    PairRelation,
    Reachable,
    RoomType,
    Rule,
)

__all__ = ["ConstraintGuidance"]


class ConstraintGuidance:
    """Steers sampling towards constraints; a `dither.registry.contracts.records.Goal`.

    Args:
        rules: Compiled constraints without contradiction.
        slots: Room slots.
        doors: Whether diagrams have door tokens.
        areas: Whether they have area tokens.

    Attributes:
        allowed: Allowed ids of each token, PAD included unless the room must exist.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        slots: int,
        *,
        doors: bool = False,
        areas: bool = False,
    ) -> None:
        self.rules = list(rules)
        self.slots = slots
        self.base = slots * (slots + 1) // 2
        """Number of tokens of types and relations."""
        self.area = self.base * (2 if doors else 1)
        """Index of the first area token."""
        allowed = torch.zeros(self.area + slots * areas, NODE_SIZE, dtype=torch.bool)
        for start, ids in zip((0, slots, self.base, self.area), IDS.values(), strict=True):
            allowed[start:] = False
            allowed[start:, :ids] = allowed[start:, ids + 1] = True
        for rule in rules:
            if isinstance(rule, RoomType):
                allowed[rule.room] &= _id_mask(rule.types)
            elif isinstance(rule, PairRelation):
                allowed[self._token(rule)] &= _id_mask(rule.relations)
            elif isinstance(rule, Area) and rule.room is not None:
                allowed[self.area + rule.room] &= _id_mask(rule.bins)
                allowed[rule.room, NODE_PAD] = False
        self.allowed = allowed
        built = [rule for rule in rules if isinstance(rule, Buildable)]
        counts = [rule for rule in rules if isinstance(rule, Count) and rule.types != ALL]
        counts += [one for rule in built for one in rule.counts()]
        self._parts: list[Probability] = [
            *count_groups(counts, slots),
            *(AdjacencyProbability(rule, slots) for rule in rules if isinstance(rule, Adjacency)),
            *(BuildableProbability(slots) for _ in built),
            *(
                AreaProbability(rule, slots, self.area)
                for rule in rules
                if isinstance(rule, Area) and rule.types
            ),
            *(ReachableProbability(slots) for rule in rules if isinstance(rule, Reachable)),
        ]

    def _token(self, rule: PairRelation) -> int:
        if rule.doors:
            return self.base + door_index(rule.i, rule.j, self.slots)
        assert rule.j is not None
        return self.slots + pair_index(rule.i, rule.j, self.slots)

    def narrow(self, diagram: Diagram) -> Diagram:
        """Restrict the areas of a diagram to the constraints that they meet."""
        areas = list(diagram.areas or ())
        for rule in (rule for rule in self.rules if isinstance(rule, Area)):
            for room, kind in enumerate(diagram.types if areas else ()):
                low = max(areas[room][0], rule.low)
                high = min(areas[room][1], rule.high)
                if (rule.room == room or kind in rule.types) and low < high:
                    areas[room] = low, high
        return replace(diagram, areas=tuple(areas)) if areas else diagram

    def room_counts(self, counts: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the weights of 0, 1, 2, ... rooms: those in `counts`, restricted to feasible numbers.

        If no feasible number occurs in `counts`, all feasible numbers have the same weight.
        """

        def is_feasible(n: int) -> bool:
            return 0 < n <= self.slots and feasible([*self.rules, Count((), ALL, n, n)], self.slots)

        weights: Int[np.ndarray, " n"] = np.array(
            [count if count and is_feasible(n) else 0 for n, count in enumerate(counts)]
        )
        return (
            weights
            if weights.any()
            else np.array([int(is_feasible(n)) for n in range(len(counts))])
        )

    def begin(self, empty: Clean) -> Clean:
        """Return the start of sampling: tokens with a single allowed id are known, and this is the goal."""
        only = (self.allowed.sum(1) == 1) & empty.valid
        x0 = torch.where(only, self.allowed.long().argmax(1), empty.x0)
        return Clean(x0, empty.valid, only, empty.cond, self)

    def unseen_rooms(self, counts: Int[np.ndarray, " n"]) -> str | None:
        """Return a warning if no training plan has a feasible number of rooms; `counts` as in `room_counts`."""
        feasible_counts = np.flatnonzero(self.room_counts(counts))
        if counts[feasible_counts].any():
            return None
        low = int(feasible_counts.min())
        high = int(feasible_counts.max())
        rooms = f"{low} rooms" if low == high else f"{low} to {high} rooms"
        return f"the constraints require {rooms}, but no training plan has as many; samples may be poor"

    def met_by(self, plans: Plans) -> Bool[np.ndarray, " N"]:
        """Return which plans meet all constraints; known boxes may prove that a plan is buildable."""
        has = {"doors": self.area > self.base, "areas": len(self.allowed) > self.area}
        tokens = plans.tokens(self.slots)
        full = plans.tokens(self.slots, **has)
        x = torch.from_numpy(full).long()
        met = np.ones(len(plans), bool)
        for rule in sorted(self.rules, key=lambda rule: isinstance(rule, Buildable)):
            rows = np.flatnonzero(met)
            if isinstance(rule, Buildable):
                met[rows] = validity_levels(
                    tokens[rows], self.slots, boxes=plans.boxes[rows]
                ).buildable
            else:
                met[rows] = self._holds(rule, x[rows]).numpy()
        return met

    def satisfied(self, x: Int[Tensor, "N L"]) -> dict[str, Bool[Tensor, " N"]]:
        """Return which constraints samples meet, by path of the constraint; False where a token is not a data id."""
        clean = ((x >= 0) & (x < NODE_SIZE)).all(1)
        return {dotted(rule.path): self._holds(rule, x) & clean for rule in self.rules}

    def _holds(self, rule: Rule, x: Int[Tensor, "N L"]) -> Bool[Tensor, " N"]:
        types, edges, doors, areas = split_fields(x, self.slots)
        held: Bool[Tensor, " N"]
        match rule:
            case RoomType():
                held = _among(types[:, rule.room], rule.types)
            case PairRelation():
                held = _among(x[:, self._token(rule)], rule.relations)
            case Count():
                number = _among(types, rule.types).sum(1)
                held = (number >= rule.low) & (number <= rule.high)
            case Adjacency():
                held = self._adjoins(rule, types, doors if rule.doors else edges) == rule.required
            case Area():
                wrong = ~_among(areas, rule.bins)
                held = (
                    ~wrong[:, rule.room]
                    if rule.room is not None
                    else ~(_among(types, rule.types) & wrong).any(1)
                )
            case Buildable():
                held = torch.from_numpy(
                    is_buildable(x[:, : self.base].cpu().numpy(), self.slots)
                ).to(x.device)
            case Reachable():
                held = torch.from_numpy(is_reachable(x.cpu().numpy(), self.slots)).to(x.device)
        return held

    def _adjoins(
        self, rule: Adjacency, types: Int[Tensor, "N R"], relations: Int[Tensor, "N E"]
    ) -> Bool[Tensor, " N"]:
        i, j = torch.tensor(door_ends(self.slots)).T[:, : relations.shape[1]].to(types.device)
        sides = torch.cat([types, torch.full_like(types[:, :1], min(FRONT))], 1)
        first = _among(sides, rule.first)
        second = _among(sides, rule.second)
        ahead = first[:, i] & second[:, j] & _among(relations, rule.relations)
        behind = first[:, j] & second[:, i] & _among(relations, rule.reversed)
        return (ahead | behind).any(1)

    def log_prob(
        self, log_clean: Float[Tensor, "N L V"], at: Int[Tensor, " N"]
    ) -> Float[Tensor, "N V"]:
        """Return the log-probability that the constraints are met if token `at` becomes v, others drawn independently.

        Exact for allowed ids and for counts up to `STATES`; an estimate for adjacencies and
        realisability until the last token is decided. -inf only where the constraints cannot be met
        any more, or the search for boxes gave up.

        Args:
            log_clean: Log-probabilities of every token; a decided token has 0 at its id.
            at: Index of the token in each row.
        """
        dtype = torch.float32 if at.device.type == "mps" else torch.float64
        allowed = self.allowed.to(at.device)
        weight = log_clean.to(dtype).exp() * torch.nn.functional.pad(
            allowed, (0, log_clean.shape[-1] - NODE_SIZE)
        )
        mass = weight.sum(-1)
        probs = weight / mass.clamp_min(torch.finfo(dtype).tiny)[..., None]
        own = torch.arange(mass.shape[1], device=at.device) == at[:, None]
        log_prob = allowed[at].to(dtype).log() + mass.masked_fill(own, 1).log().sum(1)[:, None]
        log_prob = torch.nn.functional.pad(
            log_prob, (0, log_clean.shape[-1] - NODE_SIZE), value=-torch.inf
        )
        for part in self._parts:
            log_prob = log_prob + part.log_prob(probs, at)
        return log_prob


def _id_mask(ids: frozenset[int]) -> Bool[Tensor, " V"]:
    return torch.tensor([v in ids for v in range(NODE_SIZE)])


def _among(x: Int[Tensor, "*n"], ids: frozenset[int]) -> Bool[Tensor, "*n"]:
    return torch.isin(x, torch.tensor(sorted(ids), dtype=x.dtype, device=x.device))
