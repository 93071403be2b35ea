"""Prints how many checks ran, and why others did not, at the end of a test run. No torch here.

With pytest-xdist, put `from dither.testing.summary import pytest_terminal_summary` into
conftest.py.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

__all__ = ["attach", "lines", "pytest_terminal_summary"]

ID = re.compile(r"\[([a-z0-9-]+:[a-z0-9-]+)-([a-z_0-9]+)\]")
PLUGIN = "dither-conformance"


def lines(stats: dict[str, list[Any]]) -> list[str]:
    """Return the summary of the reports of a test run by outcome; empty without any check."""
    outcomes = Counter[str]()
    components = set[str]()
    reasons = Counter[str]()
    for outcome in ("passed", "failed", "xfailed", "xpassed", "skipped"):
        for report in stats.get(outcome, ()):
            match = ID.search(report.nodeid)
            # A test that passes has reports of its setup and teardown, too.
            if match is None or (outcome == "passed" and report.when != "call"):
                continue
            components.add(match[1])
            outcomes[outcome] += 1
            if outcome == "skipped":
                reason = str(report.longrepr[2]).removeprefix("Skipped: ")
                reasons[f"skipped: {reason}"] += 1
            elif outcome == "xfailed":
                reasons[
                    f"failed as expected: {match[1]} {match[2]}: {report.wasxfail}"
                ] += 1
    if not outcomes:
        return []
    skipped = outcomes["skipped"]
    ran = f"{outcomes.total() - skipped} checks of {len(components)} components ran"
    head = f"conformance: {ran}, {skipped} were skipped"
    rows = [f"  {count} {reason}" for reason, count in sorted(reasons.items())]
    return [head, *rows]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the summary once."""
    # A conftest.py and the fixture of `attach` may both register the hook.
    if not getattr(terminalreporter, "conformance_written", False):
        terminalreporter.conformance_written = True
        for line in lines(terminalreporter.stats):
            terminalreporter.write_line(line)


def attach(test: Callable[..., Any]) -> None:
    """Add a fixture to the module of a test that registers the hook above, without a conftest.py or a plugin."""
    import pytest

    @pytest.fixture(autouse=True, scope="session")
    def conformance_summary(request: Any) -> None:
        manager = request.config.pluginmanager
        if not manager.has_plugin(PLUGIN):
            manager.register(sys.modules[__name__], PLUGIN)

    # pytest looks for fixtures among the globals of a test's module.
    test.__globals__["conformance_summary"] = conformance_summary
