"""Plugins: known by their menus, each imported only when it is used, guarded, as a whole or not at all, and reported.

pluggy's own loader imports everything at once, lets one broken plugin stop every command, and drops a second plugin of
the same name without a word; this one does none of it.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pluggy

from ..config.errors import Refused, nearest
from ..hookspecs import CHECK, PROJECT, REGISTRATION, RUN_HOOKS, Hooks
from ..spec.misfit import Misfit, misfits_of
from .catalog import Catalog
from .discovery import Installed, installed_plugins
from .manifest import Menu
from .manifest_cache import menus_of
from .policy import Policy, is_called
from .selection import STRICT, misnamed, required_plugins, select_plugins, version_of
from .status import PluginError, PluginStatus, describe_exception, refuse_failures

__all__ = ["Plugins", "call_hook", "default_catalog", "load_plugins", "require_hooks"]


class Plugins:
    """The plugins of one session: the hooks, the catalogue, and what became of each.

    Attributes:
        catalog: The parts of all plugins that may be used; naming one imports its plugin.
        manager: The plugins that are imported.
        policy: What registry.toml says.
        asked: The installed plugins that were asked for by name.
        warn: Called with one line where a run hook failed and the policy is to go on.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.catalog = Catalog(self.policy.prefer, self.policy.known_parts())
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(Hooks)
        self.warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr)  # noqa: T201
        self.asked: list[str] = []
        self._reports: dict[str, PluginStatus] = {}
        self._points: dict[str, importlib.metadata.EntryPoint] = {}
        self._quiet: set[str] = set()

    @property
    def reports(self) -> list[PluginStatus]:
        """What became of each plugin."""
        return list(self._reports.values())

    @property
    def files(self) -> dict[Path, PluginStatus]:
        """The one-file plugins by where they lie."""
        return {Path(report.source).resolve(): report for report in self.reports if report.sha256}

    @property
    def active(self) -> list[PluginStatus]:
        """The plugins that are imported here: those of which a part was used, and those that were asked for."""
        return [report for report in self.reports if report.active]

    def register(self, name: str, plugin: Any) -> None:
        """Take in a plugin object, as a whole or not at all.

        Raises:
            ValueError: What it offers is not right; TypeError, pluggy errors: its hooks are not right.
        """
        try:
            self.manager.register(plugin, name)
            require_hooks(self.manager, plugin)
            for caller in self.manager.get_hookcallers(plugin) or []:
                if caller.name == REGISTRATION:
                    (impl,) = (impl for impl in caller.get_hookimpls() if impl.plugin is plugin)
                    offered: Any = impl.function()
                    self.catalog.add(name, offered)
        except BaseException:
            if self.manager.get_plugin(name) is plugin:
                self.manager.unregister(plugin)
            raise
        menu = self.menu(name)
        before = self._reports.get(name, PluginStatus(name, "loaded", type(plugin).__name__))
        self._reports[name] = replace(before, hooks=menu.hooks, parts=len(menu.offers), active=True)

    def menu(self, name: str) -> Menu:
        """Return what a registered plugin offers."""
        callers = self.manager.get_hookcallers(self.manager.get_plugin(name)) or []
        offers = tuple(part.offer for part in self.catalog.parts() if part.plugin == name)
        return Menu(offers, tuple(sorted(caller.name for caller in callers)))

    def expect(self, plugin: Installed, menu: Menu) -> None:
        """Take in the menu of an installed plugin, which is imported when one of its parts is used."""
        name = plugin.name
        report = PluginStatus(
            name,
            "failed" if menu.failure else "loaded",
            plugin.distribution,
            plugin.version,
            menu.failure,
            hooks=menu.hooks,
            parts=len(menu.offers),
            imports_torch=menu.imports_torch,
            seconds=menu.seconds,
        )
        self._reports[name] = report
        if menu.failure:
            self.catalog.absent[name] = f"it failed to load, {menu.failure}"
            self.catalog.notes.append(
                f'plugin "{name}" ({report.origin}) failed to load and may offer it ({menu.failure})'
            )
        else:
            self._points[name] = plugin.point
            self.catalog.offer(name, menu.offers, lambda: self.activate(name), version_of(plugin.version))

    def refuse(
        self, name: str, plugins: Sequence[Installed], state: Literal["failed", "blocked", "clash"], reason: str
    ) -> None:
        """Note a plugin that may not be used."""
        source, version = (
            ", ".join(values) for values in zip(*((p.distribution, p.version) for p in plugins), strict=True)
        )
        self._reports[name] = PluginStatus(name, state, source, version, reason)
        self.catalog.absent[name] = f"{state}, {reason}"
        if state != "blocked":
            self.catalog.notes.append(f'plugin "{name}" is not loaded: {reason} ({source})')

    def activate(self, name: str) -> None:
        """Import a plugin into this process, unless that was done.

        Raises:
            Refused: There is none of this name that may be used, or its import fails here.
        """
        report = self._reports.get(name)
        if report is None:
            close = nearest(name, self._reports)
            raise Refused(f'no plugin is named "{name}"' + (f'; did you mean "{close}"?' if close else ""))
        if report.state != "loaded":
            raise Refused(f'plugin "{name}" ({report.origin}) cannot be used: {report.state}, {report.reason}')
        if report.active:
            return
        try:
            with redirect_stdout(sys.stderr):  # standard output is for answers
                self.register(name, self._points[name].load())
        except (Exception, SystemExit) as error:
            self._reports[name] = replace(report, state="failed", reason=describe_exception(error))
            raise Refused(f'plugin "{name}" ({report.origin}) failed to load: {describe_exception(error)}') from error

    def ask(self, name: str) -> None:
        """Import a plugin although no part of it is named, such as one that observes.

        Raises:
            Refused: As `activate`.
        """
        self.activate(name)
        if name not in self.asked:
            self.asked.append(name)

    def load_file(self, path: Path) -> None:
        """Load a one-file plugin; its name is the stem of the file.

        Raises:
            Refused: The file is missing, cannot be called so, or fails at import.
        """
        from .plugin_files import import_file

        name = path.stem.replace("_", "-")
        if not path.is_file():
            raise Refused(f"plugin file {path} does not exist")
        if reason := misnamed(name):
            raise Refused(f"plugin file {path}: {reason}")
        if name in self._reports:
            there = self._reports[name]
            raise Refused(f'plugin file {path} would be called "{name}", as {there.origin} is, which is {there.state}')
        if any(is_called(block, name) for block in self.policy.block):
            raise Refused(f'plugin file {path} would be called "{name}", which registry.toml blocks')
        try:
            with redirect_stdout(sys.stderr):
                module, sha256 = import_file(path)
                self._reports[name] = PluginStatus(name, "loaded", str(path), sha256=sha256)
                self.register(name, module)
        except (Exception, SystemExit) as error:
            self._reports[name] = PluginStatus(name, "failed", str(path), reason=describe_exception(error))
            raise Refused(f"plugin file {path} failed to load: {describe_exception(error)}") from error

    def observe(self) -> None:
        """Import the installed plugins that have run hooks, where registry.toml lets plugins load by themselves.

        Of one that cannot be used nobody knows whether it has any, so each of these is told in one line.

        Raises:
            Refused: The import of one fails.
        """
        for report in self.reports:
            if report.state in ("failed", "clash"):
                self.warn(f'plugin "{report.name}" ({report.origin}) takes no part: {report.state}, {report.reason}')
            if report.state == "loaded" and self.policy.plugins.autoload and set(report.hooks) & RUN_HOOKS:
                self.activate(report.name)

    def require(self) -> None:
        """Import what registry.toml requires.

        Raises:
            Refused: Something required is missing, blocked, broken, or of another version; every one is named.
        """
        names, problems = required_plugins(self.policy, self.reports)
        for name in names:
            try:
                self.activate(name)
            except Refused as refused:
                problems += refused.problems
        if problems:
            raise Refused(problems)

    def called(self, name: str, **arguments: Any) -> Iterable[tuple[str, Any]]:
        """Call a hook plugin by plugin, with only the arguments each asks for; yield (plugin, result).

        Raises:
            PluginError: A plugin raised, and registry.toml does not say to go on without it.
            Refused: A plugin raised it outside a run.
        """
        caller: pluggy.HookCaller = getattr(self.manager.hook, name)
        for impl in reversed(caller.get_hookimpls()):  # as pluggy calls them: first those that are marked tryfirst
            if impl.plugin_name in self._quiet:
                continue
            try:
                result = call_hook(impl, name, arguments)
            except (Exception, SystemExit) as error:
                if isinstance(error, Refused) and name not in RUN_HOOKS:
                    raise
                failed = PluginError(self._reports[impl.plugin_name], name, error)
                if self.policy.plugins.on_observer_error == "raise" or name not in RUN_HOOKS:
                    raise failed from error
                self._quiet.add(impl.plugin_name)
                self.warn(f"{failed}; its hooks are not called again in this run")
            else:
                yield impl.plugin_name, result


def load_plugins(
    select: Sequence[str] | None = None,
    files: Iterable[Path] = (),
    policy: Policy | None = None,
    fresh: bool = False,
    named: Collection[str] = (),
) -> Plugins:
    """Find the installed plugins and what each offers, and load one-file plugins; nothing else is imported.

    Args:
        select: As after -p: NAME loads a plugin although no part of it is named, `no:NAME` blocks it, and a path that
            ends in .py is a one-file plugin.
        files: One-file plugins to load as well.
        policy: What registry.toml says; by default nothing.
        fresh: Ask every plugin anew what it offers, instead of the cache.
        named: Plugins that the experiment asks for, which may be used though others may not.

    Raises:
        Refused: A selected plugin is not installed, or a file fails; under DITHER_STRICT_PLUGINS=1, any one fails.
    """
    plugins = Plugins(policy)
    found = installed_plugins()
    selection = select_plugins(select or (), found, plugins.policy, named)
    usable: dict[str, Installed] = {}
    modules: dict[str, str] = {}
    for name, points in found.items():
        if name in selection.blocked:
            plugins.refuse(name, points, "blocked", selection.blocked[name])
        elif reason := misnamed(name):
            plugins.refuse(name, points, "failed", reason)
        elif len(points) > 1:
            plugins.refuse(name, points, "clash", "more than one distribution has an entry point of this name")
        elif (first := modules.setdefault(points[0].module, name)) != name:
            plugins.refuse(name, points, "clash", f'plugin "{first}" is the same module, {points[0].module}')
        else:
            usable[name] = points[0]
    menus = menus_of(list(usable.values()), fresh)
    for name, plugin in usable.items():
        plugins.expect(plugin, menus[name])
    if os.environ.get(STRICT, "") not in ("", "0"):
        refuse_failures(plugins.reports)
    for name in selection.asked:
        plugins.ask(name)
    for path in (*selection.files, *files):
        plugins.load_file(path)
    return plugins


def require_hooks(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Look at what is marked in a plugin.

    Raises:
        ValueError: Nothing is, or it is no hook, or a wrapper around the hooks of other plugins.
    """
    known = {hook for hook in vars(Hooks) if not hook.startswith("_")}
    marked = {name: manager.parse_hookimpl_opts(plugin, name) for name in dir(plugin)}
    hooks = {name: options for name, options in marked.items() if options is not None}
    for name, options in hooks.items():
        if (options.get("specname") or name) not in known:
            close = nearest(name, known)
            raise ValueError(f'"{name}" is no hook' + (f', did you mean "{close}"?' if close else ""))
        if options.get("wrapper") or options.get("hookwrapper"):
            raise ValueError(f'"{name}" is a wrapper: each hook is called by itself, so there is nothing to wrap')
    if not hooks:
        raise ValueError("no function is marked with @hookimpl")


def call_hook(impl: pluggy.HookImpl, hook: str, arguments: Mapping[str, Any]) -> Any:
    """Call a hook of one plugin with the arguments it asks for; misfits are listed, for whoever yields them may raise.

    Raises:
        TypeError: It is to yield misfits, and does not; or whatever it raises.
    """
    result: Any = impl.function(*(arguments[argument] for argument in impl.argnames))
    if hook != CHECK:
        return result
    misfits: list[Misfit] = misfits_of(result)
    return misfits


@cache
def default_catalog() -> Catalog:
    """Return the parts of every plugin installed here, loaded once."""
    return load_plugins().catalog
