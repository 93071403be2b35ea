"""Plans of one's own as JSON lines: units, polygons, names of types, further keys, more rooms."""

import json

import pytest

from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.formats.jsonl import (
    LineOptions,
    read_lines,
    read_plans,
)
from dither.tasks.bubble_diagram.specs import BubbleDiagram, JsonPlans
from dither.tasks.bubble_diagram.vocabulary import METRES, ROOM_IDS

MM = {
    "types": ["LivingRoom", "Küche"],
    "boxes": [[100000, 5000, 105600, 12000], [105880, 5000, 109800, 8500]],
}
NAMES = (("Küche", "Kitchen"),)


def write(tmp_path, *lines):
    path = tmp_path / "plans.jsonl"
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines),
        encoding="utf-8",
    )
    return path


def codes(path, **options):
    with pytest.raises(Refused) as caught:
        read_lines(path, LineOptions(**options))
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize("line", [MM, MM | {"unit": "mm"}])
def test_boxes_in_millimetres_are_centred_pixels(tmp_path, line):
    unit = "px" if "unit" in line else "mm"
    (diagram,), _ = read_lines(write(tmp_path, line), LineOptions(8, unit, NAMES))
    assert diagram.types == (ROOM_IDS["LivingRoom"], ROOM_IDS["Kitchen"])
    (x0, y0, x1, y1), (u0, _, u1, _) = diagram.boxes
    assert (x1 - x0) * METRES == pytest.approx(5.6, abs=0.08)
    assert (y1 - y0) * METRES == pytest.approx(7.0, abs=0.08)
    assert u0 - x1 == 4
    # In the middle of the canvas
    assert abs(x0 + u1 - 256) <= 1
    assert abs(y0 + y1 - 256) <= 1


def test_polygons_have_the_relations_of_their_bounding_boxes(tmp_path):
    room = [[5.3, 0], [8, 0], [8, 3], [5.3, 3]]
    corners = [[0, 0], [5, 0], [5, 3], [3, 3], [3, 6], [0, 6]]
    line = {
        "types": ["LivingRoom", "Kitchen"],
        "unit": "m",
        "polygons": [corners, room],
    }
    (diagram,), _ = read_lines(write(tmp_path, line), LineOptions())
    assert [round((box[3] - box[1]) * METRES) for box in diagram.boxes] == [6, 3]
    assert diagram.edges
    (message,) = codes(write(tmp_path, line | {"boxes": MM["boxes"]}))
    assert "both" in message
    (message,) = codes(write(tmp_path, line | {"polygons": [corners, [[0, 0]]]}))
    assert "room 1" in message


def test_further_keys_are_counted_and_misspelt_ones_are_mistakes(tmp_path):
    line = {"types": ["LivingRoom", "Kitchen"], "edges": [[0, 1, "above"]]}
    path = write(
        tmp_path,
        line | {"city": "Bonn", "rent": 900},
        # Somewhat like `doors` and `types`
        line | {"city": "Kiel", "floor": 2, "rooms": 3, "style": "loft"},
    )
    plans, extra = read_lines(path, LineOptions())
    words = {"city": 2, "rent": 1, "floor": 1, "rooms": 1, "style": 1}
    assert (len(plans), extra) == (2, words)
    (message,) = codes(write(tmp_path, line | {"door": []}))
    assert "doors" in message
    data = JsonPlans(
        path=str(write(tmp_path, *[line | {"city": "Bonn"}] * 5)), valid=0.3, test=0
    )
    with pytest.raises(Refused):
        # All plans are isomorphic.
        data.build()
    others = []
    for kind in ("Kitchen", "Bathroom", "Balcony", "Storage"):
        others.append(line | {"types": ["LivingRoom", kind], "city": "Bonn"})
    data = JsonPlans(path=str(write(tmp_path, *others)), valid=0.3, test=0)
    task = BubbleDiagram(data=data).build()
    assert any("city (4)" in line for line in task.data_warnings())


@pytest.mark.parametrize(("unit", "given"), [("m", "px"), ("cm", "mm"), ("m", "cm")])
def test_plans_in_a_larger_unit_than_stated_are_refused(tmp_path, unit, given):
    scale = {"m": 0.001, "cm": 0.1}[unit]
    boxes = [[scale * side for side in box] for box in MM["boxes"]]
    line = MM | {"boxes": boxes}
    (message,) = codes(write(tmp_path, line), unit=given, types=NAMES)
    assert f"is the unit {given}?" in message
    plans, _ = read_lines(write(tmp_path, line), LineOptions(unit=unit, types=NAMES))
    assert len(plans) == 1


def test_small_plans_in_pixels_are_accepted(tmp_path):
    boxes = [[0, 0, 10, 12], [10, 0, 20, 12]]
    line = {"types": ["LivingRoom", "Kitchen"], "boxes": boxes}
    plans, _ = read_lines(write(tmp_path, line), LineOptions())
    assert len(plans) == 1


def test_mistakes_of_units_names_and_numbers_of_rooms(tmp_path):
    path = write(tmp_path, MM)
    (message,) = codes(path, unit="mm")
    assert "Küche" in message
    (message,) = codes(path, unit="m", types=NAMES)
    assert "is the unit m?" in message
    many = {"types": ["LivingRoom"] * 9, "edges": []}
    (message,) = codes(write(tmp_path, many))
    assert "task.rooms" in message
    assert len(read_plans(write(tmp_path, many), 9)) == 1
    (tmp_path / "array.json").write_text(json.dumps([many]))
    with pytest.raises(Refused, match="JSON array"):
        read_plans(tmp_path / "array.json", 9)


def test_a_repeated_key_is_a_mistake(tmp_path):
    path = tmp_path / "plans.jsonl"
    path.write_text(
        json.dumps(MM | {"types": ["LivingRoom", "Kitchen"]})[:-1]
        + ', "unit": "m", "unit": "mm"}'
    )
    assert codes(path) == ["unit: repeated key"]
    assert codes(path, types=NAMES) == ["unit: repeated key"]


def test_options_are_checked(tmp_path):
    path = str(write(tmp_path, MM))
    assert not list(JsonPlans(path=path, unit="mm", types={"Küche": "Kitchen"}).check())
    with pytest.raises(ValueError, match="Kitchn"):
        JsonPlans(path=path, types={"Küche": "Kitchn"})
