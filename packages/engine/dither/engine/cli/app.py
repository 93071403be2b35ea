"""The verbs. Each imports what it needs when it is called, so that help and lists come without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["app", "verbs"]

app = typer.Typer(
    name="dither",
    help="Diffusion transformers assembled from named parts.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The command line as typer has it; `main` is what to call."""

Experiment = Annotated[Path, typer.Argument(help="The experiment file (TOML).", show_default=False)]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value; VALUE is TOML, or else a string."),
]
Removals = Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Drop a value that the file gives.")]
Selected = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME", help="Load only this plugin (repeat), or all but one: no:NAME."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Runs = Annotated[Path, typer.Option("--runs", help="The folder in which run directories are made.")]
RunDirectory = Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)]


def verbs() -> set[str]:
    """Return the names of all commands."""
    return {str(command.name or getattr(command.callback, "__name__", "")) for command in app.registered_commands}


@app.command()
def run(
    experiment: Annotated[Path | None, typer.Argument(help="The experiment file (TOML).", show_default=False)] = None,
    changes: Changes = None,
    removals: Removals = None,
    selected: Selected = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with the run in this directory.")
    ] = None,
) -> int:
    """Train, evaluate, sample and draw what an experiment file names."""
    from dither.engine.experiment import load_experiment
    from dither.registry.problems import Refused

    if (experiment is None) == (resume is None):
        raise Refused("give an experiment file, or --resume with the directory of a run, and not both")
    path = experiment or _resolved(resume)
    loaded = load_experiment(path, changes or (), removals or (), selected)
    from dither.engine.run import run as start

    return start(loaded, runs, ["dither", *sys.argv[1:]], resume)


def _resolved(run_directory: Path | None) -> Path:
    from dither.registry.problems import Refused

    assert run_directory is not None
    path = run_directory / "resolved.toml"
    if not path.is_file():
        raise Refused(f"{run_directory} is no run directory: it has no resolved.toml")
    return path


@app.command()
def validate(
    experiment: Experiment, changes: Changes = None, removals: Removals = None, selected: Selected = None
) -> None:
    """Check an experiment file: names, types, bounds, and whether the parts fit. Imports no torch."""
    from dither.engine.experiment import load_experiment

    loaded = load_experiment(experiment, changes or (), removals or (), selected)
    e = loaded.experiment
    parts = (e.task, e.process, e.model, e.loss, e.sampler)
    typer.echo(f"{experiment}: valid ({', '.join(f'{part.kind} {part.name}' for part in parts)})")


@app.command()
def resolve(
    experiment: Experiment, changes: Changes = None, removals: Removals = None, selected: Selected = None
) -> None:
    """Print an experiment with every default written out and every name pinned. It runs as it is."""
    import tomlkit

    from dither.engine.experiment import load_experiment
    from dither.registry.validation import dump

    loaded = load_experiment(experiment, changes or (), removals or (), selected)
    typer.echo(tomlkit.dumps(dump(loaded.experiment, loaded.plugins.catalog)), nl=False)


@app.command("list")
def list_parts(
    kind: Annotated[str | None, typer.Argument(help="Only this kind, such as block.", show_default=False)] = None,
    selected: Selected = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
) -> None:
    """List the parts that an experiment may name. Imports no torch."""
    from .lists import show_parts, show_reference

    if as_markdown:
        show_reference(_plugins(selected), kind)
    else:
        show_parts(_plugins(selected), kind, as_json)


@app.command()
def describe(
    kind: Annotated[str, typer.Argument(help="A kind, such as block.")],
    name: Annotated[str, typer.Argument(help="The name of a part, such as adaln-zero.")],
    selected: Selected = None,
    as_json: Json = False,
) -> None:
    """Describe one part: what it does, its options, where it comes from, and how to write it. Imports no torch."""
    from .lists import show_part

    show_part(_plugins(selected), kind, name, as_json)


@app.command()
def plugins(selected: Selected = None, as_json: Json = False) -> None:
    """List the plugins: loaded, failed and why, blocked, clashing. Imports no torch."""
    from .lists import show_plugins

    show_plugins(_plugins(selected), as_json)


def _plugins(selected: list[str] | None) -> Any:
    from dither.registry.plugins import load_plugins
    from dither.registry.policy import find_policy

    return load_plugins(selected, policy=find_policy(Path()))


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="The name of a data part, such as human-dhs.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the part.")
    ] = None,
    selected: Selected = None,
) -> None:
    """Fetch and convert the data that a data part needs, once."""
    from dither.registry.document import Document
    from dither.registry.problems import Refused
    from dither.registry.validation import validate as read

    catalog = _plugins(selected).catalog
    part = catalog.find("data", name)
    document = Document.changed(changes or ())
    data: Any = read(part.spec, document, catalog)
    try:
        done = data.prepare()
    except (OSError, RuntimeError) as error:
        raise Refused(f'data "{name}" could not be prepared: {error}') from None
    typer.echo(done or f'data "{name}" needs no preparation')


@app.command()
def sample(
    run_directory: RunDirectory,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many samples.")] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the drawing.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the samples; by default inside the run.")
    ] = None,
) -> int:
    """Draw samples from the newest intact checkpoint of a run."""
    from dither.engine.run import sample_run

    return sample_run(run_directory, count, seed, out)


@app.command()
def evaluate(run_directory: RunDirectory, as_json: Json = False) -> None:
    """Measure the newest intact checkpoint of a run on the validation split."""
    from dither.engine.run import evaluate_run

    figures = evaluate_run(run_directory)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            typer.echo(f"{name:40} {value:.6g}")
