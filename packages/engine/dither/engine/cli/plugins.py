"""`dither plugins`, `doctor`, `registry`, `schema`: the installation and the files of editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .app import Group, Json, PluginNames, Runs, Words, app, refuse_unused
from .components import visible_plugins
from .output import echo_json, wants_json

__all__ = ["schema_text"]

plugins_group = typer.Typer(cls=Group, no_args_is_help=False)
app.add_typer(plugins_group, name="plugins")
registry = typer.Typer(
    cls=Group,
    help="List the installed components in registry.toml, or check the list.",
    no_args_is_help=True,
)
app.add_typer(registry, name="registry")
File = Annotated[
    Path | None,
    typer.Option("--file", help="By default registry.toml at or above this folder."),
]


@plugins_group.callback(invoke_without_command=True)
def list_plugins(
    context: typer.Context, plugins: PluginNames = None, as_json: Json = False
) -> None:
    """List the installed plugins with their state, or test one.

    States are loaded, failed, blocked or clash.
    """
    # typer also calls this before `plugins test`.
    if context.invoked_subcommand is None:
        from .catalog_output import show_plugins

        show_plugins(visible_plugins(plugins), as_json)


@plugins_group.command("test", epilog="Example: dither plugins test wavelet")
def check_plugin(
    name: Annotated[
        str,
        typer.Argument(help="An installed plugin, or a .py file.", show_default=False),
    ],
    expected: Annotated[
        Words,
        typer.Option(
            "--expect",
            metavar="KIND:NAME-CHECK=REASON",
            help="A check that fails on purpose.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Run the conformance kit over the components of an installed plugin or a file."""
    if wants_json(as_json):
        from ..scaffold.manifest import measure_kit

        kit = measure_kit(name, expected or ())
        echo_json(as_json, kit.model_dump())
        return int(kit.passed < kit.checks)
    from ..scaffold.package import run_kit

    return run_kit(name, expected or ())


@app.command()
def doctor(
    runs: Runs = Path("runs"), plugins: PluginNames = None, as_json: Json = False
) -> int:
    """Check Python, torch, plugins, registry.toml and folders, with advice.

    Exits with 1 if something is broken.
    """
    from .doctor import examine, show_findings

    return show_findings(list(examine(Path(), runs, plugins)), as_json)


@registry.command(epilog="Example: dither registry sync")
def sync(
    file: File = None,
    with_kit: Annotated[
        bool,
        typer.Option("--kit", help="Run the conformance kit, and state its result."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the names of the installed components into registry.toml; other tables stay.

    DITHER_PLUGINS=a,b leaves out other plugins. In the project of a plugin it writes the manifest
    dither-plugin.json into the package instead.
    """
    from ..scaffold.manifest import project_plugins, sync_manifests

    if file is None and project_plugins(Path())[0]:
        changes = sync_manifests(Path(), with_kit)
        if not echo_json(as_json, {"changes": changes}):
            typer.echo("\n".join(changes))
        return
    if with_kit:
        hint = "requires a pyproject.toml with a plugin in this folder"
        raise typer.BadParameter(hint, param_hint="--kit")
    from dither.registry.files.lookup import is_file
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import Policy, policy_file, read_policy
    from dither.registry.plugins.registry_file import sync_components

    path = file or policy_file(Path()) or Path("registry.toml")
    policy = read_policy(path) if is_file(path) else Policy()
    changes = sync_components(path, load_plugins(policy=policy))
    if not echo_json(as_json, {"file": str(path), "changes": changes}):
        typer.echo("\n".join([*changes, f"{path}: {len(changes)} changes"]))


@registry.command(epilog="Example: dither registry check")
def check(file: File = None, as_json: Json = False) -> None:
    """Compare the installed components with registry.toml, as CI does."""
    from dither.registry.config.errors import Refused
    from dither.registry.files.lookup import is_file
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import policy_file, read_policy
    from dither.registry.plugins.registry_file import check_components

    path = file or policy_file(Path())
    if path is None or not is_file(path):
        text = f"{path or 'registry.toml'} does not exist; `dither registry sync` writes one"
        raise Refused(text, code="file-not-found")
    policy = read_policy(path)
    if problems := check_components(policy, load_plugins(policy=policy)):
        raise Refused(problems)
    count = len(policy.owners())
    if not echo_json(as_json, {"file": str(path), "components": count}):
        typer.echo(f"{path}: {count} components, all as installed")


@app.command()
def schema(
    context: typer.Context,
    of: Annotated[
        Literal["experiment", "registry", "output"],
        typer.Option("--of", help="Type of file; output: that of --json."),
    ] = "experiment",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write to a file instead."),
    ] = None,
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Print the JSON Schema of experiment files, of registry.toml, or of what --json prints.

    It covers the installed plugins. A file names its schema in the first line, relative to itself:
    `#:schema ../schema.json`. taplo, tombi, Even Better TOML and check-jsonschema read it.
    """
    if of == "output":
        refuse_unused(context, "with --of output", "plugins")
        from .output_schema import output_schema

        text = f"{_compact(output_schema())}\n"
    else:
        text = schema_text(of, plugins)
    if out is None:
        typer.echo(text, nl=False)
        return
    from dither.registry.files.atomic import atomic_write, output_file
    from dither.registry.files.write_errors import unwritable

    try:
        with atomic_write(output_file(out)) as temporary:
            temporary.write_text(text, encoding="utf-8")
        echo_json(as_json, {"files": [str(out)]})
    except (OSError, ValueError) as error:
        raise unwritable(out, error) from None


def schema_text(of: str, plugins: list[str] | None = None) -> str:
    """Return the JSON Schema of `experiment` or `registry` files, one definition per line."""
    from dither.registry.config.json_schema import schema_of
    from dither.registry.plugins.policy import Policy

    from ..config.experiment import Experiment

    catalog = visible_plugins(plugins).catalog
    if of == "registry":
        schema = schema_of(Policy, catalog, title="registry.toml of dither")
    else:
        schema = schema_of(
            Experiment, catalog, title="A dither experiment", extends=True
        )
    # One definition a line keeps the differences of a committed schema readable.
    definitions = ",\n".join(
        f"{_compact(name)}:{_compact(value)}"
        for name, value in schema.pop("definitions").items()
    )
    return f'{_compact(schema)[:-1]},"definitions":{{\n{definitions}\n}}}}\n'


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
