"""Describe a component from its Spec: options, contracts, snippet, source."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from pydantic.fields import FieldInfo

from ..config.errors import dotted
from ..kinds import KINDS
from ..spec.base import Options, Place, Spec, summary_of, with_article
from ..spec.option_docs import docs_of
from .catalog import Catalog, Component

__all__ = ["PLACES", "describe", "describe_options", "toml"]

PLACES = {
    "data": "task",
    "schedule": "process",
    "block": "model",
    "embedding": "model",
    "position": "model.embedding",
    "condition": "model",
    "head": "model",
    "optimizer": "train",
    "lr-schedule": "train",
    "metric": "evaluate",
    "tracker": "tracking",
}
"""The table of an experiment file that usually contains a kind; other kinds are at the top."""
LISTED = {"metric": "metrics", "tracker": "use"}
"""The key of a kind of which an experiment file has a list."""
BOUNDS: dict[type, tuple[str, str]] = {
    Ge: (">= {}", "ge"),
    Gt: ("> {}", "gt"),
    Le: ("<= {}", "le"),
    Lt: ("< {}", "lt"),
    MultipleOf: ("a multiple of {}", "multiple_of"),
    MinLen: ("at least {} long", "min_length"),
    MaxLen: ("at most {} long", "max_length"),
}
WORDS = {int: "integer", float: "number", str: "string", bool: "true or false", Any: "anything"}


def describe(part: Component, catalog: Catalog) -> dict[str, Any]:
    """Return the description of a component with plain values."""
    spec = part.spec
    try:
        source = f"{Path(inspect.getsourcefile(spec) or '?')}:{inspect.getsourcelines(spec)[1]}"
    except (OSError, TypeError):  # a class without a source file
        source = "?"
    return {
        "kind": spec.kind,
        "name": spec.name,
        "rev": spec.rev,
        "plugin": part.plugin,
        "pinned": part.pinned,
        "doc": inspect.cleandoc(spec.__doc__ or ""),
        "options": describe_options(spec),
        "contracts": dict(_contracts(spec)),
        "snippet": _snippet(spec, catalog),
        "source": source,
    }


def describe_options(table: type[Options]) -> list[dict[str, str]]:
    """Return name, type, default and doc of each option of a component or a table."""
    docs = docs_of(table)
    return [
        {
            "name": key,
            "type": _type(info),
            "default": _default(info),
            "doc": " ".join(docs.get(key, "").split()),
        }
        for key, info in table.model_fields.items()
    ]


def _contracts(spec: type[Spec]) -> Iterator[tuple[str, str]]:
    """Yield what the class declares about compatibility; for `check`, the first line of its doc."""
    kind = KINDS[spec.kind]
    yield "is", summary_of(kind)
    if given := list(inspect.signature(spec.build).parameters)[1:]:  # type: ignore[attr-defined]
        yield "is given", ", ".join(given)
    if serves := getattr(spec, "serves", None):
        yield "serves", " and ".join(sorted(serves, reverse=True))
    if isinstance(gives := getattr(spec, "gives", None), str):
        yield "gives", gives
    for form, what in getattr(spec, "exports", {}).items():
        yield f"exports {form}", what
    if getattr(spec, "bound", False):
        yield (
            "bound",
            "its mean is the diffusion part of a bound on -log p(x_0), in nats; evaluation adds the rest",
        )
    check = getattr(spec, "check", None)
    if check is not None and check is not getattr(kind, "check", None) and check.__doc__:
        line = inspect.cleandoc(check.__doc__).partition("\n")[0]
        yield "checks", line.removeprefix("Yield ").removeprefix("reasons why ")


def _type(info: FieldInfo) -> str:
    name = _name(info.annotation, any(isinstance(item, Place) for item in info.metadata))
    return (
        ", ".join([name, *_bounds(info.metadata)]).replace(", >", " >", 1).replace(", <", " <", 1)
    )


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for item in metadata:
        if type(item) in BOUNDS:
            words, key = BOUNDS[type(item)]
            yield words.format(getattr(item, key))
        elif isinstance(pattern := getattr(item, "pattern", None), str):
            yield f"like {pattern}"


def _name(annotation: Any, place: bool = False) -> str:
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    metadata = getattr(annotation, "__metadata__", ())
    if place or any(isinstance(item, Place) for item in metadata):
        return with_article((annotation if place else arguments[0]).kind)
    if metadata:
        inner = [found for item in metadata for found in getattr(item, "metadata", [item])]
        return " ".join([_name(arguments[0]), *_bounds(inner)])
    if origin is Literal:
        return " | ".join(map(toml, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(_name(argument) for argument in arguments if argument is not type(None))
    if arguments:
        return ("table of " if origin is dict else "list of ") + _name(arguments[origin is dict])
    return WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "(required)"
    value = info.get_default(call_default_factory=True, validated_data={})
    return "(none)" if value is None else toml(value)


def toml(value: Any) -> str:
    """Return a value as one line of TOML."""
    value = value.item() if hasattr(value, "item") else value  # numbers of numpy
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        if set(value) == {"use"}:
            return toml(value["use"])
        return (
            "{ "
            + ", ".join(f"{dotted((key,))} = {toml(inner)}" for key, inner in value.items())
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _snippet(spec: type[Spec], catalog: Catalog) -> str:
    """Return lines of an experiment file that use the component, with its required options."""
    place = PLACES.get(spec.kind)
    pairs = ", ".join([f'use = "{spec.name}"', *_required(spec, catalog)])
    table = f"{{ {pairs} }}"
    line = (
        f"{LISTED[spec.kind]} = [{table}]"
        if spec.kind in LISTED
        else f"{spec.kind.replace('-', '_')} = {table}"
    )
    return (f"[{place}]\n" if place else "") + line


def _required(spec: type[Spec], catalog: Catalog) -> Iterator[str]:
    """Yield assignments of the required options, with values that validate."""
    for key, info in spec.model_fields.items():
        if not info.is_required():
            continue
        kind = getattr(info.annotation, "kind", None)
        if any(isinstance(item, Place) for item in info.metadata) and kind:
            names = catalog.names(kind)
            yield f'{key} = "{names[0] if names else "..."}"'
        else:
            yield f"{key} = {toml(_example(info.annotation, info.metadata))}"


def _example(annotation: Any, metadata: list[Any]) -> Any:
    """Return a value that satisfies the type and the bounds of a required option."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    facts = {
        type(item): getattr(item, BOUNDS[type(item)][1])
        for item in metadata
        if type(item) in BOUNDS
    }
    if hasattr(annotation, "__metadata__"):
        inner = [
            found for item in annotation.__metadata__ for found in getattr(item, "metadata", [item])
        ]
        return _example(arguments[0], inner)
    if origin is Literal:
        return arguments[0]
    if origin in (Union, types.UnionType):
        return _example(arguments[0], metadata)
    if origin in (list, tuple):
        return [_example(arguments[0], [])] * facts.get(MinLen, 0)
    if annotation in (int, float):
        low = facts.get(
            Ge,
            facts.get(Gt, 0) + (1 if annotation is int else 0.5 * facts.get(Lt, facts.get(Le, 1))),
        )
        return annotation(low)
    return {str: "..." + "." * (facts.get(MinLen, 0) - 3), bool: True}.get(annotation, {})
