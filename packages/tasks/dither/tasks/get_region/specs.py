"""The menu: windows of regions of a genome. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.config.errors import Refused, nearest
from dither.registry.flow.spaces import FeatureSpace, Group
from dither.registry.kinds.task import DataSpec, TaskSpec
from dither.registry.spec.base import Slot, named
from dither.registry.spec.misfit import Misfit, below

from .data.column_groups import (
    GIVEN,
    Accessibility,
    Given,
    Largest,
    RegionFacts,
    column_groups,
    conditions_of,
    given_groups,
    required_arrays,
    tss_known,
)

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

    from .data.region_matrix import RegionMatrix
    from .task import RegionWindows

__all__ = ["GetRegion"]

STRIDE = 100


class GetRegion(TaskSpec):
    """Windows of genome regions: the motifs that each holds, whether it is open in a cell type, what it expresses.

    A source of regions is a data part with `gives = "regions"` whose `build` returns a `RegionMatrix`; it may also have
    a method `facts` that returns `RegionFacts`.
    """

    name: ClassVar[str] = "get-region"
    rev: ClassVar[int] = 2
    exports: ClassVar[Mapping[str, str]] = MappingProxyType({
        "npz": "regions.npz: samples, truth and masks in the units of the data, chromosome, start, end, cell, column",
        "csv": "regions.csv: a row for each region and column that was drawn, with mean and deviation of its draws",
    })  # fmt: skip
    data: Slot[DataSpec] = named("human-dhs")
    """Where the regions come from."""
    regions: int = Option(900, ge=1, le=100_000)
    """Consecutive regions of one chromosome in a window."""
    stride: int | None = Option(None, ge=1)
    """Regions from one training window to the next: 100, or `regions` if that is less. Held-out ones never overlap."""
    jitter: int = Option(0, ge=0, le=10_000)
    """Shift training windows by up to so many regions, as far as the chromosome goes; each window with each shift is a
    sample of its own."""
    span: int | None = Option(None, ge=1)
    """Bases that a window may reach over, such as 5000000; wider ones are left out."""
    accessibility: bool | Accessibility = True
    """The column behind the motifs: open (true) is 0 or 1, quantitative is atpm, constant is 1; none (false)."""
    largest: Largest = "global"
    """Divide quantitative accessibility by the largest value of its window, or of the training regions."""
    expression: bool = False
    """Add two last columns: log10(TPM + 1) on the plus and the minus strand."""
    expressed: float = Option(0.05, ge=0)
    """Expression counts as 0 where atpm is below this."""
    cell_type: str | list[str] = Option("K562", min_length=1)
    """The cell types trained on; human-dhs has K562, HepG2, GM12878 and hESC. Each window is a sample in each."""
    valid_cells: list[str] = []
    """Cell types held out for validation, on its chromosomes; without any, those trained on."""
    test_cells: list[str] = []
    """Cell types held out for testing, on its chromosomes; without any, those trained on."""
    drop_closed: bool = False
    """Leave out, for each cell type, the regions that are closed in it, before windows are cut."""
    motifs: int | None = Option(None, ge=1)
    """Refuse data with another number of motif columns, such as 282 for weights of GET."""
    standardise: bool = False
    """Give every column mean 0 and standard deviation 1 over the training regions; Gaussian noise needs it."""
    given: Given = "nothing"
    """What the model is always told and never asked for; the other columns are left to predict."""
    fill: float = Option(0.5, gt=0, le=1)
    """Share of a window's regions that sampling is to fill in; the others are given."""
    fill_unit: Literal["region", "element"] = "region"
    """What it is a share of; element where the process hides single elements."""
    draws: int = Option(1, ge=1, le=1000)
    """Samples of each window, one after the other: their mean is judged, and whether their spread is right."""

    @model_validator(mode="after")
    def _cells_apart(self) -> GetRegion:
        named = [("cell_type", self.trained()), ("valid_cells", self.valid_cells), ("test_cells", self.test_cells)]
        seen: dict[str, str] = {}
        for option, cells in named:
            for cell in cells:
                if seen.get(cell) == option:
                    raise ValueError(f'{option} names "{cell}" twice')
                if cell in seen:
                    raise ValueError(f'"{cell}" is in {seen[cell]} and in {option}; a cell type is in one split')
                seen[cell] = option
        return self

    def trained(self) -> list[str]:
        """Return the names of the cell types trained on."""
        return [self.cell_type] if isinstance(self.cell_type, str) else list(self.cell_type)

    def column(self) -> Accessibility:
        """Return what the accessibility column holds."""
        if isinstance(self.accessibility, bool):
            return "open" if self.accessibility else "none"
        return self.accessibility

    def cells(self) -> dict[Split, list[str]]:
        """Return the cell types of each split; empty where nothing depends on one."""
        if self.column() in ("none", "constant") and not (self.expression or self.drop_closed):
            return {}
        return {"train": self.trained(), "valid": self.valid_cells, "test": self.test_cells}

    def check(self) -> Iterator[Misfit]:
        """Yield a source of something else, options that leave nothing, and what the data cannot serve."""
        if self.data.gives != "regions":
            yield Misfit(f'"{self.data.name}" gives {self.data.gives}, but get-region needs regions', ("data",))
            return
        data = list(below("data", self.data.check()))
        yield from data
        yield from self._unfit()
        if data:
            return
        try:
            facts = self._facts()
        except Refused as refused:
            yield from (Misfit(problem.message, ("data",), help=problem.help) for problem in refused.problems)
        else:
            yield from self._unserved(facts)

    def _unfit(self) -> Iterator[Misfit]:
        if self.stride is not None and self.stride > self.regions:
            what = f"a stride of {self.stride} leaves regions between windows of {self.regions} unused"
            yield Misfit(what, ("stride",), help=f"at most regions = {self.regions}")
        if all(group.name in GIVEN[self.given] for group in self._groups(1)):
            what = f'with given = "{self.given}" there is nothing left to predict'
            yield Misfit(what, ("given",), help="accessibility = true, or expression = true")
        if self.drop_closed and self.column() == "open":
            what = "without the closed regions the accessibility column is 1 everywhere"
            yield Misfit(what, ("drop_closed",), help='accessibility = "constant" says so, "quantitative" still varies')

    def warn(self) -> Iterator[Misfit]:
        """Yield options that change nothing."""
        options = type(self).model_fields
        if self.largest != options["largest"].default and self.column() != "quantitative":
            yield Misfit("largest has no effect", ("largest",), help='set accessibility = "quantitative"')
        if self.expressed == options["expressed"].default:
            return
        if not self.expression:
            yield Misfit("expressed has no effect", ("expressed",), help="set expression = true")
        elif not self._facts().atpm:
            yield Misfit("expressed has no effect: the data know no atpm", ("expressed",), help="leave expressed out")

    def _unserved(self, facts: RegionFacts) -> Iterator[Misfit]:
        for option, known in (
            ("accessibility", facts.atpm or self.column() != "quantitative"),
            ("expression", facts.expression or not self.expression),
        ):
            if not known:
                what = "accessibility only as open or closed" if option == "accessibility" else "no expression"
                yield Misfit(f'"{self.data.name}" knows {what}', (option,))
        if self.motifs not in (None, facts.motifs):
            what = f"the data have {facts.motifs} motif columns, not {self.motifs}"
            yield Misfit(what, ("motifs",), help="a model serves the number of motifs that it was trained on")
        for split, cells in self.cells().items():
            for cell in cells:
                option = "cell_type" if split == "train" else f"{split}_cells"
                if cell not in facts.cells:
                    yield self._absent(cell, option, facts)
                yield from self._untold(cell, option, facts)
        for name in facts.absent:
            what = f'the data have no chromosome "{name}" to hold out'
            yield Misfit(what, ("data", "valid" if name in getattr(self.data, "valid", ()) else "test"))
        if facts.longest == 0:
            yield Misfit("every chromosome is held out, none is left to train on", ("data", "valid"))
        elif facts.longest is not None and self.regions > facts.longest:
            what = f"the largest training chromosome has {facts.longest} regions"
            yield Misfit(f"{what}, a window of {self.regions} does not fit", ("regions",))

    def _untold(self, cell: str, option: str, facts: RegionFacts) -> Iterator[Misfit]:
        """Yield what is known of other cell types, but not of one; 0 stands there, which nobody said."""
        asked = required_arrays(self.column(), self.expression, self.drop_closed)
        for name in (name for name in asked if f"{name}:{cell}" in facts.unknown):
            yield Misfit(f'the data do not know {asked[name]} of "{cell}", only of other cell types', (option,))

    def _absent(self, cell: str, option: str, facts: RegionFacts) -> Misfit:
        close = nearest(cell, facts.cells)
        there = f"there are: {', '.join(facts.cells[:30])}" if facts.cells else "there is none: accessibility = false"
        hint = (f'did you mean "{close}"? ' if close else "") + there
        return Misfit(f'the data have no cell type "{cell}"', (option,), help=hint)

    def _facts(self) -> RegionFacts:
        tell = getattr(self.data, "facts", None)
        if tell is not None:
            facts: RegionFacts = tell()
            if facts.chromosomes is not None:
                return facts
        matrix: RegionMatrix = self.data.build()
        return matrix.facts()

    def _groups(self, motifs: int) -> tuple[Group, ...]:
        return column_groups(motifs, self.column() != "none", self.expression)

    def space(self) -> FeatureSpace:
        """`regions` positions of one number per motif, one for accessibility, two for expression."""
        facts = self._facts()
        groups = self._groups(facts.motifs)
        cells = self.cells()
        held = [*cells.get("valid", ()), *cells.get("test", ())]
        tss = facts.tss and tss_known([*cells.get("train", ()), *held], facts.unknown)
        conditions = conditions_of(facts.chromosomes or 1, tss, cells.get("train", ()), held)
        given = given_groups(groups, self.given)
        return FeatureSpace(self.regions, groups[-1].stop, groups, conditions, given, self.standardise)

    def build(self) -> RegionWindows:
        """Read the regions and cut them into windows."""
        from .data.columns import Layout
        from .task import RegionWindows

        cells = self.cells()
        return RegionWindows(
            self.data.build(),
            regions=self.regions,
            stride=min(STRIDE, self.regions) if self.stride is None else self.stride,
            jitter=self.jitter,
            span=self.span,
            cell=cells.pop("train", None),
            held_cells=cells,
            layout=Layout(self.column(), self.largest, self.expression, self.expressed),
            drop_closed=self.drop_closed,
            standardise=self.standardise,
            given=self.given,
            fill=self.fill,
            fill_unit=self.fill_unit,
            draws=self.draws,
        )
