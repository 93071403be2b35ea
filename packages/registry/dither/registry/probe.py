"""What an installed plugin offers, found out in a process of its own: whatever its import does, this one goes on.

It may raise, exit, kill its process, hang, print or patch other modules; the menu then says so, and no more happens.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from .offers import Menu

__all__ = ["LIMIT", "SECONDS", "answer", "probe"]

SECONDS = 10.0
"""Time that a plugin has for its import, which takes a tenth of a second where it does not import torch."""
LIMIT = "DITHER_PLUGIN_SECONDS"
"""The environment variable with another limit, for a slow file system."""
CHILD = """
import json, sys
job = json.load(sys.stdin)
sys.path[:] = job["path"]
from dither.registry.probe import answer
answer(job)
"""


def probe(plugins: Sequence[tuple[str, str]], seconds: float | None = None) -> list[Menu]:
    """Import plugins, each in its own process, and return their menus.

    Args:
        plugins: Name and entry-point value (`package.module` or `package.module:object`) of each.
        seconds: Time limit for each; by default that of DITHER_PLUGIN_SECONDS, or 10.
    """
    limit = _limit() if seconds is None else seconds
    with ThreadPoolExecutor(max(1, min(len(plugins), os.cpu_count() or 1))) as pool:
        return list(pool.map(lambda plugin: _ask(plugin[0], plugin[1], limit), plugins))


def _limit() -> float:
    try:
        return max(0.1, float(os.environ.get(LIMIT, SECONDS)))
    except ValueError:
        return SECONDS


def _ask(name: str, module: str, seconds: float) -> Menu:
    with tempfile.TemporaryDirectory(prefix="dither-probe-") as folder:
        result = Path(folder) / "menu.json"
        job = {"name": name, "module": module, "path": sys.path, "result": str(result)}
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, errors = child.communicate(json.dumps(job).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(child)
            return Menu(failure=f"its import took longer than {seconds:g} s")
        except BaseException:
            _end(child)
            raise
        _end(child)  # what it may have left running
        return _read(result, child.returncode, errors.decode(errors="replace"))


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and everything it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stderr is not None:
        child.stderr.close()


def _read(result: Path, code: int, errors: str) -> Menu:
    try:
        return Menu.from_json(json.loads(result.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = [line for line in errors.splitlines() if line.strip()]
        return Menu(failure=f"its import {how}" + (f": {said[-1][:200]}" if said else ""))


def answer(job: Mapping[str, Any]) -> None:
    """In the child: import the plugin, write its menu, and end the process."""
    import importlib.metadata

    from .plugins import Plugins, why

    dumps, write, replace, leave = json.dumps, Path.write_text, Path.replace, os._exit  # before anyone patches them
    plugins, menu = Plugins(), Menu()
    began = time.perf_counter()
    try:
        point = importlib.metadata.EntryPoint(job["name"], job["module"], "dither.plugins")
        plugins.register(job["name"], point.load())
        menu = plugins.menu(job["name"])
    except BaseException as error:
        menu = Menu(failure=why(error))
    values = menu.to_json() | {"seconds": time.perf_counter() - began, "imports_torch": "torch" in sys.modules}
    aside = Path(job["result"] + ".part")
    write(aside, dumps(values), encoding="utf-8")
    replace(aside, job["result"])
    leave(0)  # threads or handlers that the plugin left behind have no say
