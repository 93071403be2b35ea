"""Loading of plugins: sorted, each one guarded, registered as a whole or not at all, and reported.

pluggy's own loader lets one broken plugin stop every command and drops a second plugin of the same name without a word;
this one does neither.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pluggy

from .catalog import Catalog
from .hookspecs import PROJECT, Hooks
from .policy import Policy
from .problems import Problem, Refused, nearest

__all__ = ["GROUP", "PluginReport", "Plugins", "load_plugins"]

GROUP = "dither.plugins"
"""The entry-point group, ours and a stranger's alike."""


@dataclass(frozen=True)
class PluginReport:
    """What became of one plugin.

    Attributes:
        name: Its entry-point name, or the stem of its file.
        state: loaded, failed, blocked, or clash (a second plugin of the same name; neither is loaded).
        source: The distribution with its version, or the file.
        reason: Why it is not loaded.
        sha256: Of a one-file plugin.
    """

    name: str
    state: Literal["loaded", "failed", "blocked", "clash"]
    source: str
    version: str = ""
    reason: str = ""
    sha256: str = ""


@dataclass
class Plugins:
    """The plugins of one session: the hooks, the catalogue, and what became of each."""

    catalog: Catalog
    manager: pluggy.PluginManager
    reports: list[PluginReport] = field(default_factory=list)

    @property
    def hook(self) -> Any:
        """The hook caller, for run hooks and checks."""
        return self.manager.hook

    def register(self, name: str, plugin: Any) -> None:
        """Take in a plugin object, as a whole or not at all.

        Raises:
            ValueError: What it offers is not right; TypeError, pluggy errors: its hooks are not right.
        """
        self.manager.register(plugin, name)
        try:
            self._no_unknown_hooks(plugin)
            for caller in self.manager.get_hookcallers(plugin) or []:
                if caller.name == "register_components":
                    (impl,) = (impl for impl in caller.get_hookimpls() if impl.plugin is plugin)
                    offered: Any = impl.function()
                    self.catalog.add(name, offered)
        except BaseException:
            self.manager.unregister(plugin)
            raise

    def _no_unknown_hooks(self, plugin: Any) -> None:
        known = {hook for hook in vars(Hooks) if not hook.startswith("_")}
        for attribute in dir(plugin):
            options = self.manager.parse_hookimpl_opts(plugin, attribute)
            if options is not None and (options.get("specname") or attribute) not in known:
                close = nearest(attribute, known)
                raise ValueError(f'"{attribute}" is no hook' + (f', did you mean "{close}"?' if close else ""))

    def load(self, name: str, source: str, version: str, get: Callable[[], Any], sha256: str = "") -> None:
        """Load one plugin; whatever it does at import, this call comes back with a report."""
        try:
            self.register(name, get())
            report = PluginReport(name, "loaded", source, version, sha256=sha256)
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
            if frames and Path(frames[-1].filename) != Path(__file__):
                reason += f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
            report = PluginReport(name, "failed", source, version, reason, sha256)
            self.catalog.notes.append(f'plugin "{name}" ({source}) failed to load and may offer it ({reason})')
        self.reports.append(report)

    def load_file(self, path: Path) -> None:
        """Load a one-file plugin; its name is the stem of the file.

        Raises:
            Refused: The file is missing, or fails at import.
        """
        name = path.stem.replace("_", "-")
        if not path.is_file():
            raise Refused(f"plugin file {path} does not exist")
        if any(report.name == name and report.state == "loaded" for report in self.reports):
            raise Refused(f'plugin file {path} would be called "{name}", and a plugin of that name is loaded already')
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        self.load(name, str(path), "", lambda: _import_file(path, name), sha256)
        if self.reports[-1].state == "failed":
            raise Refused(f"plugin file {path} failed to load: {self.reports[-1].reason}")
        if not self.manager.get_hookcallers(self.manager.get_plugin(name)):
            raise Refused(f"plugin file {path} has no function that is marked with @hookimpl")

    def called(self, name: str, **arguments: Any) -> Iterable[tuple[str, Any]]:
        """Call a hook plugin by plugin, with only the arguments each asks for; yield (plugin, result)."""
        caller: pluggy.HookCaller = getattr(self.manager.hook, name)
        for impl in caller.get_hookimpls():
            yield impl.plugin_name, impl.function(*(arguments[argument] for argument in impl.argnames))


def _import_file(path: Path, name: str) -> Any:
    """Import a file as a module of its own, found again by its classes' `__module__`."""
    module_name = f"dither_file_plugin_{name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def load_plugins(
    select: Sequence[str] | None = None, files: Iterable[Path] = (), policy: Policy | None = None
) -> Plugins:
    """Load the installed plugins, and one-file plugins.

    Args:
        select: As after -p: `no:NAME` blocks a plugin; any NAME without `no:` loads only those named. By default the
            environment variable DITHER_PLUGINS, split at commas (empty: no plugin at all).
        files: One-file plugins to load as well.
        policy: What registry.toml says; by default nothing.

    Raises:
        Refused: A selected plugin is not installed, or a file fails.
    """
    policy = policy or Policy()
    found = _entry_points()
    wanted, blocked = _selection(select, set(found), policy)
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    plugins = Plugins(Catalog(policy.prefer, policy.known_parts()), manager)
    for name, points in sorted(found.items()):
        source = ", ".join(point.dist.name if point.dist else "?" for point in points)
        version = ", ".join(point.dist.version if point.dist else "?" for point in points)
        if name in blocked or (wanted is not None and name not in wanted):
            plugins.reports.append(PluginReport(name, "blocked", source, version, blocked.get(name, "not selected")))
        elif len(points) > 1:
            reason = "more than one distribution has an entry point of this name"
            plugins.reports.append(PluginReport(name, "clash", source, version, reason))
            plugins.catalog.notes.append(f'plugin "{name}" is not loaded: {source} all use this name')
        else:
            plugins.load(name, source, version, points[0].load)
    for path in files:
        plugins.load_file(path)
    return plugins


def _entry_points() -> dict[str, list[importlib.metadata.EntryPoint]]:
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        same = found.setdefault(point.name, [])
        if all((p.value, p.dist and p.dist.name) != (point.value, point.dist and point.dist.name) for p in same):
            same.append(point)
    return found


def _selection(select: Sequence[str] | None, known: set[str], policy: Policy) -> tuple[set[str] | None, dict[str, str]]:
    """Return the plugins to load (None: all), and the blocked ones with the reason."""
    origin = "-p"
    if select is None:
        origin, given = "DITHER_PLUGINS", os.environ.get("DITHER_PLUGINS")
        select = [] if given is None else [name.strip() for name in given.split(",")]
    blocked = {name: "registry.toml" for name in policy.block}
    blocked |= {name.removeprefix("no:"): f"{origin} {name}" for name in select if name.startswith("no:")}
    wanted = {name for name in select if not name.startswith("no:")}
    problems = []
    for name in sorted((wanted | set(blocked)) - known - {""} - set(policy.block)):
        close = nearest(name, known)
        hint = f'did you mean "{close}"? ' if close else ""
        problems.append(
            Problem(f'{origin}: no plugin is named "{name}"', help=f"{hint}installed: {', '.join(sorted(known))}")
        )
    if problems:
        raise Refused(problems)
    return (wanted if wanted else None), blocked
