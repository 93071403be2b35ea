"""registry.toml: plugins that are blocked or required, and the components of each package.

    [plugins]
    block = ["experimental"]
    require = ["wavelet>=0.2"]

    [known.wavelet]
    provides = ["block:wavelet"]
    install = "pip install dither-wavelet"

    [components.processes]          # written by `dither registry sync`
    process = ["absorbing", "uniform"]

The tables of components say which plugin provides a name, so that an experiment imports only the
plugins it uses, and a newly installed one cannot take over a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from ..config.errors import Problem, Refused, nearest
from ..files.atomic import atomic_write
from ..kinds import KINDS
from ..spec.base import Options
from .status import PluginStatus

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from .manager import Plugins

__all__ = [
    "Known",
    "PluginPolicy",
    "Policy",
    "check_components",
    "find_policy",
    "is_called",
    "policy_file",
    "read_policy",
    "required_plugins",
    "sync_components",
]

NAME = "registry.toml"
OUTDATED = "registry-outdated"
SYNC = "dither registry sync"
Components = dict[str, dict[str, list[str]]]
"""Names of components by plugin and kind."""


class Known(Options):
    """A plugin to suggest although it is not installed."""

    provides: list[str] = []
    """Components as `kind:name`."""
    install: str
    """The command that installs it."""


class PluginPolicy(Options):
    """Which plugins may be loaded."""

    block: list[str] = []
    """Plugins that are never imported, by their own or their distribution's name."""
    require: list[str] = []
    """Plugins that must be installed, by their own or their distribution's name, with versions:
    `wavelet>=0.2`."""

    @field_validator("require")
    @classmethod
    def _requirements(cls, value: list[str]) -> list[str]:
        # The import takes 15 ms.
        if not value:
            return value
        from packaging.requirements import InvalidRequirement, Requirement

        for text in value:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                requirement = None
            if requirement is None or requirement.url or requirement.extras or requirement.marker:
                hint = 'write a name with versions, as in "wavelet>=0.2"'
                raise ValueError(f'"{text}" is not a requirement; {hint}')
        return value


class Policy(Options):
    """The content of registry.toml."""

    plugins: PluginPolicy = Field(default_factory=PluginPolicy)
    known: dict[str, Known] = {}
    """Plugins by name that may be missing."""
    components: Components = {}
    """Names of components by plugin and kind, written by `dither registry sync`."""

    @property
    def require(self) -> list[Requirement]:
        """Plugins that must be installed."""
        if not self.plugins.require:
            return []
        from packaging.requirements import Requirement

        return [Requirement(text) for text in self.plugins.require]

    def blocks(self, *names: str) -> bool:
        """Return whether a plugin with one of these names is never imported."""
        return any(is_called(blocked, *names) for blocked in self.plugins.block)

    def owners(self) -> dict[str, list[str]]:
        """Return `{"kind:name": plugins}` of the listed components."""
        owners: dict[str, list[str]] = {}
        for plugin, kind, name in _rows(self.components):
            owners.setdefault(f"{kind}:{name}", []).append(plugin)
        return owners

    def known_components(self) -> dict[str, str]:
        """Return `{"kind:name": how to get the plugin that provides it}`."""
        components = {}
        for plugin, kind, name in _rows(self.components):
            where = f'plugin "{plugin}", which is not loaded here (dither plugins shows why)'
            components[f"{kind}:{name}"] = where
        for plugin, known in self.known.items():
            for component in known.provides:
                components[component] = f'plugin "{plugin}": {known.install}'
        return components


def _rows(components: Components) -> Iterator[tuple[str, str, str]]:
    for plugin, kinds in components.items():
        for kind, names in kinds.items():
            for name in names:
                yield plugin, kind, name


def policy_file(start: Path) -> Path | None:
    """Return the nearest registry.toml in or above a folder, if there is one."""
    folder = start.resolve()
    for above in (folder, *folder.parents):
        if (above / NAME).is_file():
            return above / NAME
    return None


def read_policy(path: Path) -> Policy:
    """Read a registry.toml; raise `Refused` with one problem for each mistake, with its line."""
    from ..config.document import Document
    from ..config.validation import validate

    return validate(Policy, Document.load(path))


def find_policy(start: Path) -> Policy:
    """Read the nearest registry.toml in or above a folder; without one, everything is allowed."""
    path = policy_file(start)
    return Policy() if path is None else read_policy(path)


def is_called(name: str, *names: str) -> bool:
    """Return whether a name is one of `names` after normalisation (case, `-`, `_`, `.`)."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(name) in map(canonicalize_name, names)


def required_plugins(
    policy: Policy, statuses: Sequence[PluginStatus]
) -> tuple[list[str], list[Problem]]:
    """Return the plugins that registry.toml requires, and a problem for each unmet requirement."""
    names: list[str] = []
    problems = []
    for requirement in policy.require:
        installed = [s for s in statuses if is_called(requirement.name, s.name, s.source)]
        suitable = [status.name for status in installed if _meets(status, requirement)]
        if not suitable:
            reason = "which is not installed"
            if installed:
                reason = f"but {installed[0].origin} is installed"
            text = f'registry.toml requires "{requirement}", {reason}'
            problems.append(Problem(text, code="unknown-plugin"))
        names += suitable
    return names, problems


def _meets(status: PluginStatus, requirement: Requirement) -> bool:
    # Loading one in another state raises with its reason, which says more than a version.
    if status.state not in ("available", "loaded"):
        return True
    return requirement.specifier.contains(status.version or "0", prereleases=True)


def check_components(policy: Policy, plugins: Plugins) -> list[Problem]:
    """Return every difference between the tables of components and the plugins they list."""
    listed = set(_rows(policy.components))
    registered = set(_rows(_registered(plugins)))
    if listed:
        # A plugin that only some machines have is not in the file, and no difference.
        registered = {row for row in registered if row[0] in policy.components}
    problems = [_missing(row, registered, plugins) for row in sorted(listed - registered)]
    for plugin, kind, name in sorted(registered - listed):
        text = f'{kind} "{name}" of plugin "{plugin}" is not in registry.toml'
        problems.append(Problem(text, help=SYNC, code=OUTDATED))
    return problems


def _missing(
    row: tuple[str, str, str], registered: set[tuple[str, str, str]], plugins: Plugins
) -> Problem:
    plugin, kind, name = row
    states = {status.name: status.state for status in plugins.reports}
    state = states.get(plugin, "not installed")
    hint = SYNC
    if state == "loaded":
        reason = "does not register it"
        others = [other for owner, k, other in registered if (owner, k) == (plugin, kind)]
        if close := nearest(name, others):
            reason += f'; did you mean "{close}"?'
    else:
        reason = f"is {state}"
        if state != "not installed":
            hint = "dither plugins shows why"
    text = f'{kind} "{name}" is in registry.toml, but plugin "{plugin}" {reason}'
    return Problem(text, help=hint, code=OUTDATED)


def _registered(plugins: Plugins) -> Components:
    """Return the components of the loaded plugins, each table in the order of `KINDS`."""
    components: Components = {}
    for component in plugins.catalog.parts():
        kinds = components.setdefault(component.plugin, {})
        kinds.setdefault(component.kind, []).append(component.name)
    order = list(KINDS)
    for plugin, kinds in components.items():
        components[plugin] = {kind: kinds[kind] for kind in sorted(kinds, key=order.index)}
    return dict(sorted(components.items()))


def sync_components(path: Path, plugins: Plugins) -> list[str]:
    """Write the tables of components; return a line for each component added or removed.

    Other tables and comments stay as they are, and so do tables of plugins that are blocked or
    failed. Raises `Refused` if the file is invalid or cannot be written.
    """
    import tomlkit

    before = read_policy(path).components if path.exists() else {}
    unusable = {status.name for status in plugins.reports if status.state != "loaded"}
    after = {plugin: kinds for plugin, kinds in before.items() if plugin in unusable}
    after = dict(sorted((after | _registered(plugins)).items()))
    try:
        document = tomlkit.parse(path.read_bytes().decode("utf-8-sig") if path.exists() else "")
        document.pop("components", None)
        sections = [tomlkit.dumps(document).rstrip()]
        if after:
            sections.append(tomlkit.dumps({"components": after}).rstrip())
        text = "\n\n".join(filter(None, sections)) + "\n"
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror}"
        raise Refused(text, code="unreadable-file") from None

    rows_before = set(_rows(before))
    rows_after = set(_rows(after))
    lines = []
    for plugin, kind, name in sorted(rows_before ^ rows_after):
        change = "added" if (plugin, kind, name) in rows_after else "removed"
        lines.append(f"{change} {kind} {plugin}/{name}")
    return lines
