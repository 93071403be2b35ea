"""From files of any layout to plans that a task can take: checked, freed of copies, divided, and accounted for."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from jaxtyping import Int

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_write

from ..formats.common import Entry, Fault
from ..isomorphism import plan_groups
from ..plans import Box, Diagram, Plans, PlanSplits
from ..vocabulary import ROOMS

__all__ = [
    "ARRAYS",
    "REPORT",
    "Duplicates",
    "PreparedPlans",
    "describe_files",
    "divide",
    "hold_out",
    "prepare_plans",
    "read_prepared",
    "write_prepared",
]

Duplicates = Literal["drop", "keep"]
"""Whether one of several equal plans is taken, or all; all go into one split."""

ENOUGH: Final = 500
"""Held-out plans with which figures of samples, and the noise floor beside them, begin to say something."""

_SHOWN: Final = 3
"""Places that are named for each fault."""

_WORDS: Final = {
    "file": "cannot be read",
    "text": "not written as they should be",
    "rooms": "with too few or too many rooms",
    "types": "with types of room that are not known",
    "boxes": "with boxes that cannot be",
    "edges": "with relations that cannot be",
    "duplicate": "the same as others",
}

_SHARE: Final = 0.5
"""Share of a room's box in that of another beyond which the two are noted, unless one is a living room."""


@dataclass(frozen=True)
class PreparedPlans:
    """What became of the plans of a source.

    Attributes:
        plans: Those that were taken.
        names: Their names.
        split: 0 to train on, 1 validation, 2 testing.
        left_out: Plans and files that were not taken, and why.
        noted: Plans that were taken though something is odd.
    """

    plans: Plans
    names: list[str]
    split: Int[np.ndarray, " N"]
    left_out: list[Entry]
    noted: list[Entry]

    def report(self) -> str:
        """Say what was taken, what was left out and why, and the first places of each fault."""
        train, valid, test = (int((self.split == place).sum()) for place in range(3))
        lines = [f"{len(self.plans):,} plans: {train:,} to train on, {valid:,} for validation, {test:,} for testing"]
        if min(valid, test) < ENOUGH:
            what = f"samples are compared with {valid:,} plans, and their noise floor rests on {test:,}"
            lines.append(f"few are held out: {what}; below {ENOUGH:,} these figures are coarse")
        if self.left_out:
            lines.append(f"{len(self.left_out):,} left out:")
            lines += _grouped(self.left_out)
        if self.noted:
            lines.append(f"{len(self.noted):,} taken that are odd:")
            lines += _grouped(self.noted, {"boxes": "with rooms that lie in each other"})
        return "\n".join(lines)


def prepare_plans(
    entries: Iterable[Entry], *, most: int, valid: float, test: float, duplicates: Duplicates = "drop"
) -> PreparedPlans:
    """Sort out what was read.

    Args:
        entries: What the reader of a layout yields.
        most: Room slots.
        valid: Share of the plans for validation.
        test: Share for testing.
        duplicates: What to do about equal plans, whatever the order of their rooms.

    Raises:
        Refused: Nothing is left, or less than one plan for each split.
    """
    taken, left_out, noted = [], [], []
    for entry in entries:
        faults = entry.faults or tuple(_impossible(entry.diagram)) if entry.diagram else entry.faults
        if faults or entry.diagram is None:
            left_out.append(entry.refused(*faults))
            continue
        taken.append(entry)
        if odd := tuple(_odd(entry.diagram)):
            noted.append(entry.refused(*odd))
    if not taken:
        raise Refused("\n".join([f"no plan can be taken; {len(left_out):,} left out:", *_grouped(left_out)]))
    plans = Plans.from_diagrams([entry.diagram for entry in taken if entry.diagram], most)
    groups = plan_groups(plans)
    if duplicates == "drop":
        rows, copies = _first_of_each(taken, groups)
        left_out += copies
        gone = {copy.place for copy in copies}
        noted = [entry for entry in noted if entry.place not in gone]
        taken, groups, plans = [taken[row] for row in rows], [groups[row] for row in rows], plans[np.array(rows, int)]
    names = [entry.diagram.name for entry in taken if entry.diagram]
    try:
        split = divide(groups, valid=valid, test=test)
    except Refused as refused:
        why = "\n".join(_grouped(left_out))
        raise Refused(
            f"{refused.problems[0].message}" + (f"; {len(left_out)} left out:\n{why}" if why else "")
        ) from None
    return PreparedPlans(plans, names, split, left_out, noted)


def _first_of_each(taken: list[Entry], groups: list[bytes]) -> tuple[list[int], list[Entry]]:
    first: dict[bytes, int] = {}
    copies = []
    for row, (entry, group) in enumerate(zip(taken, groups, strict=True)):
        if first.setdefault(group, row) != row:
            copies.append(entry.refused(Fault("duplicate", f"is the same plan as {taken[first[group]].place}")))
    return list(first.values()), copies


def _impossible(diagram: Diagram) -> Iterator[Fault]:
    """Boxes that two rooms share to the pixel."""
    seen: dict[Box, int] = {}
    for room, box in enumerate(diagram.boxes or ()):
        if seen.setdefault(box, room) != room:
            yield Fault("boxes", f"rooms {seen[box]} and {room} have the same box {list(box)}")


def _odd(diagram: Diagram) -> Iterator[Fault]:
    """Rooms that lie in each other to a large part. A living room may: its box is around an L or a T."""
    if diagram.boxes is None:
        return
    walls = np.array(diagram.boxes)
    sides = np.minimum(walls[:, None, 2:], walls[None, :, 2:]) - np.maximum(walls[:, None, :2], walls[None, :, :2])
    common = np.where((sides > 0).all(-1), sides.prod(-1), 0)
    area = common.diagonal()
    deep = np.triu(common > _SHARE * np.minimum(area[:, None], area[None]), 1)
    for u, v in np.argwhere(deep).tolist():
        if ROOMS.index("LivingRoom") not in (diagram.types[u], diagram.types[v]):
            one, other = (f"room {room} ({ROOMS[diagram.types[room]]})" for room in (u, v))
            yield Fault("boxes", f"{one} and {other} overlap by more than half")


def _grouped(entries: list[Entry], words: Mapping[str, str] = _WORDS) -> Iterator[str]:
    """Yield for each sort of fault how many have it, and the first of them."""
    sorts = Counter(entry.faults[0].sort for entry in entries)
    for sort, count in sorts.most_common():
        yield f"  {count:,} {words[sort]}"
        some = [entry for entry in entries if entry.faults[0].sort == sort]
        for entry in some[:_SHOWN]:
            more = f" (and {len(entry.faults) - 1} more)" if len(entry.faults) > 1 else ""
            yield f"    {entry.place}: {entry.faults[0].message}{more}"
        if count > _SHOWN:
            yield f"    ... and {count - _SHOWN:,} more"


ARRAYS: Final = "plans.npz"
REPORT: Final = "report.json"
"""Names of the two files."""

_ARRAYS: Final = ("types", "edges", "boxes", "split", "names", "made")


def describe_files(files: Sequence[Path], source: Path) -> str:
    """Return a digest of the names and sizes of files, to see whether a source has changed."""
    said = [f"{file.relative_to(source) if file != source else file.name} {file.stat().st_size}" for file in files]
    return hashlib.sha256("\n".join(sorted(said)).encode()).hexdigest()


def write_prepared(done: PreparedPlans, folder: Path, made: Mapping[str, Any]) -> None:
    """Write plans and report, each whole or not at all, the plans last.

    Args:
        done: What was prepared.
        folder: Where to; it is made if need be.
        made: From what, and with which options; `read_prepared` compares it.
    """
    report = {
        "made": dict(made),
        "taken": len(done.plans),
        "left_out": [_listed(entry) for entry in done.left_out],
        "noted": [_listed(entry) for entry in done.noted],
    }
    with atomic_write(folder / REPORT) as beside:
        beside.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    with atomic_write(folder / ARRAYS) as beside:
        np.savez_compressed(
            beside,
            types=done.plans.types,
            edges=done.plans.edges,
            boxes=done.plans.boxes,
            split=done.split,
            names=np.array(done.names, np.str_),
            made=np.array(json.dumps(dict(made), sort_keys=True)),
        )


def read_prepared(folder: Path, made: Mapping[str, Any], command: str) -> PlanSplits:
    """Return prepared plans.

    Args:
        folder: Where they are.
        made: From what and how they should have been made.
        command: What to run if they are not there.

    Raises:
        Refused: They are not there, damaged, or made from something else.
    """
    file, remedy = folder / ARRAYS, f"run: {command}"
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
            arrays = {key: found[key] for key in _ARRAYS}
    except FileNotFoundError:
        raise Refused(Problem(f"these plans have not been prepared: there is no {file}", help=remedy)) from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise Refused(Problem(f"{file} is damaged: {error}", help=remedy)) from None
    before = json.loads(str(arrays["made"]))
    changed = sorted(key for key in {*before, *made} if made.get(key, before.get(key)) != before.get(key))
    if changed:
        raise Refused(Problem(f"{file} was prepared from something else: {', '.join(changed)} changed", help=remedy))
    plans = Plans(arrays["types"], arrays["edges"], arrays["boxes"])
    return PlanSplits(*(plans[np.flatnonzero(arrays["split"] == place)] for place in range(3)))


def _listed(entry: Entry) -> dict[str, Any]:
    return {
        "file": str(entry.file),
        "plan": entry.plan,
        "why": [{"sort": fault.sort, "message": fault.message} for fault in entry.faults],
    }


def hold_out(plans: Plans, *, valid: float, test: float) -> PlanSplits:
    """Divide plans so that neither their order nor their names matter, and equal plans stay together.

    Args:
        plans: What is to be divided.
        valid: Share of the different plans for validation, above 0; at least one.
        test: Share for testing; at least one, or none if it is 0.

    Raises:
        Refused: There are fewer different plans than splits.
    """
    split = divide(plan_groups(plans), valid=valid, test=test)
    return PlanSplits(*(plans[np.flatnonzero(split == place)] for place in range(3)))


def divide(groups: Sequence[bytes], *, valid: float, test: float) -> Int[np.ndarray, " N"]:
    """Return the split of each plan: 0 to train on, 1 validation, 2 testing; a group stays together.

    Args:
        groups: Which plans are the same; see `plan_groups`.
        valid: Share of the groups for validation, above 0; at least one.
        test: Share for testing; at least one, or none if it is 0.

    Raises:
        Refused: There are fewer groups than splits.
    """
    number = {mark: place for place, mark in enumerate(sorted(set(groups)))}
    splits, different = 2 + (test > 0), len(number)
    if different < splits:
        raise Refused(f"{splits} splits need {splits} different plans or more, here are {different}")
    # Digests are as good as random, so their order is a fair one.
    tested = max(1, round(test * different)) if test else 0
    validated = min(max(1, round(valid * different)), different - tested - 1)
    tested = min(tested, different - validated - 1)
    place = np.array([number[mark] for mark in groups], np.int64)
    return ((place < tested + validated).astype(np.int8) + (place < tested)).astype(np.int8)
