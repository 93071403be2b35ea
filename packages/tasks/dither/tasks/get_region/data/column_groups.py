"""Facts of a source of regions, known before it is read, and the groups of columns of a sample. No numpy or torch."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.spaces import Condition, Group

from ...prepared.manifest import MANIFEST, Kind, Manifest

__all__ = [
    "BASELINE_REGIONS",
    "GIVEN",
    "MAX_FIT_REGIONS",
    "REGIONS",
    "Accessibility",
    "Given",
    "Largest",
    "RegionFacts",
    "RegionInfo",
    "column_groups",
    "conditions_of",
    "extra_columns",
    "given_groups",
    "required_arrays",
    "tss_known",
    "unknown_names",
]

BASELINE_REGIONS = 1 << 15
"""Largest number of regions of an evaluation on which baselines are measured; windows are thinned out evenly."""

MAX_FIT_REGIONS = 1 << 17
"""Largest number of training regions that are in memory at once."""

REGIONS: Final = Kind("regions", 4, "dither prepare get PATHS", earlier=("regions.json",))
"""Prepared regions; earlier versions had regions.json."""

Accessibility = Literal["none", "open", "quantitative", "constant"]
"""Values of the accessibility column: 0 or 1, a number from 0 to 1, or 1 everywhere; or there is none."""

Largest = Literal["window", "global"]
"""Divisor of quantitative accessibility: the largest value of the window, or of the training regions."""

Given = Literal["nothing", "motifs", "motifs-and-accessibility"]
"""Columns that the model always sees and never predicts."""

GIVEN: dict[Given, tuple[str, ...]] = {
    "nothing": (),
    "motifs": ("motifs",),
    "motifs-and-accessibility": ("motifs", "accessibility"),
}
"""Groups of columns that are given."""


@dataclass(frozen=True)
class RegionFacts:
    """Facts of a source of regions.

    Attributes:
        motifs: Number of motif columns.
        cells: Cell types.
        longest: Regions of the largest training chromosome; None if unknown before reading.
        rows: Regions of all chromosomes; 0 if unknown before reading.
        chromosomes: Number of chromosomes with held-out ones; None if unknown before reading.
        atpm: Accessibility is known as a number, not only as open or closed.
        expression: Expression is known.
        tss: Transcription start sites are known.
        unknown: Values that are known of other cell types only: "atpm:CELL", "expression:CELL" and so on.
        absent: Chromosomes to hold out that do not exist.
    """

    motifs: int
    cells: tuple[str, ...]
    longest: int | None = None
    rows: int = 0
    chromosomes: int | None = None
    atpm: bool = False
    expression: bool = False
    tss: bool = False
    unknown: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class RegionInfo(BaseModel):
    """What the manifest of prepared regions stores besides the arrays.

    Attributes:
        motifs: Names of the columns.
        cells: Names of the cell types.
        chromosomes: Number of regions of each, in the order of their indices.
        unknown: Values that are unknown and stored as 0, such as "atpm:CELL".
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    motifs: tuple[str, ...]
    cells: tuple[str, ...]
    chromosomes: dict[str, int]
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest, folder: Path) -> RegionInfo:
        """Return what a manifest stores.

        Raises:
            Refused: It is incomplete.
        """
        try:
            return cls(**manifest.info)
        except (ValidationError, TypeError) as error:
            message = f"{folder / MANIFEST} is damaged: {str(error).splitlines()[0]}"
            raise Refused(Problem(message, help=f"run: {REGIONS.command}", code="damaged-file")) from None

    def facts(self, arrays: Container[str], held_out: Sequence[str]) -> RegionFacts:
        """Return the facts, given the names of the arrays and the chromosomes that are held out."""
        counts = [count for name, count in self.chromosomes.items() if name not in held_out]
        return RegionFacts(
            motifs=len(self.motifs),
            cells=self.cells,
            longest=max(counts, default=0),
            rows=sum(self.chromosomes.values()),
            chromosomes=len(self.chromosomes),
            atpm="atpm" in arrays,
            expression="expression" in arrays,
            tss="tss" in arrays,
            unknown=self.unknown,
            absent=tuple(name for name in held_out if name not in self.chromosomes),
        )


def column_groups(motifs: int, accessibility: bool, expression: bool = False) -> tuple[Group, ...]:
    """Return the groups of columns of a region: motifs, accessibility, expression on both strands."""
    groups, width = [Group("motifs", 0, motifs)], motifs
    if accessibility:
        groups.append(Group("accessibility", width, width + 1))
        width += 1
    if expression:
        groups.append(Group("expression", width, width + 2))
    return tuple(groups)


def extra_columns(groups: Sequence[Group], accessibility: Accessibility) -> list[str]:
    """Return the names of the columns after the motifs; that of accessibility is "open" if it is 0 or 1."""
    names = {
        "accessibility": ("open" if accessibility == "open" else "accessibility",),
        "expression": ("expression_positive", "expression_negative"),
    }
    return [name for group in groups[1:] for name in names[group.name]]


def given_groups(groups: Sequence[Group], given: Given) -> tuple[str, ...]:
    """Return the names of the groups that are given."""
    return tuple(group.name for group in groups if group.name in GIVEN[given])


def tss_known(cells: Sequence[str], unknown: Container[str]) -> bool:
    """Whether transcription start sites are known of all these cell types."""
    return not any(f"tss:{cell}" in unknown for cell in cells)


def conditions_of(chromosomes: int, tss: bool, cells: Sequence[str], held: Sequence[str] = ()) -> tuple[Condition, ...]:
    """Return the conditions of a window.

    Args:
        chromosomes: Number of chromosomes.
        tss: Transcription start sites are known.
        cells: Cell types of the training windows; empty if there is only one.
        held: Held-out cell types, whose windows have no label.
    """
    conditions = [Condition("chromosome", chromosomes), Condition("centre")]
    if tss:
        conditions.append(Condition("tss"))
    if cells:
        conditions.append(Condition("cell", len(cells), tuple(cells), partial=bool(held)))
    return tuple(conditions)


def unknown_names(known: Mapping[str, Container[str]], cells: Sequence[str]) -> tuple[str, ...]:
    """Return values that are known of some cell types only, as "atpm:CELL", "expression:CELL" and so on.

    Args:
        known: For each kind of value, the cell types of which it is known. A region is open where its atpm is above 0.
        cells: All cell types.
    """
    if "atpm" in known:
        is_open = {cell for cell in cells if cell in known.get("open", ()) or cell in known["atpm"]}
        known = {**known, "open": is_open}
    return tuple(f"{name}:{cell}" for name in sorted(known) for cell in cells if cell not in known[name])


def required_arrays(accessibility: Accessibility, expression: bool, drop_closed: bool) -> dict[str, str]:
    """Return the arrays that samples need of a cell type, with a description of each."""
    required = {"open": "accessibility"} if accessibility == "open" or drop_closed else {}
    required |= {"atpm": "accessibility as a number"} if accessibility == "quantitative" else {}
    return required | ({"expression": "expression"} if expression else {})
