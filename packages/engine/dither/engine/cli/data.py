"""prepare: the data of an experiment, beforehand."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .catalogue import visible_plugins
from .root import Selected, app

__all__: list[str] = []


@app.command(context_settings={"ignore_unknown_options": True})
def prepare(
    name: Annotated[str, typer.Argument(help="The name of a data part, such as human-dhs or text.")],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATHS] [--OPTION VALUE]...",
            help="Files, for a part that takes any, and its options: dither describe NAME.",
            show_default=False,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the part.")
    ] = None,
    selected: Selected = None,
) -> None:
    """Fetch and convert the data that a data part needs, once."""
    from dither.registry.document import Document
    from dither.registry.problems import Refused
    from dither.registry.validation import validate as read

    from .flags import changes_of

    catalog = visible_plugins(selected).catalog
    part = catalog.find("data", name)
    document = Document.changed([*changes_of(given or (), part.spec), *(changes or ())])
    data: Any = read(part.spec, document, catalog)
    try:
        done = data.prepare()
    except (OSError, RuntimeError) as error:
        raise Refused(f'data "{name}" could not be prepared: {error}') from None
    typer.echo(done or f'data "{name}" needs no preparation')
