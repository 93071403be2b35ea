"""`dither list`, `describe`, `prepare`: what is installed, and data. None imports torch."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import Json, Overrides, PluginNames, Words, app, quoted, refuse_unused
from .output import echo_json

if TYPE_CHECKING:
    from dither.registry.plugins.manager import Plugins
    from dither.registry.spec.base import Spec

__all__ = ["overrides_from_flags", "visible_plugins"]

CACHE_FROM_SECONDS = 0.5
"""Loading time at and above which the components are cached."""
COLUMNS = ("kind", "name", "rev", "plugin", "summary")
"""Columns of `dither list`."""
SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")
PATHS = "paths"
"""The option that receives arguments without a key."""


def visible_plugins(names: list[str] | None) -> Plugins:
    """Return the plugins that the policy of the working directory allows; `names` as after -p."""
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import find_policy

    return load_plugins(names, policy=find_policy(Path()))


@app.command("list")
def list_components(
    context: typer.Context,
    kind: Annotated[
        str | None,
        typer.Argument(
            help="Only this kind; or zoo, the trained models of dither-zoo.",
            show_default=False,
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--filter", metavar="GLOB", help="Only matching names."),
    ] = None,
    of_plugins: Annotated[
        Words,
        typer.Option(
            "--plugin", metavar="NAME", help="Only of this plugin (repeatable)."
        ),
    ] = None,
    plugins: PluginNames = None,
    as_json: Json = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a reference page.")
    ] = False,
    available: Annotated[
        bool,
        typer.Option("--available", help="Components of plugins to be installed."),
    ] = False,
) -> None:
    """List the components that an experiment may name, or trained models."""
    if as_markdown:
        refuse_unused(context, "with --markdown", "as_json", "available")
    if available:
        refuse_unused(context, "with --available", "of_plugins", "plugins")
        from .install import show_available

        show_available(kind, pattern, as_json)
        return
    from ..files.installed_models import installed_models
    from .catalog_output import (
        filter_components,
        show_components,
        show_models,
        show_reference,
    )

    models = {
        name: folder
        for name, folder in installed_models().items()
        if name.startswith(f"{kind}/")
    }
    if models:
        reason = "as trained models are no components"
        refuse_unused(context, reason, "of_plugins", "plugins", "as_markdown")
        show_models(models, pattern, as_json)
        return
    # A reference page needs the option classes, which the cache does not hold.
    if not (plugins or as_markdown):
        components, known = cached_components()
        show_components(
            filter_components(components, known, kind, pattern, of_plugins), as_json
        )
        return
    loaded = visible_plugins(plugins)
    components = filter_components(
        loaded.catalog.parts(),
        [report.name for report in loaded.reports],
        kind,
        pattern,
        of_plugins,
    )
    if as_markdown:
        show_reference(loaded.catalog, components)
    else:
        show_components(components, as_json)


def cached_components() -> tuple[list[Any], list[str]]:
    """Return the rows of `dither list` of all components, and the names of the plugins.

    If loading takes long they are cached, until an imported file, a folder with packages or
    registry.toml changes.
    """
    from dither.registry.files.atomic import atomic_write
    from dither.registry.files.cache import cache_folder

    file = cache_folder() / "components.json"
    key = _cache_key()
    # A damaged cache is written again.
    with suppress(OSError, ValueError, KeyError, TypeError):
        cached = json.loads(file.read_text("utf-8"))
        paths = [path for path, *_ in cached["files"]]
        if cached["key"] == key and cached["files"] == _file_states(paths):
            return [SimpleNamespace(**row) for row in cached["components"]], cached[
                "plugins"
            ]

    began = time.perf_counter()
    plugins = visible_plugins(None)
    seconds = time.perf_counter() - began
    components = plugins.catalog.parts()
    names = [report.name for report in plugins.reports]

    # Plugins that failed may work next time without any change of a file.
    complete = {report.state for report in plugins.reports} <= {"loaded", "blocked"}
    if complete and seconds > CACHE_FROM_SECONDS:
        # A plugin in development changes one of its modules, an installation a folder of sys.path.
        modules = [
            vars(module).get("__file__") for module in list(sys.modules.values())
        ]
        content = {
            "key": key,
            "files": _file_states(filter(None, [*sys.path, key["policy"], *modules])),
            "components": [
                {name: getattr(component, name) for name in COLUMNS}
                for component in components
            ],
            "plugins": names,
        }
        # The folder of the cache may be read-only.
        with suppress(OSError), atomic_write(file) as temporary:
            temporary.write_text(json.dumps(content), "utf-8")
    return list(components), names


def _cache_key() -> dict[str, Any]:
    """Return everything besides files that decides which plugins are loaded."""
    from dither.registry.plugins.discovery import installed_plugins
    from dither.registry.plugins.manager import ALLOWED
    from dither.registry.plugins.policy import policy_file

    installed = []
    for plugins in installed_plugins().values():
        installed += [f"{plugin} {plugin.point}" for plugin in plugins]
    return {
        "python": sys.version,
        "path": sys.path,
        "policy": str(policy_file(Path())),
        "allowed": os.environ.get(ALLOWED),
        "installed": installed,
    }


def _file_states(paths: Iterable[str]) -> list[list[Any]]:
    """Return path, time of change and size of those files and folders that exist."""
    states = []
    for path in paths:
        with suppress(OSError):
            stat = os.stat(path)
            states.append([path, stat.st_mtime_ns, stat.st_size])
    return states


@app.command()
def describe(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND|NAME",
            help="A component; or a kind, if several have its name; or train, evaluate, sample, "
            "tracking.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of a component, such as adaln-zero.",
            show_default=False,
        ),
    ] = "",
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Describe a component: purpose, options, compatibility, source.

    Or the options of training and evaluation.
    """
    from dither.registry.kinds import KINDS, known_kind

    from .catalog_output import TABLES, show_component, show_table

    if kind in TABLES:
        if name:
            raise typer.BadParameter(
                f"{kind} has no components; leave it out", param_hint="NAME"
            )
        refuse_unused(context, f"as {kind} has no components", "plugins")
        return show_table(kind, as_json)
    if not name and kind in KINDS:
        hint = f"missing; {quoted('list', kind)} shows the names"
        raise typer.BadParameter(hint, param_hint="NAME")
    loaded = visible_plugins(plugins)
    if not name:
        name = kind
        kind = _kind_of(name, loaded)
    show_component(loaded, loaded.catalog.find(known_kind(kind), name), as_json)


def _kind_of(name: str, plugins: Plugins) -> str:
    """Return the kind of the components of a name; Refused unless there is exactly one."""
    from dither.registry.config.errors import Problem, Refused, did_you_mean
    from dither.registry.kinds import KINDS
    from dither.registry.plugins.catalog import bare_name

    short = bare_name(name)
    components = plugins.catalog.parts()
    kinds = [kind for kind in KINDS if short in plugins.catalog.names(kind)]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        message = f'"{name}" is the name of several components: {", ".join(kinds)}'
        commands = [quoted("describe", kind, name) for kind in kinds]
        problem = Problem(
            message, help=" or ".join(commands), code="ambiguous-component"
        )
        raise Refused(problem)
    names = {component.name for component in components}
    hint = did_you_mean(name, [*names, *KINDS], "dither list shows all")
    message = f'no component or kind is called "{name}"'
    raise Refused(Problem(message, help=hint, code="unknown-component"))


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
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Prepare part I of N only, as one job of an array; numbers begin with 1.",
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Join the parts of all jobs."),
    ] = False,
    overrides: Overrides = None,
    plugins: PluginNames = None,
    as_json: Json = False,
) -> None:
    """Download and convert the data of a component."""
    from dither.registry.config.document import Document
    from dither.registry.config.errors import Refused
    from dither.registry.config.validation import validate

    from ..files.resource_errors import shortage

    catalog: Any = visible_plugins(plugins).catalog
    specs = [component.spec for component in catalog.parts("data")]
    spec = next((spec for spec in specs if name in spec.prepared_as), None)
    spec = spec or catalog.find("data", name).spec
    # One component may be prepared in several ways, each with a name of its own.
    preset = [
        f"{key}={json.dumps(value)}"
        for key, value in spec.prepared_as.get(name, {}).items()
    ]
    flags = overrides_from_flags(words or (), spec)
    document = Document.from_overrides([*preset, *flags, *(overrides or ())])
    data: Any = validate(spec, document, catalog)
    try:
        summary = _prepare_part(data, shard, merge=merge)
    except (OSError, RuntimeError) as error:
        # The exit code of a lack of disk space or memory is another one.
        if shortage(error):
            raise
        raise Refused(
            f'cannot prepare data "{name}": {error}', code="not-prepared"
        ) from None
    summary = summary or f'data "{name}" requires no preparation'
    if not echo_json(as_json, {"data": name, "summary": summary}):
        typer.echo(summary)


def _prepare_part(data: Any, shard: str | None, *, merge: bool) -> str | None:
    """Prepare data, a shard given as "2/8", or merge its shards."""
    summary: str | None
    if shard is None:
        summary = data.merge_shards() if merge else data.prepare()
        return summary
    if merge:
        raise typer.BadParameter("--shard and --merge exclude each other")
    match = SHARD.fullmatch(shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        message = f'expected I/N with I from 1 to N, such as 2/8, got "{shard}"'
        raise typer.BadParameter(message, param_hint="--shard")
    summary = data.prepare_shard(int(match[1]), int(match[2]))
    return summary


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
            overrides.append(_override(word, queue, spec))
        elif word.startswith("-") and len(word) > 1:
            message = (
                f"{word}: options of a component have no short form, use --key value"
            )
            raise Refused(message, code="unknown-option")
        else:
            paths.append(word)

    if not paths:
        return overrides
    if PATHS not in spec.model_fields:
        message = f'data "{spec.name}" takes no paths: {", ".join(paths[:3])}'
        hint = f"its options are: {', '.join(spec.model_fields) or 'none'}"
        raise Refused(Problem(message, help=hint, code="usage"))
    return [*overrides, f"{PATHS}={json.dumps(paths)}"]


def _override(flag: str, queue: Iterable[str], spec: type[Spec]) -> str:
    """Return a flag as `key=value`, with its value from the queue if it has none itself."""
    from dither.registry.config.errors import Refused

    key, equals, value = flag.removeprefix("--").partition("=")
    key = key.replace("-", "_")
    field = spec.model_fields.get(key)
    kind = field.annotation if field else None
    # An unknown key is passed on: the component reports it with the nearest name.
    if not equals and kind is bool:
        value = "true"
    elif not equals:
        following = next(iter(queue), None)
        if following is None:
            raise Refused(f"{flag} requires a value", code="missing-argument")
        value = following
    # The value of a string option may look like a number.
    return f"{key}={json.dumps(value)}" if kind is str else f"{key}={value}"
