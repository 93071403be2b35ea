"""What is known of regions before they are read, and how the columns of a sample are grouped. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dither.registry.spaces import Condition, Group

__all__ = ["GIVEN", "Accessibility", "Given", "Largest", "RegionFacts", "column_groups", "conditions_of"]

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
        mapped: Whether the motifs stay on disk while a run has them.
    """

    motifs: int
    cells: tuple[str, ...]
    longest: int | None = None
    rows: int = 0
    chromosomes: int | None = None
    atpm: bool = False
    expression: bool = False
    tss: bool = False
    mapped: bool = False


def column_groups(motifs: int, accessibility: bool, expression: bool = False) -> tuple[Group, ...]:
    """Name the columns of a region: motifs, behind them its accessibility, behind that expression on both strands."""
    groups, width = [Group("motifs", 0, motifs)], motifs
    if accessibility:
        groups.append(Group("accessibility", width, width + 1))
        width += 1
    if expression:
        groups.append(Group("expression", width, width + 2))
    return tuple(groups)


def conditions_of(chromosomes: int, tss: bool, cells: Sequence[str]) -> tuple[Condition, ...]:
    """Name what is told beside each window; `cells` are the cell types trained on, none where none matters."""
    told = [Condition("chromosome", chromosomes), Condition("centre")]
    if tss:
        told.append(Condition("tss"))
    if cells:
        told.append(Condition("cell", len(cells), tuple(cells)))
    return tuple(told)
