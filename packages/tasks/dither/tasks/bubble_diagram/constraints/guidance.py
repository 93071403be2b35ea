"""Constraint guidance for sampling: which constraints a sample meets, and the probability of it.

Letters: N diagrams, R room slots, L tokens, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from dither.registry.config.errors import Problem, dotted
from dither.registry.contracts.records import Clean

from ..arrays import Boundaries, Boundary, Numbers, Rows
from ..decoded_samples import decode_samples
from ..geometry.dwelling import AREAS_OF, DwellingLimits
from ..geometry.floor_plan import room_areas
from ..geometry.outline_rectangles import floor_within, rectangles_within
from ..geometry.placement import Placement, dwelling_problems
from ..plans import Diagram, Edit, Plans, split_fields
from ..relations import areas_of
from ..validity import is_buildable, is_reachable, validity_levels
from ..vocabulary import (
    AREAS,
    BOUNDARY_POINTS,
    IDS,
    METRES,
    NODE_PAD,
    NODE_SIZE,
    door_ends,
    door_index,
    pair_index,
)
from .contradictions import feasible
from .probabilities import (
    AdjacencyProbability,
    AreaProbability,
    BuildableProbability,
    CountProbability,
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
    Dwelling,
    PairRelation,
    Reachable,
    RoomType,
    Rule,
)

_Types = Int[Tensor, "N R"]
_Samples = Int[Tensor, "N L"]
_Met = Bool[Tensor, " N"]
_Part = (
    AdjacencyProbability
    | AreaProbability
    | BuildableProbability
    | CountProbability
    | ReachableProbability
)


class ConstraintGuidance:
    """Steers sampling towards constraints; a `dither.registry.contracts.records.Goal`.

    Args:
        rules: Compiled constraints without contradiction.
        slots: Room slots.
        doors: Whether diagrams have door tokens.
        areas: Whether they have area tokens.

    Attributes:
        allowed: Allowed ids of each token, PAD included unless the room must exist.
        edit: What samples of an edited plan keep; None for others.
    """

    edit: Edit | None = None

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

        self.area = self.base
        if doors:
            self.area = 2 * self.base

        """Index of the first area token."""
        self._modelled = {"doors": doors, "areas": areas}
        self.allowed = self._allowed_ids()

        self._counts = [rule for rule in rules if isinstance(rule, Count)]
        """With those that other rules imply."""
        for rule in rules:
            if isinstance(rule, Buildable):
                self._counts += rule.counts()
        counts = [rule for rule in self._counts if rule.types != ALL]
        parts: list[_Part] = []
        for rule in rules:
            match rule:
                case Adjacency():
                    parts.append(AdjacencyProbability(rule, slots))
                case Buildable():
                    parts.append(BuildableProbability(slots))
                case Area(room=None):
                    parts.append(AreaProbability(rule, slots, self.area))
                case Reachable():
                    parts.append(ReachableProbability(slots))
        # In this order, since sums of floats depend on it.
        order = [
            AdjacencyProbability,
            BuildableProbability,
            AreaProbability,
            ReachableProbability,
        ]
        parts.sort(key=lambda part: order.index(type(part)))
        self._parts: list[_Part] = [*count_groups(counts, slots), *parts]

    def _allowed_ids(self) -> Bool[Tensor, "L V"]:
        fields = [(0, "nodes"), (self.slots, "edges")]
        length = self.area
        if self._modelled["doors"]:
            fields.append((self.base, "doors"))
        if self._modelled["areas"]:
            fields.append((self.area, "areas"))
            length += self.slots
        # Fields are in the order of their tokens: each one overwrites the rest of the one before.
        allowed = torch.zeros(length, NODE_SIZE, dtype=torch.bool)
        for start, name in fields:
            allowed[start:] = _id_mask(frozenset({*range(IDS[name]), IDS[name] + 1}))

        for rule in self.rules:
            match rule:
                case RoomType():
                    # Without PAD, so the room exists.
                    allowed[rule.room] &= _id_mask(rule.types)
                case PairRelation():
                    allowed[self._token(rule)] &= _id_mask(rule.relations)
                case Area(room=int(room)):
                    allowed[self.area + room] &= _id_mask(rule.bins)
                    allowed[room, NODE_PAD] = False
        return allowed

    def _token(self, rule: PairRelation) -> int:
        if rule.doors:
            return self.base + door_index(rule.i, rule.j, self.slots)
        assert rule.j is not None
        return self.slots + pair_index(rule.i, rule.j, self.slots)

    def narrow(self, diagram: Diagram) -> Diagram:
        """Restrict the areas of a diagram to the constraints that they meet; mark an edited plan."""
        diagram = replace(diagram, edit=self.edit)
        if not diagram.areas:
            return diagram
        areas = list(diagram.areas)
        for rule in self.rules:
            if not isinstance(rule, Area):
                continue
            for room, kind in enumerate(diagram.types):
                low = max(areas[room][0], rule.low)
                high = min(areas[room][1], rule.high)
                if (rule.room == room or kind in rule.types) and low < high:
                    areas[room] = low, high
        return replace(diagram, areas=tuple(areas))

    def outline_problems(self, boundary: Boundary) -> list[Problem]:
        """Return the areas that are too large for an outline, each or together."""
        rectangles = rectangles_within(boundary)
        floor = float(floor_within(boundary).sum()) * METRES**2
        largest = float(areas_of(rectangles).max(initial=0)) * METRES**2
        problems = []
        least = 0.0
        counted: set[int] = set()
        areas = [rule for rule in self.rules if isinstance(rule, Area)]
        # Numbered rooms first, which rules on types may include.
        for rule in sorted(areas, key=lambda rule: rule.room is None):
            path = ("task", "constraints", *rule.path)
            if rule.low > largest:
                limit = f"the largest room inside the outline has {largest:.1f} m2"
                message = f"at least {rule.low:g} m2, but {limit}"
                problems.append(Problem(message, path, code="contradiction"))
            least += rule.low * self._least_rooms(rule, counted)
        if not problems and least > floor:
            limit = f"the rooms inside the outline have {floor:.1f} m2 together"
            message = f"at least {least:g} m2, but {limit}"
            path = ("task", "constraints", "areas")
            problems.append(Problem(message, path, code="contradiction"))
        return problems

    def _least_rooms(self, rule: Area, counted: set[int]) -> int:
        """Return how many rooms a rule on areas has at least, none of types that are `counted`.

        Adds its types to `counted`.
        """
        if rule.room is not None:
            # Its type may be one of another rule.
            stated = [r for r in self.rules if isinstance(r, RoomType)]
            types = [r.types for r in stated if r.room == rule.room]
            counted |= frozenset.intersection(*types) if types else ALL
            return 1
        if counted & rule.types:
            return 0
        counted |= rule.types
        least = (count.low for count in self._counts if count.types <= rule.types)
        return max(least, default=0)

    def room_counts(self, counts: Numbers) -> Numbers:
        """Return the weights of 0, 1, 2, ... rooms: those in `counts`, 0 for infeasible numbers.

        If no feasible number occurs in `counts`, all feasible numbers have the same weight.
        """

        def is_feasible(n: int) -> bool:
            if not 0 < n <= self.slots:
                return False
            return feasible([*self.rules, Count((), ALL, n, n)], self.slots)

        # Each number of rooms is an integer program: those that no plan has are not tried.
        weights = counts.copy()
        for n in np.flatnonzero(counts).tolist():
            if not is_feasible(n):
                weights[n] = 0
        if weights.any():
            return weights
        return np.array([int(is_feasible(n)) for n in range(len(counts))])

    def begin(self, empty: Clean) -> Clean:
        """Return the start of sampling: tokens with a single allowed id are known.

        So are rooms whose type follows from the counts of types and the number of rooms.
        """
        only = (self.allowed.sum(1) == 1) & empty.valid
        x0 = torch.where(only, self.allowed.long().argmax(1), empty.x0)
        counts = empty.valid[:, : self.slots].sum(1)
        for rooms in sorted(set(counts.tolist())):
            same = counts == rooms
            for room, kind in self._implied_types(rooms).items():
                only[same, room] = True
                x0[same, room] = kind
        return Clean(x0, empty.valid, only, empty.cond, self)

    def _implied_types(self, rooms: int) -> dict[int, int]:
        """Return the type of each of `rooms` rooms that counts leave a single one."""
        stated = [rule for rule in self.rules if isinstance(rule, RoomType)]
        if all(rule.types == ALL for rule in self._counts):
            return {}

        rules: list[Rule] = [*self._counts, *stated, Count((), ALL, rooms, rooms)]
        named = {rule.room for rule in stated}
        implied: dict[int, int] = {}
        # Rooms without a stated type are alike.
        unnamed = [room for room in range(rooms) if room not in named]
        groups = [[room] for room in sorted(named) if room < rooms]
        if unnamed:
            groups.append(unnamed)
        for group in groups:
            possible = self._possible_types(rules, group[0])
            if len(possible) == 1:
                implied |= dict.fromkeys(group, possible[0])
        return implied

    def _possible_types(self, rules: Sequence[Rule], room: int) -> list[int]:
        """Return up to two types with which a room meets the rules."""
        possible: list[int] = []
        for kind in sorted(ALL):
            if feasible([*rules, RoomType((), room, frozenset({kind}))], self.slots):
                possible.append(kind)
            if len(possible) == 2:
                break
        return possible

    def unseen_rooms(self, counts: Numbers) -> str | None:
        """Return a warning if no training plan has a feasible number of rooms."""
        possible = np.flatnonzero(self.room_counts(counts))
        if counts[possible].any():
            return None
        low = int(possible.min())
        high = int(possible.max())
        rooms = f"{low} to {high}" if low < high else f"{low}"
        missing = "but no training plan has as many; samples may be poor"
        return f"the constraints require {rooms} rooms, {missing}"

    def met_by(self, plans: Plans) -> Rows:
        """Return which plans meet all constraints; known boxes may prove a plan buildable."""
        tokens = plans.tokens(self.slots, **self._modelled)
        x = torch.from_numpy(tokens).long()
        met = np.ones(len(plans), bool)
        # The search for boxes takes longest: it comes last, for the plans that meet all others.
        for rule in sorted(self.rules, key=lambda rule: isinstance(rule, Buildable)):
            rows = np.flatnonzero(met)
            if isinstance(rule, Buildable):
                boxes = plans.boxes[rows]
                levels = validity_levels(tokens[rows], self.slots, boxes=boxes)
                met[rows] = levels.buildable
            else:
                met[rows] = self._holds(rule, x[rows]).numpy()
        return met

    def satisfied(
        self, x: _Samples, cond: dict[str, Tensor] | None = None
    ) -> dict[str, _Met]:
        """Return which constraints samples meet, by path; False where a token is not a data id.

        Areas and dwellings hold in the drawing, too, inside the boundary in `cond` if there is one.
        """
        clean = ((x >= 0) & (x < NODE_SIZE)).all(1)
        met = {dotted(rule.path): self._holds(rule, x) & clean for rule in self.rules}
        drawn = [rule for rule in self.rules if isinstance(rule, Area | Dwelling)]
        if drawn:
            self._check_drawn(
                rules=drawn,
                x=x,
                boundaries=boundaries_of(cond or {}),
                met=met,
            )
        return met

    def _check_drawn(
        self,
        rules: Sequence[Area | Dwelling],
        x: _Samples,
        boundaries: Boundaries | None,
        met: dict[str, _Met],
    ) -> None:
        """Clear `met` for rules that samples meet as tokens but not as they are drawn."""
        any_met = torch.stack([met[dotted(rule.path)] for rule in rules]).any(0)
        rows = any_met.nonzero().flatten()
        if boundaries is not None:
            boundaries = boundaries[rows.cpu().numpy()]
        tokens = x[rows].cpu().numpy()
        samples = decode_samples(tokens, self.slots, boundaries, self.narrow)
        for row, sample in zip(rows.tolist(), samples, strict=True):
            for rule in rules:
                if not _is_drawn(rule, sample.placement):
                    met[dotted(rule.path)][row] = False

    def _holds(self, rule: Rule, x: _Samples) -> _Met:
        types, edges, doors, areas = split_fields(x, self.slots)
        match rule:
            case RoomType():
                return _among(types[:, rule.room], rule.types)
            case PairRelation():
                return _among(x[:, self._token(rule)], rule.relations)
            case Count():
                number = _among(types, rule.types).sum(1)
                return (number >= rule.low) & (number <= rule.high)
            case Adjacency():
                adjoins = self._adjoins(rule, types, doors if rule.doors else edges)
                return adjoins == rule.required
            case Area():
                return _areas_hold(rule, types, areas)
            case Buildable():
                held = is_buildable(x.cpu().numpy(), self.slots)
            case Reachable():
                held = is_reachable(x.cpu().numpy(), self.slots)
        return torch.from_numpy(held).to(x.device)

    def _adjoins(
        self,
        rule: Adjacency,
        types: _Types,
        relations: Int[Tensor, "N E"],
    ) -> _Met:
        # Pairs come first among doors, so relations are those of the first ends.
        ends = torch.tensor(door_ends(self.slots), device=types.device)
        i, j = ends[: relations.shape[1]].T
        outside = torch.full_like(types[:, :1], min(FRONT))
        sides = torch.cat([types, outside], 1)
        first = _among(sides, rule.first)
        second = _among(sides, rule.second)
        ahead = first[:, i] & second[:, j] & _among(relations, rule.relations)
        behind = first[:, j] & second[:, i] & _among(relations, rule.reversed)
        return (ahead | behind).any(1)

    def log_prob(
        self, log_clean: Float[Tensor, "N L V"], at: Int[Tensor, " N"]
    ) -> Float[Tensor, "N V"]:
        """Return the log-probability that the constraints are met if token `at` becomes v.

        Other tokens are drawn independently. Exact for allowed ids and for counts up to `STATES`;
        an estimate for adjacencies and realisability until the last token is decided. -inf only
        where the constraints cannot be met any more, or the search for boxes gave up.

        Args:
            log_clean: Log-probabilities of every token; a decided token has 0 at its id.
            at: Index of the token in each row.
        """
        # MPS has no float64.
        dtype = torch.float64
        if at.device.type == "mps":
            dtype = torch.float32

        allowed = self.allowed.to(at.device)
        # The model has as many ids as its largest field, at least those of rooms.
        padding = (0, log_clean.shape[-1] - NODE_SIZE)
        weight = log_clean.to(dtype).exp() * pad(allowed, padding)
        mass = weight.sum(-1)
        probs = weight / mass.clamp_min(torch.finfo(dtype).tiny)[..., None]

        # Allowed ids: the mass of every other token, and whether v is allowed at its own.
        own = torch.arange(mass.shape[1], device=at.device) == at[:, None]
        others = mass.masked_fill(own, 1).log().sum(1)
        log_prob = pad(
            allowed[at].to(dtype).log() + others[:, None], padding, value=-torch.inf
        )
        for part in self._parts:
            log_prob = log_prob + part.log_prob(probs, at)
        return log_prob


def boundaries_of(cond: dict[str, Tensor]) -> Boundaries | None:
    """Return the boundaries in the conditions of a batch, if there are any."""
    flat = cond.get("boundary")
    if flat is None:
        return None
    return flat.cpu().numpy().reshape(-1, BOUNDARY_POINTS, 2)


def _areas_hold(
    rule: Area,
    types: _Types,
    areas: _Types,
) -> _Met:
    wrong = ~_among(areas, rule.bins)
    if rule.room is not None:
        return ~wrong[:, rule.room]
    return ~(_among(types, rule.types) & wrong).any(1)


def _is_drawn(rule: Area | Dwelling, placement: Placement | None) -> bool:
    """Whether the drawing of a sample meets a rule."""
    if placement is None:
        return False
    if isinstance(rule, Dwelling):
        limits = DwellingLimits(areas={**AREAS_OF, **rule.areas}, **rule.ranges)
        return placement.exact and not any(dwelling_problems(placement, limits))
    types = placement.diagram.types
    areas = room_areas(types, placement.boxes) * METRES**2
    # Without an upper bound the rule has one that is only a proposal.
    high = rule.high
    if high >= AREAS[-1]:
        high = np.inf
    for room, kind in enumerate(types):
        applies = kind in rule.types if rule.room is None else room == rule.room
        if applies and not rule.low <= areas[room] <= high:
            return False
    return True


def _id_mask(ids: frozenset[int]) -> Bool[Tensor, " V"]:
    return torch.tensor([v in ids for v in range(NODE_SIZE)])


def _among(x: Int[Tensor, "*n"], ids: frozenset[int]) -> Bool[Tensor, "*n"]:
    return torch.isin(x, torch.tensor(sorted(ids), dtype=x.dtype, device=x.device))
