"""What is known of regions before they are read, and how the columns of a sample are grouped. No torch here."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dither.registry.flow.spaces import Condition, Group

__all__ = [
    "GIVEN",
    "KEPT",
    "TRAINED_ON",
    "Accessibility",
    "Given",
    "Largest",
    "RegionFacts",
    "column_groups",
    "conditions_of",
    "given_groups",
    "required_arrays",
    "tss_known",
    "untold_of",
]

KEPT = 1 << 15
"""Regions of an evaluation on which baselines are measured, at most; of more, windows are left out evenly."""

TRAINED_ON = 1 << 17
"""Training regions that are held in memory at once, at most."""

Accessibility = Literal["none", "open", "quantitative", "constant"]
"""What the accessibility column holds: 0 or 1, a number from 0 to 1, or 1 everywhere; or there is none."""

Largest = Literal["window", "global"]
"""By what quantitative accessibility is divided: the largest value of the window, or of the training regions."""

Given = Literal["nothing", "motifs", "motifs-and-accessibility"]
"""What a model is always told and never asked for."""

GIVEN: dict[Given, tuple[str, ...]] = {
    "nothing": (),
    "motifs": ("motifs",),
    "motifs-and-accessibility": ("motifs", "accessibility"),
}
"""The groups of columns that are given."""


@dataclass(frozen=True)
class RegionFacts:
    """What a source of regions may tell before it is read.

    Attributes:
        motifs: Number of motif columns.
        cells: Cell types whose accessibility is known.
        longest: Regions of the largest training chromosome; None where that asks for reading everything.
        rows: Regions of all chromosomes; 0 where that asks for reading everything.
        chromosomes: Their number, held-out ones included; None where that asks for reading everything.
        atpm: Whether accessibility is known as a number, not only as open or closed.
        expression: Whether expression is known.
        tss: Whether starts of transcription are known.
        bytes_each: Bytes of memory that a number of the motifs takes while a run has them; 0 where they stay on disk.
        untold: What is known of other cell types, and not of one: "atpm:CELL", "expression:CELL" and so on.
        absent: Chromosomes that are to be held out and are not there.
    """

    motifs: int
    cells: tuple[str, ...]
    longest: int | None = None
    rows: int = 0
    chromosomes: int | None = None
    atpm: bool = False
    expression: bool = False
    tss: bool = False
    bytes_each: int = 4
    untold: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


def column_groups(motifs: int, accessibility: bool, expression: bool = False) -> tuple[Group, ...]:
    """Name the columns of a region: motifs, behind them its accessibility, behind that expression on both strands."""
    groups, width = [Group("motifs", 0, motifs)], motifs
    if accessibility:
        groups.append(Group("accessibility", width, width + 1))
        width += 1
    if expression:
        groups.append(Group("expression", width, width + 2))
    return tuple(groups)


def given_groups(groups: Sequence[Group], given: Given) -> tuple[str, ...]:
    """Name those of some groups of columns that are given."""
    return tuple(group.name for group in groups if group.name in GIVEN[given])


def tss_known(cells: Sequence[str], untold: Container[str]) -> bool:
    """Whether starts of transcription are known of all these cell types, given what is not known of some."""
    return not any(f"tss:{cell}" in untold for cell in cells)


def conditions_of(chromosomes: int, tss: bool, cells: Sequence[str], held: Sequence[str] = ()) -> tuple[Condition, ...]:
    """Name what is told beside each window.

    Args:
        chromosomes: Their number.
        tss: Whether starts of transcription are known.
        cells: The cell types trained on, none where none matters.
        held: Those that are held out, whose windows have no label.
    """
    told = [Condition("chromosome", chromosomes), Condition("centre")]
    if tss:
        told.append(Condition("tss"))
    if cells:
        told.append(Condition("cell", len(cells), tuple(cells), partial=bool(held)))
    return tuple(told)


def untold_of(known: Mapping[str, Container[str]], cells: Sequence[str]) -> tuple[str, ...]:
    """Name what is known of some cell types and not of others: "atpm:CELL", "expression:CELL" and so on.

    Args:
        known: Of each thing that is known, of which cell types. A region is open where its atpm is above 0.
        cells: All cell types.
    """
    if "atpm" in known:
        is_open = {cell for cell in cells if cell in known.get("open", ()) or cell in known["atpm"]}
        known = {**known, "open": is_open}
    return tuple(f"{name}:{cell}" for name in sorted(known) for cell in cells if cell not in known[name])


def required_arrays(accessibility: Accessibility, expression: bool, drop_closed: bool) -> dict[str, str]:
    """Return what samples ask of a cell type, as arrays are called and in words."""
    asked = {"open": "accessibility"} if accessibility == "open" or drop_closed else {}
    asked |= {"atpm": "accessibility as a number"} if accessibility == "quantitative" else {}
    return asked | ({"expression": "expression"} if expression else {})
