"""One test case per component and check, for the components of any plugin.

    @conformance.parametrize(plugin="tp-wavelet", expected_failures={("block:wavelet", "rows_independent"): "reason"})
    def test_conformance(case):
        case.run()

Kind and traits of a component determine its checks; a declared trait whose check never applied is a
failure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis.errors import Unsatisfiable

from dither.registry import Catalog, default_catalog
from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.plugins.catalog import Component
from dither.registry.plugins.discovery import BUILT_IN

from .check_utils import NotApplicable, seed_cpu
from .checks import CHECKS, Check
from .situations import EXAMPLES, Situation, Where, situations
from .summary import attach
from .traits import may_declare, traits_of

__all__ = ["Case", "cases", "parametrize"]

MAX_NOT_APPLICABLE = 4 * EXAMPLES
"""Situations in which a check does not apply before it is given up."""
ROUNDS = (
    (False, 1),
    (True, 3),
    (False, EXAMPLES),
    (False, MAX_NOT_APPLICABLE),
)
"""Whether the situations of a round are large, and how many there are, with those of earlier rounds.

Most failures show in the simplest situation or in a large one, and few checks reject many, so that
the longer lists are drawn only when they are needed."""
UNSIZED = ("data", "lr-schedule", "optimizer", "schedule", "task", "tracker")
"""Kinds whose situations have no batch."""
# Arguments, because `settings` made here would not follow a profile that is loaded later.
REPRODUCIBLE: dict[str, Any] = {
    # The first example builds a model, and a busy machine is slow at any time.
    "deadline": None,
    # A check passes or fails alike on every machine and in every run.
    "derandomize": True,
    "database": None,
    "report_multiple_bugs": False,
    # Most draws of a component with strict demands on its surroundings are rejected.
    "suppress_health_check": list(HealthCheck),
}
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class _Tally:
    """How often a check ran, and why it did not."""

    ran: int = 0
    not_applicable: int = 0
    undeclared: set[str] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    failure: Exception | None = None
    large: bool = False

    def summary(self) -> str:
        """Return each reason once; undeclared traits only without another reason."""
        undeclared = [f"does not declare {trait}" for trait in sorted(self.undeclared)]
        return "; ".join(sorted(set(self.reasons)) or undeclared)


@dataclass(frozen=True)
class Case:
    """One check of one component.

    `options` replace drawn ones; under `strict` recommended checks must pass; `expected` says why
    the check must fail. Surroundings come from `catalog`, and from `everything` if the component
    fits into none of them.
    """

    part: Component
    check: Check
    catalog: Catalog = field(repr=False)
    options: Sequence[Mapping[str, Any]] = ()
    strict: bool = False
    max_examples: int = EXAMPLES
    expected: str = ""
    everything: Catalog | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The component as `kind:name`."""
        return f"{self.part.spec.kind}:{self.part.spec.name}"

    def run(self) -> None:
        """Run the check in a few situations, the simplest first; skip if it applies to none.

        Raises AssertionError in the situation that hypothesis prints, or if a declared trait was
        never checked.
        """
        import pytest

        tally = _Tally()
        try:
            self._attempt(tally)
        except AssertionError as error:
            if self.check.level == "required" or self.strict:
                raise
            pytest.xfail(f"recommended: {str(error).splitlines()[0]}")

        if tally.ran:
            return
        # A trait that is declared but never checked would be a promise without a test.
        if self.check.needs and tally.reasons:
            needs = ", ".join(sorted(self.check.needs))
            raise AssertionError(
                f"{self.name} declares {needs}, but the check never applied: {tally.summary()}"
            )
        pytest.skip(tally.summary() or "no situation was found")

    def _attempt(self, tally: _Tally) -> None:
        for options in self.options:
            for large in self._sizes:
                self._run_drawn(options, tally, self.catalog, large)
        if self.options:
            return
        # An expected failure needs more draws than are shared.
        if self.expected or not self._run_shared(tally):
            self._run_drawn(None, tally, self.catalog, tally.large)
        # hypothesis did not reproduce the failure with draws of its own.
        if tally.failure:
            raise tally.failure

    @property
    def _examples(self) -> int:
        # Reading data takes time, and every situation reads the same.
        if self.part.spec.kind in ("task", "data"):
            return 1
        return min(self.max_examples, self.check.examples)

    @property
    def _sizes(self) -> tuple[bool, ...]:
        """Whether situations are large; those without surroundings have no size."""
        alone = self.check.place in ("options", "alone")
        if alone or self.part.spec.kind in UNSIZED:
            return (False,)
        return (False, True)

    def _run_shared(self, tally: _Tally) -> bool:
        """Run the check in situations drawn once for all checks.

        Return False if it fails, or there are none.
        """
        done = {False: 0, True: 0}
        for large, count in ROUNDS:
            if large not in self._sizes:
                continue
            drawn = _situations(self.part, self.catalog, self.check.place, large, count)
            for situation in drawn[done[large] :]:
                try:
                    self._run_in(_copy(situation), tally)
                except Exception as error:
                    error.add_note(repr(situation))
                    if self._examples == 1:
                        raise
                    # hypothesis finds and prints a simpler situation.
                    tally.failure = error
                    tally.large = large
                    return False
                if tally.ran >= self._examples:
                    return True
            done[large] = len(drawn)
        return any(done.values())

    def _run_drawn(
        self,
        options: Mapping[str, Any] | None,
        tally: _Tally,
        catalog: Catalog,
        large: bool,
    ) -> None:
        changes = {**REPRODUCIBLE, "max_examples": self._examples}
        if self.expected:
            # An expected failure must be found, with however many draws; it needs no simplest example.
            changes["max_examples"] = 20 * EXAMPLES
            changes["phases"] = [Phase.generate]

        strategy = situations(
            part=self.part,
            catalog=catalog,
            place=self.check.place,
            options=options,
            large=large,
        )

        @settings(**changes)
        @given(strategy)
        def attempt(situation: Situation) -> None:
            if not self._run_in(situation, tally):
                reject()

        before = tally.ran + tally.not_applicable
        try:
            attempt()
        except Unsatisfiable:
            if tally.ran + tally.not_applicable > before:
                return
            if self.everything not in (None, catalog):
                self._run_drawn(options, tally, self.everything, large)
            else:
                message = f"{self.part.pinned} fits nowhere: no valid options and surroundings were found"
                raise AssertionError(message) from None

    def _run_in(self, situation: Situation, tally: _Tally) -> bool:
        """Run the check in one situation; return False to try others because it does not apply."""
        missing = self.check.needs - traits_of(situation.spec, situation.space)
        tally.undeclared |= missing
        if not missing:
            try:
                with torch.random.fork_rng(devices=[]):
                    seed_cpu(situation.seed)
                    self.check.run(situation)
            except NotApplicable as reason:
                tally.reasons.append(str(reason))
            else:
                tally.ran += 1
                return True
        tally.not_applicable += 1
        # Without this bound hypothesis would search on, and report an unsatisfiable test.
        return tally.not_applicable >= MAX_NOT_APPLICABLE


def _copy(situation: Situation) -> Situation:
    """Copy what a check may change, so that the next one sees what was drawn."""
    args, clean = deepcopy((situation.args, situation.clean))
    return replace(situation, args=args, clean=clean)


@lru_cache(maxsize=16)
def _situations(
    part: Component,
    catalog: Catalog,
    place: Where,
    large: bool,
    count: int,
) -> list[Situation]:
    drawn: list[Situation] = []

    @settings(**REPRODUCIBLE, max_examples=count, phases=[Phase.generate])
    @given(situations(part, catalog, place, large=large))
    def draw(situation: Situation) -> None:
        drawn.append(situation)

    try:
        draw()
    except Unsatisfiable:
        drawn.clear()
    return drawn


def cases(
    plugin: str,
    catalog: Catalog,
    examples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    *,
    strict: bool = False,
) -> list[Case]:
    """Return every check of a plugin's components; raise `Refused` if it, or a component in `examples`, is unknown.

    Its surroundings are components of dither and of the plugin itself, so that another plugin
    cannot fail it; others are used only for kinds of which these have none.
    """
    examples = examples or {}
    installed = catalog.parts()
    parts = [part for part in installed if part.plugin == plugin]
    if not parts:
        hint = _hint(plugin, {part.plugin for part in installed})
        raise Refused(
            f'plugin "{plugin}" has no components{hint}', code="unknown-plugin"
        )
    trusted = _trusted(plugin, catalog)
    found = []
    for part in parts:
        options = examples.get(f"{part.kind}:{part.name}", ())
        for check in CHECKS:
            applies = check.kind in ("any", part.kind)
            if applies and may_declare(part.spec, check.needs):
                case = Case(
                    part=part,
                    check=check,
                    catalog=trusted,
                    options=options,
                    strict=strict,
                    everything=catalog,
                )
                found.append(case)
    names = {case.name for case in found}
    unknown = [
        _unknown_component(plugin, name, names)
        for name in examples
        if name not in names
    ]
    if unknown:
        raise Refused(unknown)
    return found


def _trusted(plugin: str, catalog: Catalog) -> Catalog:
    """Return the components of dither and of a plugin, and all of the kinds that these lack."""
    trusted = Catalog(catalog.owners)
    parts = catalog.parts()
    kinds = {part.kind for part in parts if part.plugin in (*BUILT_IN, plugin)}
    chosen = [
        part
        for part in parts
        if part.plugin in (*BUILT_IN, plugin) or part.kind not in kinds
    ]
    for name in {part.plugin for part in chosen}:
        trusted.add(name, [part.spec for part in chosen if part.plugin == name])
    return trusted


def parametrize(
    plugin: str,
    *,
    expected_failures: Mapping[tuple[str, str], str] | None = None,
    examples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    strict: bool = False,
    catalog: Catalog | None = None,
) -> Callable[[F], F]:
    """Parametrize a test function with one `case` per component and check, such as `block:wavelet-identity_at_init`.

    `expected_failures` are `{("block:wavelet", "rows_independent"): reason}`, and fail if they
    pass; `examples` are options that cannot be drawn, as in `{"data:text-files": [{"paths":
    ["a.txt"]}]}`; under `strict`, failing recommended checks are failures. Raises `Refused` if a
    name is unknown or a reason is missing.
    """
    import pytest

    found = cases(
        plugin=plugin,
        catalog=catalog or default_catalog(),
        examples=examples,
        strict=strict,
    )
    expected = dict(expected_failures or {})
    problems = list(_expectation_problems(plugin, expected, found))
    if problems:
        raise Refused(problems)
    parameters = []
    for case in found:
        reason = expected.get((case.name, case.check.name), "")

        marks = []
        if reason:
            marks = [pytest.mark.xfail(reason=reason, strict=True)]

        parameters.append(
            pytest.param(
                replace(case, expected=reason),
                marks=marks,
                id=f"{case.name}-{case.check.name}",
            )
        )

    def decorate(test: F) -> F:
        attach(test)
        decorated: F = pytest.mark.parametrize("case", parameters)(test)
        return decorated

    return decorate


def _expectation_problems(
    plugin: str, expected: Mapping[tuple[str, str], str], found: Sequence[Case]
) -> Iterable[Problem]:
    """Yield expected failures of unknown components or checks, or without a reason."""
    checks: dict[str, set[str]] = {}
    for case in found:
        checks.setdefault(case.name, set()).add(case.check.name)
    for (name, check), reason in expected.items():
        if name not in checks:
            yield _unknown_component(plugin, name, checks)
        elif check not in checks[name]:
            yield Problem(
                f'{name} has no check "{check}"{_hint(check, checks[name])}',
                code="unknown-value",
            )
        elif not reason.strip():
            yield Problem(
                f"the expected failure of {name} {check} requires a reason",
                code="missing-argument",
            )


def _unknown_component(plugin: str, name: str, names: Collection[str]) -> Problem:
    return Problem(
        f'plugin "{plugin}" has no component {name}{_hint(name, names)}',
        code="unknown-component",
    )


def _hint(name: str, allowed: Collection[str]) -> str:
    names = ", ".join(sorted(allowed)) or "nothing"
    return f"; {did_you_mean(name, allowed, f'there is {names}')}"
