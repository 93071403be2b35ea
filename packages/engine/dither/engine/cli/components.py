"""`dither list`, `describe`, `plugins`: what is installed. None imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import Json, PluginOption, Words, app

if TYPE_CHECKING:
    from dither.registry.plugins.manager import Plugins

__all__ = ["visible_plugins"]


def visible_plugins(selected: list[str] | None) -> Plugins:
    """Return the plugins that the policy of the working directory allows."""
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import find_policy

    return load_plugins(selected, policy=find_policy(Path()))


@app.command("list")
def list_components(
    kind: Annotated[str | None, typer.Argument(help="Only this kind.", show_default=False)] = None,
    pattern: Annotated[str | None, typer.Option("--filter", metavar="GLOB", help="Only matching names.")] = None,
    plugin_names: Annotated[Words, typer.Option("--plugin", metavar="NAME", help="Only of this plugin.")] = None,
    selected: PluginOption = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a reference page.")] = False,
) -> None:
    """List the components that an experiment may name."""
    from .catalog_output import filter_components, show_components, show_reference

    plugins = visible_plugins(selected)
    components = filter_components(plugins, kind, pattern, plugin_names)
    if as_markdown:
        show_reference(plugins, components)
    else:
        show_components(components, as_json)


@app.command()
def describe(
    kind: Annotated[str, typer.Argument(help="A kind, such as block.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Name of a component, such as adaln-zero.", show_default=False)],
    selected: PluginOption = None,
    as_json: Json = False,
) -> None:
    """Describe a component: purpose, options, compatibility, source, and a snippet."""
    from .catalog_output import known_kind, show_component

    plugins = visible_plugins(selected)
    show_component(plugins, plugins.catalog.find(known_kind(kind), name), as_json)


@app.command()
def plugins(selected: PluginOption = None, as_json: Json = False) -> None:
    """List the installed plugins with their state: loaded, failed, blocked or clash."""
    from .catalog_output import show_plugins

    show_plugins(visible_plugins(selected), as_json)
