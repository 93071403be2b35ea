"""The generated half of registry.toml: every part with its rev and a fingerprint of its options, as a lock.

A part that is renamed, or whose options change while its rev stays, is told before anyone's results change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from .plugins import Plugins
from .policy import Entry, Policy, read_policy
from .problems import Problem, Refused, nearest
from .storage import write_aside

__all__ = ["check_catalogue", "sync_catalogue"]

MARKER = "# ---- The catalogue, written by `dither registry sync`; do not edit below. ----"
Entries = dict[tuple[str, str], Entry]


def check_catalogue(policy: Policy, plugins: Plugins) -> list[Problem]:
    """Return every difference between the catalogue of registry.toml and the plugins that are loaded here."""
    before, now = _written(policy), _offered(policy, plugins)
    return [*_same_rev(before, now), *_other(before, now, plugins)]


def sync_catalogue(path: Path, plugins: Plugins, accept: bool = False) -> list[str]:
    """Write the catalogue of the plugins that are loaded here below the hand-written policy.

    Args:
        path: registry.toml; made where it is missing.
        plugins: What is loaded.
        accept: Whether options may change while the rev stays, as they may before a first release.

    Returns:
        One line for each part that was added, changed or removed.

    Raises:
        Refused: A part has other options than before under the same rev; nothing is written.
    """
    policy = read_policy(path) if path.is_file() else Policy()
    before, now = _written(policy), _offered(policy, plugins)
    problems = [] if accept else list(_same_rev(before, now))
    if problems:
        raise Refused(problems)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if MARKER not in text and policy.components:
        raise Refused(f"{path} has a catalogue without the line `{MARKER}` above it; remove its [components] tables")
    with write_aside(path) as beside:
        beside.write_text(_page(text.partition(MARKER)[0], now), encoding="utf-8")
    words = {True: "added", False: "removed"}
    lines = [f"{words[key in now]} {key[0]} {key[1]}" for key in sorted(before.keys() ^ now.keys())]
    return lines + [f"changed {k[0]} {k[1]}" for k in sorted(before.keys() & now.keys()) if before[k] != now[k]]


def _written(policy: Policy) -> Entries:
    return {(kind, name): entry for kind, names in policy.components.items() for name, entry in names.items()}


def _offered(policy: Policy, plugins: Plugins) -> Entries:
    """Return an entry for each part; where two plugins offer one name, under `plugin/name`."""
    versions = {report.name: report.version for report in plugins.reports}
    before, entries = _written(policy), Entries()
    parts = plugins.catalog.parts()
    count = Counter((part.kind, part.name) for part in parts)
    for part in parts:
        alone = count[part.kind, part.name] == 1
        key = (part.kind, part.name if alone else f"{part.plugin}/{part.name}")
        since = before[key].since if key in before else versions.get(part.plugin, "")
        entries[key] = Entry(plugin=part.plugin, rev=part.rev, since=since, options=part.offer.options)
    return entries


def _same_rev(before: Entries, now: Entries) -> Iterator[Problem]:
    for (kind, name), entry in now.items():
        old = before.get((kind, name))
        if old is not None and (old.plugin, old.rev) == (entry.plugin, entry.rev) and old.options != entry.options:
            yield Problem(
                f'{kind} "{name}" of plugin "{entry.plugin}" has other options than rev {old.rev} had',
                help=f"raise its rev to {old.rev + 1}, then `dither registry sync`",
            )


def _other(before: Entries, now: Entries, plugins: Plugins) -> Iterator[Problem]:
    states = {report.name: report.state for report in plugins.reports}
    help_text = "if that is meant: dither registry sync"
    for (kind, name), entry in before.items():
        if (kind, name) not in now:
            state = states.get(entry.plugin, "not installed")
            close = nearest(name, (other for k, other in now if k == kind))
            hint = f'; nearest is "{close}"' if close else ""
            word = f"does not offer it{hint}" if state == "loaded" else f"is {state}"
            yield Problem(f'{kind} "{name}" is in the catalogue, but plugin "{entry.plugin}" {word}', help=help_text)
        elif (entry.plugin, entry.rev) != (now[kind, name].plugin, now[kind, name].rev):
            new = now[kind, name]
            text = f'{kind} "{name}" is {entry.plugin}@{entry.rev} in the catalogue, but {new.plugin}@{new.rev} here'
            yield Problem(text, help=help_text)
    known = {entry.plugin for entry in before.values()}
    for (kind, name), entry in now.items():
        if (kind, name) not in before and (entry.plugin in known or not before):
            yield Problem(f'{kind} "{name}" of plugin "{entry.plugin}" is not in the catalogue', help=help_text)


def _page(policy: str, entries: Mapping[tuple[str, str], Entry]) -> str:
    lines = [policy.rstrip() + "\n\n" if policy.strip() else "", MARKER, "\n"]
    for (kind, name), entry in entries.items():
        key = f'"{name}"' if "/" in name else name
        lines.append(f'\n[components.{kind}.{key}]\nplugin = "{entry.plugin}"\nrev = {entry.rev}\n')
        lines.append(f'since = "{entry.since}"\n' * bool(entry.since) + f'options = "{entry.options}"\n')
    return "".join(lines)
