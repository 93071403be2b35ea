"""What needs more memory than there can be is refused, with the numbers that would have to be less. No torch.

What it needs is worked out in `footprint`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from dither.registry.problems import Refused, dotted
from dither.registry.spaces import Space
from dither.registry.spec import Misfit, Options, Path
from dither.registry.validation import problems_of

from .footprint import Budget, budgets, stages
from .machine import available_memory, gpu_memory, size, total_memory

if TYPE_CHECKING:
    from .experiment import Experiment, Loaded

__all__ = ["Budget", "budgets", "misfit_memory", "require_memory", "stages", "warn_memory"]

O = TypeVar("O", bound=Options)  # noqa: E741
PLACES = {"task", "model", "train", "sample"}
"""Tables whose numbers may drive what an experiment takes."""
LARGEST_GPU = 288 * 2**30
"""Bytes of the largest GPU on the market; a run takes one."""


def misfit_memory(experiment: Experiment, space: Space, room: int | None = None) -> Iterator[Misfit]:
    """Yield the first phase that needs more memory than there can be.

    Args:
        experiment: What is to be run, all else being right.
        space: Of its task.
        room: Bytes there are; by default those of this machine, or of the largest GPU if that is more, since a file may
            be written for another machine.
    """
    for budget in budgets(experiment, space):
        most = max(total_memory(), LARGEST_GPU) if room is None else room
        if budget.certain and budget.total > most:
            have = size(total_memory() if room is None else room)
            message = f"{budget.phase} needs {size(budget.total)}, this machine has {have}: {budget.largest}"
            needs = _drivers(experiment, space, budget.phase)
            enough = ", or ".join(dotted(path) for path, need in needs.items() if need <= most)
            yield Misfit(message, next(iter(needs), ()), help=f"lower {enough}" if enough else None)
            return


def require_memory(loaded: Loaded) -> None:
    """Refuse to run on this machine what needs more than it has in total, or than its GPU has if one may be taken.

    Raises:
        Refused: With the estimate and its largest terms.
    """
    experiment, room = loaded.experiment, total_memory()
    if experiment.train.device != "cpu":
        room = max(room, gpu_memory() or 0)
    misfits = list(misfit_memory(experiment, experiment.task.space(), room))
    if misfits:
        raise Refused(problems_of(misfits, loaded.document))


def warn_memory(experiment: Experiment, space: Space) -> Iterator[Misfit]:
    """Yield phases that may need more than is free now, and parts that do not say what they take."""
    room = max(available_memory(), (gpu_memory() or 0) if experiment.train.device != "cpu" else 0)
    for budget in budgets(experiment, space):
        if budget.total > room:
            yield Misfit(f"{budget.phase} may need {size(budget.total)}, {size(room)} are free now: {budget.largest}")
    silent = dict.fromkeys(name for stage in stages(experiment, space) for name in stage.cost.silent)
    if experiment.train.optimizer.moments is None:
        silent[f'optimizer "{experiment.train.optimizer.name}"'] = None
    if silent:
        yield Misfit(f"memory is not told by {', '.join(silent)}, and counts as 0 there")


def _drivers(experiment: Experiment, space: Space, phase: str) -> dict[Path, float]:
    """Return what a phase would need with a 1 in place of each number, the least first."""
    found: dict[Path, float] = {}
    for path in _numbers(experiment, ()):
        if path[0] in PLACES:
            changed = _with_one(experiment, path)
            with suppress(Exception):  # a size of 1 may make no sense to a part: then it is another number
                each = budgets(changed, changed.task.space() if path[0] == "task" else space)
                found[path] = next((budget.total for budget in each if budget.phase == phase), 0)
    return dict(sorted(found.items(), key=lambda one: one[1]))


def _numbers(options: Options, path: Path) -> Iterator[Path]:
    """Yield the paths of all whole numbers among options, and among the parts in them."""
    for key in type(options).model_fields:
        value = getattr(options, key)
        if isinstance(value, Options):
            yield from _numbers(value, (*path, key))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield (*path, key)


def _with_one(options: O, path: Path) -> O:
    """Return options with a 1 in one place."""
    key = str(path[0])
    value = _with_one(getattr(options, key), path[1:]) if path[1:] else 1
    return options.model_copy(update={key: value})
