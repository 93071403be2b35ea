"""One test case per part and check, for the parts of any plugin.

    from dither.testing import conformance

    @conformance.parametrize(
        plugin="tp-wavelet",
        expected_failures={("block:wavelet", "rows_independent"): "mixes the batch on purpose"},
    )
    def test_conformance(case):
        case.run()

Which checks a part gets follows from its kind and from the traits that it declares. One that is declared and that no
check could look at is a failure. At the end pytest says how many checks ran, and why the others did not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis.errors import Unsatisfiable

from dither.registry import Catalog, default_catalog
from dither.registry.config.errors import nearest
from dither.registry.plugins.catalog import Component

from .check_utils import NotApplicable, seed_cpu
from .checks import CHECKS, Check
from .checks.check import EXAMPLES
from .situations import Situation, situations
from .summary import attach
from .traits import may_declare, traits_of

if TYPE_CHECKING:
    import pytest

__all__ = ["Case", "cases", "parametrize"]

MAX_NOT_APPLICABLE = 100
"""Situations in which a check may have no meaning before it is given up."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class _Tally:
    """How often a check ran, and why it did not: traits that were not declared, or else no meaning."""

    ran: int = 0
    undeclared: set[str] = field(default_factory=set)
    meaningless: list[str] = field(default_factory=list)
    turned_down: int = 0


@dataclass(frozen=True)
class Case:
    """One check of one part.

    Attributes:
        part: What is checked.
        check: The property.
        catalog: Where other parts come from.
        options: Tables of options to check with, in place of drawn ones.
        strict: Whether a recommended check has to pass too.
        most: Situations in which it is run at most.
        expected: Why it is expected to fail; no simplest situation for that is looked for then.
    """

    part: Component
    check: Check
    catalog: Catalog = field(repr=False)
    options: Sequence[Mapping[str, Any]] = ()
    strict: bool = False
    most: int = EXAMPLES
    expected: str = ""

    @property
    def name(self) -> str:
        """The part as `kind:name`."""
        return f"{self.part.spec.kind}:{self.part.spec.name}"

    def run(self) -> None:
        """Run the check in a few situations, the simplest first; skip if it has no meaning in any.

        Raises:
            AssertionError: The property does not hold, and hypothesis says in which situation; or the part declares
                what the check needs, and yet there was no situation to check it in.
        """
        import pytest

        tally = _Tally()
        try:
            for options in self.options or (None,):
                self._attempt(options, tally)
        except AssertionError as error:
            if self.check.level == "required" or self.strict:
                raise
            pytest.xfail(f"recommended: {str(error).partition(chr(10))[0]}")
        if tally.ran:
            return
        if self.check.needs and tally.meaningless:
            needs = ", ".join(sorted(self.check.needs))
            raise AssertionError(f"{self.name} declares {needs}, but this never ran: {'; '.join(_once(tally))}")
        pytest.skip("; ".join(_once(tally)) or "it fits nowhere")

    def _attempt(self, options: Mapping[str, Any] | None, tally: _Tally) -> None:
        """Run the check with some options, or with drawn ones."""
        few = self.part.spec.kind in ("task", "data")  # they stand alone, and reading data takes time

        @settings(
            max_examples=1 if few else min(self.most, self.check.examples),
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate] if self.expected else settings().phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(situations(self.part, self.catalog, self.check.place, options))
        def attempt(situation: Situation) -> None:
            with torch.random.fork_rng(devices=[]):
                seed_cpu(situation.seed)
                if not self._counts(situation, tally):
                    reject()

        before = tally.ran + tally.turned_down
        try:
            attempt()
        except Unsatisfiable:
            if tally.ran + tally.turned_down == before:
                raise AssertionError(f"{self.part.pinned} fits nowhere: no options and place were found") from None

    def _counts(self, situation: Situation, tally: _Tally) -> bool:
        """Run the check in a situation; return False where it has no meaning and others are to be tried."""
        missing = self.check.needs - traits_of(situation.spec, situation.space)
        try:
            if not missing:
                self.check.run(situation)
                tally.ran += 1
                return True
            tally.undeclared |= missing
        except NotApplicable as reason:
            tally.meaningless.append(str(reason))
        tally.turned_down += 1
        return tally.turned_down >= MAX_NOT_APPLICABLE


def _once(tally: _Tally) -> list[str]:
    """Each reason once; what is not declared only where nothing else was in the way."""
    undeclared = [f"does not declare {trait}" for trait in sorted(tally.undeclared)]
    return sorted(set(tally.meaningless)) or undeclared


def cases(
    plugin: str,
    catalog: Catalog,
    examples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    *,
    strict: bool = False,
) -> list[Case]:
    """Return every check that concerns a part of a plugin, by part.

    Raises:
        ValueError: The plugin offers nothing, or an example is of no part.
    """
    examples = examples or {}
    every = catalog.parts()
    parts = [part for part in every if part.plugin == plugin]
    if not parts:
        raise ValueError(f'plugin "{plugin}" offers nothing{_hint(plugin, {part.plugin for part in every})}')
    found = [
        Case(part, check, catalog, examples.get(f"{part.spec.kind}:{part.spec.name}", ()), strict)
        for part in parts
        for check in CHECKS
        if check.kind in ("any", part.spec.kind) and may_declare(part.spec, check.needs)
    ]
    names = {case.name for case in found}
    for name in examples:
        if name not in names:
            raise ValueError(f'plugin "{plugin}" offers no {name}{_hint(name, names)}')
    return found


def parametrize(
    plugin: str,
    *,
    expected_failures: Mapping[tuple[str, str], str] | None = None,
    examples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    strict: bool = False,
    catalog: Catalog | None = None,
) -> Callable[[F], F]:
    """Give a test function one `case` per part and check of a plugin: `block:wavelet-identity_at_init`, and so on.

    Args:
        plugin: Name of the plugin, as its entry point has it.
        expected_failures: `{("block:wavelet", "rows_independent"): "mixes the batch on purpose"}`. One that does not
            fail is a failure.
        examples: Options to check a part with where they cannot be drawn, such as paths:
            `{"data:text-files": [{"paths": ["a.txt"]}]}`.
        strict: Whether a recommended check that fails is a failure, and not only reported.
        catalog: By default all that is installed.

    Raises:
        ValueError: A name in the arguments is not known; the message has the nearest one.
    """
    import pytest

    found = cases(plugin, catalog or default_catalog(), examples, strict=strict)
    expected = dict(expected_failures or {})
    _refuse_unknown(plugin, expected, found)
    marked = [_param(replace(case, expected=expected.get((case.name, case.check.name), ""))) for case in found]

    def decorate(test: F) -> F:
        attach(test)
        decorated: F = pytest.mark.parametrize("case", marked)(test)
        return decorated

    return decorate


def _param(case: Case) -> Any:
    import pytest

    marks: list[pytest.MarkDecorator] = []
    if case.expected:
        marks.append(pytest.mark.xfail(reason=case.expected, strict=True))
    return pytest.param(case, marks=marks, id=f"{case.name}-{case.check.name}")


def _refuse_unknown(plugin: str, expected: Mapping[tuple[str, str], str], found: Sequence[Case]) -> None:
    """Refuse expected failures of no part, of no check, or without a reason; all of them at once."""
    checks: dict[str, set[str]] = {}
    for case in found:
        checks.setdefault(case.name, set()).add(case.check.name)
    wrong = []
    for (name, check), reason in expected.items():
        if name not in checks:
            wrong.append(f'plugin "{plugin}" offers no {name}{_hint(name, checks)}')
        elif check not in checks[name]:
            wrong.append(f'{name} has no check "{check}"{_hint(check, checks[name])}')
        elif not reason.strip():
            wrong.append(f"{name} {check} is expected to fail for no reason: say why")
    if wrong:
        raise ValueError("expected failures: " + "; ".join(wrong))


def _hint(name: str, allowed: Iterable[str]) -> str:
    close = nearest(name, allowed)
    return f'; did you mean "{close}"?' if close else f"; there is {', '.join(sorted(allowed)) or 'nothing'}"
