"""A simulated GPU: work on it runs on the CPU, while kernels and host synchronisations are counted.

A tensor of the simulated device says that it is on "meta", holds its value on the CPU, and works only inside a trace:
`with DeviceTrace() as trace: trace.move(model); ...; print(trace.syncs)`. So code takes every branch that it takes on
an accelerator, with true values, and each place that would wait for the device is named.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
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
"""Operations whose result or its shape is read by the host: `.item()`, `bool`, boolean indices,
.."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
NO_KERNEL = {
    "alias",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "lift_fresh",
    "new_empty",
    "new_empty_strided",
}


class _OnDevice(Tensor):
    """A tensor of the simulated device."""

    value: Tensor
    owner: DeviceTrace

    @staticmethod
    def __new__(cls: type[Self], value: Tensor, trace: DeviceTrace) -> Self:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=DEVICE,
        )
        made.value = value
        made.owner = trace
        return made  # type: ignore[no-any-return]

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
    """Counts operations on the simulated device: `kernels` by name, `syncs` by (operation, file:line of dither)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: Counter[str] = Counter()
        self.syncs: Counter[tuple[str, str]] = Counter()

    def reset(self) -> None:
        self.kernels.clear()
        self.syncs.clear()

    def count(self, operation: str) -> None:
        """Count a synchronisation at the innermost line of dither that is running."""
        frame: Any = sys._getframe(1)
        while frame is not None and (
            "/dither/" not in frame.f_code.co_filename
            or frame.f_code.co_filename == __file__
        ):
            frame = frame.f_back
        place = (
            ""
            if frame is None
            else f"{frame.f_code.co_filename.rpartition('/dither/')[2]}:{frame.f_lineno}"
        )
        self.syncs[operation, place] += 1

    def move(self, module: nn.Module) -> nn.Module:
        """Move a module to the simulated device; shared parameters stay shared."""
        moved: dict[int, nn.Parameter] = {}
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    value = nn.Parameter(
                        _OnDevice(parameter.detach(), self), parameter.requires_grad
                    )
                    part._parameters[name] = moved.setdefault(id(parameter), value)
            for name, buffer in part._buffers.items():
                part._buffers[name] = (
                    None if buffer is None else _OnDevice(buffer, self)
                )
        return module

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        on_device = [x for x in tree_leaves((args, kwargs)) if isinstance(x, _OnDevice)]
        target = kwargs.get("device")
        target = None if target is None else torch.device(target)
        if not on_device and target != DEVICE:
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        self._inspect(name, args, kwargs, target)
        if not func.is_view and name not in NO_KERNEL:
            self.kernels[name] += 1
        out = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
        if name == "_local_scalar_dense" or (target is not None and target != DEVICE):
            return out
        same = {
            id(x.value): x for x in on_device
        }  # operations in place return their argument

        def wrapped(x: Any) -> Any:
            return (
                same[id(x)]
                if id(x) in same
                else _OnDevice(x, self)
                if isinstance(x, Tensor)
                else x
            )

        return tree_map(wrapped, out)

    def _inspect(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        target: torch.device | None,
    ) -> None:
        if name in READS_VALUES:
            self.count(name)
        for index in args[1] if name in INDEXED else ():
            if isinstance(index, Tensor) and (
                index.dtype == torch.bool or not isinstance(index, _OnDevice)
            ):
                self.count(
                    "boolean index"
                    if index.dtype == torch.bool
                    else "index on the host"
                )
        across = name == "copy_" and isinstance(args[0], _OnDevice) != isinstance(
            args[1], _OnDevice
        )
        if name == "_to_copy" and target is not None:
            across = isinstance(args[0], _OnDevice) != (target == DEVICE)
        waits = not kwargs.get("non_blocking") and not (
            name == "copy_" and len(args) > 2 and args[2]
        )
        if across and waits:
            from_device = isinstance(args[1 if name == "copy_" else 0], _OnDevice)
            self.count("copy to the host" if from_device else "copy to the device")


def _plain(x: Any) -> Any:
    if isinstance(x, _OnDevice):
        return x.value
    return torch.device("cpu") if isinstance(x, torch.device) and x == DEVICE else x
