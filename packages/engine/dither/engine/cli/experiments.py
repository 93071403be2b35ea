"""run, validate, resolve: what an experiment file is for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import Experiment, Json, Overrides, PluginOption, Removals, Runs, app, complete_experiment

if TYPE_CHECKING:
    from rich.table import Table

    from dither.registry.config.setting_origins import Setting

    from ..training.model_summary import ModelSummary

__all__: list[str] = []


@app.command()
def run(
    experiment: Annotated[
        Path | None,
        typer.Argument(help="The experiment file (TOML).", show_default=False, autocompletion=complete_experiment),
    ] = None,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with the run in this directory.")
    ] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on although parts or plugins are not what they were.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Write a trace of a few steps into the run directory.")
    ] = False,
) -> int:
    """Train, evaluate, sample and draw what an experiment file names."""
    from dither.registry.config.errors import Problem, Refused

    from ..config.load_experiment import load_experiment
    from ..runs.run_directory import refuse_held, resolved_file

    if (experiment is None) == (resume is None):
        raise Refused("give an experiment file, or --resume with the directory of a run, and not both")
    if resume is not None and os.environ.get("RANK", "0") == "0":  # of several ranks only the first takes the lock
        refuse_held(resume)
    path = experiment or resolved_file(resume or Path(), sealed=not accept_changes)
    loaded = load_experiment(path, changes or (), removals or (), selected)
    if loaded.experiment.sweep is not None:
        hint = f"dither sweep {path} runs all of its points; --unset sweep runs the file as if it had none"
        raise Refused(Problem(f"{path} is a sweep, not one run", ("sweep",), loaded.document.origin(("sweep",)), hint))
    from ..runs.launch import run as start

    words = sys.argv[1:]
    argv = ["dither", *([] if "run" in words else ["run"]), *words]  # python -m experiments.run leaves the verb out
    return start(loaded, runs, argv, resume, accept_changes=accept_changes, profile=profile)


@app.command()
def validate(
    experiment: Experiment, changes: Overrides = None, removals: Removals = None, selected: PluginOption = None
) -> None:
    """Check an experiment file: names, types, bounds, and whether the parts fit. Imports no torch."""
    from ..config.load_experiment import load_experiment
    from .output import print_valid

    print_valid(load_experiment(experiment, changes or (), removals or (), selected))


@app.command()
def resolve(
    experiment: Experiment, changes: Overrides = None, removals: Removals = None, selected: PluginOption = None
) -> None:
    """Print an experiment with every default written out and every name pinned.

    Saved in this folder, it runs as it is; only a plugin file from outside this folder must be named with -p again.
    """
    import tomlkit

    from dither.registry.config.validation import dump

    from ..config.load_experiment import load_experiment

    loaded = load_experiment(experiment, changes or (), removals or (), selected)
    tree = dump(loaded.experiment, loaded.plugins.catalog)
    tree["plugins"] = [os.path.relpath(path) for path in loaded.plugins.files] + loaded.plugins.requested
    typer.echo(tomlkit.dumps(tree), nl=False)


@app.command()
def check(
    experiment: Experiment,
    shapes: Annotated[bool, typer.Option("--shapes", help="Send a batch without numbers through the model.")] = False,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Check an experiment, and count its parameters and memory; with --shapes also output shapes and FLOPs."""
    from ..config.load_experiment import load_experiment
    from ..training.memory_check import build_on_meta, memory_needs
    from ..training.model_summary import summarize_model

    loaded = load_experiment(experiment, changes or (), removals or (), selected)
    look = summarize_model(loaded.experiment) if shapes else None
    model = build_on_meta(loaded.experiment)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    needs = memory_needs(loaded.experiment, model)
    warnings = [f"{w.message}; {w.help}" if w.help else w.message for w in loaded.warnings]
    if as_json:
        record: dict[str, Any] = {"name": loaded.experiment.name, "parameters": parameters}
        record |= {"memory": needs, "warnings": warnings} | ({"shapes": asdict(look)} if look else {})
        typer.echo(json.dumps(record, indent=2))
        return
    title = f"{experiment}: the components are compatible\n{parameters:,} parameters"
    _print_check(title, needs, look, warnings)


def _print_check(title: str, needs: dict[str, int], look: ModelSummary | None, warnings: Iterable[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    from ..config.machine_memory import size, total_memory

    console = Console()
    console.print(Text(title))
    if look is not None:
        console.print(_shapes(look))
    console.print()
    console.print(_memory(needs))
    console.print(Text(f"this machine has {size(total_memory())}", style="dim"))
    for warning in warnings:
        console.print(Text("warning: ", style="yellow") + Text(warning))


def _shapes(look: ModelSummary) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("part")
    table.add_column("made by")
    for column in ("parameters", "output", "FLOPs forward"):
        table.add_column(column, justify="right")
    for row in look.rows:
        table.add_row(row.name, row.part, f"{row.parameters:,}", _shape(row.output), _flops(row.flops))
    table.add_row("model", "", f"{look.parameters:,}", _shape(look.output), _flops(look.forward), style="bold")
    table.add_row("a training step", "", "", "", _flops(look.step), style="bold")
    return table


def _memory(needs: dict[str, int]) -> Table:
    from rich.table import Table

    from ..config.machine_memory import size

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("memory without activations")
    table.add_column("bytes", justify="right")
    for name, count in needs.items():
        table.add_row(name, size(count))
    table.add_row("total", size(sum(needs.values())), style="bold")
    return table


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _flops(count: int) -> str:
    """Write a number of operations: 11.2 T."""
    for unit, power in (("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}"
    return str(count)


WIDEST = 32
"""Characters after which a column no longer pushes the next one to the right."""


@app.command()
def explain(
    experiment: Experiment,
    key: Annotated[
        str | None, typer.Argument(help="Only this key, or the keys of this table.", show_default=False)
    ] = None,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Show where each value of an experiment came from: file and line, --set, or a default. Imports no torch."""
    from dither.registry.config.setting_origins import select, settings
    from dither.registry.config.validation import validate

    from ..config.experiment import Experiment as Model
    from ..config.load_experiment import open_experiment

    document, plugins = open_experiment(experiment, changes or (), removals or (), selected)
    read = validate(Model, document, plugins.catalog)
    found = list(settings(read, document, plugins.catalog))
    if key is not None:
        found = select(found, key)
    _show_settings(found, as_json)


def _show_settings(found: list[Setting], as_json: bool) -> None:
    from dither.registry.config.errors import dotted, plain

    from .output import location_record, wants_json

    if as_json or wants_json():
        rows = [
            {
                "key": dotted(setting.path),
                "value": setting.value,
                "from": None if setting.default_of else location_record(setting.places[0]),
                "default_of": setting.default_of,
                "over": list(map(location_record, setting.places if setting.default_of else setting.places[1:])),
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
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two runs or experiments: options, parts, plugins, versions, git. Imports no torch."""
    from ..runs.diff import compare, read_side
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


@app.command()
def bench(
    experiment: Experiment,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    steps: Annotated[int, typer.Option("--steps", "-n", min=1, help="Steps in a repeat.")] = 20,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Repeats, of which the median counts.")] = 3,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Steps before.")] = 3,
    as_json: Json = False,
) -> None:
    """Measure the training step: data, forward, backward, optimizer, logging; memory, rate, share of the peak."""
    from ..config.load_experiment import load_experiment
    from ..config.paths import external_files
    from ..runs.progress import Screen, say

    loaded = load_experiment(experiment, changes or (), removals or (), selected)
    for line in external_files(loaded):
        say(Screen(stderr=True), line, "yellow")
    from rich.console import Console

    from ..reports.benchmark import bench as measure
    from ..reports.benchmark import show_bench

    result = measure(loaded, steps, repeats, warmup)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        show_bench(Console(), result)
