"""list, describe, plugins: what is registered here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .root import Json, Selected, app

__all__ = ["visible_plugins"]


@app.command("list")
def list_parts(
    kind: Annotated[str | None, typer.Argument(help="Only this kind, such as block.", show_default=False)] = None,
    selected: Selected = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
) -> None:
    """List the parts that an experiment may name. Imports no torch."""
    from .lists import show_parts, show_reference

    if as_markdown:
        show_reference(visible_plugins(selected), kind)
    else:
        show_parts(visible_plugins(selected), kind, as_json)


@app.command()
def describe(
    kind: Annotated[str, typer.Argument(help="A kind, such as block.")],
    name: Annotated[str, typer.Argument(help="The name of a part, such as adaln-zero.")],
    selected: Selected = None,
    as_json: Json = False,
) -> None:
    """Describe one part: what it does, its options, where it comes from, and how to write it. Imports no torch."""
    from .lists import show_part

    show_part(visible_plugins(selected), kind, name, as_json)


@app.command()
def plugins(selected: Selected = None, as_json: Json = False) -> None:
    """List the plugins: loaded, failed and why, blocked, clashing. Imports no torch."""
    from .lists import show_plugins

    show_plugins(visible_plugins(selected), as_json)


def visible_plugins(selected: list[str] | None) -> Any:
    """Return the plugins that the policy of the working directory lets us see."""
    from dither.registry.plugins import load_plugins
    from dither.registry.policy import find_policy

    return load_plugins(selected, policy=find_policy(Path()))
