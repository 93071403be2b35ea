"""All checks in the order in which they are read: the machine, the plugins, the project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dither.registry.plugins import Plugins, load_plugins
from dither.registry.policy import Policy, find_policy
from dither.registry.problems import Refused, dotted

from . import machine, parts, project
from .findings import Check, Finding, Scene

__all__ = ["CHECKS", "examine"]

CHECKS: tuple[Check, ...] = (
    machine.python,
    machine.torch,
    machine.requirements,
    machine.processor,
    machine.folders,
    machine.command,
    machine.extras,
    parts.states,
    parts.slow_imports,
    parts.shadowed,
    parts.mutable_defaults,
    parts.undocumented,
    project.registry_file,
    project.required,
    project.catalogue,
    project.earlier_names,
)
"""Every check."""


def examine(folder: Path, runs: Path, select: Sequence[str] | None = None) -> Iterator[Finding]:
    """Yield what every check finds. Nothing that a plugin or a file does ends it.

    Args:
        folder: The working directory.
        runs: Where run directories are made.
        select: Plugins as after -p.
    """
    policy, plugins = Policy(), Plugins()
    try:
        policy = find_policy(folder)
    except Refused as refused:
        yield from _findings("registry.toml", refused)
    try:
        plugins = load_plugins(select, policy=policy)
    except Refused as refused:
        yield from _findings("plugins", refused)
    except Exception as error:
        yield Finding(
            "plugins", "broken", f"they cannot be listed: {type(error).__name__}: {error}", "please report it"
        )
    scene = Scene(folder, runs, policy, plugins)
    for check in CHECKS:
        yield from _guarded(check, scene)


def _findings(topic: str, refused: Refused) -> Iterator[Finding]:
    for problem in refused.problems:
        key = f"{dotted(problem.path)}: " if problem.path else ""
        place = f" ({problem.origin})" if problem.origin else ""
        yield Finding(topic, "broken", f"{key}{problem.message}{place}", problem.help or "")


def _guarded(check: Check, scene: Scene) -> Iterator[Finding]:
    topic = check.__name__.replace("_", " ")
    try:
        yield from check(scene)
    except Exception as error:
        yield Finding(
            topic, "broken", f"this check came to no end: {type(error).__name__}: {error}", "please report it"
        )
