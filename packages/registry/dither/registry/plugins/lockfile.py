"""The generated part of registry.toml: every component with its revision and a fingerprint of its options.

A component that is renamed, or whose options change without a new revision, is reported before
results change.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
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
    """Return every difference between the catalogue of registry.toml and the plugins that it lists."""
    before = _catalogued(policy)
    listed = {plugin for _, _, plugin in before}
    now = {
        key: entry
        for key, entry in _registered(before, plugins).items()
        if not listed or key[2] in listed
    }
    return [*_changed_options(before, now), *_other_changes(before, now, plugins)]


def sync_lockfile(path: Path, plugins: Plugins, accept: bool = False) -> list[str]:
    """Write the catalogue of the loaded plugins below the policy; return a line for each changed component.

    The policy is kept byte for byte, as are entries of plugins that are blocked or failed. Raises
    `Refused` if the file cannot be written, or options changed without a new revision, which
    `accept` allows.
    """
    before = _catalogued(read_policy(path)) if path.exists() else {}
    now = _registered(before, plugins)
    problems = [] if accept else list(_changed_options(before, now))
    if problems:
        raise Refused(problems)
    unused = {report.name for report in plugins.reports if report.state != "loaded"}
    after = {**{key: entry for key, entry in before.items() if entry.plugin in unused}, **now}
    _write(path, after)
    changes = [
        (key, "added" if key in after else "removed")
        for key in sorted(before.keys() ^ after.keys())
    ]
    changes += [
        (key, "changed")
        for key in sorted(before.keys() & after.keys())
        if before[key] != after[key]
    ]
    return [f"{change} {kind} {plugin}/{name}" for (kind, name, plugin), change in changes]


def _catalogued(policy: Policy) -> Entries:
    return {
        (kind, name.rpartition("/")[2], entry.plugin): entry
        for kind, names in policy.components.items()
        for name, entry in names.items()
    }


def _registered(before: Entries, plugins: Plugins) -> Entries:
    versions = {report.name: report.version for report in plugins.reports}
    entries = Entries()
    for part in plugins.catalog.parts():
        key = (part.kind, part.name, part.plugin)
        since = before[key].since if key in before else versions.get(part.plugin, "")
        entries[key] = Entry(
            plugin=part.plugin,
            rev=part.rev,
            since=since,
            options=fingerprint(part.spec),
        )
    return entries


SYNC = "if that is intended: dither registry sync"


def _changed_options(before: Entries, now: Entries) -> Iterator[Problem]:
    for key, entry in now.items():
        old = before.get(key)
        if old is not None and old.rev == entry.rev and old.options != entry.options:
            text = f'{key[0]} "{key[1]}" of plugin "{entry.plugin}" has other options than rev {old.rev} had'
            yield Problem(
                text,
                help=f"raise its rev to {old.rev + 1}, then `dither registry sync`",
                code=OUTDATED,
            )


def _other_changes(before: Entries, now: Entries, plugins: Plugins) -> Iterator[Problem]:
    states = {report.name: report.state for report in plugins.reports}
    for key, entry in before.items():
        kind, name, plugin = key
        if key not in now:
            state = states.get(plugin, "not installed")
            close = nearest(name, (other for k, other, p in now if (k, p) == (kind, plugin)))
            hint = f'; did you mean "{close}"?' if close else ""
            reason = f"does not register it{hint}" if state == "loaded" else f"is {state}"
            help_text = SYNC if state in ("loaded", "not installed") else "dither plugins shows why"
            text = f'{kind} "{name}" is in the catalogue, but plugin "{plugin}" {reason}'
            yield Problem(text, help=help_text, code=OUTDATED)
        elif entry.rev != now[key].rev:
            text = f'{kind} "{name}" is {plugin}@{entry.rev} in the catalogue, but {plugin}@{now[key].rev} here'
            yield Problem(text, help=SYNC, code=OUTDATED)
    for kind, name, plugin in now:
        if (kind, name, plugin) not in before:
            yield Problem(
                f'{kind} "{name}" of plugin "{plugin}" is not in the catalogue',
                help=SYNC,
                code=OUTDATED,
            )


def _write(path: Path, entries: Entries) -> None:
    try:
        content = _content(path, path.read_bytes() if path.exists() else b"", entries)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise Refused(
            f"{path} cannot be written: {error.strerror}", code="unreadable-file"
        ) from None


def _content(path: Path, given: bytes, entries: Entries) -> bytes:
    lines = given.splitlines(keepends=True)
    at = next(
        (number for number, line in enumerate(lines) if line.strip() == MARKER.encode()), len(lines)
    )
    above = b"".join(lines[:at])
    below = b"".join(lines[at:])
    _check_halves(path, above, below)
    if above.strip() and not below:
        above += b"\n" * (1 if above.endswith(b"\n") else 2)
    count = Counter((kind, name) for kind, name, _ in entries)
    tree: dict[str, dict[str, dict[str, object]]] = {}
    for (kind, name, plugin), entry in sorted(entries.items()):
        shown = name if count[kind, name] == 1 else f"{plugin}/{name}"
        tree.setdefault(kind, {})[shown] = entry.model_dump(exclude_defaults=True)
    content = (
        above + (f"{MARKER}\n\n" + (tomlkit.dumps({"components": tree}) if tree else "")).encode()
    )
    tomllib.loads(content.decode("utf-8-sig").replace("\r\n", "\n"))  # never write an invalid file
    return content


def _check_halves(path: Path, above: bytes, below: bytes) -> None:
    try:
        policy, catalogue = (tomllib.loads(half.decode("utf-8-sig")) for half in (above, below))
    except tomllib.TOMLDecodeError:
        raise Refused(
            f"{path}: the line `{MARKER}` is inside a value", code="syntax-error"
        ) from None
    wrong = [
        f"{path}: move [{key}] above the line `{MARKER}`"
        for key in catalogue.keys() - {"components"}
    ]
    if "components" in policy:
        wrong.append(
            f"{path} has [components] without the line `{MARKER}` above it; remove these tables"
        )
    if wrong:
        raise Refused([Problem(text, code="syntax-error") for text in wrong])
