"""Load plugins, guard their code, and call their hooks.

pluggy's own loader imports all plugins, stops at the first failure, and drops a second one of the
same name silently.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pluggy

from ..config.errors import Problem, Refused, did_you_mean, nearest
from ..hookspecs import CHECK, PROJECT, REGISTRATION, RUN_HOOKS, Hooks
from ..spec.misfit import misfits_of
from .catalog import Catalog
from .discovery import (
    Installed,
    PluginError,
    PluginStatus,
    State,
    describe_exception,
    installed_plugins,
)
from .policy import Policy, is_called, misnamed, required_plugins, select_plugins

__all__ = ["Plugins", "default_catalog", "load_plugins"]

STRICT = "DITHER_STRICT_PLUGINS"
"""Environment variable: reject everything if one plugin cannot be loaded."""
CODES = {"failed": "plugin-failed", "clash": "plugin-conflict", "blocked": "plugin-blocked"}


class Plugins:
    """The plugins of one session: hooks, catalogue and states.

    `requested` are the installed plugins that were requested by name; `warn` is called with one
    line if a run hook failed and the policy is to continue.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.catalog = Catalog(self.policy.prefer, self.policy.known_parts(), self.policy.owners())
        self.catalog.load = self.load
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(Hooks)
        self.warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr)  # noqa: T201
        self.requested: list[str] = []
        self._reports: dict[str, PluginStatus] = {}
        self._pending: dict[str, Installed] = {}
        self._silenced: set[str] = set()

    @property
    def reports(self) -> list[PluginStatus]:
        return list(self._reports.values())

    @property
    def files(self) -> dict[Path, PluginStatus]:
        return {Path(report.source).resolve(): report for report in self.reports if report.sha256}

    @property
    def active(self) -> list[PluginStatus]:
        """The active plugins: one of their components is used, or they were requested, or they observe the run."""
        return [report for report in self.reports if report.name in self.catalog.used]

    def register(self, name: str, plugin: Any) -> None:
        """Register a plugin object, as a whole or not at all; raise ValueError or TypeError if it is invalid."""
        self._register(name, plugin)
        self.catalog.used.add(name)

    def _register(self, name: str, plugin: Any) -> None:
        try:
            self.manager.register(plugin, name)
            _require_hooks(self.manager, plugin)
            callers = self.manager.get_hookcallers(plugin) or []
            for caller in callers:
                if caller.name == REGISTRATION:
                    (impl,) = (impl for impl in caller.get_hookimpls() if impl.plugin is plugin)
                    offered: Any = impl.function()
                    self.catalog.add(name, offered)
        except BaseException:
            if self.manager.get_plugin(name) is plugin:
                self.manager.unregister(plugin)
            raise
        before = self._reports.get(name) or PluginStatus(name, "loaded", type(plugin).__name__)
        hooks = tuple(sorted(caller.name for caller in callers))
        self._reports[name] = replace(
            before, state="loaded", hooks=hooks, parts=self.catalog.count(name)
        )

    def note(self, plugins: Sequence[Installed], state: State, reason: str = "") -> None:
        """Note an installed plugin, or several of one name, and whether it may be used."""
        sources = sorted((plugin.distribution, plugin.version) for plugin in plugins)
        source, version = (", ".join(words) for words in zip(*sources, strict=True))
        report = PluginStatus(plugins[0].name, state, source, version, reason)
        if state == "available":
            self._reports[report.name] = report
            self._pending[report.name] = plugins[0]
        else:
            self._fail(report)

    def _fail(self, report: PluginStatus) -> None:
        self._reports[report.name] = report
        self.catalog.unavailable[report.name] = f"{report.state}, {report.reason}"
        if report.state != "blocked":
            text = f'plugin "{report.name}" ({report.origin}) may register it, but is not loaded: {report.reason}'
            self.catalog.notes.append(text)

    def load(self, name: str | None = None) -> None:
        """Import an installed plugin, or all, unless that was done; `reports` records failures."""
        for each in [name] if name is not None else list(self._pending):
            if each in self._pending:
                self._import(each, self._pending.pop(each))

    def _import(self, name: str, plugin: Installed) -> None:
        began = time.perf_counter()
        torch_before = "torch" in sys.modules
        try:
            with redirect_stdout(sys.stderr):  # stdout is for results
                self._register(name, plugin.point.load())
        except (Exception, SystemExit) as error:
            self._fail(
                replace(self._reports[name], state="failed", reason=describe_exception(error))
            )
        except BaseException:  # interrupted: the next use tries again
            self._pending[name] = plugin
            raise
        imports_torch = not torch_before and "torch" in sys.modules
        seconds = time.perf_counter() - began
        self._reports[name] = replace(
            self._reports[name], imports_torch=imports_torch, seconds=seconds
        )

    def request(self, name: str) -> None:
        """Load a plugin although none of its components is named; raise `Refused` if it cannot be used."""
        self._activate(name)
        if name not in self.requested:
            self.requested.append(name)

    def _activate(self, name: str) -> None:
        self.load(name)
        report = self._reports.get(name)
        if report is None:
            known = f"installed: {', '.join(self._reports)}; install the package of another, or give its file: ./x.py"
            hint = did_you_mean(name, self._reports, known)
            raise Refused(Problem(f'unknown plugin "{name}"', help=hint, code="unknown-plugin"))
        if report.state != "loaded":
            text = (
                f'plugin "{name}" ({report.origin}) cannot be used: {report.state}, {report.reason}'
            )
            raise Refused(text, code=CODES[report.state])
        self.catalog.used.add(name)

    def load_file(self, path: Path) -> None:
        """Load a one-file plugin; raise `Refused` if its name, the stem, is invalid or taken, or it fails."""
        from .plugin_files import import_file

        name = path.stem.replace("_", "-")
        if not path.is_file():
            raise Refused(f"plugin file {path} does not exist", code="file-not-found")
        if reason := misnamed(name):
            raise Refused(f"plugin file {path}: {reason}", code="invalid-value")
        if there := self._reports.get(name):
            text = f'plugin file {path} has the name "{name}" of {there.origin}, which is {there.state}'
            raise Refused(text, code="plugin-conflict")
        if any(is_called(block, name) for block in self.policy.plugins.block):
            raise Refused(
                f'plugin file {path}: registry.toml blocks "{name}"', code="plugin-blocked"
            )
        try:
            with redirect_stdout(sys.stderr):
                module, sha256 = import_file(path)
                self._reports[name] = PluginStatus(name, "loaded", str(path), sha256=sha256)
                self.register(name, module)
        except (Exception, SystemExit) as error:
            self._reports[name] = PluginStatus(
                name, "failed", str(path), reason=describe_exception(error)
            )
            text = f"plugin file {path} failed to load: {describe_exception(error)}"
            raise Refused(text, code="plugin-failed") from error

    def observe(self) -> None:
        """Load all installed plugins, let those with run hooks observe under autoload; warn of failed ones."""
        self.load()
        for report in self.reports:
            if report.state in ("failed", "clash"):
                self.warn(
                    f'plugin "{report.name}" ({report.origin}) takes no part: {report.state}, {report.reason}'
                )
            elif self.policy.plugins.autoload and set(report.hooks) & RUN_HOOKS:
                self.catalog.used.add(report.name)

    def require(self) -> None:
        """Load the plugins that registry.toml requires; raise `Refused` with a problem for each that cannot be used."""
        names, problems = required_plugins(self.policy, self.reports)
        for name in names:
            try:
                self._activate(name)
            except Refused as refused:
                problems += refused.problems
        if problems:
            raise Refused(problems)

    def call_each(
        self, name: str, *, yield_errors: bool = False, **arguments: Any
    ) -> Iterable[tuple[str, Any]]:
        """Call a hook of the active plugins, one by one, each with the arguments it takes; yield (plugin, result).

        A plugin that raises is a PluginError: raised, yielded as its result with `yield_errors`, or
        a warning if it observes a run and registry.toml says to continue. Outside a run, a
        `Refused` is raised as it is.
        """
        caller: pluggy.HookCaller = getattr(self.manager.hook, name)
        for impl in reversed(
            caller.get_hookimpls()
        ):  # the order of pluggy, which starts with tryfirst
            if impl.plugin_name in self._silenced or impl.plugin_name not in self.catalog.used:
                continue
            try:
                result: Any = impl.function(*(arguments[argument] for argument in impl.argnames))
                result = (
                    misfits_of(result) if name == CHECK else result
                )  # a check may raise while it yields
            except (Exception, SystemExit) as error:
                failed = PluginError(self._reports[impl.plugin_name], name, error)
                if yield_errors:
                    yield impl.plugin_name, failed
                    continue
                if isinstance(error, Refused) and name not in RUN_HOOKS:
                    raise
                if self.policy.plugins.on_observer_error == "raise" or name not in RUN_HOOKS:
                    raise failed from error
                self._silenced.add(impl.plugin_name)
                self.warn(f"{failed}; its hooks are not called again in this run")
            else:
                yield impl.plugin_name, result


def load_plugins(
    select: Sequence[str] | None = None,
    files: Iterable[Path] = (),
    policy: Policy | None = None,
    named: Collection[str] = (),
    lazy: bool = False,
) -> Plugins:
    """Find the installed plugins, import those that the policy allows, and load one-file plugins.

    `select` has values of -p (NAME, `no:NAME`, or a path that ends in .py); `named` are plugins
    that the experiment requests. With `lazy`, a plugin is imported when the catalogue needs it.
    Raises `Refused` if a selected plugin is not installed, a file fails, or under
    DITHER_STRICT_PLUGINS=1 any plugin fails.
    """
    plugins = Plugins(policy)
    found = installed_plugins()
    blocked, requested, selected = select_plugins(select or (), found, plugins.policy, named)
    for name, points in found.items():
        if name in blocked:
            plugins.note(points, "blocked", blocked[name])
        elif reason := misnamed(name) or points[0].failure:
            plugins.note(points, "failed", reason)
        elif len(points) > 1:
            plugins.note(
                points, "clash", "more than one distribution has an entry point of this name"
            )
        else:
            plugins.note(points, "available")
    strict = os.environ.get(STRICT, "") not in ("", "0")
    if strict or not lazy:
        plugins.load()
    failed = [report for report in plugins.reports if report.state in ("failed", "clash")]
    if strict and failed:
        raise Refused(
            [
                Problem(f'plugin "{r.name}" ({r.origin}): {r.reason}', code=CODES[r.state])
                for r in failed
            ]
        )
    for name in requested:
        plugins.request(name)
    for path in (*selected, *files):
        plugins.load_file(path)
    return plugins


def _require_hooks(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Raise ValueError if a plugin implements no hook, an unknown one, or a wrapper around the hooks of others."""
    known = {hook for hook in vars(Hooks) if not hook.startswith("_")}
    marked = {name: manager.parse_hookimpl_opts(plugin, name) for name in dir(plugin)}
    hooks = {name: options for name, options in marked.items() if options is not None}
    for name, options in hooks.items():
        if (options.get("specname") or name) not in known:
            close = nearest(name, known)
            raise ValueError(
                f'unknown hook "{name}"' + (f', did you mean "{close}"?' if close else "")
            )
        if options.get("wrapper") or options.get("hookwrapper"):
            raise ValueError(
                f'"{name}" is a wrapper; hooks are called one by one, so there is nothing to wrap'
            )
    if not hooks:
        raise ValueError("no function is marked with @hookimpl")


@cache
def default_catalog() -> Catalog:
    """Return the components of every installed plugin, loaded once."""
    return load_plugins().catalog
