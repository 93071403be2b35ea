"""The menus of the installed plugins: from a cache of this environment, filled by `probe` where something is new."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from .installed import Installed, environment_stamp
from .offers import Menu
from .probe import probe
from .storage import cache_folder, write_aside

__all__ = ["menus_of"]

FORMAT = 1
RETRY = 600.0
"""Seconds after which a plugin that could not be loaded is tried again."""
KEPT = 8
"""Files that the cache keeps for each plugin."""


def menus_of(plugins: Sequence[Installed], fresh: bool = False) -> dict[str, Menu]:
    """Return the menu of each plugin by name.

    A menu is taken from the cache as long as its plugin is the same; that of a plugin which could not be loaded, as
    long as nothing else was installed and for ten minutes at most.

    Args:
        plugins: Of different names.
        fresh: Ask every plugin anew.
    """
    surroundings = environment_stamp()
    menus = {} if fresh else {p.name: menu for p in plugins if (menu := _cached(p, surroundings)) is not None}
    new = [plugin for plugin in plugins if plugin.name not in menus]
    if new:
        for plugin, menu in zip(new, probe([(p.name, p.module) for p in new]), strict=True):
            menus[plugin.name] = menu
            _keep(plugin, menu, surroundings)
    return menus


def _file(plugin: Installed) -> Path:
    return cache_folder() / "plugins" / f"{_family(plugin)}-{plugin.stamp}.json"


def _family(plugin: Installed) -> str:
    """A plugin may call itself anything, so its name is no file name."""
    return hashlib.sha256(plugin.name.encode()).hexdigest()[:12]


def _cached(plugin: Installed, surroundings: str) -> Menu | None:
    try:
        kept = json.loads(_file(plugin).read_text(encoding="utf-8"))
        if kept["format"] != FORMAT:
            return None
        menu = Menu.from_json(kept["menu"])
        if menu.failure and (kept["surroundings"] != surroundings or not 0 <= time.time() - kept["at"] < RETRY):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return menu


def _keep(plugin: Installed, menu: Menu, surroundings: str) -> None:
    """Write a menu into the cache; where it cannot be written, the plugin is asked again next time."""
    path = _file(plugin)
    values = {"format": FORMAT, "menu": menu.to_json(), "surroundings": surroundings, "at": time.time()}
    try:
        with write_aside(path) as beside:
            beside.write_text(json.dumps(values), encoding="utf-8")
        for old in sorted(path.parent.glob(f"{_family(plugin)}-*.json"), key=lambda file: file.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        pass
