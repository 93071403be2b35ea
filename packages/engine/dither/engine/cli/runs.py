"""`dither runs`, `report`, `sample`, `evaluate`, `export`: commands on run directories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .app import (
    Assignments,
    Checkpoint,
    Group,
    Json,
    Overrides,
    PluginNames,
    RunDirectory,
    Split,
    Trained,
    Words,
    app,
    joined,
    refuse_unused,
)
from .engine import RunEngine
from .output import echo, echo_files, echo_json, wants_json

if TYPE_CHECKING:
    from dither.registry.contracts.commands import Templates
    from dither.registry.contracts.records import Clean

    from ..runs.list_runs import ListedRun
    from ..runs.request_checks import Which

__all__: list[str] = []

# The exit code of a damaged run in every command.
DAMAGED = 3
LOSS = "valid/loss"
runs = typer.Typer(
    name="runs",
    cls=Group,
    help="List runs, verify one, or compare two.",
    no_args_is_help=True,
)
app.add_typer(runs, name="runs")


@runs.command(
    "list", epilog="Example: dither runs list runs --metric valid/nats_per_token"
)
def list_(
    folder: Annotated[
        Path, typer.Argument(help="A folder of run directories, or a sweep.")
    ] = Path("runs"),
    metric: Annotated[
        str, typer.Option("--metric", metavar="KIND/NAME", help="Metric to show.")
    ] = LOSS,
    as_json: Json = False,
) -> None:
    """List the runs of a folder or sweep with status, step and a metric."""
    from ..runs.list_runs import list_runs

    listed = list(list_runs(folder))
    # A metric that no run has is a mistake, except the default.
    if metric != LOSS:
        from ..sweeps.directory import require_metric

        require_metric(metric, (run.metrics for run in listed), "--metric")
    # JSON has no paths.
    if echo_json(as_json, [{**asdict(run), "path": str(run.path)} for run in listed]):
        return
    for line in _table_of_runs(listed, folder, metric):
        echo(line)
    if not listed:
        echo(f"no runs in {folder}")


def _table_of_runs(listed: Sequence[ListedRun], folder: Path, metric: str) -> list[str]:
    """Return aligned lines, never wrapped, so that names can be copied; empty columns are omitted."""
    from ..config.machine_memory import size
    from ..runs.progress import cell

    heads = ("run", "name", "state", "step", metric, "size")
    right = ("step", metric, "size")
    rows = []
    for run in listed:
        value = run.metrics.get(metric)
        step = "-" if run.step is None else run.step
        steps = "-" if run.steps is None else run.steps
        # The folder of a run begins with its name, unless it was renamed: then both are shown.
        rows.append(
            (
                str(run.path.relative_to(folder)),
                "" if run.path.name.startswith(run.name) else run.name,
                run.state,
                f"{step} of {steps}",
                "" if value is None else f"{value:.4g}",
                size(run.size),
            )
        )

    columns = []
    for head, *values in zip(heads, *rows, strict=True):
        if not any(values):
            continue
        # Names from files may contain escapes, which would also spoil the widths.
        cells = [str(cell(value)) for value in (head, *values)]
        width = max(map(len, cells))
        align = str.rjust if head in right else str.ljust
        columns.append([align(text, width) for text in cells])
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


@runs.command(epilog="Example: dither runs verify runs/RUN")
def verify(run_directory: RunDirectory, as_json: Json = False) -> int:
    """Verify the checksums of all files needed to resume. Exits with 3 if one is damaged."""
    from ..files.mirror import local_run
    from ..runs.list_runs import verify_run

    files = verify_run(local_run(run_directory))
    if not echo_json(as_json, [asdict(file) for file in files]):
        for file in files:
            echo(f"{file.path:32} {file.reason or 'intact'}")
    # Scripts that copy runs rely on the code, not on the text.
    return DAMAGED if any(file.reason for file in files) else 0


@runs.command(epilog="Example: dither runs diff runs/FIRST runs/SECOND")
def diff(
    first: Annotated[
        Path,
        typer.Argument(
            help="A run directory or an experiment file.", show_default=False
        ),
    ],
    second: Annotated[Path, typer.Argument(help="Another one.", show_default=False)],
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Compare two runs or experiments: options, components, plugins, versions, git."""
    from dither.registry.files.addresses import address_of

    from ..files.mirror import local_run
    from ..runs.diff_runs import differences, read_side

    sides = [read_side(local_run(path), plugins) for path in (first, second)]
    sections = differences(*sides)
    if echo_json(as_json, sections):
        return
    echo(f"{address_of(first) or first} -> {address_of(second) or second}")
    for name, rows in sections.items():
        if rows:
            _show_differences(name, rows)
    if not any(sections.values()):
        echo("no difference")


def _show_differences(section: str, rows: Mapping[str, tuple[Any, Any]]) -> None:
    echo(f"\n{section}")
    # A single long key would indent the values of all others.
    width = min(32, max(map(len, rows)))
    for key, (old, new) in rows.items():
        echo(f"  {key:{width}}  {_shown(old)} -> {_shown(new)}")


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    # TOML has dates, JSON has not.
    return value if isinstance(value, str) else json.dumps(value, default=str)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="One run, several to compare, or a sweep.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="By default report.html in the run or sweep, or comparison.html.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a self-contained HTML page about a run or sweep, or comparing several runs."""
    from ..files.mirror import local_run
    from ..reports.comparison_page import write_page_of
    from ..reports.pages import write_report
    from ..sweeps.compare import is_comparison, open_comparison, read_comparison

    runs = [local_run(path) for path in runs]
    # The page of a sweep has no verdicts.
    if len(runs) == 1 and is_comparison(runs[0]):
        comparison = read_comparison(open_comparison(runs[0]))
        page = write_page_of(comparison, out or runs[0] / "report.html")
    else:
        page = write_report(runs, out)
    echo_files(as_json, [page], str(page))


@app.command()
def sample(
    run: Trained,
    words: Assignments = None,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", metavar="NUMBER", min=1, help="Number of samples."
        ),
    ] = 16,
    seed: Annotated[
        int, typer.Option("--seed", metavar="NUMBER", min=0, help="Seed.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="New folder; by default inside the run."),
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(
            # The backslash keeps rich from taking the table for markup.
            "--constraints",
            metavar="FILE",
            help="TOML file with \\[task.constraints].",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", metavar="TEXT", help="Beginning of every sample, if it is text."
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            metavar="TOKENS",
            min=1,
            help="Tokens of a sample of a model that draws block by block.",
            show_default=False,
        ),
    ] = None,
    export: Annotated[
        Words,
        typer.Option("--export", metavar="FORMAT", help="Export format (repeatable)."),
    ] = None,
    checkpoint: Checkpoint = "newest",
    overrides: Overrides = None,
    metrics: Annotated[
        bool,
        typer.Option("--metrics/--no-metrics", help="Compare the samples with data."),
    ] = True,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Draw the samples.")
    ] = True,
    figures: Annotated[
        Words,
        typer.Option(
            "--figures", metavar="FORMAT", help="Plots as svg or pdf, too (repeatable)."
        ),
    ] = None,
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Sample from a checkpoint of a run; overrides are of sampler.* and sample.*."""
    from dither.registry.contracts.commands import RunOptions, SampleRequest

    request = SampleRequest(
        count=count,
        seed=seed,
        out=out,
        formats=export or (),
        constraints=constraints,
        metrics=metrics,
        pictures=pictures,
        length=length,
        figures=figures or (),
    )
    options = RunOptions(checkpoint, joined(overrides, words), plugins)
    templates: Templates | None = None
    if prompt is not None:
        # The task, which encodes the text, is not built yet.
        def templates(task: Any, n: int, seed: int) -> Clean:
            clean: Clean = task.prompted(prompt, n, seed)
            return clean

    RunEngine().sample(run, options, request, templates, as_json)


@app.command()
def evaluate(
    context: typer.Context,
    run: Trained,
    words: Assignments = None,
    split: Split = "valid",
    checkpoint: Checkpoint = "newest",
    overrides: Overrides = None,
    plugins: PluginNames = None,
    as_json: Json = False,
    tight: Annotated[
        int | None,
        typer.Option(
            "--tight",
            metavar="K",
            min=1,
            help="Also bounds of K draws a sample, plain and with less slack.",
            show_default=False,
        ),
    ] = None,
    likelihood: Annotated[
        Literal["bound", "ode"] | None,
        typer.Option(
            "--likelihood",
            help="Also bits per dimension: the variational bound, or the probability flow's density.",
            show_default=False,
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option("--draws", metavar="K", min=1, help="Draws of --likelihood.")
    ] = 16,
) -> None:
    """Evaluate a checkpoint of a run, next to baselines; overrides are of evaluate.*."""
    from dither.registry.contracts.commands import RunOptions

    if likelihood is None:
        refuse_unused(context, "without --likelihood", "draws")
    options = RunOptions(checkpoint, joined(overrides, words), plugins)
    RunEngine().evaluate(
        run,
        options,
        as_json=as_json,
        split=split,
        tight=tight,
        likelihood=likelihood,
        draws=draws,
    )


@app.command()
def export(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory; for --push also a folder of export --hub.",
            show_default=False,
        ),
    ],
    words: Assignments = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="New folder.", show_default=False)
    ] = None,
    hub: Annotated[
        bool,
        typer.Option("--hub", help="Also write model card, config.json and tokenizer."),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            "--push",
            metavar="ORG/NAME",
            help="Upload to the Hugging Face hub; implies --hub.",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create a private repository.")
    ] = False,
    licence: Annotated[
        str, typer.Option("--license", help="Licence of the weights, for the card.")
    ] = "unknown",
    data_licence: Annotated[
        str, typer.Option("--data-license", help="Licence of the data.")
    ] = "not stated",
    program: Annotated[
        bool,
        typer.Option("--program", help="Also write the denoiser with torch.export."),
    ] = False,
    adapter: Annotated[
        bool,
        typer.Option(
            "--adapter", help="Write the LoRA updates only, in the format of peft."
        ),
    ] = False,
    checkpoint: Checkpoint = "newest",
    overrides: Overrides = None,
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Export the weights and experiment of a run into a folder for others.

    In Python, dither.load(FOLDER) returns the trained system on any machine, and
    dither.load("ORG/NAME") a pushed one. Data files are listed, not copied. Overrides are of
    sampler.* and sample.*. HF_TOKEN is the access token of the hub.
    """
    from ..files.mirror import local_run

    _check_targets(out, push, adapter, hub or program)
    _check_export_options(context)
    source = local_run(source)
    changes = joined(overrides, words)
    which = _check_export(source, out, checkpoint, changes, plugins)
    # These import torch.
    from ..runs.exports import export_adapter, export_run, load, read_export_manifest
    from ..runs.hub import PROGRAM, export_program, export_to_hub_folder
    from ..runs.hub import push as push_folder

    if adapter and out is not None:
        files = export_adapter(source, out, which, plugins)
        text = "\n".join(map(str, files))
        echo_files(as_json, files, text, data=[], pushed=None)
        return
    files = []
    left_out: list[tuple[str, str]] = []
    if out is not None:
        content = None
        if program:
            # Before there is a folder: it takes long, and may be refused. On the CPU, so that it
            # runs on any machine.
            content = export_program(load(source, which, "cpu", plugins=plugins))
        # A model repository needs a card and a configuration, any other export does not.
        if hub or push is not None:
            files = export_to_hub_folder(
                source,
                out,
                which,
                plugins,
                licence=licence,
                data_licence=data_licence,
                changes=changes,
            )
        else:
            files = export_run(source, out, which, plugins, changes)
        files += _write_program(content, out / PROGRAM)
        left_out = read_export_manifest(out)[0]
        _echo_export(files, left_out, as_json)
    address = None
    if push is not None:
        address = push_folder(out or source, push, private)
        echo(address, err=wants_json(as_json))
    names = [str(path) for path in files]
    echo_json(as_json, {"files": names, "data": left_out, "pushed": address})


def _check_export_options(context: typer.Context) -> None:
    """Refuse options that have no effect on what is written."""
    given = context.params
    of_card = ("licence", "data_licence")
    of_weights = ("words", "overrides", "checkpoint", "plugins")
    if given["push"] is None:
        refuse_unused(context, "without --push", "private")
    if given["out"] is None:
        reason = "as --push uploads the folder of an earlier export"
        refuse_unused(context, reason, *of_card, *of_weights)
    elif given["push"] is None and not given["hub"]:
        refuse_unused(context, "without --hub or --push", *of_card)
    if given["adapter"]:
        refuse_unused(context, "with --adapter", "words", "overrides")


def _write_program(content: BytesIO | None, file: Path) -> list[Path]:
    """Write a program of `export_program`, if there is one; return the files."""
    from dither.registry.files.atomic import atomic_write

    if content is None:
        return []
    with atomic_write(file) as temporary:
        temporary.write_bytes(content.getbuffer())
    return [file]


def _echo_export(
    files: Sequence[Path], left_out: Sequence[tuple[str, str]], as_json: bool
) -> None:
    # With --json, stdout has a single value.
    for path in files:
        echo(path, err=wants_json(as_json))
    for option, name in left_out:
        echo(f"data not included: {option} = {name}", err=wants_json(as_json))


def _check_targets(
    out: Path | None, push: str | None, adapter: bool, extended: bool
) -> None:
    """Refuse an export to nowhere, and flags of an export without effect."""
    # --push alone uploads the folder of an earlier export.
    if out is None and (adapter or push is None):
        raise typer.BadParameter(
            "give --out FOLDER; or --push, for a folder of an export"
        )
    if adapter and (extended or push is not None):
        raise typer.BadParameter("--adapter: without --hub, --push and --program")
    if out is None and extended:
        raise typer.BadParameter("--hub and --program require --out FOLDER")


def _check_export(
    source: Path,
    out: Path | None,
    checkpoint: str,
    changes: Sequence[str],
    plugins: Words,
) -> Which:
    """Refuse wrong options of an export; return the checkpoint."""
    from dither.registry.contracts.commands import RunOptions

    from ..runs.request_checks import check_options, parse_checkpoint, require_absent
    from ..runs.run_directory import resolved_file

    if out is not None:
        require_absent(out)
        resolved_file(source)
    # Without overrides a run is exported whose plugins are not installed.
    if changes:
        check_options(source, RunOptions(checkpoint, changes, plugins))
    return parse_checkpoint(checkpoint)
