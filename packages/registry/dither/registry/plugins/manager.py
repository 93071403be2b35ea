"""Load plugins, guard their code, and call their hooks.

pluggy's own loader imports all plugins, stops at the first failure, and drops a second one of the
same name silently.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pluggy

from ..config.errors import Problem, Refused, did_you_mean
from ..files.lookup import is_file
from ..hookspecs import CHECK, PROJECT, REGISTRATION, RUN_HOOKS, Hooks
from ..spec.misfit import misfits_of
from ..spec.process_settings import protected_settings, restored_settings
from .catalog import Catalog
from .discovery import Installed, import_file, installed_plugins, invalid_name
from .index import indexed_plugin, provider_of
from .policy import Policy, required_plugins
from .status import (
    PluginError,
    PluginStatus,
    State,
    describe_exception,
    is_interruption,
)

__all__ = ["ALLOWED", "Plugins", "default_catalog", "load_plugins"]

ALLOWED = "DITHER_PLUGINS"
"""Environment variable: the only plugins that may be used, separated by commas; empty for none."""
CODES = {
    "failed": "plugin-failed",
    "clash": "plugin-conflict",
    "blocked": "plugin-blocked",
}


class Plugins:
    """The plugins of one session: hooks, catalogue and states.

    Attributes:
        policy: The content of registry.toml.
        catalog: The components of the plugins that are loaded; it loads others as it needs them.
        manager: The hooks.
        requested: Installed plugins that were requested by name.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.catalog = Catalog(self.policy.owners())
        # The catalogue imports an owner when a name is looked up, without knowing entry points.
        self.catalog.load = self.load
        self.catalog.provider = self._provider
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(Hooks)
        self.requested: list[str] = []
        self._statuses: dict[str, PluginStatus] = {}
        self._pending: dict[str, Installed] = {}

    @property
    def reports(self) -> list[PluginStatus]:
        """The states of all plugins."""
        return list(self._statuses.values())

    @property
    def files(self) -> dict[Path, PluginStatus]:
        """The one-file plugins, by path."""
        return {
            Path(status.source).resolve(): status
            for status in self.reports
            if status.sha256
        }

    @property
    def active(self) -> list[PluginStatus]:
        """The plugins of which a component is used, that were requested, or that observe a run."""
        return [status for status in self.reports if status.name in self.catalog.used]

    def _provider(self, kind: str, name: str) -> str:
        """Return who has an unknown component: the project says it, or else the index does."""
        if suggestion := self.policy.suggestion(kind, name):
            return suggestion
        owners = list(self.catalog.owners.get(f"{kind}:{name}", ()))
        entry = provider_of(kind, name)
        if entry is not None:
            owners.append(entry.plugin)
        for owner in owners:
            status = self._statuses.get(owner)
            if status is not None and status.state != "loaded":
                reason = status.reason or "not imported"
                return f'plugin "{owner}", which is {status.state}: {reason}'
        if entry is not None:
            return f"{entry.title}: dither install {entry.distribution}"
        if owners:
            return f'plugin "{owners[0]}", which is not installed'
        return ""

    def register(self, name: str, plugin: Any) -> None:
        """Register a plugin object, as a whole or not at all.

        Raises ValueError or TypeError if it is invalid.
        """
        self._register(name, plugin)
        self.catalog.used.add(name)

    def _register(self, name: str, plugin: Any) -> None:
        try:
            self.manager.register(plugin, name)
            _check_hooks(self.manager, plugin)
            callers = self.manager.get_hookcallers(plugin) or []
            for caller in callers:
                if caller.name == REGISTRATION:
                    impls = caller.get_hookimpls()
                    # Only this plugin: the hook itself would call all plugins that are registered.
                    (impl,) = (impl for impl in impls if impl.plugin is plugin)
                    specs: Any = impl.function()
                    self.catalog.add(name, specs)
        except BaseException:
            # Hooks of half a plugin must not be called.
            if self.manager.get_plugin(name) is plugin:
                self.manager.unregister(plugin)
            raise
        # A plugin object of a test has no status yet.
        before = self._statuses.get(name) or PluginStatus(
            name, "loaded", type(plugin).__name__
        )
        self._statuses[name] = replace(
            before,
            state="loaded",
            hooks=tuple(sorted(caller.name for caller in callers)),
            parts=self.catalog.count(name),
        )

    def add_installed(
        self, plugins: Sequence[Installed], state: State = "available", reason: str = ""
    ) -> None:
        """Add an installed plugin, or several of one name, without importing it."""
        sources = sorted((plugin.distribution, plugin.version) for plugin in plugins)
        status = PluginStatus(
            name=plugins[0].name,
            state=state,
            source=", ".join(distribution for distribution, _ in sources),
            version=", ".join(version for _, version in sources),
            reason=reason,
        )
        if state == "available":
            self._statuses[status.name] = status
            self._pending[status.name] = plugins[0]
        else:
            self._set_unusable(status)

    def _set_unusable(self, status: PluginStatus) -> None:
        self._statuses[status.name] = status
        # The policy blocks this plugin on purpose, so there is nothing to report.
        if status.state != "blocked":
            plugin = f'plugin "{status.name}" ({status.origin})'
            note = f"{plugin} may register it, but is not loaded: {status.reason}"
            self.catalog.notes.append(note)

    def load(self, name: str | None = None) -> None:
        """Import an installed plugin, or all, unless that was done; `reports` has the failures."""
        names = list(self._pending)
        if name is not None:
            names = [name]
        for pending in names:
            if pending in self._pending:
                self._import(pending, self._pending[pending])
                # Only now: after an interrupt the next use tries again.
                del self._pending[pending]

    def _import(self, name: str, plugin: Installed) -> None:
        began = time.perf_counter()
        torch_before = "torch" in sys.modules
        changes: list[str] = []
        try:
            # stdout is for results.
            with redirect_stdout(sys.stderr), restored_settings() as changes:
                self._register(name, plugin.point.load())
        # A broken plugin does not end the command, even if it calls sys.exit.
        except BaseException as error:
            if is_interruption(error):
                raise
            reason = describe_exception(error)
            self._set_unusable(
                replace(self._statuses[name], state="failed", reason=reason)
            )
        self._statuses[name] = replace(
            self._statuses[name],
            imports_torch=not torch_before and "torch" in sys.modules,
            seconds=time.perf_counter() - began,
            changes=tuple(changes),
        )

    def request(self, name: str) -> None:
        """Load a plugin although none of its components is named, or raise `Refused`."""
        self._activate(name)
        if name not in self.requested:
            self.requested.append(name)

    def _activate(self, name: str) -> None:
        self.load(name)
        status = self._statuses.get(name)
        if status is None:
            installed = ", ".join(self._statuses)
            advice = (
                f"installed: {installed}; install its package, or give its file: ./x.py"
            )
            hint = did_you_mean(name, self._statuses, advice)
            if entry := indexed_plugin(name):
                hint = f"dither install {entry.distribution}"
            raise Refused(f'unknown plugin "{name}"', help=hint, code="unknown-plugin")
        # A request is explicit, so a plugin that is blocked or broken is an error.
        if status.state != "loaded":
            reason = f"cannot be used: {status.state}, {status.reason}"
            raise Refused(
                f'plugin "{name}" ({status.origin}) {reason}', code=CODES[status.state]
            )
        self.catalog.used.add(name)

    def load_file(self, path: Path) -> None:
        """Load a one-file plugin; its name is the stem of the file.

        Raises `Refused` if the name is invalid, taken or blocked, or the plugin fails.
        """
        name = path.stem.replace("_", "-")
        if not is_file(path):
            raise Refused(f"plugin file {path} does not exist", code="file-not-found")
        if reason := invalid_name(name):
            raise Refused(f"plugin file {path}: {reason}", code="invalid-value")
        # It would replace the components of the other one.
        if other := self._statuses.get(name):
            taken = f'the name "{name}" of {other.origin}, which is {other.state}'
            raise Refused(f"plugin file {path} has {taken}", code="plugin-conflict")
        if self.policy.blocks(name):
            text = f'plugin file {path}: registry.toml blocks "{name}"'
            raise Refused(text, code="plugin-blocked")
        try:
            # stdout is for results.
            with redirect_stdout(sys.stderr), restored_settings() as changes:
                module, sha256 = import_file(path)
                self._statuses[name] = PluginStatus(
                    name, "loaded", str(path), sha256=sha256
                )
                self.register(name, module)
            self._statuses[name] = replace(self._statuses[name], changes=tuple(changes))
        except BaseException as error:
            if is_interruption(error):
                raise
            reason = describe_exception(error)
            self._statuses[name] = PluginStatus(
                name, "failed", str(path), reason=reason
            )
            text = f"plugin file {path} failed to load: {reason}"
            raise Refused(text, code="plugin-failed") from error

    def observe(self) -> list[str]:
        """Load all installed plugins for a run; those with run hooks take part.

        Returns a warning for each that cannot.
        """
        # Which plugins have run hooks is known only after their import.
        self.load()
        warnings = []
        for status in self.reports:
            if status.state in ("failed", "clash"):
                reason = f"takes no part: {status.state}, {status.reason}"
                warnings.append(f'plugin "{status.name}" ({status.origin}) {reason}')
            elif not RUN_HOOKS.isdisjoint(status.hooks):
                self.catalog.used.add(status.name)
            if status.changes:
                changes = (
                    f"changed settings of the process: {', '.join(status.changes)}"
                )
                plugin = f'plugin "{status.name}" ({status.origin})'
                warnings.append(f"{plugin} {changes}; they were restored")
        return warnings

    def require(self) -> None:
        """Load the plugins that registry.toml requires.

        Raises `Refused` with a problem for each that cannot be used.
        """
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
        """Call a hook of the active plugins one by one; yield (plugin, result).

        A plugin that raises is a PluginError, raised or, with `yield_errors`, yielded as its
        result. Outside a run, a `Refused` is raised as it is.
        """
        caller: pluggy.HookCaller = getattr(self.manager.hook, name)
        # The order of pluggy, which starts with tryfirst.
        for impl in reversed(caller.get_hookimpls()):
            if impl.plugin_name not in self.catalog.used:
                continue
            try:
                # Each plugin gets its own tables, so that none can change those of the run.
                values = (_copied(arguments[argument]) for argument in impl.argnames)
                with protected_settings(f'{name} of plugin "{impl.plugin_name}"'):
                    result: Any = impl.function(*values)
                    # A check may raise while it yields.
                    if name == CHECK:
                        result = misfits_of(result)
            except BaseException as error:
                if is_interruption(error):
                    raise
                failed = PluginError(self._statuses[impl.plugin_name], name, error)
                if yield_errors:
                    yield impl.plugin_name, failed
                    continue
                # A refusal is the answer of a check; during a run it is a failure like others.
                if isinstance(error, Refused) and name not in RUN_HOOKS:
                    raise
                raise failed from error
            yield impl.plugin_name, result


def _copied(value: Any) -> Any:
    """Return a table or list with copies of those inside it; any other value as it is."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value


def load_plugins(
    select: Sequence[str] | None = None,
    files: Iterable[Path] = (),
    policy: Policy | None = None,
    named: Collection[str] = (),
    lazy: bool = False,
) -> Plugins:
    """Find the installed plugins, import those that may be used, and load one-file plugins.

    Args:
        select: Values of -p: NAME, `no:NAME`, or a path that ends in .py.
        files: Further one-file plugins.
        policy: The content of registry.toml.
        named: Plugins that the experiment requests.
        lazy: Import a plugin when the catalogue needs it.

    Raises:
        Refused: A selected plugin is not installed or blocked, or a file fails.
    """
    select = select or ()
    plugins = Plugins(policy)
    installed = installed_plugins()
    names = [value for value in select if not value.endswith(".py")]
    requested = [name for name in names if not name.startswith("no:")]
    excluded = [name.removeprefix("no:") for name in names if name.startswith("no:")]
    _check_installed("-p", [*requested, *excluded], installed)

    blocked = _blocked(installed, plugins.policy, {*requested, *named}, excluded)
    for name, points in installed.items():
        if name in blocked:
            plugins.add_installed(points, "blocked", blocked[name])
        elif reason := invalid_name(name):
            plugins.add_installed(points, "failed", reason)
        elif len(points) > 1:
            reason = "more than one distribution has an entry point of this name"
            plugins.add_installed(points, "clash", reason)
        else:
            plugins.add_installed(points)

    # A file is loaded last, so that it can refer to components of installed plugins.
    if not lazy:
        plugins.load()
    for name in requested:
        plugins.request(name)
    for path in (*(Path(value) for value in select if value.endswith(".py")), *files):
        plugins.load_file(path)
    return plugins


def _blocked(
    installed: Mapping[str, Sequence[Installed]],
    policy: Policy,
    requested: Collection[str],
    excluded: Collection[str],
) -> dict[str, str]:
    """Return the plugins that must not be imported, each with the rule that blocks it."""
    variable = os.environ.get(ALLOWED)
    allowed: Collection[str] = installed
    if variable is not None:
        allowed = [name.strip() for name in variable.split(",") if name.strip()]
        _check_installed(ALLOWED, allowed, installed)

    blocked = {}
    for name, points in installed.items():
        if policy.blocks(name, *(point.distribution for point in points)):
            blocked[name] = "registry.toml"
        elif name in excluded:
            blocked[name] = f"-p no:{name}"
        # What the command line or the experiment names explicitly is used.
        elif name not in allowed and name not in requested:
            blocked[name] = f"not in {ALLOWED}"
    return blocked


def _check_installed(
    source: str, names: Collection[str], installed: Collection[str]
) -> None:
    problems = []
    for name in sorted(set(names) - set(installed)):
        close = did_you_mean(name, installed, "")
        hint = f"{close} installed: {', '.join(sorted(installed)) or 'none'}".lstrip()
        if entry := indexed_plugin(name):
            hint = f"dither install {entry.distribution}"
        problem = Problem(
            f'{source}: unknown plugin "{name}"', help=hint, code="unknown-plugin"
        )
        problems.append(problem)
    if problems:
        raise Refused(problems)


def _check_hooks(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Raise ValueError for a plugin without hooks, with an unknown one, or with a wrapper."""
    known = {hook for hook in vars(Hooks) if not hook.startswith("_")}
    is_marked = False
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            continue
        is_marked = True
        if (options.get("specname") or name) not in known:
            hint = did_you_mean(name, known, "")
            raise ValueError(f'unknown hook "{name}"; {hint}'.removesuffix("; "))
        if options.get("wrapper") or options.get("hookwrapper"):
            reason = "hooks are called one by one, so there is nothing to wrap"
            raise ValueError(f'"{name}" is a wrapper; {reason}')
    if not is_marked:
        raise ValueError("no function is marked with @hookimpl")


@cache
def default_catalog() -> Catalog:
    """Return the components of every installed plugin, loaded once."""
    return load_plugins().catalog
