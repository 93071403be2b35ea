"""prepare: the data of an experiment, beforehand."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from .app import PluginOption, app
from .components import visible_plugins

__all__: list[str] = []


@app.command(context_settings={"ignore_unknown_options": True})
def prepare(
    name: Annotated[str, typer.Argument(help="The name of a data part, such as get or text; dhs is human-dhs built.")],
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
    selected: PluginOption = None,
) -> None:
    """Fetch and convert the data that a data part needs, once."""
    from dither.registry.config.document import Document
    from dither.registry.config.errors import Refused
    from dither.registry.config.validation import validate as read

    from .flags import overrides_from_flags

    catalog = visible_plugins(selected).catalog
    spec, meant = _spec_of(catalog, name)
    document = Document.from_overrides([*meant, *overrides_from_flags(given or (), spec), *(changes or ())])
    data: Any = read(spec, document, catalog)
    try:
        done = data.prepare()
    except (OSError, RuntimeError) as error:
        raise Refused(f'data "{name}" could not be prepared: {error}') from None
    typer.echo(done or f'data "{name}" needs no preparation')


def _spec_of(catalog: Any, name: str) -> tuple[Any, list[str]]:
    """Return the Spec that a name or a shorter word stands for, and the options that the word says."""
    for part in catalog.parts("data"):
        if name in part.spec.prepared_as:
            return part.spec, [f"{key}={json.dumps(value)}" for key, value in part.spec.prepared_as[name].items()]
    return catalog.find("data", name).spec, []
