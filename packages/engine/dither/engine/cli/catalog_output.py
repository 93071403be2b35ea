"""Find components by the words of a command line, and print them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import is_file
from dither.registry.hookspecs import REGISTRATION
from dither.registry.kinds import KINDS, known_kind
from dither.registry.plugins.catalog import Catalog, Component
from dither.registry.plugins.describe import describe, describe_options
from dither.registry.plugins.discovery import installed_plugins
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.manifest import Manifest, is_compatible, read_manifest
from dither.registry.plugins.status import describe_exception
from dither.registry.spec.base import Options, summary_of

from ..config.options import Evaluate, Sample, Tracking, Train
from ..runs.progress import table
from .output import echo_json

__all__ = [
    "TABLES",
    "filter_components",
    "show_component",
    "show_components",
    "show_models",
    "show_plugins",
    "show_reference",
    "show_table",
]

TABLES: dict[str, type[Options]] = {
    "train": Train,
    "evaluate": Evaluate,
    "sample": Sample,
    "tracking": Tracking,
}
"""Option tables of an experiment file besides components."""


def filter_components(
    components: Iterable[Any],
    plugins: Sequence[str],
    kind: str | None,
    pattern: str | None = None,
    plugin_names: Sequence[str] | None = None,
) -> list[Any]:
    """Return the components of a kind, with matching names, of certain plugins.

    Refused if a plugin or kind is unknown, or nothing matches the pattern.
    """
    for plugin in plugin_names or ():
        if plugin not in plugins:
            hint = did_you_mean(plugin, plugins, f"known: {', '.join(plugins)}")
            raise Refused(
                Problem(f'unknown plugin "{plugin}"', help=hint, code="unknown-plugin")
            )
    kinds = {known_kind(kind)} if kind else {*KINDS}
    owners = set(plugin_names or plugins)
    candidates = [c for c in components if c.kind in kinds and c.plugin in owners]
    # A kind without components is not a mistake, a pattern without matches is.
    if pattern is None:
        return candidates
    matching = [c for c in candidates if fnmatch.fnmatchcase(c.name, pattern)]
    if not matching:
        hint = did_you_mean(pattern, {component.name for component in candidates})
        message = f'no component matches "{pattern}"'
        raise Refused(Problem(message, help=hint, code="unknown-component"))
    return matching


def show_models(models: Mapping[str, Path], pattern: str | None, as_json: bool) -> None:
    """Print trained models, one per line: name, size of the weights, first line of the card."""
    rows = []
    for name, folder in models.items():
        if pattern is None or fnmatch.fnmatchcase(name, pattern):
            size = (folder / "weights.safetensors").stat().st_size
            rows.append((name, size, card_summary(folder)))
    keys = ("name", "bytes", "summary")
    if echo_json(as_json, [dict(zip(keys, row, strict=True)) for row in rows]):
        return
    lines = table("name", "size", "content", right=("size",))
    for name, size, summary in rows:
        lines.add_row(name, f"{size / 1e6:.1f} MB", summary)
    Console().print(lines)


def card_summary(folder: Path) -> str:
    """Return the first line of text of the card of a model, after its title."""
    card = folder / "README.md"
    if not is_file(card):
        return ""
    lines = [line for line in read_text(card).splitlines() if line]
    return next((line for line in lines if not line.startswith("#")), "")


def show_components(components: Iterable[Any], as_json: bool) -> None:
    """Print components, one per line."""
    keys = ("kind", "name", "rev", "plugin", "summary")
    components = list(components)
    if echo_json(as_json, [{key: getattr(c, key) for key in keys} for c in components]):
        return
    page = table("kind, name", "plugin", "description")
    for kind, group in groupby(components, lambda component: component.kind):
        # Text, as rich takes brackets in a str for markup.
        page.add_row(Text(kind, style="bold"))
        for component in group:
            page.add_row(
                Text(f"  {component.name}", style="cyan"),
                Text(component.plugin),
                Text(component.summary),
            )
    Console().print(page)


def show_reference(catalog: Catalog, components: Sequence[Component]) -> None:
    """Print a reference page in Markdown; that of all components has the tables, too."""
    lines = ["# Components", "", "Generated by `dither list --markdown`.", ""]
    for kind, group in groupby(components, lambda component: component.kind):
        lines += [f"## {kind}", "", summary_of(KINDS[kind]), ""]
        for component in group:
            facts = describe(component, catalog)
            lines += [f"### {component.name}", "", facts["doc"], ""]
            lines += [f"From `{component.plugin}`.", ""]
            lines += ["```toml", facts["snippet"], "```", ""]
            lines += _markdown_options(facts["options"])
    # A page of some components, as of one plugin, has no use for the tables of an experiment.
    if len(components) == len(catalog.parts()):
        for name, options in TABLES.items():
            lines += [f"## [{name}]", "", summary_of(options), ""]
            lines += _markdown_options(describe_options(options))
    typer.echo("\n".join(lines).rstrip())


def _markdown_options(options: Sequence[Mapping[str, str]]) -> list[str]:
    if not options:
        return []
    lines = ["| option | type | default | description |", "|---|---|---|---|"]
    for option in options:
        cells = (
            f"`{option['name']}`",
            option["type"],
            f"`{option['default']}`",
            option["doc"],
        )
        lines.append("| " + " | ".join(map(_markdown_cell, cells)) + " |")
    return [*lines, ""]


def _markdown_cell(text: str) -> str:
    # A pipe ends a cell, and a line break the table.
    return " ".join(text.replace("|", "\\|").split())


def show_plugins(plugins: Plugins, as_json: bool) -> None:
    """Print the state of every plugin."""
    reports = plugins.reports
    manifests, remarks = _manifests()
    kits = {name: manifest.kit for name, manifest in manifests.items() if manifest.kit}
    rows = [
        {**asdict(report), "kit": str(kits.get(report.name, ""))} for report in reports
    ]
    if echo_json(as_json, rows):
        return
    page = table("plugin", "state", "from", "version", "components", "other hooks")
    for report in reports:
        is_loaded = report.state == "loaded"
        # Only a plugin that is a single file has a checksum.
        is_file = bool(report.sha256)
        page.add_row(
            report.name,
            Text(report.state, "green" if is_loaded else "red"),
            Text(Path(report.source).name if is_file else report.source),
            Text(report.version),
            Text(str(report.parts) if is_loaded else ""),
            Text(", ".join(hook for hook in report.hooks if hook != REGISTRATION)),
        )
        if report.reason:
            remarks.append(f"{report.name}: {report.state}: {report.reason}")
        elif report.imports_torch:
            remarks.append(
                f"{report.name}: imports torch when loaded ({report.seconds:.3f} s)"
            )
    for name, kit in kits.items():
        remarks.append(
            f"{name}: {kit} checks of the conformance kit passed, by its author"
        )
    console = Console()
    console.print(page)
    for remark in remarks:
        console.print(Text(remark), soft_wrap=True)


def _manifests() -> tuple[dict[str, Manifest], list[str]]:
    """Return the manifests of installed plugins, and a warning for each that is of no use."""
    manifests = {}
    warnings = []
    registry = version("dither-registry")
    for name, points in installed_plugins().items():
        try:
            manifest = read_manifest(points[0])
        except Refused as refused:
            # A plugin works without its manifest, which only describes it.
            warnings.append(f"{name}: manifest ignored: {describe_exception(refused)}")
            continue
        if manifest is None:
            continue
        manifests[name] = manifest
        if not is_compatible(manifest.dither, registry):
            required = f"is written for dither-registry{manifest.dither}"
            warnings.append(f"{name}: {required}, and {registry} is installed")
    return manifests, warnings


def show_component(plugins: Plugins, component: Component, as_json: bool) -> None:
    """Print everything about one component, and the files below experiments/ that name it."""
    facts = describe(component, plugins.catalog)
    versions = {report.name: report.version for report in plugins.reports}
    facts["version"] = versions.get(component.plugin, "")
    facts["used_in"] = []
    for path in sorted(Path("experiments").rglob("*.toml")):
        # Not parsed: an unfinished file may use the component, too.
        if f'"{component.name}"' in path.read_text("utf-8", "replace"):
            facts["used_in"].append(str(path))
    if echo_json(as_json, facts):
        return

    console = Console()
    title = (f"{facts['kind']} {facts['name']}", "bold")
    console.print(Text.assemble(title, ("  " + facts["pinned"], "dim")))
    console.print(Text(_joined_lines(facts["doc"]) + "\n"))
    _show_options(console, facts["options"])
    console.print(Text("\n" + facts["snippet"] + "\n"), soft_wrap=True)

    rows = dict(facts["contracts"])
    rows["plugin"] = f"{facts['plugin']} {facts['version']}".strip()
    rows["source"] = facts["source"]
    if facts["used_in"]:
        rows["used in"] = ", ".join(facts["used_in"])
    grid = Table.grid(padding=(0, 2))
    for key, value in rows.items():
        grid.add_row(Text(key, style="cyan"), Text(value, overflow="fold"))
    console.print(grid)


def show_table(name: str, as_json: bool) -> None:
    """Print the options of a table of experiment files."""
    options = describe_options(TABLES[name])
    if echo_json(as_json, {"name": name, "options": options}):
        return
    console = Console()
    console.print(
        Text.assemble((f"[{name}]", "bold"), f"\n{summary_of(TABLES[name])}\n")
    )
    _show_options(console, options)


def _joined_lines(doc: str) -> str:
    """Join the lines of each paragraph, which end where those of the source do; lists stay."""
    paragraphs = []
    for paragraph in doc.split("\n\n"):
        is_list = any(line.startswith((" ", "- ")) for line in paragraph.splitlines())
        paragraphs.append(paragraph if is_list else paragraph.replace("\n", " "))
    return "\n\n".join(paragraphs)


def _show_options(console: Console, options: Iterable[Mapping[str, str]]) -> None:
    for option in options:
        default = f" = {option['default']}  "
        console.print(
            Text.assemble((option["name"], "cyan"), default, (option["type"], "dim"))
        )
        if option["doc"]:
            console.print(Padding(Text(option["doc"]), (0, 0, 0, 4)))
