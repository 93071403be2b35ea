"""What an installed plugin offers, found out in a process of its own: whatever its import does, this one goes on.

It may raise, exit, kill its process, hang, print or patch other modules; the menu then says so, and no more happens.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from .manifest import Menu

__all__ = ["answer"]

LARGEST = 16 << 20
"""Bytes of the largest file that a plugin may write at import; what it prints goes to a file."""


def answer(job: Mapping[str, Any]) -> None:
    """In the child: import the plugin, write its menu, and end the process."""
    import importlib.metadata

    from .manager import Plugins
    from .status import describe_exception

    _restrain(job["limit"])
    write, rename, leave = Path.write_bytes, Path.replace, os._exit  # before anyone patches them
    plugins, menu = Plugins(), Menu()
    began = time.perf_counter()
    try:
        point = importlib.metadata.EntryPoint(job["name"], job["module"], "dither.plugins")
        plugins.register(job["name"], point.load())
        menu = plugins.menu(job["name"])
    except BaseException as error:
        menu = Menu(failure=describe_exception(error))
    menu = replace(menu, seconds=time.perf_counter() - began, imports_torch="torch" in sys.modules)
    aside = Path(job["folder"], "menu.json.part")
    write(aside, menu.to_json())
    rename(aside, Path(job["folder"], "menu.json"))
    leave(0)  # threads or handlers that the plugin left behind have no say


def _restrain(seconds: float) -> None:
    """End by itself, should nobody be there to end this process, and write no large files."""
    import resource

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with suppress(ValueError, OSError):  # a lower limit was set
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, hard))
