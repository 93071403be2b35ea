"""Diagrams for other programs: networkx, GraphML, DOT, the JSON of HouseGAN++, and our own lines of JSON.

Letters: N samples, L tokens, R rooms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from jaxtyping import Int

from dither.registry.storage import write_aside

from .exhibits import exhibits_of
from .housegan_layout import housegan_plan
from .jsonl import plan_line
from .plans import Box, Diagram
from .relations import GRID
from .vocabulary import COLOURS, RELATIONS, ROOMS

if TYPE_CHECKING:
    import networkx

__all__ = [
    "EXPORTS",
    "Export",
    "from_networkx",
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
        with write_aside(file) as beside:
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
    for shown in exhibits_of(samples, rooms):
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
