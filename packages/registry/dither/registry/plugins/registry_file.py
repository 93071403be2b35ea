"""Check and write the tables of components in registry.toml."""

from __future__ import annotations

from pathlib import Path

from ..config.errors import Problem
from ..files.atomic import atomic_write, output_file
from ..files.lookup import exists
from ..files.write_errors import unwritable
from .manager import Plugins
from .policy import Components, Policy, component_rows, read_policy

__all__ = ["check_components", "sync_components"]

OUTDATED = "registry-outdated"
SYNC = "dither registry sync"


def check_components(policy: Policy, plugins: Plugins) -> list[Problem]:
    """Return every difference between the tables of components and the plugins they list."""
    listed = set(component_rows(policy.components))
    registered = set(component_rows(_registered(plugins)))
    # An empty file is compared with all plugins.
    if listed:
        # A plugin that only some machines have is not in the file, and no difference.
        registered = {row for row in registered if row[0] in policy.components}
    problems = [_missing(row, plugins) for row in sorted(listed - registered)]
    for plugin, kind, name in sorted(registered - listed):
        text = f'{kind} "{name}" of plugin "{plugin}" is not in registry.toml'
        problems.append(Problem(text, help=SYNC, code=OUTDATED))
    return problems


def _missing(row: tuple[str, str, str], plugins: Plugins) -> Problem:
    plugin, kind, name = row
    states = {status.name: status.state for status in plugins.reports}
    state = states.get(plugin, "not installed")
    hint = SYNC
    if state == "loaded":
        reason = "does not register it"
    else:
        reason = f"is {state}"
        if state != "not installed":
            hint = "dither plugins shows why"
    text = f'{kind} "{name}" is in registry.toml, but plugin "{plugin}" {reason}'
    return Problem(text, help=hint, code=OUTDATED)


def _registered(plugins: Plugins) -> Components:
    """Return the components of the loaded plugins."""
    components: Components = {}
    # In the order of kinds, then names.
    for component in plugins.catalog.parts():
        kinds = components.setdefault(component.plugin, {})
        kinds.setdefault(component.kind, []).append(component.name)
    return dict(sorted(components.items()))


def sync_components(path: Path, plugins: Plugins) -> list[str]:
    """Write the tables of components; return a line for each component added or removed.

    Other tables and comments stay as they are, and so do tables of plugins that are blocked or
    failed. Raises `Refused` if the file is invalid or cannot be written.
    """
    import tomlkit

    try:
        target = output_file(path)
    except OSError as error:
        raise unwritable(path, error) from None
    before = read_policy(path).components if exists(path) else {}
    # Their components are unknown here, but others may be able to load them.
    unusable = {status.name for status in plugins.reports if status.state != "loaded"}
    after = {plugin: kinds for plugin, kinds in before.items() if plugin in unusable}
    after = dict(sorted((after | _registered(plugins)).items()))
    try:
        document = tomlkit.parse(
            path.read_bytes().decode("utf-8-sig") if exists(path) else ""
        )
        # Written again at the end; tomlkit keeps all else, with comments.
        document.pop("components", None)
        sections = [tomlkit.dumps(document).rstrip()]
        if after:
            sections.append(tomlkit.dumps({"components": after}).rstrip())
        text = "\n\n".join(filter(None, sections)) + "\n"
        with atomic_write(target) as temporary:
            # Without CRLF on Windows, so that the file is the same on every system.
            temporary.write_text(text, encoding="utf-8", newline="")
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None

    rows_before = set(component_rows(before))
    rows_after = set(component_rows(after))
    lines = []
    # A name that moved to another plugin is one removed and one added.
    for plugin, kind, name in sorted(rows_before ^ rows_after):
        change = "added" if (plugin, kind, name) in rows_after else "removed"
        lines.append(f"{change} {kind} {plugin}/{name}")
    return lines
