"""The typer application: common options, commands by module, commands from plugins.

Nothing heavy is imported here: help and completion must be fast.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from ..config.load_experiment import Loaded

__all__ = [
    "PANELS",
    "VERBS",
    "Assignments",
    "CellOption",
    "CheckpointOption",
    "Experiment",
    "Group",
    "Json",
    "OptionalExperiment",
    "OutOption",
    "Overrides",
    "PluginOption",
    "Removals",
    "RunDirectory",
    "Runs",
    "SplitOption",
    "Words",
    "app",
    "app_for",
    "expand_overrides",
    "load",
    "parse_checkpoint",
    "without_collection",
]


def resume_collection() -> None:
    """Enable garbage collection, if `main` disabled it; it does not search what was imported until now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection during imports, in a process that runs one command: they leave few cycles."""
    if gc.get_freeze_count():
        gc.disable()
    try:
        yield
    finally:
        resume_collection()


class _PlainFlags:
    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(_PlainFlags, TyperCommand):
    """A command whose flags are shown without a type; it runs with garbage collection, which `main` disables."""

    def invoke(self, ctx: Any) -> Any:
        resume_collection()
        return super().invoke(ctx)


class Group(_PlainFlags, TyperGroup):
    """A group of commands whose flags are shown without a type."""


app = typer.Typer(
    name="dither",
    cls=Group,
    help="Diffusion transformers assembled from named components.",
    epilog="""Exit codes: 0 done, 1 failed, 2 invalid input, 3 damaged run, 4 NaN or inf, 5 no disk space or memory, \
75 stopped by a signal. Environment: DITHER_DATA is the folder of prepared data, DITHER_PLUGINS names plugins to load, \
DITHER_CPU_KERNELS=0 turns CPU kernels off, NO_COLOR disables colours; docs/runs.md lists all.

    Example: dither run bubble_diagram/quick""",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The application; call `main` to run it."""

Words = list[str] | None
FILE = "An experiment file (TOML), or the name of one that comes with dither, such as bubble_diagram/quick."
Experiment = Annotated[Path, typer.Argument(help=FILE, show_default=False)]
OptionalExperiment = Annotated[Path | None, typer.Argument(help=FILE, show_default=False)]
Assignments = Annotated[
    Words,
    typer.Argument(
        metavar="KEY=VALUE",
        show_default=False,
        help="Overrides, as with --set; --KEY VALUE works too if the key has a dot: --train.steps 10. "
        "`dither describe train` lists the options of training.",
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
    Words, typer.Option("--unset", metavar="KEY", help="Remove a value of the file (repeatable).")
]
PluginOption = Annotated[
    Words,
    typer.Option(
        "-p", metavar="NAME", help="Load a plugin by name or file; no:NAME blocks one (repeatable)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Runs = Annotated[Path, typer.Option("--runs", help="Parent folder of run directories.")]
RunDirectory = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
Part = Literal["all", "train", "valid", "test"] | None
SplitOption = Annotated[
    Part, typer.Option("--split", help="By default valid; all with data of yours.")
]
CellOption = Annotated[
    str | None,
    typer.Option(
        "--cell", metavar="NAME", help="Cell type; by default all that the model was trained on."
    ),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="New folder; by default inside the run.")
]
CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", metavar="WHICH", help="newest, best, or a step.")
]


def expand_overrides(words: Sequence[str]) -> list[str]:
    """Return the arguments of a command with `--train.steps 10` and `--train.steps=10` as `--set train.steps=10`."""
    expanded: list[str] = []
    rest = iter(words)
    for word in rest:
        if match := DOTTED.fullmatch(word):
            value = match["value"] if match["value"] is not None else next(rest, None)
            expanded += [word] if value is None else ["--set", f"{match['key']}={value}"]
        else:
            expanded.append(word)
    return expanded


def load(
    path: Path,
    overrides: Sequence[str] | None,
    removals: Sequence[str] | None,
    plugins: Sequence[str] | None,
) -> Loaded:
    """Load an experiment with the options of the command line."""
    with without_collection():
        from ..config.load_experiment import load_experiment

        return load_experiment(path, overrides or (), removals or (), plugins)


def parse_checkpoint(word: str) -> Any:
    """Return "newest", "best" or the number of a step, or raise `Refused`."""
    from dither.registry.config.errors import Refused

    if word in ("newest", "best"):
        return word
    if not (word.isascii() and word.isdigit() and len(word) <= 12):
        raise Refused(f'--checkpoint: expected newest, best or a step, got "{word}"', code="usage")
    return int(word)


PANELS = {
    "experiments": {
        "run": ("experiments", "run bubble_diagram/quick train.steps=500 model.width=128"),
        "sweep": ("sweeps", "sweep my.toml --sweep 'train.optimizer.lr=[1e-3, 3e-3]'"),
        "validate": ("experiments", "validate my.toml --deep"),
        "explain": ("experiments", "explain my.toml train.optimizer"),
        "resolve": ("experiments", "resolve my.toml > complete.toml"),
        "prepare": ("components", "prepare text corpus.txt --tokenizer chars"),
        "load-hf": ("components", "load-hf LLaDA-8B-Instruct --out llada --length 512"),
        "init": ("plugins", "init language-model"),
    },
    "components and plugins": {
        "list": ("components", "list sampler"),
        "describe": ("components", "describe sampler ancestral"),
        "plugins": ("components", "plugins -p my_block.py"),
        "doctor": ("plugins", "doctor"),
        "registry": ("plugins", "registry check"),
    },
    "runs": {
        "runs": ("runs", "runs list"),
        "report": ("runs", "report runs/RUN"),
        "sample": ("runs", "sample runs/RUN --count 64 sampler.steps=100"),
        "evaluate": ("runs", "evaluate runs/RUN --split test"),
        "predict": ("runs", "predict runs/RUN my.zarr --cell K562 --export csv"),
        "embed": ("runs", "embed runs/RUN --split test"),
        "export": ("runs", "export runs/RUN --to my-model"),
        "push": ("runs", "push my-model my-organisation/my-model --private"),
        "diff": ("runs", "diff runs/FIRST runs/SECOND"),
        "bench": ("experiments", "bench bubble_diagram/quick --steps 50"),
    },
    "development": {
        "new": ("plugins", "new plugin wavelet --kind block"),
        "test-plugin": ("plugins", "test-plugin wavelet"),
        "schema": ("plugins", "schema --out experiment.schema.json"),
    },
}
"""Commands in the order of the help, each with the module that defines it and an example for its
own help."""
DOTTED = re.compile(r"--(?P<key>[a-z_][\w-]*(?:\.[\w-]+)+)(?:=(?P<value>.*))?", re.DOTALL)
VERBS = {verb: module for panel in PANELS.values() for verb, (module, _) in panel.items()}
"""Every built-in command and its module; some are groups of commands, such as `runs list`."""
OURS = frozenset({"core-blocks", "embeddings", "engine", "losses", "processes", "tasks"})
"""Plugins of this repository, which add no commands."""
PLUGIN_PANEL = "plugins"
ENTRIES: tuple[list[Any], list[Any]] = (app.registered_commands, app.registered_groups)


def app_for(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the application with the command that is called, and the arguments.

    All commands are imported for help, and those of plugins only for help or an unknown command.
    """
    words = list(words)
    word = words[0] if words else None
    for entries in ENTRIES:  # of an earlier call in this process
        entries[:] = [entry for entry in entries if entry.rich_help_panel != PLUGIN_PANEL]
    _import_verbs([VERBS[word]] if word in VERBS else dict.fromkeys(VERBS.values()))
    if word in VERBS:  # typer inspects the options of every command, which takes 1 ms each
        called = copy(app)
        commands, groups = (
            [entry for entry in entries if _name(entry) == word] for entries in ENTRIES
        )
        called.registered_commands = commands
        called.registered_groups = groups
        return called, words
    if word == "--version" or "_DITHER_COMPLETE" in os.environ:
        return app, words
    places = [i for i in range(len(words) - 1) if words[i] == "-p" and words[i + 1].endswith(".py")]
    files = [words[i + 1] for i in places]
    words = [text for i, text in enumerate(words) if not {i, i - 1} & set(places)]
    if files or not _installed_names() <= OURS:
        resume_collection()  # commands of plugins are not of class `Command`
        _add_plugin_commands(files, word)
    return app, words


def _import_verbs(modules: Iterable[str]) -> None:
    for module in modules:
        import_module(f".{module}", __package__)
    panel_of = {verb: panel for panel, verbs in PANELS.items() for verb in verbs}
    examples = {verb: example for verbs in PANELS.values() for verb, (_, example) in verbs.items()}
    for entries in ENTRIES:
        entries.sort(key=lambda entry: list(VERBS).index(_name(entry)))
        for entry in entries:
            entry.rich_help_panel = panel_of[_name(entry)]
            entry.epilog = f"Example: dither {examples[_name(entry)]}"
    groups = [
        entry.typer_instance for entry in app.registered_groups if entry.typer_instance is not None
    ]
    for command in [
        *app.registered_commands,
        *(one for group in groups for one in group.registered_commands),
    ]:
        command.cls = Command


def _name(entry: Any) -> str:
    if isinstance(entry.name, str):
        return entry.name
    group = getattr(entry, "typer_instance", None)
    return str(group.info.name if group else entry.callback.__name__)


def _installed_names() -> set[str]:
    """Return the names of the installed plugins; pydantic is imported only if some package has damaged metadata."""
    try:
        return {point.name for point in entry_points(group="dither.plugins")}
    except Exception:  # one unreadable entry_points.txt of any package fails the whole call
        from dither.registry.plugins.discovery import installed_plugins

        return set(installed_plugins())


def _add_plugin_commands(files: Sequence[str], word: str | None) -> None:
    """Call `register_commands` of every plugin; Refused if plugins fail to load and `word` may be one of theirs."""
    from dither.registry.config.errors import Refused, nearest
    from dither.registry.plugins.discovery import PluginError
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import find_policy

    try:
        plugins = load_plugins(files, policy=find_policy(Path()))
        for report in plugins.reports:
            if report.state == "loaded" and "register_commands" in report.hooks:
                plugins.request(report.name)
    except Refused as refused:
        if word and not word.startswith("-") and (files or not nearest(word, VERBS)):
            raise
        _note(f"no commands of plugins: {refused}")
        return
    counts = [len(entries) for entries in ENTRIES]
    for _, result in plugins.call_each("register_commands", yield_errors=True, app=app):
        if isinstance(result, PluginError):
            _note(str(result))
    taken = set(VERBS)
    for entries, count in zip(ENTRIES, counts, strict=True):
        added = entries[count:]
        del entries[count:]
        for entry in added:
            entry.rich_help_panel = PLUGIN_PANEL
            if _name(entry) in taken:
                _note(f'a plugin adds the command "{_name(entry)}", which exists already')
            else:
                entries.append(entry)
                taken.add(_name(entry))


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)  # noqa: T201
