"""The `constraints` table of an experiment, and its compilation to rules. No torch, no numpy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pydantic import SkipValidation

from dither.registry.config.errors import did_you_mean, dotted
from dither.registry.spec.base import Options
from dither.registry.spec.misfit import Misfit, Path, raise_misfits

from ..vocabulary import (
    BEDROOM_IDS,
    DOOR,
    GRID,
    METRES,
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
    Dwelling,
    PairRelation,
    Reachable,
    RoomType,
    Rule,
)

if TYPE_CHECKING:
    from ..plans import Diagram, Doors
    from .guidance import ConstraintGuidance

Names = str | list[str]


class Constraints(Options):
    """Constraints on samples.

    Rooms are numbered from 0; a type may be a group of types, such as "bedrooms".
    """

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
    dwelling: SkipValidation[bool | dict[str, Any]] = False
    """Whether layouts must be dwellings, level 6; or other usual ranges than the default ones:
    {areas = {Bathroom = "3 to 9 m2"}, proportion = 2.5, wall = 1.0}."""
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
        modelled = {"doors": doors, "areas": areas}
        for field, key in _FIELD_KEYS:
            if getattr(self, key) and not modelled[field]:
                message = f"requires task.{field} = true"
                misfits.append(
                    Misfit(message, (key,), (*above[:1], field), code="misfit")
                )
        yield from misfits
        if misfits or not rules:
            return
        # numpy and scipy, which experiments without constraints save
        from .contradictions import contradictions, unrealisable

        cores = contradictions(rules, slots)
        for core in cores:
            alone = f"cannot be met with {slots} room slots"
            yield self._contradiction(core, above, "contradicts", alone)
        if not cores and (core := unrealisable(rules)):
            yield self._contradiction(core, above, "cannot be realised together with")

    def _contradiction(
        self,
        core: list[Rule],
        above: Path,
        verb: str,
        alone: str = "",
    ) -> Misfit:
        *others, last = core
        if not others:
            return Misfit(alone, last.path, code="contradiction")
        message = f"{verb} {' and '.join(map(self.words, others))}"
        return Misfit(
            message, last.path, (*above, *others[0].path), code="contradiction"
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
        placed: Mapping[int, int],
        total: int,
        *,
        doors: bool,
        areas: bool,
    ) -> Constraints:
        """Return these constraints and those that keep rooms of a diagram; see `task.edit`.

        `placed` are the rooms to keep by slot, and `total` is the number of rooms.
        """
        related = {(i, j): RELATIONS[relation] for i, j, relation in diagram.edges}
        relations = []
        for u, v in combinations(placed, 2):
            relations.append([u, v, related.get((placed[u], placed[v]), "none")])
        types = {str(slot): ROOMS[diagram.types[room]] for slot, room in placed.items()}
        update: dict[str, Any] = {
            "rooms": total,
            # The types of kept rooms replace those of the table for their slots.
            "types": self.types | types,
            "relations": [*self.relations, *relations],
        }
        if doors and diagram.doors is not None:
            joined, separate = _door_entries(placed, diagram.doors)
            update["doors"] = [*self.doors, *joined]
            update["no_doors"] = [*self.no_doors, *separate]
        if areas and diagram.areas is not None:
            update["areas"] = dict(self.areas)
            for slot, room in placed.items():
                update["areas"][str(slot)] = area_text(diagram.areas[room])
        return self.model_copy(update=update)

    def goal(
        self,
        slots: int,
        *,
        doors: bool = False,
        areas: bool = False,
    ) -> ConstraintGuidance:
        """Return the guidance that steers sampling towards the constraints and checks samples.

        See `check` for the arguments.

        Raises:
            ValueError: A constraint is invalid, or some contradict each other.
        """
        raise_misfits(self.check(slots, doors=doors, areas=areas))
        from .guidance import ConstraintGuidance

        return ConstraintGuidance(
            read_rules(self, slots)[0], slots, doors=doors, areas=areas
        )


def _door_entries(
    placed: Mapping[int, int], doors: Doors
) -> tuple[list[Any], list[Any]]:
    """Return entries of `doors` and `no_doors` that keep the doors of rooms, by slot."""
    joined: list[Any] = []
    apart: list[Any] = []
    for u, v in combinations(placed, 2):
        entries = joined if (placed[u], placed[v]) in doors else apart
        entries.append([u, v])
    for slot, room in placed.items():
        entries = joined if (room, None) in doors else apart
        entries.append([slot, OUTSIDE])
    return joined, apart


_FIELD_KEYS = (
    ("doors", "doors"),
    ("doors", "no_doors"),
    ("doors", "reachable"),
    ("areas", "areas"),
)
"""Fields of a diagram, and the keys that require them."""

_RELATION_SETS = {
    **{name: frozenset({r}) for r, name in enumerate(RELATIONS)},
    "near": RELATED,
    "none": frozenset({NO_EDGE}),
}
_BOUND = re.compile(r"at (least|most) (\d{1,4})")
_DWELLING_RANGES = {"proportion": (1.0, 100.0), "wall": (0.01, GRID * METRES)}
"""A longer side is no shorter than the other one, and no wall is longer than the canvas."""

_AREAS = '"8 to 10 m2", "at least 8 m2" or "at most 10 m2"'


def read_rules(table: Constraints, slots: int) -> tuple[list[Rule], list[Misfit]]:
    """Return the rules of a table for diagrams with `slots` room slots, and its invalid entries."""
    reader = _Reader(slots)
    # First, because all other entries may name the groups.
    reader.take_items("groups", table.groups, reader.take_group)
    if table.rooms is not None:
        low, high = reader.bounds(("rooms",), table.rooms)
        # Bounds that every diagram meets, and those of an invalid entry, need no rule.
        if (low, high) != (0, slots):
            reader.rules.append(Count(("rooms",), ALL, max(low, 1), high))

    reader.take_items("types", table.types, reader.take_type)
    reader.take_entries("relations", table.relations, reader.take_relation, True)
    reader.take_entries("forbidden", table.forbidden, reader.take_relation, False)
    reader.take_items("counts", table.counts, reader.take_count)
    reader.take_entries("adjacent", table.adjacent, reader.take_adjacency, True)
    reader.take_entries("apart", table.apart, reader.take_adjacency, False)
    reader.take_entries("doors", table.doors, reader.take_door, True)
    reader.take_entries("no_doors", table.no_doors, reader.take_door, False)
    reader.take_items("areas", table.areas, reader.take_area)
    if reader.switch("buildable", table.buildable):
        reader.rules.append(Buildable(("buildable",)))
    reader.take_dwelling(table.dwelling)
    if reader.switch("reachable", table.reachable):
        reader.rules.append(Reachable(("reachable",)))
    return reader.rules, reader.misfits


def _shown(value: Any) -> str:
    # default: TOML has dates.
    return json.dumps(value, ensure_ascii=False, default=str)


def _are_numbers(values: list[Any]) -> bool:
    """Whether values are integers, which True and False are not."""
    return all(type(value) is int for value in values)


class _Reader:
    """Compiles entries to rules and collects invalid ones."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.rules: list[Rule] = []
        self.misfits: list[Misfit] = []
        self.sets = {name: frozenset({kind}) for kind, name in enumerate(ROOMS)}
        self.sets["bedrooms"] = BEDROOM_IDS

    def reject(
        self,
        message: str,
        path: Path,
        *,
        code: str = "invalid-value",
        help_text: str | None = None,
    ) -> None:
        self.misfits.append(Misfit(message, path, help=help_text, code=code))

    def reject_type(
        self,
        expected: str,
        value: Any,
        path: Path,
        separator: str = ",",
    ) -> None:
        message = f"expected {expected}{separator} got {_shown(value)}"
        self.reject(message, path, code="wrong-type")

    def take_items(
        self,
        field: str,
        table: Any,
        take: Callable[[str, Any], None],
    ) -> None:
        """Compile the values of a table by key."""
        if isinstance(table, dict):
            for key, value in table.items():
                take(key, value)
        else:
            self.reject_type("a table", table, (field,))

    def take_entries(
        self,
        field: str,
        entries: Any,
        take: Callable[[Path, Any, bool], None],
        positive: bool,
    ) -> None:
        """Compile the entries of a list that requires (`positive`) or forbids them."""
        if isinstance(entries, list):
            for number, entry in enumerate(entries):
                take((field, number), entry, positive)
        else:
            self.reject_type("a list of lists", entries, (field,))

    def switch(self, field: str, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        self.reject_type("true or false", value, (field,))
        return False

    def take_dwelling(self, value: Any) -> None:
        if not isinstance(value, dict):
            if self.switch("dwelling", value):
                self.rules.append(Dwelling(("dwelling",)))
            return
        known = ("areas", *_DWELLING_RANGES)
        for key in value.keys() - {*known}:
            hint = did_you_mean(key, known, f"allowed: {', '.join(known)}")
            message = f"unknown key `{key}`"
            path = ("dwelling", key)
            self.reject(message, path, code="unknown-key", help_text=hint)
        numbers: dict[str, float] = {}
        for key, (least, most) in _DWELLING_RANGES.items():
            number = value.get(key, 1.0)
            # isinstance takes True for a number.
            if type(number) not in (int, float) or not least <= number <= most:
                expected = f"a number from {least:g} to {most:g}"
                self.reject_type(expected, number, ("dwelling", key))
            elif key in value:
                numbers[key] = float(number)
        areas = self.areas_of_types(("dwelling", "areas"), value.get("areas", {}))
        self.rules.append(Dwelling(("dwelling",), areas, numbers))

    def areas_of_types(self, above: Path, table: Any) -> dict[int, tuple[float, float]]:
        """Return the bounds of a table of areas by type."""
        areas: dict[int, tuple[float, float]] = {}
        if not isinstance(table, dict):
            self.reject_type("a table", table, above)
            return areas
        for name, text in table.items():
            bounds = parse_area(text)
            if bounds is None:
                self.reject_type(_AREAS, text, (*above, name), separator=";")
                continue
            areas |= dict.fromkeys(self.named((*above, name), name), bounds)
        return areas

    def take_group(self, name: str, members: Any) -> None:
        path: Path = ("groups", name)
        if name in self.sets:
            message = f'"{name}" exists already; choose another name for the group'
            self.reject(message, path, code="duplicate")
        elif not isinstance(members, list):
            self.reject_type("a list of room types", members, path)
        else:
            self.sets[name] = self.named(path, members)

    def take_type(self, key: str, names: Any) -> None:
        path: Path = ("types", key)
        types = self.named(path, names)
        if not key.isdecimal():
            message = f'"{key}" is not a room number, expected 0 to {self.slots - 1}'
            self.reject(message, path, code="wrong-type")
        elif self.exists(path, int(key)) and types:
            self.rules.append(RoomType(path, int(key), types))

    def take_relation(
        self,
        path: Path,
        entry: Any,
        allowed: bool,
    ) -> None:
        if (
            not isinstance(entry, list)
            or len(entry) != 3
            or not _are_numbers(entry[:2])
        ):
            self.reject_type('[i, j, relation] such as [0, 1, "left-of"]', entry, path)
            return
        i, j, names = entry
        # Names and numbers are both checked, so that all mistakes of an entry are reported.
        relations = self.named(path, names, "relation")
        if i == j:
            self.reject(f"room {i} cannot be related to itself", path)
        elif i > j:
            order = f"the smaller room number comes first, got {i}, {j}"
            self.reject(f"{order}; reverse the relation, too", path)
        elif self.exists(path, i) and self.exists(path, j) and relations:
            # To forbid a relation is to require one of the others.
            if not allowed:
                relations = (RELATED | {NO_EDGE}) - relations
            self.rules.append(PairRelation(path, i, j, relations))

    def take_count(self, key: str, value: Any) -> None:
        path: Path = ("counts", key)
        types = self.named(path, key)
        low, high = self.bounds(path, value)
        if types:
            self.rules.append(Count(path, types, low, high))

    def take_adjacency(
        self,
        path: Path,
        entry: Any,
        required: bool,
    ) -> None:
        if not isinstance(entry, list) or len(entry) not in (2, 3):
            example = (
                '["Kitchen", "LivingRoom"] or ["Kitchen", "LivingRoom", "left-of"]'
            )
            self.reject_type(example, entry, path)
            return
        first = self.named(path, entry[0])
        second = self.named(path, entry[1])
        relations = RELATED
        if len(entry) == 3:
            relations = self.named(path, entry[2], "relation")
        if NO_EDGE in relations:
            hint = "use apart for rooms that are not close"
            self.reject(f'"none" is not allowed in {path[0]}', path, help_text=hint)
        elif first and second and relations:
            self.rules.append(Adjacency(path, first, second, relations, required))

    def take_door(
        self,
        path: Path,
        entry: Any,
        required: bool,
    ) -> None:
        match entry:
            case [i, "outside"] if type(i) is int:
                self.take_numbered_door(path, i, None, required)
            case [i, j] if _are_numbers([i, j]):
                self.take_numbered_door(path, i, j, required)
            case [first, second] if type(first) is not int and type(second) is not int:
                one = self.named(path, first)
                other = FRONT
                if second != OUTSIDE:
                    other = self.named(path, second)
                if one and other:
                    ids = frozenset({DOOR})
                    rule = Adjacency(
                        path,
                        one,
                        other,
                        ids,
                        required,
                        doors=True,
                    )
                    self.rules.append(rule)
            case _:
                example = f'[0, 1], ["Kitchen", "LivingRoom"] or [0, "{OUTSIDE}"]'
                self.reject_type(example, entry, path)

    def take_numbered_door(
        self,
        path: Path,
        i: int,
        j: int | None,
        required: bool,
    ) -> None:
        if j is not None and i >= j:
            self.reject(f"the smaller room number comes first, got {i}, {j}", path)
        elif self.exists(path, i) and (j is None or self.exists(path, j)):
            ids = frozenset({DOOR if required else NO_DOOR})
            self.rules.append(PairRelation(path, i, j, ids, doors=True))

    def take_area(self, key: str, text: Any) -> None:
        path: Path = ("areas", key)
        bounds = parse_area(text)
        if bounds is None:
            self.reject_type(_AREAS, text, path, separator=";")
        room = None
        types = frozenset[int]()
        # Both mistakes of an entry are reported, so the key is checked in any case.
        if key.isdecimal():
            room = int(key)
            exists = self.exists(path, room)
        else:
            types = self.named(path, key)
            exists = bool(types)
        if exists and bounds:
            self.rules.append(Area(path, room, types, *bounds))

    def exists(self, path: Path, room: int) -> bool:
        if 0 <= room < self.slots:
            return True
        message = f"rooms are numbered 0 to {self.slots - 1}, got {room}"
        self.reject(message, path, code="out-of-range")
        return False

    def bounds(self, path: Path, value: Any) -> tuple[int, int]:
        """Parse 2, [2, 3], "at least 2" or "at most 3"; unbounded is the number of slots."""
        if isinstance(value, str) and (text := _BOUND.fullmatch(value)):
            number = int(text[2])
            if text[1] == "most":
                return 0, number
            # More than there are slots is a contradiction, which is reported with its participants.
            return number, max(number, self.slots)
        pair = value
        if type(value) is int:
            pair = [value, value]
        if not isinstance(pair, list) or len(pair) != 2 or not _are_numbers(pair):
            allowed = 'a number, [smallest, largest], "at least 1" or "at most 2"'
            self.reject_type(allowed, value, path, separator=";")
            return 0, self.slots
        low, high = pair
        if low < 0 or high < low:
            message = f"expected 0 <= smallest <= largest, got {low} and {high}"
            self.reject(message, path, code="out-of-range")
        return low, high

    def named(self, path: Path, names: Any, what: str = "room type") -> frozenset[int]:
        """Return the ids of one or more names of types or relations; reject unknown ones."""
        known = _RELATION_SETS
        if what == "room type":
            known = self.sets
        words = [names]
        if isinstance(names, list):
            words = names
        if not words:
            self.reject(f"expected a {what}, got none", path)
        wrong = [word for word in words if not isinstance(word, str)]
        if wrong:
            self.reject_type(f"the name of a {what}", wrong[0], path)
        texts = [word for word in words if isinstance(word, str)]
        unknown = [word for word in texts if word not in known]
        for word in unknown:
            hint = did_you_mean(word, known, f"allowed: {', '.join(known)}")
            self.reject(
                f'unknown {what} "{word}"', path, code="unknown-value", help_text=hint
            )
        if unknown or wrong:
            return frozenset()
        return frozenset().union(*(known[word] for word in texts))
