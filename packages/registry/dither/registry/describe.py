"""Everything there is to say of one part, read off its Spec."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from .catalog import Catalog, Part
from .spec import Place, Spec

__all__ = ["describe"]

SIGNS = {Ge: (">=", "ge"), Gt: (">", "gt"), Le: ("<=", "le"), Lt: ("<", "lt")}


def describe(part: Part, catalog: Catalog) -> dict[str, Any]:
    """Return name, doc, options (type, default, doc), a snippet for an experiment file, and the place of the source."""
    spec = part.spec
    options = [
        {"name": key, "type": _type(info), "default": _default(info), "doc": info.description or ""}
        for key, info in spec.model_fields.items()
    ]
    return {
        "kind": spec.kind,
        "name": spec.name,
        "plugin": part.plugin,
        "pinned": part.pinned,
        "doc": inspect.cleandoc(spec.__doc__ or ""),
        "options": options,
        "snippet": _snippet(spec, catalog),
        "source": _source(spec),
    }


def _source(spec: type[Spec]) -> str:
    try:
        return f"{Path(inspect.getsourcefile(spec) or '?')}:{inspect.getsourcelines(spec)[1]}"
    except (OSError, TypeError):  # made at run time, without a file
        return "?"


def _type(info: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(item, key)}"
        for item in info.metadata
        for kind, (sign, key) in SIGNS.items()
        if type(item) is kind
    ]
    return " ".join([_name(info.annotation, any(isinstance(item, Place) for item in info.metadata)), *bounds])


def _name(annotation: Any, place: bool = False) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if place or (hasattr(annotation, "__metadata__") and any(isinstance(m, Place) for m in annotation.__metadata__)):
        return f"a {(annotation if place else arguments[0]).kind}"
    if origin is Literal:
        return " | ".join(map(repr, arguments)).replace("'", '"')
    if origin in (Union, types.UnionType):
        return " or ".join(_name(argument) for argument in arguments if argument is not type(None))
    if origin in (list, tuple):
        return f"list of {_name(arguments[0])}"
    if hasattr(annotation, "__metadata__"):
        return _name(arguments[0])
    return {int: "integer", float: "number", str: "string", bool: "true or false"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "(required)"
    value = info.get_default(call_default_factory=True, validated_data={})
    return "(none)" if value is None else toml(value)


def toml(value: Any) -> str:
    """Write a plain value as TOML does, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        if set(value) == {"use"}:
            return toml(value["use"])
        return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def _snippet(spec: type[Spec], catalog: Catalog) -> str:
    pairs = [f'use = "{spec.name}"', *_required(spec, catalog)]
    return f"{spec.kind.replace('-', '_')} = {{ {', '.join(pairs)} }}"


def _required(spec: type[Spec], catalog: Catalog) -> Iterable[str]:
    """Yield the options that must be given, with a value that validates."""
    for key, info in spec.model_fields.items():
        if not info.is_required():
            continue
        kind = getattr(info.annotation, "kind", None)
        if any(isinstance(item, Place) for item in info.metadata) and kind:
            names = catalog.names(kind)
            yield f'{key} = "{names[0] if names else "..."}"'
        else:
            yield f"{key} = {toml(_example(info))}"


def _example(info: FieldInfo) -> Any:
    for item in info.metadata:
        if isinstance(item, Ge):
            return item.ge
        if isinstance(item, Gt):
            return item.gt + 1  # type: ignore[operator]
    if get_origin(info.annotation) is Literal:
        return get_args(info.annotation)[0]
    if get_origin(info.annotation) in (list, tuple):
        return ["..."] if any(isinstance(item, MinLen) for item in info.metadata) else []
    return {int: 1, float: 0.5, bool: True, str: "..."}.get(info.annotation, "...")  # type: ignore[arg-type]
