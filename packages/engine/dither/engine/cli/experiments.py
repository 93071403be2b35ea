"""`dither run`, `validate`, `resolve`, `explain`, `bench`: commands on experiment files."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import (
    Assignments,
    CellOption,
    CheckpointOption,
    Experiment,
    Json,
    OptionalExperiment,
    OutOption,
    Overrides,
    PluginOption,
    Removals,
    Runs,
    SplitOption,
    Words,
    app,
    load,
    without_collection,
)
from .output import echo, echo_json, location_record, print_valid, wants_json

__all__: list[str] = []

UNPRINTABLE = re.compile(r"[^\S\n ]|[\u0080-\U0010ffff]")
MAX_DEPTH = 256
"""Blocks of a model up to which `validate` builds it, without memory, to know the names of its
weights."""


@app.command()
def run(
    experiment: OptionalExperiment = None,
    words: Assignments = None,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Resume this run directory.")
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="Resume although components or plugins have changed."
        ),
    ] = False,
) -> int:
    """Train, evaluate, sample and plot the experiment of a file."""
    from dither.registry.config.document import shipped_experiments
    from dither.registry.config.errors import Problem, Refused

    from ..runs.run_directory import link_latest, resolved_file

    if experiment is not None and resume is not None and "=" in str(experiment):
        experiment, words = None, [str(experiment), *(words or ())]
    if (experiment is None) == (resume is None):
        hint = f"dither run NAME, with a file or one of: {', '.join(shipped_experiments())}"
        raise Refused(
            Problem("give either an experiment file or --resume RUN", help=hint, code="usage")
        )
    if experiment is not None and (experiment / "resolved.toml").is_file():
        hint = f"dither run --resume {experiment}"
        raise Refused(
            Problem(f"{experiment} is a run, not an experiment file", help=hint, code="usage")
        )
    path = experiment or resolved_file(resume or Path(), verify=not accept_changes)
    loaded = load(path, [*(changes or ()), *(words or ())], removals, selected)
    if loaded.experiment.sweep is not None:
        hint = f"use dither sweep {path} for all points, or --unset sweep for the file without them"
        place = loaded.document.origin(("sweep",))
        raise Refused(
            Problem(f"{path} is a sweep, not one run", ("sweep",), place, hint, code="usage")
        )
    if "RANK" not in os.environ:
        from ..runs.progress import Screen, say

        say(
            Screen(), f"{path}: valid; loading torch and the data"
        )  # never ends a run, as on a full disk
    with without_collection():
        from ..runs.launch import run as start

    given = sys.argv[1:]
    argv = [
        "dither",
        *([] if "run" in given else ["run"]),
        *given,
    ]  # python -m experiments.run omits the command
    return start(loaded, runs, argv, resume, accept_changes=accept_changes, created=link_latest)


@app.command()
def validate(
    experiment: Experiment,
    words: Assignments = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also count parameters, memory, shapes and FLOPs (imports torch)."
        ),
    ] = False,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Check an experiment: names, types, bounds, and whether the components are compatible."""
    loaded = load(experiment, [*(changes or ()), *(words or ())], removals, selected)
    train = loaded.experiment.train
    model = loaded.experiment.model
    if (train.freeze or train.lora) and (deep or getattr(model, "depth", 0) <= MAX_DEPTH):
        from ..training.model_summary import require_names

        require_names(loaded)
    if not deep:
        print_valid(loaded, as_json)
        return
    from ..training.model_summary import build_on_meta, memory_needs, summarize_model

    summary = summarize_model(loaded.experiment)
    memory = memory_needs(loaded.experiment, build_on_meta(loaded.experiment))
    print_valid(
        loaded, as_json, {"parameters": summary["parameters"], "memory": memory, "shapes": summary}
    )
    if not wants_json(as_json):
        _print_model(summary, memory)


def _print_model(summary: dict[str, Any], needs: dict[str, int]) -> None:
    from rich.console import Console

    from ..config.machine_memory import size, total_memory
    from ..runs.progress import table

    def cells(parameters: int, output: tuple[int, ...], flops: int) -> tuple[str, str, str]:
        return f"{parameters:,}", " x ".join(map(str, output)), f"{flops:.3g}"

    numbers = ("parameters", "output", "FLOPs forward")
    modules = table("module", "component", *numbers, right=numbers)
    for row in summary["rows"]:
        modules.add_row(
            row["name"], row["part"], *cells(row["parameters"], row["output"], row["flops"])
        )
    modules.add_row(
        "model",
        "",
        *cells(summary["parameters"], summary["output"], summary["forward"]),
        style="bold",
    )
    modules.add_row("training step", "", "", "", f"{summary['step']:.3g}", style="bold")
    memory = table("memory without activations", "bytes", right=("bytes",))
    for name, count in needs.items():
        memory.add_row(name, size(count))
    memory.add_row("total", size(sum(needs.values())), style="bold")
    memory.add_row("this machine", size(total_memory()), style="dim")
    Console().print(modules, "", memory)


@app.command()
def resolve(
    experiment: Experiment,
    words: Assignments = None,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
) -> None:
    """Print an experiment with every default written out and every name pinned.

    Saved in this folder, it runs as it is; a plugin file from another folder must be given with -p
    again.
    """
    import tomlkit

    from dither.registry.config.validation import dump

    loaded = load(experiment, [*(changes or ()), *(words or ())], removals, selected)
    tree = dump(loaded.experiment, loaded.plugins.catalog)
    tree["plugins"] = [
        os.path.relpath(path) for path in loaded.plugins.files
    ] + loaded.plugins.requested
    text = tomlkit.dumps(tree)
    typer.echo(
        UNPRINTABLE.sub(lambda m: m[0] if m[0].isprintable() else f"\\U{ord(m[0]):08x}", text),
        nl=False,
    )


@app.command()
def explain(
    experiment: Experiment,
    words: Annotated[
        Words, typer.Argument(metavar="KEY | KEY=VALUE", help="Only this key or table; overrides.")
    ] = None,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    as_json: Json = False,
    split: SplitOption = None,
    cell: CellOption = None,
    out: OutOption = None,
    checkpoint: CheckpointOption = "newest",
) -> None:
    """Show the origin of each value of an experiment, or what the predictions of a run are based on.

    Of an experiment: file and line, --set, or a default. Of a run directory, and perhaps data of
    yours: attributions of predictions to inputs; --split, --cell, --out and --checkpoint are for
    these.
    """
    if experiment.is_dir():
        from .runs import apply

        apply(
            "explain",
            experiment,
            [Path(word) for word in words or ()],
            split,
            cell,
            None,
            out,
            checkpoint,
            selected,
        )
        return
    import tomlkit

    from dither.registry.config.errors import Refused, dotted, printable
    from dither.registry.config.validation import validate

    from ..config.experiment import Experiment as Model
    from ..config.load_experiment import open_experiment, select, settings

    keys = [word for word in words or () if "=" not in word]
    if len(keys) > 1:
        raise Refused(f"expected one key, got {' '.join(keys)}", code="usage")
    changes = [*(changes or ()), *(word for word in words or () if "=" in word)]
    document, plugins = open_experiment(experiment, changes, removals or (), selected)
    model = validate(Model, document, plugins.catalog)
    rows = select(list(settings(model, document, plugins.catalog)), keys[0] if keys else None)
    records = [
        {
            "key": dotted(row.path),
            "value": row.value,
            "from": None if row.default_of else location_record(row.places[0]),
            "default_of": row.default_of,
            "over": list(map(location_record, row.places if row.default_of else row.places[1:])),
        }
        for row in rows
    ]
    if echo_json(as_json, records):
        return
    values = (
        "(none)" if row.value is None else tomlkit.item(row.value).as_string() for row in rows
    )
    for row, value in zip(rows, values, strict=True):
        echo(printable(f"{dotted(row.path):32} = {value:24}  {row.story}"))


@app.command()
def bench(
    experiment: Experiment,
    words: Assignments = None,
    changes: Overrides = None,
    removals: Removals = None,
    selected: PluginOption = None,
    steps: Annotated[int, typer.Option("--steps", "-n", min=1, help="Steps per repeat.")] = 20,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Repeats; the median counts.")
    ] = 3,
    as_json: Json = False,
) -> None:
    """Measure the training step: time by phase, memory, throughput."""
    from rich.console import Console

    from .benchmark import bench as measure
    from .benchmark import show_bench

    result = measure(
        load(experiment, [*(changes or ()), *(words or ())], removals, selected), steps, repeats
    )
    if not echo_json(as_json, result):
        show_bench(Console(), result)
