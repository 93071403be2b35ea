"""The state of an optimizer as named tensors and JSON values, to be stored without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["flatten", "restore"]

PLAIN = (bool, int, float, str, type(None))


def flatten(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors by `parameter.key`, and all other values as JSON.

    TypeError if the state contains another type.
    """
    state_dict = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {"state": {}, "groups": []}
    for index, entry in state_dict["state"].items():
        for key, value in entry.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = value
            else:
                # Keys of JSON objects are text.
                plain["state"].setdefault(str(index), {})[key] = _plain(
                    optimizer, key, value
                )
    for number, group in enumerate(state_dict["param_groups"]):
        options = {}
        for key, value in group.items():
            if isinstance(value, Tensor):
                tensors[f"group.{number}.{key}"] = value
            else:
                options[key] = _plain(optimizer, key, value)
        plain["groups"].append(options)
    return tensors, plain


def _plain(optimizer: Optimizer, key: str, value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(optimizer, key, item) for item in value]
    if isinstance(value, PLAIN):
        return value
    name = type(optimizer).__name__
    raise TypeError(
        f"{name} stores a {type(value).__name__} as {key!r}; checkpoints hold tensors and JSON values only"
    )


def restore(
    optimizer: Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]
) -> None:
    """Restore the state that `flatten` returned into an optimizer over the same parameters.

    ValueError if it belongs to other parameters.
    """
    fresh = optimizer.state_dict()["param_groups"]
    sizes = [len(group["params"]) for group in plain["groups"]]
    expected = [len(group["params"]) for group in fresh]
    if sizes != expected:
        raise ValueError(
            f"the stored optimizer has groups of {sizes} parameters, this one of {expected}"
        )

    # JSON has no tuples.
    groups = [dict(group) for group in plain["groups"]]
    for group, present in zip(groups, fresh, strict=True):
        for key, value in present.items():
            if isinstance(value, tuple):
                group[key] = tuple(group[key])

    state: dict[int, dict[str, Any]] = {}
    for index, entry in plain["state"].items():
        state[int(index)] = dict(entry)
    for name, value in tensors.items():
        where, _, key = name.partition(".")
        if where == "group":
            number, _, key = key.partition(".")
            groups[int(number)][key] = value
            continue
        if int(where) >= sum(sizes):
            raise ValueError(
                f"the stored optimizer has a parameter {where}, this one has {sum(sizes)}"
            )
        state.setdefault(int(where), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})
