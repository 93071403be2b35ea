"""`dither run`, `validate`, `resolve`, `explain`, `diff`, `bench`: commands on experiment files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import Experiment, Json, Overrides, PluginOption, Removals, Runs, app, complete_experiment, load
from .output import location_record, print_valid, table, wants_json

if TYPE_CHECKING:
    from rich.table import Table

    from ..config.load_experiment import Loaded
    from ..config.setting_origins import Setting

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
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Resume this run directory.")] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Resume although components or plugins have changed.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Write a profiler trace of a few steps.")] = False,
) -> int:
    """Train, evaluate, sample and plot the experiment of a file."""
    from dither.registry.config.errors import Problem, Refused

    from ..runs.run_directory import refuse_held, resolved_file

    if (experiment is None) == (resume is None):
        raise Refused("give either an experiment file or --resume RUN", code="usage")
    if resume is not None and os.environ.get("RANK", "0") == "0":  # only the first rank takes the lock
        refuse_held(resume)
    path = experiment or resolved_file(resume or Path(), verify=not accept_changes)
    loaded = load(path, changes, removals, selected)
    if loaded.experiment.sweep is not None:
        hint = f"use dither sweep {path} for all points, or --unset sweep for the file without them"
        place = loaded.document.origin(("sweep",))
        raise Refused(Problem(f"{path} is a sweep, not one run", ("sweep",), place, hint, code="usage"))
    from ..runs.launch import run as start

    words = sys.argv[1:]
    argv = ["dither", *([] if "run" in words else ["run"]), *words]  # python -m experiments.run omits the command
    return start(loaded, runs, argv, resume, accept_changes=accept_changes, profile=profile)


@app.command()
def validate(
    experiment: Experiment,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also count parameters, memory, shapes and FLOPs (imports torch).")
    ] = False,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Check an experiment: names, types, bounds, and whether the components are compatible."""
    loaded = load(experiment, changes, removals, selected)
    record = _inspect(loaded, shapes=True) if deep else None
    print_valid(loaded, as_json, record)
    if record is not None and not wants_json(as_json):
        _print_record(record)


@app.command(hidden=True)
def check(
    experiment: Experiment,
    shapes: Annotated[bool, typer.Option("--shapes", help="Also shapes and FLOPs.")] = False,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Former name of `dither validate --deep`."""
    typer.echo("note: `dither check` is now `dither validate --deep`", err=True)
    loaded = load(experiment, changes, removals, selected)
    record = _inspect(loaded, shapes)
    if wants_json(as_json):
        warnings = [f"{w.message}; {w.help}" if w.help else w.message for w in loaded.warnings]
        typer.echo(json.dumps({"name": loaded.experiment.name, **record, "warnings": warnings}, indent=2))
    else:
        print_valid(loaded)
        _print_record(record)


def _inspect(loaded: Loaded, shapes: bool) -> dict[str, Any]:
    """Return parameters, bytes of memory by purpose, and optionally the table of shapes and FLOPs."""
    from dataclasses import asdict

    from ..training.model_summary import build_on_meta, memory_needs, summarize_model

    summary = summarize_model(loaded.experiment) if shapes else None
    model = build_on_meta(loaded.experiment)
    record: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    record["memory"] = memory_needs(loaded.experiment, model)
    return record | ({"shapes": asdict(summary)} if summary else {})


def _print_record(record: dict[str, Any]) -> None:
    from rich.console import Console

    from ..config.machine_memory import size, total_memory

    console = Console()
    if "shapes" in record:
        console.print(_shapes(record["shapes"]))
    else:
        console.print(f"{record['parameters']:,} parameters", highlight=False)
    memory = table("memory without activations", "bytes", right=("bytes",))
    for name, count in record["memory"].items():
        memory.add_row(name, size(count))
    memory.add_row("total", size(sum(record["memory"].values())), style="bold")
    memory.add_row("this machine", size(total_memory()), style="dim")
    console.print()
    console.print(memory)


def _shapes(summary: dict[str, Any]) -> Table:
    numbers = ("parameters", "output", "FLOPs forward")
    made = table("module", "component", *numbers, right=numbers)
    for row in summary["rows"]:
        made.add_row(row["name"], row["part"], f"{row['parameters']:,}", _shape(row["output"]), _flops(row["flops"]))
    total = (f"{summary['parameters']:,}", _shape(summary["output"]), _flops(summary["forward"]))
    made.add_row("model", "", *total, style="bold")
    made.add_row("training step", "", "", "", _flops(summary["step"]), style="bold")
    return made


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _flops(count: int) -> str:
    """Format a number of operations: 11.2 T."""
    for unit, power in (("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}"
    return str(count)


@app.command()
def resolve(
    experiment: Experiment, changes: Overrides = None, removals: Removals = None, selected: PluginOption = None
) -> None:
    """Print an experiment with every default written out and every name pinned.

    Saved in this folder, it runs as it is; a plugin file from another folder must be given with -p again.
    """
    import tomlkit

    from dither.registry.config.validation import dump

    loaded = load(experiment, changes, removals, selected)
    tree = dump(loaded.experiment, loaded.plugins.catalog)
    tree["plugins"] = [os.path.relpath(path) for path in loaded.plugins.files] + loaded.plugins.requested
    typer.echo(tomlkit.dumps(tree), nl=False)


@app.command()
def explain(
    experiment: Experiment,
    key: Annotated[str | None, typer.Argument(help="Only this key or table.", show_default=False)] = None,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Show the origin of each value of an experiment: file and line, --set, or a default."""
    from dither.registry.config.validation import validate

    from ..config.experiment import Experiment as Model
    from ..config.load_experiment import open_experiment
    from ..config.setting_origins import select, settings

    document, plugins = open_experiment(experiment, changes or (), removals or (), selected)
    model = validate(Model, document, plugins.catalog)
    rows = list(settings(model, document, plugins.catalog))
    if key is not None:
        rows = select(rows, key)
    if wants_json(as_json):
        typer.echo(json.dumps([_record(row) for row in rows], indent=2, default=str))
    else:
        _print_settings(rows)


def _record(setting: Setting) -> dict[str, Any]:
    from dither.registry.config.errors import dotted

    return {
        "key": dotted(setting.path),
        "value": setting.value,
        "from": None if setting.default_of else location_record(setting.places[0]),
        "default_of": setting.default_of,
        "over": list(map(location_record, setting.places if setting.default_of else setting.places[1:])),
    }


MAX_PADDING = 32
"""Longest text to which the column of a text is aligned."""


def _print_settings(settings: list[Setting]) -> None:
    import tomlkit

    from dither.registry.config.errors import dotted, printable

    def written(value: Any) -> str:
        return "(none)" if value is None else tomlkit.item(value).as_string()

    lines = [(dotted(setting.path), written(setting.value), setting.story) for setting in settings]
    widths = [min(MAX_PADDING, max(len(line[column]) for line in lines)) for column in (0, 1)]
    for name, value, story in lines:
        typer.echo(printable(f"{name:{widths[0]}} = {value:{widths[1]}}  {story}"))


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="A run directory or an experiment file.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="Another one.", show_default=False)],
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Compare two runs or experiments: options, components, plugins, versions, git."""
    from ..runs.diff import compare, read_side

    sections = compare(read_side(first, selected), read_side(second, selected))
    if wants_json(as_json):
        pairs = {name: {key: list(values) for key, values in rows.items()} for name, rows in sections.items()}
        typer.echo(json.dumps(pairs, indent=2, default=str))
        return
    typer.echo(f"{first} -> {second}")
    for name, rows in sections.items():
        typer.echo(f"\n{name}" if rows else "", nl=bool(rows))
        width = min(MAX_PADDING, max(map(len, rows), default=0))
        for key, (old, new) in rows.items():
            typer.echo(f"  {key:{width}}  {_shown(old)} -> {_shown(new)}")
    if not any(sections.values()):
        typer.echo("no difference")


def _shown(value: Any) -> str:
    return "(none)" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


@app.command()
def bench(
    experiment: Experiment,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    steps: Annotated[int, typer.Option("--steps", "-n", min=1, help="Steps per repeat.")] = 20,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Repeats; the median counts.")] = 3,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Warm-up steps.")] = 3,
    as_json: Json = False,
) -> None:
    """Measure the training step: time by phase, memory, throughput, utilisation."""
    from rich.console import Console

    from ..reports.benchmark import bench as measure
    from ..reports.benchmark import show_bench

    result = measure(load(experiment, changes, removals, selected), steps, repeats, warmup)
    if wants_json(as_json):
        typer.echo(json.dumps(result, indent=2))
    else:
        show_bench(Console(), result)
