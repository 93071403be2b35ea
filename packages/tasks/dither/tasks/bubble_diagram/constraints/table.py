"""The table of constraints, as it stands in an experiment file or is made in Python. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from dither.registry.config.errors import dotted, nearest
from dither.registry.spec.base import Options
from dither.registry.spec.misfit import Misfit, Path, raise_misfits

from ..vocabulary import NO_EDGE, RELATIONS, ROOMS
from .rules import EVERY_TYPE, NEAR, Adjacency, Buildable, Count, PairRelation, RoomType, Rule, Size

if TYPE_CHECKING:
    from .guidance import ConstraintGuidance

__all__ = ["BEDROOMS", "Constraints", "Table", "read_rules"]

Names = str | list[str]


class Constraints(Options):
    """What samples must fulfil. Rooms are counted from 0; a type may be a group of types, such as "bedrooms"."""

    rooms: int | list[int] | None = None
    """Number of rooms, or the smallest and the largest: 6, or [5, 7]. By default as in training."""
    types: dict[str, Names] = {}
    """By number of the room: its type, or those it may have: {0 = "LivingRoom", 1 = ["Kitchen", "bedrooms"]}."""
    relations: list[list[int | str | list[str]]] = []
    """How room i lies to room j, i < j: [0, 1, "left-of"], or several: [0, 1, ["above", "none"]]; "near" is any."""
    forbidden: list[list[int | str | list[str]]] = []
    """How room i may not lie to room j: [0, 1, "inside"]."""
    counts: dict[str, int | str | list[int]] = {}
    """Rooms by type: {Kitchen = 1, Bathroom = [2, 3], Balcony = "at least 1", Storage = 0}."""
    adjacent: list[list[Names]] = []
    """Types of which some two rooms are near each other, or lie as said: ["Kitchen", "LivingRoom", "left-of"]."""
    apart: list[list[Names]] = []
    """Types of which no two rooms are near each other, or none lie as said: ["Bathroom", "Kitchen"]."""
    buildable: bool = False
    """Whether there must be boxes that give the diagram, which is decided exactly: samples reach level 4."""
    groups: dict[str, list[str]] = {}
    """Types under a name of yours, for use in place of a type; "bedrooms" is there already."""

    def check(self, slots: int, above: Path = ("task", "constraints")) -> Iterator[Misfit]:
        """Yield everything that is wrong, or else which constraints contradict each other.

        Args:
            slots: Room slots of a diagram.
            above: Keys from the top of the experiment down to this table.
        """
        rules, wrong = read_rules(self, slots)
        yield from wrong
        if wrong or not rules:
            return
        from .contradictions import contradictions, ordering_cycles, unrealisable

        found = contradictions(rules, slots)
        for core in found:
            alone = f"cannot be met with {slots} room slots"
            yield self._contradiction(core, above, "contradicts", alone)
        rounds = ordering_cycles(rules)
        for circle in rounds:
            yield self._contradiction(circle, above, "closes a circle, so that no plan can be built, with")
        if not found and not rounds and (core := unrealisable(rules)):
            yield self._contradiction(core, above, "cannot be built together with")

    def _contradiction(self, core: list[Rule], above: Path, verb: str, alone: str = "") -> Misfit:
        last, *others = reversed(core)
        if not others:
            return Misfit(alone, last.path)
        words = " and ".join(self.words(rule) for rule in reversed(others))
        return Misfit(f"{verb} {words}", last.path, (*above, *others[-1].path))

    def words(self, rule: Rule) -> str:
        """Return a constraint as it was written."""
        value: Any = self.model_dump()
        for key in rule.path:
            value = value[key]
        return f"{dotted(rule.path)} = {json.dumps(value, ensure_ascii=False)}"

    def goal(self, slots: int) -> ConstraintGuidance:
        """Return what guides sampling, and says of samples whether they fulfil the constraints.

        Raises:
            ValueError: A constraint is wrong, or some contradict each other.
        """
        raise_misfits(self.check(slots))
        from .guidance import ConstraintGuidance

        return ConstraintGuidance(read_rules(self, slots)[0], slots)


BEDROOMS: Final = ("MasterRoom", "ChildRoom", "StudyRoom", "SecondRoom", "GuestRoom")
"""Types of the group "bedrooms", as Graph2Plan counts them."""

_WAYS: Final = {
    **{name: frozenset({r}) for r, name in enumerate(RELATIONS)},
    "near": NEAR,
    "none": frozenset({NO_EDGE}),
}
_BOUND = re.compile(r"at (least|most) (\d{1,4})")


class Table(Protocol):
    """What is read: the options of `table.Constraints`."""

    @property
    def rooms(self) -> Any: ...  # noqa: D102
    @property
    def types(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def relations(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def forbidden(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def counts(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def adjacent(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def apart(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def buildable(self) -> bool: ...  # noqa: D102
    @property
    def groups(self) -> Mapping[str, Sequence[str]]: ...  # noqa: D102


def read_rules(table: Table, slots: int) -> tuple[list[Rule], list[Misfit]]:
    """Return the rules of a table for diagrams of `slots` room slots, and everything that is wrong with it."""
    reader = _Reader(slots)
    reader.take_groups(table.groups)
    if table.rooms is not None:
        reader.take_size(table.rooms)
    for key, names in table.types.items():
        reader.take_type(key, names)
    for field, kept in (("relations", True), ("forbidden", False)):
        for number, entry in enumerate(getattr(table, field)):
            reader.take_relation((field, number), entry, kept)
    for key, bounds in table.counts.items():
        reader.take_count(key, bounds)
    for field, wanted in (("adjacent", True), ("apart", False)):
        for number, entry in enumerate(getattr(table, field)):
            reader.take_adjacency((field, number), entry, wanted)
    if table.buildable:
        reader.rules.append(Buildable(("buildable",)))
    return reader.rules, reader.wrong


class _Reader:
    """Collects rules, and what is wrong."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.rules: list[Rule] = []
        self.wrong: list[Misfit] = []
        self.sets: dict[str, frozenset[int]] = {name: frozenset({kind}) for kind, name in enumerate(ROOMS)}
        self.sets["bedrooms"] = frozenset(map(ROOMS.index, BEDROOMS))

    def take_groups(self, groups: Mapping[str, Sequence[str]]) -> None:
        for name, members in groups.items():
            path: Path = ("groups", name)
            if name in self.sets:
                self.wrong.append(Misfit(f'"{name}" is a name already; choose another for the group', path))
            elif not members:
                self.wrong.append(Misfit("a group needs a type of room", path))
            else:
                self.sets[name] = self.types(path, members)

    def take_size(self, given: Any) -> None:
        low, high = self.bounds(("rooms",), given)
        if (low, high) != (0, self.slots):
            self.rules.append(Size(("rooms",), max(low, 1), high))

    def take_type(self, key: str, names: Any) -> None:
        path: Path = ("types", key)
        types = self.types(path, names)
        if not key.isdecimal():
            self.wrong.append(Misfit(f'"{key}" is no number of a room; they are 0 to {self.slots - 1}', path))
        elif self.exists(path, int(key)) and types:
            self.rules.append(RoomType(path, int(key), types))

    def take_relation(self, path: Path, entry: Sequence[Any], kept: bool) -> None:
        if len(entry) != 3 or type(entry[0]) is not int or type(entry[1]) is not int or type(entry[2]) is int:
            self.wrong.append(Misfit(f'expected [i, j, relation] such as [0, 1, "left-of"], got {entry}', path))
            return
        i, j, words = entry
        ways = self.ways(path, words)
        if i == j:
            self.wrong.append(Misfit(f"room {i} has no relation to itself", path))
        elif i > j:
            self.wrong.append(Misfit(f"give how room {j} lies to room {i}: the smaller number comes first", path))
        elif self.exists(path, i) and self.exists(path, j) and ways:
            relations = ways if kept else frozenset(range(NO_EDGE + 1)) - ways
            self.rules.append(PairRelation(path, i, j, relations))

    def take_count(self, key: str, given: Any) -> None:
        path: Path = ("counts", key)
        types = self.types(path, key)
        low, high = self.bounds(path, given)
        if types:
            self.rules.append(Count(path, types, low, high))

    def take_adjacency(self, path: Path, entry: Sequence[Any], wanted: bool) -> None:
        if len(entry) not in (2, 3):
            example = '["Kitchen", "LivingRoom"] or ["Kitchen", "LivingRoom", "left-of"]'
            self.wrong.append(Misfit(f"expected {example}, got {entry}", path))
            return
        first, second = self.types(path, entry[0]), self.types(path, entry[1])
        ways = self.ways(path, entry[2]) if len(entry) == 3 else NEAR
        if NO_EDGE in ways:
            hint = "for rooms that are not near each other there is apart"
            self.wrong.append(Misfit(f'"none" cannot be asked of two types in {path[0]}', path, help=hint))
        elif first and second and ways:
            self.rules.append(Adjacency(path, first, second, ways, wanted))

    def exists(self, path: Path, room: int) -> bool:
        if not 0 <= room < self.slots:
            self.wrong.append(Misfit(f"rooms are numbered 0 to {self.slots - 1}, got {room}", path))
        return 0 <= room < self.slots

    def bounds(self, path: Path, given: Any) -> tuple[int, int]:
        """Read 2, [2, 3], "at least 2" or "at most 3"; what has no end ends at the number of slots."""
        match = _BOUND.fullmatch(given) if isinstance(given, str) else None
        if type(given) is int:
            low, high = given, given
        elif match:
            number = int(match[2])
            low, high = (number, max(number, self.slots)) if match[1] == "least" else (0, number)
        elif isinstance(given, list) and len(given) == 2:
            low, high = given
        else:
            what = f'a number, [smallest, largest], "at least 1" or "at most 2"; got {given!r}'
            self.wrong.append(Misfit(f"expected {what}".replace("'", '"'), path))
            return 0, self.slots
        if low < 0 or high < low:
            self.wrong.append(Misfit(f"expected 0 <= smallest <= largest, got {low} and {high}", path))
        return low, high

    def types(self, path: Path, names: Any) -> frozenset[int]:
        return self.named(path, names, self.sets, "type of room")

    def ways(self, path: Path, names: Any) -> frozenset[int]:
        return self.named(path, names, _WAYS, "relation")

    def named(self, path: Path, names: Any, known: Mapping[str, frozenset[int]], what: str) -> frozenset[int]:
        """Return the ids of one or more names; names that are not known are wrong."""
        words: Iterable[str] = [names] if isinstance(names, str) else names
        found: frozenset[int] = frozenset()
        unknown = [word for word in words if word not in known]
        for word in words:
            found |= known.get(word, frozenset())
        for word in unknown:
            close = nearest(word, known)
            hint = f'did you mean "{close}"?' if close else f"allowed are {', '.join(known)}"
            self.wrong.append(Misfit(f'"{word}" is no {what}', path, help=hint))
        if not names:
            self.wrong.append(Misfit(f"expected a {what}, got none", path))
        return frozenset() if unknown else found & (EVERY_TYPE | {NO_EDGE})
