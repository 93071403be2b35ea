"""`dither run`, `validate`, `resolve`, `bench`: commands on experiment files."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import (
    Assignments,
    Experiment,
    Json,
    OptionalExperiment,
    Overrides,
    PluginNames,
    Removals,
    Runs,
    Words,
    app,
    joined,
    load,
    quoted,
    refuse_unused,
)
from .garbage_collection import without_collection
from .output import (
    echo,
    echo_event,
    echo_json,
    location_record,
    print_valid,
    wants_json,
)

if TYPE_CHECKING:
    from ..config.load_experiment import Loaded, Setting

__all__: list[str] = []

UNPRINTABLE = re.compile(r"[^\S\n ]|[\u0080-\U0010ffff]")
MAX_DEPTH = 256
"""Blocks of a model up to which `validate` builds it, without memory, to know the names of its
weights."""
COPY_SECONDS = 0.5
"""Seconds between two looks for the run directory that the main rank copies."""


@app.command()
def run(
    context: typer.Context,
    experiment: OptionalExperiment = None,
    words: Assignments = None,
    overrides: Overrides = None,
    removals: Removals = None,
    plugins: PluginNames = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Resume this run directory; that of a mirror is copied to --runs.",
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Resume although components or plugins have changed.",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Train, evaluate, sample and plot an experiment; without one, list those of dither."""
    from dither.registry.files.addresses import address_of

    from ..runs.run_directory import link_latest

    if resume is not None and (address := address_of(resume)):
        resume = _copy_of_mirror(address, runs, plugins)
    elif resume is not None:
        refuse_unused(context, "as --resume names the run directory", "runs")
    else:
        refuse_unused(context, "without --resume", "accept_changes")
    # After --resume RUN the first argument is an override as well.
    if resume is not None and experiment is not None and "=" in str(experiment):
        words = [str(experiment), *joined(words)]
        experiment = None
    if experiment is None and resume is None:
        reason = "without an experiment"
        refuse_unused(context, reason, "overrides", "removals", "plugins", "runs")
        return _list_shipped(as_json)
    path = _file_to_run(experiment, resume)
    loaded = load(path, [overrides, words], removals, plugins)
    _require_one_run(loaded)

    from ..runs.progress import Screen, say

    as_json = wants_json(as_json)
    # Every rank of torchrun would print it.
    if "RANK" not in os.environ:
        # `say` never ends a run, as on a full disk
        say(Screen(stderr=as_json), f"{path}: valid; loading torch and the data")
    options = _json_output() if as_json else {}
    with without_collection():
        from ..runs.run import run as start

    # python -m experiments.run omits the command, which the manifest has.
    argv = ["dither", *sys.argv[1:]]
    if "run" not in argv:
        argv.insert(1, "run")
    return start(
        loaded,
        runs,
        argv,
        resume,
        accept_changes=accept_changes,
        created=link_latest,
        **options,
    )


def _require_one_run(loaded: Loaded) -> None:
    if loaded.experiment.sweep is None:
        return
    path = loaded.path
    hint = (
        f"use {quoted('sweep', path)} for all points, or --unset sweep for none of them"
    )
    place = loaded.document.origin(("sweep",))
    raise _usage(f"{path} is a sweep, not one run", hint, ("sweep",), place)


def _json_output() -> dict[str, Any]:
    """Return options of a run that prints text to stderr, and events to stdout."""
    from ..runs.progress import Screen

    options: dict[str, Any] = {"console": Screen(stderr=True)}
    # Every rank reports the error that ends the run.
    if os.environ.get("RANK", "0") == "0":
        options["emit"] = echo_event
    return options


def _copy_of_mirror(address: str, runs: Path, plugins: list[str] | None) -> Path:
    """Return the run directory of a mirrored run, which the main rank copies."""
    from dither.registry.files.lookup import exists

    from ..files.mirror import copy_run, name_of

    local = runs / name_of(address)
    if os.environ.get("RANK", "0") != "0":
        # torchrun ends this rank if the main one fails.
        while not exists(local):
            time.sleep(COPY_SECONDS)
        return local
    if exists(local):
        # torchrun starts ranks again.
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            return local
        # Never over a run that may be further than its mirror.
        hint = quoted("run", "--resume", local)
        raise _usage(f"{local} exists already", hint)
    return copy_run(address, runs, [Path(name).name for name in plugins or ()])


def _list_shipped(as_json: bool) -> int:
    """Print the experiments that come with dither, each with the first sentence of its file."""
    from rich.console import Console

    from dither.registry.config.document import shipped_experiments

    from ..runs.progress import cell, say, table

    rows = {name: _first_sentence(path) for name, path in shipped_experiments().items()}
    if echo_json(as_json, rows):
        return 0
    page = table("experiment", "description")
    page.columns[0].no_wrap = True
    for name, text in rows.items():
        page.add_row(cell(name), cell(text))
    console = Console()
    console.print(page)
    say(
        console, "\nTrain one: dither run NAME, such as dither run bubble_diagram/quick"
    )
    return 0


def _first_sentence(path: Path) -> str:
    """Return the first sentence of the comment that an experiment file begins with."""
    words: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        # `#:schema` is for editors.
        if not line.startswith("#:"):
            words += line.removeprefix("#").split()
    return re.split(r"(?<=[.:?]) | \(", " ".join(words), maxsplit=1)[0].rstrip(".:")


def _file_to_run(experiment: Path | None, resume: Path | None) -> Path:
    """Return the experiment file of `run`; Refused if it is not exactly one, or a run."""
    from dither.registry.files.lookup import is_file

    from ..runs.run_directory import resolved_file

    if resume is not None and experiment is None:
        return resolved_file(resume)
    if experiment is None or resume is not None:
        hint = "--resume RUN continues a run, with the experiment it was started with"
        raise _usage("give either an experiment file or --resume RUN", hint)
    if is_file(experiment / "resolved.toml"):
        hint = quoted("run", "--resume", experiment)
        raise _usage(f"{experiment} is a run, not an experiment file", hint)
    return experiment


def _usage(
    message: str, hint: str, path: tuple[str, ...] = (), origin: Any = None
) -> Exception:
    from dither.registry.config.errors import Problem, Refused

    return Refused(Problem(message, path, origin, hint, code="usage"))


@app.command()
def validate(
    experiment: Experiment,
    words: Assignments = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also count parameters, memory, shapes and FLOPs (imports torch).",
        ),
    ] = False,
    overrides: Overrides = None,
    removals: Removals = None,
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Check an experiment: names, types, bounds, and whether the components are compatible.

    So are the arms of a comparison and the points of a sweep; of more than 256 points each value is
    checked, and `dither sweep --dry-run` checks every combination.
    """
    loaded = _load_with_sweep(experiment, [overrides, words], removals, plugins)
    train = loaded.experiment.train
    # Patterns of weights can only be compared with the names of a model that is built.
    if (train.freeze or train.lora) and (
        deep or _depth(loaded.experiment.model) <= MAX_DEPTH
    ):
        from ..training.model_summary import require_names

        require_names(loaded)
    if not deep:
        print_valid(loaded, as_json)
        return

    from ..training.model_summary import build_on_meta, memory_needs, summarize_model

    summary = summarize_model(loaded.experiment)
    memory = memory_needs(loaded.experiment, build_on_meta(loaded.experiment))
    print_valid(
        loaded,
        as_json,
        {"parameters": summary["parameters"], "memory": memory, "shapes": summary},
    )
    if not wants_json(as_json):
        _print_model(summary, memory)


def _load_with_sweep(
    path: Path, overrides: list[Words], removals: Words, plugins: Words
) -> Loaded:
    """Load an experiment as `load`, and check the values of its `[sweep]` and `[compare]`."""
    with without_collection():
        from ..config.load_experiment import check_experiment, open_experiment

        document, opened = open_experiment(
            path, joined(*overrides), joined(removals), plugins
        )
        tables = [document.at((key,)) for key in ("sweep", "compare")]
        if not any(tables):
            return check_experiment(document, opened)

        from ..sweeps.launch import check_file

        return check_file(document, opened)


def _depth(model: Any) -> int:
    """Return the number of blocks of a model, 0 for a model without that option."""
    return int(model.depth) if "depth" in type(model).model_fields else 0


def _print_model(summary: dict[str, Any], needs: dict[str, int]) -> None:
    from rich.console import Console

    from ..config.machine_memory import size, total_memory
    from ..runs.progress import table

    def cells(
        parameters: int, output: tuple[int, ...], flops: int
    ) -> tuple[str, str, str]:
        return f"{parameters:,}", " x ".join(map(str, output)), f"{flops:.3g}"

    numbers = ("parameters", "output", "FLOPs forward")
    modules = table("module", "component", *numbers, right=numbers)
    for row in summary["rows"]:
        values = cells(row["parameters"], row["output"], row["flops"])
        modules.add_row(row["name"], row["part"], *values)
    values = cells(summary["parameters"], summary["output"], summary["forward"])
    modules.add_row("model", "", *values, style="bold")
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
    words: Annotated[
        Words,
        typer.Argument(
            metavar="KEY|KEY=VALUE",
            help="Overrides; with --origins also one key or table to show.",
            show_default=False,
        ),
    ] = None,
    origins: Annotated[
        bool,
        typer.Option(
            "--origins",
            help="Show each value with its origin: file and line, --set or a default.",
        ),
    ] = False,
    overrides: Overrides = None,
    removals: Removals = None,
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Print an experiment with every default written out, or the origin of each value.

    Saved in this folder, it runs as it is; a plugin file from another folder must be given with -p
    again.
    """
    keys = [word for word in words or () if "=" not in word]
    changes = [*(overrides or ()), *(word for word in words or () if "=" in word)]
    if origins and len(keys) <= 1:
        _show_origins(experiment, changes, removals or [], plugins, keys, as_json)
        return
    if keys:
        hint = "overrides are KEY=VALUE; --origins also takes one key or table"
        raise _usage(f"unexpected argument: {keys[-1]}", hint)

    import tomlkit

    from dither.registry.config.validation import dump

    loaded = load(experiment, [changes], removals, plugins)
    tree = dump(loaded.experiment, loaded.plugins.catalog)
    files = [os.path.relpath(path) for path in loaded.plugins.files]
    tree["plugins"] = files + loaded.plugins.requested
    if not echo_json(as_json, tree):
        # Escapes and overrides of direction in strings are written as TOML escapes.
        text = UNPRINTABLE.sub(_escape_unprintable, tomlkit.dumps(tree))
        typer.echo(text, nl=False)


def _escape_unprintable(match: re.Match[str]) -> str:
    letter = match[0]
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


def _show_origins(
    experiment: Path,
    changes: list[str],
    removals: list[str],
    plugins: Words,
    keys: list[str],
    as_json: bool,
) -> None:
    """Print each value of an experiment, or of the key or table `keys[0]`, with its origin."""
    from dither.registry.config.errors import dotted, printable
    from dither.registry.config.validation import validate

    from ..config.experiment import Experiment as Model
    from ..config.load_experiment import open_experiment, select, settings

    document, loaded_plugins = open_experiment(experiment, changes, removals, plugins)
    catalog = loaded_plugins.catalog
    model = validate(Model, document, catalog)
    rows = select(list(settings(model, document, catalog)), keys[0] if keys else None)
    if echo_json(as_json, [_origin_record(row) for row in rows]):
        return

    import tomlkit

    for row in rows:
        value = "(none)" if row.value is None else tomlkit.item(row.value).as_string()
        echo(printable(f"{dotted(row.path):32} = {value:24}  {row.story}"))


def _origin_record(row: Setting) -> dict[str, Any]:
    """Return a value and its origins for JSON: the place that counts, and those that it overrides."""
    from dither.registry.config.errors import dotted

    places = [location_record(place) for place in row.places]
    origin = None
    if not row.default_of:
        origin = places.pop(0)
    return {
        "key": dotted(row.path),
        "value": row.value,
        "from": origin,
        "default_of": row.default_of,
        "over": places,
    }


@app.command()
def bench(
    experiment: Experiment,
    words: Assignments = None,
    overrides: Overrides = None,
    removals: Removals = None,
    plugins: PluginNames = None,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Steps per repeat.")
    ] = 20,
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
        load(experiment, [overrides, words], removals, plugins), steps, repeats
    )
    if not echo_json(as_json, result):
        show_bench(Console(), result)
