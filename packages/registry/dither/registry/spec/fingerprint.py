"""A fingerprint of a component's options, which changes with any name, type, bound or default.

It is the same in every process and on every machine: functions are represented by name, sets in
sorted order.
"""

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from inspect import signature
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .base import PathMark, Spec

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
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if metadata := getattr(annotation, "__metadata__", ()):
        return _type(arguments[0], seen) + _bounds(metadata)
    if origin in (Union, types.UnionType):
        return " | ".join(sorted(_type(argument, seen) for argument in arguments))
    if origin is not None:
        return f"{getattr(origin, '__name__', origin)}[{', '.join(_type(argument, seen) for argument in arguments)}]"
    if not isinstance(annotation, type):
        return _value(annotation)
    if (
        issubclass(annotation, BaseModel)
        and not issubclass(annotation, Spec)
        and annotation not in seen
    ):
        return _options(annotation, seen)
    enum = annotation.__members__.items() if issubclass(annotation, Enum) else ()
    members = ", ".join(sorted(f"{name} = {_value(member.value)}" for name, member in enum))
    return annotation.__name__ + (f"({members})" if members else "")


def _bounds(metadata: Iterable[Any]) -> str:
    """Return constraints as text like `ge=1`, without class names of the library."""
    return "".join(sorted(f" {inner}" for item in metadata if (inner := _bound(item))))


def _bound(item: Any) -> str:
    if isinstance(item, PathMark):  # changes no value
        return ""
    if isinstance(item, FieldInfo):  # inside Annotated; its description is not a constraint
        return _bounds(item.metadata).strip()
    text = _value(item)  # before and after validators differ in their class
    return text if hasattr(item, "func") else text.partition("(")[2].removesuffix(")")


def _default(info: FieldInfo) -> str:
    """Return the default as text; a factory that is a function or a class by name, since it may be random."""
    factory = info.default_factory
    if factory is None:
        return "required" if info.is_required() else _value(info.default)
    if getattr(factory, "__name__", "") == "<lambda>" and not signature(factory).parameters:
        first = _value(factory())  # type: ignore[call-arg]
        second = _value(factory())  # type: ignore[call-arg]
        if first == second:
            return first
    return f"{_value(factory)}()"


def _value(value: Any) -> str:
    """Return a value as text that is the same in every process."""
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_value, value))) + "}"
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(sorted(f"{_value(key)}: {_value(inner)}" for key, inner in value.items()))
            + "}"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if hasattr(
        value, "__qualname__"
    ):  # without the module, which depends on the path of a plugin file
        return str(value.__qualname__)
    textless: Any = object.__repr__
    inner: Mapping[str, Any] | None = None
    if is_dataclass(value):
        inner = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, BaseModel) or type(value).__repr__ is textless:
        inner = getattr(value, "__dict__", {})
    if inner is not None:
        return (
            f"{type(value).__name__}({', '.join(f'{key}={_value(v)}' for key, v in inner.items())})"
        )
    return ADDRESS.sub("", repr(value))
