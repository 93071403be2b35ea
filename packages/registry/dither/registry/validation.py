"""From a document to a validated Spec: every mistake at once, each at its line."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from .catalog import Catalog
from .document import Document
from .problems import Problem, Refused, nearest
from .spec import Misfit, Options, Path, Place, Spec

__all__ = ["dump", "problems_of", "validate"]

O = TypeVar("O", bound=Options)  # noqa: E741
TYPES = {
    dict: "a table",
    str: "the string",
    bool: "the boolean",
    int: "the integer",
    float: "the number",
    list: "the list",
}
EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def validate(model: type[O], document: Document, catalog: Catalog | None = None) -> O:
    """Read a document as `model`.

    Raises:
        Refused: With one problem for each mistake, at the place where it was given.
    """
    try:
        return model.model_validate(document.tree, context={"catalog": catalog})
    except ValidationError as error:
        problems = [_problem(model, document, catalog, dict(detail)) for detail in error.errors(include_url=False)]
        raise Refused(problems) from None


def _problem(model: type[Options], document: Document, catalog: Catalog | None, detail: dict[str, Any]) -> Problem:
    path: Path = tuple(detail["loc"])
    help_text = None
    if detail["type"] == "extra_forbidden":
        allowed = accepted_keys(model, document.tree, path[:-1], catalog)
        close = nearest(path[-1], allowed)
        message = "unknown key"
        help_text = (f'did you mean "{close}"? ' if close else "") + f"accepted: {', '.join(sorted(allowed))}"
    elif detail["type"] == "missing":
        message = "is missing"
        help_text = f"accepted here: {', '.join(sorted(accepted_keys(model, document.tree, path[:-1], catalog)))}"
    elif detail["type"] in EXPECTED:
        message = f"expected {EXPECTED[detail['type']]}, got {_shown(detail['input'])}"
    elif detail["type"] in ("no_name", "unknown_part", "wrong_kind"):
        message = detail["msg"]
    else:
        message = _lowered(detail["msg"]) + f", got {_shown(detail['input'])}"
    return Problem(message, path, document.origin(path), help_text)


def _lowered(text: str) -> str:
    text = text.removeprefix("Value error, ").removeprefix("Input ")
    return text[:1].lower() + text[1:]


def _shown(value: Any) -> str:
    word = TYPES.get(type(value), "")
    text = "" if isinstance(value, dict) else f" {value!r}"[:80]
    return f"{word}{text}".replace("'", '"').strip()


def accepted_keys(model: type[Options], tree: Any, path: Path, catalog: Catalog | None) -> set[str]:
    """Return the keys that the table at `path` may have."""
    for part in path:
        tree = Document.value_of(tree, (part,))
        if isinstance(part, int):
            continue
        info = model.model_fields.get(str(part))
        inner = _inner(info, tree, catalog) if info is not None else None
        if inner is None:
            return set()
        model = inner
    keys = set(model.model_fields)
    return keys | {"use"} if issubclass(model, Spec) else keys


def _inner(info: FieldInfo, tree: Any, catalog: Catalog | None) -> type[Options] | None:
    """Return the model of a field: of the part that is named there, or of a nested table."""
    places = any(isinstance(item, Place) for item in info.metadata)
    for candidate in _leaves(info.annotation):
        place = places or any(isinstance(item, Place) for item in getattr(candidate, "__metadata__", ()))
        inner = candidate if isinstance(candidate, type) else next(iter(get_args(candidate)), None)
        if not (isinstance(inner, type) and issubclass(inner, Options)):
            continue
        if not place:
            return inner
        name = tree if isinstance(tree, str) else Document.value_of(tree, ("use",))
        if catalog is not None and isinstance(name, str) and issubclass(inner, Spec):
            try:
                return catalog.find(inner.kind, name).spec
            except Refused:
                return None
    return None


def _leaves(annotation: Any) -> Iterable[Any]:
    if get_origin(annotation) in (Union, types.UnionType, list, dict):
        for argument in get_args(annotation):
            yield from _leaves(argument)
    else:
        yield annotation


def problems_of(misfits: Iterable[Misfit], document: Document) -> list[Problem]:
    """Give misfits between parts their places in the files."""
    found = []
    for misfit in misfits:
        related = []
        if misfit.related is not None and (other := document.origin(misfit.related)) is not None:
            related.append((f"the {misfit.related[-1]} comes from", other))
        found.append(Problem(misfit.message, misfit.path, document.origin(misfit.path), misfit.help, tuple(related)))
    return found


def dump(options: Options, catalog: Catalog | None = None) -> dict[str, Any]:
    """Return options as tables that parse to the same again; parts are pinned if a catalogue is given."""

    def plain(value: Any) -> Any:
        if isinstance(value, Spec):
            return {"use": catalog.pin(value) if catalog else value.name, **tables(value)}
        if isinstance(value, Options):
            return tables(value)
        if isinstance(value, Mapping):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [plain(inner) for inner in value]
        return value

    def tables(part: Options) -> dict[str, Any]:
        values = ((key, getattr(part, key)) for key in type(part).model_fields)
        return {key: plain(value) for key, value in values if value is not None}

    return tables(options)
