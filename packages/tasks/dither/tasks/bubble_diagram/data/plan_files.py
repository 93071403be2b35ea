"""Plans from files: read them, reject invalid ones and duplicates, divide and store the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dither.registry.config.errors import Refused

from ...prepared.manifest import describe_sources
from ...prepared.rejected import REJECTED, Rejected, RejectedRows
from ...prepared.shards import Shard, open_shards
from ...prepared.spec import PrepareSpec
from ...prepared.store import find_existing, open_arrays, verify, write_folder
from ..arrays import Numbers
from ..formats.entries import Entry, Fault, ReadOptions, path_not_found
from ..formats.graph2plan import read_graph2plan
from ..formats.housegan import read_housegan
from ..formats.jsonl import scan_plans
from ..formats.resplan import read_msd, read_resplan
from ..formats.rplan_png import read_rplan_picture
from ..isomorphism import plan_groups
from ..plans import Box, Diagram, Plans, PlanSplits
from ..vocabulary import Format

FEW = 500
"""Held-out plans below which sample metrics and their noise floor are unreliable."""

_SORTS = {
    "file": "unreadable",
    "text": "malformed",
    "rooms": "with too few or too many rooms",
    "types": "with unknown room types",
    "boxes": "with invalid boxes",
    "edges": "with invalid relations",
    "doors": "with invalid doors",
    "areas": "with invalid areas",
    "duplicate": "duplicates",
}


@dataclass(frozen=True)
class PlanSource:
    """Files of plans, and the options of `PlanFiles` with which they are read and divided."""

    path: Path
    form: Format
    options: ReadOptions
    valid: float
    test: float
    force: bool


def prepare_files(spec: PrepareSpec, source: PlanSource) -> str:
    """Read, check and store the plans of a source; return a report.

    Raises:
        Refused: There are no files, no usable plans, or the destination holds something else.
    """
    name, files, made = _find(spec, source)
    folder = spec.folder()
    if find_existing(folder, spec.stored, made, force=source.force) is not None:
        return f"{folder} already contains these plans; checksums verified"
    with RejectedRows() as rejected:
        rows = read_entries(
            _entries(name, files, source), source.options.most, rejected
        )
        report = _store(spec, source, made, rows, rejected)
    return f"{_counted(files)} of {source.path} ({name})\n{report}"


def prepare_shard(spec: PrepareSpec, source: PlanSource, shard: Shard) -> str:
    """Read, check and store the plans of a part of the files; return a report."""
    name, files, made = _find(spec, source)
    made = shard.made(made)
    folder = shard.folder(spec.folder())
    part = files[shard.part(len(files), "files")]
    if find_existing(folder, spec.stored, made, force=source.force) is not None:
        return f"{folder} already contains these plans; checksums verified"
    with (
        RejectedRows() as rejected,
        write_folder(folder, spec.stored, made) as writer,
    ):
        rows = read_entries(_entries(name, part, source), source.options.most, rejected)
        for key, array in rows.plans.arrays().items():
            writer.add(key, array)
        writer.info |= {"names": rows.names, "places": rows.places}
        writer.reject(rejected)
    content = f"{len(rows.plans):,} plans of {_counted(part)} ({name})"
    return shard.report(spec.folder(), content)


def merge_shards(spec: PrepareSpec, source: PlanSource) -> str:
    """Store the plans of all shards as `prepare_files` would; return a report."""
    _, _, made = _find(spec, source)
    folder = spec.folder()
    shards = open_shards(folder, spec.stored, made)
    if find_existing(folder, spec.stored, made, force=source.force) is not None:
        return f"{folder} already contains these plans; checksums verified"
    plans: list[Plans] = []
    names: list[str] = []
    places: list[str] = []
    with RejectedRows() as rejected:
        for shard in shards:
            # Mapped arrays, which are read when they are joined.
            plans.append(Plans(**shard.arrays))
            names += shard.manifest.info["names"]
            places += shard.manifest.info["places"]
            shard.add_rejected(rejected)
        rows = PlanRows(Plans.concatenate(plans), names, places)
        report = _store(spec, source, made, rows, rejected)
    return f"{len(shards):,} shards of {source.path}\n{report}"


def _find(
    spec: PrepareSpec, source: PlanSource
) -> tuple[str, list[Path], dict[str, Any]]:
    """Return the format of a source, its files, and the options and source for the manifest."""
    folder = spec.folder()
    path = source.path
    # The destination is replaced as a whole, and the source with it.
    if folder.absolute() in (path.absolute(), *path.absolute().parents):
        raise Refused(
            f"destination {folder} contains the source {path}", code="file-exists"
        )
    name, files = find_source(path, source.form, folder)
    if source.options.adjacency == "door" and name != "housegan":
        message = f'adjacency = "door" requires HouseGAN++ files; {name} has no doors'
        raise Refused(f"{path}: {message}", code="misfit")
    return name, files, {**spec.options(), "source": _describe(path, files)}


def _entries(name: str, files: Sequence[Path], source: PlanSource) -> Iterator[Entry]:
    read = FORMATS[name][1]
    return chain.from_iterable(read(file, source.options) for file in files)


def _store(
    spec: PrepareSpec,
    source: PlanSource,
    made: dict[str, Any],
    rows: PlanRows,
    rejected: RejectedRows,
) -> str:
    """Divide plans and write them; return a report."""
    done = divide_rows(rows, rejected, valid=source.valid, test=source.test)
    with write_folder(spec.folder(), spec.stored, made) as writer:
        for key, array in done.plans.arrays().items():
            writer.add(key, array)
        writer.add("split", done.split)
        writer.info["names"] = done.names
        writer.reject(rejected)
    lines = [*done.lines(), *rejected.lines("rejected", _SORTS)]
    lines.append(f"prepared in {spec.folder()}; rejected plans in {REJECTED}")
    return "\n".join(lines)


def _counted(files: Sequence[Path]) -> str:
    if len(files) == 1:
        return "1 file"
    return f"{len(files):,} files"


def _describe(source: Path, files: Sequence[Path]) -> Any:
    return describe_sources(files, source if source.is_dir() else source.parent)


def load_prepared(
    spec: PrepareSpec,
    source: Path,
    form: Format,
) -> PlanSplits:
    """Memory-map prepared plans; if the source still exists, it must be unchanged.

    Raises:
        Refused: The plans are missing, damaged, or were made from another source or with other
            options.
    """
    manifest = spec.manifest()
    # Prepared plans may be on a machine without the source.
    if source.exists():
        files = find_source(source, form, spec.folder())[1]
        spec.check_options(manifest, {"source": _describe(source, files)})
    verify(spec.folder(), manifest, spec.stored, once=True)
    mapped = open_arrays(spec.folder(), manifest, spec.stored)
    arrays = {key: np.asarray(array) for key, array in mapped.items()}
    split = arrays.pop("split")
    return _split_plans(Plans(**arrays), split)


FORMATS: dict[
    str, tuple[tuple[str, ...], Callable[[Path, ReadOptions], Iterator[Entry]]]
] = {
    "rplan-png": ((".png",), read_rplan_picture),
    "graph2plan": ((".mat",), read_graph2plan),
    "housegan": ((".json",), read_housegan),
    "resplan": ((".pkl", ".pickle"), read_resplan),
    "msd": ((".pickle", ".pkl", ".gpickle"), read_msd),
    "jsonl": ((".jsonl",), scan_plans),
}
"""File suffixes of each format, and the function that reads a file."""


def find_source(
    source: Path,
    form: Format,
    exclude: Path | None = None,
) -> tuple[str, list[Path]]:
    """Return the format and the files of a file or folder, sorted by name (numbers by value).

    `exclude` is a folder that is not searched, where prepared plans are stored.

    Raises:
        Refused: The source does not exist, has no file of the format, or the format is ambiguous.
    """
    if not source.exists():
        raise path_not_found(source, "file or folder")
    files = list(_visible_files(source, exclude))
    suffixes = {file.suffix.lower() for file in files}
    names: list[str] = [form]
    if form == "auto":
        names = [
            name for name, (ends, _) in FORMATS.items() if not suffixes.isdisjoint(ends)
        ]
    if len(names) == 1:
        ends = FORMATS[names[0]][0]
        chosen = [file for file in files if file.suffix.lower() in ends]
        if chosen:
            return names[0], sorted(chosen, key=_by_number)
    actual = " and ".join(sorted(suffixes)) or "no"
    known = [f"{name}: {' or '.join(FORMATS[name][0])}" for name in names or FORMATS]
    raise Refused(
        f"{source} has {actual} files, expected one format",
        help=f"formats: {'; '.join(known)}",
        code="unknown-format" if files else "no-samples",
    )


def _visible_files(source: Path, exclude: Path | None) -> Iterator[Path]:
    """Yield a file, or the files of a folder and its folders, without hidden ones."""
    if source.is_file():
        yield source
    for file in source.rglob("*"):
        excluded = exclude is not None and exclude.absolute() in file.absolute().parents
        if file.is_file() and not file.name.startswith(".") and not excluded:
            yield file


def _by_number(file: Path) -> list[tuple[int, str]]:
    # Text and digits alternate. Pairs, as text and numbers cannot be compared.
    parts = re.split(r"(\d+)", str(file))
    return [
        (int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts)
    ]


@dataclass(frozen=True)
class PlanRows:
    """Valid plans in the order of their files, with their names and places."""

    plans: Plans
    names: list[str]
    places: list[str]


@dataclass(frozen=True)
class PreparedPlans:
    """Distinct plans by split (see `divide`), and their names."""

    plans: Plans
    names: list[str]
    split: Numbers

    def lines(self) -> Iterator[str]:
        """Yield the number of plans, and a warning if few are held out."""
        # minlength: there may be no test plans.
        train, valid, test = np.bincount(self.split, minlength=3).tolist()
        counts = (
            f"{train:,} for training, {valid:,} for validation, {test:,} for testing"
        )
        yield f"{len(self.plans):,} plans: {counts}"
        if min(valid, test) < FEW:
            yield (
                f"warning: samples are compared with {valid:,} plans, and their noise floor with "
                f"{test:,}; below {FEW:,} these metrics are unreliable"
            )


def read_entries(
    entries: Iterable[Entry], most: int, rejected: RejectedRows
) -> PlanRows:
    """Return the valid plans; the others are added to `rejected`."""
    diagrams: list[Diagram] = []
    places: list[str] = []
    for entry in entries:
        faults = entry.faults or tuple(_equal_boxes(entry.diagram))
        if faults or entry.diagram is None:
            messages = "; ".join(fault.message for fault in faults)
            # A plan is counted once, under its first fault.
            rejected.add(Rejected(entry.place, faults[0].sort, messages))
        else:
            diagrams.append(entry.diagram)
            places.append(entry.place)
    names = [diagram.name for diagram in diagrams]
    return PlanRows(Plans.from_diagrams(diagrams, most), names, places)


def divide_rows(
    rows: PlanRows,
    rejected: RejectedRows,
    *,
    valid: float,
    test: float,
) -> PreparedPlans:
    """Divide distinct plans by shares for `valid` and `test`; duplicates are added to `rejected`.

    Raises:
        Refused: There is less than one plan for each split (`no-samples`).
    """
    first: dict[bytes, int] = {}
    for row, group in enumerate(plan_groups(rows.plans)):
        # The first of isomorphic plans is taken.
        if first.setdefault(group, row) != row:
            message = f"same plan as {rows.places[first[group]]}"
            rejected.add(Rejected(rows.places[row], "duplicate", message))
    try:
        split = divide(list(first), valid=valid, test=test)
    except Refused as refused:
        # Why plans were rejected is why there are too few.
        lines = [refused.problems[0].message, *rejected.lines("rejected", _SORTS)]
        raise Refused("\n".join(lines), code="no-samples") from None

    # Sorted, so that a split is a slice of mapped arrays.
    order = np.argsort(split, kind="stable")
    distinct = np.array(list(first.values()))[order]
    return PreparedPlans(
        plans=rows.plans[distinct],
        names=[rows.names[row] for row in distinct],
        split=split[order],
    )


def _equal_boxes(diagram: Diagram | None) -> Iterator[Fault]:
    seen: dict[Box, int] = {}
    for room, box in enumerate((diagram and diagram.boxes) or ()):
        if seen.setdefault(box, room) != room:
            yield Fault(
                "boxes", f"rooms {seen[box]} and {room} have the same box {list(box)}"
            )


def hold_out(
    plans: Plans,
    *,
    valid: float,
    test: float,
) -> PlanSplits:
    """Divide plans independently of their order and names; see `divide`."""
    return _split_plans(plans, divide(plan_groups(plans), valid=valid, test=test))


def _split_plans(plans: Plans, split: Numbers) -> PlanSplits:
    if (split[1:] < split[:-1]).any():
        parts = [plans[np.flatnonzero(split == number)] for number in range(3)]
        return PlanSplits(parts[0], parts[1], parts[2])
    # Slices of mapped arrays stay on disk.
    train, valid = np.searchsorted(split, [1, 2]).tolist()
    return PlanSplits(plans[:train], plans[train:valid], plans[valid:])


def divide(
    groups: Sequence[bytes],
    *,
    valid: float,
    test: float,
) -> Numbers:
    """Return the split of each plan: 0 for training, 1 validation, 2 test.

    A group (see `plan_groups`) shares a split. `valid` and `test` are shares of the groups; each
    split has at least one, but no test plans if that share is 0.

    Raises:
        Refused: There are fewer groups than splits (`no-samples`).
    """
    # Keys are digests, so their order is pseudo-random.
    number = {key: index for index, key in enumerate(sorted(set(groups)))}
    splits = 3 if test > 0 else 2
    distinct = len(number)
    if distinct < splits:
        message = (
            f"{splits} splits need at least {splits} distinct plans, got {distinct}"
        )
        raise Refused(message, code="no-samples")

    # One plan is left for training, and one for each other split.
    tested = 0
    if test:
        tested = max(1, round(test * distinct))

    validated = min(max(1, round(valid * distinct)), distinct - tested - 1)
    tested = min(tested, distinct - validated - 1)
    rank = np.array([number[key] for key in groups], np.int64)
    is_test = rank < tested
    is_held = rank < tested + validated
    return is_held.astype(np.int8) + is_test.astype(np.int8)
