"""Level 6: dwellings, as metric, constraint and rejection."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dither.tasks.bubble_diagram.constraints.table import Constraints
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.decoded_samples import decode_samples
from dither.tasks.bubble_diagram.geometry.dwelling import (
    LIMITS,
    DwellingLimits,
)
from dither.tasks.bubble_diagram.geometry.placement import (
    dwelling_problems,
    place_diagram,
)
from dither.tasks.bubble_diagram.plans import Diagram
from dither.tasks.bubble_diagram.specs import BubbleDiagram, ProceduralPlans
from dither.tasks.bubble_diagram.vocabulary import ROOM_IDS

LARGE_KITCHEN = {**LIMITS.areas, ROOM_IDS["Kitchen"]: (10, 20)}
TYPES = ("LivingRoom", "Kitchen", "MasterRoom", "Bathroom", "SecondRoom")
BOXES = [
    (60, 60, 140, 150),
    (144, 60, 180, 98),
    (144, 102, 200, 150),
    (60, 24, 90, 56),
    (94, 12, 140, 56),
]
# Two rooms on the outer sides of the kitchen
AROUND = [*BOXES, (184, 60, 200, 98), (144, 20, 200, 56)]
DOORS = ((0, 1), (0, 2), (0, 3), (0, 4), (0, None))


def problems(boxes=BOXES, types=TYPES, doors=DOORS, limits=LIMITS):
    diagram = Diagram.from_boxes([ROOM_IDS[name] for name in types], boxes)
    placed = place_diagram(replace(diagram, doors=doors))
    return list(dwelling_problems(placed, limits))


def moved(room, box):
    return [*BOXES[:room], box, *BOXES[room + 1 :]]


def test_a_flat_of_five_rooms_is_a_dwelling():
    assert problems() == []
    assert problems(doors=None) == []
    # Turned by a quarter, and mirrored
    assert problems([(y0, x0, y1, x1) for x0, y0, x1, y1 in BOXES]) == []
    assert problems([(256 - x1, y0, 256 - x0, y1) for x0, y0, x1, y1 in BOXES]) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # An island
        ({"boxes": moved(1, (148, 20, 180, 52))}, "Kitchen shares no wall"),
        ({"doors": ((0, 1), (0, 2), (0, 3), (3, 4), (0, None))}, "Second is reached through a private room"),
        ({"doors": ((0, 1), (0, 2), (0, 3), (0, None))}, "Second is reached through a private room, or not"),
        ({"doors": ((0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (0, None))}, "no wall for the door"),
        ({"doors": DOORS[:-1]}, "no front door"),
        ({"doors": (*DOORS[:-1], (1, None)), "boxes": AROUND,
           "types": (*TYPES, "Storage", "Storage")}, "no front door in"),
        ({"boxes": moved(3, (60, 38, 76, 56))}, "Bath has 1.4 m2"),
        ({"boxes": moved(2, (144, 102, 172, 150))}, "Master is 1.97 m wide"),
        ({"boxes": moved(1, (144, 60, 250, 92))}, "Kitchen is more than 3 times as long as wide"),
        ({"limits": DwellingLimits(proportion=1.1)}, "times as long as wide"),
        ({"limits": DwellingLimits(wall=2.5)}, "shares no wall of 2.5 m"),
        ({"limits": DwellingLimits(areas=LARGE_KITCHEN)}, "Kitchen has 6.8 m2, not 10 to 20"),
        # A balcony inside, which lights nothing
        ({"boxes": [*AROUND, (204, 20, 230, 150)], "types": (*TYPES, "Balcony", "Storage", "Storage"),
          "doors": (*DOORS[:4], (1, 5), (1, 6), (2, 7), DOORS[4])}, "Balcony is not at an outer wall"),
        ({"boxes": [*AROUND, (204, 20, 230, 150)], "types": (*TYPES, "Balcony", "Storage", "Storage"),
          "doors": (*DOORS[:4], (1, 5), (1, 6), (2, 7), DOORS[4])}, "Kitchen has no window"),
        # The kitchen has other rooms on all of its sides.
        ({"boxes": AROUND, "types": (*TYPES, "Storage", "Storage"),
          "doors": (*DOORS[:4], (1, 5), (1, 6), DOORS[4])}, "Kitchen has no window"),
    ],
)  # fmt: skip
def test_what_makes_a_plan_no_dwelling(change, words):
    assert any(words in problem for problem in problems(**change)), problems(**change)


def test_one_room_may_be_reached_through_a_bedroom():
    doors = ((0, 1), (0, 2), (0, 4), (3, 4), (0, None))
    assert problems(doors=doors) == []
    # The kitchen and the bathroom, each through a bedroom
    doors = ((0, 2), (0, 4), (1, 2), (3, 4), (0, None))
    assert len(problems(doors=doors)) == 1


@pytest.mark.slow
def test_dwellings_are_a_level_a_metric_and_a_constraint(tmp_path):
    data = ProceduralPlans(train=60, valid=20, test=20)
    task = BubbleDiagram(data=data, constraints=Constraints(dwelling=True)).build()
    like = task.like(30, 0)
    tokens = make_plans(9, 0, 30).tokens(8)
    x = torch.from_numpy(tokens).long()
    met = like.goal.satisfied(x)["dwelling"].numpy()
    levels = np.array([sample.level for sample in decode_samples(tokens, 8)])
    assert set(levels.tolist()) == {5, 6}
    assert (met == (levels == 6)).all()
    assert task.sample_metrics(x, like)["level_6"] == pytest.approx(met.mean())
    # Other ranges: no bathroom of 2 m2, and any proportion
    narrow = {"areas": {"Bathroom": "at most 2 m2"}}
    table = Constraints.model_validate({"dwelling": narrow})
    assert not table.goal(8).satisfied(x)["dwelling"].any()
    wide = Constraints(dwelling={"proportion": 20, "wall": 0.5}).goal(8)
    assert met.sum() <= wide.satisfied(x)["dwelling"].sum()
    # Samples that are no dwellings say why.
    files, _ = task.export(x, like, "jsonl", tmp_path)
    assert len(files[0].read_text().splitlines()) == 30
    samples = [*decode_samples(tokens, 8)]
    assert all(bool(sample.errors) == (sample.level == 5) for sample in samples)
    assert json.loads(files[0].read_text().splitlines()[0])["types"]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("yes", "wrong-type"),
        ({"area": {}}, "unknown-key"),
        ({"areas": {"Bath": "2 to 3 m2"}}, "unknown-value"),
        ({"areas": {"Bathroom": 3}}, "wrong-type"),
        ({"areas": []}, "wrong-type"),
        ({"proportion": "3"}, "wrong-type"),
        ({"proportion": 0.5}, "wrong-type"),
        ({"wall": 30}, "wrong-type"),
        ({"wall": 0}, "wrong-type"),
        ({"wall": float("nan")}, "wrong-type"),
    ],
)
def test_invalid_ranges_are_reported(value, code):
    misfits = list(Constraints.model_validate({"dwelling": value}).check(8))
    assert [misfit.code for misfit in misfits] == [code]
    assert misfits[0].path[0] == "dwelling"
