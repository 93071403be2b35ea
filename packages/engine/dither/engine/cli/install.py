"""`dither search`, `install`, `uninstall`: plugins of the index."""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from .app import Json, Words, app
from .output import echo_json, wants_json

__all__ = ["show_available"]

PLUGINS = "import sys; from dither.engine.cli import main; raise SystemExit(main(['plugins', *sys.argv[1:]]))"
"""Run in a new process, which finds the packages as they are now."""
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
def search(
    words: Annotated[
        Words,
        typer.Argument(
            metavar="[WORD]...",
            help="Words in names or descriptions; all plugins without any.",
            show_default=False,
        ),
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="First download the index at DITHER_INDEX."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Find plugins to install, in the index that comes with dither.

    The result of the conformance kit is the author's; `dither plugins test NAME` repeats it.
    """
    from rich.console import Console
    from rich.text import Text

    from dither.registry.plugins.index import refresh_index, search_index

    from ..runs.progress import table

    if refresh:
        typer.echo(f"{refresh_index()} plugins in the index", err=True)
    entries = search_index(words or ())
    if echo_json(as_json, [entry.model_dump() for entry in entries]):
        return
    page = table("plugin", "version", "kit", "components", "description")
    for entry in entries:
        parts = [f"{part.kind} {part.name}" for part in entry.components]
        page.add_row(
            Text(entry.distribution, style="cyan"),
            Text(entry.version),
            Text(str(entry.kit or "")),
            Text("\n".join(parts)),
            Text(entry.summary),
        )
    if entries:
        Console().print(page)
    else:
        typer.echo("no plugin of the index matches")


def show_available(kind: str | None, pattern: str | None, as_json: bool) -> None:
    """Print the components of plugins that are in the index, but not installed."""
    from types import SimpleNamespace

    from dither.registry.kinds import KINDS, known_kind
    from dither.registry.plugins.discovery import installed_plugins
    from dither.registry.plugins.index import plugin_index

    from .catalog_output import show_components

    kinds = [known_kind(kind)] if kind else list(KINDS)
    installed = installed_plugins()
    rows = []
    for entry in plugin_index():
        if entry.plugin in installed:
            continue
        for part in entry.components:
            if part.kind in kinds and fnmatch.fnmatchcase(part.name, pattern or "*"):
                shown = part.model_dump() | {"plugin": entry.distribution}
                rows.append(SimpleNamespace(**shown))
    rows.sort(key=lambda row: (kinds.index(row.kind), row.name))
    show_components(rows, as_json)


@app.command()
def install(
    target: Annotated[
        str,
        typer.Argument(
            help="A plugin of the index, a wheel, or the folder of a project.",
            show_default=False,
        ),
    ],
    yes: Yes = False,
    any_name: Annotated[
        bool,
        typer.Option("--any", help="Also take a name that is not in the index."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Install a plugin where dither is installed, by pip or uv.

    Installing runs code of the package. The command is shown first.
    """
    command = [*_installer("install"), _requirement(target, any_name)]
    return _change(command, yes, wants_json(as_json))


@app.command()
def uninstall(
    name: Annotated[
        str,
        typer.Argument(help="A plugin, or its distribution.", show_default=False),
    ],
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Uninstall a plugin that nothing else requires."""
    command = [*_installer("uninstall"), _installed_distribution(name)]
    return _change(command, yes, wants_json(as_json))


def _installer(verb: str) -> list[str]:
    """Return pip of this environment, or else uv for it; options end before the next word."""
    from dither.registry.config.errors import Refused

    uv = shutil.which("uv")
    if importlib.util.find_spec("pip") is not None:
        # With -P, a folder `pip` in the working folder is not imported instead.
        command = [sys.executable, "-Pm", "pip", verb]
        if verb == "install":
            # Of the plugin only; uv would upgrade torch and all others, too.
            command.append("--upgrade")
        else:
            # `_change` has already requested confirmation.
            command.append("--yes")
    elif uv is not None:
        command = [uv, "pip", verb, "--python", sys.executable]
    else:
        message = "plugins are installed by pip or uv, and both are missing"
        raise Refused(message, code="missing-dependency")
    return [*command, "--"]


def _requirement(target: str, any_name: bool) -> str:
    """Return the absolute path of a wheel or project, or the name of a distribution."""
    from dither.registry.config.errors import Problem, Refused, did_you_mean
    from dither.registry.files.lookup import is_file
    from dither.registry.plugins.index import indexed_plugin, plugin_index
    from dither.registry.plugins.manifest import DISTRIBUTION

    path = Path(target).absolute()
    is_folder = "/" in target or target == "."
    if (is_folder and is_file(path / "pyproject.toml")) or (
        path.suffix == ".whl" and is_file(path)
    ):
        return str(path)
    # Names only: anything else is an option, a URL or a file of requirements for pip.
    if not re.fullmatch(DISTRIBUTION, target):
        message = f'"{target}" is not the name of a package, a wheel, or a folder with pyproject.toml'
        problem = Problem(message, help="write ./FOLDER", code="invalid-value")
        raise Refused(problem)
    if entry := indexed_plugin(target):
        return entry.distribution
    if any_name:
        return target
    names = [entry.distribution for entry in plugin_index()]
    advice = "dither search shows all; --any takes any name"
    hint = did_you_mean(target, names, advice)
    message = f'plugin "{target}" is not in the index'
    raise Refused(Problem(message, help=hint, code="unknown-plugin"))


def _installed_distribution(name: str) -> str:
    """Return the distribution of an installed plugin; Refused if others require it."""
    from dither.registry.config.errors import Problem, Refused, did_you_mean
    from dither.registry.plugins.discovery import installed_plugins
    from dither.registry.plugins.policy import is_called

    points = list(chain.from_iterable(installed_plugins().values()))
    matching = [p for p in points if is_called(name, p.name, p.distribution)]
    if not matching:
        hint = did_you_mean(name, [point.name for point in points])
        message = f'plugin "{name}" is not installed'
        raise Refused(Problem(message, help=hint, code="unknown-plugin"))
    distribution = matching[0].distribution
    for other in distributions():
        if any(is_called(required, distribution) for required in _required_by(other)):
            message = f"{other.metadata['Name']} requires {distribution}"
            raise Refused(message, code="usage")
    return distribution


def _required_by(distribution: Distribution) -> Iterator[str]:
    """Yield the names of the distributions that one requires here without extras."""
    from packaging.requirements import Requirement

    # Metadata of other packages may be damaged.
    with suppress(ValueError, OSError):
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement.name


def _change(command: list[str], yes: bool, as_json: bool) -> int:
    """Show a command, ask, run it, and show the plugins; return its exit code."""
    from dither.registry.config.errors import Refused

    typer.echo(shlex.join(command), err=as_json)
    if not yes:
        if not sys.stdin.isatty():
            raise Refused("no terminal for a question; --yes skips it", code="usage")
        if not typer.confirm("Run this?", err=as_json):
            return 1
    # stdout has nothing but JSON: that of `dither plugins`.
    stdout = 2 if as_json else None
    if subprocess.run(command, check=False, stdout=stdout).returncode:
        return 1
    plugins = [sys.executable, "-Pc", PLUGINS]
    if as_json:
        plugins.append("--json")
    return subprocess.run(plugins, check=False).returncode
