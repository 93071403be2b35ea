"""From files of any layout to plans that a task can take: checked, freed of copies, divided, and accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from jaxtyping import Int

from dither.registry.problems import Refused

from .canonical import plan_groups
from .formats.reading import Entry, Fault
from .plans import Box, Diagram, Plans
from .splits import divide
from .vocabulary import ROOMS

__all__ = ["Duplicates", "Preparation", "prepare_plans"]

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
class Preparation:
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
) -> Preparation:
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
    return Preparation(plans, names, split, left_out, noted)


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
