"""registry sync, registry check: the catalogue in registry.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .root import app

__all__: list[str] = []

registry = typer.Typer(help="The catalogue of parts in registry.toml.", no_args_is_help=True)
app.add_typer(registry, name="registry")
File = Annotated[
    Path | None,
    typer.Option("--file", help="The registry.toml; by default the nearest one at or above this folder."),
]


@registry.command()
def sync(
    plugins: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PLUGIN]...",
            help="Plugins to take in beside those in the catalogue, or to take out once they are not installed any "
            "more. By default none; all where the catalogue is empty.",
            show_default=False,
        ),
    ] = None,
    file: File = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Take in options that changed although the rev of their part stayed.")
    ] = False,
) -> None:
    """Write what the plugins offer below the policy. Imports no torch."""
    from dither.registry.catalogue_file import sync_catalogue
    from dither.registry.plugins import load_plugins
    from dither.registry.policy import Policy, policy_file, read_policy

    path = file or policy_file(Path()) or Path("registry.toml")
    loaded = load_plugins(policy=read_policy(path) if path.is_file() else Policy())
    changes, notes = sync_catalogue(path, loaded, accept, plugins or ())
    typer.echo("\n".join([*changes, f"{path}: {len(changes)} changes"]))
    for note in notes:
        typer.echo(note, err=True)


@registry.command()
def check(file: File = None) -> None:
    """Tell what is otherwise than the catalogue says; CI runs it. Imports no torch."""
    from dither.registry.catalogue_file import check_catalogue
    from dither.registry.plugins import load_plugins
    from dither.registry.policy import policy_file, read_policy
    from dither.registry.problems import Refused

    path = file or policy_file(Path())
    if path is None or not path.is_file():
        raise Refused(f"{path or 'registry.toml'} does not exist; `dither registry sync` writes one")
    policy = read_policy(path)
    problems = check_catalogue(policy, load_plugins(policy=policy))
    if problems:
        raise Refused(problems)
    parts = sum(map(len, policy.components.values()))
    typer.echo(f"{path}: {parts} parts, as they are here")
