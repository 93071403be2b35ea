"""Diagrams for other programs: networkx, GraphML, DOT, the JSON of HouseGAN++, and our own lines of JSON.

Letters: N samples, L tokens, R rooms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from jaxtyping import Int

from dither.registry.files.atomic import atomic_write

from .decoded_samples import decode_samples
from .formats.housegan import DOOR, TO_HOUSEGAN
from .formats.jsonl import plan_line
from .geometry.layout import place_rooms
from .plans import Box, Diagram
from .relations import GRID
from .vocabulary import COLOURS, RELATIONS, ROOMS

if TYPE_CHECKING:
    import networkx

__all__ = [
    "EXPORTS",
    "Export",
    "from_networkx",
    "housegan_plan",
    "to_dot",
    "to_graphml",
    "to_networkx",
    "write_diagrams",
    "write_samples",
]

Export = Literal["jsonl", "housegan", "networkx", "graphml", "dot"]
"""Forms that diagrams can be written in."""

_WALLS: Final = ("x0", "y0", "x1", "y1")


def to_networkx(diagram: Diagram) -> networkx.DiGraph:
    """Return a graph: nodes 0, 1, ... with `type` and, where known, x0, y0, x1, y1; edges i -> j with `relation`.

    An edge says how its first room lies to its second. All values are plain: any writer takes them.
    """
    import networkx

    graph = networkx.DiGraph(**({"name": diagram.name} if diagram.name else {}))
    for room, kind in enumerate(diagram.types):
        box = dict(zip(_WALLS, map(int, diagram.boxes[room]), strict=True)) if diagram.boxes is not None else {}
        graph.add_node(room, type=ROOMS[kind], **box)
    for i, j, relation in diagram.edges:
        graph.add_edge(i, j, relation=RELATIONS[relation])
    return graph


def from_networkx(graph: networkx.DiGraph) -> Diagram:
    """Return the diagram of a graph as `to_networkx` makes it; nodes may have other names, their order counts.

    Raises:
        ValueError: A type or a relation that does not exist, or an edge from a later to an earlier room.
    """
    number = {node: room for room, node in enumerate(graph.nodes)}
    types = tuple(ROOMS.index(said["type"]) for _, said in graph.nodes(data=True))
    edges = sorted((number[u], number[v], RELATIONS.index(r)) for u, v, r in graph.edges(data="relation"))
    placed = bool(types) and all(wall in said for _, said in graph.nodes(data=True) for wall in _WALLS)
    boxes = None
    if placed:
        boxes = tuple(
            (int(said["x0"]), int(said["y0"]), int(said["x1"]), int(said["y1"])) for _, said in graph.nodes(data=True)
        )
    return Diagram(types, tuple(edges), boxes, str(graph.graph.get("name", "")))


def _node_link(diagram: Diagram) -> str:
    """A diagram as networkx keeps graphs in JSON: `networkx.node_link_graph(json.load(file))` reads it."""
    import networkx

    return json.dumps(networkx.node_link_data(to_networkx(diagram), edges="edges"), ensure_ascii=False) + "\n"


def to_graphml(diagram: Diagram) -> str:
    """Return a diagram as GraphML, which Gephi, yEd, Cytoscape and networkx read."""
    import networkx

    graph = to_networkx(diagram)
    if "name" in graph.graph:
        graph.graph["name"] = _printable(graph.graph["name"])
    return "\n".join(networkx.generate_graphml(graph, named_key_ids=True)) + "\n"


def to_dot(diagram: Diagram) -> str:
    """Return a diagram in the language of Graphviz; rooms with places keep them (`neato -n`)."""
    lines = [f"digraph {_quoted(diagram.name)} {{", "  node [style=filled, shape=ellipse];"]
    for room, kind in enumerate(diagram.types):
        said = {"label": ROOMS[kind], "fillcolor": COLOURS[kind]}
        if diagram.boxes is not None:
            x0, y0, x1, y1 = diagram.boxes[room]
            said["pos"] = f"{(x0 + x1) / 2:g},{-(y0 + y1) / 2:g}!"  # y grows upwards there
        lines.append(f"  {room} [{', '.join(f'{key}={_quoted(value)}' for key, value in said.items())}];")
    lines += [f"  {i} -> {j} [label={_quoted(RELATIONS[relation])}];" for i, j, relation in diagram.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "") + '"'


def _printable(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _housegan(diagram: Diagram) -> str:
    return json.dumps(housegan_plan(diagram)) + "\n"


EXPORTS: Final[dict[str, tuple[str, Callable[[Diagram], str]]]] = {
    "jsonl": (".jsonl", lambda diagram: plan_line(diagram) + "\n"),
    "housegan": (".json", _housegan),
    "networkx": (".json", _node_link),
    "graphml": (".graphml", to_graphml),
    "dot": (".dot", to_dot),
}
"""For each form the ending of its files, and the text of one diagram; lines of JSON share one file."""


def write_diagrams(
    diagrams: Iterable[Diagram], folder: Path, form: Export, numbers: Iterable[int] | None = None
) -> list[Path]:
    """Write diagrams into a folder, each file whole or not at all: `plans.jsonl`, or one file each, by number.

    HouseGAN++ wants the list of its files as well: `list.txt`, one name a line.

    Args:
        diagrams: What is written.
        folder: Where to.
        form: In which form.
        numbers: Of the diagrams; by default from 0.

    Returns:
        The files with diagrams, in order.
    """
    ending, text = EXPORTS[form]
    if form == "jsonl":
        files = [(folder / f"plans{ending}", "".join(map(text, diagrams)))]
    else:
        named = zip(count() if numbers is None else numbers, diagrams, strict=False)
        files = [(folder / f"{number}{ending}", text(diagram)) for number, diagram in named]
    listed = [(folder / "list.txt", "".join(f"{file.name}\n" for file, _ in files))] if form == "housegan" else []
    for file, content in [*files, *listed]:
        with atomic_write(file) as beside:
            beside.write_text(content, encoding="utf-8")
    return [file for file, _ in files]


def write_samples(
    samples: Int[np.ndarray, "N L"], rooms: int, folder: Path, form: Export
) -> tuple[list[Path], list[str]]:
    """Write samples of a model, rooms at boxes that prove the diagram wherever there are any (`arrange`).

    Where there are none, samples have no boxes; only HouseGAN++'s layout cannot do without, see `housegan_plan`.

    Args:
        samples: Tokens.
        rooms: Room slots.
        folder: Where to; a file is named by the number of its sample.
        form: In which form.

    Returns:
        The files, and what to tell a person: samples that are no diagrams, and how many have no boxes.
    """
    diagrams: dict[int, Diagram] = {}
    told, bare = [], 0
    for shown in decode_samples(samples, rooms):
        if shown.arrangement is None:
            told.append(f"sample {shown.number} is left out: {'; '.join(shown.wrong)}")
            continue
        found, proved = shown.arrangement.diagram, shown.arrangement.exact
        walls = _centred(shown.arrangement.boxes) if proved else None
        diagrams[shown.number] = Diagram(found.types, found.edges, walls, f"sample {shown.number}")
        bare += not proved
    if bare:
        what = "the boxes written break some relations" if form == "housegan" else "they are written without boxes"
        told.append(f"{bare:,} of {len(diagrams):,} samples have no boxes that show all of them; {what}")
    return write_diagrams(diagrams.values(), folder, form, diagrams), told


def _centred(boxes: Int[np.ndarray, "R 4"]) -> tuple[Box, ...]:
    """Boxes in the middle of the grid, by whole pixels, so that all relations stay."""
    moved = boxes + np.tile((GRID - boxes[:, 2:].max(0) - boxes[:, :2].min(0)) // 2, 2)
    return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in moved.tolist())


_WIDE, _THICK = 12, 2
"""Sides of a door in pixels."""

_Wall = tuple[int, int, int, int]

_SIDES: Final = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Where the four sides of a box lie, in the order in which its walls are written."""


def housegan_plan(diagram: Diagram) -> dict[str, Any]:
    """Return the plan as a table for JSON.

    Rooms without places are given some (`place_rooms`), in which not every relation need hold: give a diagram with
    boxes where that matters.
    """
    boxes = diagram.boxes or _placed(diagram)
    kinds = [TO_HOUSEGAN[ROOMS[kind]] for kind in diagram.types]
    doors = [(i, j, _door(boxes[i], boxes[j])) for i, j, _ in diagram.edges]
    edges: list[list[int]] = []
    ends: list[list[int]] = []
    for room, box in enumerate(boxes):
        beside = [j if i == room else i for i, j, _ in diagram.edges if room in (i, j)]
        for wall, other in _walls(box, [(other, boxes[other]) for other in beside]):
            edges.append([*wall, kinds[room], kinds[other] if other is not None else 0])
            ends.append([room] if other is None else [room, other])
    for node, (i, j, box) in enumerate(doors, len(boxes)):
        for side, beyond in zip(_wall_edges(box), (i, None, j, None), strict=True):
            edges.append([*side, DOOR, 0 if beyond is None else kinds[beyond]])
            ends.append([node] if beyond is None else [node, beyond])
    every = [*boxes, *(box for _, _, box in doors)]
    return {
        "room_type": kinds + [DOOR] * len(doors),
        "boxes": [[x0, y0, x1 - 1, y1 - 1] for x0, y0, x1, y1 in every],
        "edges": edges,
        "ed_rm": ends,
    }


def _placed(diagram: Diagram) -> tuple[Box, ...]:
    """Boxes of rooms that have none, in the middle of the grid, made smaller if they do not fit."""
    walls = place_rooms(diagram).astype(float)
    walls *= min(1.0, GRID / walls.max())
    whole = np.rint(walls + np.tile((GRID - walls[:, 2:].max(0)) / 2, 2)).astype(int)
    whole[:, 2:] = np.maximum(whole[:, 2:], whole[:, :2] + 1)
    return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in np.clip(whole, 0, GRID).tolist())


def _wall_edges(box: Box) -> tuple[_Wall, ...]:
    """The four walls of a box, each from where the one before ends; on the last pixel, as this layout has it."""
    x0, y0, x1, y1 = box[0], box[1], box[2] - 1, box[3] - 1
    return (x0, y0, x0, y1), (x0, y1, x1, y1), (x1, y1, x1, y0), (x1, y0, x0, y0)


def _walls(box: Box, beside: Sequence[tuple[int, Box]]) -> list[tuple[_Wall, int | None]]:
    """The walls of a room, cut so that there is one for each room beside it; and which room that is."""
    at: list[list[int]] = [[], [], [], []]
    for other, place in beside:
        way = [place[0] + place[2] - box[0] - box[2], place[1] + place[3] - box[1] - box[3]]
        at[max(range(4), key=lambda side: _SIDES[side][0] * way[0] + _SIDES[side][1] * way[1])].append(other)
    walls: list[tuple[_Wall, int | None]] = []
    for side, others in zip(_wall_edges(box), at, strict=True):
        x0, y0, x1, y1 = side
        parts = max(len(others), 1)
        corners = [(x0 + (x1 - x0) * k // parts, y0 + (y1 - y0) * k // parts) for k in range(parts + 1)]
        for k, (start, end) in enumerate(pairwise(corners)):
            walls.append(((*start, *end), others[k] if others else None))
    return walls


def _door(one: Box, other: Box) -> Box:
    """A door where two rooms come nearest to each other, across their wall."""
    low = np.maximum(one[:2], other[:2])
    high = np.minimum(one[2:], other[2:])
    across = 0 if high[0] - low[0] < high[1] - low[1] else 1
    middle = (low + high) // 2
    half = np.array([_WIDE, _WIDE]) // 2
    half[across] = _THICK // 2
    x, y = np.clip(middle, half, GRID - half).tolist()
    return x - int(half[0]), y - int(half[1]), x + int(half[0]), y + int(half[1])
