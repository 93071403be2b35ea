"""`dither new`: files of experiments and plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .app import Assignments, Group, Json, PluginNames, app, quoted
from .output import echo_files

__all__: list[str] = []

new = typer.Typer(
    cls=Group,
    help="Write an experiment or a plugin, or convert weights.",
    no_args_is_help=True,
)
app.add_typer(new, name="new")


@new.command(
    "experiment",
    epilog="Example: dither new experiment my.toml --from language_model/quick",
)
def new_experiment(
    file: Annotated[Path, typer.Argument(help="The new file.", show_default=False)],
    words: Assignments = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="NAME", help="An experiment file, or the name of one."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="A task, with every option of a small experiment.",
        ),
    ] = None,
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Write an experiment file: a copy of another one, or every option with its description.

    The copy is named after the file. Nothing is overwritten.
    """
    from ..scaffold.experiment import complete, copied, write_new

    if (source is None) == (task is None):
        raise typer.BadParameter("give either --from EXPERIMENT or --task TASK")
    if source is not None:
        text = copied(Path(source), file, words or (), plugins)
    else:
        assert task is not None
        text = complete(task, file, words or (), plugins)
    written = write_new(file, text)
    echo_files(as_json, [written], f"{written}; next: {quoted('run', file)}")


@new.command("plugin", epilog="Example: dither new plugin wavelet --kind block")
def new_plugin(
    name: Annotated[
        str,
        typer.Argument(help="Name in kebab-case, such as wavelet.", show_default=False),
    ],
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Kind of its component.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FOLDER", help="Parent folder of the new one."),
    ] = Path(),
    single_file: Annotated[
        bool, typer.Option("--single-file", help="Write only NAME.py.")
    ] = False,
    features: Annotated[
        bool,
        typer.Option("--features", help="A task over numbers in place of tokens."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a plugin: a package with one component, tests, and an experiment.

    Nothing is overwritten.
    """
    from shlex import join

    from dither.registry.files.lookup import as_argument
    from dither.registry.plugins.manager import load_plugins

    from ..scaffold.package import Names, check_names, write_plugin

    names = Names(name, kind, features)
    # The name must be free among all plugins, also those that registry.toml blocks.
    plugins = load_plugins()
    check_names(
        names, {report.name for report in plugins.reports}, plugins.catalog.names(kind)
    )
    path = write_plugin(names, out, single_file)
    if single_file:
        option = join(["-p", str(path)])
        entry = f'plugins = ["./{path.name}"] in an experiment'
        text = f'{path}: {kind} "{name}"; use it with {option}, or {entry}'
        echo_files(as_json, [path], text)
        return
    text = f"""{path}: {kind} "{name}", in {names.module}/__init__.py. Next:

    {join(["cd", as_argument(path)])}
    python -m pip install --no-deps -e .
    pytest
    dither run experiment.toml"""
    echo_files(as_json, [path], text)


@new.command(
    "from-hf", epilog="Example: dither new from-hf LLaDA-8B-Instruct --out llada"
)
def new_from_hf(
    folder: Annotated[
        Path,
        typer.Argument(
            help="config.json, tokenizer.json, safetensors.", show_default=False
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="A new folder.")
    ] = Path("converted"),
    length: Annotated[
        int, typer.Option("--length", min=1, help="Ids per sample.")
    ] = 256,
    mask_id: Annotated[
        int | None, typer.Option("--mask-id", min=0, help="The id of MASK.")
    ] = None,
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Convert a masked diffusion language model of Hugging Face to an experiment.

    The experiment starts from its weights.
    """
    from .components import visible_plugins

    catalog: Any = visible_plugins(plugins).catalog
    # The model converts the folder, as the engine imports no component.
    experiment = catalog.find("model", "denoiser").spec.convert_folder(
        folder, out, length, mask_id
    )
    text = f"{experiment}: set task.data; next: {quoted('run', experiment)}"
    echo_files(as_json, [experiment], text)
