"""registry.toml: the policy of a project about plugins. The nearest file at or above the experiment counts."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from .spec import Options

__all__ = ["Known", "Policy", "find_policy"]


class Known(Options):
    """A plugin that is worth naming although it is not installed."""

    provides: list[str] = []
    """Parts as `kind:name`."""
    install: str
    """The command that installs it."""


class PluginPolicy(Options):
    """Which plugins may load."""

    block: list[str] = []
    """Plugins that are never imported."""


class Policy(Options):
    """What registry.toml may say."""

    plugins: PluginPolicy = Field(default_factory=PluginPolicy)
    prefer: dict[str, str] = {}
    """Which plugin a short name means: `"block:adaln-zero" = "core-blocks"`."""
    known: dict[str, Known] = {}
    """Plugins by name that may be not installed."""

    @property
    def block(self) -> list[str]:
        """Plugins that are never imported."""
        return self.plugins.block

    def known_parts(self) -> dict[str, str]:
        """Return `{"kind:name": how to install the plugin that provides it}`."""
        return {
            part: f'plugin "{name}": {known.install}' for name, known in self.known.items() for part in known.provides
        }


def find_policy(start: Path) -> Policy:
    """Read the nearest registry.toml at or above a folder; without one, the policy that allows everything.

    Raises:
        Refused: The file has mistakes; each is named with its line.
    """
    from .document import Document
    from .validation import validate

    for folder in (start.resolve(), *start.resolve().parents):
        path = folder / "registry.toml"
        if path.is_file():
            return validate(Policy, Document.load(path))
    return Policy()
