"""Checks for parts of every kind."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, Union, get_args, get_origin

import pytest
import tomlkit
import torch
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from dither.registry import Options
from dither.registry.validation import dump

from ..probing import NotApplicable, same, seed_cpu
from ..situations import Situation, default_spec
from .check import Check

__all__ = ["CHECKS"]


def options_round_trip(s: Situation) -> None:
    """Options come back from tables, and from TOML text."""
    table = {"use": s.catalog.pin(s.spec), **dump(s.spec, s.catalog)}
    text = tomlkit.dumps(table)
    assert s.catalog.parse(s.spec.kind, tomllib.loads(text)) == s.spec, f"{s.spec!r} does not come back from {text!r}"
    again = type(s.spec).model_validate(s.spec.model_dump(), context={"catalog": s.catalog})
    assert again == s.spec, f"{s.spec!r} does not come back from its own dump"


def unknown_option_refused(s: Situation) -> None:
    """A mistyped option is an error."""
    with pytest.raises(ValidationError, match="no-such-option"):
        s.catalog.parse(s.spec.kind, {"use": s.part.pinned, "no-such-option": 1})


def summary(s: Situation) -> None:
    """The first line of the docstring says in one sentence what the part does."""
    line = s.part.summary
    assert line, f"{s.part.pinned} has no docstring"
    assert len(line) <= 120, f"the summary has {len(line)} letters, at most 120 fit in a list: {line}"
    assert line.endswith("."), f"the summary is no sentence that ends on its line: {line}"


def options_documented(s: Situation) -> None:
    """A docstring stands under every option, of inner tables too."""
    missing = [key for key, info in _options(s.part.spec) if not (info.description or "").strip()]
    assert not missing, f"{s.part.pinned}: no docstring under {', '.join(missing)}"


def options_writable(s: Situation) -> None:
    """TOML has no null, so None can only ever be a default."""
    for key, info in _options(s.part.spec):
        if not info.is_required() and type(None) in get_args(info.annotation):
            default = info.get_default(call_default_factory=True, validated_data={})
            assert default is None, f"{key} may be None, but its default is {default!r}: no file can ask for None"


def _options(model: type[Options], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for key, info in model.model_fields.items():
        yield prefix + key, info
        union = get_origin(info.annotation) in (Union, types.UnionType)
        for inner in get_args(info.annotation) if union else (info.annotation,):
            if isinstance(inner, type) and issubclass(inner, Options) and not hasattr(inner, "kind"):
                yield from _options(inner, f"{prefix}{key}.")


def menu_without_torch(s: Situation) -> None:
    """The module of the Spec does not import torch."""
    module = type(s.spec).__module__
    if getattr(sys.modules[module], "__spec__", None) is None or module.startswith("dither_file_plugin_"):
        raise NotApplicable(f"{module} is a file, not an installed module")
    assert not _imports_torch(module), f"importing {module} imports torch, so that lists and errors wait for it"


@cache
def _imports_torch(module: str) -> bool:
    code = f"import sys, importlib; importlib.import_module({module!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, f"import {module}: {done.stderr}"
    return done.stdout.strip() == "True"


def described_snippet(s: Situation) -> None:
    """What `describe` shows as the way to write the part can be read."""
    default_spec(s.part, s.catalog)


def builds(s: Situation) -> None:
    """The defaults can be built, with a value for each option that must be given."""
    s.build()


def seeded_build(s: Situation) -> None:
    """The global seed decides the initial weights, and nothing else does."""
    first, second = _module(s), _module(s)
    for (key, a), (_, b) in zip(_tensors(first).items(), _tensors(second).items(), strict=True):
        same(a, b, f"{key}, built twice under one seed")


def state_dict_round_trip(s: Situation) -> None:
    """The state dict holds all that differs between two builds."""
    first = _module(s)
    seed_cpu(s.seed + 1)
    second = s.spec.build(*s.given)
    second.load_state_dict(first.state_dict())
    for key, tensor in _tensors(first).items():
        same(_tensors(second)[key], tensor, f"{key}, after loading the state dict")


def _module(s: Situation) -> torch.nn.Module:
    built = s.build()
    if not isinstance(built, torch.nn.Module):
        raise NotApplicable("it holds no weights")
    return built


def _tensors(module: torch.nn.Module) -> dict[str, Any]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


CHECKS = (
    Check("options_round_trip", "any", options_round_trip, "options"),
    Check("unknown_option_refused", "any", unknown_option_refused, "options"),
    Check("summary", "any", summary, "options"),
    Check("options_documented", "any", options_documented, "options"),
    Check("options_writable", "any", options_writable, "options"),
    Check("menu_without_torch", "any", menu_without_torch, "options"),
    Check("described_snippet", "any", described_snippet, "options"),
    Check("builds", "any", builds, "default"),
    *(
        Check(check.__name__, kind, check)
        for kind in ("model", "block", "embedding", "position", "condition", "head")
        for check in (seeded_build, state_dict_round_trip)
    ),
)
"""The checks for any kind of part."""
