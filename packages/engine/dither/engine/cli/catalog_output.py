"""What list and plugins print, and how a part is found by the words that were given."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dither.registry.config.errors import Refused, nearest
from dither.registry.kinds import KINDS
from dither.registry.plugins.catalog import Component
from dither.registry.plugins.describe import describe
from dither.registry.plugins.manager import Plugins
from dither.registry.spec.base import summary_of

from ..config.component_usages import component_usages

__all__ = [
    "filter_components",
    "find_component",
    "show_component",
    "show_components",
    "show_plugins",
    "show_reference",
    "table",
]


def table(*columns: str) -> Table:
    """Return an empty table in the style of this command line; long cells go on in the next line."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def _known_kind(kind: str) -> str:
    if kind not in KINDS:
        close = nearest(kind, KINDS)
        raise Refused(
            f'"{kind}" is no kind of part' + (f'; did you mean "{close}"?' if close else f": {', '.join(KINDS)}")
        )
    return kind


def filter_components(
    plugins: Plugins, kind: str | None, names: str | None = None, offered_by: Sequence[str] | None = None
) -> list[Component]:
    """Return the parts of a kind whose names are like a pattern, and which certain plugins offer.

    Raises:
        Refused: There is no such kind or plugin, or no part is named so.
    """
    known = [report.name for report in plugins.reports]
    for plugin in offered_by or ():
        if plugin not in known:
            close = nearest(plugin, known)
            hint = f'; did you mean "{close}"?' if close else f"; installed: {', '.join(known) or 'none'}"
            raise Refused(f'no plugin is named "{plugin}"{hint}')
    parts = plugins.catalog.parts(_known_kind(kind) if kind else None)
    if offered_by:
        parts = [part for part in parts if part.plugin in offered_by]
    if names is None:
        return parts
    found = [part for part in parts if fnmatch.fnmatchcase(part.name, names)]
    if not found:
        close = nearest(names, {part.name for part in parts})
        raise Refused(f'no name is like "{names}"' + (f'; did you mean "{close}"?' if close else ""))
    return found


def find_component(plugins: Plugins, word: str, name: str | None) -> Component:
    """Return the part that a kind and a name mean, or a name alone where it is that of one kind only.

    Raises:
        Refused: There is none, or more than one.
    """
    catalog = plugins.catalog
    if name is not None:
        return catalog.find(_known_kind(word), name)
    if word in KINDS:
        raise Refused(f"give the name of a {word} as well: {', '.join(catalog.names(word)) or 'there is none'}")
    short = word.rpartition("/")[2].partition("@")[0]
    kinds = [kind for kind in KINDS if short in catalog.names(kind)]
    if len(kinds) == 1:
        return catalog.find(kinds[0], word)
    if kinds:
        forms = " or ".join(f"`describe {kind} {word}`" for kind in kinds)
        raise Refused(f'"{word}" is the name of several kinds of part; write {forms}')
    close = nearest(short, [*(part.name for part in catalog.parts()), *KINDS])
    raise Refused(f'no part is named "{word}"' + (f'; did you mean "{close}"?' if close else "; see `dither list`"))


def show_components(parts: Iterable[Component], as_json: bool) -> None:
    """Print parts, one a line."""
    if as_json:
        rows = [{"kind": p.kind, "name": p.name, "rev": p.rev, "plugin": p.plugin, "summary": p.summary} for p in parts]
        typer.echo(json.dumps(rows, indent=2))
        return
    made = table("kind, name", "plugin", "what it does")
    last = None
    for part in parts:
        if part.kind != last:
            made.add_row(Text(part.kind, style="bold"))
        last = part.kind
        made.add_row(Text(f"  {part.name}", style="cyan"), Text(part.plugin), Text(part.summary))
    Console().print(made)


def show_reference(plugins: Plugins, parts: Iterable[Component]) -> None:
    """Print the reference of parts as Markdown."""
    lines = ["# Components", "", "Made from the Specs by `dither list --markdown`; do not edit.", ""]
    last = None
    for part in parts:
        facts = describe(part, plugins.catalog)
        if part.kind != last:
            lines += [f"## {part.kind}", "", summary_of(KINDS[part.kind]), ""]
        last = part.kind
        lines += [f"### {part.name}", "", facts["doc"], "", f"From `{part.plugin}`.", ""]
        lines += ["```toml", facts["snippet"], "```", ""]
        if facts["options"]:
            lines += ["| option | type | default | what it is |", "|---|---|---|---|"]
            for option in facts["options"]:
                cells = (f"`{option['name']}`", option["type"], f"`{option['default']}`", option["doc"])
                lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
            lines.append("")
    typer.echo("\n".join(lines).rstrip())


def show_plugins(plugins: Plugins, as_json: bool) -> None:
    """Print what became of every plugin."""
    rows: list[dict[str, Any]] = [
        {
            "name": report.name,
            "state": report.state,
            "source": report.source,
            "version": report.version,
            "parts": report.parts,
            "hooks": list(report.hooks),
            "imports_torch": report.imports_torch,
            "seconds": round(report.seconds, 3),
            "sha256": report.sha256,
            "reason": report.reason,
        }
        for report in plugins.reports
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    made = table("plugin", "state", "from", "version", "parts", "run hooks and checks")
    for row in rows:
        colour = "green" if row["state"] == "loaded" else "red"
        source = Path(row["source"]).name if row["sha256"] else row["source"]
        hooks = ", ".join(hook for hook in row["hooks"] if hook != "register_components")
        parts = str(row["parts"]) if row["state"] == "loaded" else ""
        cells = (source, row["version"], parts, hooks)
        made.add_row(Text(row["name"]), Text(row["state"], style=colour), *map(Text, cells))
    console = Console()
    console.print(made)
    for row in rows:
        if row["reason"]:
            console.print(Text(f"{row['name']}: {row['state']}: {row['reason']}"), soft_wrap=True)
        elif row["imports_torch"]:
            console.print(Text(f"{row['name']}: its import pulls in torch ({row['seconds']} s)"), soft_wrap=True)


NARROW = 100
"""Columns of a terminal below which what an option is stands under it, not beside it."""


def show_component(plugins: Plugins, part: Component, as_json: bool) -> None:
    """Print all there is to know of one part."""
    facts = describe(part, plugins.catalog)
    report = next((report for report in plugins.reports if report.name == part.plugin), None)
    uses = (m.file for m in component_usages(Path("experiments")) if m.means(part.kind, part.plugin, part.name))
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
    facts["contracts"] |= _provenance(facts)
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


def _provenance(facts: dict[str, Any]) -> dict[str, str]:
    """Say where a part comes from, what else it was called, and which experiments here name it."""
    lines = {"plugin": f"{facts['plugin']} {facts['version']}".strip(), "source": facts["source"]}
    if facts["aliases"]:
        lines["once called"] = ", ".join(facts["aliases"])
    if facts["used_in"]:
        lines["used in"] = ", ".join(facts["used_in"])
    return lines
