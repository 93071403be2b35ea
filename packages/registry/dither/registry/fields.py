"""Which option stands at a place of a document, and which keys may stand there."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from .catalog import Catalog
from .document import Document
from .problems import Refused
from .spec import Options, Path, Place, Spec, default_part

__all__ = ["Found", "accepted_keys", "field_at", "kind_of"]


class Found(NamedTuple):
    """What stands where pydantic points to.

    Attributes:
        path: The place in the document.
        info: The option there, if it is one.
        union: The place of an option that may be of more than one type, if pydantic speaks of one of the types.
    """

    path: Path
    info: FieldInfo | None
    union: Path | None


def field_at(model: type[Options], tree: Any, location: Path, catalog: Catalog | None, absent: bool = False) -> Found:
    """Follow a location of pydantic's, in which names of types stand between the keys where a type is one of several.

    Args:
        model: What the tree is read as.
        tree: The values.
        location: Keys, numbers and names of types.
        catalog: The parts that may be named.
        absent: Whether the last of the location is a key that is not there.
    """
    annotation: Any = model
    path: Path = ()
    info: FieldInfo | None = None
    union: Path | None = None
    for number, part in enumerate(location, 1):
        inner = _descend(annotation, part, tree, catalog)
        there = (isinstance(tree, dict) and part in tree) or (isinstance(tree, list) and isinstance(part, int))
        if inner is None and not there and not (absent and number == len(location)):
            union = path if union is None else union
            continue
        annotation, info = inner or (None, None)
        tree = Document.value_of(tree, (part,))
        path = (*path, part)
    return Found(path, info, union)


def accepted_keys(model: type[Options], tree: Any, path: Path, catalog: Catalog | None) -> dict[str, FieldInfo | None]:
    """Return the keys that the table at a path may have, each with its option."""
    annotation: Any = model
    for part in path:
        annotation, _ = _descend(annotation, part, tree, catalog) or (None, None)
        tree = Document.value_of(tree, (part,))
    keys: dict[str, FieldInfo | None] = {}
    for inner in _models(annotation, tree, catalog):
        keys |= {"use": None, **inner.model_fields} if issubclass(inner, Spec) else dict(inner.model_fields)
    return keys


def kind_of(info: FieldInfo | None) -> str | None:
    """Return the kind of part that an option takes, if it takes one."""
    for leaf, place in _leaves(_annotation(info)) if info is not None else ():
        if place and isinstance(leaf, type) and issubclass(leaf, Spec):
            return leaf.kind
    return None


@dataclass(frozen=True)
class _Default:
    """Goes with an annotation: the name of the part that a table without `use` changes."""

    name: str


def _annotation(info: FieldInfo) -> Any:
    items: list[Any] = [item for item in info.metadata if isinstance(item, Place)][:1]
    if (part := default_part(info)) is not None:
        items.append(_Default(part["use"]))
    return Annotated[(info.annotation, *items)] if items else info.annotation


def _descend(
    annotation: Any, part: str | int, value: Any, catalog: Catalog | None
) -> tuple[Any, FieldInfo | None] | None:
    """Return what is expected under a key or number of a value, or None where nothing is."""
    if isinstance(part, str):
        for model in _models(annotation, value, catalog):
            if part in model.model_fields:
                info = model.model_fields[part]
                return _annotation(info), info
    for leaf, _ in _leaves(annotation):
        origin, arguments = get_origin(leaf), get_args(leaf)
        if origin is dict and isinstance(part, str) and isinstance(value, Mapping) and part in value:
            return arguments[1], None
        if origin in (list, tuple, set, frozenset) and isinstance(part, int):
            fixed = origin is tuple and Ellipsis not in arguments and part < len(arguments)
            return arguments[part if fixed else 0], None
    return None


def _models(annotation: Any, value: Any, catalog: Catalog | None) -> Iterator[type[Options]]:
    """Yield the tables of options that a value may be: that of the part it names or changes, or of a nested table."""
    defaults = [item.name for item in getattr(annotation, "__metadata__", ()) if isinstance(item, _Default)]
    for leaf, place in _leaves(annotation):
        if not (isinstance(leaf, type) and issubclass(leaf, Options)):
            continue
        if not place:
            yield leaf
            continue
        name = value if isinstance(value, str) else Document.value_of(value, ("use",))
        if defaults and isinstance(value, Mapping) and "use" not in value:
            name = defaults[0]
        if catalog is not None and isinstance(name, str) and issubclass(leaf, Spec):
            try:
                yield catalog.find(leaf.kind, name).spec
            except Refused:
                continue


def _leaves(annotation: Any, place: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield each type that an annotation allows, and whether it is a place for a part."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        yield from _leaves(inner, place or any(isinstance(item, Place) for item in metadata))
    elif get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _leaves(argument, place)
    else:
        yield annotation, place
