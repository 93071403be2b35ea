"""Preparation of plans read from files: reject invalid plans and duplicates, and divide the rest into splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Int

from dither.registry.config.errors import Refused

from ...prepared.rejected import Rejected, RejectedRows
from ..formats.entries import Entry, Fault
from ..isomorphism import plan_groups
from ..options import Duplicates
from ..plans import Box, Diagram, Plans, PlanSplits
from ..vocabulary import LIVING, ROOMS

__all__ = ["PreparedPlans", "divide", "hold_out", "prepare_plans", "rows_of", "split_plans"]

FEW: Final = 500
"""Held-out plans below which sample metrics and their noise floor are unreliable."""

_SORTS: Final = {
    "file": "unreadable",
    "text": "malformed",
    "rooms": "with too few or too many rooms",
    "types": "with unknown room types",
    "boxes": "with invalid boxes",
    "edges": "with invalid relations",
    "duplicate": "duplicates",
}

_OVERLAP: Final = 0.5
"""Rooms are noted if they share more than this part of the smaller box, unless one is a living room."""


@dataclass(frozen=True)
class PreparedPlans:
    """Result of a preparation.

    Attributes:
        plans: Accepted plans.
        names: Their names.
        split: 0 for training, 1 validation, 2 test.
        rejected: Plans and files that were not accepted, with their faults.
        noted: Accepted plans with suspicious properties.
    """

    plans: Plans
    names: list[str]
    split: Int[np.ndarray, " N"]
    rejected: list[Entry]
    noted: list[Entry]

    def report(self) -> str:
        """Return the number of plans, and rejected and noted ones with examples."""
        train, valid, test = (int((self.split == number).sum()) for number in range(3))
        lines = [f"{len(self.plans):,} plans: {train:,} for training, {valid:,} for validation, {test:,} for testing"]
        if min(valid, test) < FEW:
            lines.append(
                f"warning: samples are compared with {valid:,} plans, and their noise floor with {test:,}; "
                f"below {FEW:,} these metrics are unreliable"
            )
        with rows_of(self.rejected) as rejected, rows_of(self.noted) as noted:
            lines += [*rejected.lines("rejected", _SORTS), *noted.lines("noted", {"boxes": "with overlapping rooms"})]
        return "\n".join(lines)


def rows_of(entries: Iterable[Entry]) -> RejectedRows:
    """Return entries as rows for the report and for the folder of prepared data."""
    rows = RejectedRows()
    for entry in entries:
        rows.add(Rejected(entry.place, entry.faults[0].sort, "; ".join(fault.message for fault in entry.faults)))
    return rows


def prepare_plans(
    entries: Iterable[Entry], *, most: int, valid: float, test: float, duplicates: Duplicates = "drop"
) -> PreparedPlans:
    """Reject invalid plans and duplicates, and divide the others; `valid` and `test` are shares of the plans.

    Raises:
        Refused: There is less than one plan for each split (`no-samples`).
    """
    accepted, rejected, noted = [], [], []
    for entry in entries:
        faults = entry.faults or tuple(_equal_boxes(entry.diagram)) if entry.diagram else entry.faults
        if faults or entry.diagram is None:
            rejected.append(entry.rejected(*faults))
            continue
        accepted.append(entry)
        if overlaps := tuple(_overlaps(entry.diagram)):
            noted.append(entry.rejected(*overlaps))
    if not accepted:
        raise _no_plans("no plan is usable", rejected)
    plans = Plans.from_diagrams([entry.diagram for entry in accepted if entry.diagram], most)
    groups = plan_groups(plans)
    if duplicates == "drop":
        rows, copies = _first_of_each(accepted, groups)
        rejected += copies
        dropped = {copy.place for copy in copies}
        noted = [entry for entry in noted if entry.place not in dropped]
        accepted, groups, plans = [accepted[row] for row in rows], [groups[row] for row in rows], plans[np.array(rows)]
    names = [entry.diagram.name for entry in accepted if entry.diagram]
    try:
        split = divide(groups, valid=valid, test=test)
    except Refused as refused:
        raise _no_plans(refused.problems[0].message, rejected) from None
    return PreparedPlans(plans, names, split, rejected, noted)


def _no_plans(message: str, rejected: Sequence[Entry]) -> Refused:
    with rows_of(rejected) as rows:
        lines = list(rows.lines("rejected", _SORTS))
    return Refused("\n".join([message + ("; " if lines else "") + "".join(lines[:1]), *lines[1:]]), code="no-samples")


def _first_of_each(entries: list[Entry], groups: list[bytes]) -> tuple[list[int], list[Entry]]:
    first: dict[bytes, int] = {}
    copies = []
    for row, (entry, group) in enumerate(zip(entries, groups, strict=True)):
        if first.setdefault(group, row) != row:
            copies.append(entry.rejected(Fault("duplicate", f"same plan as {entries[first[group]].place}")))
    return list(first.values()), copies


def _equal_boxes(diagram: Diagram) -> Iterator[Fault]:
    seen: dict[Box, int] = {}
    for room, box in enumerate(diagram.boxes or ()):
        if seen.setdefault(box, room) != room:
            yield Fault("boxes", f"rooms {seen[box]} and {room} have the same box {list(box)}")


def _overlaps(diagram: Diagram) -> Iterator[Fault]:
    """Rooms that overlap to a large part. A living room may: its box surrounds an L or a T."""
    if diagram.boxes is None:
        return
    walls = np.array(diagram.boxes)
    sides = np.minimum(walls[:, None, 2:], walls[None, :, 2:]) - np.maximum(walls[:, None, :2], walls[None, :, :2])
    common = np.where((sides > 0).all(-1), sides.prod(-1), 0)
    area = common.diagonal()
    large = np.triu(common > _OVERLAP * np.minimum(area[:, None], area[None]), 1)
    for u, v in np.argwhere(large).tolist():
        if LIVING not in (diagram.types[u], diagram.types[v]):
            one, other = (f"room {room} ({ROOMS[diagram.types[room]]})" for room in (u, v))
            yield Fault("boxes", f"{one} and {other} overlap by more than half")


def hold_out(plans: Plans, *, valid: float, test: float) -> PlanSplits:
    """Divide plans independently of their order and names; isomorphic plans share a split. See `divide`."""
    return split_plans(plans, divide(plan_groups(plans), valid=valid, test=test))


def split_plans(plans: Plans, split: Int[np.ndarray, " N"]) -> PlanSplits:
    """Return the plans of split 0, 1 and 2."""
    return PlanSplits(*(plans[np.flatnonzero(split == number)] for number in range(3)))


def divide(groups: Sequence[bytes], *, valid: float, test: float) -> Int[np.ndarray, " N"]:
    """Return the split of each plan: 0 for training, 1 validation, 2 test; a group shares a split.

    Args:
        groups: Group key of each plan; see `plan_groups`.
        valid: Share of the groups for validation, above 0; at least one.
        test: Share for testing; at least one, or none if it is 0.

    Raises:
        Refused: There are fewer groups than splits (`no-samples`).
    """
    number = {key: index for index, key in enumerate(sorted(set(groups)))}
    splits, distinct = 2 + (test > 0), len(number)
    if distinct < splits:
        raise Refused(f"{splits} splits need at least {splits} distinct plans, got {distinct}", code="no-samples")
    # Keys are digests, so their order is pseudo-random.
    tested = max(1, round(test * distinct)) if test else 0
    validated = min(max(1, round(valid * distinct)), distinct - tested - 1)
    tested = min(tested, distinct - validated - 1)
    rank = np.array([number[key] for key in groups], np.int64)
    return ((rank < tested + validated).astype(np.int8) + (rank < tested)).astype(np.int8)
