"""The [train], [run], [evaluate], [sample] and [sweep] tables of an experiment file. No torch.

Keys become options in `dither.registry.config.validation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dither.registry.config.errors import did_you_mean
from dither.registry.config.validation import PATTERN_MESSAGE
from dither.registry.contracts.spaces import Condition, Space
from dither.registry.files.addresses import address_problem
from dither.registry.kinds import (
    LRScheduleSpec,
    MetricSpec,
    ModelFacts,
    ModelSpec,
    OptimizerSpec,
    TrackerSpec,
    missing_condition,
)
from dither.registry.spec.base import Options, PathStr, Slot, Spec, named
from dither.registry.spec.misfit import Misfit, below

__all__ = [
    "Evaluate",
    "Guidance",
    "LoRA",
    "Range",
    "RunOptions",
    "Sample",
    "Search",
    "Sweep",
    "Tracking",
    "Train",
    "check_conditions",
    "condition_labels",
    "duplicates",
    "matches_module",
    "warn_conditions",
]


def duplicates(specs: Sequence[Spec]) -> Iterator[Misfit]:
    """Yield components that are listed twice: each is known by its name."""
    names = [spec.name for spec in specs]
    for number, name in enumerate(names):
        # The second of two is the one to remove.
        if name in names[:number]:
            yield Misfit(f'"{name}" is listed twice', (number,), code="duplicate")


class Guidance(Options):
    """Classifier-free guidance (Ho and Salimans, 2022): `uncond + weight * (cond - uncond)`.

    It takes two model calls a step.
    """

    # The default keeps files of regions and DNA that name none.
    condition: str = "cell"
    """Name of the condition; the model must be trained with dropout of this condition."""
    weight: float = Field(2.0, ge=0, le=1000)
    """Guidance weight: 0 is unconditional, 1 conditional without guidance, larger values strengthen
    the condition. For tokens it applies to log-probabilities."""
    start: float = Field(0.0, ge=0, le=1)
    """Least time that is guided; samples start at time 1. Outside of start to stop the condition
    alone is used, in one call (guidance interval, Kynkaanniemi et al., 2024)."""
    stop: float = Field(1.0, ge=0, le=1)
    """Largest time that is guided."""
    rescale: float = Field(0.0, ge=0, le=1)
    """Share by which the standard deviation of guided features is brought back to that without
    guidance (Lin et al., 2023, section 3.4); 0.7 is usual at large weights."""


def check_conditions(
    sample: Sample, space: Space, model: ModelFacts
) -> Iterator[Misfit]:
    """Yield unknown conditions and labels, and guidance that the model does not support."""
    if sample.guidance is not None:
        yield from _check_guidance(sample.guidance.condition, space, model)
        yield from _check_interval(sample.guidance, space)
    conditions = {condition.name: condition for condition in space.conditions}
    for name, value in sample.cond.items():
        path = ("sample", "cond", name)
        is_number = name in conditions and conditions[name].number is not None
        missing = list(
            missing_condition(
                space.conditions, name, path, labels=not is_number, number=is_number
            )
        )
        yield from missing
        if not missing and _value(conditions[name], value) is None:
            yield _unknown_value(conditions[name], value, path)


def _unknown_value(
    condition: Condition, value: float | str, path: tuple[str, ...]
) -> Misfit:
    if condition.number is not None:
        message = f'"{condition.name}" is a number, not {value!r}'
        return Misfit(message, path, ("task",), code="unknown-value")
    last = (condition.size or 1) - 1
    names = ", without names"
    if condition.labels:
        names = f": {', '.join(condition.labels)}"
    message = (
        f'"{condition.name}" has no label {value!r}; its labels are 0 to {last}{names}'
    )
    similar = did_you_mean(value, condition.labels)
    return Misfit(message, path, ("task",), similar, "unknown-value")


def warn_conditions(
    requested: Mapping[str, float | str], space: Space, model: ModelFacts
) -> Iterator[Misfit]:
    """Yield requested conditions that the model ignores, and numbers beyond those of the training data."""
    for condition in space.conditions:
        value = requested.get(condition.name)
        if value is None:
            continue
        path = ("sample", "cond", condition.name)
        read = model.conditions_read
        if read is not None and condition.name not in read:
            message = f'the model does not read "{condition.name}": samples do not depend on it'
            fix = "add it to model.condition, a sum of the noise level and conditions"
            yield Misfit(message, path, ("model",), fix)
        known = condition.number
        if known is None or isinstance(value, str):
            continue
        if value < known.low or value > known.high:
            message = (
                f"{condition.name} = {value:g} is outside the training data, "
                f"{known.low:g} to {known.high:g}: samples may not follow it"
            )
            yield Misfit(message, path, ("task",), code="out-of-range")


def _check_guidance(name: str, space: Space, model: ModelFacts) -> Iterator[Misfit]:
    path = ("sample", "guidance", "condition")
    integers = {c.name for c in space.conditions if c.length is not None}
    numbers = {c.name for c in space.conditions if c.number is not None}
    missing = missing_condition(
        space.conditions,
        name,
        path,
        labels=name not in integers | numbers,
        integers=name in integers,
        number=name in numbers,
    )
    misfits = list(missing)
    yield from misfits
    if misfits or name in model.dropped_conditions:
        return
    message = (
        f'guidance requires a model trained with dropout of the condition "{name}"'
    )
    hint = f'give the part of model.condition with of = "{name}" dropout = 0.1'
    yield Misfit(message, path, ("model",), hint)


def _check_interval(guidance: Guidance, space: Space) -> Iterator[Misfit]:
    path = ("sample", "guidance")
    if guidance.stop <= guidance.start:
        message = (
            f"no time is between start = {guidance.start} and stop = {guidance.stop}"
        )
        yield Misfit(message, (*path, "stop"), (*path, "start"), code="out-of-range")
    if guidance.rescale and space.data == "tokens":
        message = "rescale applies to features, but samples are tokens"
        yield Misfit(message, (*path, "rescale"), ("task",), code="no-effect")


def condition_labels(sample: Sample, space: Space) -> Mapping[str, float]:
    """Return the requested labels as integers, and numbers, by condition."""
    conditions = {condition.name: condition for condition in space.conditions}
    labels = {}
    for name, label in sample.cond.items():
        # `check_conditions` reports the others.
        if name in conditions:
            value = _value(conditions[name], label)
            if value is not None:
                labels[name] = value
    return labels


def _value(condition: Condition, value: float | str) -> float | None:
    """Return a label as its index, or a number; None for what is neither."""
    if condition.number is not None:
        return None if isinstance(value, str) else float(value)
    if isinstance(value, str):
        return condition.labels.index(value) if value in condition.labels else None
    # -1 is the label of unconditional samples.
    is_label = isinstance(value, int) and -1 <= value < (condition.size or 0)
    return value if is_label else None


class LoRA(Options):
    """LoRA (Hu et al., 2022): W + alpha / rank * B A, with W frozen."""

    rank: int = Field(8, ge=1, le=4096)
    """Rank of each update B A."""
    alpha: float = Field(8.0, gt=0)
    """Scale of the update times the rank."""
    on: list[str] = Field(min_length=1)
    """Matrices to adapt: names of them or of modules that contain them, with * and ?, such as
    "attention"."""
    whole: list[str] = []
    """Weights that are trained in full, with * and ?, such as "head.*"; all others are frozen."""
    start_from: PathStr | None = None
    """Folder of an adapter in peft's format, of the same matrices, to begin with."""


class Train(Options):
    """Optimisation, precision, checkpoints and data loading of a run."""

    steps: int = Field(1000, ge=0, le=1_000_000_000)
    """Optimizer steps."""
    epochs: float | None = Field(None, gt=0, le=1e6)
    """Passes over the training split, instead of steps; a run records the steps that follow from
    it."""
    batch_size: int = Field(32, ge=1, le=1_000_000)
    """Samples per optimizer step."""
    accumulate: int = Field(1, ge=1, le=100_000)
    """Gradient accumulation, in steps; each takes batch_size / accumulate samples."""
    optimizer: Slot[OptimizerSpec] = named("adamw")
    lr_schedule: Slot[LRScheduleSpec] = named("cosine")
    clip: float = Field(1.0, ge=0)
    """Maximum gradient norm; 0 disables clipping."""
    non_finite: Literal["stop", "skip"] = "stop"
    """If the loss or gradient norm is NaN or inf: stop the run, or skip the optimizer step. Either
    is reported when metrics are logged, so that no step waits for a GPU."""
    skip_limit: int = Field(10, ge=1, le=1_000_000)
    """Consecutive steps that may be skipped; one more stops the run."""
    ema: float = Field(0.999, ge=0, lt=1)
    """Decay of the exponential moving average (EMA) of the weights, which evaluation and sampling
    use; it warms up as (1 + step) / (10 + step). 0 disables the average."""
    precision: Literal["auto", "float32", "tf32", "bfloat16", "float16"] = "float32"
    """Mixed precision: bfloat16 and float16 run the model under autocast; weights, losses and
    optimizer stay in float32. float16 scales the loss, and skips a step whose gradients overflow.
    tf32 enables TensorFloat-32 matrix products on a GPU. auto is bfloat16 for a model with a large
    linear layer (2^18 weights on a CPU with AVX512-BF16 or AMX, 2^19 on a GPU; float16 on GPUs
    without bfloat16); else tf32 on a GPU, and float32 on a CPU."""
    compile: bool | Literal["blocks"] | None = None
    """Compile the model for training with torch.compile; by default on a GPU with Triton. "blocks"
    compiles each block separately, which starts sooner. Evaluation and sampling are not
    compiled."""
    known: float = Field(0.0, ge=0, le=1)
    """Share of training samples with random known tokens: a prefix, a suffix, both ends or
    scattered ones. They are not noised, and model.embedding.known marks them, so that a model
    learns prompts and infilling under every process."""
    random_lengths: float = Field(0.0, ge=0, le=1)
    """Share of training samples cut to a random length, uniform from 1 to all tokens (LLaDA: 0.01),
    so that a model of whole windows also draws shorter samples."""
    log_every: int = Field(20, ge=1)
    """Steps between metric lines, the first of which is that of step 1."""
    checkpoint_every: int = Field(500, ge=1)
    """Steps between checkpoints; the last step always has one."""
    keep: int = Field(2, ge=1, le=10_000)
    """Number of newest checkpoints to keep (save_total_limit of other trainers)."""
    keep_every: int | None = Field(None, ge=1)
    """Also keep every checkpoint whose step is a multiple of this; must be a multiple of
    checkpoint_every."""
    keep_best: bool = False
    """Also write and keep a checkpoint of the best evaluation."""
    async_save: bool = False
    """Write checkpoints in a background thread; needs memory for one more copy of their tensors."""
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?|mps)$",
        json_schema_extra={PATTERN_MESSAGE: '"auto", "cpu", "cuda", "cuda:1" or "mps"'},
    )
    """Device; auto uses a GPU if one is available."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads; by default one for a small model and batch, else as many as torch takes."""
    workers: int | None = Field(None, ge=0, le=64)
    """Threads that prefetch batches; the batches and their order do not change. By default 0 on a
    CPU, 2 on a GPU."""
    keep_memory: bool = True
    """On a CPU, keep freed memory in the process instead of returning it to the system (glibc):
    faster steps."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: replicate the model on every rank (DDP) or shard it among them (FSDP2)."""
    timeout: float = Field(1800, ge=1, le=1e6)
    """Seconds to wait for another rank before the run ends; one that is silent is named after 60
    seconds."""
    gather: Literal["float32", "bfloat16"] = "float32"
    """Precision of the all-gather of weights under "fsdp"; bfloat16 halves the traffic and also
    rounds the weights of norms. Gradients are reduced in float32."""
    start_from: PathStr | None = None
    """Initialise from the weights of a run directory, an export, an installed model such as
    "zoo/bubble-small", or a weight file."""
    start_layout: str | None = None
    """Layout of a weight file of another project, such as "get" (.safetensors, .pt, .pth or
    .ckpt)."""
    start_partial: bool = False
    """Load only the weights whose names and shapes match, and list the others."""
    freeze: list[str] = []
    """Weights to freeze: names with * and ?, such as "embedding.*"."""
    lora: LoRA | None = None
    """Train low-rank updates (LoRA) instead of the weights."""
    buckets: bool | None = None
    """Batch samples with equal padding together, so that no padding is computed; the default is to
    do so if the task reports it and the samples fill a batch."""

    def check(self, model: ModelSpec) -> Iterator[Misfit]:
        """Yield options that are incompatible with each other or with the model."""
        # `steps` always has a value: only `model_fields_set` says that the file gives one.
        if self.epochs is not None and "steps" in self.model_fields_set:
            hint = "remove one of them: --unset train.steps"
            yield Misfit(
                "epochs and steps are both given", ("epochs",), ("train", "steps"), hint
            )
        if self.batch_size % self.accumulate:
            accumulate = f"train.accumulate = {self.accumulate}"
            message = (
                f"train.batch_size = {self.batch_size} is not divisible by {accumulate}"
            )
            yield Misfit(message, ("accumulate",), ("train", "batch_size"))
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            multiple = f"checkpoint_every = {self.checkpoint_every}"
            message = f"keep_every = {self.keep_every} is not a multiple of {multiple}"
            hint = (
                "most multiples of keep_every have no checkpoint; use such a multiple"
            )
            yield Misfit(message, ("keep_every",), ("train", "checkpoint_every"), hint)
        # Not auto, whose choice depends on the device.
        if self.gather == "bfloat16" and (self.strategy, self.precision) != (
            "fsdp",
            "bfloat16",
        ):
            message = 'gather = "bfloat16" requires strategy = "fsdp" and precision = "bfloat16"'
            hint = "set both, not to auto, or remove gather"
            yield Misfit(message, ("gather",), ("train", "strategy"), hint)
        if self.strategy == "fsdp" and not self.optimizer.shardable:
            message = f'optimizer "{self.optimizer.name}" takes no sharded weights'
            hint = 'use strategy = "ddp", or optimizer "adamw"'
            yield Misfit(message, ("optimizer",), ("train", "strategy"), hint)
        yield from self._check_start(model)

    def warn(self) -> Iterator[Misfit]:
        """Yield options that are likely a mistake."""
        if self.lora is not None and self.start_from is None:
            # New heads and gates are zero, and so all gradients of the updates would be.
            message = "LoRA without start_from adapts random weights, which stay frozen"
            hint = "set start_from to a trained model"
            yield Misfit(message, ("lora",), help=hint)

    def _check_start(self, model: ModelSpec) -> Iterator[Misfit]:
        layout = self.start_layout
        if layout is not None and self.start_from is None:
            hint = "set start_from to the weight file"
            yield Misfit(
                "start_layout requires start_from", ("start_layout",), help=hint
            )
        elif layout is not None and layout not in model.layouts:
            known = ", ".join(model.layouts) or "none"
            message = f'model "{model.name}" has no layout "{layout}"; its layouts are: {known}'
            similar = did_you_mean(layout, model.layouts)
            yield Misfit(
                message, ("start_layout",), ("model",), similar, "unknown-value"
            )
        if self.start_partial and self.start_from is None:
            message = "start_partial has no effect without start_from"
            hint = "set start_from to a run, an export or a weight file"
            yield Misfit(message, ("start_partial",), help=hint, code="no-effect")
        if self.lora is not None and self.freeze:
            message = "freeze has no effect with LoRA, which freezes all but the weights of whole"
            yield Misfit(message, ("freeze",), ("train", "lora"), "remove freeze")


class Tracking(Options):
    """Destinations of metrics and pictures besides metrics.jsonl."""

    use: list[Slot[TrackerSpec]] = [named("tensorboard")]
    """Trackers; [] for none. One that fails is disabled with a warning; the run continues."""

    def check(self) -> Iterator[Misfit]:
        """Yield trackers that cannot be used or are listed twice."""
        for number, tracker in enumerate(self.use):
            yield from below("use", below(number, tracker.check()))
        yield from below("use", duplicates(self.use))


class RunOptions(Options):
    """The run directory."""

    mirror: str | None = Field(
        None,
        pattern=r"^[a-z][a-z0-9+.-]+://",
        json_schema_extra={PATTERN_MESSAGE: "an address such as s3://bucket/runs"},
    )
    """Copy the run directory below this address of fsspec after each checkpoint and at the end; a
    failure is a warning. `dither sample`, `evaluate` and `run --resume` read the copy."""

    def check(self) -> Iterator[Misfit]:
        """Yield a problem if the address contains credentials."""
        # The run directory records the address, for every reader of the run.
        if self.mirror is not None and (problem := address_problem(self.mirror)):
            yield problem.as_misfit(("mirror",))


class Evaluate(Options):
    """Evaluation on the validation split."""

    every: int = Field(500, ge=1)
    """Steps between evaluations; the last step always has one."""
    samples: int = Field(1024, ge=1)
    """Number of samples, from the beginning of the validation split."""
    batch_size: int | None = Field(None, ge=1)
    """Samples per batch; the default is train.batch_size."""
    repeats: int = Field(1, ge=1, le=1000)
    """Independent noise draws per sample; more reduce the variance of the metrics."""
    best: str = Field("loss", min_length=1)
    """The metric by which evaluations are compared; NaN or inf ends the run, unless
    train.non_finite is "skip"."""
    better: Literal["lower", "higher"] = "lower"
    """Which values of it are better."""
    metrics: list[Slot[MetricSpec]] = []
    """Metrics besides those of the task."""
    patience: int | None = Field(None, ge=1)
    """Early stopping: end the run after this many consecutive evaluations without improvement."""


class Sample(Options):
    """Sampling from the model."""

    count: int = Field(16, ge=0, le=1_000_000)
    """Number of samples."""
    every: int | None = Field(None, ge=1)
    """Steps between sampling during training; by default only at the end."""
    batch_size: int | None = Field(None, ge=1)
    """Samples per batch; the default is all, at most 250 on a CPU and 1,000 on a GPU."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Random seed of sampling."""
    tries: int = Field(64, ge=1, le=1_000_000)
    """Maximum attempts per sample to meet the constraints of the task (rejection sampling)."""
    guidance: Guidance | None = None
    """Classifier-free guidance; off by default."""
    cond: dict[str, int | float | str] = {}
    """Conditions of all samples, such as { cell = "K562", activity = 2.5 }: labels by name or index,
    of which -1 is unconditional, and numbers in the units of the data. By default each sample takes
    the conditions of a data sample."""


def matches_module(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a matrix or a module that contains it."""
    # Dots at both ends, so that parts match as a whole: `head` is not `heads`.
    return fnmatchcase(f".{name}.", f"*.{pattern}.*")


class Range(Options):
    """A range of a search; of integers if both ends are integers."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value, inclusive."""
    step: int | float | None = Field(None, gt=0)
    """Distance between values."""
    log: bool = False
    """Sample uniformly in the logarithm."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} exceeds high = {self.high}")
        # Optuna takes either a step or a logarithm.
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("a logarithmic range must start above 0 and has no step")
        if self.integral and self.step is not None and not isinstance(self.step, int):
            raise ValueError("a range of integers requires an integer step")
        return self

    @property
    def integral(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


class Search(Options):
    """A search with Optuna, which proposes each point from the results of earlier ones."""

    trials: int = Field(20, ge=1, le=100_000)
    """Total number of points, over all processes."""
    metric: str = Field("valid/loss", pattern=r"^(train|valid|sample)/.+")
    """The metric to optimise and to prune by, as kind/name of a line in metrics.jsonl."""
    direction: Literal["minimize", "maximize"] = "minimize"
    """Direction of optimisation."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Proposal of points: a tree-structured Parzen estimator, or random."""
    pruner: Literal["median", "none"] = "median"
    """Stop points that are worse than the median at the same step, or none."""
    warmup: int = Field(4, ge=0)
    """Points that finish before any is pruned."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the proposals; with several processes their order matters, too."""
    space: dict[str, Any]
    """Key -> a list of choices, or a range { low, high, step, log }. Keys as in `grid`."""


class Sweep(Options):
    """Values to try. A key is a dotted path in quotes, or nested tables."""

    grid: dict[str, Any] = {}
    """Key -> list of values; points are the Cartesian product over all keys."""
    zip: list[dict[str, Any]] = []
    """Tables of lists of equal length whose i-th values form one point."""
    search: Search | None = None
    """A search in place of a fixed list of points."""
