"""The JSON that commands print with --json, as types: `dither schema --of output`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from dither.registry.plugins.index import Entry
from dither.registry.plugins.manifest import Kit
from dither.registry.plugins.status import PluginStatus

from ..runs.events import (
    Finished,
    Interrupted,
    Measured,
    Sampled,
    Saved,
    Started,
)
from ..runs.list_runs import Finding as FileFinding
from ..runs.list_runs import ListedRun
from .doctor import Finding

__all__ = ["OUTPUTS", "Failure", "output_schema"]

Record = dict[str, Any]
Metrics = dict[str, float | None]
"""null is NaN or inf."""


class Place(BaseModel):
    """A position in a file, as far as it is known."""

    file: str | None
    line: int | None
    column: int | None


class Note(Place):
    """A place that belongs to a problem, too."""

    message: str


class ProblemRecord(Place):
    """A problem with a code of docs/errors.md; `path` is the key in the experiment."""

    level: Literal["error", "warning"]
    code: str
    message: str
    path: str
    help: str | None
    related: list[Note]
    given: bool | int | str | None = None


class Failure(BaseModel):
    """The error that ended a command, on one line."""

    # As in the lines of `dither run --json`, so that one reader handles both.
    event: Literal["error"]
    # For readers of `validate`, whose other outcome is `Valid`.
    valid: Literal[False]
    exit_code: int
    problems: list[ProblemRecord]


class Valid(BaseModel):
    """A valid experiment with its warnings; `deep` has parameters, memory and shapes."""

    valid: Literal[True]
    file: str
    parts: dict[str, str]
    problems: list[ProblemRecord]
    deep: Record | None = None


class Files(BaseModel):
    """Files that the command has written."""

    files: list[str]


class Job(Files):
    """A job file, and the command that submits it."""

    submit: list[str]


class Exported(Files):
    """Files, option and path of data that are not included, and the address of an upload."""

    data: list[tuple[str, str]]
    pushed: str | None


class Samples(BaseModel):
    """The step of the checkpoint, files in `folder`, the first texts, metrics and baselines."""

    step: int
    folder: str
    files: list[str]
    exports: list[str]
    texts: list[str]
    metrics: Metrics
    baselines: Metrics


class Value(BaseModel):
    """A value, its place or the component whose default it is, and the places that it overrides."""

    key: str
    value: Any
    # `from` is a keyword of Python.
    place: Place | None = Field(alias="from")
    default_of: str | None
    over: list[Place]


class Option(BaseModel):
    """An option of a component or table."""

    name: str
    type: str
    default: str
    doc: str


class Table(BaseModel):
    """The options of a table of experiments."""

    name: str
    options: list[Option]


class Component(Table):
    """A component: its options, what it is compatible with, and how to write it."""

    kind: str
    rev: int
    plugin: str
    pinned: str
    doc: str
    contracts: dict[str, str]
    snippet: str
    source: str
    version: str
    used_in: list[str]


class ListedComponent(BaseModel):
    """A row of `dither list`."""

    kind: str
    name: str
    rev: int
    plugin: str
    summary: str


@dataclass(frozen=True)
class ListedPlugin(PluginStatus):
    """A plugin, and the result of its author's conformance kit."""

    kit: str = ""


class ListedModel(BaseModel):
    """A trained model."""

    name: str
    bytes: int
    summary: str


class Point(BaseModel):
    """A point of a sweep with its newest metrics; only its name under --dry-run."""

    name: str
    # The defaults are those of a dry run, which knows names alone.
    state: str = ""
    reason: str | None = None
    run: str | None = None
    step: int | None = None
    values: Record = {}
    metrics: Metrics = {}


class Sweep(BaseModel):
    """The directory of a sweep and its points."""

    sweep: str | None
    points: list[Point]


class Prepared(BaseModel):
    """Data that are prepared."""

    data: str
    summary: str


class Changes(BaseModel):
    """Changes of registry.toml, or of the manifests of a project."""

    file: str | None = None
    changes: list[str]


class Checked(BaseModel):
    """A registry.toml that matches the installed components."""

    file: str
    components: int


OUTPUTS: dict[str, Any] = {
    "run": Started | Measured | Saved | Sampled | Finished | Interrupted,
    "compare": list[Record],
    "certify": Record,
    "sweep start": Sweep,
    "sweep status": list[Point],
    "launch": Job,
    "validate": Valid,
    "resolve": Record | list[Value],
    "bench": Record,
    "prepare": Prepared,
    "new experiment": Files,
    "new plugin": Files,
    "new from-hf": Files,
    "runs list": list[ListedRun],
    "runs verify": list[FileFinding],
    "runs diff": dict[str, dict[str, tuple[Any, Any]]],
    "report": Files,
    "sample": Samples,
    "evaluate": Metrics,
    "export": Exported,
    # Trained models are listed by the same command.
    "list": list[ListedComponent] | list[ListedModel],
    # Tables of an experiment file, such as [train], are described, too.
    "describe": Component | Table,
    "search": list[Entry],
    "install": list[ListedPlugin],
    "uninstall": list[ListedPlugin],
    "plugins": list[ListedPlugin],
    "plugins test": Kit,
    "doctor": list[Finding],
    "registry sync": Changes,
    "registry check": Checked,
}
"""What each command prints with --json: `run` one line per event, all others one value.

Any may print a `Failure` instead, or as its last line.
"""


def output_schema() -> Record:
    """Return the JSON Schema of every command, by name, and of errors."""
    schemas = {
        # As printed: a field with a default is always present.
        name: TypeAdapter(kind).json_schema(mode="serialization")
        for name, kind in {**OUTPUTS, "error": Failure}.items()
    }
    return {"title": "Output of dither with --json", "commands": schemas}
