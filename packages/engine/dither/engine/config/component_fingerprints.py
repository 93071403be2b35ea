"""What a run was made of, so that it goes on with the same parts or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dither.registry.config.errors import Refused, dotted
from dither.registry.plugins.catalog import Catalog
from dither.registry.spec.aliases import components_in
from dither.registry.spec.base import Spec
from dither.registry.spec.fingerprint import fingerprint
from dither.registry.spec.misfit import Path

from .load_experiment import Loaded

__all__ = [
    "changed_components",
    "changed_files",
    "changed_tables",
    "component_fingerprints",
    "newest_record",
    "plugin_fingerprints",
]


def component_fingerprints(loaded: Loaded) -> dict[str, dict[str, str]]:
    """Return every part of an experiment by its place: its pinned name and the fingerprint of its options."""
    return {
        dotted(path): {"part": loaded.plugins.catalog.pin(spec), "options": fingerprint(type(spec))}
        for path, spec in components_in(loaded.experiment)
    }


def plugin_fingerprints(loaded: Loaded) -> dict[str, dict[str, str]]:
    """Return every plugin that is used or observes: its distribution or file, version, and sha256 of a file."""
    return {
        report.name: {
            "from": report.source.rpartition("/")[2] if report.sha256 else report.source,
            "version": report.version,
            "sha256": report.sha256,
        }
        for report in loaded.plugins.active
    }


def changed_components(manifest: Mapping[str, Any], loaded: Loaded) -> list[str]:
    """Say which parts, and which plugins that parts come from, are not what a run was started, or last resumed, with.

    Args:
        manifest: Of the run.
        loaded: What it would go on with.
    """
    before_parts, before_plugins = (newest_record(manifest, key) for key in ("parts", "plugins"))
    parts, plugins = component_fingerprints(loaded), plugin_fingerprints(loaded)
    changes = []
    for path, spec in components_in(loaded.experiment):
        place = dotted(path)
        before, now = before_parts.get(place, {}), parts[place]
        if _meaning(loaded.plugins.catalog, spec.kind, before.get("part")) != now["part"]:
            continue  # another part, which resolved.toml tells
        if now["options"] != before.get("options"):
            since = _since(loaded, path, spec)
            changes.append(f"{place}: the options of {now['part']} are others than they were{since}")
    used = {record["part"].partition("/")[0] for record in parts.values()}
    changes += changed_files(manifest, loaded)
    for name, before in before_plugins.items():
        now = plugins.get(name, {})
        if name not in used or not now or now["sha256"] != before.get("sha256"):
            continue
        if now["version"] != before.get("version"):
            changes.append(f'plugin "{name}" ({now["from"]}): version {before.get("version")} -> {now["version"]}')
    return changes


def _since(loaded: Loaded, path: Path, spec: Spec) -> str:
    """Say which options the experiment of a run knows nothing of, and what they are now."""
    given = loaded.document.at(path)
    new = [name for name in type(spec).model_fields if isinstance(given, dict) and name not in given]
    shown = {name: json.dumps(value, default=str) for name in new if (value := getattr(spec, name)) is not None}
    values = ", ".join(f"{name} = {value}" for name, value in shown.items())
    return f"; new since then: {values}" if new else ""


def changed_files(manifest: Mapping[str, Any], loaded: Loaded) -> list[str]:
    """Say which plugin files, of plugins that parts come from, have another content than the run knew last."""
    used = {record["part"].partition("/")[0] for record in component_fingerprints(loaded).values()}
    before, now = newest_record(manifest, "plugins"), plugin_fingerprints(loaded)
    return [
        f'plugin file {now[name]["from"]} of plugin "{name}" has another content than it had'
        for name in before
        if name in used and name in now and now[name]["sha256"] != before[name].get("sha256")
    ]


def _meaning(catalog: Catalog, kind: str, part: Any) -> str | None:
    """Return what a pinned name means today: a part may have been renamed."""
    try:
        return catalog.find(kind, str(part)).pinned
    except Refused:
        return None


def newest_record(manifest: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return what the run was made of when it last went on, or else when it was started."""
    return {k: v for k, v in _newest(manifest, key).items() if isinstance(v, dict)}


def changed_tables(manifest: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return those tables that are not as the run has them already: a run may go on a thousand times."""
    return {key: table for key, table in tables.items() if table != _newest(manifest, key)}


def _newest(manifest: Mapping[str, Any], key: str) -> dict[str, Any]:
    entries = [manifest, *(entry for entry in manifest.get("resumed", ()) if isinstance(entry, dict))]
    return next((entry[key] for entry in reversed(entries) if isinstance(entry.get(key), dict)), {})
