"""What every test of the house shares."""

import contextlib
import gc
import importlib
import os
import random
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis.internal.conjecture import providers

from dither.registry.config.errors import CODES, Refused
from dither.registry.plugins.manager import default_catalog

hypothesis.settings.register_profile(
    "house", deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("house")
# It also draws literals of all modules that are imported by then, which differ between workers.
providers._get_local_constants = lambda: providers._local_constants
os.environ.setdefault("OMP_NUM_THREADS", "1")
# It is made once a process: a first test that sets DITHER_PLUGINS would choose for all that follow.
default_catalog()


# Collection creates millions of objects that stay: passes over them take a quarter of its time and find nothing.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude imported modules from garbage collection, a pass over which takes as long as a small run."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed every generator, for the worker of a test and the tests before it differ between runs."""
    torch.set_num_threads(1)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Path]]:
    """Put plugins with distribution metadata on the path, as pip would."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    modules = set()

    def install(
        dist: str,
        source: str,
        entry: str | None = None,
        version: str = "1.0",
        module: str | None = None,
    ) -> Path:
        module = module or "test_plugin_" + dist.replace("-", "_")
        modules.add(module)
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        info = site / f"{module}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(
            f"[dither.plugins]\n{entry or dist} = {module}\n"
        )
        importlib.invalidate_caches()
        return site / f"{module}.py"

    yield install
    for name in modules & sys.modules.keys():
        del sys.modules[name]


@contextlib.contextmanager
def _refused(*codes: str, match: str | None = None) -> Iterator[Any]:
    with pytest.raises(Refused, match=match) as info:
        yield info
    assert info.value.codes == list(codes), str(info.value)


@pytest.fixture
def refused() -> Callable[..., Any]:
    """Return a context manager that expects problems with these codes."""
    return _refused


@pytest.fixture
def refusal() -> Callable[..., Refused]:
    """Call something that must be refused, and return the exception."""

    def call(function: Callable[..., Any], *args: Any, **options: Any) -> Refused:
        with pytest.raises(Refused) as info:
            function(*args, **options)
        assert set(info.value.codes) <= set(CODES)
        return info.value

    return call


def _content(folder: Path) -> dict[str, bytes]:
    """Return the files of a run, its locks excepted."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in files
        if path.suffix != ".lock"
    }


@pytest.fixture
def content() -> Callable[[Path], dict[str, bytes]]:
    """Return a function that reads all files of a run."""
    return _content


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that calls a command, expects its exit code, and returns what was printed."""

    def call(*words: str, code: int = 0) -> Any:
        from dither.engine.cli import main

        ended, printed = main([*words]), capsys.readouterr()
        assert ended == code, printed.err
        return printed

    return call
