"""The generated part of registry.toml: every component with its revision and a fingerprint of its options.

A component that is renamed, or whose options change without a new revision, is reported before results change.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import tomlkit

from ..config.errors import Problem, Refused, nearest
from ..files.atomic import atomic_write
from ..spec.fingerprint import fingerprint
from .manager import Plugins
from .policy import Entry, Policy, read_policy

__all__ = ["check_lockfile", "sync_lockfile"]

MARKER = "# ---- The catalogue, written by `dither registry sync`; do not edit below. ----"
OUTDATED = "lockfile-outdated"
Key = tuple[str, str, str]
Entries = dict[Key, Entry]
"""By kind, name and plugin."""


def check_lockfile(policy: Policy, plugins: Plugins) -> list[Problem]:
    """Return every difference between the catalogue of registry.toml and the loaded plugins."""
    before = _catalogued(policy)
    now = _registered(before, plugins, _included(before, plugins))
    return [*_changed_options(before, now), *_other_changes(before, now, plugins)]


def sync_lockfile(
    path: Path, plugins: Plugins, accept: bool = False, named: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Write the catalogue of the loaded plugins below the policy, which is kept byte for byte.

    Args:
        path: registry.toml; created if it is missing.
        plugins: The loaded plugins.
        accept: Whether options may change without a new revision.
        named: Plugins to include besides those in the catalogue; one that is not installed is removed. Without any, an
            empty catalogue includes all.

    Returns:
        Lines for components that were added, changed or removed, and lines for plugins that were left unchanged.

    Raises:
        Refused: Options of a component changed without a new revision, or the file cannot be read or written.
    """
    policy = read_policy(path) if path.exists() else Policy()
    before = _catalogued(policy)
    included = _included(before, plugins, named)
    now = _registered(before, plugins, included)
    problems = [] if accept else list(_changed_options(before, now))
    if problems:
        raise Refused(problems)
    states = {report.name: report.state for report in plugins.reports}
    kept = {key: e for key, e in before.items() if states.get(e.plugin) != "loaded" and e.plugin not in named}
    after = {**kept, **now}
    _write(path, after)
    changes = [
        f"{'added' if key in after else 'removed'} {_title(key)}" for key in sorted(before.keys() ^ after.keys())
    ]
    changes += [f"changed {_title(key)}" for key in sorted(before.keys() & after.keys()) if before[key] != after[key]]
    notes = []
    for name, number in sorted(Counter(entry.plugin for entry in kept.values()).items()):
        hint = "dither plugins shows why" if name in states else f"dither registry sync {name} removes them"
        notes.append(f'kept {number} of plugin "{name}", which is {states.get(name, "not installed")} here ({hint})')
    for name in sorted({part.plugin for part in plugins.catalog.parts()} - included):
        notes.append(f'did not include plugin "{name}" (dither registry sync {name} includes it)')
    return changes, notes


def _title(key: Key) -> str:
    kind, name, plugin = key
    return f"{kind} {plugin}/{name}"


def _catalogued(policy: Policy) -> Entries:
    return {
        (kind, name.rpartition("/")[2], entry.plugin): entry
        for kind, names in policy.components.items()
        for name, entry in names.items()
    }


def _included(before: Entries, plugins: Plugins, named: Collection[str] = ()) -> set[str]:
    """Return the plugins in the catalogue and those that are named, or else all.

    Raises:
        Refused: A named plugin is neither installed nor in the catalogue, or cannot be used.
    """
    states = {report.name: report.state for report in plugins.reports}
    known = {entry.plugin for entry in before.values()}
    problems = []
    for name in named:
        if states.get(name, "loaded") != "loaded":
            problems.append(Problem(f'plugin "{name}" is {states[name]}', help=SHOWS_WHY, code="plugin-failed"))
        elif name not in states and name not in known:
            close = nearest(name, {*states, *known})
            hint = f'did you mean "{close}"?' if close else None
            problems.append(Problem(f'unknown plugin "{name}"', help=hint, code="unknown-plugin"))
    if problems:
        raise Refused(problems)
    return {*known, *named} or set(states)


def _registered(before: Entries, plugins: Plugins, included: Collection[str]) -> Entries:
    versions = {report.name: report.version for report in plugins.reports}
    entries = Entries()
    for part in plugins.catalog.parts():
        key = (part.kind, part.name, part.plugin)
        since = before[key].since if key in before else versions.get(part.plugin, "")
        if part.plugin in included:
            options = fingerprint(part.spec)
            entries[key] = Entry(plugin=part.plugin, rev=part.rev, since=since, options=options)
    return entries


SYNC = "if that is intended: dither registry sync"
SHOWS_WHY = "dither plugins shows why"


def _changed_options(before: Entries, now: Entries) -> Iterator[Problem]:
    for key, entry in now.items():
        old = before.get(key)
        if old is not None and old.rev == entry.rev and old.options != entry.options:
            text = f'{key[0]} "{key[1]}" of plugin "{entry.plugin}" has other options than rev {old.rev} had'
            yield Problem(text, help=f"raise its rev to {old.rev + 1}, then `dither registry sync`", code=OUTDATED)


def _other_changes(before: Entries, now: Entries, plugins: Plugins) -> Iterator[Problem]:
    states = {report.name: report.state for report in plugins.reports}
    for key, entry in before.items():
        kind, name, plugin = key
        if key not in now:
            state = states.get(plugin, "not installed")
            close = nearest(name, (other for k, other, p in now if (k, p) == (kind, plugin)))
            hint = f'; did you mean "{close}"?' if close else ""
            reason = f"does not register it{hint}" if state == "loaded" else f"is {state}"
            help_text = SYNC if state == "loaded" else f"{SYNC} {plugin}" if plugin not in states else SHOWS_WHY
            text = f'{kind} "{name}" is in the catalogue, but plugin "{plugin}" {reason}'
            yield Problem(text, help=help_text, code=OUTDATED)
        elif entry.rev != now[key].rev:
            text = f'{kind} "{name}" is {plugin}@{entry.rev} in the catalogue, but {plugin}@{now[key].rev} here'
            yield Problem(text, help=SYNC, code=OUTDATED)
    for kind, name, plugin in now:
        if (kind, name, plugin) not in before:
            yield Problem(f'{kind} "{name}" of plugin "{plugin}" is not in the catalogue', help=SYNC, code=OUTDATED)


def _write(path: Path, entries: Entries) -> None:
    """Replace the catalogue below the marker.

    Raises:
        Refused: The file was edited below the marker, or cannot be read or written.
    """
    try:
        content = _content(path, path.read_bytes() if path.exists() else b"", entries)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}", code="unreadable-file") from None


def _content(path: Path, given: bytes, entries: Entries) -> bytes:
    lines = given.splitlines(keepends=True)
    at = next((number for number, line in enumerate(lines) if line.strip() == MARKER.encode()), len(lines))
    above, below = b"".join(lines[:at]), b"".join(lines[at:])
    _check_halves(path, above, below)
    end = "\r\n" if b"\r\n" in above else "\n"
    if above.strip() and not below:
        above += (end * (1 if above.endswith(b"\n") else 2)).encode()
    count = Counter((kind, name) for kind, name, _ in entries)
    tree: dict[str, dict[str, dict[str, object]]] = {}
    for (kind, name, plugin), entry in sorted(entries.items()):
        shown = name if count[kind, name] == 1 else f"{plugin}/{name}"
        tree.setdefault(kind, {})[shown] = entry.model_dump(exclude_defaults=True)
    text = f"{MARKER}\n\n" + (tomlkit.dumps({"components": tree}) if tree else "")
    content = above + text.replace("\n", end).encode()
    tomllib.loads(content.decode("utf-8-sig").replace("\r\n", "\n"))  # never write an invalid file
    return content


def _check_halves(path: Path, above: bytes, below: bytes) -> None:
    try:
        policy, catalogue = (tomllib.loads(half.decode("utf-8-sig")) for half in (above, below))
    except tomllib.TOMLDecodeError:
        raise Refused(f"{path}: the line `{MARKER}` is inside a value", code="syntax-error") from None
    wrong = [f"{path}: move [{key}] above the line `{MARKER}`" for key in catalogue.keys() - {"components"}]
    if "components" in policy:
        wrong.append(f"{path} has [components] without the line `{MARKER}` above it; remove these tables")
    if wrong:
        raise Refused([Problem(text, code="syntax-error") for text in wrong])
