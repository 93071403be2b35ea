"""How much memory an experiment takes, worked out from its options alone. No torch.

A step of training walks through the stages of the model and back. On the way there each leaves what its gradient will
need; on the way back that goes, and gradients of its weights come. Hardly any of what goes can be had again for these,
which are larger pieces (measured on a CPU), so all of both counts, and what passes at the largest moment of the walk.
Samples count as full, though on a CPU a model may leave padding out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from dither.registry.costs import Cost, Stage
from dither.registry.fused import FUSED_FROM
from dither.registry.problems import Refused, dotted
from dither.registry.spaces import FeatureSpace, Space, TokenSpace
from dither.registry.spec import Misfit, Options, Path
from dither.registry.validation import problems_of

from .machine import available_memory, gpu_memory, size, total_memory

if TYPE_CHECKING:
    from .experiment import Experiment, Loaded

__all__ = ["Budget", "budgets", "misfit_memory", "require_memory", "stages", "warn_memory"]

O = TypeVar("O", bound=Options)  # noqa: E741
PLACES = {"task", "model", "train", "sample"}
"""Tables whose numbers may drive what an experiment takes."""
NUMBER = 4
"""Bytes of a number."""
PROGRAM = 350 * 2**20
"""Bytes of Python, torch and its kernels, before there is a model; measured."""
LARGEST_GPU = 288 * 2**30
"""Bytes of the largest GPU on the market; a run takes one."""
HALVED = 0.7
"""Share of a model's activations that is left under bfloat16, which keeps some of them in float32; measured."""
LATER = 2**22
"""Numbers of raw output that a sampler holds at least, all of them or a chunk; what is made of more is cut finer."""
WAITING = 11
"""Bytes of a feature in a batch: what it is and what the noise made of it, known or not, hidden, wanted."""
SLACK = 6
"""One part in so many of what comes and goes is lost between the pieces that the allocator keeps; measured."""


@dataclass(frozen=True)
class Budget:
    """The largest moment of a phase.

    Attributes:
        phase: training, evaluation or sampling.
        terms: Bytes by what they are for.
        certain: Whether the phase really takes this much; evaluation has no more samples than the data.
    """

    phase: str
    terms: dict[str, int]
    certain: bool = True

    @property
    def total(self) -> int:
        """All terms."""
        return sum(self.terms.values())

    @property
    def largest(self) -> str:
        """The three largest terms."""
        first = sorted(self.terms.items(), key=lambda term: -term[1])[:3]
        return ", ".join(f"{name} {size(count)}" for name, count in first)


def stages(experiment: Experiment, space: Space) -> list[Stage]:
    """Return what the model is made of, then the reading of its output, then the loss."""
    facts = experiment.process.facts(space)
    share = HALVED if experiment.train.precision == "bfloat16" else 1
    model = [replace(stage, cost=stage.cost.scaled(share)) for stage in experiment.model.stages(facts.space)]
    return [*model, Stage("reading", experiment.process.cost(space)), Stage("loss", experiment.loss.cost(facts))]


def trained(experiment: Experiment, space: Space) -> list[Stage]:
    """Return the same for training: where head and loss are taken in one, nothing holds the raw output."""
    *model, head, reading, loss = parts = stages(experiment, space)
    facts, half = experiment.process.facts(space), experiment.train.precision == "bfloat16"
    fused = experiment.loss.fused_cost(facts, half=half)
    if fused is None or not head.last_map or not isinstance(facts.space, TokenSpace) or facts.space.vocab < FUSED_FROM:
        return parts
    silent = (head.cost + reading.cost + loss.cost).silent
    slopes = fused.passing + 2 * head.cost.kept  # what the head reads, of the chosen rows, and its gradient
    cost = replace(fused, parameters=head.cost.parameters, kept=head.cost.kept, passing=slopes, silent=silent)
    return [*model, Stage("head and loss", cost)]


def drawn(experiment: Experiment, space: Space) -> list[Stage]:
    """Return the same for sampling, which measures nothing, and may ask for the raw output piece by piece."""
    *model, head, reading, _ = stages(experiment, space)
    if not (head.last_map and experiment.sampler.piecewise()):
        return [*model, head, reading]
    table = head.cost.passing
    later = Cost(passing=head.cost.kept, tiled=table + reading.cost.kept + reading.cost.passing, tile=3 * LATER)
    return [*model, Stage("head and reading", later)]


def budgets(experiment: Experiment, space: Space) -> list[Budget]:
    """Estimate training, evaluation and sampling over the space of the task."""
    e, parts, training = experiment, stages(experiment, space), trained(experiment, space)
    weights = NUMBER * sum(stage.parameters for stage in parts)
    standing = {"Python and torch": PROGRAM, "data": e.task.held(), "weights": weights}
    standing["optimizer moments"] = (e.train.optimizer.moments or 0) * weights
    standing["average of the weights"] = weights if e.train.ema else 0
    measured = min(e.evaluate.batch_size or e.train.batch_size, e.evaluate.samples)
    taken = min(e.sample.batch_size or e.sample.count, e.sample.count)
    idle = standing | {"gradients": weights}
    if e.train.async_save:
        standing |= {"copy of a checkpoint": standing["optimizer moments"] + weights * (2 if e.train.ema else 1)}
    again = (
        NUMBER * max(stage.cost.parameters for stage in parts) * (e.train.accumulate > 1)
    )  # to be added to the others
    gradients = {"gradients": weights + again} | _waiting(e, space)
    found = [Budget("training", standing | gradients | _training(training, e.train.batch_size // e.train.accumulate))]
    found.append(Budget("evaluation", idle | _forward(parts, measured, 2), certain=False))
    if e.sample.count:
        found.append(Budget("sampling", idle | _forward(drawn(e, space), taken, 1)))
    return found


def _waiting(experiment: Experiment, space: Space) -> dict[str, int]:
    """What of a batch that is taken in parts lies there meanwhile, clean and noised; ids are too few to count."""
    if experiment.train.accumulate == 1 or not isinstance(space, FeatureSpace):
        return {}
    return {"data of the batch": WAITING * experiment.train.batch_size * space.length * space.width}


def _training(parts: Sequence[Stage], samples: int) -> dict[str, int]:
    """The largest moment of a step, for the `samples` that are taken at once."""
    kept: dict[str, int] = {}
    moments = []
    for stage in parts:
        kept[_activations(stage, samples)] = NUMBER * samples * stage.kept
        moments.append(kept | {f"passing through {stage.name}": NUMBER * stage.cost.momentary(samples)})
    return _with_slack(max(moments, key=lambda moment: sum(moment.values())))


def _activations(stage: Stage, samples: int) -> str:
    many = f"{stage.times:,} {stage.name}" if stage.times > 1 else stage.name
    return f"activations of {many} for {samples:,} samples"


def _with_slack(moment: dict[str, int]) -> dict[str, int]:
    return moment | {"slack of the allocator": sum(moment.values()) // SLACK}


def _forward(parts: Sequence[Stage], samples: int, ends: int) -> dict[str, int]:
    """The largest moment without a way back: what passes through a stage, and the tables of the last `ends` stages."""
    tables = samples * sum(stage.cost.kept for stage in parts[-ends:])
    there = [s.cost.momentary(samples) + (i >= len(parts) - ends) * tables for i, s in enumerate(parts)]
    most, name = max(zip(there, (stage.name for stage in parts), strict=True))
    return _with_slack({f"{samples:,} samples passing through {name}": NUMBER * most})


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
