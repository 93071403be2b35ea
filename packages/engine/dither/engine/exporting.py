"""Samples for other programs, in the forms that a task offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dither.registry.kinds import TaskSpec
from dither.registry.parts import Exports
from dither.registry.problems import Problem, Refused, nearest

from .drawing import Drawing
from .system import Diffusion

__all__ = ["check_forms", "export_drawing"]

SHOWN = 5
"""Lines about samples that were left out before the rest is only counted."""


def check_forms(task: TaskSpec, forms: Sequence[str]) -> None:
    """Refuse forms that a task does not offer, all at once and with what there is."""
    offered = ", ".join(task.exports) or "none"
    wrong = []
    for form in dict.fromkeys(forms):
        if form not in task.exports:
            close = nearest(form, task.exports)
            what = f'task "{task.name}" does not export "{form}"; its forms: {offered}'
            wrong.append(Problem(what, help=f'did you mean "{close}"?' if close else None))
    if wrong:
        raise Refused(wrong)


def export_drawing(system: Diffusion, drawing: Drawing, forms: Sequence[str], folder: Path) -> Iterator[str]:
    """Write samples in each form into a folder named after it; yield what to tell a person.

    Raises:
        TypeError: The task offers forms, and has no way to write them.
    """
    task = system.task
    for form in dict.fromkeys(forms):
        if not isinstance(task, Exports):
            raise TypeError(f"{type(task).__name__} offers exports, but has no method export")
        files, told = task.export(drawing.samples, drawing.like, form, folder / form)
        yield str(files[0]) if len(files) == 1 else f"{folder / form}: {len(files):,} files of {form}"
        yield from (f"{form}: {line}" for line in told[:SHOWN])
        if len(told) > SHOWN:
            yield f"{form}: and {len(told) - SHOWN:,} more like that"
