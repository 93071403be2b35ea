"""`dither doctor`: checks of the environment, each of which yields findings with advice."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dither.registry.config.errors import Problem, Refused, dotted
from dither.registry.files.cache import cache_folder
from dither.registry.files.lookup import exists
from dither.registry.plugins.manager import Plugins, load_plugins
from dither.registry.plugins.policy import (
    Policy,
    find_policy,
    policy_file,
    required_plugins,
)
from dither.registry.plugins.registry_file import check_components

from .output import echo_json

__all__ = ["Finding", "examine", "show_findings"]

MIN_SPACE = 2e9
"""Bytes of free disk space below which a folder is reported; checkpoints of large models take
gigabytes."""
SLOW = 1.0
"""Seconds of an import above which a plugin is reported."""
STATES: dict[str, tuple[Literal["note", "broken"], str, str]] = {
    "failed": (
        "broken",
        "plugin-failed",
        "install another version, or block it with -p no:NAME",
    ),
    "clash": ("broken", "plugin-conflict", "none is used; uninstall all but one"),
    "blocked": ("note", "plugin-blocked", ""),
}
"""States of plugins that are not loaded: state, code and advice of the finding."""
COLOURS = {"ok": "green", "note": "yellow", "broken": "bold red"}


@dataclass(frozen=True)
class Finding:
    """A result of a check: `ok`, a `note` that requires no action, or `broken`."""

    topic: str
    state: Literal["ok", "note", "broken"]
    message: str
    advice: str = ""
    code: str = ""


def examine(
    folder: Path, runs: Path, select: Sequence[str] | None = None
) -> Iterator[Finding]:
    """Yield the findings of every check, none of which ends it; `select` as after -p."""
    version = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    yield Finding("python", "ok", f"{version}, {platform.platform()}")
    try:
        yield Finding("torch", "ok", metadata.version("torch"))
    except metadata.PackageNotFoundError:
        yield Finding("torch", "note", "its version is unknown")
    yield from check_folder("runs", runs, "choose another folder with --runs")
    yield from check_folder(
        "cache", cache_folder(), "choose another folder with DITHER_DATA"
    )

    # Without a valid registry.toml plugins are checked as if there were none.
    policy = Policy()
    plugins = Plugins()
    try:
        policy = find_policy(folder)
    except Refused as refused:
        yield from _findings("registry.toml", refused.problems)
    try:
        plugins = load_plugins(select, policy=policy)
    except Refused as refused:
        yield from _findings("plugins", refused.problems)
    yield from check_plugins(plugins)
    yield from check_policy(policy_file(folder), policy, plugins)


def check_folder(topic: str, folder: Path, advice: str) -> Iterator[Finding]:
    """Check that a folder can be written, and its free disk space."""
    # A run creates the folder, if it does not exist, in the next one above that does.
    parent = folder.absolute()
    while not exists(parent):
        parent = parent.parent
    try:
        # A name that no folder can have.
        with suppress(FileNotFoundError):
            folder.stat()
        # Permissions are not enough: a quota or a read-only mount forbids it, too.
        with tempfile.TemporaryFile(dir=parent):
            free = shutil.disk_usage(parent).free
    except (OSError, ValueError) as error:
        message = f"{folder} cannot be written: {error}"
        yield Finding(topic, "broken", message, advice, "unwritable-file")
        return
    if free < MIN_SPACE:
        advice = (
            "free disk space: a checkpoint takes three times the size of the weights"
        )
        message = f"{folder}, only {free / 1e9:.1f} GB free"
        yield Finding(topic, "note", message, advice, "disk-full")
    else:
        yield Finding(topic, "ok", f"{folder}, {free / 1e9:.1f} GB free")


def check_plugins(plugins: Plugins) -> Iterator[Finding]:
    """Report the state of each plugin, and slow imports."""
    loaded = []
    for report in plugins.reports:
        if report.state != "loaded":
            state, code, advice = STATES[report.state]
            message = f"{report.name} ({report.origin}) {report.state}: {report.reason}"
            yield Finding("plugins", state, message, advice, code)
            continue
        loaded.append(f"{report.name} {report.version}".strip())
        seconds = f"takes {report.seconds:.1f} s to load"
        for change in report.changes:
            message = f"{report.name} changes torch for all when loaded: {change}"
            yield Finding("start", "note", message, code="slow-import")
        if report.imports_torch:
            message = f"{report.name} imports torch when loaded and {seconds}"
            advice = "its author can move the import into `build`"
            yield Finding("start", "note", message, advice, "slow-import")
        elif report.seconds > SLOW:
            yield Finding(
                "start", "note", f"{report.name} {seconds}", code="slow-import"
            )
    if not loaded:
        advice = "install dither again: in a checkout, python -m pip install -r requirements.txt"
        yield Finding("plugins", "broken", "none is loaded", advice, "unknown-plugin")
    else:
        yield Finding("plugins", "ok", f"{len(loaded)} loaded: {', '.join(loaded)}")


def check_policy(
    path: Path | None, policy: Policy, plugins: Plugins
) -> Iterator[Finding]:
    """Check the requirements of registry.toml, and its list of components."""
    topic = "registry.toml"
    place = path or "none at or above this folder; none is required"
    yield Finding(topic, "ok", str(place))
    yield from _findings(topic, required_plugins(policy, plugins.reports)[1])
    problems = check_components(policy, plugins) if policy.components else []
    if problems:
        message = f"{len(problems)} components differ from the list"
        advice = "dither registry check lists all"
        yield Finding(topic, "note", message, advice, "registry-outdated")


def _findings(topic: str, problems: Sequence[Problem]) -> Iterator[Finding]:
    for problem in problems:
        message = problem.message
        if problem.path:
            message = f"{dotted(problem.path)}: {message}"
        if problem.origin:
            message += f" ({problem.origin})"
        yield Finding(topic, "broken", message, problem.help or "", problem.code)


def show_findings(findings: list[Finding], as_json: bool) -> int:
    """Print the findings; return 1 if something is broken."""
    counts = Counter(finding.state for finding in findings)
    is_broken = counts["broken"] > 0
    if echo_json(as_json, [asdict(finding) for finding in findings]):
        return int(is_broken)
    page = Table.grid(padding=(0, 2))
    for finding in findings:
        text = Text(finding.message, overflow="fold")
        if finding.advice:
            text += Text(f"\n-> {finding.advice}", style="cyan")
        page.add_row(
            Text(finding.state, style=COLOURS[finding.state]), Text(finding.topic), text
        )
    console = Console()
    console.print(page)
    console.print(
        f"\n{counts['broken']} broken, {counts['note']} notes, {counts['ok']} ok"
    )
    return int(is_broken)
