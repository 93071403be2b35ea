"""What a run was made of, so that it goes on with the same parts or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dither.registry.fingerprint import fingerprint
from dither.registry.problems import dotted
from dither.registry.renames import parts_in

from .experiment import Loaded

__all__ = ["changed_parts", "parts_record", "plugins_record"]


def parts_record(loaded: Loaded) -> dict[str, dict[str, str]]:
    """Return every part of an experiment by its place: its pinned name and the fingerprint of its options."""
    return {
        dotted(path): {"part": loaded.plugins.catalog.pin(spec), "options": fingerprint(type(spec))}
        for path, spec in parts_in(loaded.experiment)
    }


def plugins_record(loaded: Loaded) -> dict[str, dict[str, str]]:
    """Return every plugin that is used or observes: its distribution or file, version, and sha256 of a file."""
    return {
        report.name: {
            "from": report.source.rpartition("/")[2] if report.sha256 else report.source,
            "version": report.version,
            "sha256": report.sha256,
        }
        for report in loaded.plugins.active
    }


def changed_parts(manifest: Mapping[str, Any], loaded: Loaded) -> list[str]:
    """Say which parts, and which plugins that parts come from, are not what a run was started with.

    Args:
        manifest: Of the run.
        loaded: What it would go on with.
    """
    parts, plugins = parts_record(loaded), plugins_record(loaded)
    changes = []
    for place, before in _table(manifest, "parts").items():
        now = parts.get(place, {})
        if now and now["part"] == before.get("part") and now["options"] != before.get("options"):
            changes.append(f"{place}: the options of {now['part']} are others than they were")
    used = {record["part"].partition("/")[0] for record in parts.values()}
    for name, before in _table(manifest, "plugins").items():
        now = plugins.get(name, {})
        if name not in used or not now:
            continue
        if now["sha256"] != before.get("sha256"):
            changes.append(f'plugin file {now["from"]} of plugin "{name}" has another content than it had')
        elif now["version"] != before.get("version"):
            changes.append(f'plugin "{name}" ({now["from"]}): version {before.get("version")} -> {now["version"]}')
    return changes


def _table(manifest: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = manifest.get(key)
    return {k: v for k, v in table.items() if isinstance(v, dict)} if isinstance(table, dict) else {}
