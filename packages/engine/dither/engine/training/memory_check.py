"""Compare the memory of weights, gradients, optimizer state and EMA with the machine, before a run allocates any.

Everything is counted on torch's meta device. Activations depend on kernels and are not counted: where they do not fit,
the run stops with exit code 5 and names the options to lower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dither.registry.config.errors import Problem, Refused

from ..config.component_errors import annotate_build_errors
from ..config.experiment import Experiment
from ..config.machine_memory import size, total_memory
from .device import choose_device
from .lora import add_lora
from .trainer import freeze

__all__ = ["build_on_meta", "memory_needs", "require_memory"]

ADAM_STATES = 2
"""Tensors per parameter assumed for an optimizer that cannot take a step on the meta device."""


MAX_TENSORS = 100_000
"""Parameters that a model may have; to build more takes minutes even without memory."""


def memory_needs(experiment: Experiment, model: nn.Module) -> dict[str, int]:
    """Return the bytes of weights, gradients, optimizer state and EMA of one process.

    Args:
        experiment: A valid experiment.
        model: Its model on the meta device, to which `train.freeze` or `train.lora` is applied.

    Raises:
        Refused: `train.freeze` or `train.lora` names no weight of the model.
    """
    train = experiment.train
    if train.lora is None:
        freeze(model, train.freeze)
    else:
        add_lora(model, **train.lora.model_dump())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    needs = {"weights": _bytes((*model.parameters(), *model.buffers())), "gradients": _bytes(trained)}
    needs["optimizer state"] = _optimizer_state(experiment, model, trained)
    if train.ema:
        needs["EMA"] = needs["weights"]
    return needs


def require_memory(experiment: Experiment, shards: int = 1, room: int | None = None) -> None:
    """Refuse an experiment whose weights, gradients, optimizer state and EMA exceed the memory of its device.

    Args:
        experiment: A valid experiment.
        shards: Number of ranks among which all of them are sharded.
        room: Bytes of memory; by default those of the device of the experiment.

    Raises:
        Refused: With code `out-of-memory`, listing the bytes by purpose.
    """
    room = _device_memory(experiment) if room is None else room
    try:
        model = build_on_meta(experiment, room * shards)
    except Refused:
        raise
    except Exception:  # not every third party's model can be built on the meta device
        return
    needs = memory_needs(experiment, model)
    total = sum(needs.values()) // shards
    if total > room:
        terms = ", ".join(f"{name} {size(count // shards)}" for name, count in needs.items())
        raise _refusal(f"training needs at least {size(total)}, this device has {size(room)}: {terms}")


def build_on_meta(experiment: Experiment, limit: int | None = None) -> nn.Module:
    """Return the model of an experiment on the meta device, without memory for its weights.

    Raises:
        Refused: The weights exceed `limit` bytes, by default the memory of the machine.
    """
    space = experiment.process.facts(experiment.task.space()).space
    limit = total_memory() if limit is None else limit
    with annotate_build_errors(), _limited(limit), torch.device("meta"):
        return experiment.model.build(space)


def _refusal(message: str) -> Refused:
    return Refused(Problem(message, ("model",), help="lower the width or depth of the model", code="out-of-memory"))


@contextmanager
def _limited(limit: int) -> Iterator[None]:
    """Refuse a model as soon as its parameters exceed a number of bytes; to build all of it could take hours."""
    seen: set[int] = set()
    total = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        if parameter is not None and id(parameter) not in seen:  # a tied weight is registered twice
            seen.add(id(parameter))
            total += parameter.nbytes
        if total > limit:
            raise _refusal(f"the weights need more than {size(total)}, this device has {size(limit)}")
        if len(seen) > MAX_TENSORS:
            raise _refusal(f"the model has more than {MAX_TENSORS:,} parameter tensors")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise _refusal(f"a weight is too large for torch: {error}") from None
    finally:
        handle.remove()


def _optimizer_state(experiment: Experiment, model: nn.Module, trained: Iterable[nn.Parameter]) -> int:
    """Take a step on the meta device and count the state that the optimizer keeps."""
    try:
        optimizer = experiment.train.optimizer.build(model)
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
    except Exception:  # a kernel of a third party's optimizer may not support the meta device
        return ADAM_STATES * _bytes(trained)
    states = (state for inner in getattr(optimizer, "parts", (optimizer,)) for state in inner.state.values())
    return _bytes(value for state in states for value in state.values() if isinstance(value, Tensor))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({id(tensor): tensor.nbytes for tensor in tensors}.values())


def _device_memory(experiment: Experiment) -> int:
    device = choose_device(experiment.train.device)
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else total_memory()
