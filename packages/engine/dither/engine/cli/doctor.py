"""Is this environment in order, and what to do where it is not: small checks, each of which yields findings."""

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dither.registry.config.errors import Refused, dotted
from dither.registry.files.cache import cache_folder
from dither.registry.plugins.discovery import GROUP, installed_plugins
from dither.registry.plugins.lockfile import check_lockfile
from dither.registry.plugins.manager import Plugins, load_plugins
from dither.registry.plugins.policy import Policy, find_policy, policy_file
from dither.registry.spec.base import default_part

from ..config.component_usages import component_usages

__all__ = [
    "CHECKS",
    "Check",
    "Environment",
    "Finding",
    "catalogue",
    "command",
    "earlier_names",
    "examine",
    "extras",
    "folders",
    "mutable_defaults",
    "plugin_states",
    "processor",
    "python",
    "registry_file",
    "required",
    "requirements",
    "shadowed",
    "show_findings",
    "slow_imports",
    "torch",
    "undocumented",
]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        topic: What it is about, in a word or two.
        state: ok; note, which nobody has to act on; or broken.
        message: What is so.
        advice: What to do about it.
    """

    topic: str
    state: Literal["ok", "note", "broken"]
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Environment:
    """What the checks look at.

    Attributes:
        folder: The working directory.
        runs: Where run directories are made.
        policy: What registry.toml says; where it cannot be read, what counts without one.
        plugins: What is installed.
    """

    folder: Path
    runs: Path
    policy: Policy
    plugins: Plugins


Check = Callable[[Environment], Iterable[Finding]]
"""A check yields what it finds; one that raises is itself a finding."""

OLDEST = (3, 11)
"""The first Python that is supported."""
SPACE = {"note": 5e9, "broken": 2e8}
"""Bytes of free disk below which we say so: checkpoints of the larger models take gigabytes."""


def python(scene: Environment) -> Iterator[Finding]:
    """Which Python this is, and whether it is one that is supported."""
    version = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST:
        yield Finding("python", "broken", version, "use Python 3.11 or later")
    elif sys.prefix == sys.base_prefix:
        yield Finding("python", "note", f"{version}, in no virtual environment", "python -m venv .venv")
    else:
        yield Finding("python", "ok", version)


def torch(scene: Environment) -> Iterator[Finding]:
    """Which torch is installed. Not imported."""
    try:
        yield Finding("torch", "ok", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding("torch", "broken", "is not installed", "python -m pip install -r requirements.txt")


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """Our distributions, and those that offer plugins."""
    from dither.registry.plugins.discovery import GROUP

    seen = set()
    for dist in importlib.metadata.distributions():
        name = canonicalize_name(dist.name or "")
        ours = name.startswith("dither-") or any(point.group == GROUP for point in dist.entry_points)
        if ours and name not in seen:
            seen.add(name)
            yield dist


def _required(dist: importlib.metadata.Distribution, extra: str) -> Iterator[Requirement]:
    """What a distribution needs here, or with an extra."""
    for text in dist.requires or ():
        wanted = Requirement(text)
        without = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if without if not extra else (not without and wanted.marker and wanted.marker.evaluate({"extra": extra})):
            yield wanted


def _unmet(wanted: Requirement) -> str:
    """Say what is wrong with a requirement here, or nothing."""
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"
    fits = wanted.specifier.contains(version, prereleases=True)
    return "" if fits else f"is installed in version {version}"


def requirements(scene: Environment) -> Iterator[Finding]:
    """Whether what our distributions and the plugins need is there, in a version that fits."""
    found = False
    for dist in _distributions():
        for wanted in _required(dist, ""):
            if lack := _unmet(wanted):
                found = True
                text = f"{dist.name} needs {wanted.name}{wanted.specifier}, which {lack}"
                yield Finding(
                    "requirements", "broken", text, f"python -m pip install '{wanted.name}{wanted.specifier}'"
                )
    if not found:
        yield Finding("requirements", "ok", "all there")


def processor(scene: Environment) -> Iterator[Finding]:
    """Cores, threads and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS", "")
    said = f", OMP_NUM_THREADS={threads}" if threads else ""
    yield Finding("machine", "ok", f"{platform.platform()}, {cores} cores{said}{_memory()}")
    if threads.isdecimal() and int(threads) > cores:
        yield Finding("threads", "note", f"OMP_NUM_THREADS={threads}, but there are {cores} cores", "set it no higher")


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return ""
    return f", {total / 1e9:.1f} GB of memory"


def folders(scene: Environment) -> Iterator[Finding]:
    """Whether runs and prepared data can be written, and how much room there is."""
    for topic, folder in (("runs", scene.runs), ("cache", cache_folder())):
        there = folder.absolute()
        while not there.exists() and there != there.parent:
            there = there.parent
        try:
            with tempfile.TemporaryFile(dir=there):
                free = shutil.disk_usage(there).free
        except OSError as error:
            option = "--runs" if topic == "runs" else "DITHER_DATA"
            why = error.strerror or str(error)
            yield Finding(topic, "broken", f"{folder} cannot be written: {why}", f"choose another folder with {option}")
            continue
        state = next((state for state in ("broken", "note") if free < SPACE[state]), "ok")
        message = f"{folder}, {free / 1e9:.1f} GB free"
        if state == "broken":
            yield Finding(topic, "broken", message, "make room: a checkpoint needs three times the weights")
        elif state == "note":
            yield Finding(topic, "note", message, "room for small models only")
        else:
            yield Finding(topic, "ok", message)


def command(scene: Environment) -> Iterator[Finding]:
    """Whether `dither` on the command line is the one of this environment."""
    scripts = Path(sysconfig.get_path("scripts"))
    found = shutil.which("dither")
    if found is None:
        yield Finding(
            "command", "note", "there is no `dither` on PATH", f"activate the environment: {scripts / 'activate'}"
        )
    elif Path(found).parent.resolve() != scripts.resolve():
        yield Finding(
            "command", "note", f"`dither` on PATH is {found}, of another environment", f"use {scripts / 'dither'}"
        )
    else:
        yield Finding("command", "ok", found)


def extras(scene: Environment) -> Iterator[Finding]:
    """Which optional parts of our distributions are there."""
    for dist in _distributions():
        for extra in dist.metadata.get_all("Provides-Extra") or ():
            missing = [wanted.name for wanted in _required(dist, extra) if _unmet(wanted)]
            what = f"{dist.name}[{extra}]"
            if missing:
                advice = f"python -m pip install '{what}'"
                yield Finding("extras", "note", f"{what} lacks {', '.join(missing)}", advice)
            else:
                yield Finding("extras", "ok", what)


SLOW = 1.0
"""Seconds of an import from which on it is worth a word."""


def plugin_states(scene: Environment) -> Iterator[Finding]:
    """What became of each plugin."""
    loaded = []
    for report in scene.plugins.reports:
        origin = f"{report.name} ({report.origin})"
        if report.state == "failed":
            advice = f"python -m pip install --upgrade {report.source}, or leave it out with -p no:{report.name}"
            yield Finding("plugins", "broken", f"{origin} cannot be loaded: {report.reason}", advice)
        elif report.state == "clash":
            advice = "keep one of them: python -m pip uninstall"
            yield Finding("plugins", "broken", f"{origin}: {report.reason}; none is used", advice)
        elif report.state == "blocked":
            yield Finding("plugins", "note", f"{origin} is blocked: {report.reason}")
        else:
            loaded.append(f"{report.name} {report.version}".strip())
    if loaded:
        yield Finding("plugins", "ok", f"{len(loaded)} loaded: {', '.join(loaded)}")
    elif not installed_plugins():
        yield Finding("plugins", "broken", "none is installed", "python -m pip install -r requirements.txt")


def slow_imports(scene: Environment) -> Iterator[Finding]:
    """Plugins whose import takes long, mostly because they import torch at once."""
    for report in scene.plugins.reports:
        if report.imports_torch:
            message = f"{report.name} imports torch when it is loaded, which takes {report.seconds:.1f} s"
            yield Finding("start", "note", message, "its author can move the import into `build`")
        elif report.seconds > SLOW and report.state == "loaded":
            yield Finding("start", "note", f"{report.name} takes {report.seconds:.1f} s to load")


def shadowed(scene: Environment) -> Iterator[Finding]:
    """Distributions that are there twice: Python reads the first, and does not see the plugins of the second."""
    found: dict[str, list[importlib.metadata.Distribution]] = {}
    for dist in importlib.metadata.distributions():
        same = found.setdefault(canonicalize_name(dist.name or "?"), [])
        if all(_where(dist) != _where(other) for other in same):
            same.append(dist)
    for name, (first, *rest) in sorted(found.items()):
        for other in rest:
            hidden = {point.name for point in _plugins(other)} - {point.name for point in _plugins(first)}
            message = (
                f"{name} is there twice: {_where(first)} ({first.version}) hides {_where(other)} ({other.version})"
            )
            if hidden:
                message += f", and with it plugin {', '.join(sorted(hidden))}"
            stale = _where(first).endswith(".egg-info")
            advice = (
                f"remove the folder {_where(first)}"
                if stale
                else f"python -m pip uninstall {name}, and install it anew"
            )
            yield Finding("installed twice", "broken" if hidden else "note", message, advice)


def _where(dist: importlib.metadata.Distribution) -> str:
    """Where the metadata lies; the library tells it through a private name only, so that may be missing."""
    place: Any = getattr(dist, "_path", None) or dist.locate_file("")
    return str(place)


def _plugins(dist: importlib.metadata.Distribution) -> list[importlib.metadata.EntryPoint]:
    return [point for point in dist.entry_points if point.group == GROUP]


def mutable_defaults(scene: Environment) -> Iterator[Finding]:
    """Options whose default is a list, a table or a set. Each part gets a copy, but may be changed in place."""
    found: dict[str, list[str]] = {}
    for part in scene.plugins.catalog.parts():
        fields = part.spec.model_fields.items()
        if mutable := [key for key, info in fields if _mutable(info)]:
            found.setdefault(part.plugin, []).append(f"{part.kind} {part.name} ({', '.join(mutable)})")
    for plugin, names in found.items():
        message = f"{plugin} has defaults that can be changed in place: {'; '.join(names)}"
        yield Finding("defaults", "note", message, "harmless as long as nobody does; a tuple is safe")


def _mutable(info: FieldInfo) -> bool:
    return isinstance(info.default, list | dict | set | bytearray) and default_part(info) is None


def undocumented(scene: Environment) -> Iterator[Finding]:
    """Parts of which lists have nothing to say."""
    for part in scene.plugins.catalog.parts():
        if not part.summary:
            message = f"{part.kind} {part.name} of {part.plugin} has no docstring"
            yield Finding("docstrings", "note", message, "its author can say in a line what it does")


FOLDER = "experiments"
"""Where experiment files are looked for."""


def registry_file(scene: Environment) -> Iterator[Finding]:
    """Which registry.toml counts here."""
    path = policy_file(scene.folder)
    if path is None:
        yield Finding("registry.toml", "note", "there is none at or above this folder", "none is needed")
    else:
        yield Finding("registry.toml", "ok", str(path))


def required(scene: Environment) -> Iterator[Finding]:
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


def catalogue(scene: Environment) -> Iterator[Finding]:
    """Whether the parts are those that registry.toml lists."""
    problems = check_lockfile(scene.policy, scene.plugins) if any(scene.policy.components.values()) else []
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield Finding("catalogue", "note", problems[0].message + more, "dither registry check tells all")


def earlier_names(scene: Environment) -> Iterator[Finding]:
    """Experiments in this folder that name a part as it was called once."""
    earlier = [
        (part, alias.name, alias.removed_in) for part in scene.plugins.catalog.parts() for alias in part.spec.aliases
    ]
    if not earlier:
        return
    for mention in component_usages(scene.folder / FOLDER):
        for part, alias, version in earlier:
            if mention.means(part.kind, part.plugin, alias):
                message = f'{mention.file}: {part.kind} "{alias}" is called "{part.name}" now'
                advice = f'write "{part.name}"; the earlier name goes in version {version} of {part.plugin}'
                yield Finding("names", "note", message, advice)


CHECKS: tuple[Check, ...] = (
    python,
    torch,
    requirements,
    processor,
    folders,
    command,
    extras,
    plugin_states,
    slow_imports,
    shadowed,
    mutable_defaults,
    undocumented,
    registry_file,
    required,
    catalogue,
    earlier_names,
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
    scene = Environment(folder, runs, policy, plugins)
    for check in CHECKS:
        yield from _guarded(check, scene)


def _findings(topic: str, refused: Refused) -> Iterator[Finding]:
    for problem in refused.problems:
        key = f"{dotted(problem.path)}: " if problem.path else ""
        place = f" ({problem.origin})" if problem.origin else ""
        yield Finding(topic, "broken", f"{key}{problem.message}{place}", problem.help or "")


def _guarded(check: Check, scene: Environment) -> Iterator[Finding]:
    topic = check.__name__.replace("_", " ")
    try:
        yield from check(scene)
    except Exception as error:
        yield Finding(
            topic, "broken", f"this check came to no end: {type(error).__name__}: {error}", "please report it"
        )


COLOURS = {"ok": "green", "note": "yellow", "broken": "bold red"}


def show_findings(findings: Iterable[Finding], as_json: bool) -> int:
    """Print findings on a page; return 1 if something is broken."""
    found = list(findings)
    code = int(any(finding.state == "broken" for finding in found))
    if as_json:
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
    count = {state: sum(finding.state == state for finding in found) for state in COLOURS}
    console.print(f"\n{count['broken']} broken, {count['note']} notes, {count['ok']} in order")
    return code
