"""`dither doctor`: checks of the environment, each of which yields findings with advice."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Literal

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dither.registry.config.errors import Refused, dotted
from dither.registry.files.cache import cache_folder
from dither.registry.plugins.lockfile import check_lockfile
from dither.registry.plugins.manager import Plugins, load_plugins
from dither.registry.plugins.policy import Policy, find_policy, policy_file
from dither.registry.plugins.status import GROUP

from .output import wants_json

__all__ = ["Finding", "examine", "show_findings"]

BROKEN_SPACE, SMALL_SPACE = 2e8, 5e9
"""Bytes of free disk space below which a folder is reported; checkpoints of large models take gigabytes."""
SLOW = 1.0
"""Seconds of an import above which a plugin is reported."""
COLOURS = {"ok": "green", "note": "yellow", "broken": "bold red"}


@dataclass(frozen=True)
class Finding:
    """A result of a check: `ok`, a `note` that requires no action, or `broken`."""

    topic: str
    state: Literal["ok", "note", "broken"]
    message: str
    advice: str = ""
    code: str = ""


def examine(folder: Path, runs: Path, select: Sequence[str] | None = None) -> Iterator[Finding]:
    """Yield the findings of every check; no plugin or file ends it.

    Args:
        folder: The working directory.
        runs: Parent folder of run directories.
        select: Plugins as after -p.
    """
    yield from check_environment()
    yield from check_folder("runs", runs, "choose another folder with --runs")
    yield from check_folder("cache", cache_folder(), "choose another folder with DITHER_DATA")
    policy, plugins = Policy(), Plugins()
    for topic in ("registry.toml", "plugins"):
        try:
            if topic == "registry.toml":
                policy = find_policy(folder)
            else:
                plugins = load_plugins(select, policy=policy)
        except Refused as refused:
            for problem in refused.problems:
                key = f"{dotted(problem.path)}: " if problem.path else ""
                place = f" ({problem.origin})" if problem.origin else ""
                yield Finding(topic, "broken", f"{key}{problem.message}{place}", problem.help or "", problem.code)
    yield from check_plugins(plugins)
    yield from check_policy(policy_file(folder), policy, plugins)


def check_environment() -> Iterator[Finding]:
    """Check Python, the requirements of dither and of plugins, and distributions that are installed twice.

    Python imports the first copy of a distribution and ignores the plugins of the second.
    """
    version = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    yield Finding("python", "ok", f"{version}, {platform.platform()}")
    copies: dict[str, dict[str, Distribution]] = {}
    for dist in importlib.metadata.distributions():
        location = str(getattr(dist, "_path", None) or dist.locate_file(""))  # the public API has no path of it
        copies.setdefault(canonicalize_name(dist.name or "?"), {}).setdefault(location, dist)
    unmet = 0
    for name, found in sorted(copies.items()):
        (used, first), *others = found.items()
        for location, other in others:
            ignored = ", ".join(sorted(_plugin_names(other) - _plugin_names(first)))
            message = f"{name} is installed twice: {used} ({first.version}) shadows {location} ({other.version})"
            message += f", and its plugins {ignored}" if ignored else ""
            advice = f"remove {used}" if used.endswith(".egg-info") else f"uninstall {name}, and install it again"
            yield Finding("installed twice", "broken" if ignored else "note", message, advice, "duplicate")
        for text in first.requires or () if name.startswith("dither-") or _plugin_names(first) else ():
            requirement = Requirement(text)
            if reason := _unmet(requirement):
                unmet += 1
                advice = f"python -m pip install '{requirement.name}{requirement.specifier}'"
                yield Finding("requirements", "broken", f"{name} requires {reason}", advice, "missing-dependency")
    if not unmet:
        yield Finding("requirements", "ok", "all installed")


def _plugin_names(dist: Distribution) -> set[str]:
    return {point.name for point in dist.entry_points if point.group == GROUP}


def _unmet(requirement: Requirement) -> str:
    """Return the requirement and what is wrong with it, or an empty text."""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return ""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name}{requirement.specifier} is not installed"
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else f"{requirement.name}{requirement.specifier} is installed in version {version}"


def check_folder(topic: str, folder: Path, advice: str) -> Iterator[Finding]:
    """Check that a folder can be written, and its free disk space."""
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=parent):
            free = shutil.disk_usage(parent).free
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror or error}"
        yield Finding(topic, "broken", message, advice, "unwritable-file")
        return
    state: Literal["ok", "note", "broken"] = "broken" if free < BROKEN_SPACE else "note" if free < SMALL_SPACE else "ok"
    advice = "" if state == "ok" else "free disk space: a checkpoint takes three times the size of the weights"
    yield Finding(topic, state, f"{folder}, {free / 1e9:.1f} GB free", advice, "" if state == "ok" else "disk-full")


def check_plugins(plugins: Plugins) -> Iterator[Finding]:
    """Report the state of each plugin, and slow imports."""
    loaded = []
    for report in plugins.reports:
        origin = f"{report.name} ({report.origin})"
        if report.state == "failed":
            advice = f"python -m pip install --upgrade {report.source}, or block it with -p no:{report.name}"
            yield Finding("plugins", "broken", f"{origin} failed to load: {report.reason}", advice, "plugin-failed")
        elif report.state == "clash":
            advice = "keep one of them: python -m pip uninstall"
            yield Finding("plugins", "broken", f"{origin}: {report.reason}; none is used", advice, "plugin-conflict")
        elif report.state == "blocked":
            yield Finding("plugins", "note", f"{origin} is blocked: {report.reason}", code="plugin-blocked")
        else:
            loaded.append(f"{report.name} {report.version}".strip())
            if report.imports_torch or report.seconds > SLOW:
                why = "imports torch when loaded and " if report.imports_torch else ""
                advice = "its author can move the import into `build`" if report.imports_torch else ""
                message = f"{report.name} {why}takes {report.seconds:.1f} s to load"
                yield Finding("start", "note", message, advice, "slow-import")
    if loaded:
        yield Finding("plugins", "ok", f"{len(loaded)} loaded: {', '.join(loaded)}")
    else:
        yield Finding(
            "plugins", "broken", "none is loaded", "python -m pip install -r requirements.txt", "unknown-plugin"
        )


def check_policy(path: Path | None, policy: Policy, plugins: Plugins) -> Iterator[Finding]:
    """Check the requirements of registry.toml, and its list of components."""
    topic = "registry.toml"
    yield Finding(topic, "ok", str(path) if path else "none at or above this folder; none is required")
    versions = {r.name: r.version for r in plugins.reports if r.state == "loaded"}
    versions |= {r.source: r.version for r in plugins.reports if r.state == "loaded"}
    for text in policy.plugins.require:
        requirement = Requirement(text)
        version = versions.get(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            reason = "which is not loaded" if version is None else f"but {version} is installed"
            advice = f"python -m pip install '{text}'"
            yield Finding(topic, "broken", f'requires "{text}", {reason}', advice, "missing-dependency")
    problems = check_lockfile(policy, plugins) if any(policy.components.values()) else []
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        advice = "dither registry check lists all"
        yield Finding(topic, "note", problems[0].message + more, advice, "lockfile-outdated")


def show_findings(findings: list[Finding], as_json: bool) -> int:
    """Print the findings; return 1 if something is broken."""
    counts = {state: sum(finding.state == state for finding in findings) for state in COLOURS}
    if wants_json(as_json):
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return int(counts["broken"] > 0)
    page = Table.grid(padding=(0, 2))
    for finding in findings:
        text = Text(finding.message, overflow="fold")
        if finding.advice:
            text += Text(f"\n-> {finding.advice}", style="cyan")
        page.add_row(Text(finding.state, style=COLOURS[finding.state]), Text(finding.topic), text)
    console = Console()
    console.print(page)
    console.print(f"\n{counts['broken']} broken, {counts['note']} notes, {counts['ok']} ok")
    return int(counts["broken"] > 0)
