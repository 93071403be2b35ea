"""Parameters, memory, shapes and FLOPs of a model, computed on torch's meta device without allocating weights.

Activations depend on kernels and are not counted in memory: where they do not fit, the run stops
with exit code 5.
Letters: B batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import AdamW, Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import located
from dither.registry.contracts.records import State
from dither.registry.contracts.spaces import FeatureSpace, TokenSpace
from dither.registry.plugins.catalog import Catalog
from dither.registry.spec.base import Spec

from ..config.component_errors import annotate_build_errors
from ..config.experiment import Experiment
from ..config.load_experiment import Loaded
from ..config.machine_memory import size, total_memory
from ..optimizers.muon import Muon
from .device import choose_device
from .lora import select_trained

__all__ = [
    "build_on_meta",
    "memory_needs",
    "parts_of",
    "require_memory",
    "require_names",
    "summarize_model",
]

ADAM_STATES = 2
"""Tensors per parameter of AdamW, assumed for an optimizer that cannot take a step on the meta
device."""
DRAWS = {Tensor.normal_, Tensor.uniform_}
MANY_COPIES = 100
"""A model of which so many copies fit into memory is trained without counting what it needs."""
MAX_TENSORS = 100_000
"""Parameters that a model may have; to build more takes minutes even without memory."""


def require_memory(
    experiment: Experiment,
    shards: int = 1,
    room: int | None = None,
    catalog: Catalog | None = None,
) -> None:
    """Refuse an experiment whose weights, gradients, optimizer state and EMA exceed the memory of its device.

    They are sharded among `shards` ranks; `room` is the memory in bytes, by default that of the
    device. The problem has the code `out-of-memory` and lists the bytes by purpose.
    """
    if room is None:
        device = choose_device(experiment.train.device)
        room = total_memory()
        if device.type == "cuda":
            room = torch.cuda.get_device_properties(device).total_memory
    try:
        model = build_on_meta(experiment, room * shards, catalog)
    except Refused:
        raise
    # Not every third party's model can be built on the meta device.
    except Exception:
        return
    # A step of an optimizer on the meta device may import torch._dynamo, which takes 1.5 s.
    if MANY_COPIES * _bytes(model.parameters()) < room * shards:
        return
    needs = memory_needs(experiment, model)
    total = sum(needs.values()) // shards
    if total > room:
        terms = ", ".join(
            f"{name} {size(count // shards)}" for name, count in needs.items()
        )
        raise _refusal(
            f"training needs at least {size(total)}, this device has {size(room)}: {terms}"
        )


def memory_needs(experiment: Experiment, model: nn.Module) -> dict[str, int]:
    """Return the bytes of weights, gradients, optimizer state and EMA of one process.

    `train.freeze` or `train.lora` is applied to `model`, that of the experiment on the meta device.
    """
    select_trained(model, experiment.train)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = _bytes((*model.parameters(), *model.buffers()))
    gradients = _bytes(trained)
    try:
        with annotate_build_errors():
            optimizer = experiment.train.optimizer.build(model)
        optimizers = optimizer.parts if isinstance(optimizer, Muon) else [optimizer]
        state = sum(map(_state_bytes, optimizers))
    # A kernel of a third party's optimizer may not support the meta device.
    except Exception:
        state = ADAM_STATES * gradients
    needs = {"weights": weights, "gradients": gradients, "optimizer state": state}
    return needs | ({"EMA": weights} if experiment.train.ema else {})


def _state_bytes(optimizer: Optimizer) -> int:
    parameters = []
    for group in optimizer.param_groups:
        parameters += [(group, p) for p in group["params"] if p.requires_grad]
    # Its step on the meta device would import torch._dynamo, which takes 1.5 s.
    if isinstance(optimizer, AdamW):
        return sum(
            # 4 bytes are those of the step counter.
            (ADAM_STATES + group["amsgrad"]) * parameter.nbytes + 4
            for group, parameter in parameters
        )
    for _, parameter in parameters:
        # Any gradient: on the meta device only its shape matters.
        parameter.grad = parameter.detach()
    optimizer.step()
    values = chain.from_iterable(state.values() for state in optimizer.state.values())
    return _bytes(value for value in values if isinstance(value, Tensor))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({id(tensor): tensor.nbytes for tensor in tensors}.values())


def require_names(loaded: Loaded) -> None:
    """Refuse names in `train.freeze` and `train.lora` that match no weight, at their place in the file."""
    try:
        model = build_on_meta(loaded.experiment, catalog=loaded.plugins.catalog)
    # It is too large for this machine, or is only known with its data.
    except Refused:
        return
    with located(loaded.document):
        select_trained(model, loaded.experiment.train)


def build_on_meta(
    experiment: Experiment, limit: int | None = None, catalog: Catalog | None = None
) -> nn.Module:
    """Return the model of an experiment on the meta device, without memory for its weights.

    It is refused as soon as its parameters exceed `limit` bytes, by default the memory of the
    machine; to build all of it could take hours.
    """
    space = experiment.process.facts(experiment.task.space()).space
    limit = total_memory() if limit is None else limit
    seen = set[int]()
    total = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        # A tied weight is registered twice.
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            total += parameter.nbytes
        if total > limit:
            raise _refusal(
                f"the weights need more than {size(total)}, this device has {size(limit)}"
            )
        if len(seen) > MAX_TENSORS:
            raise _refusal(f"the model has more than {MAX_TENSORS:,} parameter tensors")

    handle = register_module_parameter_registration_hook(count)
    try:
        with annotate_build_errors(catalog), torch.device("meta"), _Uninitialised():
            return experiment.model.build(space)
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise _refusal(f"a weight is too large for torch: {error}") from None
    finally:
        handle.remove()


class _Uninitialised(TorchFunctionMode):
    """Draw no weights: on the meta device that would import torch._dynamo, which takes 1.5 s."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init" or func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _refusal(message: str) -> Refused:
    return Refused(
        Problem(
            message,
            ("model",),
            help="lower the width or depth of the model",
            code="out-of-memory",
        )
    )


def summarize_model(experiment: Experiment) -> dict[str, Any]:
    """Return size and cost of a model, run forward and backward on the meta device; Refused naming what failed.

    Keys are `parameters`, shared ones counted once; FLOPs of the `forward` pass and of a training
    `step`, two for a multiply-add; shape of the `output`; and `rows`: name, component (`part`),
    parameters with those of inner rows, forward `flops` and output shape (of a list, that of the
    last module) of each module.
    """
    space = experiment.process.facts(experiment.task.space()).space
    train = experiment.train
    with _attributed({}, "built"):
        model = build_on_meta(experiment).train()
    parts = list(parts_of(model, experiment.model))
    specs: dict[int, Spec | None] = {}
    for _, inner, spec in parts:
        specs |= {id(module): spec for module in (inner, *inner.children())}
    outputs: dict[str, tuple[int, ...]] = {}

    def record(path: str, out: Any) -> None:
        first = out[0] if isinstance(out, tuple) else out
        outputs[path] = tuple(first.shape) if isinstance(first, Tensor) else ()

    for path, module in model.named_modules():
        module.register_forward_hook(
            lambda module, arguments, out, path=path: record(path, out)
        )
    batch = train.batch_size // train.accumulate
    # Self-conditioning: the first pass has no backward pass.
    passes = 2 if experiment.model.facts().self_conditioning else 1
    counter = FlopCounterMode(display=False)
    with (
        _attributed(specs | {id(model): experiment.model}, "run on a batch"),
        torch.device("meta"),
        counter,
    ):
        shape = (batch, space.length)
        x = torch.zeros(shape, dtype=torch.long)
        if isinstance(space, FeatureSpace):
            x = torch.zeros(*shape, space.width)
        cond = {
            c.name: torch.zeros(c.shape(*shape), dtype=torch.long)
            for c in space.conditions
        }
        state = State.of(x)
        if passes == 2:
            width = space.vocab if isinstance(space, TokenSpace) else space.width
            state = replace(state, previous=torch.zeros(*shape, width))
        valid = torch.ones(shape, dtype=torch.bool)
        out = model(state, torch.zeros(batch), valid, cond)
        forward = {
            name: sum(counts.values())
            for name, counts in counter.get_flop_counts().items()
        }
        out.sum().backward()
    rows = []
    for name, inner, spec in parts:
        paths = [name]
        if isinstance(inner, nn.ModuleList):
            paths = [f"{name}.{i}" for i in range(len(inner))]
        flops = sum(forward.get(f"{type(model).__name__}.{path}", 0) for path in paths)
        title = "" if spec is None else f'{spec.kind} "{spec.name}"'
        row = {"name": name, "part": title, "parameters": _count(inner), "flops": flops}
        rows.append(row | {"output": outputs.get(paths[-1], ()) if paths else ()})
    whole = forward["Global"] * train.accumulate
    step = counter.get_total_flops() * train.accumulate + (passes - 1) * whole
    costs = {"parameters": _count(model), "forward": whole, "step": step}
    return {**costs, "output": tuple(out.shape), "rows": rows}


def parts_of(
    model: nn.Module, spec: Spec, prefix: str = ""
) -> Iterator[tuple[str, nn.Module, Spec | None]]:
    """Yield the children of a model with the Specs that built them, and below these the components in their slots."""
    slots = {
        key: value
        for key in type(spec).model_fields
        if isinstance(value := getattr(spec, key), Spec)
    }
    for name, child in model.named_children():
        # A list `blocks` is made by the Spec in the slot `block`.
        made_by = slots.get(name) or slots.get(name.removesuffix("s"))
        if made_by is not None or not prefix:
            yield prefix + name, child, made_by
        if made_by is not None and not isinstance(child, nn.ModuleList):
            yield from parts_of(child, made_by, f"{prefix}{name}.")


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def _attributed(components: Mapping[int, Spec | None], action: str) -> Iterator[None]:
    """Attribute an exception to the component that raised it, with the line of its code."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        owners = (
            frame.f_locals.get("self")
            for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__)))
        )
        specs = (
            owner if isinstance(owner, Spec) else components.get(id(owner))
            for owner in owners
        )
        spec = next(filter(None, specs), None)
        name = "the model" if spec is None else f'{spec.kind} "{spec.name}"'
        own = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if "torch" not in FilePath(f.filename).parts
        ]
        place = f" ({FilePath(own[-1].filename).name}:{own[-1].lineno})" if own else ""
        lines = str(error).strip().splitlines() or ["no message"]
        message = (
            f"{name} cannot be {action}: {type(error).__name__}: {lines[0]}{place}"
        )
        raise Refused(message, code="shape-mismatch") from None
