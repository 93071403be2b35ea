"""Fixtures of these tests: plugins on the path, and plugin sources."""

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dither.registry.config.errors import Refused
from dither.registry.plugins.status import GROUP

BLOCK = """
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec

class Block(BlockSpec):
    '''A block.'''
    name: ClassVar[str] = "{name}"
    def build(self, width, cond): ...

@hookimpl
def register_components():
    return [Block]
"""


@pytest.fixture
def block() -> Callable[[str], str]:
    """Return the source of a plugin with one block of this name."""
    return lambda name: BLOCK.format(name=name)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Put plugins with distribution metadata on the path, as pip would."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(dist: str, source: str, entry: str | None = None, version: str = "1.0") -> Path:
        module = "test_plugin_" + dist.replace("-", "_")
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        info = site / f"{module}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry or dist} = {module}\n")
        importlib.invalidate_caches()
        return site / f"{module}.py"

    yield install
    for name in [name for name in sys.modules if name.startswith("test_plugin_")]:
        del sys.modules[name]


@contextmanager
def _refused(*codes: str) -> Iterator[Any]:
    with pytest.raises(Refused) as info:
        yield info
    assert info.value.codes == list(codes), str(info.value)


@pytest.fixture
def refused() -> Callable[..., Any]:
    """Return a context manager that expects problems with these codes."""
    return _refused
