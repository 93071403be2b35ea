"""Checks for components of every kind: their options, and what `build` returns."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import types
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any, Union, get_args, get_origin

import tomlkit
import torch
from pydantic import ValidationError
from pydantic.errors import PydanticUserError
from torch import Tensor, nn

from dither.registry import Options, Refused, Spec
from dither.registry.config.validation import dump
from dither.registry.plugins.discovery import FILE_MODULE
from dither.registry.spec.option_docs import docs_of
from dither.registry.spec.process_settings import SettingsChanged

from ..check_utils import NotApplicable, assert_equal, seed_cpu
from ..situations import Situation, checks_of, default_spec
from ..traits import unknown_traits

__all__ = ["CHECKS", "MODULES"]

TYPE_KEYS = frozenset(
    {"type", "$ref", "anyOf", "allOf", "oneOf", "enum", "const", "kind"}
)
"""Keys of a JSON Schema that restrict a value; `kind` is used for slots."""
MODULES = ("model", "block", "embedding", "position", "condition", "head")
"""Kinds whose components are `nn.Module`s."""
MUTABLE = (list, dict, set, bytearray)


def options_round_trip(s: Situation) -> None:
    """Options survive a round trip through tables and TOML."""
    spec = s.spec
    table = {"use": s.catalog.pin(spec), **dump(spec, s.catalog)}
    text = tomlkit.dumps(table)
    parsed = s.catalog.parse(spec.kind, tomllib.loads(text))
    assert parsed == spec, f"{spec!r} became {parsed!r}, written as {text!r}"

    context = {"catalog": s.catalog}
    again = type(spec).model_validate(spec.model_dump(), context=context)
    assert again == spec, f"{spec!r} became {again!r} after model_dump"


def unknown_option_refused(s: Situation) -> None:
    """An unknown option is an error that names it."""
    try:
        s.catalog.parse(s.spec.kind, {"use": s.part.pinned, "no-such-option": 1})
    except ValidationError as error:
        named = "no-such-option" in str(error)
    else:
        raise AssertionError(f"{s.part.pinned} accepts unknown options")
    assert named, "the error does not name the unknown option"


def summary(s: Situation) -> None:
    """The first line of the docstring is one sentence of at most 120 characters."""
    line = s.part.summary
    assert line, f"{s.part.pinned} has no docstring"
    assert len(line) <= 120, (
        f"the summary has {len(line)} characters, at most 120 are allowed: {line}"
    )
    assert line.endswith("."), f"the summary is not a sentence on one line: {line}"


def options_documented(s: Situation) -> None:
    """Every option has a docstring below it, in nested tables too."""
    missing: list[str] = []
    for prefix, table in _tables(s.part.spec):
        documented = docs_of(table)
        missing += [prefix + key for key in table.model_fields if key not in documented]
    assert not missing, f"{s.part.pinned}: no docstring below {', '.join(missing)}"


def options_writable(s: Situation) -> None:
    """None is only ever a default, since TOML has no null."""
    for prefix, table in _tables(s.part.spec):
        for key, info in table.model_fields.items():
            may_be_none = type(None) in get_args(info.annotation)
            if info.is_required() or not may_be_none:
                continue
            default = info.get_default(call_default_factory=True, validated_data={})
            assert default is None, (
                f"{prefix}{key} may be None but defaults to {default!r}: files cannot set None"
            )


def _tables(
    model: type[Options], prefix: str = ""
) -> Iterator[tuple[str, type[Options]]]:
    """Yield the options of a component and of every nested table, with the prefix of its keys."""
    yield prefix, model
    for key, info in model.model_fields.items():
        alternatives: tuple[Any, ...] = (info.annotation,)
        if get_origin(info.annotation) in (Union, types.UnionType):
            alternatives = get_args(info.annotation)
        for inner in alternatives:
            # A Spec is an option of its own, checked where it is registered.
            is_table = isinstance(inner, type) and issubclass(inner, Options)
            if is_table and not issubclass(inner, Spec):
                yield from _tables(inner, f"{prefix}{key}.")


def spec_without_torch(s: Situation) -> None:
    """Importing the module of the Spec does not import torch."""
    module = type(s.spec).__module__
    modules = {
        part.spec.__module__
        for part in s.catalog.parts()
        if part.plugin == s.part.plugin
    }
    # All modules of a plugin in one process, which takes a second.
    installed = sorted(filter(_is_installed, modules))
    imported = _import_torch(tuple(installed)).get(module)
    if imported is None:
        raise NotApplicable(f"{module} is a file, not an installed module")
    assert not imported, (
        f"importing {module} imports torch, which delays listing and validation"
    )


def _is_installed(module: str) -> bool:
    from_file = module.startswith(FILE_MODULE)
    return not from_file and getattr(sys.modules[module], "__spec__", None) is not None


IMPORTS = """
import importlib, importlib.util, json, sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "torch" else None
    def create_module(self, spec):
        imported[module] = True
        raise ImportError("torch")
    def exec_module(self, module): ...
imported = {}
sys.meta_path.insert(0, NoTorch())
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
        imported.setdefault(module, False)
    except ImportError as error:
        if module not in imported and error.name != module.partition(".")[0]:
            raise
print(json.dumps(imported))
"""
"""Import modules without torch, and print which of the existing ones import it."""


@cache
def _import_torch(modules: tuple[str, ...]) -> dict[str, bool]:
    """Import modules in another process; return whether each of those that exist there imports torch."""
    # This process has imported torch already.
    command = [sys.executable, "-Pc", IMPORTS, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, f"import {', '.join(modules)}: {done.stderr}"
    # Modules may print while they are imported.
    last_line = done.stdout.splitlines()[-1]
    imported: dict[str, bool] = json.loads(last_line)
    return imported


def snippet_valid(s: Situation) -> None:
    """The snippet that `describe` shows can be parsed."""
    default_spec(s.part, s.catalog)


def json_schema(s: Situation) -> None:
    """The options have a JSON Schema with types, for editors."""
    try:
        schema = s.part.spec.model_json_schema()
    except PydanticUserError as error:
        raise AssertionError(
            f"{s.part.pinned} has an option whose type has no JSON Schema: {error}"
        ) from None
    properties = schema.get("properties", {})
    untyped = [
        key
        for key in s.part.spec.model_fields
        if not TYPE_KEYS & properties.get(key, {}).keys()
    ]
    assert not untyped, f"the JSON Schema has no type for {', '.join(untyped)}"
    # Editors cannot read a schema with NaN, which is not JSON.
    json.dumps(schema, allow_nan=False)


def options_frozen(s: Situation) -> None:
    """Options are immutable, and equal hashable options have equal hashes."""
    for key in type(s.spec).model_fields:
        before = getattr(s.spec, key)
        try:
            # The same value, so that only the assignment can fail.
            setattr(s.spec, key, before)
        except (ValidationError, TypeError, AttributeError):
            continue
        raise AssertionError(f"{key} can be assigned: {s.part.pinned} is not frozen")
    table = {"use": s.part.pinned, **dump(s.spec, s.catalog)}
    again = s.catalog.parse(s.spec.kind, table)
    if _hash(s.spec) is not None:
        assert _hash(again) == _hash(s.spec), "equal options have different hashes"


def _hash(spec: Any) -> int | None:
    try:
        return hash(spec)
    except TypeError:
        # An option is a list or a table.
        return None


def defaults_share_nothing(s: Situation) -> None:
    """Two Specs with defaults share no mutable object."""
    first = default_spec(s.part, s.catalog)
    second = default_spec(s.part, s.catalog)
    for key in type(first).model_fields:
        value = getattr(first, key)
        shared = isinstance(value, MUTABLE) and value is getattr(second, key)
        assert not shared, f"two default {s.part.pinned} share {key}"
    # Pydantic's own tables are class attributes, too.
    ours = ("model_config", "model_fields", "model_computed_fields")
    for name, value in vars(s.part.spec).items():
        if not name.startswith("_") and name not in ours:
            shared = isinstance(value, MUTABLE)
            assert not shared, (
                f"all {s.part.pinned} share the mutable class attribute {name}"
            )


def traits_known(s: Situation) -> None:
    """Every declared trait is verified by a check."""
    unknown = unknown_traits(s.spec)
    assert not unknown, "; ".join(unknown)


def builds(s: Situation) -> None:
    """The component can be built with its defaults."""
    _built(s)


def builds_share_nothing(s: Situation) -> None:
    """Two components built from the same options share no mutable object."""
    first = _state(_built(s))
    second = _state(_built(s))
    identities = set(map(id, second.values()))
    shared = [name for name, value in first.items() if id(value) in identities]
    assert not shared, f"two built components share {', '.join(shared)}"


def _state(built: Any) -> dict[str, Any]:
    """Return the tensors and mutable attributes of a component by name."""
    state: dict[str, Any] = {}
    if isinstance(built, nn.Module):
        state |= _tensors(built)
    mutable = (list, dict, set, Tensor)
    # A tuple of functions has no attributes of its own.
    attributes = vars(built) if hasattr(built, "__dict__") else {}
    for name, value in attributes.items():
        if not name.startswith("_") and isinstance(value, mutable):
            state[name] = value
    return state


def keeps_torch_globals(s: Situation) -> None:
    """Building does not change torch's default dtype, device, gradient mode or other settings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _built(s)
    for warning in caught:
        # `build` restores the settings and warns.
        assert not issubclass(warning.category, SettingsChanged), str(warning.message)


def seeded_build(s: Situation) -> None:
    """Torch's seed determines the initial weights."""
    first = _module(s)
    second = _module(s)
    again = _tensors(second)
    for key, tensor in _tensors(first).items():
        assert_equal(tensor, again[key], f"{key}, built twice with the same seed")


def state_dict_round_trip(s: Situation) -> None:
    """Loading the state dict into another build restores all tensors."""
    first = _module(s)
    # Another seed: equal weights would hide a tensor that is not in the state dict.
    seed_cpu(s.seed + 1)
    second = s.spec.build(*s.args)
    second.load_state_dict(first.state_dict())
    loaded = _tensors(second)
    for key, tensor in _tensors(first).items():
        assert_equal(loaded[key], tensor, f"{key} after loading the state dict")


def builds_on_meta(s: Situation) -> None:
    """On the meta device nothing is allocated; names, shapes and dtypes are those of a real build."""
    real = _tensors(_module(s))
    with torch.device("meta"):
        meta = _tensors(s.spec.build(*s.args))
    assert meta.keys() == real.keys(), (
        f"on meta: {sorted(meta)}, otherwise {sorted(real)}"
    )
    for name, tensor in meta.items():
        assert tensor.is_meta, (
            f"{name} is allocated on {tensor.device} despite the meta device"
        )
        actual = (tuple(tensor.shape), tensor.dtype)
        expected = (tuple(real[name].shape), real[name].dtype)
        assert actual == expected, f"{name} is {actual} on meta, otherwise {expected}"


def _built(s: Situation) -> Any:
    """Build the component; data may be refused if it is not available."""
    try:
        return s.build()
    except Refused as error:
        if s.spec.kind != "data":
            raise
        raise NotApplicable(
            f"data not available: {error.problems[0].message}"
        ) from None


def _module(s: Situation) -> nn.Module:
    built = s.build()
    if not isinstance(built, nn.Module):
        raise NotApplicable("not an nn.Module")
    return built


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


CHECKS = (
    *checks_of(
        "any", options_round_trip, options_frozen, traits_known, place="options"
    ),
    *checks_of(
        "any",
        unknown_option_refused,
        spec_without_torch,
        snippet_valid,
        json_schema,
        defaults_share_nothing,
        place="alone",
        examples=1,
    ),
    *checks_of(
        "any",
        summary,
        options_documented,
        options_writable,
        level="recommended",
        place="alone",
        examples=1,
    ),
    *checks_of(
        "any",
        builds,
        builds_share_nothing,
        keeps_torch_globals,
        place="default",
        examples=2,
    ),
    *chain.from_iterable(
        checks_of(kind, seeded_build, state_dict_round_trip, builds_on_meta, examples=4)
        for kind in MODULES
    ),
)
