"""A fingerprint of a part's options: it changes when a name, a type, a bound or a default changes."""

from __future__ import annotations

import hashlib
import types
from typing import Any, Union, get_args, get_origin

from .spec import Options, Spec

__all__ = ["fingerprint"]


def fingerprint(spec: type[Spec]) -> str:
    """Return `sha256:` and 16 hex digits over what an experiment file may say to a part."""
    return "sha256:" + hashlib.sha256(_options(spec).encode()).hexdigest()[:16]


def _options(model: type[Options]) -> str:
    lines = []
    for name, info in sorted(model.model_fields.items()):
        default = (
            "required" if info.is_required() else repr(info.get_default(call_default_factory=True, validated_data={}))
        )
        lines.append(f"{name}: {_type(info.annotation)}{_bounds(info.metadata)} = {default}")
    return "{" + "\n".join(lines) + "}"


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if metadata := getattr(annotation, "__metadata__", ()):
        return _type(arguments[0]) + _bounds(metadata)
    if origin is None:
        if isinstance(annotation, type) and issubclass(annotation, Options) and not issubclass(annotation, Spec):
            return _options(annotation)
        return annotation.__name__ if isinstance(annotation, type) else repr(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(sorted(map(_type, arguments)))
    return f"{getattr(origin, '__name__', origin)}[{', '.join(map(_type, arguments))}]"


def _bounds(metadata: Any) -> str:
    """Write constraints as `ge=1` does, without the names of the classes that a library holds them in."""
    return "".join(sorted(f" {repr(item).partition('(')[2].removesuffix(')')}" for item in metadata)).rstrip()
