"""`dither runs`, `export`, `sample`, `evaluate`, `predict`, `embed`, `report`, `diff`: commands on run directories."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .app import (
    Assignments,
    CellOption,
    CheckpointOption,
    Group,
    Json,
    OutOption,
    PluginOption,
    RunDirectory,
    SplitOption,
    Words,
    app,
    parse_checkpoint,
)
from .output import echo, echo_json

__all__ = ["apply"]

DAMAGED = 3
LOSS = "valid/loss"
runs = typer.Typer(
    name="runs",
    cls=Group,
    help="List runs, or verify one.",
    no_args_is_help=True,
)
app.add_typer(runs, name="runs")
Paths = list[Path] | None
Data = Annotated[
    Paths, typer.Argument(help="Data of yours; by default those of the run.", show_default=False)
]
ExportOption = Annotated[
    Words, typer.Option("--export", metavar="FORMAT", help="Format (repeatable).")
]


@runs.command("list", epilog="Example: dither runs list runs --metric valid/nats_per_token")
def list_(
    folder: Annotated[Path, typer.Argument(help="A folder of run directories, or a sweep.")] = Path(
        "runs"
    ),
    metric: Annotated[
        str, typer.Option("--metric", metavar="KIND/NAME", help="Metric to show.")
    ] = LOSS,
    as_json: Json = False,
) -> None:
    """List the runs of a folder or sweep with status, step and a metric."""
    from ..config.machine_memory import size
    from ..runs.list_runs import list_runs
    from ..runs.progress import cell

    listed = list(list_runs(folder))
    if metric != LOSS:
        from ..sweeps.directory import require_metric

        require_metric(metric, (run.figures for run in listed), "--metric")
    if echo_json(as_json, [{**asdict(run), "path": str(run.path)} for run in listed]):
        return
    rows = []
    for run in listed:
        value = run.figures.get(metric)
        step = (
            f"{'-' if run.step is None else run.step} of {'-' if run.steps is None else run.steps}"
        )
        shown = "" if value is None else f"{value:.4g}"
        name = "" if run.path.name.startswith(run.name) else run.name
        rows.append(
            (str(run.path.relative_to(folder)), name, run.state, step, shown, size(run.size))
        )
    columns = []
    for head, *values in zip(("run", "name", "state", "step", metric, "size"), *rows, strict=True):
        if any(values):
            cells = [str(cell(value)) for value in (head, *values)]
            width = max(map(len, cells))
            columns.append(
                [
                    c.rjust(width) if head in ("step", metric, "size") else c.ljust(width)
                    for c in cells
                ]
            )
    for line in zip(*columns, strict=True):  # never wrapped, so that names can be copied
        echo("  ".join(line).rstrip())
    if not rows:
        echo(f"no runs in {folder}")


@runs.command(epilog="Example: dither runs verify runs/RUN")
def verify(run_directory: RunDirectory, as_json: Json = False) -> int:
    """Verify the checksums of all files needed to resume. Exits with 3 if one is damaged."""
    from ..runs.list_runs import verify_run

    files = verify_run(run_directory)
    if not echo_json(as_json, [asdict(file) for file in files]):
        for file in files:
            echo(f"{file.what:32} {file.reason or 'intact'}")
    return DAMAGED if any(file.reason for file in files) else 0


@app.command()
def export(
    run_directory: RunDirectory,
    to: Annotated[Path | None, typer.Option("--to", help="New folder.", show_default=False)] = None,
    hub: Annotated[
        Path | None,
        typer.Option(
            "--to-hub-folder", help="New folder, also with model card, config.json and tokenizer."
        ),
    ] = None,
    licence: Annotated[
        str, typer.Option("--license", help="Licence of the weights, for the card.")
    ] = "unknown",
    data_licence: Annotated[
        str, typer.Option("--data-license", help="Licence of the data.")
    ] = "not stated",
    program: Annotated[
        bool, typer.Option("--program", help="Also write the denoiser with torch.export.")
    ] = False,
    checkpoint: CheckpointOption = "newest",
    selected: PluginOption = None,
) -> None:
    """Export the weights and experiment of a run into a folder for others.

    In Python, dither.load(FOLDER) returns the trained system on any machine. Data files are listed,
    not copied.
    """
    from ..runs.exports import export_run, load, read_missing_data
    from ..runs.hub import PROGRAM, export_program, export_to_hub_folder

    folder = hub or to
    if folder is None or None not in (hub, to):
        raise typer.BadParameter("give either --to or --to-hub-folder")
    which = parse_checkpoint(checkpoint)
    if hub is None:
        files = export_run(run_directory, folder, which, selected)
    else:
        files = export_to_hub_folder(run_directory, folder, which, selected, licence, data_licence)
    if program:
        system = load(run_directory, which, "cpu", plugins=selected)
        files.append(export_program(system, folder / PROGRAM))
    for path in files:
        echo(path)
    for option, name in read_missing_data(folder)[0]:
        echo(f"data not included: {option} = {name}")


@app.command()
def push(
    folder: Annotated[
        Path, typer.Argument(help="A folder of export --to-hub-folder.", show_default=False)
    ],
    name: Annotated[
        str, typer.Argument(metavar="ORG/NAME", help="Repository.", show_default=False)
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Create a private repository.")
    ] = False,
) -> None:
    """Upload an export to the Hugging Face hub; dither.load("ORG/NAME") reads it. HF_TOKEN is the access token."""
    from ..runs.hub import push as push_folder

    echo(push_folder(folder, name, private))


@app.command()
def sample(
    run_directory: RunDirectory,
    words: Assignments = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of samples.")] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Output folder; by default inside the run.")
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option("--constraints", metavar="FILE", help="TOML file with \\[task.constraints]."),
    ] = None,
    export: Annotated[
        Words,
        typer.Option(
            "--export", metavar="FORMAT", help="Also export in a format of the task (repeatable)."
        ),
    ] = None,
    infill: Annotated[
        str | None,
        typer.Option(
            "--infill",
            metavar="TEXT",
            help="Text with gaps: \\[MASK:K] stands for K tokens to draw.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Edit the plan of this file: keep some of its rooms."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep", metavar="ROOMS", help="Rooms to keep, such as 0-3,5; by default all."
        ),
    ] = None,
    redraw: Annotated[
        str,
        typer.Option("--redraw", metavar="NUMBER", help="Other rooms to draw: rest, or a number."),
    ] = "rest",
    outline: Annotated[
        Path | None,
        typer.Option(
            "--outline",
            metavar="FILE",
            help="Fill the outline in this file: JSON, GeoJSON or an SVG path.",
        ),
    ] = None,
    checkpoint: CheckpointOption = "newest",
    changes: Annotated[
        Words,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override sampler.* or sample.* (repeatable)."
        ),
    ] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics/--no-metrics", help="Compare the samples with data.")
    ] = True,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Draw the samples.")
    ] = True,
    selected: PluginOption = None,
) -> int:
    """Sample from a checkpoint of a run."""
    from ..runs.evaluate_run import sample_run

    which = parse_checkpoint(checkpoint)
    if source is None and (keep is not None or redraw != "rest"):
        raise typer.BadParameter("--keep and --redraw require --from FILE")
    rooms = None if keep is None else _numbers(keep)
    if redraw != "rest" and not redraw.isdecimal():
        raise typer.BadParameter(
            f'expected rest or a number, got "{redraw}"', param_hint="--redraw"
        )
    return sample_run(
        run_directory,
        count,
        seed,
        out,
        constraints=constraints,
        forms=export or (),
        checkpoint=which,
        select=selected,
        changes=[*(changes or ()), *(words or ())],
        metrics=metrics,
        pictures=pictures,
        infill=infill,
        source=source,
        keep=rooms,
        redraw=None if redraw == "rest" else int(redraw),
        outline=outline,
    )


def _numbers(text: str) -> list[int]:
    """Parse numbers and ranges such as 0-3,5."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise typer.BadParameter(
                f'expected numbers such as 0-3,5, got "{text}"', param_hint="--keep"
            )
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


@app.command()
def evaluate(
    run_directory: RunDirectory,
    checkpoint: CheckpointOption = "newest",
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option("--split", help="Data split.")
    ] = "valid",
    texts: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="Evaluate text files instead (repeatable)."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FOLDER", help="Evaluate text of `dither prepare text` instead."
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks", metavar="NAMES", help="Tasks or task files of lm-evaluation-harness."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Examples of each of --tasks.")
    ] = None,
    frontier: Annotated[
        Words,
        typer.Option(
            "--frontier", metavar="OPTION=V,V", help="Sample over a sampler option (repeatable)."
        ),
    ] = None,
    changes: Annotated[
        Words, typer.Option("--set", metavar="KEY=VALUE", help="Override evaluate.* (repeatable).")
    ] = None,
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Evaluate a checkpoint of a run, next to baselines."""
    given = {"--text": texts, "--data": data, "--tasks": tasks, "--frontier": frontier}
    if len(names := [name for name, value in given.items() if value]) > 1:
        raise typer.BadParameter(f"exclude each other: {', '.join(names)}", param_hint=names[0])
    which = parse_checkpoint(checkpoint)
    if frontier:
        from ..runs import frontier as runs_frontier

        rows, picture = runs_frontier.frontier(
            run_directory, _grid(frontier), which, selected, changes or ()
        )
        if not echo_json(as_json, rows):
            for name in rows[-1]:
                echo(
                    f"{name:24}"
                    + " ".join(f"{row[name]:>9.4g}" if name in row else "     real" for row in rows)
                )
            echo(picture)
        return
    if tasks is not None:
        from ..runs.lm_eval import evaluate_tasks

        echo(
            json.dumps(
                evaluate_tasks(run_directory, tasks.split(","), which, selected, limit), indent=2
            )
        )
        return
    from ..files.metrics_file import is_companion_metric, shown_baselines, with_interval
    from ..runs.evaluate_run import evaluate_run
    from ..runs.progress import Screen

    with Screen(stderr=True).status(f"evaluating on the {split} split"):
        metrics, baselines = evaluate_run(
            run_directory, which, split, selected, changes or (), texts or (), data
        )
    if not echo_json(as_json, metrics | baselines):
        for name in [name for name in metrics if not is_companion_metric(name, metrics)]:
            shown = shown_baselines(split, name, baselines)
            echo(f"{name:40} {with_interval(name, metrics, 6):24} {shown}".rstrip())


def _grid(options: list[str]) -> dict[str, list[str]]:
    """Parse option=number,number."""
    grid = {}
    for text in options:
        if not re.fullmatch(r"[a-z_.]+=[0-9.e-]+(,[0-9.e-]+)*", text):
            message = f'expected OPTION=NUMBER,NUMBER such as temperature=0.8,1, got "{text}"'
            raise typer.BadParameter(message, param_hint="--frontier")
        name, _, values = text.partition("=")
        grid[name] = values.split(",")
    return grid


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="One run, several to compare, or a sweep.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="By default report.html in the run or sweep, or comparison.html.",
        ),
    ] = None,
) -> None:
    """Write a self-contained HTML page about a run or sweep, or comparing several runs."""
    from ..reports.pages import write_report

    echo(write_report(runs, out))


@app.command()
def diff(
    first: Annotated[
        Path, typer.Argument(help="A run directory or an experiment file.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(help="Another one.", show_default=False)],
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Compare two runs or experiments: options, components, plugins, versions, git."""
    from ..runs.compare_runs import compare, read_side

    sections = compare(read_side(first, selected), read_side(second, selected))
    if echo_json(as_json, sections):
        return
    echo(f"{first} -> {second}")
    for name, rows in sections.items():
        echo(f"\n{name}" if rows else "", nl=bool(rows))
        width = min(32, max(map(len, rows), default=0))
        for key, values in rows.items():
            echo(f"  {key:{width}}  {' -> '.join(map(_shown, values))}")
    if not any(sections.values()):
        echo("no difference")


def _shown(value: Any) -> str:
    return (
        "(none)"
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, default=str)
    )


def apply(
    verb: Literal["predict", "explain", "embed"],
    run: Path,
    data: Paths,
    split: Any,
    cell: str | None,
    forms: Words,
    out: Path | None,
    checkpoint: str,
    selected: Words,
) -> None:
    """Apply the model of a run, and print the files."""
    from dither.registry.contracts.protocols import DataRequest

    from ..runs.evaluate_run import apply_run, free_folder

    split = split or ("all" if data else "valid")
    data = data or []
    labels = {} if cell is None else {"cell": cell}
    folder = out or free_folder(
        run / verb, "-".join([split, *labels.values(), *(path.stem for path in data[:1])])
    )
    request = DataRequest(folder, tuple(data), split, labels, tuple(dict.fromkeys(forms or ())))
    for path in apply_run(verb, run, request, parse_checkpoint(checkpoint), selected):
        echo(path)


def _add_verb(verb: Literal["predict", "embed"], text: str) -> None:
    @app.command(verb, help=text)
    def command(
        run_directory: RunDirectory,
        data: Data = None,
        split: SplitOption = None,
        cell: CellOption = None,
        export: ExportOption = None,
        out: OutOption = None,
        checkpoint: CheckpointOption = "newest",
        selected: PluginOption = None,
    ) -> None:
        apply(verb, run_directory, data, split, cell, export, out, checkpoint, selected)


_add_verb(
    "predict", "Predict unknown values of data: another split, your own data, another cell type."
)
_add_verb("embed", "Write embeddings of the samples of a run or of your data.")
