"""Where a step is at a moment, told by hooks on the trainer as it is: no second loop that could differ from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..trainer import Trainer

__all__ = ["PHASES", "Marks", "marked"]

PHASES = ("data", "forward", "backward", "optimizer")
"""Phases of a step; forward has with it the drawing of noise, and the optimizer the clipping, the check for numbers and
the averaging of weights."""


class Marks:
    """Moments in a step and which phase ended there, on the clock of the CPU or in the stream of a GPU.

    Args:
        device: Where the step runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._device = device
        self._moments: list[tuple[str, Any]] = []

    def mark(self, phase: str) -> None:
        """Say that a phase ended now, whichever began at the mark before."""
        moment: Any = time.perf_counter()
        if self._on_gpu:
            moment = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            moment.record(torch.cuda.current_stream(self._device))
        self._moments.append((phase, moment))

    def take(self) -> dict[str, float]:
        """Return the seconds in each phase since the first mark, and forget them. Waits for the device."""
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
        seconds = dict.fromkeys(PHASES, 0.0)
        for (_, before), (phase, after) in zip(self._moments[:-1], self._moments[1:], strict=True):
            spent = before.elapsed_time(after) / 1000 if self._on_gpu else after - before
            seconds[phase] = seconds.get(phase, 0.0) + spent
        self._moments.clear()
        return seconds


class _MarkedTask:
    """A task that says when it has made a batch."""

    def __init__(self, task: Any, mark: Callable[[str], None]) -> None:
        self._task, self._mark = task, mark
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def batch(self, *arguments: Any, **named: Any) -> Any:
        """Make a batch; what a worker does beside a step is no part of it, and is waited for where it is needed."""
        try:
            return self._task.batch(*arguments, **named)
        finally:
            if threading.get_ident() == self._thread:
                self._mark("data")


@contextmanager
def marked(trainer: Trainer) -> Iterator[Callable[[], dict[str, float]]]:
    """Yield a function that does one step and returns the seconds in each of its phases."""
    marks = Marks(trainer.device)
    system, task = trainer.system, trainer.system.task
    last: Any = _last_gradient(trainer)
    handles: list[Any] = [system.register_forward_hook(lambda *_: marks.mark("forward"))]
    handles.append(last.register_post_accumulate_grad_hook(lambda _: marks.mark("backward")))
    system.task = _MarkedTask(task, marks.mark)
    prepare = system.prepare

    def prepared(*arguments: Any) -> Any:
        marks.mark("data")  # which has come to the device meanwhile
        return prepare(*arguments)

    system.prepare = prepared  # type: ignore[assignment, method-assign]

    def step() -> dict[str, float]:
        marks.mark("begin")
        trainer.advance()
        marks.mark("optimizer")
        return marks.take()

    try:
        yield step
    finally:
        system.task = task
        del system.prepare
        for handle in handles:
            handle.remove()


def _last_gradient(trainer: Trainer) -> torch.Tensor:
    """Return the parameter whose gradient is ready last, which ends the backward pass."""
    order: list[int] = []
    parameters: list[Any] = list(trainer.parameters)
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))
        for index, parameter in enumerate(parameters)
    ]
    trainer.advance()
    for handle in handles:
        handle.remove()
    return trainer.parameters[order[-1]]
