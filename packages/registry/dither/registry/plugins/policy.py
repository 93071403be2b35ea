"""Which plugins may be used: registry.toml, environment variables and `-p`, decided before anything is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from ..config.errors import Problem, Refused, did_you_mean
from ..spec.base import Options
from .discovery import Installed, PluginStatus

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = [
    "Entry",
    "PluginPolicy",
    "Policy",
    "find_policy",
    "is_called",
    "misnamed",
    "policy_file",
    "read_policy",
    "required_plugins",
    "select_plugins",
]

ALLOWED = "DITHER_PLUGINS"
"""Environment variable: the only plugins that may be used, separated by commas; empty for none."""
INVALID_NAME = re.compile(r"""[/@"\\,]|^no:|\.py$|^\s|\s$|^$""")
"""Names that a pin, a list of names or -p could not express."""


class Known(Options):
    """A plugin to suggest although it is not installed."""

    provides: list[str] = []
    """Components as `kind:name`."""
    install: str
    """The command that installs it."""


class PluginPolicy(Options):
    """Which plugins may be loaded."""

    autoload: bool = True
    """Whether every installed plugin may be used; if false, only those that are required or
    requested by name."""
    require: list[str] = []
    """Plugins that must be installed, by their own or their distribution's name, with versions:
    `wavelet>=0.2`."""
    block: list[str] = []
    """Plugins that are never imported, by their own or their distribution's name."""
    on_observer_error: Literal["raise", "warn-once"] = "raise"
    """What a run does if a run hook raises: stop, or warn once and continue without that plugin's
    hooks."""

    @field_validator("require")
    @classmethod
    def _requirements(cls, value: list[str]) -> list[str]:
        if not value:  # the import takes 15 ms
            return value
        from packaging.requirements import InvalidRequirement, Requirement

        for text in value:
            try:
                wanted = Requirement(text)
            except InvalidRequirement:
                wanted = None
            if wanted is None or wanted.url or wanted.extras or wanted.marker:
                raise ValueError(
                    f'"{text}" is not a requirement; write a name with versions, as in "wavelet>=0.2"'
                )
        return value


class Entry(Options):
    """One component in the generated catalogue."""

    plugin: str
    """The plugin that registers it."""
    rev: int = Field(ge=1)
    """Its revision."""
    since: str = ""
    """Version of the plugin in which it was first seen."""
    options: str
    """Fingerprint of its options."""


class Policy(Options):
    """The content of registry.toml."""

    plugins: PluginPolicy = Field(default_factory=PluginPolicy)
    prefer: dict[str, str] = {}
    """Which plugin a short name means: `"block:adaln-zero" = "core-blocks"`."""
    known: dict[str, Known] = {}
    """Plugins by name that may be missing."""
    components: dict[str, dict[str, Entry]] = {}
    """The catalogue by kind and name, written by `dither registry sync`."""

    @property
    def require(self) -> list[Requirement]:
        """Plugins that must be installed."""
        if not self.plugins.require:
            return []
        from packaging.requirements import Requirement

        return [Requirement(text) for text in self.plugins.require]

    def owners(self) -> dict[str, str]:
        """Return `{"kind:name": plugin}` for the catalogued names of a single plugin."""
        return {
            f"{k}:{name}": entry.plugin
            for k, names in self.components.items()
            for name, entry in names.items()
        }

    def known_parts(self) -> dict[str, str]:
        """Return `{"kind:name": how to get the plugin that provides it}`."""
        catalogued = {
            key: f'plugin "{plugin}", which is not loaded here (dither plugins shows why)'
            for key, plugin in self.owners().items()
        }
        return catalogued | {
            part: f'plugin "{name}": {known.install}'
            for name, known in self.known.items()
            for part in known.provides
        }


def policy_file(start: Path) -> Path | None:
    """Return the nearest registry.toml in or above a folder, if there is one."""
    folder = start.resolve()
    paths = (above / "registry.toml" for above in (folder, *folder.parents))
    return next((path for path in paths if path.is_file()), None)


def read_policy(path: Path) -> Policy:
    """Read a registry.toml; raise `Refused` with one problem for each mistake, with its line."""
    from ..config.document import Document
    from ..config.validation import validate

    return validate(Policy, Document.load(path))


def find_policy(start: Path) -> Policy:
    """Read the nearest registry.toml in or above a folder; without one, return the policy that allows everything."""
    path = policy_file(start)
    return Policy() if path is None else read_policy(path)


def select_plugins(
    given: Sequence[str],
    found: Mapping[str, Sequence[Installed]],
    policy: Policy,
    named: Collection[str] = (),
) -> tuple[dict[str, str], list[str], list[Path]]:
    """Decide which of the installed plugins may be used; for the arguments see `load_plugins`.

    Returns the plugins that must not be imported, each with the rule that blocks it, and plugins
    and files to load. Raises `Refused` if a name is not that of an installed plugin, or a requested
    plugin is blocked.
    """
    files = [Path(name) for name in given if name.endswith(".py")]
    requested, refused = _split(name for name in given if not name.endswith(".py"))
    listed = os.environ.get(ALLOWED)
    allowed, disallowed = _split(name.strip() for name in (listed or "").split(",") if name.strip())
    problems = _unknown("-p", {*requested, *refused}, found) + _unknown(
        ALLOWED, {*allowed, *disallowed}, found
    )
    if problems:
        raise Refused(problems)
    blocked = dict.fromkeys(disallowed, f"{ALLOWED}={listed}") | {
        name: f"-p no:{name}" for name in refused
    }
    only = None if listed is None or (disallowed and not allowed) else allowed
    for name, points in found.items():
        names = (name, *(point.distribution for point in points))
        if any(is_called(block, *names) for block in policy.plugins.block):
            blocked[name] = "registry.toml"
        elif name in requested or name in named:
            continue
        elif only is not None and name not in only:
            blocked.setdefault(name, f"not in {ALLOWED}")
        elif not policy.plugins.autoload and not any(
            is_called(wanted.name, *names) for wanted in policy.require
        ):
            blocked.setdefault(name, "registry.toml: autoload is off, and it is not required")
    for name in requested:
        if name in blocked:
            raise Refused(
                f'-p {name}: plugin "{name}" is blocked ({blocked[name]})', code="plugin-blocked"
            )
    return blocked, requested, files


def _split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names, and those written `no:NAME`."""
    each = list(dict.fromkeys(names))
    return [n for n in each if not n.startswith("no:")], [
        n.removeprefix("no:") for n in each if n.startswith("no:")
    ]


def _unknown(source: str, names: Collection[str], known: Collection[str]) -> list[Problem]:
    problems = []
    for name in sorted(set(names) - set(known)):
        help_text = f"{did_you_mean(name, known, '')} installed: {', '.join(sorted(known)) or 'none'}".lstrip()
        problems.append(
            Problem(f'{source}: unknown plugin "{name}"', help=help_text, code="unknown-plugin")
        )
    return problems


def required_plugins(
    policy: Policy, reports: Sequence[PluginStatus]
) -> tuple[list[str], list[Problem]]:
    """Return the plugins that registry.toml requires, and a problem for each that is missing or of another version."""
    names: list[str] = []
    problems = []
    for wanted in policy.require:
        here = [report for report in reports if is_called(wanted.name, report.name, report.source)]
        fit = [
            report.name
            for report in here
            if report.state not in ("available", "loaded")  # loading it raises with the reason
            or wanted.specifier.contains(report.version or "0", prereleases=True)
        ]
        if not fit:
            found = f"but {here[0].origin} is installed" if here else "which is not installed"
            problems.append(
                Problem(f'registry.toml requires "{wanted}", {found}', code="unknown-plugin")
            )
        names += fit
    return names, problems


def is_called(name: str, *names: str) -> bool:
    """Return whether a name is one of `names` after normalisation (case, `-`, `_`, `.`)."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(name) in map(canonicalize_name, names)


def misnamed(name: str) -> str:
    """Return why a plugin cannot have this name, or an empty string."""
    valid = name.isprintable() and not INVALID_NAME.search(name)
    return "" if valid else f"{name!r} is not a valid plugin name: pins and -p could not express it"
