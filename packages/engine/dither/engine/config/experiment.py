"""The experiment file: components, options, and whether they are compatible. No torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import Field

from dither.registry.config.document import Document, Layer
from dither.registry.config.errors import Refused
from dither.registry.config.validation import (
    PATTERN_MESSAGE,
    dump,
    problems_of,
    validate,
)
from dither.registry.contracts.spaces import (
    FeatureSpace,
    ModelFacts,
    ProcessFacts,
    Space,
    TokenSpace,
)
from dither.registry.contracts.spaces import Field as SpaceField
from dither.registry.kinds import (
    LossSpec,
    ModelSpec,
    ProcessSpec,
    SamplerSpec,
    TaskSpec,
)
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.manager import default_catalog
from dither.registry.spec.base import Options, Slot, Spec, named
from dither.registry.spec.misfit import Misfit, below

from .compare_options import Compare
from .component_errors import attribute_errors
from .options import (
    Evaluate,
    RunOptions,
    Sample,
    Sweep,
    Tracking,
    Train,
    check_conditions,
    duplicates,
    warn_conditions,
)

__all__ = ["Experiment", "misfits_without_task"]

T = TypeVar("T")
DEFAULTS: Any = {}
"""Default of a table: validated with the catalogue of the experiment, which an instance would not
be."""


class Experiment(Options):
    """One experiment, as written in its TOML file."""

    name: str = Field(
        "experiment",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        json_schema_extra={
            PATTERN_MESSAGE: "at most 64 letters, digits, dots, dashes and underscores, "
            "starting with a letter or digit"
        },
    )
    """Name of the experiment in lists and reports."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of every random draw of a run."""
    plugins: list[str] = []
    """Plugins to load even if none of their components is used: installed ones by name, files as
    ./x.py."""
    task: Slot[TaskSpec]
    process: Slot[ProcessSpec]
    model: Slot[ModelSpec]
    loss: Slot[LossSpec]
    sampler: Slot[SamplerSpec] = named("ancestral")
    train: Train = DEFAULTS
    evaluate: Evaluate = DEFAULTS
    sample: Sample = DEFAULTS
    tracking: Tracking = DEFAULTS
    run: RunOptions = DEFAULTS
    sweep: Sweep | None = None
    """Values that `dither sweep` tries, one run for each combination."""
    compare: Compare | None = None
    """Arms that `dither compare` runs with several seeds."""

    def replace(self, *, catalog: Catalog | None = None, **changes: Any) -> Experiment:
        """Return a checked copy with other options: `replace(seed=1, model={"width": 64})`.

        A table changes options of what is there, unless it names another component with `use`.
        `catalog` is that of a `Loaded` experiment with plugin files.

        Raises:
            Refused: With a problem, and its TOML key, for everything that is wrong.
        """
        experiment, document = self.changed(changes, catalog)
        if misfits := list(experiment.check()):
            raise Refused(problems_of(misfits, document))
        return experiment

    def changed(
        self, changes: Mapping[str, Any], catalog: Catalog | None = None
    ) -> tuple[Experiment, Document]:
        """Return a copy with other options, and its document; components are not compared."""
        catalog = catalog or default_catalog()
        document = Document()
        document.merge(Layer("the experiment", dump(self, catalog)))
        # Options that stay need not be found in the catalogue again.
        for key in document.tree.keys() - changes.keys():
            document.tree[key] = getattr(self, key)
        document.merge(Layer("replace", dict(changes)))
        # Neither layer is a file, so that messages name keys without places.
        document.given.clear()
        return validate(Experiment, document, catalog), document

    @property
    def evaluation_batch(self) -> int:
        """Samples of a batch of an evaluation."""
        return self.evaluate.batch_size or self.train.batch_size

    def component_names(self) -> list[str]:
        """Return kind and name of the main components."""
        components = (self.task, self.process, self.model, self.loss, self.sampler)
        return [f"{component.kind} {component.name}" for component in components]

    def check(self) -> Iterator[Misfit]:
        """Yield why the components are incompatible.

        May read data to know the space of a task; imports no torch.
        """
        yield from below("train", self.train.check(self.model))
        yield from below("tracking", self.tracking.check())
        yield from below("run", self.run.check())
        if self.train.buckets and self.task.bucketed is False:
            message = f'task "{self.task.name}" defines no buckets of equal padding'
            yield Misfit(
                message, ("train", "buckets"), ("task",), "remove train.buckets"
            )
        yield from below(
            "evaluate", below("metrics", duplicates(self.evaluate.metrics))
        )
        of_task = _checked("task", self.task)
        yield from of_task
        space = _known(self.task, self.task.space, of_task)
        if space is None:
            yield from misfits_without_task(
                self.process, self.model, self.loss, self.sampler
            )
            return
        for number, metric in enumerate(self.evaluate.metrics):
            yield from below(
                "evaluate", below("metrics", _checked(number, metric, space))
            )
        facts = yield from _misfits_between(
            self.process, self.model, self.loss, self.sampler, space
        )
        if facts is None:
            return
        process, model = facts
        space = process.space
        yield from self._check_blocks(model.trained_blocks(space), space)
        yield from self._check_training(process, model)
        yield from check_conditions(self.sample, space, model)

    def _check_training(
        self, process: ProcessFacts, model: ModelFacts
    ) -> Iterator[Misfit]:
        """Yield what the model cannot be trained on: noise, known tokens and lengths."""
        # Unlike MASK, a wrong id is evidence of the clean one: bounds would be far from tight.
        if not model.reads_noised and process.prior == "mixture":
            message = f'process "{process.name}" replaces ids by others, which the model does not read'
            hint = 'use process "absorbing"'
            yield Misfit(message, ("process",), ("model",), hint)
        # Under MASK the score is p(x_0 | x_t) times alpha / (1 - alpha), which a count of the masks
        # only estimates, the worse the fewer positions there are.
        if process.predict == "score" and "level-free" in self.model.traits():
            message = "scores depend on the noise level, which the model does not read"
            hint = 'set model.condition = "level", or process.predict = "posterior"'
            place = ("process", "predict")
            yield Misfit(message, place, ("model",), hint)
        if self.train.known and not model.reads_known:
            required = "a model that distinguishes known tokens from noised ones"
            message = f"train.known = {self.train.known:g} requires {required}"
            hint = 'set model.embedding = { use = "tokens", known = true }'
            yield Misfit(message, ("train", "known"), ("model",), hint)
        space = process.space
        one_field = isinstance(space, TokenSpace) and len(space.fields) == 1
        # Several fields have no common end at which a sample could be cut.
        if self.train.random_lengths and not one_field:
            message = f"samples of random lengths require a single field of tokens, not {space}"
            hint = "remove train.random_lengths"
            yield Misfit(message, ("train", "random_lengths"), ("task",), hint)

    def check_sampling(self, space: Space) -> Iterator[Misfit]:
        """Yield why samples cannot be drawn with these options of sampling; reads no data."""
        process = self.process.facts(space)
        model = self.model.facts()
        yield from _checked("sampler", self.sampler, process, model)
        blocks = model.trained_blocks(process.space)
        yield from self._check_blocks(blocks, process.space)
        yield from check_conditions(self.sample, process.space, model)

    def _check_blocks(self, blocks: int | None, space: Space) -> Iterator[Misfit]:
        """Yield that a model of blocks of this size cannot draw whole samples."""
        if blocks is None or blocks >= space.length or self.sampler.blockwise:
            return
        sampler = self.sampler.name
        reason = "draws whole samples, but the model is trained block by block"
        hint = (
            f'use sampler = {{ use = "blocks", size = {blocks}, inner = "{sampler}" }}'
        )
        message = f'sampler "{sampler}" {reason}'
        yield Misfit(message, ("sampler",), ("model", "block_size"), hint)

    def warn(self) -> Iterator[Misfit]:
        """Yield warnings before a long run. Call it only if `check` yields nothing."""
        space = self.task.space()
        process = self.process.facts(space)
        yield from below("train", self.train.warn())
        yield from _checked("task", self.task, method="warn")
        yield from _checked("process", self.process, space, method="warn")
        yield from _checked("loss", self.loss, process, method="warn")
        model = self.model.facts()
        yield from _checked("sampler", self.sampler, process, model, method="warn")
        yield from warn_conditions(self.sample.cond, space, model)
        hidden = process.whole_positions and model.position_free
        if self.task.order_matters and hidden:
            yield from _warn_positions(process.space)
        if self.task.starts_known():
            yield from self.warn_known()

    def warn_known(self) -> Iterator[Misfit]:
        """Yield that samples given known tokens are biased, if they are."""
        process = self.process.facts(self.task.space())
        model = self.model.facts()
        if self.sampler.corrects_known:
            return
        block_size = model.trained_blocks(process.space)
        # No known token shares its block with free ones.
        if block_size == 1:
            return
        learned = self.train.known > 0 or self.task.trains_known()
        if model.reads_known and learned:
            return
        # Only under these a noised token may look like a known one.
        if process.prior not in ("uniform", "frequencies", "mixture"):
            return
        tokens = "known tokens"
        alternative = 'sampler = "particle-gibbs", or model.block_size'
        if block_size is not None:
            # Known blocks before them are clean context.
            tokens += " in a block with free ones"
            alternative = "or end known tokens with a block"
        reason = f"the model takes {tokens} for noised ones: samples are biased"
        message = f'under process "{process.name}" {reason}'
        hint = f"set train.known = 0.5 and model.embedding.known, {alternative}"
        yield Misfit(message, ("sampler",), ("process",), hint)


def _warn_positions(space: Space) -> Iterator[Misfit]:
    """Warn of a model without positions on a task whose order matters: it scrambles samples."""
    lengths = [space.length]
    if isinstance(space, TokenSpace):
        lengths = [field.length for field in space.fields]
    if max(lengths) == 1:
        return
    message = "the model cannot distinguish positions: it learns nothing about their order, and samples are scrambled"
    hint = 'set model.embedding.position, such as "learned", or model.block.rope = true'
    yield Misfit(message, ("model",), ("task",), hint, code="no-positions")


STAND_INS: tuple[Space, ...] = (
    TokenSpace((SpaceField("a", 12, 30),)),
    TokenSpace((SpaceField("a", 3, 5), SpaceField("b", 7, 9))),
    FeatureSpace(5, 11),
    FeatureSpace(8, 6),
)
"""Spaces in place of that of an invalid task."""


def misfits_without_task(
    process: ProcessSpec | None,
    model: ModelSpec | None,
    loss: LossSpec | None,
    sampler: SamplerSpec | None,
) -> list[Misfit]:
    """Return the misfits of valid components that do not depend on the task.

    They are those with each of several spaces.
    """
    of_spaces = []
    for space in STAND_INS:
        if process is None or space.data in process.serves:
            with suppress(Refused):
                of_spaces.append(
                    list(_misfits_between(process, model, loss, sampler, space))
                )
    if not of_spaces:
        return []
    common, *others = of_spaces
    for other in others:
        common = [misfit for misfit in common if misfit in other]
    # What is incompatible with the space of a stand-in says nothing about the task.
    return [misfit for misfit in common if misfit.related != ("task",)]


def _misfits_between(
    process: ProcessSpec | None,
    model: ModelSpec | None,
    loss: LossSpec | None,
    sampler: SamplerSpec | None,
    space: Space,
) -> Generator[Misfit, None, tuple[ProcessFacts, ModelFacts] | None]:
    """Yield the misfits of components with a space and each other; return the facts.

    A component that is invalid is None, and facts without which others cannot be checked, too.
    """
    facts = None
    if process is not None:
        of_process = _checked("process", process, space)
        yield from of_process
        facts = _known(process, lambda: process.facts(space), of_process)
    if model is not None:
        yield from _checked("model", model, space if facts is None else facts.space)
    if facts is not None and loss is not None:
        yield from _checked("loss", loss, facts)
    if facts is None or model is None:
        return None
    with attribute_errors(model):
        of_model = model.facts()
    if sampler is not None:
        yield from _checked("sampler", sampler, facts, of_model)
    return facts, of_model


def _known(
    component: Spec, compute: Callable[[], T], misfits: Sequence[Misfit]
) -> T | None:
    """Return the result of a component; None if it fails because of its own misfits."""
    try:
        with attribute_errors(component):
            return compute()
    except Refused:
        if not misfits:
            raise
        return None


def _checked(
    key: str | int,
    component: Spec,
    *arguments: Any,
    method: str = "check",
) -> list[Misfit]:
    """Return what a method of a component yields; its exceptions are attributed to it."""
    with attribute_errors(component):
        return list(below(key, getattr(component, method)(*arguments)))
