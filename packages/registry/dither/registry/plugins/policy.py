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

from ..config.errors import Problem
from ..files.lookup import is_file
from ..spec.base import Options
from .status import PluginStatus

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = [
    "Components",
    "Known",
    "PluginPolicy",
    "Policy",
    "component_rows",
    "find_policy",
    "is_called",
    "policy_file",
    "read_policy",
    "required_plugins",
]

NAME = "registry.toml"
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
                parts = Requirement(text)
                # Only the name and versions are compared.
                is_plain = not (parts.url or parts.extras or parts.marker)
            except InvalidRequirement:
                is_plain = False
            if not is_plain:
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
        for plugin, kind, name in component_rows(self.components):
            owners.setdefault(f"{kind}:{name}", []).append(plugin)
        return owners

    def suggestion(self, kind: str, name: str) -> str:
        """Return the plugin of [known] that has a component, and how to install it."""
        for plugin, known in self.known.items():
            if f"{kind}:{name}" in known.provides:
                return f'plugin "{plugin}": {known.install}'
        return ""


def component_rows(components: Components) -> Iterator[tuple[str, str, str]]:
    """Yield plugin, kind and name of each component."""
    for plugin, kinds in components.items():
        for kind, names in kinds.items():
            for name in names:
                yield plugin, kind, name


def policy_file(start: Path) -> Path | None:
    """Return the nearest registry.toml in or above a folder, if there is one."""
    folder = start.resolve()
    for above in (folder, *folder.parents):
        if is_file(above / NAME):
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
        installed = [
            s for s in statuses if is_called(requirement.name, s.name, s.source)
        ]
        # Two distributions of one name may have different versions.
        suitable = [status.name for status in installed if _meets(status, requirement)]
        if not suitable:
            reason = "which is not installed"
            if installed:
                reason = f"but {installed[0].origin} is installed"
            text = f'registry.toml requires "{requirement}", {reason}'
            problems.append(Problem(text, code="unknown-plugin"))
        # Several plugins may come from one distribution.
        names += suitable
    return names, problems


def _meets(status: PluginStatus, requirement: Requirement) -> bool:
    # Loading one in another state raises with its reason, which says more than a version.
    if status.state not in ("available", "loaded"):
        return True
    # A requirement of 0.2 accepts 0.3.dev1, which a developer has installed on purpose.
    return requirement.specifier.contains(status.version or "0", prereleases=True)
