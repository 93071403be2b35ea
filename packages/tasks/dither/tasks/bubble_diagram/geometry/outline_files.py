"""Outlines of flats and front doors in files: JSON, GeoJSON and SVG.

A file holds one simple polygon of straight lines, in a stated unit, and at most one front door.
Anything else is refused by the name of the element.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from fontTools.misc.transform import Transform

from dither.registry.config.errors import did_you_mean
from dither.registry.files.limits import read_text

from ..relations import UNITS
from ..vocabulary import METRES

_DOOR_GAP = 4
"""Largest distance between a front door and the outline in pixels, the thickness of a wall."""

_KEYS = ("outline", "front_door", "unit")

_PAPER = re.compile(r".*\d\s*(mm|cm|in|pt|pc|q)\s*", re.IGNORECASE)
"""Length in a unit of paper."""

_Points = list[tuple[float, float]]

_NOT_DRAWN = {
    "clippath", "defs", "filter", "lineargradient", "marker", "mask", "metadata",
    "pattern", "radialgradient", "style", "symbol", "title", "desc",
}  # fmt: skip
"""Elements of SVG whose contents are not drawn by themselves."""

_SHAPES = {
    "circle", "ellipse", "image", "line", "path", "polygon", "polyline", "rect", "text", "use",
}  # fmt: skip
"""Elements of SVG that are drawn."""


def read_outline(path: Path, text: str | None = None) -> tuple[_Points, _Points]:
    """Return the corners of the outline and the ends of the front door, in pixels, y pointing down.

    Raises:
        ValueError: The file has no outline, or more than an outline and a front door.
    """
    if text is None:
        text = read_text(path).removeprefix("\ufeff")
    if path.suffix.lower() == ".svg":
        outline, door = _parse_svg(text)
    else:
        outline, door = _parse_json(text)
    if len(outline) > 1 and np.allclose(outline[0], outline[-1]):
        # A closed outline repeats its first corner.
        outline = outline[:-1]
    if len(door) not in (0, 2):
        raise ValueError(f"a front door of {len(door)} points, expected 2")
    return outline, door


def shape_problem(outline: _Points, door: _Points) -> str | None:
    """Return what is wrong with the shape of an outline, or with the place of its front door."""
    from shapely import LineString, Polygon, is_valid_reason

    polygon = Polygon(outline)
    if not polygon.is_valid:
        return f"the outline is not a simple polygon: {is_valid_reason(polygon)}"
    if door:
        distance = max(
            polygon.exterior.distance(LineString([end, end])) for end in door
        )
        if distance > _DOOR_GAP:
            return f"the front door is {distance * METRES:.2f} m away from the outline"
    return None


def _parse_json(text: str) -> tuple[_Points, _Points]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("expected an object")
    # Every object of GeoJSON has a type.
    if not content.keys() & {"type", "features"}:
        unknown = sorted(content.keys() - set(_KEYS))
        if unknown:
            hint = did_you_mean(unknown[0], _KEYS)
            raise ValueError(
                "; ".join(filter(None, [f'unknown key "{unknown[0]}"', hint]))
            )
        if "outline" not in content:
            raise ValueError('no key "outline"')
        scale = _scale(content.get("unit", "px"))
        outline = _scaled(content["outline"], scale, scale)
        return outline, _scaled(content.get("front_door", []), scale, scale)
    return _parse_geojson(content)


def _parse_geojson(content: Mapping[str, Any]) -> tuple[_Points, _Points]:
    """GeoJSON in metres, y pointing up: a polygon, and possibly a line string."""
    features = content.get("features", [content])
    scale = UNITS["m"]
    found: dict[str, _Points] = {}
    for number, feature in enumerate(features):
        shape = feature.get("geometry", feature)
        kind = shape["type"]
        name = f"features[{number}] ({kind})"
        if kind not in ("Polygon", "LineString"):
            raise ValueError(f"{name}: expected a Polygon or a LineString")
        if kind in found:
            raise ValueError(f"{name}: a further {kind}")
        rings = [shape["coordinates"]]
        if kind == "Polygon":
            rings = shape["coordinates"]
        if len(rings) > 1:
            raise ValueError(f"{name}: the polygon has a hole")
        found[kind] = _scaled(rings[0], scale, -scale)
    if "Polygon" not in found:
        raise ValueError("no Polygon")
    return found["Polygon"], found.get("LineString", [])


def _scaled(points: Any, x_scale: float, y_scale: float) -> _Points:
    # Points of GeoJSON may have a height.
    return [(x * x_scale, y * y_scale) for x, y, *_ in points]


def _scale(unit: Any) -> float:
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}, expected one of {', '.join(UNITS)}")
    return UNITS[unit]


def _parse_svg(text: str) -> tuple[_Points, _Points]:
    """The first shape of an SVG drawing is the outline, the second one the front door.

    `data-unit` of the root is the unit of its coordinates, by default px.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"invalid XML: {error}") from None
    paper = [root.get(side, "") for side in ("width", "height")]
    if "data-unit" not in root.attrib and any(map(_PAPER.fullmatch, paper)):
        # A drawing of 140 mm is not one of 140 pixels, and its scale is unknown.
        raise ValueError(f"<svg>: a drawing of {' x '.join(paper)} without data-unit")
    for element in root.iter():
        if _tag(element) == "style" and _moves_or_hides("".join(element.itertext())):
            raise ValueError("<style>: rules that move or hide shapes are not read")
    scale = _scale(root.get("data-unit", "px"))
    shapes = list(_svg_shapes(root, Transform(scale, 0, 0, scale, 0, 0)))
    if not shapes:
        raise ValueError("no <path>, <polygon>, <polyline>, <rect> or <line>")
    if len(shapes) > 2:
        raise ValueError(
            f"{shapes[2][0]}: a further shape, after outline and front door"
        )
    outlines = [_corners(*shape) for shape in shapes]
    return outlines[0], outlines[1] if len(outlines) > 1 else []


_Shape = tuple[str, Any, Transform]


def _svg_shapes(
    element: Any, transform: Transform, *, nested: bool = False
) -> Iterator[_Shape]:
    """Yield name, element and transform of each drawn shape, in document order."""
    tag = _tag(element)
    name = f"<{tag}>"
    style = element.get("style", "").replace(" ", "")
    hidden = "display:none" in style or "visibility:hidden" in style
    hidden |= element.get("display") == "none"
    hidden |= element.get("visibility") == "hidden"
    if tag in _NOT_DRAWN or hidden:
        return
    if element.get("id"):
        name = f'<{tag} id="{element.get("id")}">'
    # The viewport of a nested drawing, and transforms of CSS, are not applied here.
    if (tag == "svg" and nested) or _moves_or_hides(style):
        raise ValueError(f"{name}: nested drawings and CSS transforms are not read")
    if "transform" in element.attrib:
        transform = transform.transform(_transform(element.get("transform"), name))
    if tag in _SHAPES:
        yield name, element, transform
    for child in element:
        # Comments and processing instructions have no tag of their own.
        if isinstance(child.tag, str):
            yield from _svg_shapes(child, transform, nested=True)


def _tag(element: Any) -> str:
    return str(element.tag).rpartition("}")[2].lower()


_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PLACES = re.compile(
    r"(?<![\w-])(transform\s*:|display\s*:\s*none|visibility\s*:\s*(hidden|collapse))"
)
"""Properties of CSS that change what is drawn where."""


def _moves_or_hides(style: str) -> bool:
    return _PLACES.search(_COMMENT.sub("", style)) is not None


_FUNCTION = re.compile(r"\s*,?\s*(\w+)\s*\(([^()]*)\)")


def _transform(text: str, name: str) -> Transform:
    """Parse a transform attribute: functions from left to right, the last one applied first."""
    result = Transform()
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _FUNCTION.match(text, position)
        if match is None:
            raise ValueError(f"{name}: invalid transform {text!r}")
        parts = re.split(r"[\s,]+", match[2].strip())
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            raise ValueError(f"{name}: invalid transform {match[0]!r}") from None
        result = result.transform(_function(match[1], numbers, name))
        position = match.end()
    return result


def _function(function: str, numbers: Sequence[float], name: str) -> Transform:
    transform = Transform()
    match function, numbers:
        case "matrix", [a, b, c, d, e, f]:
            transform = Transform(a, b, c, d, e, f)
        case "translate", [x, *rest] if len(rest) < 2:
            transform = transform.translate(x, *rest)
        case "scale", [x, *rest] if len(rest) < 2:
            transform = transform.scale(x, rest[0] if rest else x)
        case "rotate", [angle]:
            transform = transform.rotate(math.radians(angle))
        case "rotate", [angle, x, y]:
            transform = transform.translate(x, y).rotate(math.radians(angle))
            transform = transform.translate(-x, -y)
        case "skewX", [angle]:
            transform = transform.skew(math.radians(angle), 0)
        case "skewY", [angle]:
            transform = transform.skew(0, math.radians(angle))
        case _:
            raise ValueError(
                f"{name}: unknown transform {function} of {len(numbers)} numbers"
            )
    return transform


def _corners(name: str, element: Any, transform: Transform) -> _Points:
    """Return the corners of a shape of straight lines."""
    from fontTools.pens.recordingPen import RecordingPen
    from fontTools.svgLib.path import parse_path
    from fontTools.svgLib.path.shapes import PathBuilder

    # The attribute is applied here, with those of the groups around the element.
    plain = ElementTree.Element(_tag(element), {**element.attrib})
    plain.attrib.pop("transform", None)
    builder = PathBuilder()
    pen = RecordingPen()
    try:
        known = builder.add_path_from_element(plain)
        if known and builder.paths:
            parse_path(builder.paths[0], pen)
    # Also of lengths with a unit or in per cent
    except (ValueError, KeyError) as error:
        raise ValueError(f"{name}: {error}") from None
    if not pen.value:
        raise ValueError(f"{name}: expected a shape of straight lines")

    points: _Points = []
    for command, arguments in pen.value:
        if command in ("closePath", "endPath"):
            continue
        if command not in ("moveTo", "lineTo"):
            raise ValueError(f"{name}: {command} is not a straight line")
        if command == "moveTo" and points:
            raise ValueError(f"{name}: a second part, such as a hole")
        points.append(arguments[0])
    return [transform.transformPoint(point) for point in points]
