"""One test case per part and check, for the parts of any plugin.

    from dither.testing import parametrize

    @parametrize(plugin="my-blocks", claims={"block:wavelet": ["identity_at_init"]})
    def test_conformance(case):
        case.run()

To see in the summary how many checks ran, put `from dither.testing.conformance import pytest_terminal_summary` into
conftest.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis.errors import Unsatisfiable

from dither.registry import Catalog, default_catalog
from dither.registry.catalog import Part

from .checks import CHECKS, Check
from .probing import NotApplicable, seed_cpu
from .situations import Situation, situations

__all__ = ["Case", "cases", "parametrize", "pytest_terminal_summary"]

EXAMPLES = 8
"""Situations in which a check is run."""
PATIENCE = 100
"""Situations in which a check may have no meaning before it is given up."""
ID = re.compile(r"\[([a-z0-9-]+:[a-z0-9-]+)-([a-z_]+)\]")


@dataclass(frozen=True)
class Case:
    """One check of one part.

    Attributes:
        part: What is checked.
        check: The property.
        catalog: Where other parts come from.
        options: Tables of options to check with, in place of drawn ones.
    """

    part: Part
    check: Check
    catalog: Catalog = field(repr=False)
    options: Sequence[Mapping[str, Any]] = ()

    @property
    def name(self) -> str:
        """The part as `kind:name`."""
        return f"{self.part.spec.kind}:{self.part.spec.name}"

    def run(self) -> None:
        """Run the check in a few situations, the simplest first; skip if it has no meaning in any.

        Raises:
            AssertionError: The property does not hold; hypothesis says in which situation.
        """
        reasons = [self._attempts(options) for options in self.options or (None,)]
        if all(reasons):
            pytest.skip("; ".join(sorted(set().union(*reasons))))

    def _attempts(self, options: Mapping[str, Any] | None) -> set[str]:
        """Run the check with some options, or with drawn ones; return why it had no meaning, if it had none in any."""
        ran, reasons = 0, list[str]()
        few = self.part.spec.kind in ("task", "data")  # they stand alone, and reading data takes time

        @settings(
            max_examples=1 if few else EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(situations(self.part, self.catalog, self.check.level, options))
        def attempt(situation: Situation) -> None:
            nonlocal ran
            with torch.random.fork_rng(devices=[]):
                seed_cpu(situation.seed)
                try:
                    self.check.run(situation)
                    ran += 1
                except NotApplicable as reason:
                    reasons.append(str(reason))
                    if len(reasons) < PATIENCE:
                        reject()

        try:
            attempt()
        except Unsatisfiable:
            if not reasons:
                raise AssertionError(f"{self.part.pinned} fits nowhere: no options and place were found") from None
        return set() if ran else set(reasons)


def cases(
    plugin: str,
    catalog: Catalog,
    claims: Mapping[str, Collection[str]],
    examples: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[Case]:
    """Return every check that concerns a part of a plugin, by part.

    Raises:
        ValueError: The plugin offers nothing, or a claim is of no part or check.
    """
    parts = [part for part in catalog.parts() if part.plugin == plugin]
    if not parts:
        known = sorted({part.plugin for part in catalog.parts()})
        raise ValueError("\n".join([f'plugin "{plugin}" offers nothing; plugins: {", ".join(known)}', *catalog.notes]))
    found = [
        Case(part, check, catalog, examples.get(f"{part.spec.kind}:{part.spec.name}", ()))
        for part in parts
        for check in CHECKS
        if check.kind in ("any", part.spec.kind)
        and (not check.claimed or check.name in claims.get(f"{part.spec.kind}:{part.spec.name}", ()))
    ]
    names = {case.name for case in found}
    for name in (*claims, *examples):
        if name not in names:
            raise ValueError(f'plugin "{plugin}" offers no {name}')
    for name, claimed in claims.items():
        for check in set(claimed) - {c.name for c in CHECKS if c.claimed and c.kind == name.partition(":")[0]}:
            raise ValueError(f'{name} claims "{check}", which is no claim that the kit can check')
    return found


def parametrize(
    plugin: str,
    *,
    expected_failures: Mapping[tuple[str, str], str] | None = None,
    claims: Mapping[str, Collection[str]] | None = None,
    examples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    catalog: Catalog | None = None,
) -> pytest.MarkDecorator:
    """Give a test function one `case` per part and check of a plugin.

    Args:
        plugin: Name of the plugin, as its entry point has it.
        expected_failures: `{("block:wavelet", "rows_independent"): "mixes the batch on purpose"}`. One that does not
            fail is a failure.
        claims: What parts claim beyond their kind: `{"block:wavelet": ["identity_at_init"]}`.
        examples: Options to check a part with where they cannot be drawn, such as paths:
            `{"data:text-files": [{"paths": ["a.txt"]}]}`.
        catalog: By default all that is installed.

    Raises:
        ValueError: A name in the arguments is not known.
    """
    expected = dict(expected_failures or {})
    marked = []
    for case in cases(plugin, catalog or default_catalog(), claims or {}, examples or {}):
        reason = expected.pop((case.name, case.check.name), None)
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        marked.append(pytest.param(case, marks=marks, id=f"{case.name}-{case.check.name}"))
    if expected:
        unknown = ", ".join(f"{name} {check}" for name, check in expected)
        raise ValueError(f'expected failures of plugin "{plugin}" name no part and check: {unknown}')
    return pytest.mark.parametrize("case", marked)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many checks ran, and why the others did not."""
    ran, parts, skipped = 0, set[str](), Counter[str]()
    for outcome in ("passed", "failed", "xfailed", "xpassed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            match = ID.search(getattr(report, "nodeid", ""))
            if match and outcome == "skipped":
                skipped[str(report.longrepr[2]).removeprefix("Skipped: ")] += 1
            elif match:
                ran, parts = ran + 1, parts | {match[1]}
    if ran or skipped:
        terminalreporter.write_line(f"conformance: {ran} checks ran over {len(parts)} parts, {skipped.total()} skipped")
        for reason, count in sorted(skipped.items()):
            terminalreporter.write_line(f"  {count} skipped: {reason}")
