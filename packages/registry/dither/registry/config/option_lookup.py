"""Walk through the types of options: which keys a table may have, and which model it is."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from ..plugins.catalog import Catalog
from ..spec.base import Options, Place, Spec, default_part
from ..spec.misfit import Path
from .document import Document
from .errors import Refused

__all__ = [
    "accepts",
    "annotation_of",
    "descend",
    "models_of",
    "option_paths",
    "slot_kind",
]

MAX_DEPTH = 8
"""Tables inside each other that are searched for an option."""


def annotation_of(info: FieldInfo) -> Any:
    """Return the annotation of a field with its metadata."""
    return (
        Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
    )


def descend(
    annotation: Any, part: str | int, value: Any, catalog: Catalog | None
) -> tuple[Any, Any]:
    """Return annotation (None if nothing is expected) and value under a key or index."""
    inner = Document.value_of(value, (part,))
    if isinstance(part, str):
        for model in models_of(annotation, value, catalog):
            info = model.model_fields.get(part)
            if info is None:
                continue
            # A table without `use` has the options of the default component.
            default = default_part(info)
            if default and isinstance(inner, Mapping) and "use" not in inner:
                inner = {"use": default["use"], **inner}
            return annotation_of(info), inner
    for leaf, _ in _leaves(annotation):
        element = _element(leaf, part, value)
        if element is not None:
            return element, inner
    return None, inner


def option_paths(
    annotation: Any, value: Any, catalog: Catalog | None, path: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """Yield every option below a value with its annotation: those of the components in use."""
    if len(path) > MAX_DEPTH:
        return
    for model in models_of(annotation, value, catalog):
        for name, info in model.model_fields.items():
            inner_annotation = annotation_of(info)
            yield (*path, name), inner_annotation
            inner = Document.value_of(value, (name,))
            default = default_part(info)
            # Without a value, the options are those of the default component.
            if default and (inner is None or isinstance(inner, Mapping)):
                # Options of the default component do not apply to another one.
                inner = {
                    **({} if inner and "use" in inner else default),
                    **(inner or {}),
                }
            place = (*path, name)
            yield from option_paths(inner_annotation, inner, catalog, place)


def accepts(annotation: Any, value: Any) -> bool:
    """Return whether an option may take a value, by whether it is a table or a name."""
    for leaf, is_slot in _leaves(annotation):
        is_options = isinstance(leaf, type) and issubclass(leaf, Options)
        is_table = is_options or get_origin(leaf) is dict
        if isinstance(value, Mapping) and is_table:
            return True
        if isinstance(value, str) and (is_slot or not is_table):
            return True
        if not isinstance(value, Mapping | str) and not is_table:
            return leaf is not type(None)
    return False


def _element(container: Any, part: str | int, value: Any) -> Any:
    """Return the annotation of an element of a dict or a list; None for any other type."""
    origin = get_origin(container)
    arguments = get_args(container)
    if isinstance(part, str):
        if origin is dict and isinstance(value, Mapping) and part in value:
            return arguments[1]
        return None
    if origin is tuple and Ellipsis not in arguments and part < len(arguments):
        return arguments[part]
    if origin in (list, tuple, set, frozenset):
        return arguments[0]
    return None


def models_of(
    annotation: Any, value: Any, catalog: Catalog | None
) -> Iterator[type[Options]]:
    """Yield the models a value may be: that of the component it names, or of a nested table."""
    for leaf, is_slot in _leaves(annotation):
        if not (isinstance(leaf, type) and issubclass(leaf, Options)):
            continue
        if not is_slot:
            yield leaf
            continue
        if isinstance(value, leaf):
            yield type(value)
            continue
        name = value if isinstance(value, str) else Document.value_of(value, ("use",))
        if catalog is not None and isinstance(name, str) and issubclass(leaf, Spec):
            # The slot of the component itself reports that its name is unknown.
            with suppress(Refused):
                yield catalog.find(leaf.kind, name).spec


def slot_kind(annotation: Any) -> str | None:
    """Return the kind of component that a slot takes; None for any other option."""
    for leaf, is_slot in _leaves(annotation):
        if is_slot:
            kind: str = leaf.kind
            return kind
    return None


def _leaves(annotation: Any, is_slot: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield each type that an annotation allows, and whether it is a slot."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        marked = any(isinstance(item, Place) for item in metadata)
        yield from _leaves(inner, is_slot or marked)
    elif get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _leaves(argument, is_slot)
    else:
        yield annotation, is_slot
