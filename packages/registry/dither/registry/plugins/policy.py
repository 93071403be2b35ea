"""registry.toml: the policy of a project about plugins. The nearest file at or above the experiment counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from ..spec.base import Options

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = ["Entry", "Known", "PluginPolicy", "Policy", "find_policy", "is_called", "policy_file", "read_policy"]


class Known(Options):
    """A plugin that is worth naming although it is not installed."""

    provides: list[str] = []
    """Parts as `kind:name`."""
    install: str
    """The command that installs it."""


class PluginPolicy(Options):
    """Which plugins may load."""

    autoload: bool = True
    """Whether every installed plugin may be used; without it, only those that are required or asked for by name."""
    require: list[str] = []
    """Plugins without which nothing runs, by their own or their distribution's name, with versions: `wavelet>=0.2`."""
    block: list[str] = []
    """Plugins that are never imported, by their own or their distribution's name."""
    on_observer_error: Literal["raise", "warn-once"] = "raise"
    """What a run does where a run hook raises: stop, or say so once and go on without that plugin's hooks."""

    @field_validator("require")
    @classmethod
    def _requirements(cls, value: list[str]) -> list[str]:
        for text in value:
            if not _is_name_with_versions(text):
                raise ValueError(f'"{text}" is no requirement; write a name with versions, as in "wavelet>=0.2"')
        return value


def _is_name_with_versions(text: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return False
    return not (wanted.url or wanted.extras or wanted.marker)


class Entry(Options):
    """One part in the generated catalogue."""

    plugin: str
    """The plugin that offers it."""
    rev: int = Field(ge=1)
    """Its rev."""
    since: str = ""
    """Version of the plugin in which it was first seen."""
    options: str
    """Fingerprint of its options."""


class Policy(Options):
    """What registry.toml may say."""

    plugins: PluginPolicy = Field(default_factory=PluginPolicy)
    prefer: dict[str, str] = {}
    """Which plugin a short name means: `"block:adaln-zero" = "core-blocks"`."""
    known: dict[str, Known] = {}
    """Plugins by name that may be not installed."""
    components: dict[str, dict[str, Entry]] = {}
    """The catalogue by kind and name, written by `dither registry sync`."""

    @property
    def block(self) -> list[str]:
        """Plugins that are never imported."""
        return self.plugins.block

    @property
    def require(self) -> list[Requirement]:
        """What nothing runs without."""
        if not self.plugins.require:
            return []
        from packaging.requirements import Requirement

        return [Requirement(text) for text in self.plugins.require]

    def known_parts(self) -> dict[str, str]:
        """Return `{"kind:name": how to get the plugin that provides it}`."""
        catalogued = {
            f"{kind}:{name}": f'plugin "{entry.plugin}", which is not loaded here (dither plugins says why)'
            for kind, entries in self.components.items()
            for name, entry in entries.items()
        }
        return catalogued | {
            part: f'plugin "{name}": {known.install}' for name, known in self.known.items() for part in known.provides
        }


def is_called(name: str, *names: str) -> bool:
    """Whether a name is one of those of a plugin, its own and its distributions', however its words are joined."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(name) in map(canonicalize_name, names)


def policy_file(start: Path) -> Path | None:
    """Return the nearest registry.toml at or above a folder, if there is one."""
    folder = start.resolve()
    paths = (above / "registry.toml" for above in (folder, *folder.parents))
    return next((path for path in paths if path.is_file()), None)


def read_policy(path: Path) -> Policy:
    """Read a registry.toml.

    Raises:
        Refused: The file has mistakes; each is named with its line.
    """
    from ..config.document import Document
    from ..config.validation import validate

    return validate(Policy, Document.load(path))


def find_policy(start: Path) -> Policy:
    """Read the nearest registry.toml at or above a folder; without one, the policy that allows everything.

    Raises:
        Refused: The file has mistakes; each is named with its line.
    """
    path = policy_file(start)
    return Policy() if path is None else read_policy(path)
