"""`dither new plugin`, `dither test-plugin`, `dither doctor`: commands for plugin authors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import Json, PluginOption, Runs, app
from .components import complete_kind, complete_plugin

__all__ = ["new"]

new = typer.Typer(no_args_is_help=True)
"""The group `dither new`."""
app.add_typer(new, name="new")


@new.callback()
def _group() -> None:
    """Write a new plugin."""


@new.command("plugin")
def new_plugin(
    name: Annotated[str, typer.Argument(help="Name in kebab-case, such as wavelet.", show_default=False)],
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Kind of its component.", autocompletion=complete_kind)
    ],
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="Parent folder.")] = Path(),
    single_file: Annotated[bool, typer.Option("--single-file", help="Write only NAME.py.")] = False,
) -> None:
    """Write a plugin: a package with one component, tests, and an experiment. Nothing is overwritten."""
    from dither.registry.plugins.manager import load_plugins

    from ..scaffold import Names, check_kind, check_names, write_package, write_single_file

    names, plugins = Names(name, check_kind(kind)), load_plugins()
    check_names(names, {report.name for report in plugins.reports}, plugins.catalog.names(kind))
    if single_file:
        path = write_single_file(names, into)
        typer.echo(f'{path}: {kind} "{name}"; use it with -p {path}, or plugins = ["./{path.name}"] in an experiment')
        return
    folder = write_package(names, into)
    typer.echo(f"""{folder}: {kind} "{name}", in {names.module}/__init__.py. Next:

    cd {folder}
    python -m pip install -e '.[test]'
    pytest
    dither run experiment.toml""")


@app.command("test-plugin")
def check_plugin(
    name: Annotated[
        str, typer.Argument(help="An installed plugin.", show_default=False, autocompletion=complete_plugin)
    ],
    expected: Annotated[
        list[str] | None,
        typer.Option("--expect", metavar="KIND:NAME-CHECK=REASON", help="A check that fails on purpose (repeatable)."),
    ] = None,
) -> int:
    """Run the conformance kit over the components of an installed plugin."""
    from ..scaffold.conformance import run_kit

    return run_kit(name, expected or ())


@app.command()
def doctor(selected: PluginOption = None, runs: Runs = Path("runs"), as_json: Json = False) -> int:
    """Check Python, torch, plugins, registry.toml and folders, with advice. Exits with 1 if something is broken."""
    from .doctor import examine, show_findings

    return show_findings(examine(Path(), runs, selected), as_json)
