"""Checks for what every kind of part gives when it is built."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dither.registry import Refused

from ..check_utils import NotApplicable, assert_equal, seed_cpu
from ..situations import Situation
from .check import checks_of

__all__ = ["CHECKS", "MODULES"]

MODULES = ("model", "block", "embedding", "position", "condition", "head")
"""The kinds that are modules of torch."""


def builds(s: Situation) -> None:
    """The defaults can be built, with a value for each option that must be given."""
    _built(s)


def built_apart(s: Situation) -> None:
    """Two parts built from the same options share no tensor, list or table, which one could change for the other."""
    first, second = _state(_built(s)), _state(_built(s))
    shared = [name for name, value in first.items() if any(value is other for other in second.values())]
    assert not shared, f"two built parts share {', '.join(shared)}"


def _state(built: Any) -> dict[str, Any]:
    """Return what can be changed in a part, by name: what it holds itself, and in its modules."""
    found: dict[str, Any] = dict(_tensors(built)) if isinstance(built, nn.Module) else {}
    for name, value in vars(built).items() if hasattr(built, "__dict__") else ():
        if not name.startswith("_") and isinstance(value, list | dict | set | Tensor):
            found[name] = value
    return found


def seeded_build(s: Situation) -> None:
    """The global seed decides the initial weights, and nothing else does."""
    first, second = _module(s), _module(s)
    for (key, a), (_, b) in zip(_tensors(first).items(), _tensors(second).items(), strict=True):
        assert_equal(a, b, f"{key}, built twice under one seed")


def state_dict_round_trip(s: Situation) -> None:
    """The state dict holds all that differs between two builds."""
    first = _module(s)
    seed_cpu(s.seed + 1)
    second = s.spec.build(*s.given)
    second.load_state_dict(first.state_dict())
    for key, tensor in _tensors(first).items():
        assert_equal(_tensors(second)[key], tensor, f"{key}, after loading the state dict")


def builds_on_meta(s: Situation) -> None:
    """Under the meta device nothing is allocated, and names, shapes and types are those of a real build."""
    real = _tensors(_module(s))
    with torch.device("meta"):
        made = _tensors(s.spec.build(*s.given))
    assert made.keys() == real.keys(), f"on meta: {sorted(made)}, else {sorted(real)}"
    for name, tensor in made.items():
        assert tensor.is_meta, f"{name} is allocated on {tensor.device} under the meta device"
        told, found = ((*t.shape, t.dtype) for t in (real[name], tensor))
        assert told == found, f"{name} is {found} on meta, else {told}"


def torch_left_alone(s: Situation) -> None:
    """Building leaves the default type of numbers and the gradient mode as they were."""
    before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device())
    _built(s)
    after = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device())
    if before != after:
        torch.set_default_dtype(before[0])
        torch.set_grad_enabled(before[1])
        torch.set_default_device(before[2])
    assert before == after, f"building changed torch from {before} to {after}"


def _built(s: Situation) -> Any:
    """Build a part; data may have to be fetched or named first, and says so."""
    try:
        return s.build()
    except Refused as error:
        if s.spec.kind != "data":
            raise
        raise NotApplicable(f"its data is not at hand: {error.problems[0].message}") from None


def _module(s: Situation) -> nn.Module:
    built = s.build()
    if not isinstance(built, nn.Module):
        raise NotApplicable("it holds no weights")
    return built


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


CHECKS = (
    *checks_of("any", builds, built_apart, torch_left_alone, place="default", examples=2),
    *(
        check
        for kind in MODULES
        for check in checks_of(kind, seeded_build, state_dict_round_trip, builds_on_meta, examples=4)
    ),
)
"""The checks for building a part of any kind."""
