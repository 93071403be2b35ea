"""Write experiment files: a copy of another one, or every option of a task with its description."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from dither.registry.config.document import (
    Document,
    find_experiment,
    shipped_experiments,
)
from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.config.validation import dump
from dither.registry.files.lookup import command_line
from dither.registry.files.write_errors import unwritable
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.describe import toml
from dither.registry.spec.base import Options, Spec
from dither.registry.spec.option_docs import docs_of

from ..config.load_experiment import load_experiment

__all__ = ["complete", "copied", "write_new"]

MAX_NAME = 64
UNNAMEABLE = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_.-]+")
"""Characters that the name of an experiment may not contain."""


def copied(
    experiment: Path,
    target: Path,
    changes: Sequence[str] = (),
    plugins: Sequence[str] | None = None,
) -> str:
    """Return the text of an experiment file for another place, named after it.

    The files that it extends have their path from there. Of the comment above the first value only
    the description stays: results and the command are those of the other file.
    """
    source = find_experiment(experiment)
    # What is wrong is refused before a file is written.
    load_experiment(source, changes, select=plugins)
    text = source.read_text(encoding="utf-8")
    # `_head` writes the comment above the first value again.
    body = re.sub(r"\A(?:#.*\n|\s*\n)*", "", text)
    document = tomlkit.parse(body)
    extended = document.get("extends")
    if extended is not None:
        names = [extended] if isinstance(extended, str) else extended
        paths = [
            os.path.relpath(source.parent / name, target.absolute().parent)
            for name in names
        ]
        document["extends"] = paths[0] if isinstance(extended, str) else paths
    document["name"] = _name_of(target)
    _merge(document, Document.from_overrides(changes).tree)
    return _head(_description(text), target) + tomlkit.dumps(document)


def _description(text: str) -> list[str]:
    """Return the first paragraph of the comment at the top of an experiment file."""
    lines: list[str] = []
    for line in text.splitlines():
        # A directive for editors, such as the path of the schema.
        if line.startswith("#:"):
            continue
        # An indented line is a command, not the description.
        if not line.startswith("# ") or line.startswith("#  "):
            break
        lines.append(line.removeprefix("# "))
    return lines


def _head(description: Sequence[str], target: Path) -> str:
    lines = [f"# {line}" for line in description]
    if lines:
        lines.append("#")
    lines.append(f"#     {command_line('run', Path(target.name))}")
    return "\n".join(lines) + "\n"


def _name_of(target: Path) -> str:
    return UNNAMEABLE.sub("-", target.stem).strip("-.")[:MAX_NAME] or "experiment"


def _merge(table: MutableMapping[str, Any], values: Mapping[str, Any]) -> None:
    """Set values of nested tables; a component that is only named becomes a table."""
    for key, value in values.items():
        present = table.get(key)
        # Another component takes none of the options of the present one.
        if not isinstance(value, Mapping) or "use" in value:
            table[key] = value
            continue
        if isinstance(present, str):
            present = tomlkit.inline_table()
            present["use"] = str(table[key])
            table[key] = present
        elif present is None:
            table[key] = {}
        _merge(table[key], value)


def complete(
    task: str,
    target: Path,
    changes: Sequence[str] = (),
    plugins: Sequence[str] | None = None,
) -> str:
    """Return an experiment file with every option of the quick experiment of a task.

    Each has its description. Refused if no experiment that comes with dither has this task.
    """
    files = {
        name.partition("/")[0].replace("_", "-"): path
        for name, path in shipped_experiments().items()
        if name.endswith("/quick")
    }
    if task not in files:
        hint = did_you_mean(task, files, f"known: {', '.join(files)}")
        message = f'no experiment of task "{task}" comes with dither'
        raise Refused(Problem(message, help=hint, code="unknown-value"))

    changes = [f"name={_name_of(target)}", *changes]
    loaded = load_experiment(files[task], changes, select=plugins)
    description = [
        f"Every option of a small experiment of the task {task}.",
        "Options that are not set are commented out.",
    ]
    catalog = loaded.plugins.catalog
    lines = _table(loaded.experiment, dump(loaded.experiment, catalog), (), catalog)
    return _head(description, target) + "\n".join(lines) + "\n"


def _table(
    options: Options,
    tree: Mapping[str, Any],
    path: tuple[str, ...],
    catalog: Catalog,
) -> Iterator[str]:
    """Yield the lines of a table: its values, then the tables inside."""
    docs = docs_of(type(options))
    inner: list[tuple[str, Options, Mapping[str, Any]]] = []
    if isinstance(options, Spec):
        names = ", ".join(catalog.names(options.kind))
        yield from _comment(f"The {options.kind}; one of: {names}.")
        yield f"use = {toml(options.name)}"
    for key in type(options).model_fields:
        value = getattr(options, key)
        if isinstance(value, Options) and isinstance(tree.get(key), Mapping):
            inner.append((key, value, tree[key]))
            continue
        yield ""
        yield from _comment(" ".join(docs.get(key, "").split()))
        # TOML has no null.
        if value is None:
            yield f"# {key} = ..."
        else:
            yield f"{key} = {toml(tree.get(key, value))}"
    for key, table, values in inner:
        place = (*path, key)
        yield ""
        yield f"[{'.'.join(place)}]"
        yield from _table(table, values, place, catalog)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")


def write_new(path: Path, text: str) -> Path:
    """Write a file that must not exist; return its path."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        message = f"{path} exists already; nothing is overwritten"
        raise Refused(message, code="file-exists") from None
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None
    return path
