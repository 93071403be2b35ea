"""Facts of a source of regions, known before it is read, and the groups of columns of a sample.

Read without numpy and torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.spaces import Group

from ...prepared.manifest import MANIFEST, Kind, Manifest

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

__all__ = [
    "GIVEN",
    "MAX_FIT_REGIONS",
    "REGIONS",
    "Accessibility",
    "Given",
    "Largest",
    "RegionFacts",
    "RegionInfo",
    "Splits",
    "Transform",
    "column_groups",
    "extra_columns",
    "unknown_values",
]

MAX_FIT_REGIONS = 1 << 17
"""Largest number of training regions in memory."""

REGIONS = Kind("regions", 4, "dither prepare get PATHS")

Accessibility = Literal["none", "open", "quantitative", "constant"]
"""Values of the accessibility column: 0 or 1, a number from 0 to 1, or 1 everywhere; or there is
none."""

Largest = Literal["window", "global"]
"""Divisor of quantitative accessibility: the largest value of the window, or of the training
regions."""

Transform = Literal["none", "sqrt", "log1p", "quantile"]
"""Function of the motifs before the model: their square root, log(1 + x), or rank among the
training regions."""

Given = Literal["nothing", "motifs", "motifs-and-accessibility"]
"""Columns that the model always sees and never predicts."""

GIVEN: dict[Given, tuple[str, ...]] = {
    "nothing": (),
    "motifs": ("motifs",),
    "motifs-and-accessibility": ("motifs", "accessibility"),
}


class Splits(NamedTuple):
    """Chromosomes held out for validation and testing; whether motifs are scaled to 1."""

    valid: Sequence[str]
    test: Sequence[str]
    scale: bool


@dataclass(frozen=True)
class RegionFacts:
    """Facts of a source of regions, which may be known before it is read.

    `longest` is the number of regions of the largest training chromosome; `chromosomes` counts
    held-out ones, too. `atpm`, accessibility as a number, `expression` and `tss` are known or not,
    `unknown` ones ("atpm:CELL" and so on) are known of other cell types only.
    """

    motifs: int
    cells: tuple[str, ...]
    longest: int
    chromosomes: int
    atpm: bool = False
    expression: bool = False
    tss: bool = False
    unknown: tuple[str, ...] = ()


class RegionInfo(BaseModel):
    """Content of the manifest of prepared regions besides arrays; chromosomes by number."""

    # Built when used: every listing of components imports this module.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    motifs: tuple[str, ...]
    cells: tuple[str, ...]
    chromosomes: dict[str, int]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    genes: tuple[str, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest, folder: Path) -> RegionInfo:
        """Return what a manifest stores; raises Refused if it is incomplete."""
        try:
            return cls(**manifest.info)
        except (ValidationError, TypeError) as error:
            message = f"{folder / MANIFEST} is damaged: {str(error).splitlines()[0]}"
            problem = Problem(
                message, help=f"run: {REGIONS.command}", code="damaged-file"
            )
            raise Refused(problem) from None


def column_groups(
    motifs: int, accessibility: bool, expression: bool
) -> tuple[Group, ...]:
    """Return the groups of columns: motifs, accessibility, expression on both strands."""
    groups = [Group("motifs", 0, motifs)]
    if accessibility:
        groups.append(Group("accessibility", motifs, motifs + 1))
    if expression:
        first = groups[-1].stop
        groups.append(Group("expression", first, first + 2))
    return tuple(groups)


def extra_columns(groups: Sequence[Group], accessibility: Accessibility) -> list[str]:
    """Return names of the columns after the motifs; accessibility is "open" if it is 0 or 1."""
    names: list[str] = []
    for group in groups[1:]:
        if group.name == "expression":
            names += ["expression_positive", "expression_negative"]
        else:
            names.append("open" if accessibility == "open" else "accessibility")
    return names


def unknown_values(
    cells: Mapping[Split, Sequence[str]],
    accessibility: Accessibility,
    expression: bool,
    drop_closed: bool,
    facts: RegionFacts,
) -> list[Problem]:
    """Return values that samples need, and that are unknown in all, or of a cell type."""
    problems = []
    required = {}
    if accessibility == "open" or drop_closed:
        # Where only atpm is known, open follows from it.
        required["open"] = "accessibility of", "open or atpm"
    if accessibility == "quantitative":
        required["atpm"] = "accessibility as a number of", "atpm"
        if not facts.atpm:
            message = "the data have no accessibility as a number, only open or closed"
            problems.append(_unknown(message, "accessibility"))
    if expression:
        required["expression"] = "expression of", "expression"
        if not facts.expression:
            problems.append(_unknown("the data have no expression", "expression"))

    for split, names in cells.items():
        option = "cell_type" if split == "train" else f"{split}_cells"
        for cell in names:
            for name, (description, array) in required.items():
                if f"{name}:{cell}" in facts.unknown:
                    message = f'the data have no {description} "{cell}": no array {array} of it'
                    problems.append(_unknown(message, option))
    return problems


def _unknown(message: str, option: str) -> Problem:
    return Problem(message, path=("task", option), code="missing-array")
