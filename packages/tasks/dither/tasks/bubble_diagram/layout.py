"""Variants of a floor plan for a bubble diagram, without a model.

Rectangles are dissected at random into rooms of the wanted areas; those that show most relations
and doors are the starts of a search for boxes that show all of them. The boxes are then laid out as
samples of a model are.
Letters: R rooms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dither.registry.config.arguments import require_integers
from dither.registry.config.errors import Refused

from .arrays import Boundary, Boxes
from .decoded_samples import DecodedSample
from .export import laid_out, write_diagrams
from .formats.room_program import APART, RoomProgram, program_of, read_program
from .formats.room_program import NEAR as NEAR_BY
from .geometry.compactness import compactness
from .geometry.floor_plan import room_areas
from .geometry.outline_fit import place_in_outline
from .geometry.outline_rectangles import rectangles_within
from .geometry.placement import (
    Placement,
    area_problems,
    dwelling_problems,
    place_diagram,
)
from .geometry.realisability import Realisation, realise
from .geometry.wall_program import PREFERRED_SIDES
from .plans import Diagram, sort_doors
from .plots.pictures import sample_drawings
from .relations import NEAR, edges_of, exclusive, sides_of
from .vocabulary import (
    ABOVE,
    AREAS,
    BELOW,
    GRID,
    LEFT,
    LIVING,
    METRES,
    NO_EDGE,
    RELATIONS,
    RIGHT,
    Export,
    pair_index,
    pairs,
)

STARTS = 1000
"""Random dissections, of which the best ones are starts."""

TRIES = 12
"""Starts for each plan."""

_SEARCH = 60
"""Linear programs of the search from a start."""

_SECONDS = 60.0

_WALL = 2
"""Half the thickness of a wall in pixels."""

_SHARED = 15
"""Pixels of wall that rooms with a door share."""

_FILL = 0.75
"""Largest share of an outline or the canvas that the preferred areas take."""


def layout(
    diagram: RoomProgram | Diagram | Path | str,
    n: int = 1,
    seed: int = 0,
    seconds: float = _SECONDS,
) -> list[Placement]:
    """Return up to `n` different plans that show a bubble diagram, those with fewest problems first.

    Args:
        diagram: What is known of it: a room program, a diagram with all of its relations, or the path
            of a file (`formats.room_program`).
        n: Number of plans, at least 1.
        seed: Seed of the dissections, at least 0.
        seconds: Time after which no further plan is tried; the best ones so far are returned.

    Raises:
        Refused: The file or a number is invalid, no boxes show the relations (`contradiction`), or
            none were found (`no-samples`).
    """
    require_integers(n=(n, 1), seed=(seed, 0))
    if isinstance(diagram, Path | str):
        diagram = read_program(Path(diagram))
    elif isinstance(diagram, Diagram):
        diagram = program_of(diagram)
    # Tokens hold the relation of room i to j for i < j only.
    order = _order(diagram)
    program = _reordered(diagram, order)
    end = monotonic() + seconds
    plans: dict[bytes, Placement] = {}
    for start in _starts(program, n * TRIES, seed):
        found = _boxes_near(program, start)
        if found.verdict == "impossible":
            raise _contradiction(program, start)
        if found.boxes is not None:
            placement = _placed(program, found.boxes)
            # Different starts may lead to the same plan.
            plans.setdefault(placement.boxes.tobytes(), placement)
        good = sum(not plan_problems(plan) for plan in plans.values())
        # Checked after a start, so that one is tried in any time.
        if good >= n or monotonic() > end:
            break
    if not plans:
        message = f"{program.name}: no boxes with these relations were found"
        hint = "leave some relations open, or enlarge the outline"
        raise Refused(message, help=hint, code="no-samples")

    def rank(plan: Placement) -> tuple[int, float]:
        fill, corners = compactness(plan.diagram.types, plan.boxes)
        return len(plan_problems(plan)), corners / 40 - fill

    best = sorted(plans.values(), key=rank)[:n]
    return [_restored(plan, diagram, order) for plan in best]


def plan_problems(placement: Placement) -> list[str]:
    """Return what a plan lacks: required areas or outline, or to be a dwelling."""
    return [*placement.unmet, *area_problems(placement), *dwelling_problems(placement)]


def write_plans(
    plans: Sequence[Placement],
    folder: Path,
    formats: Sequence[Export],
    *,
    pictures: bool,
) -> Iterator[str]:
    """Write plans as JSON lines, in further formats, and as pictures; yield a line on each."""
    samples = []
    for number, plan in enumerate(plans):
        problems = tuple(plan_problems(plan))
        level = 5 if problems else 6
        samples.append(
            DecodedSample(
                number=number,
                level=level,
                unknown=False,
                placement=plan,
                errors=problems,
            )
        )
        areas = room_areas(plan.diagram.types, plan.boxes) * METRES**2
        fill, _ = compactness(plan.diagram.types, plan.boxes)
        verdict = "; ".join(problems) or "a dwelling"
        yield f"plan {number}: {areas.sum():.0f} m2, fills {fill:.0%}: {verdict}"
    diagrams = {number: laid_out(plan) for number, plan in enumerate(plans)}
    forms: list[Export] = ["jsonl", *formats]
    paths = []
    for form in dict.fromkeys(forms):
        paths += write_diagrams(diagrams, folder, form)
    if pictures:
        for picture in sample_drawings(samples, len(samples)):
            paths += picture.write(folder)
    noun = "file" if len(paths) == 1 else "files"
    yield f"{len(paths)} {noun} in {folder}"


def _order(program: RoomProgram) -> list[int]:
    """Return the rooms so that the first one of each relation comes first."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(program.types)))
    graph.add_edges_from((i, j) for i, j, _ in program.relations)
    try:
        return list(networkx.lexicographical_topological_sort(graph))
    except networkx.NetworkXUnfeasible:
        rooms = [program.names[i] for i, _ in networkx.find_cycle(graph)]
        path = " to ".join([*rooms, rooms[0]])
        message = (
            f"{program.name}: the relations lead from a room back to itself: {path}"
        )
        hint = "state a relation of these rooms the other way round"
        raise Refused(message, help=hint, code="contradiction") from None


def _reordered(program: RoomProgram, order: Sequence[int]) -> RoomProgram:
    place = {room: number for number, room in enumerate(order)}

    def pair(i: int, j: int) -> tuple[int, int]:
        first, second = sorted((place[i], place[j]))
        return first, second

    doors = None
    if program.doors is not None:
        doors = sort_doors(
            (place[i], None) if j is None else pair(i, j) for i, j in program.doors
        )
    areas = None
    if program.areas is not None:
        areas = {place[room]: bounds for room, bounds in program.areas.items()}
    return replace(
        program,
        types=tuple(program.types[room] for room in order),
        names=tuple(program.names[room] for room in order),
        relations=tuple((place[i], place[j], r) for i, j, r in program.relations),
        near=tuple(pair(i, j) for i, j in program.near),
        apart=tuple(pair(i, j) for i, j in program.apart),
        doors=doors,
        areas=areas,
    )


def _restored(
    placement: Placement, program: RoomProgram, order: Sequence[int]
) -> Placement:
    """Return a plan with its rooms in the order of the program."""
    rooms = np.argsort(order)
    boxes = placement.boxes[rooms]
    diagram = Diagram.from_boxes(program.types, boxes, program.name)
    areas = placement.diagram.areas
    diagram = replace(
        diagram,
        boxes=None,
        doors=program.doors,
        areas=areas and tuple(areas[room] for room in rooms.tolist()),
    )
    shown = Placement.of(diagram, boxes)
    # `of` moves boxes to the origin, but here they stay where they are in the outline.
    return replace(
        shown,
        outline=placement.outline,
        front_door=placement.front_door,
        unmet=placement.unmet,
        boxes=boxes,
    )


def _near_pairs(program: RoomProgram) -> set[tuple[int, int]]:
    """Return pairs of rooms that are near each other in any relation, such as those with a door."""
    labelled = {(i, j) for i, j, _ in program.relations}
    doors = {(i, j) for i, j in program.doors or () if j is not None}
    return ({*program.near} | doors) - labelled


def _boxes_near(program: RoomProgram, start: Boxes) -> Realisation:
    """Search for boxes near a start that show a program."""
    types = program.types
    rooms = len(types)
    edges = np.full(len(pairs(rooms)), NO_EDGE, np.int8)
    for i, j, relation in program.relations:
        edges[pair_index(i, j, rooms)] = relation
    apart = np.zeros(len(edges), bool)
    for i, j in program.apart:
        apart[pair_index(i, j, rooms)] = True
    near = _near_pairs(program)
    unlabelled = []
    for number, (i, j) in enumerate(pairs(rooms)):
        # The living room may be an L around rooms of which nothing is said.
        free = edges[number] == NO_EDGE and not apart[number]
        is_near = (i, j) in near
        if is_near or (free and LIVING not in (types[i], types[j])):
            unlabelled.append((i, j, is_near))
    rectangles = None
    if program.boundary is not None:
        rectangles = rectangles_within(program.boundary)
    return realise(
        edges,
        rooms,
        apart=apart,
        disjoint=exclusive(types),
        limit=_SEARCH,
        rectangles=rectangles,
        near=start,
        unlabelled=unlabelled,
    )


def _contradiction(program: RoomProgram, start: Boxes) -> Refused:
    """Return a refusal that names statements which contradict each other; none could be left out."""
    core = program

    def leave_out(without: RoomProgram) -> None:
        nonlocal core
        if _boxes_near(without, start).verdict == "impossible":
            core = without

    leave_out(replace(core, boundary=None))
    for kind in ("relations", "near", "apart", "doors"):
        for statement in vars(program)[kind] or ():
            stated = vars(core)[kind]
            rest = tuple(other for other in stated if other != statement)
            changed: dict[str, Any] = {kind: rest}
            leave_out(replace(core, **changed))

    names = core.names
    parts = [f"{names[i]} {RELATIONS[r]} {names[j]}" for i, j, r in core.relations]
    parts += [f"{names[i]} {NEAR_BY} {names[j]}" for i, j in core.near]
    parts += [f"{names[i]} {APART} {names[j]}" for i, j in core.apart]
    for i, j in core.doors or ():
        if j is not None:
            parts.append(f"a door between {names[i]} and {names[j]}")
    if core.boundary is not None:
        parts.append(f"an outline for {len(names)} rooms")
    message = f"{program.name}: these contradict each other: {', '.join(parts)}"
    return Refused(
        message,
        help="rooms with a relation are also close to each other; change one of these",
        code="contradiction",
    )


def _placed(program: RoomProgram, boxes: Boxes) -> Placement:
    """Lay out a program with the relations that boxes show."""
    areas = None
    if program.areas:
        anything = (AREAS[0], AREAS[-1])
        areas = tuple(
            program.areas.get(room, anything) for room in range(len(program.types))
        )
    shown = Diagram.from_boxes(program.types, boxes)
    diagram = replace(shown, boxes=None, doors=program.doors, areas=areas)
    placement = place_diagram(diagram, boxes, search=False)
    if program.boundary is None:
        return placement
    return place_in_outline(placement, program.boundary)


def _starts(program: RoomProgram, count: int, seed: int) -> Iterator[Boxes]:
    """Yield the dissections that show most of a program, of `STARTS` random ones."""
    random = np.random.default_rng(seed)
    usual: Float[ndarray, " R"] = PREFERRED_SIDES[[*program.types]] ** 2
    for room, (least, most) in (program.areas or {}).items():
        # Without a lower bound it is 0, and the mean would be, too.
        smallest = max(least, AREAS[0])
        usual[room] = np.sqrt(smallest * most) / METRES**2
    low = np.zeros(2)
    extent = np.full(2, float(GRID))
    if program.boundary is not None:
        rectangles = rectangles_within(program.boundary)
        low = rectangles[:, :2].min(0).astype(float)
        extent = rectangles[:, 2:].max(0) - low
    else:
        # Without an outline the rooms must fit on the canvas, with space to move.
        usual = usual * min(1.0, _FILL * GRID**2 / usual.sum())
    ranks = _ranks(program)
    starts = []
    for _ in range(STARTS):
        size = extent
        corner = low
        if program.boundary is None:
            # Uniform in the logarithm: wide and tall rectangles are equally likely.
            aspect = np.exp(random.uniform(-0.4, 0.4))
            ratios = np.array([aspect, 1 / aspect])
            size = np.sqrt(float(usual.sum()) * ratios)
            size = size.clip(max=GRID)
            corner = (GRID - size) / 2
        boxes = np.zeros((len(usual), 4))
        everything = np.arange(len(usual))
        _dissect(
            boxes,
            everything,
            corner,
            size,
            usual,
            ranks,
            random,
        )
        starts.append(np.rint(boxes).astype(np.int64))
    misses = [_misses(program, boxes) for boxes in starts]
    # Stable, so that equal starts keep the order of their draws.
    for number in np.argsort(misses, kind="stable")[:count].tolist():
        yield starts[number]


def _ranks(program: RoomProgram) -> Float[ndarray, "2 R"]:
    """Return how many rooms come before each one along x and along y, by the relations."""
    rooms = len(program.types)
    ranks = np.zeros((2, rooms))
    for axis, before, after in ((0, LEFT, RIGHT), (1, ABOVE, BELOW)):
        of_axis = ranks[axis]
        orders = []
        for i, j, relation in program.relations:
            if relation in before:
                orders.append((i, j))
            elif relation in after:
                orders.append((j, i))

        # The longest path has fewer steps than there are rooms.
        for _ in range(rooms):
            for first, second in orders:
                of_axis[second] = max(of_axis[second], of_axis[first] + 1)
    return ranks


def _dissect(
    boxes: Float[ndarray, "R 4"],
    rooms: Int[ndarray, " n"],
    corner: Float[ndarray, " 2"],
    size: Float[ndarray, " 2"],
    areas: Float[ndarray, " R"],
    ranks: Float[ndarray, "2 R"],
    random: np.random.Generator,
) -> None:
    """Fill the boxes of rooms: cut a rectangle into two by their areas, and both again."""
    if len(rooms) == 1:
        low = corner + _WALL
        high = corner + size - _WALL
        boxes[rooms[0]] = [*low, *high]
        return
    # Mostly across the longer side, which makes fewer slim rooms.
    axis = int(size[1] * random.uniform(0.7, 1.4) > size[0])
    noise = random.normal(0, 0.8, len(rooms))
    ordered = rooms[np.argsort(ranks[axis, rooms] + noise)]
    cut = int(random.integers(1, len(rooms)))
    share = areas[ordered[:cut]].sum() / areas[ordered].sum()
    first = size.copy()
    first[axis] = share * size[axis]
    second = size - first
    second[1 - axis] = size[1 - axis]
    behind = corner.copy()
    behind[axis] += first[axis]
    _dissect(
        boxes,
        ordered[:cut],
        corner,
        first,
        areas,
        ranks,
        random,
    )
    _dissect(
        boxes,
        ordered[cut:],
        behind,
        second,
        areas,
        ranks,
        random,
    )


def _misses(program: RoomProgram, boxes: Boxes) -> float:
    """Return how many relations and doors boxes do not show, and a little for slim rooms."""
    rooms = len(boxes)
    edges = edges_of(boxes)

    def shown(i: int, j: int) -> int:
        return int(edges[pair_index(i, j, rooms)])

    held = [shown(i, j) == relation for i, j, relation in program.relations]
    held += [shown(i, j) == NO_EDGE for i, j in program.apart]
    held += [shown(i, j) != NO_EDGE for i, j in program.near]
    for room, other in program.doors or ():
        if other is not None:
            held.append(_share_a_wall(boxes[room], boxes[other]))
        elif program.boundary is not None:
            held.append(_is_at_front_door(boxes[room], program.boundary))

    sides = np.maximum(sides_of(boxes), 1)
    slim = sides.max(1) > 3 * sides.min(1)
    return held.count(False) + 0.1 * int(slim.sum())


def _is_at_front_door(box: Int[ndarray, " 4"], boundary: Boundary) -> bool:
    """Return whether a box is near the front door of an outline, if that has one."""
    if boundary[0, 0] < 0:
        return True
    front = boundary[:2].mean(0)
    low = box[:2]
    high = box[2:]
    distance = np.maximum(low - front, front - high).max()
    return bool(distance <= NEAR)


def _share_a_wall(box: Int[ndarray, " 4"], other: Int[ndarray, " 4"]) -> bool:
    """Return whether two rooms are side by side, with room for a door between them."""
    low = np.maximum(box[:2], other[:2])
    high = np.minimum(box[2:], other[2:])
    shared = high - low
    # They share nothing along one axis, and a wall along the other one.
    return bool(shared.min() >= -NEAR and shared.max() >= _SHARED)
