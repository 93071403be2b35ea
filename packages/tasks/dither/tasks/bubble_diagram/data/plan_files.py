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


def prepare_files(
    spec: PrepareSpec,
    source: Path,
    form: Format,
    options: ReadOptions,
    shares: tuple[float, float],
    *,
    force: bool,
) -> str:
    """Read, check and store the plans of a source; return a report. Options as in `PlanFiles`.

    Raises:
        Refused: There are no files, no usable plans, or the destination holds something else.
    """
    folder = spec.folder()
    if folder.absolute() in (source.absolute(), *source.absolute().parents):
        raise Refused(
            f"destination {folder} contains the source {source}", code="file-exists"
        )
    name, files = find_source(source, form, folder)
    if options.adjacency == "door" and name != "housegan":
        message = f'adjacency = "door" requires HouseGAN++ files; {name} has no doors'
        raise Refused(f"{source}: {message}", code="misfit")
    made = {**spec.options(), "source": _describe(source, files)}
    if find_existing(folder, spec.stored, made, force=force) is not None:
        return f"{folder} already contains these plans; checksums verified"

    read = FORMATS[name][1]
    entries = chain.from_iterable(read(file, options) for file in files)
    done = prepare_plans(entries, most=options.most, valid=shares[0], test=shares[1])
    with (
        _rows_of(done.rejected) as rejected,
        write_folder(folder, spec.stored, made) as writer,
    ):
        for key, array in done.plans.arrays().items():
            writer.add(key, array)
        writer.add("split", done.split)
        writer.info["names"] = done.names
        writer.reject(rejected)
    counted = "1 file" if len(files) == 1 else f"{len(files):,} files"
    stored = f"prepared in {folder}; rejected plans in {REJECTED}"
    return f"{counted} of {source} ({name})\n{done.report()}\n{stored}"


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
    parts = re.split(r"(\d+)", str(file))
    return [
        (int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts)
    ]


@dataclass(frozen=True)
class PreparedPlans:
    """Accepted plans by split (see `divide`), their names, and rejected plans and files."""

    plans: Plans
    names: list[str]
    split: Numbers
    rejected: list[Entry]

    def report(self) -> str:
        """Return the number of plans, and rejected ones with examples."""
        train, valid, test = np.bincount(self.split, minlength=3).tolist()
        counts = (
            f"{train:,} for training, {valid:,} for validation, {test:,} for testing"
        )
        lines = [f"{len(self.plans):,} plans: {counts}"]
        if min(valid, test) < FEW:
            lines.append(
                f"warning: samples are compared with {valid:,} plans, and their noise floor with "
                f"{test:,}; below {FEW:,} these metrics are unreliable"
            )
        with _rows_of(self.rejected) as rejected:
            return "\n".join([*lines, *rejected.lines("rejected", _SORTS)])


def _rows_of(entries: Iterable[Entry]) -> RejectedRows:
    rows = RejectedRows()
    for entry in entries:
        messages = "; ".join(fault.message for fault in entry.faults)
        rows.add(Rejected(entry.place, entry.faults[0].sort, messages))
    return rows


def prepare_plans(
    entries: Iterable[Entry],
    *,
    most: int,
    valid: float,
    test: float,
) -> PreparedPlans:
    """Reject invalid plans and duplicates, and divide the others by shares for `valid` and `test`.

    Raises:
        Refused: There is less than one plan for each split (`no-samples`).
    """
    accepted: list[Entry] = []
    diagrams: list[Diagram] = []
    rejected: list[Entry] = []
    for entry in entries:
        faults = entry.faults or tuple(_equal_boxes(entry.diagram))
        if faults or entry.diagram is None:
            rejected.append(entry.rejected(*faults))
        else:
            accepted.append(entry)
            diagrams.append(entry.diagram)

    plans = Plans.from_diagrams(diagrams, most)
    first: dict[bytes, int] = {}
    for row, (entry, group) in enumerate(
        zip(accepted, plan_groups(plans), strict=True)
    ):
        if first.setdefault(group, row) != row:
            message = f"same plan as {accepted[first[group]].place}"
            rejected.append(entry.rejected(Fault("duplicate", message)))
    try:
        split = divide(list(first), valid=valid, test=test)
    except Refused as refused:
        # Why plans were rejected is why there are too few.
        with _rows_of(rejected) as rows:
            message = "\n".join(
                [refused.problems[0].message, *rows.lines("rejected", _SORTS)]
            )
        raise Refused(message, code="no-samples") from None

    # Sorted, so that a split is a slice of mapped arrays.
    order = np.argsort(split, kind="stable")
    distinct = np.array(list(first.values()))[order]
    names = [diagrams[row].name for row in distinct]
    return PreparedPlans(
        plans=plans[distinct],
        names=names,
        split=split[order],
        rejected=rejected,
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
    tested = max(1, round(test * distinct)) if test else 0
    validated = min(max(1, round(valid * distinct)), distinct - tested - 1)
    tested = min(tested, distinct - validated - 1)
    rank = np.array([number[key] for key in groups], np.int64)
    is_test = rank < tested
    is_held = rank < tested + validated
    return is_held.astype(np.int8) + is_test.astype(np.int8)
