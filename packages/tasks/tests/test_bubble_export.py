import json
import re
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dither.registry.flow.protocols import Exports
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.export import (
    EXPORTS,
    from_networkx,
    housegan_plan,
    to_dot,
    to_graphml,
    to_networkx,
    write_diagrams,
    write_samples,
)
from dither.tasks.bubble_diagram.formats.common import ReadOptions
from dither.tasks.bubble_diagram.formats.housegan import FROM_HOUSEGAN, TO_HOUSEGAN, read_housegan
from dither.tasks.bubble_diagram.formats.jsonl import read_plans
from dither.tasks.bubble_diagram.plans import Diagram, encode
from dither.tasks.bubble_diagram.specs import BubbleDiagram, ProceduralPlans
from dither.tasks.bubble_diagram.vocabulary import COLOURS, NODE_MASK, ROOMS

PLANS = make_plans(0, 0, 60)
DIAGRAMS = [PLANS.diagram(row) for row in range(60)]
BARE = [Diagram(d.types, d.edges, name=f"n{k}") for k, d in enumerate(DIAGRAMS[:10])]
ODD = Diagram((0, 2), ((0, 1, 4),), ((0, 0, 9, 9), (3, 3, 12, 12)), 'a "quoted" \\ name\n<&> № 5')


@pytest.mark.parametrize("diagram", [*DIAGRAMS[:5], *BARE[:3], ODD, Diagram((3,), ())])
def test_networkx_and_back(diagram):
    graph = to_networkx(diagram)
    assert from_networkx(graph) == diagram
    assert graph.number_of_nodes() == len(diagram.types)
    again = networkx.parse_graphml(to_graphml(diagram))
    assert from_networkx(again) == diagram
    assert from_networkx(networkx.node_link_graph(json.loads(json.dumps(networkx.node_link_data(graph))))) == diagram


def test_what_a_graph_says():
    graph = to_networkx(ODD)
    assert graph.nodes[1] == {"type": "Kitchen", "x0": 3, "y0": 3, "x1": 12, "y1": 12}
    assert list(graph.edges(data=True)) == [(0, 1, {"relation": "inside"})]
    assert graph.graph["name"] == ODD.name


@given(st.text(max_size=20))
def test_any_name_can_be_written(name):
    diagram = Diagram((0, 2), ((0, 1, 2),), name=name)
    networkx.parse_graphml(to_graphml(diagram))
    dot = to_dot(diagram)
    assert dot.count("\n") == 6
    assert "\0" not in dot


def test_dot():
    lines = to_dot(ODD).splitlines()
    assert lines[0] == 'digraph "a \\"quoted\\" \\\\ name\\n<&> № 5" {'
    assert lines[2:] == [
        f'  0 [label="LivingRoom", fillcolor="{COLOURS[0]}", pos="4.5,-4.5!"];',
        f'  1 [label="Kitchen", fillcolor="{COLOURS[2]}", pos="7.5,-7.5!"];',
        '  0 -> 1 [label="inside"];',
        "}",
    ]
    for diagram in DIAGRAMS[:10]:
        found = [(int(i), int(j)) for i, j in re.findall(r"^  (\d+) -> (\d+) \[", to_dot(diagram), re.M)]
        assert found == [edge[:2] for edge in diagram.edges]


def one_bedroom(types):
    """Types as they come back from HouseGAN++'s layout, if all bedrooms are taken for second ones."""
    return tuple(ROOMS.index(FROM_HOUSEGAN[TO_HOUSEGAN[ROOMS[kind]]]) for kind in types)


@pytest.mark.parametrize("adjacency", ["proximity", "door"])
def test_housegan_and_back(tmp_path, adjacency):
    """Exact but for the sorts of bedroom, which the layout does not know; by nearness and by doors."""
    for number, diagram in enumerate(DIAGRAMS):
        (tmp_path / f"{number}.json").write_text(json.dumps(housegan_plan(diagram)))
        choices = ReadOptions(adjacency=adjacency, bedrooms="all-second")
        (entry,) = read_housegan(tmp_path / f"{number}.json", choices)
        expected = Diagram(one_bedroom(diagram.types), diagram.edges, diagram.boxes, str(number))
        assert entry.diagram == expected


def test_relations_without_places_come_back_as_doors(tmp_path):
    """Which rooms are related is exact even where places had to be found."""
    for diagram in BARE:
        (tmp_path / "a.json").write_text(json.dumps(housegan_plan(diagram)))
        (entry,) = read_housegan(tmp_path / "a.json", ReadOptions(adjacency="door"))
        assert [edge[:2] for edge in entry.diagram.edges] == [edge[:2] for edge in diagram.edges]


def test_the_layout_of_housegan():
    """As in its published files: closed outlines, node after node, and each wall with the rooms on both sides."""
    for diagram in [*DIAGRAMS, *BARE]:
        plan = housegan_plan(diagram)
        rooms, nodes = len(diagram.types), len(plan["room_type"])
        assert plan["room_type"][rooms:] == [17] * len(diagram.edges)
        assert len(plan["boxes"]) == nodes
        assert len(plan["edges"]) == len(plan["ed_rm"])
        assert [ends[0] for ends in plan["ed_rm"]] == sorted(ends[0] for ends in plan["ed_rm"])
        for node in range(nodes):
            walls = [wall for wall, ends in zip(plan["edges"], plan["ed_rm"], strict=True) if ends[0] == node]
            assert all(wall[2:4] == after[:2] for wall, after in zip(walls, walls[1:] + walls[:1], strict=True))
            assert all(wall[4] == plan["room_type"][node] for wall in walls)
            x, y = [wall[0] for wall in walls], [wall[1] for wall in walls]
            assert [min(x), min(y), max(x), max(y)] == plan["boxes"][node]
            assert min(x + y) >= 0
            assert max(x + y) <= 255
        for wall, ends in zip(plan["edges"], plan["ed_rm"], strict=True):
            assert wall[5] == (plan["room_type"][ends[1]] if len(ends) == 2 else 0)
        pairs = {tuple(sorted(ends)) for ends in plan["ed_rm"] if len(ends) == 2 and max(ends) < rooms}
        assert pairs == {edge[:2] for edge in diagram.edges}
        for door, (i, j, _) in enumerate(diagram.edges, rooms):
            assert sorted(ends[1] for ends in plan["ed_rm"] if ends[0] == door and len(ends) == 2) == [i, j]
        assert all(len(plan[key]) for key in plan)


def test_files(tmp_path):
    names = {
        "jsonl": ["plans.jsonl"],
        "housegan": ["0.json", "1.json"],
        "networkx": ["0.json", "1.json"],
        "graphml": ["0.graphml", "1.graphml"],
        "dot": ["0.dot", "1.dot"],
    }
    assert list(names) == list(EXPORTS) == list(BubbleDiagram.exports)
    for form, expected in names.items():
        files = write_diagrams(DIAGRAMS[:2], tmp_path / form, form)
        assert [file.name for file in files] == expected
        assert {file.name for file in (tmp_path / form).iterdir()} == {*expected} | (
            {"list.txt"} if form == "housegan" else set()
        )
    assert (tmp_path / "housegan" / "list.txt").read_text() == "0.json\n1.json\n"
    found = read_plans(tmp_path / "jsonl" / "plans.jsonl", 8)
    assert found == DIAGRAMS[:2]
    assert from_networkx(networkx.read_graphml(tmp_path / "graphml" / "1.graphml")) == DIAGRAMS[1]
    said = json.loads((tmp_path / "networkx" / "1.json").read_text())
    assert from_networkx(networkx.node_link_graph(said, edges="edges")) == DIAGRAMS[1]


SAMPLES = np.stack([encode(diagram, 8) for diagram in DIAGRAMS[:3]])
CIRCLE = Diagram((0, 2, 3), ((0, 1, 2), (0, 2, 7), (1, 2, 2)))
"""Each left of the next, the last left of the first: no boxes show that."""


def test_samples(tmp_path):
    samples = SAMPLES.copy()
    samples[1, 0] = NODE_MASK
    files, told = write_samples(samples, 8, tmp_path, "jsonl")
    assert told == ["sample 1 is left out: room 0: MASK is left over"]
    first, last = read_plans(Path(files[0]), 8)
    assert (first.types, first.edges, first.name) == (DIAGRAMS[0].types, DIAGRAMS[0].edges, "sample 0")
    assert (last.types, last.name) == (DIAGRAMS[2].types, "sample 2")
    assert first.boxes is not None, "boxes that prove it"
    files, _ = write_samples(samples, 8, tmp_path, "dot")
    assert [file.name for file in files] == ["0.dot", "2.dot"], "a file is named by its sample"


def test_a_sample_that_cannot_be_built_is_told(tmp_path):
    samples = np.stack([SAMPLES[0], encode(CIRCLE, 8)])
    files, told = write_samples(samples, 8, tmp_path, "jsonl")
    assert told == ["1 of 2 samples have no boxes that show all of them; they are written without boxes"]
    found = read_plans(files[0], 8)
    assert found[0].boxes is not None
    assert (found[1].edges, found[1].boxes) == (CIRCLE.edges, None)
    files, told = write_samples(samples, 8, tmp_path / "housegan", "housegan")
    assert told == ["1 of 2 samples have no boxes that show all of them; the boxes written break some relations"]
    (entry,) = read_housegan(files[1], ReadOptions(adjacency="door"))
    assert [edge[:2] for edge in entry.diagram.edges] == [edge[:2] for edge in CIRCLE.edges]


@pytest.mark.parametrize("adjacency", ["proximity", "door"])
def test_samples_come_back_from_housegan_with_the_same_relations(tmp_path, adjacency):
    """From tokens alone: the boxes are found, not given, and inside the grid."""
    samples = np.stack([encode(diagram, 8) for diagram in DIAGRAMS[:12]])
    files, told = write_samples(samples, 8, tmp_path, "housegan")
    assert told == []
    for file, diagram in zip(files, DIAGRAMS, strict=False):
        (entry,) = read_housegan(file, ReadOptions(adjacency=adjacency, bedrooms="all-second"))
        assert (entry.diagram.types, entry.diagram.edges) == (one_bedroom(diagram.types), diagram.edges)


def test_boxes_of_samples_stand_in_the_middle(tmp_path):
    (file,), _ = write_samples(SAMPLES, 8, tmp_path, "jsonl")
    for diagram in read_plans(file, 8):
        walls = np.array(diagram.boxes)
        assert abs(walls[:, :2].min(0) + walls[:, 2:].max(0) - 256).max() <= 1


@pytest.mark.parametrize("form", list(EXPORTS))
def test_the_task_exports_every_form(tmp_path, form):
    task = BubbleDiagram(data=ProceduralPlans(train=8, valid=2, test=2)).build()
    assert isinstance(task, Exports)
    files, told = task.export(torch.from_numpy(SAMPLES), task.like(3, 0), form, tmp_path / form)
    assert all(file.stat().st_size for file in files)
    assert told == []
