"""Checks for the options of every kind of part."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, Union, get_args, get_origin

import tomlkit
from pydantic import ValidationError
from pydantic.errors import PydanticUserError

from dither.registry import Options
from dither.registry.config.validation import dump
from dither.registry.spec.option_docs import docs_of

from ..check_utils import NotApplicable
from ..situations import Situation, default_spec
from ..traits import unknown_traits
from .check import checks_of

__all__ = ["CHECKS"]

SAYS = frozenset({"type", "$ref", "anyOf", "allOf", "oneOf", "enum", "const", "kind"})
"""Keys of a JSON Schema that say what a value may be; `kind` is how a slot says it."""


def options_round_trip(s: Situation) -> None:
    """Options come back from tables, and from TOML text."""
    table = {"use": s.catalog.pin(s.spec), **dump(s.spec, s.catalog)}
    text = tomlkit.dumps(table)
    assert s.catalog.parse(s.spec.kind, tomllib.loads(text)) == s.spec, f"{s.spec!r} does not come back from {text!r}"
    again = type(s.spec).model_validate(s.spec.model_dump(), context={"catalog": s.catalog})
    assert again == s.spec, f"{s.spec!r} does not come back from its own dump"


def unknown_option_refused(s: Situation) -> None:
    """A mistyped option is an error."""
    try:
        s.catalog.parse(s.spec.kind, {"use": s.part.pinned, "no-such-option": 1})
    except ValidationError as error:
        named = "no-such-option" in str(error)
    else:
        raise AssertionError(f"{s.part.pinned} takes any option")
    assert named, "the error does not name the option that it refuses"


def summary(s: Situation) -> None:
    """The first line of the docstring says in one sentence what the part does."""
    line = s.part.summary
    assert line, f"{s.part.pinned} has no docstring"
    assert len(line) <= 120, f"the summary has {len(line)} letters, at most 120 fit in a list: {line}"
    assert line.endswith("."), f"the summary is no sentence that ends on its line: {line}"


def options_documented(s: Situation) -> None:
    """A docstring stands under every option, of inner tables too."""
    tables = list(_tables(s.part.spec))
    missing = [prefix + key for prefix, table in tables for key in table.model_fields if key not in docs_of(table)]
    assert not missing, f"{s.part.pinned}: no docstring under {', '.join(missing)}"


def options_writable(s: Situation) -> None:
    """TOML has no null, so None can only ever be a default."""
    for key, info in (
        (prefix + key, info) for prefix, t in _tables(s.part.spec) for key, info in t.model_fields.items()
    ):
        if not info.is_required() and type(None) in get_args(info.annotation):
            default = info.get_default(call_default_factory=True, validated_data={})
            assert default is None, f"{key} may be None, but its default is {default!r}: no file can ask for None"


def _tables(model: type[Options], prefix: str = "") -> Iterator[tuple[str, type[Options]]]:
    """Yield the options of a part, and of each table inside them with the keys before it."""
    yield prefix, model
    for key, info in model.model_fields.items():
        union = get_origin(info.annotation) in (Union, types.UnionType)
        for inner in get_args(info.annotation) if union else (info.annotation,):
            if isinstance(inner, type) and issubclass(inner, Options) and not hasattr(inner, "kind"):
                yield from _tables(inner, f"{prefix}{key}.")


def menu_without_torch(s: Situation) -> None:
    """The module of the Spec does not import torch."""
    module = type(s.spec).__module__
    if getattr(sys.modules[module], "__spec__", None) is None or module.startswith(
        "dither.registry.plugins.plugin_files."
    ):
        raise NotApplicable(f"{module} is a file, not an installed module")
    imported = _imports_torch(module)
    if imported is None:
        raise NotApplicable(f"{module} is a file, not an installed module")
    assert not imported, f"importing {module} imports torch, so that lists and errors wait for it"


@cache
def _imports_torch(module: str) -> bool | None:
    """Import a module in a process of its own; None if there is none of that name."""
    code = f"import sys, importlib; importlib.import_module({module!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if f"No module named {module.partition('.')[0]!r}" in done.stderr:
        return None
    assert not done.returncode, f"import {module}: {done.stderr}"
    return done.stdout.strip() == "True"


def described_snippet(s: Situation) -> None:
    """What `describe` shows as the way to write the part can be read."""
    default_spec(s.part, s.catalog)


def json_schema(s: Situation) -> None:
    """The options have a JSON Schema, so that editors can help with them."""
    try:
        schema = s.part.spec.model_json_schema()
    except PydanticUserError as error:
        raise AssertionError(f"{s.part.pinned} has an option of a type that no JSON Schema tells: {error}") from None
    told = schema.get("properties", {})
    untold = [key for key in s.part.spec.model_fields if not SAYS & told.get(key, {}).keys()]
    assert not untold, f"the JSON Schema says nothing of {', '.join(untold)}"
    json.dumps(schema, allow_nan=False)


def options_frozen(s: Situation) -> None:
    """Options cannot be changed once they are read, and equal options have one hash wherever they can have one."""
    for key in type(s.spec).model_fields:
        before = getattr(s.spec, key)
        try:
            setattr(s.spec, key, before)
        except (ValidationError, TypeError, AttributeError):
            continue
        raise AssertionError(f"{key} can be set after reading: {s.part.pinned} is not frozen")
    again = s.catalog.parse(s.spec.kind, {"use": s.part.pinned, **dump(s.spec, s.catalog)})
    if _hash(s.spec) is not None:
        assert _hash(again) == _hash(s.spec), "equal options have different hashes"


def _hash(spec: Any) -> int | None:
    try:
        return hash(spec)
    except TypeError:  # an option is a list or a table
        return None


def defaults_apart(s: Situation) -> None:
    """Two parts with their defaults share no list and no table, which one could change for the other."""
    first, second = (default_spec(s.part, s.catalog) for _ in range(2))
    shared = [
        key
        for key in type(first).model_fields
        if _mutable(getattr(first, key)) and getattr(first, key) is getattr(second, key)
    ]
    assert not shared, f"two default {s.part.pinned} share one {', '.join(shared)}"
    held = [name for name, value in vars(s.part.spec).items() if not name.startswith("_") and _mutable(value)]
    held = [name for name in held if name not in ("model_config", "model_fields", "model_computed_fields")]
    assert not held, f"every {s.part.pinned} shares {', '.join(held)} of its class, which can be changed"


def _mutable(value: Any) -> bool:
    return isinstance(value, list | dict | set | bytearray)


def promises_checked(s: Situation) -> None:
    """Every trait that the Spec promises is one that a check looks after."""
    stray = unknown_traits(s.spec)
    assert not stray, "; ".join(stray)


def revision(s: Situation) -> None:
    """The revision is a whole number from 1 on, and earlier names are not those of today."""
    rev = s.part.spec.rev
    assert type(rev) is int, f"rev is {rev!r}"
    assert rev >= 1, f"rev is {rev}"


CHECKS = (
    *checks_of("any", options_round_trip, options_frozen, promises_checked, place="options"),
    *checks_of(
        "any",
        unknown_option_refused,
        menu_without_torch,
        described_snippet,
        json_schema,
        defaults_apart,
        revision,
        place="alone",
        examples=1,
    ),
    *checks_of("any", summary, options_documented, options_writable, level="recommended", place="alone", examples=1),
)
"""The checks for the options of any kind of part."""
