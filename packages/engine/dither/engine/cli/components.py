"""`dither list`, `describe`, `plugins`, `registry`, `schema`: what is installed. None imports torch."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .app import Json, PluginOption, app

__all__ = ["complete_format", "complete_kind", "complete_name", "complete_plugin", "schema_text", "visible_plugins"]


def complete_kind(incomplete: str) -> list[str]:
    """Complete a kind."""
    from dither.registry.kinds import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a component, after its kind."""
    with contextlib.suppress(Exception):
        names = visible_plugins(None).catalog.names(str(ctx.params.get("kind")))
        return [name for name in names if name.startswith(incomplete)]
    return []


def complete_format(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete an export format of the task of a run."""
    with contextlib.suppress(Exception):
        from ..config.load_experiment import load_experiment
        from ..runs.run_directory import resolved_file

        task = load_experiment(resolved_file(Path(str(ctx.params.get("run_directory"))))).experiment.task
        return [form for form in task.exports if form.startswith(incomplete)]
    return []


def complete_plugin(incomplete: str) -> list[str]:
    """Complete the name of an installed plugin."""
    with contextlib.suppress(Exception):
        names = [report.name for report in visible_plugins(None).reports]
        return [name for name in names if name.startswith(incomplete)]
    return []


def visible_plugins(selected: list[str] | None) -> Any:
    """Return the plugins that the policy of the working directory allows."""
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import find_policy

    return load_plugins(selected, policy=find_policy(Path()))


@app.command("list")
def list_components(
    kind: Annotated[
        str | None,
        typer.Argument(help="Only this kind, such as block.", show_default=False, autocompletion=complete_kind),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--filter", metavar="GLOB", help="Only matching names, such as 'log-*'.")
    ] = None,
    plugin_names: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin", metavar="NAME", help="Only of this plugin (repeatable).", autocompletion=complete_plugin
        ),
    ] = None,
    selected: PluginOption = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a reference page.")] = False,
) -> None:
    """List the components that an experiment may name."""
    from .catalog_output import filter_components, show_components, show_reference

    plugins = visible_plugins(selected)
    components = filter_components(plugins, kind, pattern, plugin_names)
    if as_markdown:
        show_reference(plugins, components)
    else:
        show_components(components, as_json)


@app.command()
def describe(
    kind: Annotated[
        str, typer.Argument(help="A kind, such as block, or the name alone.", autocompletion=complete_kind)
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a component, such as adaln-zero.", autocompletion=complete_name, show_default=False
        ),
    ] = None,
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Describe a component: purpose, options, compatibility, source, and a snippet."""
    from .catalog_output import find_component, show_component

    plugins = visible_plugins(selected)
    show_component(plugins, find_component(plugins, kind, name), as_json)


@app.command()
def plugins(selected: PluginOption = None, as_json: Json = False) -> None:
    """List the installed plugins with their state: loaded, failed, blocked or clash."""
    from .catalog_output import show_plugins

    show_plugins(visible_plugins(selected), as_json)


registry = typer.Typer(help="Lock the installed components in registry.toml, or check them.", no_args_is_help=True)
app.add_typer(registry, name="registry")
File = Annotated[
    Path | None,
    typer.Option("--file", help="The registry.toml; by default the nearest one at or above this folder."),
]


@registry.command()
def sync(
    file: File = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept changed options of a component with an unchanged revision.")
    ] = False,
) -> None:
    """Write the installed components into registry.toml, below its policy.

    DITHER_PLUGINS=a,b leaves out other plugins.
    """
    from dither.registry.plugins.lockfile import sync_lockfile
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import Policy, policy_file, read_policy

    path = file or policy_file(Path()) or Path("registry.toml")
    loaded = load_plugins(policy=read_policy(path) if path.is_file() else Policy())
    changes = sync_lockfile(path, loaded, accept)
    typer.echo("\n".join([*changes, f"{path}: {len(changes)} changes"]))


@registry.command()
def check(file: File = None) -> None:
    """Compare the installed components with registry.toml, as CI does."""
    from dither.registry.config.errors import Refused
    from dither.registry.plugins.lockfile import check_lockfile
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import policy_file, read_policy

    path = file or policy_file(Path())
    if path is None or not path.is_file():
        raise Refused(
            f"{path or 'registry.toml'} does not exist; `dither registry sync` writes one", code="file-not-found"
        )
    policy = read_policy(path)
    problems = check_lockfile(policy, load_plugins(policy=policy))
    if problems:
        raise Refused(problems)
    typer.echo(f"{path}: {sum(map(len, policy.components.values()))} components, all as installed")


@app.command()
def schema(
    of: Annotated[Literal["experiment", "registry"], typer.Option("--of", help="Type of file.")] = "experiment",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to a file instead.")] = None,
    selected: PluginOption = None,
) -> None:
    """Print the JSON Schema of experiment files (or of registry.toml) for editors.

    It covers the installed plugins. A file names its schema in the first line, relative to itself:
    `#:schema ../schema.json`. taplo, tombi, Even Better TOML and check-jsonschema read it.
    """
    from dither.registry.config.errors import Refused

    text = schema_text(of, selected)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot write {out}: {error.strerror or error}", code="unwritable-file") from None


def schema_text(of: str, selected: list[str] | None = None) -> str:
    """Return the JSON Schema of `experiment` or `registry` files, one definition per line."""
    from dither.registry.config.json_schema import schema_of
    from dither.registry.plugins.policy import Policy

    from ..config.experiment import Experiment

    catalog = visible_plugins(selected).catalog
    if of == "registry":
        schema = schema_of(Policy, catalog, title="registry.toml of dither")
    else:
        schema = schema_of(Experiment, catalog, title="A dither experiment", extends=True)
    definitions = ",\n".join(f"{_compact(name)}:{_compact(value)}" for name, value in schema.pop("definitions").items())
    return f'{_compact(schema)[:-1]},"definitions":{{\n{definitions}\n}}}}\n'


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
