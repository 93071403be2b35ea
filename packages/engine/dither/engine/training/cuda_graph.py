"""A training step as a CUDA graph: one launch for all of its kernels, for small models whose steps wait for Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.records import Clean, true_everywhere

from ..distributed.ranks import Ranks
from .nan_guard import FiniteGuard

__all__ = ["StepGraph", "require_capturable", "set_capturable"]

WARMUP = 3
MAX_GRAPHS = 8
"""Steps of a shape before it is captured, and captured shapes; batches of other shapes run without
a graph."""
Metrics = dict[str, Tensor]


class StepGraph:
    """A step that is captured once per shape of the batch and then replayed.

    All that a step changes must stay at its address, and all that differs between steps must be on
    the device: a batch is copied into the captured one, learning rates are tensors, and a replay
    reads seed and offset of the generator.

    Args:
        step: (batch) -> metrics, without synchronisations.
    """

    def __init__(self, step: Callable[[Clean], Metrics]) -> None:
        self.step = step
        self._seen: Counter[Any] = Counter()
        self._stream: Any = None  # each has memory of its own
        self._graphs: dict[Any, tuple[Clean, Metrics, Callable[[], Any]]] = {}

    def __call__(self, clean: Clean) -> Metrics:
        """Make a step and return its metrics."""
        values = _tensors(clean)
        shape = (
            clean.none_known,
            *clean.cond,
            *((value.shape, value.stride(), value.dtype) for value in values),
        )
        self._seen[shape] += 1
        if shape not in self._graphs:
            if self._seen[shape] <= WARMUP or len(self._graphs) == MAX_GRAPHS:
                return self.warm_up(clean)
            own = clean.apply(lambda value: value if true_everywhere(value) else value.clone())
            self._graphs[shape] = own, *self.capture(own)
        own, metrics, replay = self._graphs[shape]
        for buffer, value in zip(_tensors(own), values, strict=True):
            if not true_everywhere(value):
                buffer.copy_(value)
        replay()
        return {name: value.clone() for name, value in metrics.items()}

    def warm_up(self, clean: Clean) -> Metrics:
        """Make a step without a graph, on another stream, as capturing requires."""
        current = torch.cuda.current_stream()
        other = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        other.wait_stream(current)
        with torch.cuda.stream(other):
            metrics = self.step(clean)
        current.wait_stream(other)
        return metrics

    def capture(self, clean: Clean) -> tuple[Metrics, Callable[[], Any]]:
        """Capture a step on a batch without making it; return its metrics and the function that makes it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, capture_error_mode="thread_local"
        ):  # other threads read and copy batches
            metrics = self.step(clean)
        return metrics, graph.replay


def _tensors(clean: Clean) -> list[Tensor]:
    values: list[Tensor] = []
    clean.apply(lambda value: values.append(value) or value)  # type: ignore[func-returns-value]
    return values


def require_capturable(
    model: nn.Module,
    optimizer: Optimizer,
    ranks: Ranks,
    guard: FiniteGuard,
) -> None:
    """Refuse a step that cannot be captured."""
    problems = {
        'non_finite = "skip" with this optimizer': not guard.deferred,
        "several ranks": ranks.size > 1,
        "recomputed activations (model.checkpointing)": getattr(model, "checkpointing", False),
        f"the optimizer {type(optimizer).__name__}": not all(
            "capturable" in group for group in optimizer.param_groups
        ),
    }
    if found := [what for what, present in problems.items() if present]:
        message = f'"reduce-overhead" captures the step as a CUDA graph, which excludes {" and ".join(found)}'
        raise Refused(
            Problem(message, ("train", "compile"), help="set train.compile = true", code="misfit")
        )


def set_capturable(optimizer: Optimizer, device: torch.device | None) -> None:
    """Keep learning rates and step counts on a device, so that a captured step reads them; None undoes that."""
    for group in optimizer.param_groups:
        group["lr"] = (
            float(group["lr"])
            if device is None
            else torch.full((), float(group["lr"]), device=device)
        )
        if "capturable" in group:
            group["capturable"] = device is not None
