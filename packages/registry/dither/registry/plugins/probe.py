"""What an installed plugin offers, found out in a process of its own: whatever its import does, this one goes on.

It may raise, exit, kill its process, hang, print or patch other modules; the menu then says so, and no more happens.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .manifest import Menu

__all__ = ["LIMIT", "SECONDS", "probe", "time_limit"]

SECONDS = 10.0
"""Time that a plugin has for its import, which takes a tenth of a second where it does not import torch."""
LIMIT = "DITHER_PLUGIN_SECONDS"
"""The environment variable with another limit, for a slow file system."""
CHILD = """
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    job = json.load(file)
sys.path[:] = job["path"]
from dither.registry.plugins.probe_child import answer
answer(job)
"""


def probe(plugins: Sequence[tuple[str, str]], seconds: float | None = None) -> list[Menu]:
    """Import plugins, each in its own process, and return their menus. When interrupted, no process is left.

    Args:
        plugins: Name and entry-point value (`package.module` or `package.module:object`) of each.
        seconds: Time limit for each; by default `time_limit()`.
    """
    limit = time_limit() if seconds is None else seconds
    menus: dict[int, Menu] = {}
    running: dict[int, _Child] = {}
    with tempfile.TemporaryDirectory(prefix="dither-probe-", ignore_cleanup_errors=True) as folder:
        try:
            for number, (name, module) in enumerate(plugins):
                _await(running, menus, (os.cpu_count() or 1) - 1)
                running[number] = _start(Path(folder) / str(number), name, module, limit)
            _await(running, menus, 0)
        finally:
            for child in running.values():
                _end(child.process)
    return [menus[number] for number in range(len(plugins))]


def time_limit() -> float:
    """Return how many seconds a plugin has: DITHER_PLUGIN_SECONDS, or 10."""
    try:
        seconds = float(os.environ.get(LIMIT, SECONDS))
    except ValueError:
        return SECONDS
    return max(0.1, seconds) if math.isfinite(seconds) else SECONDS


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]
    folder: Path
    limit: float
    until: float


def _start(folder: Path, name: str, module: str, limit: float) -> _Child:
    folder.mkdir()
    job = {"name": name, "module": module, "path": list(map(str, sys.path)), "limit": limit, "folder": str(folder)}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    with (folder / "errors").open("wb") as errors:  # a file and no pipe: whoever keeps it open is not waited for
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, str(folder / "job.json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    return _Child(process, folder, limit, time.monotonic() + limit)


def _await(running: dict[int, _Child], menus: dict[int, Menu], most: int) -> None:
    """Take in menus until at most so many children are left. No threads: Ctrl-C is heard at once."""
    while len(running) > most:
        for number, child in list(running.items()):
            if child.process.poll() is not None or time.monotonic() > child.until:
                late = child.process.returncode is None
                _end(child.process)  # and what it may have left running
                del running[number]
                menus[number] = _read(child, late)
        time.sleep(0.003)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and everything it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read(child: _Child, late: bool) -> Menu:
    try:
        return Menu.from_json((child.folder / "menu.json").read_bytes())
    except (OSError, ValueError):
        pass
    code = child.process.returncode
    if late or code == -signal.SIGALRM:
        text = f"its import took longer than {child.limit:g} s"
        return Menu(failure=f"{text}; {LIMIT} allows more, `dither plugins --fresh` tries again", timed_out=True)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    said = [line for line in _tail(child.folder / "errors").splitlines() if line.strip()]
    return Menu(failure=f"its import {how}" + (f": {said[-1][:200]}" if said else ""))


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        return file.read(4096).decode(errors="replace")
