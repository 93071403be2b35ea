"""What list, describe and plugins print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dither.registry.catalog import Part
from dither.registry.describe import describe
from dither.registry.kinds import KINDS
from dither.registry.plugins import Plugins
from dither.registry.problems import Refused, nearest
from dither.registry.spec import summary_of

__all__ = ["show_part", "show_parts", "show_plugins", "show_reference"]


def _kind(kind: str) -> str:
    if kind not in KINDS:
        close = nearest(kind, KINDS)
        raise Refused(
            f'"{kind}" is no kind of part' + (f'; did you mean "{close}"?' if close else f": {', '.join(KINDS)}")
        )
    return kind


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def show_parts(plugins: Plugins, kind: str | None, as_json: bool) -> None:
    """Print every part (of a kind), one a line."""
    parts = plugins.catalog.parts(_kind(kind) if kind else None)
    if as_json:
        rows = [{"kind": p.spec.kind, "name": p.spec.name, "plugin": p.plugin, "summary": p.summary} for p in parts]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = _table("kind", "name", "plugin", "what it does")
    last = None
    for part in parts:
        shown = part.spec.kind if part.spec.kind != last else ""
        table.add_row(shown, Text(part.spec.name, style="cyan"), part.plugin, Text(part.summary))
        last = part.spec.kind
    Console(soft_wrap=False).print(table)


def show_reference(plugins: Plugins, kind: str | None) -> None:
    """Print the reference of every part (of a kind) as Markdown."""
    lines = ["# Components", "", "Made from the Specs by `dither list --markdown`; do not edit.", ""]
    last = None
    for part in plugins.catalog.parts(_kind(kind) if kind else None):
        facts = describe(part, plugins.catalog)
        if part.spec.kind != last:
            lines += [f"## {part.spec.kind}", "", summary_of(KINDS[part.spec.kind]), ""]
        last = part.spec.kind
        lines += [f"### {part.spec.name}", "", facts["doc"], "", f"From `{part.plugin}`.", ""]
        lines += ["```toml", facts["snippet"], "```", ""]
        if facts["options"]:
            lines += ["| option | type | default | what it is |", "|---|---|---|---|"]
            for option in facts["options"]:
                cells = (f"`{option['name']}`", option["type"], f"`{option['default']}`", option["doc"])
                lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
            lines.append("")
    typer.echo("\n".join(lines).rstrip())


def show_part(plugins: Plugins, kind: str, name: str, as_json: bool) -> None:
    """Print all there is to know of one part."""
    part: Part = plugins.catalog.find(_kind(kind), name)
    facts = describe(part, plugins.catalog)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    console = Console()
    console.print(Text(f"{kind} {part.spec.name}", style="bold"), Text(f"  {part.pinned}", style="dim"))
    console.print(Text(facts["doc"]), "\n")
    table = _table("option", "type", "default", "what it is")
    for option in facts["options"]:
        table.add_row(
            Text(option["name"], style="cyan"), Text(option["type"]), Text(option["default"]), Text(option["doc"])
        )
    console.print(table if facts["options"] else "It has no options.")
    console.print(Text(f"\n{facts['snippet']}"))
    console.print(Text(f"source: {facts['source']}", style="dim"))


def show_plugins(plugins: Plugins, as_json: bool) -> None:
    """Print what became of every plugin."""
    rows: list[dict[str, Any]] = []
    for report in plugins.reports:
        parts = [p for p in plugins.catalog.parts() if p.plugin == report.name]
        row = {"name": report.name, "state": report.state, "source": report.source, "version": report.version}
        rows.append(row | {"parts": len(parts), "reason": report.reason})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = _table("plugin", "state", "from", "version", "parts", "reason")
    for row in rows:
        colour = "green" if row["state"] == "loaded" else "red"
        source = Path(row["source"]).name if "/" in row["source"] else row["source"]
        table.add_row(
            row["name"],
            Text(row["state"], style=colour),
            source,
            row["version"],
            str(row["parts"]),
            Text(row["reason"]),
        )
    Console().print(table)
