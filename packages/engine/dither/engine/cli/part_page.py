"""What describe prints of one part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dither.engine.mentions import mentions_below
from dither.registry.catalog import Part
from dither.registry.describe import describe
from dither.registry.plugins import Plugins

from .lists import table

__all__ = ["show_part"]

NARROW = 100
"""Columns of a terminal below which what an option is stands under it, not beside it."""


def show_part(plugins: Plugins, part: Part, as_json: bool) -> None:
    """Print all there is to know of one part."""
    facts = describe(part, plugins.catalog)
    report = next((report for report in plugins.reports if report.name == part.plugin), None)
    uses = (m.file for m in mentions_below(Path("experiments")) if m.means(part.kind, part.plugin, part.name))
    facts |= {"version": report.version if report else "", "used_in": list(dict.fromkeys(map(str, uses)))}
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    console = Console()
    console.print(Text.assemble((f"{facts['kind']} {facts['name']}", "bold"), ("  " + facts["pinned"], "dim")))
    console.print(Text(facts["doc"] + "\n"))
    if facts["options"]:
        console.print(_options(facts["options"], wide=console.width >= NARROW))
    else:
        console.print(Text("It has no options."))
    facts["contracts"] |= _where(facts)
    grid = Table.grid(padding=(0, 2))
    for key, value in facts["contracts"].items():
        grid.add_row(Text(key, style="cyan"), Text(value, overflow="fold"))
    console.print(Text("\n") + Text(facts["snippet"]), soft_wrap=True)
    console.print(Text(), grid)


def _options(options: list[dict[str, str]], *, wide: bool) -> Table:
    if wide:
        made = table("option", "type", "default", "what it is")
        for option in options:
            made.add_row(Text(option["name"], style="cyan"), *(Text(option[key]) for key in ("type", "default", "doc")))
        return made
    made = Table.grid()
    for option in options:
        made.add_row(Text.assemble((option["name"], "cyan"), f" = {option['default']}", ("  " + option["type"], "dim")))
        if option["doc"]:
            made.add_row(Padding(Text(option["doc"]), (0, 0, 0, 4)))
    return made


def _where(facts: dict[str, Any]) -> dict[str, str]:
    """Say where a part comes from, what else it was called, and which experiments here name it."""
    lines = {"plugin": f"{facts['plugin']} {facts['version']}".strip(), "source": facts["source"]}
    if facts["aliases"]:
        lines["once called"] = ", ".join(facts["aliases"])
    if facts["used_in"]:
        lines["used in"] = ", ".join(facts["used_in"])
    return lines
