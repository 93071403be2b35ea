"""`dither prepare`: download and convert data before a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import PluginOption, app
from .components import visible_plugins

if TYPE_CHECKING:
    from dither.registry.spec.base import Spec

__all__ = ["overrides_from_flags"]

PATHS = "paths"
"""The option that receives arguments without a key."""


@app.command(context_settings={"ignore_unknown_options": True})
def prepare(
    name: Annotated[
        str, typer.Argument(help="A data component, such as get or text; dhs prepares human-dhs from its sources.")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATHS] [--OPTION VALUE]...",
            help="Files, if the component takes any, and its options: dither describe NAME.",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set an option (repeatable).")
    ] = None,
    selected: PluginOption = None,
) -> None:
    """Download and convert the data of a component."""
    from dither.registry.config.document import Document
    from dither.registry.config.errors import Refused
    from dither.registry.config.validation import validate

    catalog = visible_plugins(selected).catalog
    spec, preset = _spec_of(catalog, name)
    document = Document.from_overrides([*preset, *overrides_from_flags(words or (), spec), *(overrides or ())])
    data: Any = validate(spec, document, catalog)
    try:
        summary = data.prepare()
    except (OSError, RuntimeError) as error:
        raise Refused(f'cannot prepare data "{name}": {error}', code="not-prepared") from None
    typer.echo(summary or f'data "{name}" requires no preparation')


def _spec_of(catalog: Any, name: str) -> tuple[Any, list[str]]:
    """Return the Spec of a name or of a short word for it, and the options that the word implies."""
    for component in catalog.parts("data"):
        if name in component.spec.prepared_as:
            preset = component.spec.prepared_as[name]
            return component.spec, [f"{key}={json.dumps(value)}" for key, value in preset.items()]
    return catalog.find("data", name).spec, []


def overrides_from_flags(words: Sequence[str], spec: type[Spec]) -> list[str]:
    """Convert the arguments after the name of a component to overrides `key=value`.

    `--key value` and `--key=value` set an option, `--key` alone a boolean one. All other arguments, and all after `--`,
    are paths.

    Raises:
        Refused: A value is missing, an option is abbreviated, or the component takes no paths.
    """
    from dither.registry.config.errors import Problem, Refused

    overrides: list[str] = []
    paths: list[str] = []
    queue = iter(words)
    for word in queue:
        if word == "--":
            paths += queue
        elif word.startswith("--"):
            overrides.append(_override(word[2:], queue, spec))
        elif word.startswith("-") and len(word) > 1:
            raise Refused(f"{word}: options of a component have no short form, use --key value", code="unknown-option")
        else:
            paths.append(word)
    if paths and PATHS not in spec.model_fields:
        message = f'data "{spec.name}" takes no paths: {", ".join(paths[:3])}'
        hint = f"its options are: {', '.join(spec.model_fields) or 'none'}"
        raise Refused(Problem(message, help=hint, code="usage"))
    return [*overrides, f"{PATHS}={json.dumps(paths)}"] if paths else overrides


def _override(word: str, queue: Iterator[str], spec: type[Spec]) -> str:
    from dither.registry.config.errors import Refused

    key, equals, value = word.partition("=")
    key = key.replace("-", "_")
    annotation = spec.model_fields[key].annotation if key in spec.model_fields else None
    if not equals:
        if annotation is bool:
            return f"{key}=true"
        following = next(queue, None)
        if following is None:
            raise Refused(f"--{word} requires a value", code="missing-argument")
        value = following
    return f"{key}={json.dumps(value) if annotation is str else value}"
