"""`dither test-plugin`: run the conformance kit over a plugin in a separate pytest process."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dither.registry.config.errors import Problem, Refused
from dither.registry.plugins.manager import load_plugins

__all__ = ["run_kit"]

EXPECTED = re.compile(r"(?P<component>[a-z0-9-]+:[a-z0-9-]+)-(?P<check>[a-z_0-9]+)=(?P<reason>.*\S.*)")
TEST = '''"""Written by `dither test-plugin`."""

from pathlib import Path

import pytest

from dither.registry.plugins.manager import load_plugins
from dither.testing import conformance

catalog = load_plugins(files=map(Path, {files!r})).catalog
try:
    parametrized = conformance.parametrize(plugin={plugin!r}, expected_failures={expected!r}, catalog=catalog)
except ValueError as error:
    pytest.exit(str(error), returncode=2)


@parametrized
def test_conformance(case):
    case.run()
'''


def run_kit(plugin: str, expected: Iterable[str] = ()) -> int:
    """Run the kit over an installed plugin or a file; return 0 if each check passed or is `expected` to fail, else 1.

    Raises:
        Refused: The kit or the plugin is unusable, or a text of `expected` is not `kind:name-check=reason`.
    """
    matches = {text: EXPECTED.fullmatch(text) for text in expected}
    failures = {(match["component"], match["check"]): match["reason"] for match in matches.values() if match}
    hint = "write KIND:NAME-CHECK=REASON, such as 'block:wavelet-rows_independent=mixes the batch on purpose'"
    if malformed := [text for text, match in matches.items() if match is None]:
        raise Refused(
            [Problem(f'--expect "{t}": not a check with a reason', help=hint, code="usage") for t in malformed]
        )
    if importlib.util.find_spec("dither.testing") is None:
        kit = Path(__file__).parents[4] / "testing"  # in a checkout
        here = (kit / "pyproject.toml").is_file()
        hint = f"python -m pip install -e {kit}" if here else "install dither-testing from where dither was installed"
        raise Refused(Problem("the conformance kit is not installed", help=hint, code="missing-dependency"))
    files = [Path(plugin).absolute()] if plugin.endswith(".py") else []
    plugin = files[0].stem.replace("_", "-") if files else plugin
    plugins = load_plugins(files=files)
    plugins.request(plugin)
    if not plugins.catalog.count(plugin):
        raise Refused(f'plugin "{plugin}" has hooks but no components to test', code="unknown-component")
    with tempfile.TemporaryDirectory(prefix="dither-test-plugin-") as folder:
        # Its own folder and ini file: no configuration or conftest of the working directory applies.
        (Path(folder) / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        test = TEST.format(plugin=plugin, expected=failures, files=list(map(str, files)))
        (Path(folder) / "test_conformance.py").write_text(test, encoding="utf-8")
        command = [sys.executable, "-Pm", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "test_conformance.py"]
        return subprocess.run(command, cwd=folder, check=False).returncode
