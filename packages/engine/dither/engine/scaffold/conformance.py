"""The conformance kit, run over an installed plugin in a process of its own, without a test file of the plugin's."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.plugins.manager import load_plugins
from dither.registry.plugins.status import PluginStatus

__all__ = ["run_kit"]

EXPECTED = re.compile(r"(?P<part>[a-z0-9-]+:[a-z0-9-]+)-(?P<check>[a-z_0-9]+)=(?P<reason>.*\S.*)")
TEST = '''"""Written by `dither test-plugin`."""

import pytest

from dither.testing import conformance

try:
    parametrized = conformance.parametrize(plugin={plugin!r}, expected_failures={expected!r})
except ValueError as error:
    pytest.exit(str(error), returncode=2)


@parametrized
def test_conformance(case):
    case.run()
'''


def run_kit(plugin: str, expected: Iterable[str] = ()) -> int:
    """Run the kit and let it print what it finds; return 0 where every check passed, 1 where not.

    Args:
        plugin: Name of an installed plugin.
        expected: Checks that fail on purpose, each `kind:name-check=reason`.

    Raises:
        Refused: The kit or the plugin is not installed or not usable, or an expected failure is not written like that.
    """
    failures = _read(expected)
    if importlib.util.find_spec("dither.testing") is None:
        raise Refused(Problem("the conformance kit is not installed", help="python -m pip install dither-testing"))
    _usable(plugin)
    with tempfile.TemporaryDirectory(prefix="dither-test-plugin-") as folder:
        # A folder and an ini file of its own: no configuration or conftest of the working directory takes part.
        (Path(folder) / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (Path(folder) / "test_conformance.py").write_text(
            TEST.format(plugin=plugin, expected=failures), encoding="utf-8"
        )
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "test_conformance.py"]
        return subprocess.run(command, cwd=folder, check=False).returncode


def _read(expected: Iterable[str]) -> dict[tuple[str, str], str]:
    found, problems = {}, []
    for text in expected:
        match = EXPECTED.fullmatch(text)
        if match is None:
            form = "write KIND:NAME-CHECK=REASON, such as 'block:wavelet-rows_independent=mixes the batch on purpose'"
            problems.append(Problem(f'--expect "{text}" names no check with a reason', help=form))
        else:
            found[match["part"], match["check"]] = match["reason"]
    if problems:
        raise Refused(problems)
    return found


def _usable(plugin: str) -> None:
    """Refuse a plugin that offers nothing here, and say why."""
    plugins = load_plugins()
    reports: dict[str, PluginStatus] = {report.name: report for report in plugins.reports}
    if plugin not in reports:
        close = nearest(plugin, reports)
        hint = f'did you mean "{close}"? ' if close else ""
        raise Refused(
            Problem(f'no plugin named "{plugin}" is installed', help=f"{hint}installed: {', '.join(sorted(reports))}")
        )
    report = reports[plugin]
    if report.state != "loaded":
        raise Refused(f'plugin "{plugin}" ({report.source}) cannot be tested: {report.state}, {report.reason}')
    if not any(part.plugin == plugin for part in plugins.catalog.parts()):
        raise Refused(f'plugin "{plugin}" offers no parts, only hooks, and the kit checks parts')
