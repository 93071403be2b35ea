"""doctor: is this environment in order, and what to do where it is not."""

from __future__ import annotations

from pathlib import Path

from .root import Json, Runs, Selected, app

__all__: list[str] = []


@app.command()
def doctor(selected: Selected = None, runs: Runs = Path("runs"), as_json: Json = False) -> int:
    """Check python, torch, plugins, registry.toml and folders, and say what to do. Exits 1 if something is broken."""
    from dither.engine.doctor import examine

    from .doctor_page import show_findings

    return show_findings(examine(Path(), runs, selected), as_json)
