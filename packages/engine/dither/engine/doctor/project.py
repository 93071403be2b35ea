"""The folder: its registry.toml, and the names that its experiments use."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import Requirement

from dither.engine.mentions import mentions_below
from dither.registry.catalogue_file import check_catalogue
from dither.registry.policy import policy_file

from .findings import Finding, Scene

__all__ = ["catalogue", "earlier_names", "registry_file", "required"]

FOLDER = "experiments"
"""Where experiment files are looked for."""


def registry_file(scene: Scene) -> Iterator[Finding]:
    """Which registry.toml counts here."""
    path = policy_file(scene.folder)
    if path is None:
        yield Finding("registry.toml", "note", "there is none at or above this folder", "none is needed")
    else:
        yield Finding("registry.toml", "ok", str(path))


def required(scene: Scene) -> Iterator[Finding]:
    """Whether the plugins that registry.toml requires are there."""
    loaded = [report for report in scene.plugins.reports if report.state == "loaded"]
    for text in scene.policy.plugins.require:
        wanted = Requirement(text)
        names = {report.name: report.version for report in loaded} | {
            report.source: report.version for report in loaded
        }
        version = names.get(wanted.name)
        if version is None:
            message, advice = f'requires "{text}", which is not loaded', f"python -m pip install '{text}'"
            yield Finding("registry.toml", "broken", message, advice)
        elif not wanted.specifier.contains(version, prereleases=True):
            message, advice = f'requires "{text}", but {version} is installed', f"python -m pip install '{text}'"
            yield Finding("registry.toml", "broken", message, advice)


def catalogue(scene: Scene) -> Iterator[Finding]:
    """Whether the parts are those that registry.toml lists."""
    problems = check_catalogue(scene.policy, scene.plugins) if any(scene.policy.components.values()) else []
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield Finding("catalogue", "note", problems[0].message + more, "dither registry check tells all")


def earlier_names(scene: Scene) -> Iterator[Finding]:
    """Experiments in this folder that name a part as it was called once."""
    earlier = [
        (part, alias, version) for part in scene.plugins.catalog.parts() for alias, version in part.offer.aliases
    ]
    if not earlier:
        return
    for mention in mentions_below(scene.folder / FOLDER):
        for part, alias, version in earlier:
            if mention.means(part.kind, part.plugin, alias):
                message = f'{mention.file}: {part.kind} "{alias}" is called "{part.name}" now'
                advice = f'write "{part.name}"; the earlier name goes in version {version} of {part.plugin}'
                yield Finding("names", "note", message, advice)
