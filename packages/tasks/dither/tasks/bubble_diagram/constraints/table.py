"""The `constraints` table of an experiment file, and its compilation to rules. No torch, no numpy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from pydantic import SkipValidation

from dither.registry.config.errors import Problem, Refused, did_you_mean, dotted
from dither.registry.spec.base import Options
from dither.registry.spec.misfit import Misfit, Path, raise_misfits

from ..vocabulary import (
    BEDROOMS,
    DOOR,
    NO_DOOR,
    NO_EDGE,
    OUTSIDE,
    RELATED,
    RELATIONS,
    ROOMS,
    area_text,
    parse_area,
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

if TYPE_CHECKING:
    from ..plans import Diagram
    from .guidance import ConstraintGuidance

__all__ = ["BEDROOMS", "Constraints", "read_rules"]

Names = str | list[str]


class Constraints(Options):
    """Constraints on samples. Rooms are numbered from 0; a type may be a group of types, such as "bedrooms"."""

    # `read_rules` checks types together with names, so that one kind of mistake does not hide the
    # other.
    rooms: SkipValidation[int | str | list[int] | None] = None
    """Number of rooms, [smallest, largest], "at least 5" or "at most 7". By default as in
    training."""
    types: SkipValidation[dict[str, Names]] = {}
    """Type of a room by number, or its allowed types: {0 = "LivingRoom", 1 = ["Kitchen",
    "bedrooms"]}."""
    relations: SkipValidation[list[list[int | str | list[str]]]] = []
    """Relation of room i to room j, i < j: [0, 1, "left-of"], or several: [0, 1, ["above",
    "none"]]; "near" is any."""
    forbidden: SkipValidation[list[list[int | str | list[str]]]] = []
    """Forbidden relation of room i to room j: [0, 1, "inside"]."""
    counts: SkipValidation[dict[str, int | str | list[int]]] = {}
    """Number of rooms by type: {Kitchen = 1, Bathroom = [2, 3], Balcony = "at least 1", Storage =
    0}."""
    adjacent: SkipValidation[list[list[Names]]] = []
    """Types of which some two rooms are close, or have a relation: ["Kitchen", "LivingRoom",
    "left-of"]."""
    apart: SkipValidation[list[list[Names]]] = []
    """Types of which no two rooms are close, or none have a relation: ["Bathroom", "Kitchen"]."""
    buildable: SkipValidation[bool] = False
    """Whether samples must reach level 5: boxes show exactly the relations, rooms do not overlap;
    decided exactly."""
    doors: SkipValidation[list[list[int | Names]]] = []
    """Rooms joined by a door, by number or type: [0, 1], ["Kitchen", "LivingRoom"] (some two), [0,
    "outside"]."""
    no_doors: SkipValidation[list[list[int | Names]]] = []
    """Rooms not joined by a door, by number or type (no two): ["Bathroom", "Kitchen"]."""
    reachable: SkipValidation[bool] = False
    """Whether doors must join all rooms, only close ones, with exactly one front door."""
    areas: SkipValidation[dict[str, str]] = {}
    """Area of a room by number, or of all rooms of a type: {Kitchen = "8 to 10 m2", 0 = "at least
    20 m2"}."""
    groups: SkipValidation[dict[str, list[str]]] = {}
    """Groups of types by name, for use in place of a type; "bedrooms" is predefined."""

    def check(
        self,
        slots: int,
        above: Path = ("task", "constraints"),
        *,
        doors: bool = False,
        areas: bool = False,
    ) -> Iterator[Misfit]:
        """Yield invalid entries, or else the constraints that contradict each other.

        Args:
            slots: Room slots of a diagram.
            above: Path of this table in the experiment.
            doors: Whether doors are modelled.
            areas: Whether areas are modelled.
        """
        rules, misfits = read_rules(self, slots)
        for field, key in (
            ("doors", "doors"),
            ("doors", "no_doors"),
            ("doors", "reachable"),
            ("areas", "areas"),
        ):
            if getattr(self, key) and not (doors if field == "doors" else areas):
                misfits.append(
                    Misfit(
                        f"requires task.{field} = true", (key,), (*above[:1], field), code="misfit"
                    )
                )
        yield from misfits
        if misfits or not rules:
            return
        from .contradictions import contradictions, unrealisable

        cores = contradictions(rules, slots)
        for core in cores:
            yield self._contradiction(
                core, above, "contradicts", f"cannot be met with {slots} room slots"
            )
        if not cores and (core := unrealisable(rules)):
            yield self._contradiction(core, above, "cannot be realised together with")

    def _contradiction(
        self,
        core: list[Rule],
        above: Path,
        verb: str,
        alone: str = "",
    ) -> Misfit:
        last, *others = reversed(core)
        if not others:
            return Misfit(alone, last.path, code="contradiction")
        words = " and ".join(self.words(rule) for rule in reversed(others))
        return Misfit(
            f"{verb} {words}", last.path, (*above, *others[-1].path), code="contradiction"
        )

    def words(self, rule: Rule) -> str:
        """Return a constraint as written in the table."""
        value: Any = self.model_dump()
        for key in rule.path:
            value = value[key]
        return f"{dotted(rule.path)} = {json.dumps(value, ensure_ascii=False)}"

    def keeping(
        self,
        diagram: Diagram,
        keep: Sequence[int] | None,
        redraw: int | None,
        slots: int,
        place: Callable[[list[int], int], Sequence[int]] = lambda kept, total: range(len(kept)),
        *,
        doors: bool = False,
        areas: bool = False,
    ) -> Constraints:
        """Return these constraints and those that keep rooms of a diagram; see `task.BubbleDiagrams.edit`.

        `place` returns the slots of the rooms to keep, by default the first ones, given them and
        the number of rooms.

        Raises:
            Refused: A room does not exist, nothing is left to draw, or there are too few slots
                (`out-of-range`).
        """
        rooms = len(diagram.types)
        kept = sorted(set(range(rooms) if keep is None else keep))
        total = len(kept) + (rooms - len(kept) if redraw is None else redraw)
        problems = [
            f"rooms are numbered 0 to {rooms - 1}, got {room}"
            for room in kept
            if not 0 <= room < rooms
        ]
        if not problems and not len(kept) < total <= slots:
            counts = f"{len(kept)} rooms to keep, {total - len(kept)} to draw"
            problems.append(f"{counts}: expected 1 to {slots - len(kept)}")
        if problems:
            raise Refused([Problem(problem, code="out-of-range") for problem in problems])
        related = {(i, j): RELATIONS[relation] for i, j, relation in diagram.edges}
        placed = list(zip(place(kept, total), kept, strict=True))
        types = {str(number): ROOMS[diagram.types[room]] for number, room in placed}
        relations = [
            [u, v, related.get((i, j), "none")] for (u, i), (v, j) in combinations(placed, 2)
        ]
        update: dict[str, Any] = {
            "rooms": total,
            "types": {**self.types, **types},
            "relations": [*self.relations, *relations],
        }
        if doors and diagram.doors is not None:
            ends = [*combinations(placed, 2), *((one, (OUTSIDE, None)) for one in placed)]
            joined = [[u, v] for (u, i), (v, j) in ends if (i, j) in diagram.doors]
            update["doors"] = [*self.doors, *joined]
            update["no_doors"] = [
                *self.no_doors,
                *([u, v] for (u, _), (v, _) in ends if [u, v] not in joined),
            ]
        if areas and diagram.areas is not None:
            update["areas"] = self.areas | {
                str(u): area_text(diagram.areas[room]) for u, room in placed
            }
        return self.model_copy(update=update)

    def goal(self, slots: int, *, doors: bool = False, areas: bool = False) -> ConstraintGuidance:
        """Return the guidance that steers sampling towards the constraints and checks samples.

        See `check` for the arguments.

        Raises:
            ValueError: A constraint is invalid, or some contradict each other.
        """
        raise_misfits(self.check(slots, doors=doors, areas=areas))
        from .guidance import ConstraintGuidance

        return ConstraintGuidance(read_rules(self, slots)[0], slots, doors=doors, areas=areas)


_RELATION_SETS: Final = {
    **{name: frozenset({r}) for r, name in enumerate(RELATIONS)},
    "near": RELATED,
    "none": frozenset({NO_EDGE}),
}
_BOUND = re.compile(r"at (least|most) (\d{1,4})")


def read_rules(table: Constraints, slots: int) -> tuple[list[Rule], list[Misfit]]:
    """Return the rules of a table for diagrams with `slots` room slots, and its invalid entries."""
    reader = _Reader(slots)
    for name, members in reader.entries("groups", table.groups, dict):
        reader.take_group(name, members)
    if table.rooms is not None:
        low, high = reader.bounds(("rooms",), table.rooms)
        if (low, high) != (0, slots):
            reader.rules.append(Count(("rooms",), ALL, max(low, 1), high))
    takers: dict[str, Callable[[Any, Any], None]] = {
        "types": reader.take_type,
        "relations": partial(reader.take_relation, allowed=True),
        "forbidden": partial(reader.take_relation, allowed=False),
        "counts": reader.take_count,
        "adjacent": partial(reader.take_adjacency, required=True),
        "apart": partial(reader.take_adjacency, required=False),
        "doors": partial(reader.take_door, required=True),
        "no_doors": partial(reader.take_door, required=False),
        "areas": reader.take_area,
    }
    for field, take in takers.items():
        kind: type[dict[Any, Any]] | type[list[Any]] = (
            dict if field in ("types", "counts", "areas") else list
        )
        for key, entry in reader.entries(field, getattr(table, field), kind):
            take(key if kind is dict else (field, key), entry)
    for key, switch, rule in (
        ("buildable", table.buildable, Buildable),
        ("reachable", table.reachable, Reachable),
    ):
        if not isinstance(switch, bool):
            reader.reject(
                f"expected true or false, got {_shown(switch)}", (key,), code="wrong-type"
            )
        elif switch:
            reader.rules.append(rule((key,)))
    return reader.rules, reader.misfits


def _shown(given: Any) -> str:
    return json.dumps(given, ensure_ascii=False, default=str)


class _Reader:
    """Compiles entries to rules and collects invalid ones."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.rules: list[Rule] = []
        self.misfits: list[Misfit] = []
        self.sets: dict[str, frozenset[int]] = {
            name: frozenset({kind}) for kind, name in enumerate(ROOMS)
        }
        self.sets["bedrooms"] = frozenset(map(ROOMS.index, BEDROOMS))

    def reject(
        self,
        message: str,
        path: Path,
        *,
        code: str = "invalid-value",
        help_text: str | None = None,
    ) -> None:
        self.misfits.append(Misfit(message, path, help=help_text, code=code))

    def entries(
        self, field: str, given: Any, kind: type[dict[Any, Any]] | type[list[Any]]
    ) -> list[tuple[Any, Any]]:
        """Return keys and values of a table, or numbers and entries of a list; reject anything else."""
        if not isinstance(given, kind):
            what = "a table" if kind is dict else "a list of lists"
            self.reject(f"expected {what}, got {_shown(given)}", (field,), code="wrong-type")
            return []
        return list(given.items() if isinstance(given, dict) else enumerate(given))

    def take_group(self, name: str, members: Any) -> None:
        path: Path = ("groups", name)
        if name in self.sets:
            self.reject(
                f'"{name}" exists already; choose another name for the group',
                path,
                code="duplicate",
            )
        elif not isinstance(members, list):
            self.reject(
                f"expected a list of room types, got {_shown(members)}", path, code="wrong-type"
            )
        else:
            self.sets[name] = self.types(path, members)

    def take_type(self, key: str, names: Any) -> None:
        path: Path = ("types", key)
        types = self.types(path, names)
        if not key.isdecimal():
            self.reject(
                f'"{key}" is not a room number, expected 0 to {self.slots - 1}',
                path,
                code="wrong-type",
            )
        elif self.exists(path, int(key)) and types:
            self.rules.append(RoomType(path, int(key), types))

    def take_relation(self, path: Path, entry: Any, allowed: bool) -> None:
        if (
            not isinstance(entry, list)
            or len(entry) != 3
            or not all(type(room) is int for room in entry[:2])
        ):
            message = f'expected [i, j, relation] such as [0, 1, "left-of"], got {_shown(entry)}'
            self.reject(message, path, code="wrong-type")
            return
        i, j, names = entry
        relations = self.named(path, names, _RELATION_SETS, "relation")
        if i == j:
            self.reject(f"room {i} cannot be related to itself", path)
        elif i > j:
            self.reject(
                f"the smaller room number comes first, got {i}, {j}; reverse the relation, too",
                path,
            )
        elif self.exists(path, i) and self.exists(path, j) and relations:
            self.rules.append(
                PairRelation(
                    path, i, j, relations if allowed else (RELATED | {NO_EDGE}) - relations
                )
            )

    def take_count(self, key: str, given: Any) -> None:
        path: Path = ("counts", key)
        types = self.types(path, key)
        low, high = self.bounds(path, given)
        if types:
            self.rules.append(Count(path, types, low, high))

    def take_adjacency(self, path: Path, entry: Any, required: bool) -> None:
        if not isinstance(entry, list) or len(entry) not in (2, 3):
            example = '["Kitchen", "LivingRoom"] or ["Kitchen", "LivingRoom", "left-of"]'
            self.reject(f"expected {example}, got {_shown(entry)}", path, code="wrong-type")
            return
        first = self.types(path, entry[0])
        second = self.types(path, entry[1])
        relations = (
            self.named(path, entry[2], _RELATION_SETS, "relation") if len(entry) == 3 else RELATED
        )
        if NO_EDGE in relations:
            self.reject(
                f'"none" is not allowed in {path[0]}',
                path,
                help_text="use apart for rooms that are not close",
            )
        elif first and second and relations:
            self.rules.append(Adjacency(path, first, second, relations, required))

    def take_door(self, path: Path, entry: Any, required: bool) -> None:
        if (
            not isinstance(entry, list)
            or len(entry) != 2
            or (
                (type(entry[0]) is int) != (type(entry[1]) is int)
                and (type(entry[0]) is not int or entry[1] != OUTSIDE)
            )
        ):
            example = f'[0, 1], ["Kitchen", "LivingRoom"] or [0, "{OUTSIDE}"]'
            self.reject(f"expected {example}, got {_shown(entry)}", path, code="wrong-type")
            return
        first, second = entry
        if type(first) is not int:
            one = self.types(path, first)
            other = FRONT if second == OUTSIDE else self.types(path, second)
            if one and other:
                self.rules.append(
                    Adjacency(path, one, other, frozenset({DOOR}), required, doors=True)
                )
        elif second != OUTSIDE and first >= second:
            self.reject(f"the smaller room number comes first, got {first}, {second}", path)
        elif self.exists(path, first) and (second == OUTSIDE or self.exists(path, second)):
            ids = frozenset({DOOR if required else NO_DOOR})
            self.rules.append(
                PairRelation(path, first, None if second == OUTSIDE else second, ids, doors=True)
            )

    def take_area(self, key: str, text: Any) -> None:
        path: Path = ("areas", key)
        bounds = parse_area(text)
        if bounds is None:
            allowed = '"8 to 10 m2", "at least 8 m2" or "at most 10 m2"'
            self.reject(f"expected {allowed}; got {_shown(text)}", path, code="wrong-type")
        room = int(key) if key.isdecimal() else None
        types = frozenset[int]() if room is not None else self.types(path, key)
        if (self.exists(path, room) if room is not None else types) and bounds:
            self.rules.append(Area(path, room, types, *bounds))

    def exists(self, path: Path, room: int) -> bool:
        if not 0 <= room < self.slots:
            self.reject(
                f"rooms are numbered 0 to {self.slots - 1}, got {room}", path, code="out-of-range"
            )
        return 0 <= room < self.slots

    def bounds(self, path: Path, given: Any) -> tuple[int, int]:
        """Parse 2, [2, 3], "at least 2" or "at most 3"; without upper bound, the number of slots."""
        match = _BOUND.fullmatch(given) if isinstance(given, str) else None
        if type(given) is int:
            low = given
            high = given
        elif match:
            number = int(match[2])
            low, high = (number, max(number, self.slots)) if match[1] == "least" else (0, number)
        elif (
            isinstance(given, list)
            and len(given) == 2
            and all(type(number) is int for number in given)
        ):
            low, high = given
        else:
            allowed = 'a number, [smallest, largest], "at least 1" or "at most 2"'
            self.reject(f"expected {allowed}; got {_shown(given)}", path, code="wrong-type")
            return 0, self.slots
        if low < 0 or high < low:
            self.reject(
                f"expected 0 <= smallest <= largest, got {low} and {high}",
                path,
                code="out-of-range",
            )
        return low, high

    def types(self, path: Path, names: Any) -> frozenset[int]:
        return self.named(path, names, self.sets, "room type")

    def named(
        self,
        path: Path,
        names: Any,
        known: Mapping[str, frozenset[int]],
        what: str,
    ) -> frozenset[int]:
        """Return the ids of one or more names; reject unknown ones."""
        words = names if isinstance(names, list) else [names]
        wrong = [word for word in words if not isinstance(word, str)]
        if wrong:
            self.reject(
                f"expected the name of a {what}, got {_shown(wrong[0])}", path, code="wrong-type"
            )
        unknown = [word for word in words if isinstance(word, str) and word not in known]
        for word in unknown:
            hint = did_you_mean(word, known, f"allowed: {', '.join(known)}")
            self.reject(f'unknown {what} "{word}"', path, code="unknown-value", help_text=hint)
        if not words:
            self.reject(f"expected a {what}, got none", path)
        return (
            frozenset() if unknown or wrong else frozenset().union(*(known[word] for word in words))
        )
