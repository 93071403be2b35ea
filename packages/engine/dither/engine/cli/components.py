"""`dither list`, `describe`, `plugins`, `prepare`, `load-hf`: what is installed; data, weights. None imports torch."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import Json, PluginOption, Words, app

if TYPE_CHECKING:
    from dither.registry.plugins.manager import Plugins
    from dither.registry.spec.base import Spec

__all__ = ["overrides_from_flags", "visible_plugins"]


def visible_plugins(selected: list[str] | None) -> Plugins:
    """Return the plugins that the policy of the working directory allows."""
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import find_policy

    return load_plugins(selected, policy=find_policy(Path()))


@app.command("list")
def list_components(
    kind: Annotated[str | None, typer.Argument(help="Only this kind.", show_default=False)] = None,
    pattern: Annotated[
        str | None, typer.Option("--filter", metavar="GLOB", help="Only matching names.")
    ] = None,
    plugin_names: Annotated[
        Words, typer.Option("--plugin", metavar="NAME", help="Only of this plugin.")
    ] = None,
    selected: PluginOption = None,
    as_json: Json = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a reference page.")
    ] = False,
) -> None:
    """List the components that an experiment may name."""
    from .catalog_output import filter_components, show_components, show_reference

    if selected or as_markdown:
        plugins = visible_plugins(selected)
        components = plugins.catalog.parts()
        known = [report.name for report in plugins.reports]
    else:
        components, known = cached_components()
    components = filter_components(components, known, kind, pattern, plugin_names)
    if as_markdown:
        show_reference(plugins.catalog, components)
    else:
        show_components(components, as_json)


CACHE_FROM_SECONDS = 0.5
"""Loading time at and above which the components are cached."""


def cached_components() -> tuple[list[Any], list[str]]:
    """Return what `dither list` shows of all components, and the names of the plugins.

    If loading takes long it is cached, until an imported file, a folder with packages or
    registry.toml changes.
    """
    from dither.registry.files.atomic import atomic_write
    from dither.registry.files.cache import cache_folder
    from dither.registry.plugins.discovery import installed_plugins
    from dither.registry.plugins.policy import ALLOWED, policy_file

    def state(paths: Sequence[str]) -> list[list[Any]]:
        found = []
        for path in paths:
            with suppress(OSError):
                stat = os.stat(path)
                found.append([path, stat.st_mtime_ns, stat.st_size])
        return found

    installed = [
        f"{plugin} {plugin.point}" for found in installed_plugins().values() for plugin in found
    ]
    key = [
        sys.version,
        sys.path,
        policy := str(policy_file(Path())),
        os.environ.get(ALLOWED),
        installed,
    ]
    file = cache_folder() / "components.json"
    columns = ("kind", "name", "rev", "plugin", "summary")
    with suppress(OSError, ValueError, KeyError, TypeError):
        cached = json.loads(file.read_text("utf-8"))
        if cached["key"] == key and cached["files"] == state(
            [path for path, *_ in cached["files"]]
        ):
            return [SimpleNamespace(**row) for row in cached["components"]], cached["plugins"]
    began = time.perf_counter()
    plugins = visible_plugins(None)
    components = plugins.catalog.parts()
    names = [report.name for report in plugins.reports]
    complete = {report.state for report in plugins.reports} <= {"loaded", "blocked"}
    if complete and time.perf_counter() - began > CACHE_FROM_SECONDS:
        modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        files = state([path for path in (*sys.path, policy, *modules) if path])
        rows = [{name: getattr(component, name) for name in columns} for component in components]
        content = {"key": key, "files": files, "components": rows, "plugins": names}
        with suppress(OSError), atomic_write(file) as temporary:
            temporary.write_text(json.dumps(content), "utf-8")
    return list(components), names


@app.command()
def describe(
    kind: Annotated[
        str, typer.Argument(help="A kind, such as block; or train, evaluate, sample, tracking.")
    ],
    name: Annotated[str, typer.Argument(help="Name of a component, such as adaln-zero.")] = "",
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Describe a component: purpose, options, compatibility, source; or the options of training and evaluation."""
    from dither.registry.kinds import known_kind

    from .catalog_output import TABLES, show_component, show_table

    if kind in TABLES:
        if name:
            raise typer.BadParameter(f"{kind} has no components; leave it out", param_hint="NAME")
        return show_table(kind, as_json)
    if not name:
        raise typer.BadParameter(
            f"missing; dither list {known_kind(kind)} shows the names", param_hint="NAME"
        )
    plugins = visible_plugins(selected)
    show_component(plugins, plugins.catalog.find(known_kind(kind), name), as_json)


@app.command()
def plugins(selected: PluginOption = None, as_json: Json = False) -> None:
    """List the installed plugins with their state: loaded, failed, blocked or clash."""
    from .catalog_output import show_plugins

    show_plugins(visible_plugins(selected), as_json)


PATHS = "paths"
"""The option that receives arguments without a key."""


@app.command(context_settings={"ignore_unknown_options": True})
def prepare(
    name: Annotated[
        str,
        typer.Argument(
            help="A data component, such as get or text; dhs prepares human-dhs from its sources."
        ),
    ],
    words: Annotated[
        Words,
        typer.Argument(
            metavar="[PATHS] [--OPTION VALUE]...",
            help="Files, if the component takes any, and its options: dither describe data NAME.",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        Words, typer.Option("--set", metavar="KEY=VALUE", help="Set an option.")
    ] = None,
    selected: PluginOption = None,
) -> None:
    """Download and convert the data of a component."""
    from dither.registry.config.document import Document
    from dither.registry.config.errors import Refused
    from dither.registry.config.validation import validate

    catalog: Any = visible_plugins(selected).catalog
    aliases = (part.spec for part in catalog.parts("data") if name in part.spec.prepared_as)
    spec = next(aliases, None) or catalog.find("data", name).spec
    preset = [f"{key}={json.dumps(value)}" for key, value in spec.prepared_as.get(name, {}).items()]
    document = Document.from_overrides(
        [*preset, *overrides_from_flags(words or (), spec), *(overrides or ())]
    )
    data: Any = validate(spec, document, catalog)
    try:
        summary = data.prepare()
    except (OSError, RuntimeError) as error:
        raise Refused(f'cannot prepare data "{name}": {error}', code="not-prepared") from None
    typer.echo(summary or f'data "{name}" requires no preparation')


@app.command("load-hf")
def load_hf(
    folder: Annotated[
        Path, typer.Argument(help="config.json, tokenizer.json, safetensors.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="A new folder.")] = Path(
        "converted"
    ),
    length: Annotated[int, typer.Option("--length", min=1, help="Ids per sample.")] = 256,
    mask_id: Annotated[int | None, typer.Option("--mask-id", min=0, help="The id of MASK.")] = None,
    selected: PluginOption = None,
) -> None:
    """Convert a masked diffusion language model of Hugging Face to an experiment that starts from it."""
    catalog: Any = visible_plugins(selected).catalog
    experiment = catalog.find("model", "denoiser").spec.convert_folder(folder, out, length, mask_id)
    typer.echo(f"{experiment}: set task.data, then dither run {experiment}")


def overrides_from_flags(words: Sequence[str], spec: type[Spec]) -> list[str]:
    """Convert the arguments after the name of a component to overrides `key=value`.

    `--key value` and `--key=value` set an option, `--key` alone a boolean one. All other arguments,
    and all after `--`, are paths. Refused if a value is missing, an option is abbreviated, or the
    component takes no paths.
    """
    from dither.registry.config.errors import Problem, Refused

    overrides: list[str] = []
    paths: list[str] = []
    queue = iter(words)
    for word in queue:
        if word == "--":
            paths += queue
        elif word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            field = spec.model_fields.get(key := key.replace("-", "_"))
            kind = field.annotation if field else None
            if not equals and kind is bool:
                value = "true"
            elif not equals:
                following = next(queue, None)
                if following is None:
                    raise Refused(f"{word} requires a value", code="missing-argument")
                value = following
            overrides.append(f"{key}={json.dumps(value) if kind is str else value}")
        elif word.startswith("-") and len(word) > 1:
            raise Refused(
                f"{word}: options of a component have no short form, use --key value",
                code="unknown-option",
            )
        else:
            paths.append(word)
    if paths and PATHS not in spec.model_fields:
        message = f'data "{spec.name}" takes no paths: {", ".join(paths[:3])}'
        hint = f"its options are: {', '.join(spec.model_fields) or 'none'}"
        raise Refused(Problem(message, help=hint, code="usage"))
    return [*overrides, f"{PATHS}={json.dumps(paths)}"] if paths else overrides
