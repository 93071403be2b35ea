"""A fingerprint of a component's options, which changes with any name, type, bound or default.

It is the same in every process and on every machine: functions are represented by name, sets in sorted order, and
objects without their own `repr` by class and attributes.
"""

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from inspect import signature
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .base import Spec

__all__ = ["fingerprint"]

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
Seen = tuple[Any, ...]


def fingerprint(spec: type[Spec]) -> str:
    """Return `sha256:` and 16 hex digits over the options of a component."""
    return "sha256:" + hashlib.sha256(_options(spec, ()).encode()).hexdigest()[:16]


def _options(model: type[BaseModel], seen: Seen) -> str:
    """Return every option as text; a recursive model is expanded once, then named."""
    lines = [
        f"{name}: {_type(info.annotation, (*seen, model))}{_bounds(info.metadata)} = {_default(info)}"
        for name, info in sorted(model.model_fields.items())
    ]
    return "{" + "\n".join(lines) + "}"


def _type(annotation: Any, seen: Seen) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if metadata := getattr(annotation, "__metadata__", ()):
        return _type(arguments[0], seen) + _bounds(metadata)
    if hasattr(annotation, "__value__"):  # `type Name = ...`, which may be recursive
        inside = annotation not in seen
        return _type(annotation.__value__, (*seen, annotation)) if inside else str(annotation.__name__)
    if origin is None:
        return _plain_type(annotation, seen)
    if origin in (Union, types.UnionType):
        return " | ".join(sorted(_type(argument, seen) for argument in arguments))
    name = getattr(origin, "__name__", origin)
    return f"{name}[{', '.join(_type(argument, seen) for argument in arguments)}]"


def _plain_type(annotation: Any, seen: Seen) -> str:
    if not isinstance(annotation, type):
        return _value(annotation)
    if issubclass(annotation, BaseModel) and not issubclass(annotation, Spec) and annotation not in seen:
        return _options(annotation, seen)
    if issubclass(annotation, Enum):
        members = (f"{name} = {_value(member.value)}" for name, member in annotation.__members__.items())
        return f"{annotation.__name__}({', '.join(sorted(members))})"
    return annotation.__name__


def _bounds(metadata: Iterable[Any]) -> str:
    """Return constraints as text like `ge=1`, without class names of the library."""
    return "".join(sorted(f" {inner}" for item in metadata if (inner := _bound(item))))


def _bound(item: Any) -> str:
    if isinstance(item, FieldInfo):  # inside Annotated; its description is not a constraint
        return _bounds(item.metadata).strip()
    text = _value(item)
    return (
        text if hasattr(item, "func") else text.partition("(")[2].removesuffix(")")
    )  # before or after validators differ


def _default(info: FieldInfo) -> str:
    """Return the default as text; a factory that is a function or a class by name, since it may be random."""
    factory = info.default_factory
    if factory is None:
        return "required" if info.is_required() else _value(info.default)
    if getattr(factory, "__name__", "") == "<lambda>" and not signature(factory).parameters:
        first, second = _value(factory()), _value(factory())  # type: ignore[call-arg]
        if first == second:
            return first
    return f"{_value(factory)}()"


def _value(value: Any) -> str:
    """Return a value as text that is the same in every process."""
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_value, value))) + "}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{_value(key)}: {_value(inner)}" for key, inner in value.items())) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if hasattr(value, "__qualname__"):  # without the module, which depends on the path of a plugin file
        return str(value.__qualname__)
    if (inner := _attributes(value)) is not None:
        return f"{type(value).__name__}({', '.join(f'{key}={_value(v)}' for key, v in inner.items())})"
    return ADDRESS.sub("", repr(value))


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object whose `repr` is unstable, or None."""
    if isinstance(value, Enum):
        return {"name": value.name}
    if isinstance(value, partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    textless: Any = object.__repr__
    if isinstance(value, BaseModel) or type(value).__repr__ is textless:
        return dict(vars(value)) if hasattr(value, "__dict__") else {}
    return None
