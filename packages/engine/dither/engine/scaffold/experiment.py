"""Write experiment files: a copy of one that comes with dither, or every option of a task with its description."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomlkit

from dither.registry.config.document import shipped_experiments
from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.config.validation import dump
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.describe import toml
from dither.registry.spec.base import Options, Spec
from dither.registry.spec.option_docs import docs_of

from ..config.load_experiment import load_experiment

__all__ = ["complete", "copied", "write_new"]


def copied(source: Path, target: Path) -> str:
    """Return the text of an experiment file, with the files that it extends by their path from `target`."""
    document = tomlkit.parse(source.read_text(encoding="utf-8"))
    given = document.get("extends")
    if given is not None:
        names = [given] if isinstance(given, str) else given
        paths = [os.path.relpath(source.parent / name, target.absolute().parent) for name in names]
        document["extends"] = paths[0] if isinstance(given, str) else paths
    return tomlkit.dumps(document)


def complete(task: str) -> str:
    """Return an experiment file with every option of the quick experiment of a task, each with its description.

    Refused if no experiment that comes with dither has this task.
    """
    files = {
        name.partition("/")[0].replace("_", "-"): path
        for name, path in shipped_experiments().items()
        if name.endswith("/quick")
    }
    if task not in files:
        hint = did_you_mean(task, files, f"known: {', '.join(files)}")
        raise Refused(
            Problem(
                f'no experiment of task "{task}" comes with dither', help=hint, code="unknown-value"
            )
        )
    loaded = load_experiment(files[task])
    head = f"Every option of a small experiment of the task {task}. Options that are not set are commented out.\n#\n"
    lines = _table(
        loaded.experiment,
        dump(loaded.experiment, loaded.plugins.catalog),
        (),
        loaded.plugins.catalog,
    )
    return f"# {head}#     dither run {task}.toml\n" + "\n".join(lines) + "\n"


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
        yield f"# {key} = ..." if value is None else f"{key} = {toml(tree.get(key, value))}"
    for key, table, values in inner:
        here = (*path, key)
        yield ""
        yield f"[{'.'.join(here)}]"
        yield from _table(table, values, here, catalog)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")


def write_new(path: Path, text: str) -> Path:
    """Write a file that must not exist; return its path."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Refused(
            f"{path} exists already; nothing is overwritten", code="file-exists"
        ) from None
    except OSError as error:
        raise Refused(
            f"cannot write {path}: {error.strerror or error}", code="unwritable-file"
        ) from None
    return path
