"""new, test-plugin: for those who write plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import Json, PluginOption, Runs, app
from .components import complete_kind, complete_plugin

__all__ = ["new"]

new = typer.Typer(no_args_is_help=True, help="Write the beginnings of something of yours.")
"""The group of verbs that write files."""
app.add_typer(new, name="new")


@new.callback()
def _group() -> None:
    """Write the beginnings of something of yours."""


@new.command("plugin")
def new_plugin(
    name: Annotated[str, typer.Argument(help="Its name in kebab-case, such as wavelet.", show_default=False)],
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="The kind of its part.", autocompletion=complete_kind)
    ],
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="Where its folder is made.")] = Path(),
) -> None:
    """Write a plugin: a package with one part, its tests, and an experiment that uses it. Nothing is overwritten."""
    from dither.registry.plugins.manager import load_plugins

    from ..scaffold import Names, check_kind, check_names, write_package

    names, plugins = Names(name, check_kind(kind)), load_plugins()
    check_names(names, {report.name for report in plugins.reports}, plugins.catalog.names(kind))
    folder = write_package(names, into)
    typer.echo(f"""{folder}: the {kind} "{name}", in {names.module}/specs.py. Next:

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
        typer.Option(
            "--expect", metavar="PART-CHECK=REASON", help="A check that fails on purpose, as it is printed (repeat)."
        ),
    ] = None,
) -> int:
    """Run the conformance kit over the parts of an installed plugin, and say how many checks ran."""
    from ..scaffold.conformance import run_kit

    return run_kit(name, expected or ())


@app.command()
def doctor(selected: PluginOption = None, runs: Runs = Path("runs"), as_json: Json = False) -> int:
    """Check python, torch, plugins, registry.toml and folders, and say what to do. Exits 1 if something is broken."""
    from .doctor import examine, show_findings

    return show_findings(examine(Path(), runs, selected), as_json)
