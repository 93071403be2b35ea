"""The experiment file: which parts, which options, and whether they fit each other. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import Field

from dither.registry.config.errors import dotted
from dither.registry.config.validation_errors import PATTERN_MESSAGE
from dither.registry.flow.fused_loss import FUSED_FROM
from dither.registry.flow.spaces import FeatureSpace, Space, TokenSpace
from dither.registry.kinds import ModelSpec, ProcessFacts
from dither.registry.kinds.costs import Cost, Stage
from dither.registry.kinds.process import ProcessSpec, SamplerSpec
from dither.registry.kinds.task import TaskSpec
from dither.registry.kinds.training import LossSpec
from dither.registry.spec.base import Options, Slot, named
from dither.registry.spec.misfit import Misfit, Path, below

from .component_errors import attribute_errors
from .machine_memory import available_memory, gpu_memory, size, total_memory
from .options import AHEAD, Evaluate, Sample, Train, TrainableParameters, check_conditions
from .sweep import Sweep

__all__ = ["PROGRAM", "Budget", "Experiment", "budgets", "misfit_memory", "stages", "warn_memory"]


class Experiment(Options):
    """One experiment, as it stands in its TOML file."""

    name: str = Field(
        "experiment",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        json_schema_extra={
            PATTERN_MESSAGE: "at most 64 letters, digits, dots, dashes and underscores, the first no mark"
        },
    )
    """What runs of it are called."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Every random draw of a run follows from this number."""
    plugins: list[str] = []
    """Plugins to load although no part of theirs is named: installed ones by name, files (./x.py) beside this file."""
    task: Slot[TaskSpec]
    process: Slot[ProcessSpec]
    model: Slot[ModelSpec]
    loss: Slot[LossSpec]
    sampler: Slot[SamplerSpec] = named("ancestral")
    train: Train = Field(default_factory=Train)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    sample: Sample = Field(default_factory=Sample)
    sweep: Sweep | None = None
    """Values to try: what `dither sweep` makes many runs of."""

    def check(self) -> Iterator[Misfit]:
        """Yield why the parts do not fit each other. Reads data where a space depends on it, but imports no torch."""
        yield from below("train", self.train.check(self.model))
        with attribute_errors(self.task):
            wrong = list(below("task", self.task.check()))
        yield from wrong
        if wrong:
            return
        with attribute_errors(self.task):
            space = self.task.space()
        with attribute_errors(self.process):
            wrong = list(below("process", self.process.check(space)))
        yield from wrong
        if wrong:
            return
        with attribute_errors(self.process):
            process = self.process.facts(space)
            inner = process.space
        with attribute_errors(self.model):
            wrong = list(below("model", self.model.check(inner)))
            model = self.model.facts()
        with attribute_errors(self.loss):
            wrong += below("loss", self.loss.check(process))
        yield from wrong
        with attribute_errors(self.sampler):
            unfit = list(below("sampler", self.sampler.check(process, model)))
        blocks = model.trained_blocks(inner)
        if blocks is not None and blocks < space.length and not self.sampler.blockwise:
            message = f'sampler "{self.sampler.name}" draws whole samples, but the model is trained block by block'
            hint = f'use sampler = {{ use = "blocks", size = {blocks}, inner = "{self.sampler.name}" }}'
            unfit.append(Misfit(message, ("sampler",), ("model", "block_size"), hint))
        unfit += check_conditions(self.sample, inner, model)
        yield from unfit
        if not wrong:
            with attribute_errors(self.model):  # others are asked as well, and named where they raise
                unfit = list(misfit_memory(self, space))
            yield from unfit

    def warn(self) -> Iterator[Misfit]:
        """Yield what is allowed, and should be known before a long run; only where `check` finds nothing."""
        space = self.task.space()
        process = self.process.facts(space)
        with attribute_errors(self.task):
            found = list(below("task", self.task.warn()))
        with attribute_errors(self.process):
            found += below("process", self.process.warn(space))
        with attribute_errors(self.loss):
            found += below("loss", self.loss.warn(process))
        with attribute_errors(self.sampler):
            found += below("sampler", self.sampler.warn(process, self.model.facts()))
        with attribute_errors(self.model):
            found += warn_memory(self, space)
        yield from found


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


NUMBER = 4
"""Bytes of a number."""
PROGRAM = 350 * 2**20
"""Bytes of Python, torch and its kernels, before there is a model; measured."""
HALVED = 0.7
"""Share of a model's activations that is left under bfloat16, which keeps some of them in float32; measured."""
LATER = 2**22
"""Numbers of raw output that a sampler holds at least, all of them or a chunk; what is made of more is cut finer."""
WAITING = 11
"""Bytes of a feature in a batch: what it is and what the noise made of it, known or not, hidden, wanted."""
READ, IDS = 5, 10
"""Bytes of a feature, and of an id, as they are read: what it is, and whether it is known and there."""
SLACK = 6
"""One part in so many of what comes and goes is lost between the pieces that the allocator keeps; measured."""


@dataclass(frozen=True)
class Budget:
    """The largest moment of a phase.

    Attributes:
        phase: training, evaluation, sampling, or reading the data.
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


def stages(experiment: Experiment, space: Space, *, drawing: bool = False) -> list[Stage]:
    """Return what the model is made of, then the reading of its output, then the loss.

    Args:
        experiment: Whose parts they are.
        space: Of its task.
        drawing: As far as samplers have them, which are not compiled, and see all hidden at first.
    """
    facts = experiment.process.facts(space)
    share = HALVED if experiment.train.precision == "bfloat16" else 1
    found = [replace(stage, cost=stage.cost.scaled(share)) for stage in experiment.model.stages(facts.space)]
    if on_cpu(experiment) and (drawing or not experiment.train.compile):
        found = [replace(stage, cost=_looked_at(stage, experiment, facts, drawing)) for stage in found]
    return [*found, Stage("reading", experiment.process.cost(space)), Stage("loss", experiment.loss.cost(facts))]


def on_cpu(experiment: Experiment) -> bool:
    """Whether it runs on the CPU of this machine."""
    device = experiment.train.device
    return device == "cpu" or (device == "auto" and not gpu_memory())


def _looked_at(stage: Stage, experiment: Experiment, facts: ProcessFacts, drawing: bool) -> Cost:
    """What a stage takes on a CPU, where what is in a batch may be looked at, and left out."""
    train = experiment.train
    at_once = train.batch_size // train.accumulate if train.precision == "bfloat16" else 0
    cost = stage.cost.eager(at_once)
    if "padding" in stage.leaves_out:  # groups of many sizes pass, and half of what that spares is lost between them
        filled = experiment.task.filled()
        cost = replace(cost, kept=int(cost.kept * filled), passing=int(cost.passing * (1 + filled) / 2))
    if "hidden" in stage.leaves_out and facts.masked_share and not drawing and not experiment.task.tells_some():
        hidden, length = facts.masked_share, facts.space.length
        spread = 2 * (hidden * (1 - hidden) / length) ** 0.5  # the sample of a batch of which least is hidden
        cost = cost.scaled(min(1 - hidden + spread + 1 / length, 1))
    return cost


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
    *model, head, reading, _ = stages(experiment, space, drawing=True)
    if not (head.last_map and experiment.sampler.piecewise()):
        return [*model, head, reading]
    table = head.cost.passing
    later = Cost(passing=head.cost.kept, tiled=table + reading.cost.kept + reading.cost.passing, tile=3 * LATER)
    return [*model, Stage("head and reading", later)]


def budgets(experiment: Experiment, space: Space) -> list[Budget]:
    """Estimate training, evaluation, sampling, and the reading of the data, over the space of the task."""
    e, parts = experiment, stages(experiment, space)
    learned = TrainableParameters.of(e.train, parts, e.model.matrices(e.process.facts(space).space))
    weights = NUMBER * (sum(stage.parameters for stage in parts) + learned.added)
    program = {"Python and torch": PROGRAM, "data": e.task.held()}
    standing = program | {"weights": weights}
    standing["optimizer moments"] = NUMBER * sum(e.train.optimizer.kept(stage) for stage in learned.stages)
    standing["average of the weights"] = weights if e.train.ema else 0
    gradients = {"gradients": NUMBER * learned.parameters}
    idle = standing | gradients
    if e.train.async_save:
        standing |= {"copy of a checkpoint": standing["optimizer moments"] + weights * (2 if e.train.ema else 1)}
    if e.train.workers:
        batch = e.train.batch_size * space.length * (READ * space.width if isinstance(space, FeatureSpace) else IDS)
        standing |= {"batches read ahead": AHEAD * e.train.workers * batch}
    if learned.changed:
        gradients |= {"changed matrices": NUMBER * learned.changed}
    gradients |= _waiting(e, space, learned.stages)
    training = standing | gradients | _training(trained(e, space), e.train.batch_size // e.train.accumulate)
    found = [Budget("training", training), Budget("evaluation", idle | _evaluation(e, parts), certain=False)]
    if e.sample.count:
        found.append(Budget("sampling", idle | _sampling(e, drawn(e, space))))
    return [*found, Budget("reading the data", program | {"what is read": e.task.reading()})]


def _waiting(experiment: Experiment, space: Space, parts: Sequence[Stage]) -> dict[str, int]:
    """What of a batch that is taken in parts lies there meanwhile, clean and noised; ids are too few to count.

    Gradients of the parts before lie where activations were, so that the next ones find as much less room (measured).
    """
    if experiment.train.accumulate == 1:
        return {}
    again = {"room between gradients": NUMBER * sum(stage.parameters for stage in parts)}
    if not isinstance(space, FeatureSpace):
        return again
    return again | {"data of the batch": WAITING * experiment.train.batch_size * space.length * space.width}


def _training(parts: Sequence[Stage], samples: int) -> dict[str, int]:
    """The largest moment of a step, for the `samples` that are taken at once."""
    kept: dict[str, int] = {}
    moments = []
    for stage in parts:
        kept[_activations(stage, samples)] = NUMBER * samples * stage.kept
        moments.append(kept | {f"passing through {stage.name}": NUMBER * stage.cost.momentary(samples)})
    return _with_slack(max(moments, key=_sum))


def _activations(stage: Stage, samples: int) -> str:
    many = f"{stage.times:,} {stage.name}" if stage.times > 1 else stage.name
    return f"activations of {many} for {samples:,} samples"


def _with_slack(moment: dict[str, int]) -> dict[str, int]:
    return moment | {"slack of the allocator": _sum(moment) // SLACK}


def _sum(terms: dict[str, int]) -> int:
    return sum(terms.values())


def _evaluation(experiment: Experiment, parts: Sequence[Stage]) -> dict[str, int]:
    """The largest moment of an evaluation, which asks the model once more for what a bound has beside the loss."""
    evaluate, train = experiment.evaluate, experiment.train
    at_once = min(evaluate.batch_size or train.batch_size, evaluate.samples)
    *_, reading, _ = parts
    return _forward(parts, at_once, 2, reading.kept if experiment.loss.bound else 0)


def _sampling(experiment: Experiment, parts: Sequence[Stage]) -> dict[str, int]:
    """The largest moment of a drawing: the model at work, or what was drawn being judged and shown."""
    count = experiment.sample.count
    at_once = min(experiment.sample.batch_size or count, count)
    besides = {f"judging {count:,} samples": experiment.task.judging(count)}
    return max(_forward(parts, at_once, 1), besides, key=_sum)


def _forward(parts: Sequence[Stage], samples: int, ends: int, besides: int = 0) -> dict[str, int]:
    """The largest moment without a way back: what passes through a stage, and the tables of the last `ends` stages.

    Args:
        parts: The stages.
        samples: How many pass at once.
        ends: Stages at the end that hold something.
        besides: Numbers that are there with these tables, for each sample.
    """
    tables = samples * (besides + sum(stage.cost.kept for stage in parts[-ends:]))
    there = [s.cost.momentary(samples) + (i >= len(parts) - ends) * tables for i, s in enumerate(parts)]
    most, name = max(zip(there, (stage.name for stage in parts), strict=True))
    return _with_slack({f"{samples:,} samples passing through {name}": NUMBER * most})
