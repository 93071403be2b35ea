"""Where a part stands when it is tested: its options, and what its parent would hand down to it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st

from dither.registry import Catalog, Misfit, Space, Spec
from dither.registry.kinds import ModelFacts
from dither.registry.plugins.catalog import Component
from dither.registry.plugins.describe import describe
from dither.registry.spec.base import Place

from .check_utils import seed_cpu
from .strategies import cleans, feature_spaces, graph_spaces, specs, token_spaces

__all__ = ["Situation", "default_spec", "situations"]

WIDTHS = (16, 8, 24, 32, 48, 6)
CONDITIONS = (16, 8)
MODELS = (ModelFacts(), ModelFacts(2), ModelFacts(16))
"""What a sampler may stand before; 16 is what block samplers draw by default."""

Fits = Callable[[Spec], bool]
Drawn = Callable[[Fits], st.SearchStrategy[Any]]


@dataclass(frozen=True)
class Situation:
    """A part and its place.

    Attributes:
        part: The registered Spec class and its plugin.
        spec: Options of the part.
        given: Arguments of `check` and `build` for this kind, in their order.
        space: What a sample is; for a process, loss or sampler that of the task, else that of the model. None for kinds
            that have none; so too are the next two.
        process: Spec of the process that the part works with (losses and samplers), or of the part itself.
        clean: A batch of the space.
        seed: For whatever else a check draws.
        catalog: The other parts.
        home: Spec of a block-causal model around a block, at the place "home".
    """

    part: Component
    spec: Any
    given: tuple[Any, ...] = ()
    space: Any = None
    process: Any = None
    seed: int = 0
    clean: Any = field(default=None, repr=False)
    catalog: Catalog = field(default_factory=Catalog, repr=False)
    home: Any = None

    def __repr__(self) -> str:
        process = "" if self.process in (None, self.spec) else f", process={self.process!r}"
        process += "" if self.home is None else f", home={self.home!r}"
        return f"{self.part.pinned}: {self.spec!r}{process}, given={self.given}, seed={self.seed}, clean={self.clean}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis asks for this where a check fails."""
        printer.text(repr(self))

    def build(self) -> Any:
        """Return the part, built under the seed of the situation and ready for inference."""
        seed_cpu(self.seed)
        built = self.spec.build() if self.spec.kind == "sampler" else self.spec.build(*self.given)
        return built.eval() if isinstance(built, torch.nn.Module) else built


def default_spec(part: Component, catalog: Catalog) -> Spec:
    """Parse the snippet that `describe` shows: the defaults, and a value for each option that must be given."""
    table = tomllib.loads(describe(part, catalog)["snippet"])
    while "use" not in table:  # the tables of an experiment file around it
        (table,) = table.values() if isinstance(table, dict) else table
    return catalog.parse(part.spec.kind, table | {"use": part.pinned})


def situations(
    part: Component, catalog: Catalog, place: str, options: Mapping[str, Any] | None = None
) -> st.SearchStrategy[Situation]:
    """Places in which a part may stand.

    Args:
        part: What is tested.
        catalog: Where other parts come from.
        place: `options` draws options from their whole range and no place; `part` small options in a fitting place;
            `default` the defaults in a fitting place, `alone` in none; `home` a block inside a block-causal model.
        options: To be taken in place of drawn ones. Where there are none, tasks and data keep to their defaults.
    """
    kind, known = part.spec.kind, None
    if options is not None:
        known = st.just(catalog.parse(kind, {"use": part.pinned, **options}))
    elif place in ("default", "alone") or (kind in ("task", "data") and place != "options"):
        known = st.just(default_spec(part, catalog))

    def drawn(fits: Fits) -> st.SearchStrategy[Any]:
        return specs(part.spec, catalog, small=place != "options", fits=fits) if known is None else known

    put = {"options": _nowhere, "alone": _nowhere, "home": _home}.get(place, PLACES.get(kind, _nowhere))
    return _placed(put, drawn, Situation(part, None, catalog=catalog))


@st.composite
def _placed(draw: st.DrawFn, place: Callable[..., Situation], drawn: Drawn, s: Situation) -> Situation:
    return place(draw, drawn, _put(s, seed=draw(st.integers(0, 2**16))))


def _put(s: Situation, **changes: Any) -> Situation:
    return Situation(**{**s.__dict__, **changes})


def _no(misfits: Iterable[Misfit]) -> bool:
    return not list(misfits)


def _nowhere(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    return _put(s, spec=draw(drawn(lambda inner: True)))


def _block(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec = draw(drawn(lambda inner: True))
    pairs = [(width, cond) for cond in CONDITIONS for width in WIDTHS if _no(spec.check(width, cond))]
    assume(pairs)
    return _put(s, spec=spec, given=draw(st.sampled_from(pairs)))


def _home(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    """A block in a block-causal model over a single field."""
    block, space = draw(drawn(lambda inner: True)), draw(token_spaces(most=1))
    homes = [(part.spec, key) for part in s.catalog.parts("model") for key in _slots(part.spec, "block")]
    if not homes:
        return _put(s, spec=block, space=space)

    def fits(inner: Any) -> bool:
        places = {"condition": (16,)} | dict.fromkeys(("embedding", "position", "head"), (space, 16))
        return inner.kind not in places or _no(_over(inner, space).check(*places[inner.kind]))

    kind, key = draw(st.sampled_from(homes))
    model: Any = draw(specs(kind, s.catalog, fits=fits)).model_copy(update={key: block})
    size = model.facts().block_size
    assume(size is not None and size < space.length and _no(model.check(space)))
    return _put(s, spec=block, space=space, clean=draw(cleans(space)), home=model)


def _slots(spec: Any, kind: str) -> list[str]:
    """Return the options of a Spec that take a part of a kind."""
    return [
        key
        for key, info in spec.model_fields.items()
        if any(isinstance(item, Place) for item in info.metadata) and info.annotation.kind == kind
    ]


def _over(spec: Any, space: Space) -> Any:
    """Tell a condition what the task tells, as a model does; other parts need not be told."""
    return spec.with_space(space) if spec.kind == "condition" else spec


def _condition(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    space = draw(feature_spaces())

    def fits(inner: Any) -> bool:
        return inner.kind != "condition" or _no(_over(inner, space).check(WIDTHS[0]))

    spec = _over(draw(drawn(fits)), space)
    widths = [width for width in WIDTHS if _no(spec.check(width))]
    assume(widths)
    return _put(s, spec=spec, given=(draw(st.sampled_from(widths)),), space=space, clean=draw(cleans(space, rows=5)))


def _space(draw: st.DrawFn, spec: Any, accepts: Callable[[Space], bool]) -> Space:
    """A space that is accepted, from a family in which the part accepts some."""
    families: list[st.SearchStrategy[Any]] = [
        family
        for data, family in (
            ("tokens", token_spaces()),
            ("tokens", token_spaces(most=1)),
            ("tokens", graph_spaces()),
            ("features", feature_spaces()),
        )
        if data in spec.serves
    ]
    space: Space = draw(st.one_of(families).filter(accepts))
    return space


def _inside(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    """An embedding, a position or a head."""
    spec, width = draw(drawn(lambda inner: True)), draw(st.sampled_from(WIDTHS[:4]))
    space = _space(draw, spec, lambda space: _no(spec.check(space, width)))
    return _put(s, spec=spec, given=(space, width), space=space, clean=draw(cleans(space)))


def _model(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    space = _space(draw, s.part.spec, lambda space: True)

    def fits(inner: Any) -> bool:
        places = {"block": (16, 16), "condition": (16,)} | dict.fromkeys(("embedding", "position", "head"), (space, 16))
        return inner.kind not in places or _no(_over(inner, space).check(*places[inner.kind]))

    spec = draw(drawn(fits))
    assume(_no(spec.check(space)))
    return _put(s, spec=spec, given=(space,), space=space, clean=draw(cleans(space)))


def _process(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec = draw(drawn(lambda inner: True))
    space = _space(draw, spec, lambda space: _no(spec.check(space)))
    return _put(s, spec=spec, given=(space,), space=space, process=spec, clean=draw(cleans(space)))


def _metric(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec = draw(drawn(lambda inner: True))
    space = _space(draw, spec, lambda space: _no(spec.check(space)))
    return _put(s, spec=spec, given=(space,), space=space, clean=draw(cleans(space)))


def _with_process(draw: st.DrawFn, s: Situation, accepts: Callable[[Any, Space], bool]) -> Situation:
    """Put a process beside a part that accepts it."""
    parts = [part.spec for part in s.catalog.parts("process")]
    if not parts:
        raise LookupError("no process is installed that the part could be tested with")
    process: Any = draw(st.sampled_from(parts).flatmap(lambda part: specs(part, s.catalog)))
    space = _space(draw, process, lambda space: _no(process.check(space)))
    assume(accepts(process, space))
    return _put(s, process=process, space=space, clean=draw(cleans(space)))


def _loss(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec = draw(drawn(lambda inner: True))
    s = _with_process(draw, _put(s, spec=spec), lambda process, space: _no(spec.check(process.facts(space))))
    return _put(s, given=(s.process.facts(s.space),))


def _sampler(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    spec, facts = draw(drawn(lambda inner: True)), draw(st.sampled_from(MODELS))
    s = _with_process(draw, _put(s, spec=spec), lambda process, space: _no(spec.check(process.facts(space), facts)))
    return _put(s, given=(s.process.facts(s.space), facts))


def _optimizer(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    seed_cpu(s.seed)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    return _put(s, spec=draw(drawn(lambda inner: True)), given=(module,))


def _lr_schedule(draw: st.DrawFn, drawn: Drawn, s: Situation) -> Situation:
    return _put(s, spec=draw(drawn(lambda inner: True)), given=(draw(st.sampled_from([100, 1, 2, 3, 1000])),))


PLACES: dict[str, Callable[[st.DrawFn, Drawn, Situation], Situation]] = {
    "process": _process,
    "sampler": _sampler,
    "loss": _loss,
    "model": _model,
    "block": _block,
    "embedding": _inside,
    "position": _inside,
    "condition": _condition,
    "head": _inside,
    "optimizer": _optimizer,
    "lr-schedule": _lr_schedule,
    "metric": _metric,
}
"""How each kind is placed; the others stand alone."""
