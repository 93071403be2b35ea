"""Describe a component from its Spec: options, contracts, snippet, source."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from pydantic.fields import FieldInfo

from ..config.errors import dotted
from ..kinds import KINDS, DataSpec, LossSpec, OverSpace, TaskSpec
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
    "reward": "sampler",
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
BOUND = "its mean is the diffusion part of a bound on -log p(x_0), in nats; evaluation adds the rest"
WORDS = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "true or false",
    Any: "anything",
}


def describe(part: Component, catalog: Catalog) -> dict[str, Any]:
    """Return the description of a component with plain values."""
    spec = part.spec
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
        "source": _source(spec),
    }


def _source(spec: type[Spec]) -> str:
    try:
        return f"{inspect.getsourcefile(spec)}:{inspect.getsourcelines(spec)[1]}"
    except (OSError, TypeError):
        # A class without a source file.
        return "?"


def describe_options(table: type[Options]) -> list[dict[str, str]]:
    """Return name, type, default and doc of each option of a component or a table."""
    docs = docs_of(table)
    rows = []
    for key, info in table.model_fields.items():
        row = {
            "name": key,
            "type": _type(info),
            "default": _default(info),
            "doc": " ".join(docs.get(key, "").split()),
        }
        rows.append(row)
    return rows


def _contracts(spec: type[Spec]) -> Iterator[tuple[str, str]]:
    """Yield the declarations of the class; for `check`, the first line of its docstring."""
    kind = KINDS[spec.kind]
    yield "is", summary_of(kind)
    # The kind declares them; components may leave annotations out.
    given = inspect.get_annotations(kind.build)  # type: ignore[attr-defined]
    if arguments := list(given)[:-1]:
        yield "is given", ", ".join(arguments)
    if issubclass(spec, OverSpace):
        yield "serves", " and ".join(sorted(spec.serves, reverse=True))
    if issubclass(spec, DataSpec) and spec.gives:
        yield "gives", spec.gives
    if issubclass(spec, TaskSpec):
        for form, meaning in spec.exports.items():
            yield f"exports {form}", meaning
    if issubclass(spec, LossSpec) and spec.bound:
        yield "bound", BOUND
    if spec.check is not kind.check and spec.check.__doc__:
        line = inspect.cleandoc(spec.check.__doc__).partition("\n")[0]
        if line.startswith("Require "):
            yield "requires", line.removeprefix("Require ")
        else:
            line = line.removeprefix("Reject ").removeprefix("Yield ")
            yield "rejects", line.removeprefix("reasons why ")


def _type(info: FieldInfo) -> str:
    """Return the type with its bounds: `integer >= 1, <= 10`."""
    is_slot = any(isinstance(item, Place) for item in info.metadata)
    text = ", ".join([_name(info.annotation, is_slot), *_bounds(info.metadata)])
    # The first bound follows the type without a comma.
    return text.replace(", >", " >", 1).replace(", <", " <", 1)


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for item in metadata:
        if type(item) in BOUNDS:
            words, key = BOUNDS[type(item)]
            yield words.format(getattr(item, key))
        elif isinstance(pattern := getattr(item, "pattern", None), str):
            yield f"like {pattern}"


def _unwrapped(metadata: Iterable[Any]) -> list[Any]:
    """Return the constraints in metadata, of which a `Field` in an annotation holds several."""
    constraints: list[Any] = []
    for item in metadata:
        constraints += item.metadata if isinstance(item, FieldInfo) else [item]
    return constraints


def _name(annotation: Any, is_slot: bool = False) -> str:
    if is_slot:
        return with_article(annotation.kind)
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _annotated_name(annotation)
    if origin is Literal:
        return " | ".join(map(toml, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(
            _name(argument) for argument in arguments if argument is not type(None)
        )
    if arguments:
        # The keys of a table are text.
        if origin is dict:
            container = "table"
            inner = arguments[1]
        else:
            container = "list"
            inner = arguments[0]
        return f"{container} of {_name(inner)}"
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return WORDS.get(annotation, name)


def _annotated_name(annotation: Any) -> str:
    inner = get_args(annotation)[0]
    if any(isinstance(item, Place) for item in annotation.__metadata__):
        return with_article(inner.kind)
    return " ".join([_name(inner), *_bounds(_unwrapped(annotation.__metadata__))])


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "(required)"
    value = info.get_default(call_default_factory=True, validated_data={})
    return "(none)" if value is None else toml(value)


def toml(value: Any) -> str:
    """Return a value as one line of TOML."""
    # Results of a search are numbers of numpy, which is not imported here.
    if type(value).__module__ == "numpy":
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        if set(value) == {"use"}:
            return toml(value["use"])
        pairs = (f"{dotted((key,))} = {toml(inner)}" for key, inner in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str | Path):
        # TOML forbids a bare DEL, which JSON does not escape.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _snippet(spec: type[Spec], catalog: Catalog) -> str:
    """Return lines of an experiment file that use the component, with its required options."""
    pairs = ", ".join([f'use = "{spec.name}"', *_required(spec, catalog)])
    line = f"{spec.kind.replace('-', '_')} = {{ {pairs} }}"
    if spec.kind in LISTED:
        line = f"{LISTED[spec.kind]} = [{{ {pairs} }}]"
    if spec.kind in PLACES:
        return f"[{PLACES[spec.kind]}]\n{line}"
    return line


def _required(spec: type[Spec], catalog: Catalog) -> Iterator[str]:
    """Yield assignments of the required options, with values that validate."""
    for key, info in spec.model_fields.items():
        if not info.is_required():
            continue
        value = _example(info.annotation, info.metadata, catalog)
        yield f"{key} = {toml(value)}"


def _example(annotation: Any, metadata: list[Any], catalog: Catalog) -> Any:
    """Return a value that satisfies the type and the bounds of a required option."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    bounds = {}
    for item in metadata:
        if type(item) in BOUNDS:
            bounds[type(item)] = getattr(item, BOUNDS[type(item)][1])
    if origin is Annotated:
        return _example(arguments[0], _unwrapped(annotation.__metadata__), catalog)
    if origin is Literal:
        return arguments[0]
    if origin in (Union, types.UnionType):
        return _example(arguments[0], metadata, catalog)
    if origin in (list, tuple):
        return [_example(arguments[0], [], catalog)] * bounds.get(MinLen, 0)
    if annotation in (int, float):
        return annotation(_low(annotation, bounds))
    text = "." * max(3, bounds.get(MinLen, 0))
    values = {str: text, bool: True}
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        values[annotation] = next(iter(catalog.names(annotation.kind)), "...")
    return values.get(annotation, {})


def _low(annotation: Any, bounds: Mapping[type, Any]) -> Any:
    """Return a small number within bounds."""
    if Ge in bounds:
        return bounds[Ge]
    low = bounds.get(Gt, 0)
    if annotation is int:
        return low + 1
    # Halfway to an upper bound, which may be less than 1.
    return low + 0.5 * bounds.get(Lt, bounds.get(Le, 1))
