"""What the shell is offered when somebody presses TAB: kinds, names, plugins, experiment files.

An answer that cannot be given is no answer: nothing may be printed into a half-written line.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import Json, PluginOption, app

__all__ = ["complete_form", "complete_kind", "complete_name", "complete_plugin", "visible_plugins"]


def complete_kind(incomplete: str) -> list[str]:
    """Return the kinds of part."""
    from dither.registry.kinds import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the kind that stands before."""
    with contextlib.suppress(Exception):
        names = visible_plugins(None).catalog.names(str(ctx.params.get("kind")))
        return [name for name in names if name.startswith(incomplete)]
    return []


def complete_form(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the forms in which the task of a run exports samples."""
    with contextlib.suppress(Exception):
        from ..config.load_experiment import load_experiment
        from ..runs.run_directory import resolved_file

        task = load_experiment(resolved_file(Path(str(ctx.params.get("run_directory"))))).experiment.task
        return [form for form in task.exports if form.startswith(incomplete)]
    return []


def complete_plugin(incomplete: str) -> list[str]:
    """Return the names of installed plugins."""
    with contextlib.suppress(Exception):
        names = [report.name for report in visible_plugins(None).reports]
        return [name for name in names if name.startswith(incomplete)]
    return []


@app.command("list")
def list_components(
    kind: Annotated[
        str | None,
        typer.Argument(help="Only this kind, such as block.", show_default=False, autocompletion=complete_kind),
    ] = None,
    names: Annotated[
        str | None, typer.Option("--filter", metavar="GLOB", help="Only names like this, such as 'log-*'.")
    ] = None,
    offered_by: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="NAME", help="Only of this plugin (repeat).", autocompletion=complete_plugin),
    ] = None,
    selected: PluginOption = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
) -> None:
    """List the parts that an experiment may name. Imports no torch."""
    from .catalog_output import filter_components, show_components, show_reference

    plugins = visible_plugins(selected)
    parts = filter_components(plugins, kind, names, offered_by)
    if as_markdown:
        show_reference(plugins, parts)
    else:
        show_components(parts, as_json)


@app.command()
def describe(
    kind: Annotated[
        str, typer.Argument(help="A kind, such as block, or the name alone.", autocompletion=complete_kind)
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="The name of a part, such as adaln-zero.", autocompletion=complete_name, show_default=False
        ),
    ] = None,
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Describe one part: what it does, its options, what it fits, where it comes from, and how to write it."""
    from .catalog_output import find_component, show_component

    plugins = visible_plugins(selected)
    show_component(plugins, find_component(plugins, kind, name), as_json)


@app.command()
def plugins(
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """List the plugins: loaded, failed and why, blocked, clashing. Imports no torch."""
    from .catalog_output import show_plugins

    show_plugins(visible_plugins(selected), as_json)


def visible_plugins(selected: list[str] | None) -> Any:
    """Return the plugins that the policy of the working directory allows."""
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import find_policy

    return load_plugins(selected, policy=find_policy(Path()))


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
    from dither.registry.plugins.lockfile import sync_lockfile
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import Policy, policy_file, read_policy

    path = file or policy_file(Path()) or Path("registry.toml")
    loaded = load_plugins(policy=read_policy(path) if path.is_file() else Policy())
    changes, notes = sync_lockfile(path, loaded, accept, plugins or ())
    typer.echo("\n".join([*changes, f"{path}: {len(changes)} changes"]))
    for note in notes:
        typer.echo(note, err=True)


@registry.command()
def check(file: File = None) -> None:
    """Tell what is otherwise than the catalogue says; CI runs it. Imports no torch."""
    from dither.registry.config.errors import Refused
    from dither.registry.plugins.lockfile import check_lockfile
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import policy_file, read_policy

    path = file or policy_file(Path())
    if path is None or not path.is_file():
        raise Refused(f"{path or 'registry.toml'} does not exist; `dither registry sync` writes one")
    policy = read_policy(path)
    problems = check_lockfile(policy, load_plugins(policy=policy))
    if problems:
        raise Refused(problems)
    parts = sum(map(len, policy.components.values()))
    typer.echo(f"{path}: {parts} parts, as they are here")
