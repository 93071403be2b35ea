"""The menus of the installed plugins: from a cache of this environment, filled by `probe` where something is new."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from ..files.atomic import atomic_write
from ..files.cache import cache_folder
from .discovery import Installed, environment_stamp
from .manifest import Menu
from .probe import probe, time_limit

__all__ = ["FOLDER", "menus_of"]

FOLDER = "DITHER_MENUS"
"""The environment variable with another folder for the menus; else `plugins` in the cache folder."""
RETRY = 600.0
"""Seconds after which a plugin that could not be loaded is tried again."""
RETRY_SLOW = 60.0
"""The same for one that took too long: another time the machine may be less busy."""
KEPT = 64
"""Files that the cache keeps for each plugin, one for each environment and each state of its source."""


@dataclass(frozen=True)
class _Kept:
    menu: Menu
    surroundings: str
    at: float


_KEPT = TypeAdapter(_Kept)


def menus_of(plugins: Sequence[Installed], fresh: bool = False) -> dict[str, Menu]:
    """Return the menu of each plugin by name.

    A menu is taken from the cache as long as its plugin is the same; that of a plugin which could not be loaded, as
    long as nothing else was installed and for ten minutes at most (one minute where it took too long).

    Args:
        plugins: Of different names.
        fresh: Ask every plugin anew. Where one fails that was whole before, the cache keeps what it offered.
    """
    menus = {plugin.name: Menu(failure=plugin.failure) for plugin in plugins if plugin.failure}
    whole = [plugin for plugin in plugins if not plugin.failure]
    surroundings = f"{environment_stamp()} {time_limit():g}"
    if not fresh:
        menus |= _cached(whole, surroundings)
    if len(menus) < len(plugins):
        with _alone():
            if not fresh:  # another process may have asked while this one waited
                menus |= _cached((plugin for plugin in whole if plugin.name not in menus), surroundings)
            new = [plugin for plugin in whole if plugin.name not in menus]
            for plugin, menu in zip(new, probe([(p.name, p.module) for p in new]), strict=True):
                menus[plugin.name] = menu
                _keep(plugin, menu, surroundings)
    return menus


def _folder() -> Path | None:
    """Where menus are kept; None where nobody has a home."""
    try:
        return Path(chosen).absolute() if (chosen := os.environ.get(FOLDER)) else cache_folder() / "plugins"
    except RuntimeError:
        return None


def _file(folder: Path, plugin: Installed) -> Path:
    return folder / f"{_family(plugin)}-{plugin.stamp}.json"


def _family(plugin: Installed) -> str:
    """A plugin may call itself anything, so its name is no file name."""
    return hashlib.sha256(plugin.name.encode(errors="surrogateescape")).hexdigest()[:12]


def _cached(plugins: Iterable[Installed], surroundings: str) -> dict[str, Menu]:
    found: dict[str, Menu] = {}
    for plugin in plugins:
        kept = _read(plugin)
        if kept is not None and (not kept.menu.failure or _still(kept, surroundings)):
            found[plugin.name] = kept.menu
    return found


def _still(kept: _Kept, surroundings: str) -> bool:
    """Whether a plugin that failed need not be tried again."""
    limit = RETRY_SLOW if kept.menu.timed_out else RETRY
    return kept.surroundings == surroundings and 0 <= time.time() - kept.at < limit


def _read(plugin: Installed) -> _Kept | None:
    folder = _folder()
    try:
        if folder is None or not (path := _file(folder, plugin)).is_file():
            return None
        return _KEPT.validate_json(path.read_bytes(), strict=True)
    except (OSError, ValueError):
        return None


def _keep(plugin: Installed, menu: Menu, surroundings: str) -> None:
    """Write a menu into the cache; where it cannot be written, the plugin is asked again next time.

    Of one that was whole under the same stamp no failure is kept: the machine was at fault, not the plugin.
    """
    folder, before = _folder(), _read(plugin) if menu.failure else None
    if folder is None or (before is not None and not before.menu.failure):
        return
    try:
        with atomic_write(_file(folder, plugin)) as beside:
            beside.write_bytes(_KEPT.dump_json(_Kept(menu, surroundings, time.time())))
        for old in sorted(folder.glob(f"{_family(plugin)}-*.json"), key=lambda file: file.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        pass


@contextmanager
def _alone() -> Iterator[None]:
    """Let one process at a time ask plugins; none waits longer than one plugin may take, or where it cannot."""
    folder = _folder()
    try:
        import fcntl

        if folder is None:
            raise OSError
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except (ImportError, OSError):
        yield
        return
    try:
        until = time.monotonic() + time_limit()
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(lock)
