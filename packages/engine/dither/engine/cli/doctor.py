"""`dither doctor`: checks of the environment, each of which yields findings with advice."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from dither.registry.plugins.discovery import GROUP
from dither.registry.plugins.lockfile import check_lockfile
from dither.registry.plugins.manager import Plugins, load_plugins
from dither.registry.plugins.policy import Policy, find_policy, policy_file

from .output import wants_json

__all__ = ["CHECKS", "Check", "Environment", "Finding", "examine", "show_findings"]

OLDEST_PYTHON = (3, 11)
SPACE = {"broken": 2e8, "note": 5e9}
"""Bytes of free disk space below which a folder is reported; checkpoints of large models take gigabytes."""
SLOW = 1.0
"""Seconds of an import above which a plugin is reported."""
COLOURS = {"ok": "green", "note": "yellow", "broken": "bold red"}
INSTALL = "python -m pip install -r requirements.txt"


@dataclass(frozen=True)
class Finding:
    """A result of a check: `ok`, a `note` that requires no action, or `broken`."""

    topic: str
    state: Literal["ok", "note", "broken"]
    message: str
    advice: str = ""
    code: str = ""


@dataclass(frozen=True)
class Environment:
    """What is examined: working directory, folder of runs, policy of registry.toml, installed plugins."""

    folder: Path
    runs: Path
    policy: Policy
    plugins: Plugins


Check = Callable[[Environment], Iterable[Finding]]


def python(environment: Environment) -> Iterator[Finding]:
    """Check the version of Python, and that it runs in a virtual environment."""
    version = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        yield Finding("python", "broken", version, "use Python 3.11 or later", "python-version")
    elif sys.prefix == sys.base_prefix:
        yield Finding("python", "note", f"{version}, not in a virtual environment", "python -m venv .venv", "no-venv")
    else:
        yield Finding("python", "ok", version)


def torch(environment: Environment) -> Iterator[Finding]:
    """Check that torch is installed, without importing it."""
    try:
        yield Finding("torch", "ok", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding("torch", "broken", "not installed", INSTALL, "missing-dependency")


def requirements(environment: Environment) -> Iterator[Finding]:
    """Check the requirements of our distributions and of plugins; extras that are incomplete are notes."""
    complete = True
    for dist in _our_distributions():
        for extra in ("", *(dist.metadata.get_all("Provides-Extra") or ())):
            unmet = [text for requirement in _requirements(dist, extra) if (text := _unmet(requirement))]
            if unmet and extra:
                advice = f"python -m pip install '{dist.name}[{extra}]'"
                yield Finding("extras", "note", f"{dist.name}[{extra}]: {'; '.join(unmet)}", advice, "missing-extra")
            for text in unmet if not extra else ():
                complete = False
                advice = f"python -m pip install '{text.partition(' is ')[0]}'"
                yield Finding("requirements", "broken", f"{dist.name} requires {text}", advice, "missing-dependency")
    if complete:
        yield Finding("requirements", "ok", "all installed")


def _our_distributions() -> Iterator[Distribution]:
    """Yield the distributions of dither and of plugins."""
    seen = set()
    for dist in importlib.metadata.distributions():
        name = canonicalize_name(dist.name or "")
        if name not in seen and (name.startswith("dither-") or _plugin_names(dist)):
            seen.add(name)
            yield dist


def _requirements(dist: Distribution, extra: str) -> Iterator[Requirement]:
    for requirement in map(Requirement, dist.requires or ()):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        if always if not extra else (not always and marker is not None and marker.evaluate({"extra": extra})):
            yield requirement


def _unmet(requirement: Requirement) -> str:
    """Return the requirement and what is wrong with it, or an empty text."""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name}{requirement.specifier} is not installed"
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else f"{requirement.name}{requirement.specifier} is installed in version {version}"


def machine(environment: Environment) -> Iterator[Finding]:
    """Report cores, threads and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, memory = os.environ.get("OMP_NUM_THREADS", ""), ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB of memory"
    shown = f", OMP_NUM_THREADS={threads}" if threads else ""
    yield Finding("machine", "ok", f"{platform.platform()}, {cores} cores{shown}{memory}")
    if threads.isdecimal() and int(threads) > cores:
        message = f"OMP_NUM_THREADS={threads} exceeds the {cores} cores"
        yield Finding("threads", "note", message, f"set it to at most {cores}", "too-many-threads")


def folders(environment: Environment) -> Iterator[Finding]:
    """Check that runs and prepared data can be written, and the free disk space."""
    for topic, folder in (("runs", environment.runs), ("cache", cache_folder())):
        parent = folder.absolute()
        while not parent.exists() and parent != parent.parent:
            parent = parent.parent
        try:
            with tempfile.TemporaryFile(dir=parent):
                free = shutil.disk_usage(parent).free
        except OSError as error:
            advice = f"choose another folder with {'--runs' if topic == 'runs' else 'DITHER_DATA'}"
            message = f"{folder} cannot be written: {error.strerror or error}"
            yield Finding(topic, "broken", message, advice, "unwritable-file")
            continue
        message = f"{folder}, {free / 1e9:.1f} GB free"
        if free < SPACE["broken"]:
            advice = "free disk space: a checkpoint takes three times the size of the weights"
            yield Finding(topic, "broken", message, advice, "disk-full")
        elif free < SPACE["note"]:
            yield Finding(topic, "note", message, "enough for small models only", "disk-full")
        else:
            yield Finding(topic, "ok", message)


def command(environment: Environment) -> Iterator[Finding]:
    """Check that `dither` on PATH is the one of this environment."""
    scripts, path = Path(sysconfig.get_path("scripts")), shutil.which("dither")
    if path is None:
        advice = f"activate the environment: {scripts / 'activate'}"
        yield Finding("command", "note", "`dither` is not on PATH", advice, "not-on-path")
    elif Path(path).parent.resolve() != scripts.resolve():
        message = f"`dither` on PATH is {path}, of another environment"
        yield Finding("command", "note", message, f"use {scripts / 'dither'}", "not-on-path")
    else:
        yield Finding("command", "ok", path)


def plugins(environment: Environment) -> Iterator[Finding]:
    """Report the state of each plugin, and slow imports."""
    loaded = []
    for report in environment.plugins.reports:
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
            advice = "its author can move the import into `build`" if report.imports_torch else ""
            if report.imports_torch or report.seconds > SLOW:
                why = "imports torch when loaded and " if report.imports_torch else ""
                message = f"{report.name} {why}takes {report.seconds:.1f} s to load"
                yield Finding("start", "note", message, advice, "slow-import")
    if loaded:
        yield Finding("plugins", "ok", f"{len(loaded)} loaded: {', '.join(loaded)}")
    elif not any(_plugin_names(dist) for dist in importlib.metadata.distributions()):
        yield Finding("plugins", "broken", "none is installed", INSTALL, "missing-dependency")


def duplicates(environment: Environment) -> Iterator[Finding]:
    """Report distributions that are installed twice: Python uses the first, and ignores plugins of the second."""
    copies: dict[str, dict[str, Distribution]] = defaultdict(dict)
    for dist in importlib.metadata.distributions():
        location = str(getattr(dist, "_path", None) or dist.locate_file(""))  # the public API has no path of it
        copies[canonicalize_name(dist.name or "?")].setdefault(location, dist)
    for name, found in sorted(copies.items()):
        (used, first), *others = found.items()
        for location, other in others:
            ignored = sorted(_plugin_names(other) - _plugin_names(first))
            message = f"{name} is installed twice: {used} ({first.version}) shadows {location} ({other.version})"
            message += f", and its plugins {', '.join(ignored)}" if ignored else ""
            stale = used.endswith(".egg-info")
            advice = f"remove {used}" if stale else f"python -m pip uninstall {name}, and install it again"
            yield Finding("installed twice", "broken" if ignored else "note", message, advice, "duplicate")


def _plugin_names(dist: Distribution) -> set[str]:
    return {point.name for point in dist.entry_points if point.group == GROUP}


def registry_toml(environment: Environment) -> Iterator[Finding]:
    """Report which registry.toml applies, and check its requirements and its list of components."""
    path, topic = policy_file(environment.folder), "registry.toml"
    yield Finding(topic, "ok", str(path) if path else "none at or above this folder; none is required")
    versions: dict[str, str] = {}
    for report in environment.plugins.reports:
        if report.state == "loaded":
            versions |= {report.name: report.version, report.source: report.version}
    for text in environment.policy.plugins.require:
        requirement = Requirement(text)
        version = versions.get(requirement.name)
        advice = f"python -m pip install '{text}'"
        if version is None:
            yield Finding(topic, "broken", f'requires "{text}", which is not loaded', advice, "unknown-plugin")
        elif not requirement.specifier.contains(version, prereleases=True):
            message = f'requires "{text}", but {version} is installed'
            yield Finding(topic, "broken", message, advice, "missing-dependency")
    listed = any(environment.policy.components.values())
    problems = check_lockfile(environment.policy, environment.plugins) if listed else []
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        advice = "dither registry check lists all"
        yield Finding(topic, "note", problems[0].message + more, advice, "lockfile-outdated")


CHECKS: tuple[Check, ...] = (
    python, torch, requirements, machine, folders, command, plugins, duplicates, registry_toml,
)  # fmt: skip


def examine(folder: Path, runs: Path, select: Sequence[str] | None = None) -> Iterator[Finding]:
    """Yield the findings of every check; no exception of a plugin or file ends it.

    Args:
        folder: The working directory.
        runs: Parent folder of run directories.
        select: Plugins as after -p.
    """
    policy, plugins = Policy(), Plugins()
    try:
        policy = find_policy(folder)
    except Refused as refused:
        yield from _from_problems("registry.toml", refused)
    try:
        plugins = load_plugins(select, policy=policy)
    except Refused as refused:
        yield from _from_problems("plugins", refused)
    except Exception as error:
        yield _unexpected("plugins", error)
    environment = Environment(folder, runs, policy, plugins)
    for check in CHECKS:
        try:
            yield from check(environment)
        except Exception as error:
            yield _unexpected(check.__name__.replace("_", " "), error)


def _unexpected(topic: str, error: Exception) -> Finding:
    message = f"this check failed: {type(error).__name__}: {error}"
    return Finding(topic, "broken", message, "please report it", "check-failed")


def _from_problems(topic: str, refused: Refused) -> Iterator[Finding]:
    for problem in refused.problems:
        key = f"{dotted(problem.path)}: " if problem.path else ""
        place = f" ({problem.origin})" if problem.origin else ""
        yield Finding(topic, "broken", f"{key}{problem.message}{place}", problem.help or "", problem.code)


def show_findings(findings: Iterable[Finding], as_json: bool) -> int:
    """Print the findings; return 1 if something is broken."""
    found = list(findings)
    code = int(any(finding.state == "broken" for finding in found))
    if wants_json(as_json):
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
        return code
    page = Table.grid(padding=(0, 2))
    for finding in found:
        text = Text(finding.message, overflow="fold")
        if finding.advice and finding.state != "ok":
            text += Text(f"\n-> {finding.advice}", style="cyan")
        page.add_row(Text(finding.state, style=COLOURS[finding.state]), Text(finding.topic), text)
    console = Console()
    console.print(page)
    counts = {state: sum(finding.state == state for finding in found) for state in COLOURS}
    console.print(f"\n{counts['broken']} broken, {counts['note']} notes, {counts['ok']} ok")
    return code
