"""explain, diff: where the values of an experiment came from, and what differs between two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .root import Changes, Experiment, Json, Removals, Selected, app

if TYPE_CHECKING:
    from dither.registry.provenance import Setting

__all__: list[str] = []

WIDEST = 32
"""Characters after which a column no longer pushes the next one to the right."""


@app.command()
def explain(
    experiment: Experiment,
    key: Annotated[
        str | None, typer.Argument(help="Only this key, or the keys of this table.", show_default=False)
    ] = None,
    changes: Changes = None,
    removals: Removals = None,
    selected: Selected = None,
    as_json: Json = False,
) -> None:
    """Show where each value of an experiment came from: file and line, --set, or a default. Imports no torch."""
    from dither.engine.experiment import Experiment as Model
    from dither.engine.experiment import open_experiment
    from dither.registry.provenance import select, settings
    from dither.registry.validation import validate

    document, plugins = open_experiment(experiment, changes or (), removals or (), selected)
    read = validate(Model, document, plugins.catalog)
    found = list(settings(read, document, plugins.catalog))
    if key is not None:
        found = select(found, key)
    _show_settings(found, as_json)


def _show_settings(found: list[Setting], as_json: bool) -> None:
    from dither.registry.problems import dotted, plain

    from .output import as_place, wants_json

    if as_json or wants_json():
        rows = [
            {
                "key": dotted(setting.path),
                "value": setting.value,
                "from": None if setting.default_of else as_place(setting.places[0]),
                "default_of": setting.default_of,
                "over": list(map(as_place, setting.places if setting.default_of else setting.places[1:])),
            }
            for setting in found
        ]
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    lines = [(dotted(setting.path), _written(setting.value), setting.story) for setting in found]
    widths = [min(WIDEST, max(len(line[column]) for line in lines)) for column in (0, 1)]
    for name, value, story in lines:
        typer.echo(plain(f"{name:{widths[0]}} = {value:{widths[1]}}  {story}"))


def _written(value: Any) -> str:
    """Return a value as TOML has it; an option that is left open has none."""
    import tomlkit

    return "(none)" if value is None else tomlkit.item(value).as_string()


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="The directory of a run, or an experiment file.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="Another one.", show_default=False)],
    selected: Selected = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two runs or experiments: options, parts, plugins, versions, git. Imports no torch."""
    from dither.engine.difference import compare, read_side

    from .output import wants_json

    found = compare(read_side(first, selected), read_side(second, selected))
    if as_json or wants_json():
        sections = {name: {key: list(values) for key, values in rows.items()} for name, rows in found.items()}
        typer.echo(json.dumps(sections, indent=2, default=str))
        return
    typer.echo(f"{first} -> {second}")
    for name, rows in found.items():
        typer.echo(f"\n{name}" if rows else "", nl=bool(rows))
        width = min(WIDEST, max(map(len, rows), default=0))
        for key, (old, new) in rows.items():
            typer.echo(f"  {key:{width}}  {_shown(old)} -> {_shown(new)}")
    if not any(found.values()):
        typer.echo("no difference")


def _shown(value: Any) -> str:
    return "(none)" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
