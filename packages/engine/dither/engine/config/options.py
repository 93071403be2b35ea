"""What samples are asked to be: under which conditions, and how strongly they are led by one. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Literal

from pydantic import Field

from dither.registry.config.errors import nearest
from dither.registry.config.validation_errors import PATTERN_MESSAGE
from dither.registry.flow.spaces import Condition, Space
from dither.registry.kinds import ModelSpec
from dither.registry.kinds.component_info import ModelFacts
from dither.registry.kinds.costs import Cost, Matrix, Stage
from dither.registry.kinds.space_compatibility import missing_condition
from dither.registry.kinds.training import LRScheduleSpec, OptimizerSpec
from dither.registry.spec.base import Options, Slot, named
from dither.registry.spec.misfit import Misfit

__all__ = [
    "AHEAD",
    "Evaluate",
    "Guidance",
    "LoRA",
    "Sample",
    "Train",
    "TrainableParameters",
    "check_conditions",
    "condition_labels",
    "matches_module",
]


class Guidance(Options):
    """Classifier-free guidance: the model is asked twice, with a condition and without, and led by the difference."""

    condition: str = "cell"
    """The condition, by its name; the model has to be trained without it at times."""
    weight: float = Field(2.0, ge=0, le=1000)
    """The model's word is what it says without the condition, plus so many times the difference that the condition
    makes: 0 leaves it out, 1 is no guidance, more exaggerate. Of tokens, it is taken of log-probabilities."""


def check_conditions(sample: Sample, space: Space, model: ModelFacts) -> Iterator[Misfit]:
    """Yield conditions that the task does not tell, labels that there are not, and guidance that cannot be."""
    if sample.guidance is not None:
        name = sample.guidance.condition
        path = ("sample", "guidance", "condition")
        untold = list(missing_condition(space.conditions, name, path, labels=True))
        yield from untold
        if not untold and name not in model.left_out:
            message = f'guidance needs a model that is trained without "{name}" at times, and this one never is'
            part = f'{{ use = "label", of = "{name}", dropout = 0.1 }}'
            yield Misfit(message, path, ("model",), f'model.condition = {{ use = "sum", parts = ["level", {part}] }}')
    told = {condition.name: condition for condition in space.conditions}
    for name, label in sample.cond.items():
        untold = list(missing_condition(space.conditions, name, ("sample", "cond", name), labels=True))
        yield from untold or _unknown(told[name], label)


def _unknown(condition: Condition, label: int | str) -> Iterator[Misfit]:
    """Yield if there is no such label."""
    if _number(condition, label) is not None:
        return
    names = ", ".join(condition.labels)
    close = nearest(str(label), condition.labels)
    message = f'"{condition.name}" has no label {label!r}; its labels are 0 to {(condition.size or 1) - 1}'
    message += f": {names}" if names else ", without names"
    hint = f'did you mean "{close}"?' if close else None
    yield Misfit(message, ("sample", "cond", condition.name), ("task",), hint)


def condition_labels(sample: Sample, space: Space) -> Mapping[str, int]:
    """Return the labels that are asked for as numbers, by condition."""
    told = {condition.name: condition for condition in space.conditions}
    numbers = {name: _number(told[name], label) for name, label in sample.cond.items() if name in told}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(condition: Condition, label: int | str) -> int | None:
    if isinstance(label, str):
        return condition.labels.index(label) if label in condition.labels else None
    return label if -1 <= label < (condition.size or 0) else None


AHEAD = 2
"""Batches that wait for the loop, for each of `train.workers`."""


class LoRA(Options):
    """Changes of low rank to matrices that stay as they are otherwise (Hu et al., 2022)."""

    rank: int = Field(8, ge=1, le=4096)
    """Rank of each change B A."""
    alpha: float = Field(8.0, gt=0)
    """What a change is multiplied with, times the rank."""
    on: list[str] = Field(min_length=1)
    """Where: names of matrices, or of what they stand in, with * and ?, such as "attention" or "blocks.0.*"."""
    whole: list[str] = []
    """Names of weights that are trained themselves, with * and ?, such as "head.*"; all others stay as they are."""


class Train(Options):
    """How the weights are trained."""

    steps: int = Field(1000, ge=0, le=1_000_000_000)
    """Updates of the weights."""
    batch_size: int = Field(32, ge=1, le=1_000_000)
    """Samples per update."""
    accumulate: int = Field(1, ge=1, le=100_000)
    """Parts in which a batch is taken, to save memory; batch_size is divided by it."""
    optimizer: Slot[OptimizerSpec] = named("adamw")
    lr_schedule: Slot[LRScheduleSpec] = named("cosine")
    clip: float = Field(1.0, ge=0)
    """Largest gradient norm; 0 for none."""
    non_finite: Literal["stop", "skip"] = "stop"
    """When loss or gradient of a step are no numbers: stop the run, or leave the weights and go on with the next step.
    To skip, a GPU is waited for at each step."""
    skip_limit: int = Field(10, ge=1, le=1_000_000)
    """Steps in a row that may be skipped; one more stops the run."""
    ema: float = Field(0.999, ge=0, lt=1)
    """Decay of the averaged weights, which evaluation and sampling use; it warms up as (1 + step) / (10 + step). 0
    keeps no average."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """bfloat16 runs the model under autocast; weights, losses and optimizer stay in float32. tf32 lets a GPU take the
    factors of matrix products with 10 bits after the point, which is faster."""
    compile: bool | Literal["blocks"] = False
    """Compile the model for training with torch.compile; "blocks" compiles each block by itself, which starts sooner.
    Evaluation and drawing are not compiled."""
    log_every: int = Field(20, ge=1)
    """Steps between metric lines."""
    checkpoint_every: int = Field(500, ge=1)
    """Steps between checkpoints; the last step always writes one."""
    keep: int = Field(2, ge=1, le=10_000)
    """Newest checkpoints that are kept."""
    keep_every: int | None = Field(None, ge=1)
    """Keep the checkpoints of every multiple of so many steps too; a multiple of checkpoint_every."""
    keep_best: bool = False
    """Keep the checkpoint of the best evaluation too, and write one for it."""
    async_save: bool = False
    """Write checkpoints while training goes on; that takes the memory of one more copy of everything in them."""
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?|mps)$",
        json_schema_extra={PATTERN_MESSAGE: '"auto", "cpu", "cuda", "cuda:1" or "mps"'},
    )
    """Where to run; auto takes a GPU if there is one."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads; by default torch decides."""
    workers: int = Field(0, ge=0, le=64)
    """Threads that read the next batches while a step is computed: the same ones, in the same order."""
    keep_memory: bool = True
    """On a CPU, keep freed memory for the next step instead of giving it back to the system (glibc): faster steps."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: a copy of the model on every rank, or the model cut up among them (FSDP2)."""
    gather: Literal["float32", "bfloat16"] = "float32"
    """Precision in which the weights of a block come together under "fsdp"; bfloat16 halves what ranks send each other
    for it, and rounds the weights of norms too. Gradients are added up in float32."""
    start_from: str | None = None
    """Begin with the weights of a run (its directory), of an export, or of a file."""
    start_layout: str | None = None
    """Whose names the weights of that file have, such as "get", if it is not ours: .safetensors, .pt, .pth, .ckpt."""
    start_partial: bool = False
    """Take what fits of those weights; what does not is named, and stays as it was."""
    freeze: list[str] = []
    """Names of weights that stay as they are, with * and ?, such as "embedding.*"."""
    lora: LoRA | None = None
    """Train changes of low rank instead of the weights."""
    buckets: bool = False
    """Put samples with the same padding into one batch, where the task knows which: then none is computed."""

    def check(self, model: ModelSpec) -> Iterator[Misfit]:
        """Yield what does not fit together, and names of weights that the model does not know."""
        if self.batch_size % self.accumulate:
            message = f"batch_size = {self.batch_size} cannot be taken in {self.accumulate} equal parts"
            yield Misfit(message, ("accumulate",), ("train", "batch_size"))
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            message = f"no checkpoint is written at most multiples of keep_every = {self.keep_every}"
            hint = f"give a multiple of checkpoint_every = {self.checkpoint_every}"
            yield Misfit(message, ("keep_every",), ("train", "checkpoint_every"), hint)
        if self.gather == "bfloat16" and (self.strategy, self.precision) != ("fsdp", "bfloat16"):
            message = "weights come together in bfloat16 only where a model that is cut up computes in it"
            hint = 'set strategy = "fsdp" and precision = "bfloat16", or leave gather out'
            yield Misfit(message, ("gather",), ("train", "strategy"), hint)
        if self.start_layout is not None and self.start_from is None:
            yield Misfit("there are no weights to begin with", ("start_layout",), help="set start_from to their file")
        elif self.start_layout is not None and self.start_layout not in model.layouts:
            known = ", ".join(model.layouts) or "none"
            close = nearest(self.start_layout, model.layouts)
            what = f'model "{model.name}" knows no layout "{self.start_layout}"; it knows: {known}'
            yield Misfit(what, ("start_layout",), ("model",), f'did you mean "{close}"?' if close else None)
        if self.lora is not None and self.freeze:
            what = "with LoRA, all weights stay as they are that lora.whole does not name"
            yield Misfit(what, ("freeze",), ("train", "lora"), "leave freeze out")


class Evaluate(Options):
    """How the validation split is measured."""

    every: int = Field(500, ge=1)
    """Steps between evaluations; the last step always has one."""
    samples: int = Field(1024, ge=1)
    """Samples of the validation split that are taken, from its beginning."""
    batch_size: int | None = Field(None, ge=1)
    """Samples at a time; by default that of training."""
    repeats: int = Field(1, ge=1, le=1000)
    """Times each sample is noised anew; more make the figures steadier."""
    best: str = Field("loss", min_length=1)
    """The figure by which evaluations are compared."""
    better: Literal["lower", "higher"] = "lower"
    """Which values of it are better."""
    patience: int | None = Field(None, ge=1)
    """End the run once so many evaluations in a row were no better than the best (early stopping)."""


class Sample(Options):
    """What is drawn from the model."""

    count: int = Field(16, ge=0, le=1_000_000)
    """Samples that are drawn at the end."""
    every: int | None = Field(None, ge=1)
    """Steps between drawings in the course of training; by default only at the end."""
    batch_size: int | None = Field(None, ge=1)
    """Samples at a time; by default all."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the drawing."""
    tries: int = Field(64, ge=1, le=1_000_000)
    """Times that a sample is drawn, at most, until it meets the constraints of the task."""
    guidance: Guidance | None = None
    """Classifier-free guidance by a condition; by default none."""
    cond: dict[str, int | str] = {}
    """Labels that all samples are asked to have, such as { cell = "K562" }, by name or by number; -1 leaves one out. By
    default each has the conditions of the sample of the data that it starts from."""


MANY = 256
"""Parts alike that are looked at one by one; of more, the names of so many at even distances tell the share."""
REMEMBERED = 64
"""Answers on names that are kept: an experiment is asked anew with each of its numbers changed."""


@dataclass(frozen=True)
class TrainableParameters:
    """What has gradients, and what an optimizer keeps.

    Attributes:
        stages: Parts of the model; of several alike, as many as are trained.
        added: Numbers of changes of low rank.
        changed: Numbers of the matrices that these change: each is made anew in a step, and kept for the way back.
    """

    stages: tuple[Stage, ...]
    added: int = 0
    changed: int = 0

    @classmethod
    def of(cls, train: Train, parts: Sequence[Stage], matrices: Iterable[Matrix]) -> TrainableParameters:
        """Tell what is trained of these parts, of which the matrices may be changed."""
        if train.lora is None:
            frozen = _named(parts, train.freeze)
            return cls(tuple(replace(stage, times=stage.times - named) for stage, named in frozen))
        known = tuple(matrices)
        names = _meant(tuple(f".{m.name}." for m in known), tuple(f".{pattern}.*" for pattern in train.lora.on), True)
        chosen = [m for m in known if f".{m.name}." in names]
        added = sum(m.times * train.lora.rank * (m.rows + m.columns) for m in chosen)
        whole = (replace(stage, times=named) for stage, named in _named(parts, train.lora.whole))
        changed = sum(m.times * m.rows * m.columns for m in chosen)
        return cls((*whole, Stage("blocks", Cost(added))), added, changed)

    @property
    def parameters(self) -> int:
        """Weights that have gradients."""
        return sum(stage.parameters for stage in self.stages)


def matches_module(name: str, pattern: str) -> bool:
    """Whether a matrix is called so, or stands in something that is."""
    return fnmatchcase(f".{name}.", f"*.{pattern}.*")


def _named(parts: Sequence[Stage], patterns: Sequence[str]) -> Iterator[tuple[Stage, int]]:
    """Yield each part with the number of those alike of which patterns mean all weights, as "head.*" does.

    Of the blocks the last may be a part of its own; it is called by its number too.
    """
    blocks = sum(stage.times for stage in parts if stage.name == "blocks")
    for stage in parts:
        name, first = ("blocks", blocks) if stage.name == "last block" else (stage.name, 0)
        seen = min(stage.times, MANY)
        weights = (f"{name}.{first + number * stage.times // seen}.weight" for number in range(seen))
        yield stage, len(_meant(tuple(weights), tuple(patterns))) * stage.times // max(seen, 1)


@lru_cache(REMEMBERED)
def _meant(names: tuple[str, ...], patterns: tuple[str, ...], within: bool = False) -> frozenset[str]:
    """Return the names that fit one of the patterns at least, from the beginning or from anywhere `within`."""
    if not patterns:
        return frozenset()
    expression = _any_of(patterns)
    return frozenset(filter(expression.search if within else expression.match, names))


@lru_cache(REMEMBERED)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for all patterns: a file may have thousands of them."""
    return re.compile("|".join(translate(pattern) for pattern in dict.fromkeys(patterns)))
