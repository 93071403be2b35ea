"""A simulated GPU: work on it runs on the CPU, while kernels and host synchronisations are counted.

A tensor of the simulated device says that it is on "meta", holds its value on the CPU, and works only inside a trace:
`with DeviceTrace() as trace: trace.move(model); ...; print(trace.syncs)`. So code takes every branch that it takes on
an accelerator, with true values, and each place that would wait for the device is named.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["DEVICE", "DeviceTrace"]

DEVICE = torch.device("meta")
"""The name of the simulated device."""
READS_VALUES = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "histc",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "_unique2",
    "unique_consecutive",
    "unique_dim",
}
"""Operations whose result, or the shape of it, is read by the host, such as `.item()`."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Operations whose second argument is a list of indices."""


class _OnDevice(Tensor):
    """A tensor of the simulated device."""

    value: Tensor
    owner: DeviceTrace

    @staticmethod
    def __new__(cls: type[Self], value: Tensor, trace: DeviceTrace) -> Self:
        wrapper: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=DEVICE,
        )
        wrapper.value = value
        wrapper.owner = trace
        return wrapper  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        raise RuntimeError(f"{func} of a simulated device outside its trace")

    def tolist(self) -> Any:
        self.owner.count("tolist")
        return self.value.tolist()


class DeviceTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts work on the simulated device.

    Attributes:
        kernels: Number of operations that are not views.
        syncs: Number of synchronisations by (operation, file:line of dither).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reset()

    def reset(self) -> None:
        self.kernels = 0
        self.syncs: Counter[tuple[str, str]] = Counter()

    def count(self, operation: str) -> None:
        """Count a synchronisation at the innermost line of dither that is running."""
        place = ""
        for frame, line in traceback.walk_stack(sys._getframe(1)):
            file = frame.f_code.co_filename
            if "/dither/" in file and file != __file__:
                place = f"{file.rpartition('/dither/')[2]}:{line}"
                break
        self.syncs[operation, place] += 1

    def move(self, module: nn.Module) -> nn.Module:
        """Move a module to the simulated device; shared parameters stay shared."""
        # `Module.to` would assign `.data`, which cannot change the class of a parameter.
        moved: dict[int, nn.Parameter] = {}
        for part in module.modules():
            for name, parameter in part.named_parameters(
                recurse=False, remove_duplicate=False
            ):
                if id(parameter) not in moved:
                    value = _OnDevice(parameter.detach(), self)
                    moved[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
                part._parameters[name] = moved[id(parameter)]
            for name, buffer in part.named_buffers(recurse=False):
                part._buffers[name] = _OnDevice(buffer, self)
        return module

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, _OnDevice)]
        target = kwargs.get("device")
        to_host = target is not None and torch.device(target) != DEVICE
        if not inputs and (target is None or to_host):
            return func(*args, **kwargs)

        name = func._schema.name.partition("::")[2]
        for sync in _syncs(name, args, kwargs):
            self.count(sync)
        if not func.is_view:
            self.kernels += 1
        out = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
        if name == "_local_scalar_dense" or to_host:
            return out

        return self._wrap(out, inputs)

    def _wrap(self, out: Any, inputs: Sequence[_OnDevice]) -> Any:
        """Return results as tensors of the simulated device."""
        # Operations in place return their argument, which must stay the same tensor.
        known = {id(x.value): x for x in inputs}

        def wrapped(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if id(x) in known:
                return known[id(x)]
            return _OnDevice(x, self)

        return tree_map(wrapped, out)


def _syncs(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the synchronisations of an operation."""
    if name in READS_VALUES:
        yield name
    if name in INDEXED:
        yield from _syncs_of_indices(args[1])
    if _crosses(name, args, kwargs):
        source = args[1] if name == "copy_" else args[0]
        yield f"copy to the {'host' if isinstance(source, _OnDevice) else 'device'}"


def _syncs_of_indices(indices: Sequence[Any]) -> Iterator[str]:
    for index in indices:
        # The number of true values is the shape of the result.
        if isinstance(index, Tensor) and index.dtype == torch.bool:
            yield "boolean index"
        elif isinstance(index, Tensor) and not isinstance(index, _OnDevice):
            yield "index on the host"


def _crosses(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation copies between host and device, and waits for it."""
    if name == "copy_":
        # copy_(destination, source, non_blocking)
        waits = not any(args[2:]) and not kwargs.get("non_blocking")
        return waits and isinstance(args[0], _OnDevice) != isinstance(
            args[1], _OnDevice
        )
    if name == "_to_copy" and kwargs.get("device") is not None:
        to_device = torch.device(kwargs["device"]) == DEVICE
        waits = not kwargs.get("non_blocking")
        return waits and isinstance(args[0], _OnDevice) != to_device
    return False


def _plain(x: Any) -> Any:
    if isinstance(x, _OnDevice):
        return x.value
    if isinstance(x, torch.device) and x == DEVICE:
        return torch.device("cpu")
    return x
