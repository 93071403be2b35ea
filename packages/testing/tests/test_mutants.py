"""Every check detects its defect: mutants of installed components fail it, and their unchanged twins pass."""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import hypothesis
import pytest
import torch
from pydantic import AfterValidator, ConfigDict, Field, PlainValidator
from torch import nn

from dither.registry import Catalog, Misfit, Spec, default_catalog
from dither.registry.contracts.protocols import Metrics, Picture
from dither.registry.contracts.records import Clean, Measured, Noise, State, over
from dither.registry.kinds import (
    FEATURES,
    LossSpec,
    LRScheduleSpec,
    MetricSpec,
    TrackerSpec,
)
from dither.testing.checks import CHECKS, run_components
from dither.testing.conformance import Case, cases

torch.set_num_threads(1)
count = itertools.count()
Change = Callable[[type[Spec]], type[Spec]]


class Wrapped(nn.Module):
    """A module with some methods replaced; each replacement gets the module as its first argument."""

    def __init__(self, inner: Any, **changes: Callable) -> None:
        super().__init__()
        self.inner, self.changes = inner, changes

    def __getattr__(self, name: str) -> Any:
        changes = self.__dict__.get("changes", {})
        if name in changes:
            return partial(changes[name], self.inner)
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, *args, **options):
        return self.changes.get("forward", type(self.inner).__call__)(
            self.inner, *args, **options
        )


class Function:
    """The same for components that are not modules."""

    def __init__(self, inner: Any, **changes: Callable) -> None:
        self.inner, self.changes = inner, changes
        # From Python 3.12 on, isinstance with a protocol does not call __getattr__.
        for name in dir(inner):
            if not name.startswith("_"):
                setattr(self, name, getattr(self, name))

    def __getattr__(self, name: str) -> Any:
        return (
            partial(self.changes[name], self.inner)
            if name in self.changes
            else getattr(self.inner, name)
        )

    def __call__(self, *args, **options):
        return self.changes["call"](self.inner, *args, **options)


@dataclass(frozen=True)
class Mutant:
    """A component broken in one place, and the check that must detect it."""

    check: str
    part: str
    change: Change
    options: dict | None = None
    sound: Change | None = None
    """A change of the twin, such as another trait."""
    name: str = ""

    @property
    def id(self) -> str:
        return f"{self.part}-{self.check}" + (f"-{self.name}" if self.name else "")


def built(change: Callable[[Any], Any]) -> Change:
    """A Spec whose `build` result is changed."""

    def changed(spec: type[Spec]) -> type[Spec]:
        class Broken(spec):
            def build(self, *given):
                return change(super().build(*given))

        return Broken

    return changed


def module(**changes: Callable) -> Change:
    return built(lambda inner: Wrapped(inner, **changes))


def with_layers(name: str, layer: Callable) -> Change:
    def change(inner: nn.Module) -> nn.Module:
        wrapped = Wrapped(inner)
        setattr(wrapped, name, nn.ModuleList(map(layer, getattr(inner, name))))
        return wrapped

    return built(change)


def after(action: Callable[[Any], Any]) -> Change:
    return built(lambda inner: (action(inner), inner)[1])


def function(**changes: Callable) -> Change:
    return built(lambda inner: Function(inner, **changes))


def spec(**attributes: Any) -> Change:
    def changed(base: type[Spec]) -> type[Spec]:
        broken = type("Broken", (base,), {"__module__": base.__module__})
        for name, attribute in attributes.items():
            setattr(broken, name, attribute)
        return broken

    return changed


def scaled(noise: Noise, sigma: float = 1.0, rate: float = 1.0) -> Noise:
    return Noise(noise.sigma * sigma, noise.rate * rate)


def altered(record: Any, **changes: Callable) -> Any:
    return replace(record, **{name: change(record) for name, change in changes.items()})


def sigma_of(noised):
    sigma = noised.noise.sigma
    return sigma if sigma.ndim == 2 else sigma[:, None]


def sampled(change: Callable) -> Change:
    """A sampler with changed states: change(x, process, like)."""

    def sample(inner, proc, session, like):
        for x in inner(proc, session, like):
            yield change(x, proc, like)

    return function(call=sample)


def loss(change: Callable) -> Change:
    """A loss with a changed result: change(measured, pred, noised)."""
    return function(
        call=lambda inner, pred, noised: change(inner(pred, noised), pred, noised)
    )


def writes(inner, clean: Clean, t):
    noised = inner.corrupt(clean, t)
    clean.x0[~clean.fixed] = 0
    return noised


UNUSED = after(
    lambda module: module.register_parameter("unused", nn.Parameter(torch.ones(2)))
)
UNSAVED = after(
    lambda module: module.register_buffer("unsaved", torch.rand(3), persistent=False)
)
UNSEEDED = after(
    lambda module: module.register_buffer("drawn", torch.full((1,), float(next(count))))
)
HELD = after(
    lambda module: module.register_buffer("held", torch.zeros(3, device="cpu"))
)


def undoes(optimizer):
    """Every second step restores the weights before the first."""
    step, before = optimizer.step, []

    def restoring():
        weights = [
            weight.data
            for group in optimizer.param_groups
            for weight in group["params"]
        ]
        if before:
            torch._foreach_copy_(weights, before)
            before.clear()
        else:
            before.extend(weight.clone() for weight in weights)
            step()

    optimizer.step = restoring
    return optimizer


def with_traits(*traits: str) -> Change:
    return spec(traits=lambda self: frozenset(traits))


def shuffled(x, proc, like):
    return torch.cat([x[:, :1], x[:, 1:].roll(1, 0)], 1)


def wrong_with_cache(inner, x, c, cache=None, **options):
    return inner(x, c, cache=cache, **options) + (
        0.1 if cache is not None and cache.length else 0.0
    )


def zero_if_missing(inner, level, cond):
    """NaN is 0, in place of an absent number."""
    return inner(level, {name: value.nan_to_num() for name, value in cond.items()})


def in_order(inner, x, c, positions=None, **options):
    return (
        inner(x, c, positions=positions, **options)
        + 0.1 * torch.arange(x.shape[1])[:, None]
    )


def by_column(inner, x, c, positions=None, **options):
    if positions is not None:
        positions = positions * torch.tensor([1, 0])
    return inner(x, c, positions=positions, **options)


SHARED: list = []


class Toy(LRScheduleSpec):
    """A component that can be built."""

    def build(self, steps: int) -> Any:
        return lambda step: 1.0


class Opaque(Toy):
    """An option without a JSON Schema."""

    word: Annotated[int, PlainValidator(lambda value: value)] = 1
    """Anything."""


class Fluid(Toy):
    """A mutable option."""

    model_config = ConfigDict(frozen=False)
    factor: float = 1.0
    """A factor."""


class Doubling(Toy):
    """An option that changes its value."""

    factor: Annotated[float, Field(gt=0), AfterValidator(lambda value: 2 * value)] = 1.0
    """A factor."""


class Loose(Toy):
    """Accepts unknown options."""

    model_config = ConfigDict(extra="ignore")


class Mute(Toy):
    """An undocumented option, and one that files cannot set."""

    silent: int = 1
    unset: int | None = 3
    """None cannot be written."""


class Choosy(Toy):
    """An option whose example is invalid."""

    word: str = Field(pattern=r"^[^.]*$")
    """Without dots."""


class Largest(MetricSpec):
    """The largest value of a sample."""

    name = "largest"

    def build(self, space: Any) -> Any:
        return lambda samples, like: {"largest": float(samples.max())}


class Memory(TrackerSpec):
    """Metrics in a list."""

    name = "memory"

    def build(self) -> Any:
        rows: list = []
        log = lambda *entry: rows.append(entry)  # noqa: E731
        return SimpleNamespace(start=log, log=log, log_pictures=log, finish=log)


class Ended:
    """A job that ran nothing."""

    def __init__(self, command: Any) -> None: ...

    def poll(self) -> int:
        return 0


class Endless:
    """A job that runs until it is killed."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.poll = job.poll

    def stop(self, force: bool = False) -> None:
        if force:
            self.job.stop(force)


def of(part: str, **changes) -> list[Mutant]:
    return [Mutant(check, part, change) for check, change in changes.items()]


PLANS = {"data": {"use": "procedural-plans", "train": 40, "valid": 10, "test": 10}}
FEW_PLANS = {"data": {"use": "procedural-plans", "train": 12, "valid": 4, "test": 4}}
BLOCKS_OF_TOKENS = {"block_size": 2, "embedding": {"use": "tokens"}}
AUTOREGRESSIVE = {
    "block_size": 1,
    "reads": "previous",
    "embedding": {"use": "tokens"},
    "condition": {"use": "none"},
    "final": "norm",
    "block": {"use": "pre-norm"},
}
MODULES = (
    "model:denoiser",
    "block:adaln-zero",
    "embedding:regions",
    "position:learned",
    "condition:level",
    "head:features",
)
MUTANTS = [
    *of(
        "schedule:log-linear",
        grows=function(call=lambda inner, t: Noise(9 - inner(t).sigma, inner(t).rate)),
        rate_is_derivative=function(call=lambda inner, t: scaled(inner(t), rate=1.01)),
        precision=function(call=lambda inner, t: inner(t.float())),
        any_shape=function(call=lambda inner, t: inner(t.flatten())),
        sigma_end=spec(sigma_end=lambda self: 1.0),
    ),
    *of(
        "process:absorbing",
        facts_are_true=lambda base: spec(facts=lambda s, space: replace(base.facts(s, space), prior="uniform"))(base),
        times_cover_the_range=function(times=lambda inner, n, device=None: inner.times(n) / 2),
        rate_is_derivative=function(schedule=lambda inner, t: scaled(inner.schedule(t), rate=2)),
        record_is_complete=function(corrupt=lambda inner, c, t: replace(inner.corrupt(c, t), valid=~c.valid)),
        forward_distribution=function(
            corrupt=lambda inner, c, t: replace(inner.corrupt(c, t), noise=inner.schedule(t * 0.7))
        ),
        target_mask_covers_uncertain=function(
            corrupt=lambda inner, c, t: replace(inner.corrupt(c, t), target_mask=torch.ones_like(c.known))
        ),
        time_per_position=function(corrupt=lambda inner, c, t: inner.corrupt(c, t / t.ndim)),
        returns_prediction=function(
            read=lambda inner, raw, state, noise: SimpleNamespace(
                log_clean=lambda: raw, log_score=inner.read(raw, state, noise).log_score
            )
        ),
        fixed_untouched=function(prior=lambda inner, like: inner.prior(Clean.of(like.x0))),
        stays_in_space=function(step=lambda inner, *a: State.of(inner.step(*a).x + 7 * ~a[-1].fixed)),
        finish_is_clean=function(finish=lambda inner, state, pred, like: state.x),
        truth_unseen=function(finish=lambda inner, state, pred, like: like.x0),
        seeded=function(prior=lambda inner, like: State.of(torch.where(like.fixed, like.x0, next(count) % 2))),
        batch_not_written=function(corrupt=writes),
        clean_at_zero=function(corrupt=lambda inner, c, t: inner.corrupt(c, 0.5 + t / 2)),
        prior_at_one=function(corrupt=lambda inner, c, t: inner.corrupt(c, t / 2)),
        chapman_kolmogorov=function(step=lambda inner, state, pred, now, then, like: state),
    ),
    *of(
        "process:gaussian",
        chapman_kolmogorov=function(
            step=lambda inner, state, pred, now, then, like: inner.step(state, pred, now, scaled(then, 0.5), like)
        ),
        clean_at_zero=function(corrupt=lambda inner, c, t: inner.corrupt(c, 0.5 + t / 2)),
        prior_at_one=function(prior=lambda inner, like: State.of(torch.where(like.fixed, like.x0, 0.0))),
        forward_distribution=function(
            corrupt=lambda inner, c, t: altered(inner.corrupt(c, t), state=lambda n: State.of(n.state.x * 1.1))
        ),
    ),
    *of(
        "process:masked-region",
        chapman_kolmogorov=function(step=lambda inner, state, pred, now, then, like: state),
        prior_at_one=function(prior=lambda inner, like: inner.corrupt(like, torch.full((len(like.x0),), 0.5)).state),
    ),
    *of(
        "sampler:ancestral",
        yields_samples=sampled(lambda x, proc, like: x.double()),
        ends_clean=sampled(lambda x, proc, like: proc.prior(like).x),
        fixed_untouched=sampled(lambda x, proc, like: torch.ones_like(x)),
        truth_unseen=sampled(lambda x, proc, like: like.x0),
        seeded=sampled(lambda x, proc, like: torch.where(like.fixed, like.x0, next(count))),
        samples_exact_distribution=sampled(shuffled),
    ),
    *of(
        "sampler:first-hitting",
        samples_exact_distribution=sampled(shuffled),
        samples_exact_distribution_with_any_options=sampled(shuffled),
    ),
    *of(
        "sampler:euler",  # the last step is too large
        samples_exact_distribution=function(
            call=lambda inner, proc, session, like: inner(
                proc, lambda state, t, at: session(state, (t * 0.4).clamp_min(1e-3), at), like
            )
        ),
    ),
    *of(
        "loss:mse",
        per_position=loss(lambda m, pred, noised: Measured(m.values.mean(), m.weights.mean())),
        extremes_are_finite=loss(lambda m, pred, noised: Measured(m.values * m.values.exp(), m.weights)),
        positions_independent=loss(lambda m, pred, noised: Measured(m.values - m.values.mean(), m.weights)),
        weights_only_targets=loss(
            lambda m, pred, noised: Measured(pred.x0.square().sum(-1), torch.ones_like(m.weights))
        ),
        rows_independent=loss(lambda m, pred, noised: Measured(m.values * len(m.values), m.weights)),
        truth_is_best=loss(lambda m, pred, noised: Measured(-m.values, m.weights)),
        inputs_not_written=loss(lambda m, pred, noised: (noised.x0.add_(1.0), m)[1]),
        finite_at_both_ends=loss(lambda m, pred, noised: Measured(m.values / sigma_of(noised), m.weights)),
    ),
    *of(
        "loss:masked-ce",
        bound_is_exact=loss(lambda m, pred, noised: Measured(m.values + 0.1, m.weights)),
        truth_is_best=loss(lambda m, pred, noised: Measured((m.values - 0.2).square(), m.weights)),
    ),
    *of(
        "loss:score-entropy",
        bound_is_exact=loss(lambda m, pred, noised: Measured(m.values - 0.1, m.weights)),
        finite_at_both_ends=loss(lambda m, pred, noised: Measured(m.values / sigma_of(noised), m.weights)),
    ),
    *of(
        "model:denoiser",
        raw_output=module(forward=lambda inner, *a, **o: inner(*a, **o).nan_to_num(neginf=0.0)[..., :1]),
        trunk_then_head=module(forward=lambda inner, *a, **o: inner(*a, **o) * 2),
        rows_independent=module(
            forward=lambda inner, s, level, *a, **o: inner(s, level.mean(0, keepdim=True).expand(level.shape), *a, **o)
        ),
        padding_inert=module(forward=lambda inner, s, level, v, *a, **o: inner(s, level, torch.ones_like(v), *a, **o)),
        level_per_position=module(forward=lambda inner, s, level, *a, **o: inner(s, level / level.ndim, *a, **o)),
        state_matters=module(forward=lambda inner, s, level, *a, **o: inner(s, torch.zeros_like(level), *a, **o)),
        runs_on_meta=module(forward=lambda inner, s, *a, **o: inner(s, *a, **o) * (1 + 0 * s.x.sum().item())),
    ),
    Mutant(
        "cached_equals_full",
        "model:denoiser",
        module(forward=lambda inner, *a, cache=None, keep=False: inner(*a)),
        BLOCKS_OF_TOKENS,
    ),
    Mutant(
        "context_equals_cache",
        "model:denoiser",
        module(forward=lambda inner, *a, context=None, **options: inner(*a, **options)),
        BLOCKS_OF_TOKENS,
    ),
    Mutant(
        "context_equals_cache",
        "model:denoiser",
        module(finish=lambda inner, x, valid, cache: inner.finish(torch.zeros_like(x), valid, cache)),
        AUTOREGRESSIVE,
    ),
    *of(
        "block:adaln-zero",
        shape_and_range=module(forward=lambda inner, x, c, **o: x),
        identity_at_init=module(forward=lambda inner, *a, **o: inner(*a, **o) + 0.01),
        rows_independent=module(forward=lambda inner, x, c, **o: inner(x, c, **o) + x.mean(0)),
        padding_inert=module(forward=lambda inner, x, c, mask=None: inner(x, c)),
        permutation_equivariant=module(
            forward=lambda inner, x, c, **o: inner(x, c, **o) + torch.arange(x.shape[1])[:, None]
        ),
        requested_equals_full=module(
            forward=lambda inner, x, c, requested=None, **o: inner(x, c, **o) * (1.0 if requested is None else 1.1)
        ),
        weighted_equals_repeated=module(
            forward=lambda inner, x, c, mask=None: inner(x, c, mask=None if mask is None else mask > -torch.inf)
        ),
        cached_equals_full=module(forward=wrong_with_cache),
        condition_per_position=module(forward=lambda inner, x, c, **o: inner(x, c / c.ndim, **o)),
    ),
    *of(
        "embedding:tokens",
        embeds_each_position=module(forward=lambda inner, *a: (inner(*a)[0][..., :1], 0)),
        embeds_every_id=module(forward=lambda inner, s, *a: inner(State.of(s.x.clamp_max(1)), *a)),
        positions_independent=module(forward=lambda inner, *a: (inner(*a)[0] + inner(*a)[0].mean(1, keepdim=True), 0)),
        pieces_equal_whole=module(forward=lambda inner, s, cond, start=0: (inner(s, cond, start)[0] + start, 0)),
        known_tokens_marked=module(forward=lambda inner, s, *a: inner(State.of(s.x), *a)),
        labels_unread=module(forward=lambda inner, s, cond, *a: (inner(s, cond, *a)[0] + len(cond), 0)),
        embedding_tables=with_layers("tables", lambda old: nn.Embedding(old.num_embeddings + 1, old.embedding_dim)),
        gradients_reach_all=UNUSED,
    ),
    *of(
        "embedding:regions",
        masked_values_ignored=module(forward=lambda inner, s, *a: inner(State.of(s.x), *a)),
        masked_positions_identical=module(
            forward=lambda inner, *a: (inner(*a)[0] + torch.arange(inner(*a)[0].shape[1])[:, None], inner(*a)[1])
        ),
    ),
    *of(
        "embedding:patches",
        masked_values_are_zeros=module(
            forward=lambda inner, s, *a: inner(State.of(s.x.masked_fill(s.masked, 1.0)), *a)
        ),
    ),
    *of(
        "position:sinusoid",
        positions_shape=module(forward=lambda inner, *a: inner(*a)[..., :1]),
        positions_start=module(forward=lambda inner, start, length, cond: inner(0, length, cond)),
    ),
    *of(
        "condition:level",
        condition_shape=module(forward=lambda inner, *a: inner(*a)[..., :1]),
        condition_per_position=module(forward=lambda inner, level, cond: inner(level, cond) * level.ndim),
        gradients_reach_all=UNUSED,
    ),
    Mutant(
        "positions_interchangeable",
        "embedding:tokens",
        module(forward=lambda inner, *a: _numbered(*inner(*a))),
    ),
    Mutant(
        "positions_equal",
        "position:none",
        module(forward=lambda inner, *a: inner(*a) + torch.arange(a[1])[:, None]),
    ),
    Mutant(
        "condition_without_positions",
        "condition:level",
        module(forward=lambda inner, t, cond: inner(t, cond)[:, None]),
    ),
    Mutant("constant", "condition:none", module(forward=lambda inner, t, cond: inner(t, cond) + t[..., None])),
    Mutant("level_free", "condition:label", module(forward=lambda inner, t, *a: inner(t, *a) + t[..., None])),
    Mutant(
        "level_free",
        "model:denoiser",
        module(forward=lambda inner, s, level, *a, **o: inner(s, level, *a, **o) * (1 + level.mean())),
        {"condition": "label"},
    ),
    Mutant("conditions_read", "condition:label", module(forward=lambda inner, t, cond: inner(t, {}))),
    Mutant("conditions_read", "condition:level", module(forward=lambda inner, t, cond: inner(t, cond) + len(cond))),
    Mutant("dropped_conditions", "condition:label", module(drop_conditions=lambda inner, cond: cond), {"dropout": 0.3}),
    Mutant("dropped_conditions", "condition:number", module(drop_conditions=lambda inner, cond: cond), {"dropout": .3}),
    Mutant("dropped_conditions", "condition:number", module(forward=zero_if_missing), {"dropout": 0.3}),
    Mutant("level_free", "condition:number", module(forward=lambda inner, t, *a: inner(t, *a) + t[..., None])),
    Mutant("distances_matter", "block:adaln-zero", module(forward=in_order), {"rope": "centre"}),
    Mutant("grid_distances_matter", "block:adaln-zero", module(forward=by_column), {"rope": "grid"}),
    *of(
        "head:tokens",
        head_shape=module(forward=lambda inner, h: inner(h).nan_to_num(neginf=0.0)),
        head_per_position=module(forward=lambda inner, h: inner(h) + h.mean()),
        head_weights=with_layers("maps", lambda old: nn.Linear(old.in_features, old.out_features)),
    ),
    Mutant("head_probabilities", "head:sigmoid", module(forward=lambda inner, h: inner(h) * 1.01)),
    *(
        Mutant(check, part, change)
        for part in MODULES
        for check, change in (("seeded_build", UNSEEDED), ("state_dict_round_trip", UNSAVED), ("builds_on_meta", HELD))
    ),
    *of(
        "optimizer:adamw",
        parameters_once=after(lambda optimizer: optimizer.param_groups[0]["params"].pop(0)),
        resumes=after(lambda optimizer: setattr(optimizer, "load_state_dict", lambda state: None)),
    ),
    Mutant(
        "step_changes_weights",
        "optimizer:adamw",
        after(lambda optimizer: setattr(optimizer, "step", lambda: None)),
        sound=built(undoes),
    ),
    *of(
        "lr-schedule:constant",
        factor_valid=built(lambda inner: lambda step: float(next(count))),
        summary=spec(__doc__=None),
        builds=spec(build=lambda self, steps: 1 // 0),
        spec_without_torch=spec(),
        options_round_trip=lambda base: Doubling,
        unknown_option_refused=lambda base: Loose,
        options_documented=lambda base: Mute,
        options_writable=lambda base: Mute,
        snippet_valid=lambda base: Choosy,
        json_schema=lambda base: Opaque,
        options_frozen=lambda base: Fluid,
        defaults_share_nothing=spec(notes=[]),
        traits_known=with_traits("zero-init"),
        builds_share_nothing=spec(build=lambda self, steps: SimpleNamespace(log=SHARED)),
        keeps_torch_globals=after(lambda inner: torch.set_grad_enabled(False)),
    ),
    Mutant("metric_values", "metric:largest", function(call=lambda inner, x, like: {"largest": float("nan")})),
    Mutant("reward_values", "reward:id-share", function(call=lambda inner, x, like: inner(x, like) / 0)),
    Mutant("commands_run", "executor:processes", spec(build=lambda self: SimpleNamespace(start=Ended))),
    Mutant(
        "commands_run",
        "executor:processes",
        function(start=lambda inner, command: inner.start(replace(command, output=Path(os.devnull)))),
        name="output",
    ),
    Mutant("tracker_life_cycle", "tracker:memory", spec(build=lambda self: SimpleNamespace())),
    *of(
        "process:absorbing",
        renoise_keeps_fixed=function(renoise=lambda inner, state, now, then, like: State.of(1 - state.x)),
    ),
    *of(
        "process:gaussian",
        noise_is_standard_normal=function(add_noise=lambda inner, x, *a: (State.of(x), torch.zeros_like(x))),
    ),
    *of(
        "process:masked-region",
        reveal_keeps_visible=function(reveal=lambda inner, state, x, masked: State(x, masked)),
    ),
    Mutant(
        "splits_disjoint",
        "task:bubble-diagram",
        lambda base: function(batch=lambda inner, split, rows: inner.batch("train", rows))(
            with_traits("disjoint-splits")(base)
        ),
        FEW_PLANS,
        with_traits("disjoint-splits"),
    ),
    *(
        Mutant(check, "task:bubble-diagram", change, PLANS)
        for check, change in {
            "splits_not_empty": function(size=lambda inner, split: 0),
            "space_matches": function(batch=lambda inner, *a: altered(inner.batch(*a), known=lambda c: ~c.valid)),
            "pure_in_rows": function(batch=lambda inner, *a: (torch.rand(1), inner.batch(*a))[1]),
            "templates_seeded": function(
                like=lambda inner, n, seed: altered(inner.batch("train", range(n)), known=lambda c: c.valid)
            ),
            "baselines_are_finite": function(baselines=lambda inner, *a: {"nats": 1.0}),
            "evaluates_samples": function(plots=lambda inner, x, like: [Picture("a/b", text="x")]),
        }.items()
    ),
]  # fmt: skip


# Wrong numbers: components of the right shapes with one wrong line.


class GaussianBound(LossSpec):
    """Half the squared error of x0 times the slope of the signal-to-noise ratio (VDM, Kingma et al. 2021, eq. 15)."""

    name = "gaussian-bound"
    serves = FEATURES
    bound = True

    def check(self, process):
        yield from super().check(process)
        if process.prior != "gaussian":
            yield Misfit("requires Gaussian noise")

    def build(self, process) -> Any:
        return half_square


def _numbered(h, extra):
    return h + torch.arange(h.shape[1])[:, None], extra


def half_square(pred, noised):
    sigma, rate = (
        over(value, noised.x0).double()
        for value in (noised.noise.sigma, noised.noise.rate)
    )
    slope = rate * sigma.exp() / sigma.expm1().square()
    values = torch.where(
        noised.target_mask, slope * (pred.x0 - noised.x0).square() / 2, 0.0
    ).sum(-1)
    return Measured(values.float(), noised.valid.float())


class MeanLoss(MetricSpec):
    """The mean loss of predictions."""

    name = "mean-loss"

    def build(self, space: Any) -> Any:
        return Means()


class Means:
    def metrics(self):
        return Sums()


class Sums(Metrics):
    """A mean over positions."""

    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def update(self, clean, noised, pred, measured) -> None:
        self.total += float(measured.total())
        self.weight += float(measured.weights.sum())

    def compute(self) -> dict[str, float]:
        return {"mean_loss": self.total / self.weight}


class BatchMeans(Sums):
    """A mean over batches of their means."""

    def update(self, clean, noised, pred, measured) -> None:
        self.total += float(measured.mean())
        self.weight += 1


def times(factor):
    """A loss with values multiplied by factor(noised)."""
    return loss(lambda m, pred, noised: Measured(m.values * factor(noised), m.weights))


def greedy(inner, state, pred, like):
    return torch.where(like.fixed, like.x0, pred.log_clean().argmax(-1))


def in_pairs(inner, state, pred, like):
    """All positions of a sample share one uniform number."""
    ids = (pred.log_clean().exp().cumsum(-1) < torch.rand(len(like.x0), 1, 1)).sum(-1)
    return torch.where(
        like.fixed, like.x0, ids.clamp_max(pred.log_clean().shape[-1] - 1)
    )


def moved_in_pairs(inner, clean, t):
    noised = inner.corrupt(clean, t)
    x = torch.where(
        noised.state.masked | clean.fixed, noised.state.x, noised.state.x[:, :1]
    )
    return altered(
        noised,
        state=lambda n: State.of(x),
        target_mask=lambda n: n.target_mask[:, :1] & ~clean.fixed,
    )


def prior_off(inner, like):
    """Two in a hundred draws are id 0."""
    x = inner.prior(like).x
    return State.of(torch.where((torch.rand(x.shape) < 0.02) & ~like.fixed, 0, x))


def wide_prior(inner, like):
    state = inner.prior(like)
    return replace(state, x=torch.where(like.fixed, state.x, state.x * 1.02))


def shared_noise(inner, clean, t):
    noised = inner.corrupt(clean, t)
    eps = torch.where(noised.target_mask, noised.eps[..., :1], 0.0)
    a, b = (
        part.sqrt()
        for part in (noised.noise.alpha(eps), noised.noise.one_minus_alpha(eps))
    )
    x = torch.where(noised.target_mask, a * clean.x0 + b * eps, noised.state.x)
    return replace(noised, eps=eps, state=replace(noised.state, x=x))


def step(factor):
    return function(
        step=lambda inner, state, pred, now, then, *a, **o: inner.step(
            state, pred, now, scaled(then, factor), *a, **o
        )
    )


def scaled_draws(method):
    """Bounds that are 15 % too large."""

    def scaled(inner, *given):
        drawn = getattr(inner, method)(*given)
        if isinstance(drawn, Measured):
            return replace(drawn, values=1.15 * drawn.values)
        return 1.15 * drawn

    return function(**{method: scaled})


def drifting(method):
    """Each call uses a little more noise."""

    def change(inner):
        calls = []

        def called(inner, clean, t):
            calls.append(1)
            return getattr(inner, method)(clean, (t * 0.9 ** len(calls)))

        return Function(inner, **{method: called})

    return built(change)


def drifting_schedule(inner):
    calls = []

    def call(inner, t):
        calls.append(1)
        return scaled(inner(t), 1 + 0.1 * len(calls), 1 + 0.1 * len(calls))

    return Function(inner, call=call)


def dip(inner, t):
    """Decreases near t = 0.51, with the right rate."""
    noise, z = inner(t), (t - 0.5137) / 0.002
    bump = 0.05 * (-z.square()).exp()
    return Noise(noise.sigma - bump, noise.rate + bump * 2 * z / 0.002)


def halved(out):
    return out / 2 + out.detach() / 2


def half_gradient(inner, x, *a, **o):
    return inner(halved(x), *a, **o)


def long_truncated(inner, x, c, **o):
    return (
        inner(x, c, **o)
        if x.shape[1] <= 64
        else torch.cat([inner(x[:, :64], c), x[:, 64:]], 1)
    )


def climbs(inner):
    for group in inner.param_groups:
        group["lr"] = -group["lr"]
    return inner


def all_known(inner, n, seed):
    like = inner.batch("valid", range(n))
    return altered(like, known=lambda c: c.valid)


def first_keys(inner, x, c, mask=None, **o):
    """Only the first 128 positions of a long input are attended to."""
    seen = (torch.arange(x.shape[1]) < 128).expand(x.shape[1], -1)
    return inner(
        x,
        c,
        mask=seen
        if mask is None
        else mask & seen
        if mask.dtype == torch.bool
        else mask,
        **o,
    )


def with_seed(call, *a, **o):
    """Draw with a seed of its own, and leave torch's generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return call(*a, **o)


def mixed(out, x):
    return out + x.mean(0) if len(x) > 8 else out


def beyond(x0, count):
    """Features after the first ones."""
    return (torch.arange(x0.shape[-1]) >= count).expand(x0.shape)


def quiet_features(inner, clean, t):
    noised = inner.corrupt(clean, t)
    quiet = beyond(clean.x0, 4) & noised.target_mask
    signal = noised.noise.alpha(clean.x0).sqrt() * clean.x0
    x = torch.where(quiet, signal, noised.state.x)
    eps = noised.eps.masked_fill(quiet, 0.0)
    return replace(noised, eps=eps, state=replace(noised.state, x=x))


def untouched_features(inner, clean, t):
    noised = inner.corrupt(clean, t)
    clean_features = beyond(clean.x0, 4)
    x = torch.where(clean_features, clean.x0, noised.state.x)
    return replace(
        noised,
        eps=noised.eps.masked_fill(clean_features, 0.0),
        state=replace(noised.state, x=x),
        target_mask=noised.target_mask & ~clean_features,
    )


def repeated(vectors):
    return vectors[:, torch.arange(vectors.shape[1]) % 64]


def skipping(optimizer, skips):
    step, calls = optimizer.step, itertools.count(1)
    optimizer.step = lambda: None if skips(next(calls)) else step()
    return optimizer


def ignoring(optimizer):
    step = optimizer.step

    def stepping():
        for weight in optimizer.param_groups[-1]["params"]:
            weight.grad = None
        step()

    optimizer.step = stepping
    return optimizer


def as_type(noise, dtype):
    return Noise(noise.sigma.to(dtype), noise.rate.to(dtype))


def forget(optimizer, state):
    numbers = {
        key: {**value, "step": torch.ones_like(value["step"])}
        for key, value in state["state"].items()
    }
    return {**state, "state": numbers}


AGREE, BOUND = "bounds_agree", "bound_is_exact"
JOINT, NORMAL = "joint_distributions", "normal_step"
GRADIENTS, EXACT = "gradients_reach_all", "samples_exact_distribution"
MCE, ENTROPY, ABSORBING, UNIFORM = (
    "loss:masked-ce",
    "loss:score-entropy",
    "process:absorbing",
    "process:uniform",
)
GAUSSIAN, BLOCK, TASK = "process:gaussian", "block:adaln-zero", "task:bubble-diagram"
LOG_LINEAR, LEVEL = "schedule:log-linear", "condition:level"
ROWS: dict[str, tuple[str, str, Any]] = {
    "loose bound of own jumps": (
        "bound_of_own_jumps",
        "loss:flow-kl",
        times(lambda n: 0.5),
    ),
    "draws of another bound": (AGREE, ABSORBING, scaled_draws("draw_diffusion")),
    "a whole bound of its own": (AGREE, ABSORBING, scaled_draws("draw_whole_bound")),
    "training with its own bound": (AGREE, UNIFORM, scaled_draws("bound")),
    "double": (BOUND, MCE, times(lambda n: 2)),
    "bits": (BOUND, ENTROPY, times(lambda n: 1 / 0.6931)),
    "no rate": (BOUND, MCE, times(lambda n: 1 / over(n.noise.rate, n.x0))),
    "counts masked": (
        BOUND,
        MCE,
        loss(lambda m, pred, n: Measured(m.values, n.target_mask.float())),
    ),
    "ignored field": (
        BOUND,
        ENTROPY,
        times(lambda n: (torch.arange(n.x0.shape[1]) < 1).float()),
    ),
    "squared error without half": (BOUND, "loss:gaussian-bound", times(lambda n: 2)),
    "rate per sigma": (
        BOUND,
        MCE,
        times(lambda n: over(n.noise.sigma.expm1() / n.noise.sigma, n.x0)),
    ),
    "changed tokens only": (
        BOUND,
        ENTROPY,
        times(lambda n: (n.x0 != n.state.x).float()),
    ),
    "unweighted": (
        BOUND,
        MCE,
        times(lambda n: over(n.noise.sigma.expm1() / n.noise.rate, n.x0)),
    ),
    "half the gradient of a loss": (
        "gradcheck",
        MCE,
        loss(lambda m, pred, n: Measured(halved(m.values), m.weights)),
    ),
    "greedy finish": (JOINT, UNIFORM, function(finish=greedy)),
    "finish in pairs": (JOINT, UNIFORM, function(finish=in_pairs)),
    "noise in pairs": (JOINT, UNIFORM, function(corrupt=moved_in_pairs)),
    "scaled reading": (
        "predictions_are_exact",
        ABSORBING,
        function(read=lambda i, raw, *a: i.read(raw * 1.03, *a)),
    ),
    "scaled scores": (
        "predictions_are_exact",
        UNIFORM,
        function(read=lambda i, raw, *a: i.read(raw * 1.03, *a)),
    ),
    "scaled features": (
        NORMAL,
        GAUSSIAN,
        function(read=lambda i, raw, *a: i.read(raw * 1.03, *a)),
    ),
    "prior off by 2 %": (JOINT, UNIFORM, function(prior=prior_off)),
    "wide prior": (NORMAL, GAUSSIAN, function(prior=wide_prior)),
    "early step": (JOINT, ABSORBING, step(0.97)),
    "early step, uniform": (JOINT, UNIFORM, step(0.97)),
    "early step, gaussian": (NORMAL, GAUSSIAN, step(0.97)),
    "step without noise": (
        NORMAL,
        GAUSSIAN,
        function(step=lambda i, *a, **o: i.step(*a, eta=0.0)),
    ),
    "shared noise": (NORMAL, GAUSSIAN, function(corrupt=shared_noise)),
    "constant level": (
        "time_per_position",
        ABSORBING,
        function(level=lambda i, t: torch.full_like(t, 0.5)),
    ),
    "one time": (
        "record_is_complete",
        ABSORBING,
        function(corrupt=lambda i, c, t: i.corrupt(c, t * 0 + t.mean())),
    ),
    "one time of a batch": (
        "times_cover_the_range",
        UNIFORM,
        function(times=lambda i, n, device=None: i.times(1).expand(n)),
    ),
    "renoise too much": (
        JOINT,
        UNIFORM,
        function(
            renoise=lambda i, state, now, then, like: i.renoise(
                state, scaled(now, 1.1), then, like
            )
        ),
    ),
    "hidden state": ("time_per_position", ABSORBING, drifting("corrupt")),
    "noise is left": (
        EXACT,
        "sampler:ddim",
        sampled(lambda x, proc, like: x + 0.02 * torch.randn_like(x)),
    ),
    "shrunk samples": (EXACT, "sampler:ddim", sampled(lambda x, proc, like: x * 0.98)),
    "dip": ("grows", LOG_LINEAR, function(call=dip)),
    "wrong rate near 1": (
        "rate_is_derivative",
        LOG_LINEAR,
        function(call=lambda i, t: scaled(i(t), rate=1 + 0.1 * (t > 0.999))),
    ),
    "wrong rate near 0": (
        "rate_is_derivative",
        LOG_LINEAR,
        function(call=lambda i, t: scaled(i(t), rate=1 + 0.1 * (t < 0.001))),
    ),
    "hidden state of a schedule": ("any_shape", LOG_LINEAR, built(drifting_schedule)),
    "end off by 2 %": (
        "sigma_end",
        LOG_LINEAR,
        lambda base: spec(sigma_end=lambda s: 1.02 * base.sigma_end(s))(base),
    ),
    "long inputs truncated": ("padding_inert", BLOCK, module(forward=long_truncated)),
    "keys of long inputs": (
        "permutation_equivariant",
        BLOCK,
        module(forward=first_keys),
    ),
    "half the gradient of the input": (GRADIENTS, BLOCK, module(forward=half_gradient)),
    "half the gradient of a block": (
        GRADIENTS,
        BLOCK,
        module(forward=lambda i, *a, **o: halved(i(*a, **o))),
    ),
    "half the gradient of a model": (
        GRADIENTS,
        "model:denoiser",
        module(forward=lambda i, *a, **o: halved(i(*a, **o).nan_to_num(neginf=0.0))),
    ),
    "half the gradient of a head": (
        GRADIENTS,
        "head:features",
        module(forward=half_gradient),
    ),
    "clipped head": (
        "head_unbounded",
        "head:tokens",
        module(forward=lambda i, h: i(h).clamp_max(5.0)),
    ),
    "bounded head": (
        "head_unbounded",
        "head:features",
        module(forward=lambda i, h: 3 * i(h).tanh()),
    ),
    "coarse level": (
        "levels_differ",
        LEVEL,
        module(forward=lambda i, t, c: i((t / 0.01).floor() * 0.01, c)),
    ),
    "clipped level": (
        "levels_differ",
        LEVEL,
        module(forward=lambda i, level, cond: i(level.clamp_max(0.9), cond)),
    ),
    "repeated levels": (
        "levels_differ",
        LEVEL,
        module(forward=lambda i, level, cond: i(level % 0.5, cond)),
    ),
    "climbs": ("descends", "optimizer:adamw", built(climbs)),
    "mean of batch means": (
        "metric_values",
        "metric:mean-loss",
        function(metrics=lambda i: BatchMeans()),
    ),
    "valid is train in reverse": (
        "splits_not_empty",
        TASK,
        function(
            batch=lambda i, split, rows: i.batch(
                *(
                    ("train", [39 - r for r in rows])
                    if split == "valid"
                    else (split, rows)
                )
            )
        ),
    ),
    "the judge sees one sample": (
        "evaluates_samples",
        TASK,
        function(sample_metrics=lambda i, x, like: i.sample_metrics(x[:1], like[:1])),
    ),
    "batch means of a task": (
        "metrics_batch_invariant",
        TASK,
        function(metrics=lambda i: BatchMeans()),
    ),
    "templates give every value": ("templates_seeded", TASK, function(like=all_known)),
}
HIDDEN: dict[str, tuple[str, str, Any]] = {
    # Tasks
    "fewer rows of large batches": (
        "space_matches",
        TASK,
        function(batch=lambda i, split, rows: i.batch(split, list(rows)[:32])),
    ),
    "a repeated row of large batches": (
        "pure_in_rows",
        TASK,
        function(
            batch=lambda i, split, rows: (
                i.batch(split, [min(r, 31) for r in rows])
                if len(rows) > 8
                else i.batch(split, rows)
            )
        ),
    ),
    "at most eight templates": (
        "templates_seeded",
        TASK,
        function(like=lambda i, n, seed: i.like(min(n, 8), seed)),
    ),
    "metrics of the template": (
        "evaluates_samples",
        TASK,
        function(sample_metrics=lambda i, x, like: i.sample_metrics(like.x0, like)),
    ),
    "one metric of the template": (
        "evaluates_samples",
        TASK,
        function(
            sample_metrics=lambda i, x, like: (
                i.sample_metrics(x, like)
                | {"zeros": float((like.x0 == 0).float().mean())}
            )
        ),
    ),
    "metrics of the first eight samples": (
        "evaluates_samples",
        TASK,
        function(sample_metrics=lambda i, x, like: i.sample_metrics(x[:8], like[:8])),
    ),
    "a metric of the template": (
        "metric_values",
        "metric:largest",
        function(call=lambda i, x, like: i(like.x0, like)),
    ),
    "a reward relative to the batch": (
        "reward_values",
        "reward:id-share",
        function(call=lambda i, x, like: i(x, like) - i(x, like).mean()),
    ),
    "one reward for all samples": (
        "reward_values",
        "reward:id-share",
        function(call=lambda i, x, like: i(x, like).sum()),
    ),
    # Random numbers
    "the same draws in each step": (
        "draws_are_new",
        ABSORBING,
        function(step=lambda i, *a: with_seed(i.step, *a)),
    ),
    "the same noise in each step": (
        "draws_are_new",
        GAUSSIAN,
        function(step=lambda i, *a, **o: with_seed(i.step, *a, **o)),
    ),
    "the same noise in each batch": (
        "draws_are_new",
        UNIFORM,
        function(corrupt=lambda i, *a: with_seed(i.corrupt, *a)),
    ),
    "the same sample from each posterior": (
        "draws_are_new",
        UNIFORM,
        function(finish=lambda i, *a: with_seed(i.finish, *a)),
    ),
    "the same prior": (
        "draws_are_new",
        GAUSSIAN,
        function(prior=lambda i, *a: with_seed(i.prior, *a)),
    ),
    "the same times": (
        "times_cover_the_range",
        GAUSSIAN,
        function(times=lambda i, *a: with_seed(i.times, *a)),
    ),
    "a sampler with its own seed": (
        "draws_are_new",
        "sampler:ancestral",
        function(call=lambda i, *a: with_seed(lambda: list(i(*a)))),
    ),
    "an ordered sampler with its own seed": (
        "draws_are_new",
        "sampler:first-hitting",
        function(call=lambda i, *a: with_seed(lambda: list(i(*a)))),
    ),
    # Rows
    "a block mixes more than eight rows": (
        "rows_independent",
        BLOCK,
        module(forward=lambda i, x, c, **o: mixed(i(x, c, **o), x)),
    ),
    "a block with the condition of a neighbour": (
        "rows_independent",
        BLOCK,
        module(forward=lambda i, x, c, **o: i(x, c.roll(1, 0), **o)),
    ),
    "a condition mixes rows": (
        "rows_independent",
        LEVEL,
        module(forward=lambda i, t, c: i(t, c) + 0.1 * i(t, c).mean(0)),
    ),
    "a condition mixes more than eight rows": (
        "rows_independent",
        LEVEL,
        module(forward=lambda i, t, c: i(t if len(t) <= 8 else t.roll(1, 0), c)),
    ),
    "an embedding mixes more than eight rows": (
        "rows_independent",
        "embedding:regions",
        module(
            forward=lambda i, s, *a: (
                i(s, *a)[0] if len(s.x) <= 8 else i(s, *a)[0].roll(1, 0),
                i(s, *a)[1],
            )
        ),
    ),
    "a model mixes more than eight rows": (
        "rows_independent",
        "model:denoiser",
        module(
            forward=lambda i, s, t, *a, **o: i(
                s, t if len(t) <= 8 else t.flip(0), *a, **o
            )
        ),
    ),
    "a head mixes more than eight rows": (
        "head_per_position",
        "head:features",
        module(forward=lambda i, h: mixed(i(h), i(h))),
    ),
    "a schedule of a mean of times": (
        "any_shape",
        LOG_LINEAR,
        function(call=lambda i, t: scaled(i(t), 1 + t.mean(), 1 + t.mean())),
    ),
    "a loss without weights in large batches": (
        "rows_independent",
        "loss:mse",
        loss(
            lambda m, pred, n: Measured(
                m.values,
                m.weights if len(m.weights) <= 8 else torch.ones_like(m.weights),
            )
        ),
    ),
    # Features, ids and positions
    "noise on the first four features": (
        "prior_at_one",
        GAUSSIAN,
        function(corrupt=untouched_features),
    ),
    "little noise beyond four features": (
        "forward_distribution",
        GAUSSIAN,
        function(corrupt=quiet_features),
    ),
    "ids above 15 are never drawn": (
        "forward_distribution",
        UNIFORM,
        function(
            corrupt=lambda i, *a: altered(
                i.corrupt(*a),
                state=lambda n: State.of(
                    torch.where(n.target_mask, n.state.x.clamp_max(15), n.state.x)
                ),
            )
        ),
    ),
    "ids above 15 are never sampled": (
        "chapman_kolmogorov",
        UNIFORM,
        function(
            finish=lambda i, s, p, like: torch.where(
                like.fixed, like.x0, i.finish(s, p, like).clamp_max(15)
            )
        ),
    ),
    "a sampler with ids below 16": (
        "certain_model_is_followed",
        "sampler:ancestral",
        sampled(
            lambda x, proc, like: (
                torch.where(like.fixed, x, x.clamp_max(15))
                if proc.space.vocab > 17
                else x
            )
        ),
    ),
    "an embedding of 16 ids": (
        "embeds_every_id",
        "embedding:tokens",
        module(forward=lambda i, s, *a: i(State.of(s.x.clamp_max(16)), *a)),
    ),
    "a model of 16 ids": (
        "state_matters",
        "model:denoiser",
        module(
            forward=lambda i, s, *a, **o: i(
                s if s.x.is_floating_point() else State.of(s.x.clamp_max(16)), *a, **o
            )
        ),
    ),
    "a loss of the first 16 ids": (
        "weights_only_targets",
        MCE,
        times(lambda n: (n.x0 < 16).float()),
    ),
    "a loss of the first 64 positions": (
        "weights_only_targets",
        MCE,
        times(lambda n: (torch.arange(n.x0.shape[1]) < 64).float()),
    ),
    "a loss of the first four features": (
        "weights_only_targets",
        "loss:mse",
        function(
            call=lambda i, pred, n: i(
                pred, replace(n, target_mask=n.target_mask & ~beyond(n.x0, 4))
            )
        ),
    ),
    "a head without its last feature": (
        "head_unbounded",
        "head:features",
        module(
            forward=lambda i, h: torch.cat(
                [i(h)[..., :-1], torch.zeros_like(i(h)[..., -1:])], -1
            )
        ),
    ),
    "a head with one logit for ids above 16": (
        "head_unbounded",
        "head:tokens",
        module(
            forward=lambda i, h: torch.where(
                (torch.arange(i(h).shape[-1]) > 15) & i(h).isfinite(), 0.0, i(h)
            )
        ),
    ),
    "an embedding without the last feature": (
        "masked_values_ignored",
        "embedding:regions",
        module(
            forward=lambda i, s, *a: i(
                replace(s, x=torch.cat([s.x[..., :-1], 0 * s.x[..., -1:]], -1)), *a
            )
        ),
    ),
    "positions repeat after 64": (
        "positions_differ",
        "position:sinusoid",
        module(forward=lambda i, *a: repeated(i(*a))),
    ),
    "learned positions repeat after 64": (
        "positions_differ",
        "position:learned",
        module(forward=lambda i, *a: repeated(i(*a))),
    ),
    "positions inside of a block repeat after 64": (
        "positions_do_not_repeat",
        BLOCK,
        module(
            forward=lambda i, x, c, **o: i(
                x + 0.5 * (torch.arange(x.shape[1]) % 64 / 8.0).sin()[:, None], c, **o
            )
        ),
    ),
    # Precision
    "a block wrong in bfloat16": (
        "close_in_bfloat16",
        BLOCK,
        module(
            forward=lambda i, x, c, **o: (
                i(x, c, **o) * (1.5 if x.dtype == torch.bfloat16 else 1.0)
            )
        ),
    ),
    "a block wrong under autocast": (
        "close_in_bfloat16",
        BLOCK,
        module(
            forward=lambda i, x, c, **o: i(
                x, c if not torch.is_autocast_enabled("cpu") else 0 * c, **o
            )
        ),
    ),
    "a head wrong in bfloat16": (
        "close_in_bfloat16",
        "head:features",
        module(forward=lambda i, h: i(h) + (i(h).dtype == torch.bfloat16)),
    ),
    "a condition wrong under autocast": (
        "close_in_bfloat16",
        LEVEL,
        module(
            forward=lambda i, t, c: i(
                t.bfloat16() if torch.is_autocast_enabled("cpu") else t, c
            )
        ),
    ),
    "an embedding wrong under autocast": (
        "close_in_bfloat16",
        "embedding:regions",
        module(
            forward=lambda i, *a: (
                i(*a)[0] * (0.5 if torch.is_autocast_enabled("cpu") else 1.0),
                i(*a)[1],
            )
        ),
    ),
    "a model wrong under autocast": (
        "close_in_bfloat16",
        "model:denoiser",
        module(
            forward=lambda i, s, level, *a, **o: i(
                s, level + torch.is_autocast_enabled("cpu"), *a, **o
            )
        ),
    ),
    "float32 inside of a schedule": (
        "precision",
        LOG_LINEAR,
        function(call=lambda i, t: as_type(i(t.float()), t.dtype)),
    ),
    "float32 inside of a rate": (
        "precision",
        LOG_LINEAR,
        function(call=lambda i, t: Noise(i(t).sigma, i(t.float()).rate.to(t.dtype))),
    ),
    "a jump of sigma": (
        "grows",
        LOG_LINEAR,
        function(call=lambda i, t: Noise(i(t).sigma + 0.05 * (t > 0.4321), i(t).rate)),
    ),
    # Optimizers
    "every seventh step is skipped": (
        "descends",
        "optimizer:adamw",
        built(lambda optimizer: skipping(optimizer, lambda n: n % 7 == 0)),
    ),
    "steps stop after 20": (
        "descends",
        "optimizer:adamw",
        built(lambda optimizer: skipping(optimizer, lambda n: n > 20)),
    ),
    "a group is ignored": (
        "step_changes_weights",
        "optimizer:adamw",
        built(ignoring),
    ),
    "the step count is not restored": (
        "resumes",
        "optimizer:adamw",
        after(lambda optimizer: optimizer.register_load_state_dict_pre_hook(forget)),
    ),
}
"""Faults that small inputs, one call, or float32 do not show."""
TOYS = {"metric:largest": Largest, "tracker:memory": Memory}
TOYS |= {"loss:gaussian-bound": GaussianBound, "metric:mean-loss": MeanLoss}
"""Components of kinds of which few are installed."""
MUTANTS += [
    Mutant(
        check,
        part,
        change,
        PLANS if part == TASK else None,
        name=name.replace(" ", "-"),
    )
    for name, (check, part, change) in (ROWS | HIDDEN).items()
]


@pytest.fixture(autouse=True)
def first_failure_is_enough():
    """Do not search for a minimal failing situation."""
    hypothesis.settings.register_profile(
        "broken", parent=hypothesis.settings(), phases=[hypothesis.Phase.generate]
    )
    before = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile("broken")
    yield
    hypothesis.settings.load_profile(before)


def catalog_with(mutant: Mutant, change: Change, plugin: str) -> Catalog:
    """All installed components, and a changed one with its own name."""
    catalog, everything = Catalog(), default_catalog()
    for name in {part.plugin for part in everything.parts()}:
        catalog.add(
            name, [part.spec for part in everything.parts() if part.plugin == name]
        )
    good = TOYS.get(mutant.part) or everything.find(*mutant.part.split(":")).spec
    changed = change(good)
    changed.name = f"{plugin}-{mutant.check.replace('_', '-')}"
    if changed.__doc__ is None and not (
        mutant.check == "summary" and plugin == "broken"
    ):
        changed.__doc__ = good.__doc__
    imports_torch = mutant.check == "spec_without_torch" and plugin == "broken"
    changed.__module__ = (
        "dither.registry.contracts.records" if imports_torch else good.__module__
    )
    catalog.add(plugin, [changed])
    return catalog


def case_of(mutant: Mutant, change: Change, plugin: str) -> Case:
    catalog = catalog_with(mutant, change, plugin)
    (part,) = (part for part in catalog.parts() if part.plugin == plugin)
    examples = {f"{part.kind}:{part.name}": [mutant.options]} if mutant.options else {}
    (case,) = (
        case
        for case in cases(plugin, catalog, examples, strict=True)
        if case.check.name == mutant.check
    )
    return case


def unchanged(base: type[Spec]) -> type[Spec]:
    return type(
        base.__name__, (base,), {"__module__": base.__module__, "__doc__": base.__doc__}
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
@pytest.mark.slow
def test_a_mutant_fails_its_check(mutant):
    case = case_of(mutant, mutant.change, "broken")
    with pytest.raises(
        (AssertionError, ZeroDivisionError, ValueError, IndexError)
    ) as caught:
        case.run()
    torch.set_grad_enabled(True)
    assert "fits nowhere" not in str(caught.value), "the mutant was never tried"
    assert "never applied" not in str(caught.value), "the mutant was never tried"


TWINS = {(mutant.part.partition(":")[0], mutant.sound): mutant for mutant in MUTANTS}
"""One of each kind; the conformance tests of the packages run the other checks."""


@pytest.mark.parametrize("mutant", TWINS.values(), ids=lambda mutant: mutant.id)
def test_an_unchanged_twin_passes(mutant):
    replace(case_of(mutant, mutant.sound or unchanged, "sound"), max_examples=2).run()


@pytest.mark.slow
def test_a_job_that_cannot_be_stopped_fails(monkeypatch):
    monkeypatch.setattr(run_components, "WAIT_SECONDS", 3.0)
    spec = default_catalog().find("executor", "processes").spec()
    executor = Function(
        spec.build(), start=lambda inner, command: Endless(inner.start(command))
    )
    situation = SimpleNamespace(spec=spec, build=lambda: executor)
    with pytest.raises(AssertionError, match="did not end"):
        run_components.commands_run(situation)


def test_another_plugin_cannot_fail_a_sound_one():
    """A process whose steps go wrong is installed beside a sound sampler."""
    catalog = catalog_with(Mutant(JOINT, GAUSSIAN, step(0.5)), step(0.5), "broken")
    sampler = default_catalog().find("sampler", "ddim").spec
    catalog.add(
        "sound",
        [
            type(
                "Sound", (sampler,), {"name": "sound", "__module__": sampler.__module__}
            )
        ],
    )
    (case,) = (case for case in cases("sound", catalog) if case.check.name == EXACT)
    case.run()
    with pytest.raises(AssertionError):
        replace(case, catalog=catalog).run()


def test_every_check_has_a_mutant():
    seen = {(m.part.partition(":")[0], m.check) for m in MUTANTS}
    for check in CHECKS:
        kinds = {kind for kind, name in seen if name == check.name}
        assert check.kind in kinds or (check.kind == "any" and kinds), (
            f"{check.kind} {check.name}"
        )
