"""Situations in which a component is checked: its options and the arguments that its parent would pass."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from hypothesis import assume
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

from dither.registry import (
    Catalog,
    FeatureSpace,
    Field,
    Misfit,
    Space,
    Spec,
    TokenSpace,
)
from dither.registry.contracts.records import State
from dither.registry.kinds import ModelFacts
from dither.registry.plugins.catalog import Component
from dither.registry.plugins.describe import describe
from dither.registry.spec.base import Place

from .check_utils import NotApplicable, perturb_parameters, random_state, seed_cpu
from .strategies import cleans, feature_spaces, graph_spaces, specs, token_spaces

__all__ = [
    "EXAMPLES",
    "Check",
    "Situation",
    "checks_of",
    "default_spec",
    "fitting_process",
    "situations",
]

# The simplest comes first. 6 is not divisible by most numbers of heads.
WIDTHS = (16, 8, 24, 32, 48, 6)
CONDITION_WIDTHS = (16, 8)
SPACES = (TokenSpace((Field("text", 8, 4),)), FeatureSpace(4, 3))
"""Simple spaces of both types."""
MODELS = (ModelFacts(), ModelFacts(2), ModelFacts(16))
"""Models that a sampler is checked with; 16 is the default of block samplers."""

MAX_LENGTH = 6
"""Positions of a field where the time of a check is proportional to them, or more."""
EXAMPLES = 6
"""Default number of situations per check."""
Level = Literal["required", "recommended"]
"""A recommended check that fails is reported, and fails only under `strict`."""
Where = Literal["options", "part", "default", "alone", "in-model", "text-model"]
"""Which situations to draw; see `situations`."""
Fits = Callable[[Spec], bool]
Drawn = Callable[[Fits], st.SearchStrategy[Any]]


@dataclass(frozen=True)
class Situation:
    """A component (`part`, with options `spec`) and its surroundings.

    `large` situations have many rows, positions, ids and features, which may take other paths.
    `args` are those of `check` and `build`; `space` is that of the task for processes, losses and
    samplers, else of the model, and `clean` a batch of it; `process` is the Spec that a loss or
    sampler works with, `model` that of a block-causal model that contains the block. `runs` holds
    results that checks of the same situation share.
    """

    part: Component
    spec: Any
    args: tuple[Any, ...] = ()
    space: Any = None
    process: Any = None
    seed: int = 0
    clean: Any = field(default=None, repr=False)
    catalog: Catalog = field(default_factory=Catalog, repr=False)
    model: Any = None
    large: bool = False
    runs: dict[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        text = f"{self.part.pinned}: {self.spec!r}"
        if self.process not in (None, self.spec):
            text += f", process={self.process!r}"
        if self.model is not None:
            text += f", model={self.model!r}"
        text += f", args={self.args}, seed={self.seed}"
        # A large batch would fill many pages.
        if self.large:
            return f"{text}, a large batch"
        return f"{text}, clean={self.clean}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the situation in hypothesis' report of a failing check."""
        printer.text(repr(self))

    def generator(self) -> torch.Generator:
        """Return a generator with the seed of the situation."""
        return torch.Generator().manual_seed(self.seed)

    def build(self) -> Any:
        """Return the component, built with the seed of the situation, in evaluation mode."""
        seed_cpu(self.seed)
        # A sampler is only checked against facts of a process and a model, not built from them.
        args = self.args
        if self.spec.kind == "sampler":
            args = ()

        built = self.spec.build(*args)

        if isinstance(built, torch.nn.Module):
            return built.eval()
        return built

    def build_perturbed(self) -> Any:
        """Return the component, a module, with every parameter moved."""
        return perturb_parameters(self.build(), self.seed)

    def random_state(self) -> State:
        """Return a random state with the padding of the batch."""
        return random_state(self.space, self.clean.valid, self.seed)

    def times(self, t: float) -> Float[Tensor, " B"]:
        """Return a time for each sample of the batch."""
        return torch.full((len(self.clean.valid),), t)


@dataclass(frozen=True)
class Check:
    """One property of a component, named in snake case; unique within a kind, which may be "any".

    `run` raises AssertionError if it is violated; `needs` are the required traits; `examples`
    counts situations.
    """

    name: str
    kind: str
    run: Callable[[Situation], None]
    level: Level = "required"
    needs: frozenset[str] = frozenset()
    place: Where = "part"
    examples: int = EXAMPLES

    @property
    def summary(self) -> str:
        """First line of the docstring of the function."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]


def checks_of(
    kind: str,
    *functions: Callable[[Situation], None],
    needs: str = "",
    level: Level = "required",
    place: Where = "part",
    examples: int = EXAMPLES,
) -> tuple[Check, ...]:
    """Return checks of one kind, named like their functions; `needs` is a space-separated list of traits."""
    return tuple(
        Check(
            name=f.__name__,
            kind=kind,
            run=f,
            level=level,
            needs=frozenset(needs.split()),
            place=place,
            examples=examples,
        )
        for f in functions
    )


def default_spec(part: Component, catalog: Catalog) -> Spec:
    """Parse the snippet that `describe` shows: defaults, and an example value of each required option."""
    table = _example_table(part, catalog)
    return catalog.parse(part.spec.kind, table | {"use": part.pinned})


# A description reads the source of the component, which takes longer than most checks.
@lru_cache(maxsize=512)
def _example_table(part: Component, catalog: Catalog) -> dict[str, Any]:
    table: Any = tomllib.loads(describe(part, catalog)["snippet"])
    # It is nested in the tables and lists of an experiment file.
    while "use" not in table:
        (table,) = table if isinstance(table, list) else table.values()
    example: dict[str, Any] = table
    return example


def fitting_process(catalog: Catalog, space: Space) -> Any:
    """Build an installed process with its defaults over a space."""
    for part in catalog.parts("process"):
        spec: Any = default_spec(part, catalog)
        if not list(spec.check(space)):
            return spec.build(space)
    raise NotApplicable("no installed process fits the space")


def situations(
    part: Component,
    catalog: Catalog,
    place: Where,
    options: Mapping[str, Any] | None = None,
    large: bool = False,
) -> st.SearchStrategy[Situation]:
    """Draw situations of a component.

    `place`: "options" draws options from their whole range without surroundings, "part" small
    options that fit into drawn surroundings; "default" and "alone" use the defaults, with and
    without surroundings; "in-model" puts a block into a block-causal model, "text-model" a model
    over a single field. `options` are fixed ones; without them, tasks and data use their defaults.
    """
    kind = part.spec.kind
    fixed = None
    if options is not None:
        fixed = st.just(catalog.parse(kind, {"use": part.pinned, **options}))
    elif place in ("default", "alone") or (
        kind in ("task", "data") and place != "options"
    ):
        fixed = st.just(default_spec(part, catalog))

    def drawn(fits: Fits) -> st.SearchStrategy[Any]:
        if fixed is not None:
            return fixed
        # Nothing is built from options of the whole range, so they may be huge.
        return specs(
            spec=part.spec,
            catalog=catalog,
            small=place != "options",
            fits=fits,
        )

    surroundings = {
        "options": _alone,
        "alone": _alone,
        "in-model": _in_model,
        "text-model": _text_model,
    }
    return _situations(
        surroundings.get(place, PLACES.get(kind, _alone)),
        drawn,
        Situation(part, None, catalog=catalog, large=large),
    )


@st.composite
def _situations(
    draw: st.DrawFn,
    place: Callable[..., Situation],
    drawn: Drawn,
    s: Situation,
) -> Situation:
    # Results are not shared between examples.
    seed = draw(st.integers(0, 2**16))
    return place(draw, drawn, replace(s, seed=seed, runs={}))


def _fits(misfits: Iterable[Misfit]) -> bool:
    return not list(misfits)


def _anything(inner: Spec) -> bool:
    return True


def _inner_fits(space: Space, *kinds: str) -> Fits:
    """Return whether a component inside a model of width 16 fits; those of other kinds always do."""
    arguments: dict[str, tuple[Any, ...]] = {"block": (16, 16), "condition": (16,)}
    arguments |= dict.fromkeys(("embedding", "position", "head"), (space, 16))

    def fits(inner: Any) -> bool:
        if inner.kind not in kinds:
            return True
        bound = _with_space(inner, space)
        return _fits(bound.check(*arguments[inner.kind]))

    return fits


def _with_space(spec: Any, space: Space) -> Any:
    """Bind a condition to a space, as a model does; other components are not bound."""
    if spec.kind == "condition":
        return spec.with_space(space)
    return spec


def _alone(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    return replace(s, spec=draw(drawn(_anything)))


def _block(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec = draw(drawn(_anything))
    pairs = []
    # A block may refuse some widths, such as those its heads do not divide.
    for cond in CONDITION_WIDTHS:
        for width in WIDTHS:
            if _fits(spec.check(width, cond)):
                pairs.append((width, cond))
    assume(pairs)
    return replace(s, spec=spec, args=draw(st.sampled_from(pairs)))


def _in_model(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    """Draw a block in a block-causal model over a single field."""
    block = draw(drawn(_anything))
    space = draw(token_spaces(max_fields=1, large=s.large))
    # Any installed model with a slot for blocks serves, under any name of the slot.
    models = []
    for part in s.catalog.parts("model"):
        for key, info in part.spec.model_fields.items():
            kind: Any = info.annotation
            if Place() in info.metadata and kind.kind == "block":
                models.append((part.spec, key))
    # Without a cache no block-causal model accepts the block, and the check does not apply.
    if not models or "cache" not in block.traits():
        return replace(s, spec=block, space=space)
    model_spec, key = draw(st.sampled_from(models))
    fits = _inner_fits(space, "condition", "embedding", "position", "head")
    model: Any = draw(specs(model_spec, s.catalog, fits=fits))
    changes: dict[str, Any] = {key: block}
    for name, value in model:
        # A list of blocks would take the place of this one.
        if isinstance(value, list) and value and value[0].kind == "block":
            changes[name] = []
    model = model.model_copy(update=changes)
    # Blocks as long as the sample would never use the cache.
    size = model.facts().block_size
    assume(size is not None and size < space.length)
    assume(_fits(model.check(space)))
    return replace(
        s,
        spec=block,
        space=space,
        clean=draw(cleans(space, large=s.large)),
        model=model,
    )


def _condition(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    space = draw(feature_spaces(large=s.large))
    condition = draw(drawn(_inner_fits(space, "condition")))
    spec = _with_space(condition, space)
    widths = [width for width in WIDTHS if _fits(spec.check(width))]
    assume(widths)
    width = draw(st.sampled_from(widths))
    return replace(
        s,
        spec=spec,
        args=(width,),
        space=space,
        # One row for each noise level of the checks of conditions.
        clean=draw(cleans(space, rows=20 if s.large else 5)),
    )


def _space(
    draw: st.DrawFn, spec: Any, accepts: Callable[[Space], bool], large: bool
) -> Space:
    """Draw an accepted space of a type that the component serves."""
    # Spaces of one field twice: some checks apply to these only.
    families: list[st.SearchStrategy[Any]] = []
    if "tokens" in spec.serves:
        families += [
            token_spaces(large=large),
            token_spaces(max_fields=1, large=large),
            graph_spaces(large=large),
        ]
    if "features" in spec.serves:
        families.append(feature_spaces(large=large))
    space: Space = draw(st.one_of(families).filter(accepts))
    return space


def _embedding_or_head(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec = draw(drawn(_anything))
    width = draw(st.sampled_from(WIDTHS[:4]))
    space = _space(draw, spec, lambda space: _fits(spec.check(space, width)), s.large)
    return replace(
        s,
        spec=spec,
        args=(space, width),
        space=space,
        clean=draw(cleans(space, large=s.large)),
    )


def _model(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    space = _space(draw, s.part.spec, lambda space: True, s.large)
    return _model_over(space, draw, drawn, s)


def _text_model(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    """Draw a model over a single field that is long enough for two blocks."""
    spaces = token_spaces(max_fields=1, large=s.large)
    space = draw(spaces.filter(lambda space: space.length > 1))
    return _model_over(space, draw, drawn, s)


def _model_over(space: Space, draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    fits = _inner_fits(space, "block", "condition", "embedding", "position", "head")
    spec = draw(drawn(fits))
    assume(_fits(spec.check(space)))
    return replace(
        s,
        spec=spec,
        args=(space,),
        space=space,
        clean=draw(cleans(space, large=s.large)),
    )


def _over_task(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec = draw(drawn(_anything))
    space = _space(draw, spec, lambda space: _fits(spec.check(space)), s.large)
    return replace(
        s,
        spec=spec,
        args=(space,),
        space=space,
        process=spec,
        clean=draw(cleans(space, large=s.large)),
    )


@lru_cache(maxsize=8)
def _default_processes(catalog: Catalog) -> list[tuple[Any, Space]]:
    """Return the installed processes with their defaults, each with a space that it supports."""
    pairs: list[tuple[Any, Space]] = []
    for part in catalog.parts("process"):
        process: Any = default_spec(part, catalog)
        pairs += [(process, space) for space in SPACES if _fits(process.check(space))]
    return pairs


def _with_process(
    draw: st.DrawFn, s: Situation, accepts: Callable[[Any, Space], bool]
) -> Situation:
    """Draw an installed process that a loss or sampler accepts.

    Those that it accepts with their defaults come first; the others only if there are none.
    """
    parts = [part.spec for part in s.catalog.parts("process")]
    if not parts:
        raise LookupError("no process is installed to check the component with")
    fitting = [
        type(process)
        for process, space in _default_processes(s.catalog)
        if accepts(process, space)
    ]
    chosen = draw(st.sampled_from(fitting or parts))
    process: Any = draw(specs(chosen, s.catalog))
    space = _space(draw, process, lambda space: _fits(process.check(space)), s.large)
    if s.large and s.part.spec.kind == "sampler":
        # A sampler calls the model once for each position, and more often.
        space = _shortened(space)
    assume(accepts(process, space))
    return replace(
        s, process=process, space=space, clean=draw(cleans(space, large=s.large))
    )


def _shortened(space: Space) -> Space:
    if not isinstance(space, TokenSpace):
        return replace(space, length=MAX_LENGTH, grid=None)
    fields = [
        replace(field, length=min(field.length, MAX_LENGTH)) for field in space.fields
    ]
    return replace(space, fields=tuple(fields))


def _loss(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec = draw(drawn(_anything))

    def accepts(process: Any, space: Space) -> bool:
        return _fits(spec.check(process.facts(space)))

    s = _with_process(draw, replace(s, spec=spec), accepts)
    return replace(s, args=(s.process.facts(s.space),))


def _sampler(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec = draw(drawn(_anything))
    facts = draw(st.sampled_from(MODELS))

    def accepts(process: Any, space: Space) -> bool:
        return _fits(spec.check(process.facts(space), facts))

    s = _with_process(draw, replace(s, spec=spec), accepts)
    return replace(s, args=(s.process.facts(s.space), facts))


def _optimizer(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    seed_cpu(s.seed)
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)
    )
    # A frozen parameter must stay as it is.
    module[0].weight.requires_grad_(False)
    return replace(s, spec=draw(drawn(_anything)), args=(module,))


def _lr_schedule(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    return replace(
        s,
        spec=draw(drawn(_anything)),
        args=(draw(st.sampled_from([100, 1, 2, 3, 1000])),),
    )


PLACES: dict[str, Callable[[st.DrawFn, Drawn, Situation], Situation]] = {
    "process": _over_task,
    "sampler": _sampler,
    "loss": _loss,
    "model": _model,
    "block": _block,
    "embedding": _embedding_or_head,
    "position": _embedding_or_head,
    "condition": _condition,
    "head": _embedding_or_head,
    "metric": _over_task,
    "reward": _over_task,
    "optimizer": _optimizer,
    "lr-schedule": _lr_schedule,
}
"""How the surroundings of each kind are drawn; other kinds have none."""
