"""Model summary: parameters, shapes and FLOPs, computed on the meta device without allocating weights.

Letters: B batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dither.registry.config.errors import Refused
from dither.registry.flow.records import State
from dither.registry.flow.spaces import FeatureSpace, Space
from dither.registry.spec.base import Spec

from ..config.experiment import Experiment

__all__ = ["ModelSummary", "Row", "summarize_model"]


@dataclass(frozen=True)
class Row:
    """One module of a model.

    Attributes:
        name: Path in the model, such as "blocks" or "embedding.position".
        part: Its component in the experiment, such as `block "adaln-zero"`; empty if the model created it itself.
        parameters: Number of its parameters, those of inner rows included.
        flops: Floating-point operations of the forward pass of one batch.
        output: Shape of its output; of the last module if there are several.
    """

    name: str
    part: str
    parameters: int
    flops: int = 0
    output: tuple[int, ...] = ()


@dataclass(frozen=True)
class ModelSummary:
    """Size and cost of a model.

    Attributes:
        parameters: Of the whole model, shared ones counted once.
        forward: Floating-point operations of the forward pass of one batch; multiply-add counts as two.
        step: The same of a training step, forward and backward.
        output: Shape of the model output.
        rows: Module by module.
    """

    parameters: int
    forward: int
    step: int
    output: tuple[int, ...]
    rows: tuple[Row, ...]


def summarize_model(experiment: Experiment) -> ModelSummary:
    """Build the model on the meta device and run one forward and backward pass.

    Raises:
        Refused: A component fails; names it, with its message and the line of its code.
    """
    space = experiment.process.facts(experiment.task.space()).space
    with _attributed({}, "built"), torch.device("meta"):
        model = experiment.model.build(space).train()
    parts = list(_parts(model, experiment.model))
    batch = experiment.train.batch_size // experiment.train.accumulate
    names = {id(module): spec for _, inner, spec in parts for module in (inner, *inner.children())}
    counter = FlopCounterMode(display=False)
    recorder = _Recorder(counter, [module for _, inner, _ in parts for module in _modules(inner)])
    with _attributed(names | {id(model): experiment.model}, "run on a batch"), torch.device("meta"), counter:
        out = model(
            _state(space, batch),
            torch.zeros(batch),
            torch.ones(batch, space.length, dtype=torch.bool),
            _Conditions(experiment, batch),
        )
        forward = counter.get_total_flops()
        out.sum().backward()
    rows = [
        recorder.row(name, inner, "" if spec is None else f'{spec.kind} "{spec.name}"') for name, inner, spec in parts
    ]
    step = counter.get_total_flops() * experiment.train.accumulate
    return ModelSummary(_count(model), forward * experiment.train.accumulate, step, tuple(out.shape), tuple(rows))


def _parts(model: nn.Module, spec: Spec, prefix: str = "") -> Iterator[tuple[str, nn.Module, Spec | None]]:
    """Yield the children of a model with the Specs that built them, and below these the components in their slots."""
    slots = {key: value for key in type(spec).model_fields if isinstance(value := getattr(spec, key), Spec)}
    for name, child in model.named_children():
        made_by = slots.get(name) or slots.get(name.removesuffix("s"))
        if made_by is not None or not prefix:
            yield prefix + name, child, made_by
        if made_by is not None and not isinstance(child, nn.ModuleList):
            yield from _parts(child, made_by, f"{prefix}{name}.")


def _modules(module: nn.Module) -> list[nn.Module]:
    return list(module) if isinstance(module, nn.ModuleList) else [module]


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _state(space: Space, batch: int) -> State:
    shape = (batch, space.length)
    if isinstance(space, FeatureSpace):
        return State.of(torch.zeros(*shape, space.width))
    return State.of(torch.zeros(*shape, dtype=torch.long))


class _Recorder:
    """Records FLOPs and output shapes of modules in forward hooks."""

    def __init__(self, counter: FlopCounterMode, modules: list[nn.Module]) -> None:
        self.counter = counter
        self.flops: dict[nn.Module, int] = {}
        self.outputs: dict[nn.Module, tuple[int, ...]] = {}
        for module in modules:
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave)

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.flops[module] = self.flops.get(module, 0) - self.counter.get_total_flops()

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        self.flops[module] += self.counter.get_total_flops()
        first = out[0] if isinstance(out, tuple) else out
        self.outputs[module] = tuple(first.shape) if isinstance(first, Tensor) else ()

    def row(self, name: str, module: nn.Module, part: str) -> Row:
        inner = _modules(module)
        flops = sum(self.flops.get(child, 0) for child in inner)
        return Row(name, part, _count(module), flops, self.outputs.get(inner[-1], ()) if inner else ())


class _Conditions(Mapping[str, Tensor]):
    """Conditions on the meta device with the shapes of a real batch; data are read only if a component uses them."""

    def __init__(self, experiment: Experiment, batch: int) -> None:
        self.experiment, self.batch = experiment, batch

    @cached_property
    def _real(self) -> dict[str, Tensor]:
        with torch.device("cpu"):
            cond = self.experiment.task.build().batch("train", range(1)).cond
        return {name: self._like(value) for name, value in cond.items()}

    def _like(self, value: Shaped[Tensor, "1 ..."]) -> Tensor:
        return torch.zeros(self.batch, *value.shape[1:], dtype=value.dtype, device="meta")

    def __getitem__(self, name: str) -> Tensor:
        return self._real[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)


@contextmanager
def _attributed(components: Mapping[int, Spec | None], action: str) -> Iterator[None]:
    """Attribute an exception to the component that raised it, with the line of its code."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        owners = (frame.f_locals.get("self") for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))))
        specs = (owner if isinstance(owner, Spec) else components.get(id(owner)) for owner in owners)
        spec = next(filter(None, specs), None)
        name = "the model" if spec is None else f'{spec.kind} "{spec.name}"'
        own = [f for f in traceback.extract_tb(error.__traceback__) if "torch" not in FilePath(f.filename).parts]
        place = f" ({FilePath(own[-1].filename).name}:{own[-1].lineno})" if own else ""
        lines = str(error).strip().splitlines() or ["no message"]
        message = f"{name} cannot be {action}: {type(error).__name__}: {lines[0]}{place}"
        raise Refused(message, code="shape-mismatch") from None
