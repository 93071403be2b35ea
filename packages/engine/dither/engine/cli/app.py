"""The typer application, and the arguments that several commands have in common.

Nothing heavy is imported here: help and completion must be fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from .garbage_collection import resume_collection, without_collection

if TYPE_CHECKING:
    from ..config.load_experiment import Loaded

__all__ = [
    "PANELS",
    "VERBS",
    "Assignments",
    "Checkpoint",
    "Command",
    "Experiment",
    "Group",
    "Json",
    "OptionalExperiment",
    "Overrides",
    "PluginNames",
    "Removals",
    "RunDirectory",
    "Runs",
    "Split",
    "Trained",
    "Words",
    "app",
    "joined",
    "load",
    "quoted",
    "refuse_unused",
]


class _PlainFlags:
    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            # Arguments of click have no `is_flag`.
            if parameter.param_type_name == "option" and parameter.is_flag:
                parameter.metavar = ""
        return parameters


class Command(_PlainFlags, TyperCommand):
    """A command whose flags are shown without a type; it runs with garbage collection."""

    def invoke(self, ctx: Any) -> Any:
        resume_collection()
        return super().invoke(ctx)


class Group(_PlainFlags, TyperGroup):
    """A group of commands whose flags are shown without a type."""


EPILOG = """Exit codes: 0 done, 1 failed, 2 invalid input, 3 damaged run, 4 NaN or inf, \
5 no disk space, memory or run directory, 75 stopped by a signal. Environment: DITHER_DATA is the folder of \
prepared data, DITHER_PLUGINS names plugins to load, NO_COLOR disables colours; docs/runs.md \
lists all.

    Example: dither run bubble_diagram/quick"""

app = typer.Typer(
    name="dither",
    cls=Group,
    help="Diffusion transformers assembled from named components.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The application; call `main` to run it."""

PANELS = {
    "experiments": {
        "run": (
            "experiments",
            "run bubble_diagram/quick train.steps=500 model.width=128",
        ),
        "sweep": ("sweeps", "sweep my.toml --sweep 'train.optimizer.lr=[1e-3, 3e-3]'"),
        "compare": ("compare", "compare my.toml --over process=absorbing,uniform"),
        "launch": ("launch", "launch my.toml --slurm --nodes 4 --gpus 8"),
        "validate": ("experiments", "validate my.toml --deep"),
        "resolve": ("experiments", "resolve my.toml train.optimizer --origins"),
        "bench": ("experiments", "bench bubble_diagram/quick --steps 50"),
        "prepare": ("components", "prepare text corpus.txt --tokenizer chars"),
        "new": ("new", "new experiment my.toml --from language_model/quick"),
    },
    "runs": {
        "runs": ("runs", "runs list"),
        "report": ("runs", "report runs/RUN"),
        "sample": ("runs", "sample runs/RUN --count 64 sampler.steps=100"),
        "evaluate": ("runs", "evaluate runs/RUN --split test"),
        "certify": ("certify", "certify runs/RUN --count 64"),
        "export": ("runs", "export runs/RUN --out my-model"),
    },
    "components and plugins": {
        "list": ("components", "list sampler"),
        "describe": ("components", "describe sampler ancestral"),
        "search": ("install", "search sampler"),
        "install": ("install", "install dither-digits"),
        "uninstall": ("install", "uninstall dither-digits"),
        "plugins": ("plugins", "plugins test wavelet"),
        "doctor": ("plugins", "doctor"),
        "registry": ("plugins", "registry check"),
        "schema": ("plugins", "schema --out experiment.schema.json"),
        "mcp": ("mcp_server", "mcp my-folder"),
    },
}
"""Commands in the order of the help, each with its module and an example for its own help."""
VERBS = {
    verb: module for panel in PANELS.values() for verb, (module, _) in panel.items()
}
"""Commands of the engine and their modules; some are groups of commands, such as `runs list`."""

Words = list[str] | None
FILE = (
    "An experiment file (TOML), or the name of one that comes with dither, such as "
    "bubble_diagram/quick."
)
Experiment = Annotated[Path, typer.Argument(help=FILE, show_default=False)]
OptionalExperiment = Annotated[
    Path | None, typer.Argument(help=FILE, show_default=False)
]
Assignments = Annotated[
    Words,
    typer.Argument(
        metavar="KEY=VALUE",
        show_default=False,
        help="Overrides, as with --set; --KEY VALUE works too if the key has a dot: "
        "--train.steps 10. `dither describe train` lists the options of training.",
    ),
]
Overrides = Annotated[
    Words,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value (repeatable); VALUE is TOML or a string.",
    ),
]
Removals = Annotated[
    Words,
    typer.Option(
        "--unset", metavar="KEY", help="Remove a value of the file (repeatable)."
    ),
]
PluginNames = Annotated[
    Words,
    typer.Option(
        "-p",
        metavar="NAME",
        help="Load a plugin by name or file; no:NAME blocks one (repeatable).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Simultaneous runs.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only validate and list the arms or points.")
]
Ranks = Annotated[
    int, typer.Option("--ranks", min=1, help="GPUs of each run, by torchrun.")
]
Executor = Annotated[
    str,
    typer.Option(
        "--executor", help="processes, local, slurm, or any of `dither list executor`."
    ),
]
JobOptions = Annotated[
    Words,
    typer.Option("--job", metavar="KEY=VALUE", help="An option of the executor."),
]
Runs = Annotated[Path, typer.Option("--runs", help="Parent folder of run directories.")]
RunDirectory = Annotated[
    Path, typer.Argument(help="A run directory.", show_default=False)
]
Trained = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run directory, an export, or a trained model such as zoo/bubble-small.",
        show_default=False,
    ),
]
Split = Annotated[
    Literal["train", "valid", "test"],
    typer.Option("--split", help="Split of the data."),
]
Checkpoint = Annotated[
    str, typer.Option("--checkpoint", metavar="WHICH", help="newest, best, or a step.")
]


def load(
    path: Path,
    overrides: Sequence[Words],
    removals: Words,
    plugins: Words,
) -> Loaded:
    """Load an experiment with the options of the command line; later overrides win."""
    with without_collection():
        from ..config.load_experiment import load_experiment

        return load_experiment(path, joined(*overrides), joined(removals), plugins)


def joined(*options: Words) -> list[str]:
    """Return the values of repeatable options in one list."""
    words: list[str] = []
    for values in options:
        # typer passes None for an option that is not given.
        words += values or ()
    return words


def refuse_unused(context: typer.Context, reason: str, *names: str) -> None:
    """Refuse options, by the names of their parameters, that are given where they have no effect."""
    given = []
    for parameter in context.command.params:
        # An enumeration of click, of which typer may bundle its own copy.
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in names and source and source.name == "COMMANDLINE":
            given.append("/".join((*parameter.opts[:1], *parameter.secondary_opts)))
    if given:
        from dither.registry.config.errors import Refused

        message = f"{', '.join(given)}: no effect, {reason}"
        raise Refused(message, code="no-effect")


def quoted(*words: object) -> str:
    """Return a command of dither for a shell, to be printed."""
    from dither.registry.files.lookup import command_line

    return command_line(*words)
