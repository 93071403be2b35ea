"""list, describe, plugins: what is registered here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .completion import complete_kind, complete_name, complete_plugin
from .root import Json, Selected, app

__all__ = ["visible_plugins"]


@app.command("list")
def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(help="Only this kind, such as block.", show_default=False, autocompletion=complete_kind),
    ] = None,
    names: Annotated[
        str | None, typer.Option("--filter", metavar="GLOB", help="Only names like this, such as 'log-*'.")
    ] = None,
    offered_by: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="NAME", help="Only of this plugin (repeat).", autocompletion=complete_plugin),
    ] = None,
    selected: Selected = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
) -> None:
    """List the parts that an experiment may name. Imports no torch."""
    from .lists import chosen_parts, show_parts, show_reference

    plugins = visible_plugins(selected)
    parts = chosen_parts(plugins, kind, names, offered_by)
    if as_markdown:
        show_reference(plugins, parts)
    else:
        show_parts(parts, as_json)


@app.command()
def describe(
    kind: Annotated[
        str, typer.Argument(help="A kind, such as block, or the name alone.", autocompletion=complete_kind)
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="The name of a part, such as adaln-zero.", autocompletion=complete_name, show_default=False
        ),
    ] = None,
    selected: Selected = None,
    as_json: Json = False,
) -> None:
    """Describe one part: what it does, its options, what it fits, where it comes from, and how to write it."""
    from .lists import find_part
    from .part_page import show_part

    plugins = visible_plugins(selected)
    show_part(plugins, find_part(plugins, kind, name), as_json)


@app.command()
def plugins(
    selected: Selected = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask every plugin anew what it offers.")] = False,
    as_json: Json = False,
) -> None:
    """List the plugins: loaded, failed and why, blocked, clashing. Imports no torch."""
    from .lists import show_plugins

    show_plugins(visible_plugins(selected, fresh), as_json)


def visible_plugins(selected: list[str] | None, fresh: bool = False) -> Any:
    """Return the plugins that the policy of the working directory lets us see; `fresh` goes without the cache."""
    from dither.registry.plugins import load_plugins
    from dither.registry.policy import find_policy

    return load_plugins(selected, policy=find_policy(Path()), fresh=fresh)
