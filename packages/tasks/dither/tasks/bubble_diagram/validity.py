"""Validity levels of diagrams, from legal tokens to a geometric proof of realisability.

Each level includes the one before:

    0  tokens      every token is a data id or PAD, and PAD follows the rooms
    1  program     exactly one living room, at most one entrance, all rooms connected
    2  order       neither "left of" nor "above" contains a cycle
    3  edges       some boxes show every relation of the diagram
    4  realisable  some boxes show every relation of the diagram and no other
    5  buildable   such boxes exist without overlap, except with the living room, which may be an
                   L or a T around others, and of rooms inside or surrounding each other

Levels 0 to 2 are read off the tokens, 3 to 5 require a search (`geometry.realisability`). Where the
search gives up the level counts as not reached, and the diagram also as unknown. Letters: N
diagrams, R room slots, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from .arrays import (
    BoxBatch,
    Boxes,
    Links,
    PairRow,
    Pairs,
    RelationRow,
    Rows,
    TokenRow,
    Tokens,
)
from .box_tokens import legal_boxes
from .geometry.realisability import LIMIT, Realisation, realise, realises
from .plans import real_edges, split_fields
from .relations import exclusive, pair_matrix
from .vocabulary import (
    ABOVE,
    BELOW,
    DOOR,
    EDGE_PAD,
    ENTRANCE,
    LEFT,
    LIVING,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    RIGHT,
)

_CACHED = 16_384
"""Cached searches; a few hundred bytes each."""


@dataclass(frozen=True)
class TokenValidity:
    """Levels 0 to 2 of each diagram, and two parts of level 1; False if the tokens are illegal."""

    tokens: Rows
    one_living_room: Rows
    connected: Rows
    program: Rows
    order: Rows


@dataclass(frozen=True)
class Levels:
    """Validity levels of each diagram.

    Attributes:
        structure: Levels 0 to 2; `edges` is level 3, `realisable` level 4, `buildable` level 5.
        unknown: The search gave up before levels 3 to 5 were decided.
        boxes: Boxes that prove level 5, or else 4, in pixels; zeros where there are none, and in
            empty slots.
    """

    structure: TokenValidity
    edges: Rows
    realisable: Rows
    buildable: Rows
    unknown: Rows
    boxes: BoxBatch

    def reached(self) -> tuple[Rows, ...]:
        """Return levels 0 to 5."""
        tokens = self.structure
        found = (self.edges, self.realisable, self.buildable)
        return (tokens.tokens, tokens.program, tokens.order, *found)

    def rates(self) -> dict[str, float]:
        """Return the share of diagrams that reach each level, and of those that are unknown."""
        rates = {
            f"level_{level}": float(mask.mean())
            for level, mask in enumerate(self.reached())
        }
        return rates | {"unknown": float(self.unknown.mean())}


def validity_levels(
    tokens: Tokens,
    rooms: int,
    *,
    boxes: BoxBatch | None = None,
    limit: int = LIMIT,
    search: bool = True,
) -> Levels:
    """Determine the levels of diagrams.

    Args:
        tokens: The diagrams; levels depend on types and relations only.
        rooms: Room slots of each.
        boxes: Room boxes, if known; boxes that prove their diagram make the search unnecessary.
        limit: Most linear programs for one level of one diagram.
        search: Whether other boxes count; otherwise levels are those of the given boxes, and
            diagrams whose boxes are illegal (`box_tokens.legal_boxes`) reach none.
    """
    structure = token_validity(tokens, rooms)
    if boxes is not None and not search:
        legal = legal_boxes(boxes, tokens[:, :rooms])
        parts = {name: part & legal for name, part in vars(structure).items()}
        structure = TokenValidity(**parts)
    reached = np.zeros((3, len(tokens)), bool)
    unknown = np.zeros(len(tokens), bool)
    proof = np.zeros((len(tokens), rooms, 4), np.int16)
    for row in np.flatnonzero(structure.order).tolist():
        known = None if boxes is None else boxes[row]
        level, found, unknown[row] = _search(
            _Problem.of(tokens[row], rooms), known, limit, search=search
        )
        reached[: level - 2, row] = True
        # Empty slots come last.
        if found is not None:
            proof[row, : len(found)] = found
    edges, realisable, buildable = reached
    return Levels(
        structure=structure,
        edges=edges,
        realisable=realisable,
        buildable=buildable,
        unknown=unknown,
        boxes=proof,
    )


@dataclass(frozen=True)
class _Problem:
    """Relations of a legal diagram, pairs of rooms that may not overlap, and number of rooms."""

    relations: RelationRow
    exclusive: PairRow
    rooms: int

    @classmethod
    def of(cls, tokens: TokenRow, rooms: int) -> _Problem:
        fields = split_fields(tokens, rooms)
        real = fields.types != NODE_PAD
        types = fields.types[real]
        relations = fields.edges[real_edges(real[None])[0]]
        return cls(relations.astype(np.int8), exclusive(types), len(types))

    def realise(self, level: int, limit: int) -> Realisation:
        """Search boxes that prove a level from 3 to 5."""
        # Bytes, as the key of a cache must be hashable.
        disjoint = b""
        if level == 5:
            disjoint = self.exclusive.tobytes()

        return _realise(
            self.relations.tobytes(), disjoint, self.rooms, limit, apart=level > 3
        )


def _search(
    problem: _Problem,
    known: Boxes | None,
    limit: int,
    *,
    search: bool,
) -> tuple[int, Boxes | None, bool]:
    """Return the highest level from 2 to 5, boxes that prove 4 or 5, and whether it is unknown.

    Searches from level 5 down to the first that is reached, or checks the known boxes only.
    """
    boxes = None
    if known is not None:
        proven, boxes = _level_of_boxes(problem, known[: problem.rooms])
        if proven == 5 or not search:
            return proven, boxes, False

    # A level includes those below it, so that the first success from the top decides.
    unknown = False
    for level in (5, 4, 3):
        if level == 4 and boxes is not None:
            return 4, boxes, unknown
        result = problem.realise(level, limit)
        unknown |= result.verdict == "unknown"
        if result.boxes is not None:
            return level, None if level == 3 else result.boxes, unknown
    return 2, None, unknown


def _level_of_boxes(problem: _Problem, boxes: Boxes) -> tuple[int, Boxes | None]:
    """Return the highest level from 2 to 5 that boxes prove, and the boxes if it is 4 or 5."""
    relations = problem.relations
    if realises(boxes, relations, disjoint=problem.exclusive):
        return 5, boxes
    if realises(boxes, relations):
        return 4, boxes
    if realises(boxes, relations, relations != NO_EDGE):
        return 3, None
    return 2, None


def is_buildable(tokens: Tokens, rooms: int) -> Rows:
    """Return whether diagrams reach level 5, without other searches; False if a search gives up."""
    mask = token_validity(tokens, rooms).order
    for row in np.flatnonzero(mask).tolist():
        mask[row] = _Problem.of(tokens[row], rooms).realise(5, LIMIT).boxes is not None
    return mask


# Samples are checked while sampling, then evaluated, then drawn.
@lru_cache(maxsize=_CACHED)
def _realise(
    edges: bytes,
    exclude: bytes,
    rooms: int,
    limit: int,
    *,
    apart: bool,
) -> Realisation:
    result = realise(
        np.frombuffer(edges, np.int8),
        rooms,
        limit=limit,
        apart=apart,
        disjoint=np.frombuffer(exclude, bool) if exclude else False,
    )
    if result.boxes is not None:
        # All callers share the cached boxes.
        result.boxes.flags.writeable = False
    return result


def token_validity(tokens: Tokens, rooms: int) -> TokenValidity:
    """Determine levels 0 to 2 of diagrams with `rooms` room slots."""
    types, edges, _, _ = split_fields(tokens, rooms)
    real = types != NODE_PAD

    # Empty slots come last, rooms have types, and exactly the pairs of rooms have relations.
    room_after_gap = real[:, 1:] & ~real[:, :-1]
    legal = real[:, 0] & ~room_after_gap.any(1)
    is_type = (types >= 0) & (types < NODE_MASK)
    legal &= (is_type | ~real).all(1)
    is_relation = (edges >= 0) & (edges <= NO_EDGE)
    legal &= np.where(real_edges(real), is_relation, edges == EDGE_PAD).all(1)

    living_rooms = (types == LIVING).sum(1)
    entrances = (types == ENTRANCE).sum(1)
    living = legal & (living_rooms == 1)
    connected = legal & connects(edges < NO_EDGE, real)
    program = living & connected & (entrances <= 1)

    # Centres are ordered along each axis, so a room that is before itself has no place.
    order = program
    for before, after in ((LEFT, RIGHT), (ABOVE, BELOW)):
        forward = np.isin(edges, [*before])
        backward = np.isin(edges, [*after])
        reach = _closure(pair_matrix(forward, backward, rooms))
        order = order & ~np.diagonal(reach, axis1=1, axis2=2).any(1)
    return TokenValidity(
        tokens=legal,
        one_living_room=living,
        connected=connected,
        program=program,
        order=order,
    )


def is_reachable(tokens: Tokens, rooms: int) -> Rows:
    """Return in which diagrams doors join all rooms, only close ones, with one front door."""
    types, edges, doors, _ = split_fields(tokens, rooms)
    pairs = edges.shape[1]
    inner = doors[:, :pairs] == DOOR
    fronts = (doors[:, pairs:] == DOOR).sum(1)
    close = (~inner | (edges < NO_EDGE)).all(1)
    return connects(inner, types != NODE_PAD) & close & (fronts == 1)


def connects(pairs: Pairs, real: Bool[ndarray, "N R"]) -> Rows:
    """Return whether links between pairs connect all real rooms, of which slot 0 is one."""
    rooms = real.shape[1]
    links = pair_matrix(pairs, pairs, rooms) & real[:, :, None] & real[:, None]
    from_first = _closure(links | np.eye(rooms, dtype=bool))[:, 0]
    return (from_first | ~real).all(1)


def _closure(links: Links) -> Links:
    """Transitive closure: True where one or more steps lead from the first to the second."""
    # Each round doubles the number of steps; a path visits each room at most once.
    rounds = int(np.ceil(np.log2(links.shape[-1])))
    for _ in range(max(1, rounds)):
        # Floats, because numpy multiplies matrices of other types without BLAS.
        steps = links.astype(np.float32)
        links = links | (np.matmul(steps, steps) > 0)
    return links
