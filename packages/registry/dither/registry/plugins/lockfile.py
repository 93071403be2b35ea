"""The generated half of registry.toml: every part with its rev and a fingerprint of its options, as a lock.

A part that is renamed, or whose options change while its rev stays, is told before anyone's results change.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import tomlkit
from pydantic import ValidationError

from ..config.errors import Problem, Refused, nearest
from ..files.atomic import atomic_write
from ..spec.fingerprint import fingerprint
from .manager import Plugins
from .policy import Entry, Policy, read_policy

__all__ = ["check_lockfile", "sync_lockfile"]

MARKER = "# ---- The catalogue, written by `dither registry sync`; do not edit below. ----"
Key = tuple[str, str, str]
Entries = dict[Key, Entry]
"""By kind, name and plugin."""


def check_lockfile(policy: Policy, plugins: Plugins) -> list[Problem]:
    """Return every difference between the catalogue of registry.toml and the plugins that are loaded here."""
    before = _written(policy)
    now = _offered(before, plugins, _taken_in(before, plugins))
    return [*_same_rev(before, now), *_other(before, now, plugins)]


def sync_lockfile(
    path: Path, plugins: Plugins, accept: bool = False, named: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Write the catalogue of plugins that are loaded here below the hand-written policy, which stays byte for byte.

    Args:
        path: registry.toml; made where it is missing.
        plugins: What is loaded.
        accept: Whether options may change while the rev stays, as they may before a first release.
        named: Plugins to take in beside those that are in the catalogue; one that is not installed any more is taken
            out. With none, an empty catalogue takes in all.

    Returns:
        A line for each part that was added, changed or removed; and a line for each plugin that was left as it is.

    Raises:
        Refused: A part has other options than before under the same rev, or the file cannot be read or written;
            nothing is written.
    """
    policy = read_policy(path) if path.exists() else Policy()
    before = _written(policy)
    taken = _taken_in(before, plugins, named)
    now = _offered(before, plugins, taken)
    problems = [] if accept else list(_same_rev(before, now))
    if problems:
        raise Refused(problems)
    states = _states(plugins)
    kept = {key: e for key, e in before.items() if states.get(e.plugin) != "loaded" and e.plugin not in named}
    after = {**kept, **now}
    _write(path, after)
    changes = [f"{'added' if key in after else 'removed'} {_told(key)}" for key in sorted(before.keys() ^ after.keys())]
    changes += [f"changed {_told(key)}" for key in sorted(before.keys() & after.keys()) if before[key] != after[key]]
    return changes, [*_kept(kept, states), *_left_out(plugins, taken)]


def _kept(kept: Entries, states: Mapping[str, str]) -> Iterator[str]:
    for name, number in sorted(Counter(entry.plugin for entry in kept.values()).items()):
        state = states.get(name)
        hint = "dither plugins says why" if state else f"dither registry sync {name} takes them out"
        yield f'kept {number} of plugin "{name}", which is {state or "not installed"} here ({hint})'


def _left_out(plugins: Plugins, taken: Collection[str]) -> Iterator[str]:
    for name in sorted({part.plugin for part in plugins.catalog.parts()} - set(taken)):
        yield f'left out plugin "{name}" (dither registry sync {name} takes it in)'


def _told(key: Key) -> str:
    kind, name, plugin = key
    return f"{kind} {plugin}/{name}"


def _states(plugins: Plugins) -> dict[str, str]:
    return {report.name: report.state for report in plugins.reports}


def _written(policy: Policy) -> Entries:
    return {
        (kind, name.rpartition("/")[2], entry.plugin): entry
        for kind, names in policy.components.items()
        for name, entry in names.items()
    }


def _taken_in(before: Entries, plugins: Plugins, named: Collection[str] = ()) -> set[str]:
    """Return the plugins that the catalogue is about: those in it and those that are named, else all.

    Raises:
        Refused: One that is named is neither installed nor in the catalogue, or cannot be used.
    """
    states, known = _states(plugins), {entry.plugin for entry in before.values()}
    problems = []
    for name in named:
        if states.get(name, "loaded") != "loaded":
            problems.append(Problem(f'plugin "{name}" is {states[name]}', help="dither plugins says why"))
        elif name not in states and name not in known:
            close = nearest(name, {*states, *known})
            problems.append(Problem(f'no plugin is named "{name}"', help=f'did you mean "{close}"?' if close else None))
    if problems:
        raise Refused(problems)
    return {*known, *named} or set(states)


def _offered(before: Entries, plugins: Plugins, taken: Collection[str]) -> Entries:
    """Return an entry for each part of these plugins.

    Raises:
        Refused: A part has no right rev.
    """
    versions = {report.name: report.version for report in plugins.reports}
    entries, problems = Entries(), []
    for part in plugins.catalog.parts():
        if part.plugin not in taken:
            continue
        key = (part.kind, part.name, part.plugin)
        since = before[key].since if key in before else versions.get(part.plugin, "")
        try:
            entries[key] = Entry(plugin=part.plugin, rev=part.rev, since=since, options=fingerprint(part.spec))
        except ValidationError:
            text = f'{part.kind} "{part.name}" of plugin "{part.plugin}" has rev {part.rev!r}'
            problems.append(Problem(text, help="a rev is a whole number from 1 on"))
    if problems:
        raise Refused(problems)
    return entries


def _same_rev(before: Entries, now: Entries) -> Iterator[Problem]:
    for key, entry in now.items():
        old = before.get(key)
        if old is not None and old.rev == entry.rev and old.options != entry.options:
            yield Problem(
                f'{key[0]} "{key[1]}" of plugin "{entry.plugin}" has other options than rev {old.rev} had',
                help=f"raise its rev to {old.rev + 1}, then `dither registry sync`",
            )


def _other(before: Entries, now: Entries, plugins: Plugins) -> Iterator[Problem]:
    states = _states(plugins)
    help_text = "if that is meant: dither registry sync"
    for key, entry in before.items():
        kind, name, plugin = key
        if key not in now:
            state = states.get(plugin, "not installed")
            close = nearest(name, (other for k, other, p in now if (k, p) == (kind, plugin)))
            hint = f'; nearest is "{close}"' if close else ""
            word = f"does not offer it{hint}" if state == "loaded" else f"is {state}"
            missing = f"if that is meant: dither registry sync {plugin}"
            how = help_text if state == "loaded" else missing if plugin not in states else "dither plugins says why"
            yield Problem(f'{kind} "{name}" is in the catalogue, but plugin "{plugin}" {word}', help=how)
        elif entry.rev != now[key].rev:
            text = f'{kind} "{name}" is {plugin}@{entry.rev} in the catalogue, but {plugin}@{now[key].rev} here'
            yield Problem(text, help=help_text)
    for kind, name, plugin in now:
        if (kind, name, plugin) not in before:
            yield Problem(f'{kind} "{name}" of plugin "{plugin}" is not in the catalogue', help=help_text)


def _write(path: Path, entries: Entries) -> None:
    """Replace what stands below the marker.

    Raises:
        Refused: The file is not as this module wrote it, or cannot be read or written.
    """
    try:
        given = path.read_bytes() if path.exists() else b""
        page = _page(path, given, entries)
        with atomic_write(path) as beside:
            beside.write_bytes(page)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from None


def _page(path: Path, given: bytes, entries: Entries) -> bytes:
    lines = given.splitlines(keepends=True)
    stripped = [line.strip() for line in lines]
    at = stripped.index(MARKER.encode()) if MARKER.encode() in stripped else len(lines)
    above, below = b"".join(lines[:at]), b"".join(lines[at:])
    _only_components_below(path, above, below)
    end = "\r\n" if b"\r\n" in above else "\n"
    if above.strip() and not below:
        above += (end * (1 if above.endswith(b"\n") else 2)).encode()
    count = Counter((kind, name) for kind, name, _ in entries)
    tree: dict[str, dict[str, dict[str, object]]] = {}
    for (kind, name, plugin), entry in sorted(entries.items()):
        shown = name if count[kind, name] == 1 else f"{plugin}/{name}"
        tree.setdefault(kind, {})[shown] = entry.model_dump(exclude_defaults=True)
    text = f"{MARKER}\n\n" + (tomlkit.dumps({"components": tree}) if tree else "")
    page = above + text.replace("\n", end).encode()
    tomllib.loads(page.decode("utf-8-sig").replace("\r\n", "\n"))  # rather a traceback here than a broken file
    return page


def _only_components_below(path: Path, above: bytes, below: bytes) -> None:
    try:
        tables = [tomllib.loads(half.decode("utf-8-sig")) for half in (above, below)]
    except tomllib.TOMLDecodeError:
        raise Refused(f"{path}: the line `{MARKER}` stands inside a value") from None
    problems = [Problem(f"{path}: move [{key}] above the line `{MARKER}`") for key in tables[1].keys() - {"components"}]
    if "components" in tables[0]:
        problems.append(Problem(f"{path} has [components] without the line `{MARKER}` above it; remove these tables"))
    if problems:
        raise Refused(problems)
