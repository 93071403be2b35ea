"""How the findings of doctor are printed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dither.engine.doctor import Finding

__all__ = ["show_findings"]

COLOURS = {"ok": "green", "note": "yellow", "broken": "bold red"}


def show_findings(findings: Iterable[Finding], as_json: bool) -> int:
    """Print findings on a page; return 1 if something is broken."""
    found = list(findings)
    code = int(any(finding.state == "broken" for finding in found))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
        return code
    page = Table.grid(padding=(0, 2))
    for finding in found:
        text = Text(finding.message, overflow="fold")
        if finding.advice and finding.state != "ok":
            text += Text(f"\n-> {finding.advice}", style="cyan")
        page.add_row(Text(finding.state, style=COLOURS[finding.state]), Text(finding.topic), text)
    console = Console()
    console.print(page)
    count = {state: sum(finding.state == state for finding in found) for state in COLOURS}
    console.print(f"\n{count['broken']} broken, {count['note']} notes, {count['ok']} in order")
    return code
