"""`dither new`, `test-plugin`, `doctor`, `registry`, `schema`: commands for authors of plugins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .app import Group, Json, PluginOption, Runs, Words, app
from .components import visible_plugins

__all__ = ["schema_text"]

new = typer.Typer(cls=Group, no_args_is_help=True)
app.add_typer(new, name="new")
registry = typer.Typer(
    cls=Group,
    help="Lock the installed components in registry.toml, or check them.",
    no_args_is_help=True,
)
app.add_typer(registry, name="registry")
File = Annotated[
    Path | None, typer.Option("--file", help="By default registry.toml at or above this folder.")
]


@new.callback()
def _group() -> None:
    """Write a new plugin or experiment file."""


@new.command(
    "experiment", epilog="Example: dither new experiment my.toml --from language_model/quick"
)
def new_experiment(
    file: Annotated[Path, typer.Argument(help="The new file.", show_default=False)],
    source: Annotated[
        str, typer.Option("--from", metavar="NAME", help="An experiment file, or the name of one.")
    ],
) -> None:
    """Copy an experiment file, such as one that comes with dither. Nothing is overwritten."""
    from dither.registry.config.document import find_experiment

    from ..config.load_experiment import load_experiment
    from ..scaffold.experiment import copied, write_new

    path = find_experiment(Path(source))
    load_experiment(path)
    typer.echo(f"{write_new(file, copied(path, file))}; next: dither run {file}")


@app.command()
def init(
    task: Annotated[str, typer.Argument(help="A task: dither list task.", show_default=False)],
    file: Annotated[Path | None, typer.Argument(help="The new file; by default TASK.toml.")] = None,
) -> None:
    """Write an experiment file with every option of a small experiment, each with its description."""
    from ..scaffold.experiment import complete, write_new

    file = file or Path(f"{task}.toml")
    typer.echo(f"{write_new(file, complete(task))}; next: dither run {file}")


@new.command("plugin", epilog="Example: dither new plugin wavelet --kind block")
def new_plugin(
    name: Annotated[
        str, typer.Argument(help="Name in kebab-case, such as wavelet.", show_default=False)
    ],
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="Kind of its component.")],
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="Parent folder.")] = Path(),
    single_file: Annotated[bool, typer.Option("--single-file", help="Write only NAME.py.")] = False,
) -> None:
    """Write a plugin: a package with one component, tests, and an experiment. Nothing is overwritten."""
    from dither.registry.plugins.manager import load_plugins

    from ..scaffold.package import Names, check_names, write_plugin

    names = Names(name, kind)
    plugins = load_plugins()
    check_names(names, {report.name for report in plugins.reports}, plugins.catalog.names(kind))
    path = write_plugin(names, into, single_file)
    if single_file:
        typer.echo(
            f'{path}: {kind} "{name}"; use it with -p {path}, or plugins = ["./{path.name}"] in an experiment'
        )
        return
    typer.echo(f"""{path}: {kind} "{name}", in {names.module}/__init__.py. Next:

    cd {path}
    python -m pip install --no-deps -e .
    pytest
    dither run experiment.toml""")


@app.command("test-plugin")
def check_plugin(
    name: Annotated[
        str, typer.Argument(help="An installed plugin, or a .py file.", show_default=False)
    ],
    expected: Annotated[
        Words,
        typer.Option(
            "--expect", metavar="KIND:NAME-CHECK=REASON", help="A check that fails on purpose."
        ),
    ] = None,
) -> int:
    """Run the conformance kit over the components of an installed plugin or a file."""
    from ..scaffold.package import run_kit

    return run_kit(name, expected or ())


@app.command()
def doctor(selected: PluginOption = None, runs: Runs = Path("runs"), as_json: Json = False) -> int:
    """Check Python, torch, plugins, registry.toml and folders, with advice. Exits with 1 if something is broken."""
    from .doctor import examine, show_findings

    return show_findings(list(examine(Path(), runs, selected)), as_json)


@registry.command(epilog="Example: dither registry sync")
def sync(
    file: File = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Accept changed options of a component with an unchanged revision."
        ),
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


@registry.command(epilog="Example: dither registry check")
def check(file: File = None) -> None:
    """Compare the installed components with registry.toml, as CI does."""
    from dither.registry.config.errors import Refused
    from dither.registry.plugins.lockfile import check_lockfile
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import policy_file, read_policy

    path = file or policy_file(Path())
    if path is None or not path.is_file():
        text = f"{path or 'registry.toml'} does not exist; `dither registry sync` writes one"
        raise Refused(text, code="file-not-found")
    policy = read_policy(path)
    if problems := check_lockfile(policy, load_plugins(policy=policy)):
        raise Refused(problems)
    typer.echo(f"{path}: {sum(map(len, policy.components.values()))} components, all as installed")


@app.command()
def schema(
    of: Annotated[
        Literal["experiment", "registry"], typer.Option("--of", help="Type of file.")
    ] = "experiment",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to a file instead.")
    ] = None,
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
        raise Refused(
            f"cannot write {out}: {error.strerror or error}", code="unwritable-file"
        ) from None


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
    definitions = ",\n".join(
        f"{_compact(name)}:{_compact(value)}" for name, value in schema.pop("definitions").items()
    )
    return f'{_compact(schema)[:-1]},"definitions":{{\n{definitions}\n}}}}\n'


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
