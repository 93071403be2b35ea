"""The data source "plans": find and read source files, store the prepared plans, and read them back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ...prepared.manifest import describe_sources
from ...prepared.rejected import REJECTED
from ...prepared.spec import PrepareSpec
from ...prepared.store import find_existing, open_arrays, verify, write_folder
from ..formats.entries import Entry, ReadOptions, path_not_found
from ..formats.graph2plan import read_graph2plan
from ..formats.housegan import read_housegan
from ..formats.jsonl import scan_plans
from ..formats.resplan import read_msd, read_resplan
from ..formats.rplan_png import read_rplan_picture
from ..options import Duplicates, Format
from ..plans import Plans, PlanSplits
from .prepare import prepare_plans, rows_of, split_plans

__all__ = ["FORMATS", "Reader", "find_source", "load_prepared", "prepare_files", "read_source"]

NOTED: Final = "noted.jsonl"
"""File of accepted plans with suspicious properties."""


def prepare_files(
    spec: PrepareSpec,
    source: Path,
    form: Format,
    options: ReadOptions,
    *,
    valid: float,
    test: float,
    duplicates: Duplicates,
    force: bool,
) -> str:
    """Read, check and store the plans of a source, and return a report. See `specs.PlanFiles` for the options.

    Raises:
        Refused: There are no files, no usable plans, or the destination holds something else.
    """
    folder = spec.folder()
    if folder.absolute() in (source.absolute(), *source.absolute().parents):
        raise Refused(f"destination {folder} contains the source {source}", code="file-exists")
    name, files = find_source(source, form, folder)
    if options.adjacency == "door" and name != "housegan":
        raise Refused(f'{source}: adjacency = "door" requires HouseGAN++ files; {name} has no doors', code="misfit")
    made = {**spec.options(), "source": _describe(source, files)}
    if find_existing(folder, spec.stored, made, force=force) is not None:
        return f"{folder} already contains these plans; checksums verified"
    entries = read_source(name, files, options)
    done = prepare_plans(entries, most=options.most, valid=valid, test=test, duplicates=duplicates)
    with (
        rows_of(done.rejected) as rejected,
        rows_of(done.noted) as noted,
        write_folder(folder, spec.stored, made) as writer,
    ):
        plans = done.plans
        for key, array in (
            ("types", plans.types),
            ("edges", plans.edges),
            ("boxes", plans.boxes),
            ("split", done.split),
        ):
            writer.add(key, array)
        writer.info["names"] = done.names
        writer.reject(rejected)
        writer.reject(noted, NOTED)
    counted = "1 file" if len(files) == 1 else f"{len(files):,} files"
    return f"{counted} of {source} ({name})\n{done.report()}\nprepared in {folder}; rejected plans in {REJECTED}"


def load_prepared(spec: PrepareSpec, source: Path, form: Format) -> PlanSplits:
    """Return prepared plans; if the source still exists, it must be unchanged.

    Raises:
        Refused: The plans are missing, damaged, or were made from another source or with other options.
    """
    manifest = spec.manifest()
    if source.exists():
        files = find_source(source, form, spec.folder())[1]
        spec.check_options(manifest, {"source": _describe(source, files)})
    verify(spec.folder(), manifest, spec.stored, once=True)
    arrays = {key: np.array(array) for key, array in open_arrays(spec.folder(), manifest, spec.stored).items()}
    return split_plans(Plans(arrays["types"], arrays["edges"], arrays["boxes"]), arrays["split"])


def _describe(source: Path, files: list[Path]) -> dict[str, Any]:
    return describe_sources(files, source if source.is_dir() else source.parent)


class Reader(NamedTuple):
    """File suffixes of a format, and the function that reads a file."""

    suffixes: tuple[str, ...]
    read: Callable[[Path, ReadOptions], Iterator[Entry]]


FORMATS: Final[dict[str, Reader]] = {
    "rplan-png": Reader((".png",), read_rplan_picture),
    "graph2plan": Reader((".mat", ".npz", ".json"), read_graph2plan),
    "housegan": Reader((".json",), read_housegan),
    "resplan": Reader((".pkl", ".pickle"), read_resplan),
    "msd": Reader((".pickle", ".pkl", ".gpickle"), read_msd),
    "jsonl": Reader((".jsonl",), lambda file, options: scan_plans(file, options.most)),
}
"""Readers by format."""

_BY_SUFFIX: Final = {
    ".png": {"rplan-png"},
    ".mat": {"graph2plan"},
    ".npz": {"graph2plan"},
    ".jsonl": {"jsonl"},
    ".json": {"housegan"},
    ".pkl": {"resplan", "msd"},
    ".pickle": {"resplan", "msd"},
    ".gpickle": {"resplan", "msd"},
}
"""Candidate formats for "auto" by file suffix."""


def find_source(source: Path, form: Format, exclude: Path | None = None) -> tuple[str, list[Path]]:
    """Return the format and the files, sorted by name (numbers by value).

    Args:
        source: A file, or a folder that is searched recursively.
        form: The format, or auto.
        exclude: Folder that is not searched, where prepared plans are stored.

    Raises:
        Refused: The source does not exist, has no file of the format, or the format is ambiguous.
    """
    files = _files(source, exclude)
    found = {file.suffix.lower() for file in files}
    name: str = form if form != "auto" else _detect(source, files, found)
    suffixes = FORMATS[name].suffixes
    if source.is_file() and source.suffix.lower() not in suffixes:
        raise Refused(f"{source}: {name} files end in {' or '.join(suffixes)}", code="unknown-format")
    chosen = [source] if source.is_file() else [file for file in files if file.suffix.lower() in suffixes]
    if not chosen:
        others = f"suffixes: {', '.join(sorted(found))}" if found else "the folder is empty"
        message = f"{source} contains no {' or '.join(suffixes)} file ({name}); {others}"
        raise Refused(message, code="unknown-format")
    return name, sorted(chosen, key=_by_number)


def read_source(name: str, files: list[Path], options: ReadOptions) -> Iterator[Entry]:
    """Yield every plan of the files, valid or not, and every file that cannot be read."""
    for file in files:
        yield from FORMATS[name].read(file, options)


def _files(source: Path, exclude: Path | None) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise path_not_found(source, "file or folder")
    files = [file for file in source.rglob("*") if not file.name.startswith(".") and file.is_file()]
    if exclude is None or source.absolute() not in exclude.absolute().parents:
        return files
    return [file for file in files if exclude.absolute() not in file.absolute().parents]


def _detect(source: Path, files: list[Path], suffixes: set[str]) -> str:
    if not files:
        raise Refused(f"{source} is empty", code="no-samples")
    candidates = set().union(*(_BY_SUFFIX.get(suffix, ()) for suffix in suffixes))
    if len(candidates) != 1:
        reason = f"could be {' or '.join(sorted(candidates))}" if candidates else "no known format"
        message = f"{source}: files end in {', '.join(sorted(suffixes))}; {reason}"
        raise Refused(Problem(message, help=f"format: {', '.join(FORMATS)}", code="unknown-format"))
    return candidates.pop()


def _by_number(file: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", str(file))
    return [(int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts)]
