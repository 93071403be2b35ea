"""schema: what an editor needs to know of our files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .app import PluginOption, app

__all__: list[str] = []


@app.command()
def schema(
    of: Annotated[Literal["experiment", "registry"], typer.Option("--of", help="Which file is meant.")] = "experiment",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it here instead.")] = None,
    selected: PluginOption = None,
) -> None:
    """Print the JSON Schema of experiment files (or of registry.toml), which gives editors help and checks.

    It knows the plugins that are installed here. A file says where it is in its first line, as a path relative to
    itself: `#:schema ../schema.json`. taplo, tombi, Even Better TOML and check-jsonschema read it.
    """
    from dither.registry.config.errors import Refused

    from .schema_files import schema_text

    text = schema_text(of, selected)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot write {out}: {error.strerror or error}") from None
