"""A model looked at without weights: parameters, shapes and arithmetic, on torch's meta device.

Nothing is allocated and no data are read: a batch of the task's space is as good as any other. Letters: B batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dither.registry.flow import State
from dither.registry.problems import Problem, Refused
from dither.registry.spaces import FeatureSpace, Space
from dither.registry.spec import Path, Spec

from .experiment import Experiment

__all__ = ["Look", "Row", "look_at"]


@dataclass(frozen=True)
class Row:
    """One part of a model.

    Attributes:
        name: Where it stands in the model, such as "blocks" or "embedding.position".
        part: What the experiment calls it, such as `block "adaln-zero"`; empty for what the model makes itself.
        parameters: Its weights, each counted once in a model; those of inner rows are among them.
        share: Floating-point operations of one training step, forward and backward.
        output: Shape of what it returned for a batch.
    """

    name: str
    part: str
    parameters: int
    flops: int
    output: tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """What was seen.

    Attributes:
        parameters: Of the whole model.
        flops: Of one training step: all samples of a batch, forward and backward.
        batch: Samples that went through at once.
        output: Shape of what the model returned.
        rows: Part by part.
    """

    parameters: int
    flops: int
    batch: int
    output: tuple[int, ...]
    rows: tuple[Row, ...]


def look_at(experiment: Experiment) -> Look:
    """Build the model on the meta device and send a batch through it, and back.

    Raises:
        Refused: A part fails; named with its own message, and the line of its code.
    """
    train, space = experiment.train, experiment.process.facts(experiment.task.space()).space
    with _named(experiment, {}), torch.device("meta"):
        model = experiment.model.build(space).train()
    parts = dict(_parts(model, experiment.model))
    batch = train.batch_size // train.accumulate
    outputs: dict[nn.Module, tuple[int, ...]] = {}
    for module in {id(m): m for m in (model, *(m for m, _, _ in parts.values()))}.values():
        module.register_forward_hook(lambda module, _, out: outputs.setdefault(module, _shape(out)))
    state, level, valid = _batch(space, batch)
    counter = FlopCounterMode(display=False)
    with _named(experiment, {m: (p, s) for m, p, s in parts.values()}), torch.device("meta"), counter:
        out = model(state, level, valid, {})
        out.sum().backward()
    counts = counter.get_flop_counts()
    rows = []
    for name, (module, path, spec) in parts.items():
        modules = list(module) if isinstance(module, nn.ModuleList) else [module]
        rows.append(Row(name, f'{spec.kind} "{spec.name}"' if spec else "", _count(module), 0, ()))
    return Look(_count(model), counter.get_total_flops() * train.accumulate, batch, tuple(out.shape), tuple(rows))
