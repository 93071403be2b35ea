"""The kinds of components: what each is given and returns.

Every kind has two methods with the same arguments: `check` yields incompatibilities without torch,
`build` returns the component. Sizes (width, condition width, vocabulary, length) are passed down by
the parent, never repeated in an experiment file.
"""

from __future__ import annotations

import inspect
import pathlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import PrivateAttr

from .config.errors import Refused, did_you_mean
from .contracts.jobs import Cluster, Executor
from .contracts.spaces import Condition, Data, ModelFacts, ProcessFacts, Space
from .spec.base import Spec, WrongReturnError, checked_method, shown
from .spec.misfit import Misfit, Path

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from .contracts.protocols import (
        Loss,
        PredictionMetric,
        Process,
        Reward,
        SampleMetric,
        Sampler,
        Schedule,
        Task,
        Tracker,
    )

__all__ = [
    "ANY",
    "FEATURES",
    "KINDS",
    "TOKENS",
    "BlockSpec",
    "ConditionSpec",
    "DataSpec",
    "EmbeddingSpec",
    "ExecutorSpec",
    "HeadSpec",
    "LRScheduleSpec",
    "LossSpec",
    "MetricSpec",
    "ModelFacts",
    "ModelSpec",
    "OptimizerSpec",
    "OverSpace",
    "PositionSpec",
    "ProcessFacts",
    "ProcessSpec",
    "RewardSpec",
    "SamplerSpec",
    "ScheduleSpec",
    "TaskSpec",
    "TrackerSpec",
    "known_kind",
    "missing_condition",
    "unserved_space",
]

ANY: frozenset[Data] = frozenset({"tokens", "features"})
TOKENS: frozenset[Data] = frozenset({"tokens"})
FEATURES: frozenset[Data] = frozenset({"features"})


def unserved_space(
    spec: Spec, serves: frozenset[Data], space: Space, related: Path
) -> Iterable[Misfit]:
    """Yield a misfit if the component does not serve the space; `related` is the space's origin."""
    if space.data not in serves:
        # A component that serves both types fits any space, so that one type is left.
        (served,) = serves
        message = f'{spec.kind} "{spec.name}" is for {served}, but a sample is {space}'
        yield Misfit(message, related=related)


def missing_condition(
    conditions: Iterable[Condition],
    name: str,
    path: Path,
    *,
    labels: bool = False,
    integers: bool = False,
    number: bool = False,
) -> Iterable[Misfit]:
    """Yield a misfit at `path` if a task has no condition of this name and type.

    Args:
        conditions: Those of the task.
        name: Of the condition.
        path: To the option that names it.
        labels: Whether it must be one label per sample.
        integers: Whether it must be integers per sample; by default one number per position.
        number: Whether it must be a real number per sample.
    """
    known = {condition.name: condition for condition in conditions}
    if name not in known:
        listed = ", ".join(f'"{other}"' for other in known) or "none"
        message = f'the task has no condition "{name}"; conditions: {listed}'
        yield Misfit(message, path, ("task",), did_you_mean(name, known))
        return
    condition = known[name]
    # At most one of these is set; without any, the condition is a number per position.
    types = (condition.size, condition.length, condition.number)
    if [labels, integers, number] != [value is not None for value in types]:
        required = "one number per position"
        if labels:
            required = "one label per sample"
        elif integers:
            required = "integers per sample"
        elif number:
            required = "a number per sample"
        message = (
            f'condition "{name}" of the task is {condition}; {required} is required'
        )
        yield Misfit(message, path, ("task",))


class OverSpace(Spec):
    """A component that is built for a space, and may serve one type of data only."""

    serves: ClassVar[frozenset[Data]] = ANY
    space_of: ClassVar[str] = "process"
    """Where the space comes from: the process, which adds MASK, or the task."""

    def check(self, *given: Any, **named: Any) -> Iterable[Misfit]:
        """Yield reasons why the component cannot serve the space, which is given first."""
        yield from unserved_space(self, self.serves, given[0], (self.space_of,))


class TaskSpec(Spec):
    """A task: its data, its metrics and its plots."""

    kind: ClassVar[str] = "task"
    built_attributes: ClassVar[tuple[str, ...]] = ("space", "size", "batch")
    exports: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """File formats its samples can be exported to, each with a description; the built task
    implements `export`."""
    bucketed: ClassVar[bool | None] = None
    """Whether the built task has `buckets`; None if that is unknown before."""
    headline: ClassVar[tuple[str, ...]] = ()
    """Metrics at the end of a run and first in its report, as `valid/loss` or `sample/unique`; the
    rest follow."""
    higher: ClassVar[tuple[str, ...]] = ()
    """Patterns of metrics, such as `*_auc`, of which higher values are better: the table at the end
    of a run marks who is ahead."""
    lower: ClassVar[tuple[str, ...]] = ()
    """Patterns of metrics of which lower values are better, besides the loss and likelihoods."""
    explanations: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Explanations of baselines by name, below that table."""
    asset_option: ClassVar[str] = ""
    """Option that an export sets to the folder of its assets, so that the task is built with
    them."""
    hub_task: ClassVar[str] = "other"
    """Task of the Hugging Face hub, such as text-generation, under which models are listed."""
    legend: ClassVar[str] = ""
    """Explanation of the pictures and metrics of samples, above the samples of a report."""

    order_matters: ClassVar[bool] = True
    """Whether samples are sequences, not sets: models without positions are warned about."""

    def trains_known(self) -> bool:
        """Whether training samples have known tokens, such as prompts."""
        return False

    def starts_known(self) -> bool:
        """Whether samples start from known tokens, such as a prompt."""
        return False

    def check_export(self, form: str) -> Iterable[Misfit]:
        """Yield reasons why samples cannot be exported to a format, such as a missing library."""
        return ()

    @abstractmethod
    def space(self) -> Space:
        """Return the space of one sample.

        May read data, without torch; raises `Refused` if they are invalid.
        """

    @abstractmethod
    def build(self) -> Task:
        """Read the data and return the task."""

    def restore(self, folder: pathlib.Path, space: Space) -> object:
        """Return the abilities of an export without data, such as `like` and `plots`.

        `folder` is that of `save_assets`.
        """
        raise NotImplementedError(f'task "{self.name}" writes no files into exports')


class DataSpec(Spec):
    """A source of samples: files, built-in data, or a generator.

    `gives` is the type of its records, so that a task can reject a source of another type.
    """

    kind: ClassVar[str] = "data"
    gives: ClassVar[str] = ""
    prepared_as: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Names that `dither prepare` accepts instead of the component's name, each with the options it
    sets."""

    def check(self) -> Iterable[Misfit]:
        """Yield incompatible options, and problems such as a missing file."""
        return ()

    def check_gives(self, *types: str) -> Iterable[Misfit]:
        """Yield that the records are of none of these types."""
        if self.gives not in types:
            message = f'"{self.name}" gives {self.gives}, not {" or ".join(types)}'
            yield Misfit(message, code="wrong-kind")

    def facts(self) -> Any:
        """Return the sizes and names that the space of a task depends on.

        Override it where they are known without reading the data.
        """
        return self.build().facts()

    def describe_elsewhere(self) -> Mapping[str, Mapping[str, Any]]:
        """Return `first`, `files`, `bytes` and `sha256` of data that are no local files, by option.

        A resumed run compares them, as the engine compares local files by itself.
        """
        return {}

    def check_built(self, built: Any) -> None:
        """Raise WrongReturnError for what no task can use."""
        if built is None or isinstance(built, str | int | float):
            raise WrongReturnError(
                f"build returned {shown(built)}, which holds no samples"
            )

    @abstractmethod
    def build(self) -> Any:
        """Read or generate the samples, in the form that the task expects."""

    def prepare(self) -> str | None:
        """Download and convert data in advance; return a line about it, or None if there is nothing to do."""
        return None

    def prepare_shard(self, number: int, count: int) -> str:
        """Prepare one of `count` parts, numbered from 1, and return a report."""
        raise Refused(f"{self.name} is not prepared in shards", code="usage")

    def merge_shards(self) -> str:
        """Join all shards to what `prepare` would write, and return a report."""
        raise Refused(f"{self.name} is not prepared in shards", code="usage")


def _require_number(spec: Spec, value: Any) -> None:
    if value is not None and not isinstance(value, int | float):
        raise WrongReturnError(f"sigma_end returned {value!r}, not a number or None")


class ScheduleSpec(Spec):
    """The noise schedule sigma(t) with its derivative; the signal is alpha = exp(-sigma)."""

    kind: ClassVar[str] = "schedule"

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: Any) -> None:
        """Check what `sigma_end` returns, too."""
        super().__pydantic_init_subclass__(**arguments)
        # An inherited method is wrapped already.
        if "sigma_end" in vars(cls):
            cls.sigma_end = checked_method(cls.sigma_end, _require_number)  # type: ignore[method-assign]

    def check_built(self, built: Any) -> None:
        """Raise WrongReturnError unless it maps times to sigma and rate of their shape."""
        super().check_built(built)
        import torch

        from .contracts.records import Noise

        t = torch.linspace(0, 1, 5)
        noise = built(t)
        if not isinstance(noise, Noise):
            raise WrongReturnError(
                f"the schedule returned {shown(noise)} instead of Noise"
            )
        for name, values in (("sigma", noise.sigma), ("rate", noise.rate)):
            if not isinstance(values, torch.Tensor) or values.shape != t.shape:
                raise WrongReturnError(
                    f"the schedule returned no {name} of the shape of the times, {tuple(t.shape)}"
                )
            if not bool((values >= 0).all()):
                raise WrongReturnError(
                    f"the {name} of the schedule is negative or NaN: {values.tolist()}"
                )

    def sigma_end(self) -> float | None:
        """Return sigma(1) without torch; None if it requires the built schedule."""
        return None

    def built_sigma_end(self) -> float:
        """Return sigma(1) of the built schedule, for a process if `sigma_end` is None."""
        import torch

        return float(self.build()(torch.ones(1, dtype=torch.float64)).sigma)

    @abstractmethod
    def build(self) -> Schedule:
        """Return t -> Noise."""


class ProcessSpec(OverSpace):
    """A diffusion process: adds noise to clean samples, and removes it step by step."""

    kind: ClassVar[str] = "process"
    space_of: ClassVar[str] = "task"
    built_attributes: ClassVar[tuple[str, ...]] = (
        "space",
        "schedule",
        "times",
        "corrupt",
        "read",
    )

    @abstractmethod
    def facts(self, space: Space) -> ProcessFacts:
        """Return the properties that losses and samplers need; the model serves its `space`."""

    @abstractmethod
    def build(self, space: Space) -> Process:
        """Return the process over the task's space."""


class SamplerSpec(Spec):
    """An algorithm that draws samples by reversing a process."""

    kind: ClassVar[str] = "sampler"
    blockwise: ClassVar[bool] = False
    """Whether it draws block after block, as a model with a block size is trained."""
    corrects_known: ClassVar[bool] = False
    """Whether samples given known tokens are right for a model that takes these for noised ones."""

    def beyond(self, window: int) -> Self:
        """Return this sampler for samples longer than the window of training."""
        return self

    def steers(self, process: ProcessFacts) -> bool:
        """Return whether samples are meant to follow another distribution than that of the model."""
        return False

    def known_cost(self) -> int:
        """Return the model calls given known tokens, as a multiple of those without."""
        return 1

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield reasons why the sampler cannot be used with this process and model."""
        return ()

    @abstractmethod
    def build(self) -> Sampler:
        """Return the sampler."""


class ModelSpec(OverSpace):
    """A model from states to raw output per position: an nn.Module and `contracts.Denoiser`."""

    kind: ClassVar[str] = "model"
    layouts: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Naming schemes of external weights that `rename` understands, each with its origin."""

    def facts(self) -> ModelFacts:
        """Return the properties that samplers need."""
        return ModelFacts()

    def rename(self, layout: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of one of the `layouts` with the names of this model."""
        raise NotImplementedError(f'model "{self.name}" has no layouts')

    @abstractmethod
    def build(self, space: Space) -> nn.Module:
        """Return the model."""


class BlockSpec(Spec):
    """One layer: forward(x `B L D`, c `B C` or `B L C`, mask=, cache=, layer=, keep=) -> x."""

    kind: ClassVar[str] = "block"
    reads_condition: ClassVar[bool] = True
    """Whether the block uses the condition."""

    def at(self, layer: int, depth: int) -> Self:
        """Return the options of layer 0 .. depth-1; by default they are the same for all."""
        return self

    @abstractmethod
    def build(self, width: int, cond: int) -> nn.Module:
        """Return one layer."""


class EmbeddingSpec(OverSpace):
    """Embedding of a state: forward(state, cond, start) -> (`B extra+L D`, extra).

    `start` is the index of the first position.
    """

    kind: ClassVar[str] = "embedding"
    reads_labels: ClassVar[bool] = True
    """Whether the output may depend on labels and numbers among the conditions."""

    def extra(self) -> int:
        """Return the number of tokens put before the positions, such as a class token."""
        return 0

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the embedding."""


class PositionSpec(OverSpace):
    """Position embedding: forward(start, length, cond) -> `1 L D` or `B L D`, a summand."""

    kind: ClassVar[str] = "position"

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the position embedding."""


class ConditionSpec(Spec):
    """Embedding of noise level and conditions: forward(level `B` or `B L`, cond) -> `B C`, `B L C`."""

    kind: ClassVar[str] = "condition"
    _conditions: tuple[Condition, ...] = PrivateAttr(())
    _level_end: float | None = PrivateAttr(None)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of the space, after `with_space`."""
        return self._conditions

    @property
    def level_end(self) -> float | None:
        """The largest noise level, after `with_space`; None if unknown."""
        return self._level_end

    def with_space(self, space: Space) -> Self:
        """Return a copy that knows conditions and noise levels of a space; a model calls this first."""
        # A Spec is shared by all that read the experiment, so that its space belongs to a copy.
        part = self.model_copy()
        part._conditions = space.conditions
        part._level_end = space.level_end
        return part

    def dropped(self) -> tuple[str, ...]:
        """Return the conditions that training drops at random, which guidance requires."""
        return ()

    def reads(self) -> tuple[str, ...] | None:
        """Return the conditions that the output depends on; None if the component does not say."""
        return None

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """Return the embedding of noise level and conditions."""


class HeadSpec(OverSpace):
    """Output layer: forward(h `B L D`) -> `B L M` or `B L V`.

    Ids outside the vocabulary of a field are at -inf.
    """

    kind: ClassVar[str] = "head"

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the head."""


class LossSpec(OverSpace):
    """The training objective: (Prediction, Noised) -> Measured."""

    kind: ClassVar[str] = "loss"
    bound: ClassVar[bool] = False
    """Whether the mean over t is the diffusion part of a bound on -log p(x_0), in nats; evaluation
    adds the rest."""
    denoises: ClassVar[bool] = False
    """Whether it is least at the mean of x_0 given x_t, so that under Gaussian noise the prediction
    defines a density of continuous data."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield reasons why the loss is wrong for the process."""
        yield from unserved_space(self, self.serves, process.space, ("process",))

    @abstractmethod
    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss as a pure function."""

    def build_training(self, process: ProcessFacts) -> Loss | None:
        """Return the loss that training minimises; None if it is that of `build`.

        Evaluation reports that of `build`.
        """
        return None


class OptimizerSpec(Spec):
    """An optimizer of the weights.

    Attributes:
        shardable: Whether it takes sharded weights, those of `train.strategy = "fsdp"`.
    """

    kind: ClassVar[str] = "optimizer"
    shardable: ClassVar[bool] = True
    built_attributes: ClassVar[tuple[str, ...]] = ("step", "param_groups")

    @abstractmethod
    def build(self, module: nn.Module) -> Optimizer:
        """Return an optimizer over the parameters of `module` that require gradients."""


class LRScheduleSpec(Spec):
    """The learning rate over a run, as a factor of the optimizer's learning rate."""

    kind: ClassVar[str] = "lr-schedule"

    def check_built(self, built: Any) -> None:
        """Raise WrongReturnError unless it maps a step to a number."""
        super().check_built(built)
        factor = built(0)
        try:
            float(factor)
        except (TypeError, ValueError):
            raise WrongReturnError(
                f"the factor of step 0 is {shown(factor)}, not a number"
            ) from None

    @abstractmethod
    def build(self, steps: int) -> Callable[[int], float]:
        """Return step (0 .. steps-1) -> factor."""


class MetricSpec(OverSpace):
    """Numbers computed from predictions or from samples, listed by `[evaluate] metrics = [...]`."""

    kind: ClassVar[str] = "metric"
    space_of: ClassVar[str] = "task"

    def check_built(self, built: Any) -> None:
        """Raise WrongReturnError unless it is a metric of predictions, of samples, or both."""
        from .contracts.task_protocols import PredictionMetric

        if not isinstance(built, PredictionMetric):
            super().check_built(built)

    @abstractmethod
    def build(self, space: Space) -> PredictionMetric | SampleMetric:
        """Return the metric: a function of samples, or an object with `metrics()`, or both."""


class RewardSpec(OverSpace):
    """A number per finished sample, which samplers such as `reward-smc` make large."""

    kind: ClassVar[str] = "reward"
    space_of: ClassVar[str] = "task"

    @abstractmethod
    def build(self, space: Space) -> Reward:
        """Return the reward: a function of samples and what sampling started from."""


class TrackerSpec(Spec):
    """A destination of metrics and pictures, such as TensorBoard, W&B or MLflow."""

    kind: ClassVar[str] = "tracker"
    built_attributes: ClassVar[tuple[str, ...]] = ("start", "log")

    def check(self) -> Iterable[Misfit]:
        """Yield reasons why the tracker cannot be used, such as a package that is not installed."""
        return ()

    @abstractmethod
    def build(self) -> Tracker:
        """Return the tracker. Nothing is opened or sent before `Tracker.start`."""


class ExecutorSpec(Spec):
    """Where the points of a sweep run, as after `dither sweep --executor`."""

    kind: ClassVar[str] = "executor"

    def check(self) -> Iterable[Misfit]:
        """Yield reasons why the executor cannot be used, such as a package that is not installed."""
        return ()

    def check_built(self, built: Any) -> None:
        """Raise WrongReturnError unless the sweep can wait for its commands, or queue them."""
        if not isinstance(built, Executor | Cluster):
            reason = "is neither an Executor with start nor a Cluster with submit"
            raise WrongReturnError(f"build returned {shown(built)}, which {reason}")

    @abstractmethod
    def build(self) -> Executor | Cluster:
        """Return the executor. Nothing is started or connected before the first command."""


_KINDS: tuple[type[Spec], ...] = (
    TaskSpec,
    DataSpec,
    ProcessSpec,
    ScheduleSpec,
    SamplerSpec,
    LossSpec,
    ModelSpec,
    BlockSpec,
    EmbeddingSpec,
    PositionSpec,
    ConditionSpec,
    HeadSpec,
    OptimizerSpec,
    LRScheduleSpec,
    MetricSpec,
    RewardSpec,
    TrackerSpec,
    ExecutorSpec,
)
KINDS = {kind.kind: kind for kind in _KINDS}
"""Every kind by name, in the order of an experiment file."""

_BASES: tuple[type, ...] = (OverSpace, *_KINDS)
# pydantic would evaluate annotations that are strings again for every component.
for _base in _BASES:
    _base.__annotations__ = inspect.get_annotations(_base, eval_str=True)


def known_kind(kind: str) -> str:
    """Return a kind; `Refused` if there is none of this name."""
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS, f"known: {', '.join(KINDS)}")
        raise Refused(f'unknown kind "{kind}"', help=hint, code="unknown-value")
    return kind
