"""Bubble diagrams drawn by hand, in JSON or TOML: rooms, relations, doors, areas and an outline.

    name = "flat"
    rooms = { living = "LivingRoom", kitchen = "Kitchen", bed = "MasterRoom", bath = "Bathroom" }
    relations = [["kitchen", "left-of", "living"], ["bath", "near", "bed"], ["bath", "apart", "kitchen"]]
    doors = [["living", "kitchen"], ["living", "outside"]]
    areas = { living = "20 to 30 m2" }
    outline = "flat.json"

Only `rooms` is required. Pairs without a relation may have any. A file in the layout of HouseGAN++
gives the types of rooms and their doors.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Origin, Problem, Refused, did_you_mean
from dither.registry.config.toml_spans import Span, key_spans
from dither.registry.files.limits import read_text, unreadable

from ..arrays import Boundary
from ..plans import Diagram, Doors, sort_doors
from ..vocabulary import OUTSIDE, RELATIONS, ROOM_IDS, parse_area
from .entries import ReadOptions
from .housegan import read_housegan
from .jsonl import find_file

NEAR = "near"
APART = "apart"

_KEYS = ("name", "rooms", "relations", "doors", "areas", "outline")

_MOST = 40
"""Most rooms."""

_Path = tuple[str | int, ...]


@dataclass(frozen=True)
class RoomProgram:
    """A bubble diagram of which some relations are known.

    Attributes:
        types: Type of each room.
        names: Name of each room.
        relations: (i, j, relation of room i to room j).
        near: Pairs of rooms that are near each other, in any relation.
        apart: Pairs of rooms that are not near each other.
        doors: Rooms i < j that a door joins, and (i, None) for a front door; None if any.
        areas: Bounds in square metres, by room.
        boundary: Outline and front door; see `geometry.boundary`.
        name: Name of the diagram.
    """

    types: tuple[int, ...]
    names: tuple[str, ...]
    relations: tuple[tuple[int, int, int], ...] = ()
    near: tuple[tuple[int, int], ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    doors: Doors | None = None
    areas: Mapping[int, tuple[float, float]] | None = None
    boundary: Boundary | None = None
    name: str = ""


def program_of(diagram: Diagram) -> RoomProgram:
    """Return a diagram, in which all relations are known, as a room program."""
    rooms = len(diagram.types)
    related = {(i, j) for i, j, _ in diagram.edges}
    everything = combinations(range(rooms), 2)
    areas = None
    if diagram.areas is not None:
        areas = dict(enumerate(diagram.areas))
    return RoomProgram(
        types=diagram.types,
        names=tuple(str(room) for room in range(rooms)),
        relations=diagram.edges,
        apart=tuple(pair for pair in everything if pair not in related),
        doors=diagram.doors,
        areas=areas,
        name=diagram.name,
    )


def read_program(path: Path) -> RoomProgram:
    """Read a file.

    Raises:
        Refused: The file cannot be read, or with every mistake in it, each with its line.
    """
    find_file(path)
    try:
        text = read_text(path).removeprefix("\ufeff")
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:
        message = f"{path}: not a text in UTF-8 ({error})"
        raise Refused(message, code="unreadable-file") from None
    if path.suffix.lower() == ".toml":
        table, spans = _parse_toml(path, text)
    else:
        table, spans = _parse_json(path, text)
    if "room_type" in table:
        return _from_housegan(path)
    reader = _Reader(path, text, spans)
    program = reader.read(table)
    if reader.problems:
        raise Refused(reader.problems)
    return program


def _parse_toml(path: Path, text: str) -> tuple[dict[str, Any], dict[_Path, Span]]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, _, place = str(error).partition(" (at line ")
        line = place.partition(",")[0]
        number = int(line) if line.isdecimal() else len(text.splitlines())
        raise _syntax_error(path, message, number) from None
    except (RecursionError, ValueError) as error:
        raise _syntax_error(path, str(error), 1) from None
    return table, dict(key_spans(text))


def _parse_json(path: Path, text: str) -> tuple[dict[str, Any], dict[_Path, Span]]:
    spans: dict[_Path, Span] = {}
    try:
        table = json.loads(text)
        # The parser reports no places, which messages on the values need.
        _walk_json(text, _after_space(text, 0), (), None, spans)
    except JSONDecodeError as error:
        raise _syntax_error(path, error.msg, error.lineno) from None
    # Also of numbers with thousands of digits
    except (RecursionError, ValueError) as error:
        raise _syntax_error(path, str(error), 1) from None
    if not isinstance(table, dict):
        raise _syntax_error(path, "expected an object", 1)
    return table, spans


def _syntax_error(path: Path, message: str, line: int) -> Refused:
    return Refused(message, origin=Origin(str(path), line), code="syntax-error")


def _after_space(text: str, at: int) -> int:
    # The text was parsed before, so commas and colons need no check.
    while at < len(text) and text[at] in " \t\r\n,:":
        at += 1
    return at


def _walk_json(
    text: str,
    at: int,
    path: _Path,
    key: tuple[int, int] | None,
    spans: dict[_Path, Span],
) -> int:
    """Add the spans of a value and those inside it; return where it ends. The text is valid JSON.

    Raises:
        JSONDecodeError: A key is repeated, of which the parser ignores the first value.
    """
    if path in spans:
        raise JSONDecodeError(f'repeated key "{path[-1]}"', text, at)
    start = at
    if text[at] in "{[":
        is_table = text[at] == "{"
        at = _after_space(text, at + 1)
        number = 0
        while text[at] not in "}]":
            name: str | int = number
            inner = None
            if is_table:
                first = at
                name, at = scanstring(text, at + 1, True)
                inner = (first, at)
                at = _after_space(text, at)
            at = _after_space(text, _walk_json(text, at, (*path, name), inner, spans))
            number += 1
        at += 1
    else:
        _, at = json.JSONDecoder().raw_decode(text, at)
    # Items of a list have no key.
    spans[path] = Span(key or (start, at), (start, at))
    return at


def _from_housegan(path: Path) -> RoomProgram:
    (entry,) = read_housegan(path, ReadOptions(_MOST))
    diagram = entry.required()
    return RoomProgram(
        types=diagram.types,
        names=tuple(str(room) for room in range(len(diagram.types))),
        doors=diagram.doors,
        name=diagram.name,
    )


class _Reader:
    """Reads a table and collects its problems."""

    def __init__(self, path: Path, text: str, spans: Mapping[_Path, Span]) -> None:
        self.path = path
        self.text = text
        self.spans = spans
        self.problems: list[Problem] = []
        self.rooms: dict[str, int] = {}

    def report(
        self, path: _Path, message: str, code: str, hint: str | None = None
    ) -> None:
        """Add a problem at a key or value, or at the nearest outer one."""
        place = path
        # A missing key has no span: that of the table around it is shown.
        while place and place not in self.spans:
            place = place[:-1]
        origin = Origin(str(self.path), 1)
        if place:
            span = self.spans[place]
            start, end = span.key if code == "unknown-key" else span.value
            origin = Origin.within(str(self.path), self.text, start, end)
        self.problems.append(
            Problem(message, path, origin=origin, help=hint, code=code)
        )

    def read(self, table: Mapping[str, Any]) -> RoomProgram:
        for key in table:
            if key not in _KEYS:
                self.report(
                    (key,),
                    f'unknown key "{key}"',
                    "unknown-key",
                    did_you_mean(key, _KEYS),
                )
        types = tuple(self.read_rooms(table.get("rooms")))
        relations: list[tuple[int, int, int]] = []
        near: list[tuple[int, int]] = []
        apart: list[tuple[int, int]] = []
        for i, relation, j in self.read_relations(table.get("relations", [])):
            if relation == NEAR:
                near.append((min(i, j), max(i, j)))
            elif relation == APART:
                apart.append((min(i, j), max(i, j)))
            else:
                relations.append((i, j, RELATIONS.index(relation)))
        doors = None
        if "doors" in table:
            doors = sort_doors(self.read_doors(table["doors"]))
        name = table.get("name", self.path.stem)
        if not isinstance(name, str):
            self.report(("name",), "expected a text", "wrong-type")
        return RoomProgram(
            types=types,
            names=tuple(self.rooms),
            relations=tuple(relations),
            near=tuple(near),
            apart=tuple(apart),
            doors=doors,
            areas=dict(self.read_areas(table.get("areas", {}))),
            boundary=self.read_outline(table.get("outline")),
            name=str(name),
        )

    def read_rooms(self, rooms: object) -> Iterator[int]:
        """Yield the types of the rooms, and number their names."""
        if isinstance(rooms, list):
            rooms = {str(number): kind for number, kind in enumerate(rooms)}
            at = [("rooms", number) for number in range(len(rooms))]
        elif isinstance(rooms, dict):
            at = [("rooms", name) for name in rooms]
        else:
            code = "missing-key" if rooms is None else "wrong-type"
            self.report(("rooms",), 'expected rooms = { NAME = "TYPE", ... }', code)
            return
        if not 2 <= len(rooms) <= _MOST:
            self.report(
                ("rooms",), f"{len(rooms)} rooms, expected 2 to {_MOST}", "out-of-range"
            )
        for (name, kind), path in zip(rooms.items(), at, strict=True):
            self.rooms[name] = len(self.rooms)
            if name == OUTSIDE:
                message = f'"{OUTSIDE}" is the other side of a front door, not a room'
                self.report(path, message, "invalid-value")
            if isinstance(kind, str) and kind in ROOM_IDS:
                yield ROOM_IDS[kind]
            else:
                self.report(
                    path,
                    f"unknown type {kind!r}",
                    "unknown-value",
                    did_you_mean(kind, ROOM_IDS),
                )

    def room(self, path: _Path, name: object) -> int | None:
        """Return the number of a room; None, and a problem, if there is none of this name."""
        # Rooms of a list are named by their numbers.
        number = None
        if isinstance(name, str | int):
            number = self.rooms.get(str(name))

        if number is None:
            self.report(
                path,
                f"unknown room {name!r}",
                "unknown-value",
                did_you_mean(name, self.rooms),
            )
        return number

    def read_relations(self, rows: object) -> Iterator[tuple[int, str, int]]:
        known = (*RELATIONS, NEAR, APART)
        # A pair is the same in either order.
        seen: set[frozenset[int]] = set()
        for path, row in self.rows("relations", rows):
            if not (isinstance(row, list) and len(row) == 3):
                self.report(path, 'expected [ROOM, "RELATION", ROOM]', "wrong-type")
                continue
            i = self.room((*path, 0), row[0])
            j = self.room((*path, 2), row[2])
            relation = row[1]
            if relation not in known:
                message = f"unknown relation {relation!r}"
                hint = did_you_mean(relation, known)
                self.report((*path, 1), message, "unknown-value", hint)
                continue
            if i is None or j is None:
                continue
            pair = frozenset((i, j))
            if len(pair) == 1:
                self.report(path, "a room has no relation to itself", "invalid-value")
            elif pair in seen:
                self.report(path, "a second relation of these rooms", "contradiction")
            else:
                seen.add(pair)
                yield i, str(relation), j

    def read_doors(self, rows: object) -> Iterator[tuple[int, int | None]]:
        for path, row in self.rows("doors", rows):
            if not (isinstance(row, list) and len(row) == 2):
                self.report(
                    path, f'expected [ROOM, ROOM] or [ROOM, "{OUTSIDE}"]', "wrong-type"
                )
                continue
            i = self.room((*path, 0), row[0])
            if row[1] == OUTSIDE:
                if i is not None:
                    yield i, None
                continue
            j = self.room((*path, 1), row[1])
            if i is None or j is None:
                continue
            if i == j:
                self.report(path, "a door joins two rooms", "invalid-value")
                continue
            yield min(i, j), max(i, j)

    def read_areas(self, areas: object) -> Iterator[tuple[int, tuple[float, float]]]:
        if not isinstance(areas, dict):
            self.report(
                ("areas",), 'expected areas = { ROOM = "8 to 10 m2" }', "wrong-type"
            )
            return
        for name, text in areas.items():
            room = self.room(("areas", name), name)
            bounds = parse_area(text)
            if bounds is None:
                message = f'invalid area {text!r}, expected "8 to 10 m2", "at least 8 m2" or "at most 10 m2"'
                self.report(("areas", name), message, "invalid-value")
            elif room is not None:
                yield room, bounds

    def rows(self, key: str, rows: object) -> Iterator[tuple[_Path, Any]]:
        if isinstance(rows, list):
            for number, row in enumerate(rows):
                yield (key, number), row
        else:
            self.report((key,), "expected a list", "wrong-type")

    def read_outline(self, outline: object) -> Boundary | None:
        """Read the outline: a file, or corners in metres."""
        from ..geometry.boundary import read_boundary

        if outline is None:
            return None
        try:
            if isinstance(outline, str):
                # Relative to this file, not to the working directory.
                return read_boundary(self.path.parent / outline)
            if isinstance(outline, dict):
                # default: TOML has dates, which the check of the outline rejects.
                return read_boundary(self.path, json.dumps(outline, default=str))
        except Refused as refused:
            for problem in refused.problems:
                self.report(("outline",), problem.message, problem.code, problem.help)
            return None
        expected = 'expected a file, or { outline = [[x, y], ...], unit = "m" }'
        self.report(("outline",), expected, "wrong-type")
        return None
