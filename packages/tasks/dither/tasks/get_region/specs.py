"""Spec of the task get-region. Read without torch and numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.config.errors import Refused, nearest
from dither.registry.contracts.spaces import Condition, FeatureSpace, Group, Space
from dither.registry.kinds import DataSpec, TaskSpec
from dither.registry.spec.base import Slot, named
from dither.registry.spec.misfit import Misfit, below

from ..missing_library import require_extra
from .data.column_groups import (
    GIVEN,
    Accessibility,
    Given,
    Largest,
    RegionFacts,
    Transform,
    column_groups,
    unknown_values,
)

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

    from .task import RegionWindows

__all__ = ["GetRegion"]

STRIDE = 100


class GetRegion(TaskSpec):
    """Windows of genome regions: motifs, and accessibility and expression in a cell type.

    A source of regions is a data component with `gives = "regions"` whose `build` returns a
    `RegionMatrix`; its `facts` returns `RegionFacts`.
    """

    name = "get-region"
    hub_task: ClassVar[str] = "tabular-regression"
    # Windows have one length, the last ones are padded.
    bucketed: ClassVar[bool | None] = False
    rev = 3
    headline: ClassVar[tuple[str, ...]] = (
        "valid/masked_mse",
        "valid/masked_gain",
        "valid/accessibility_auc",
        "valid/accessibility_auprc",
        "valid/accessibility_pearson",
        "sample/masked_mse",
        "sample/accessibility_auc",
        "sample/accessibility_pearson",
    )
    higher: ClassVar[tuple[str, ...]] = (
        "*gain*",
        "*_auc",
        "*_auprc",
        "*pearson*",
        "*spearman*",
        "*_r2",
    )
    lower: ClassVar[tuple[str, ...]] = ("*mse*", "*mae*", "*error*")
    explanations: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "mean": "the mean of each column over training regions",
            "logistic-sqrt": "logistic regression on square roots of motif scores",
            "boosting": "gradient boosting of 400 rounds on the region and its neighbours",
        }
    )
    exports: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "npz": "regions.npz: samples, truth and masks in the units of the data, "
            "chromosome, start, end, cell, column",
            "csv": "regions.csv: a row for each sampled region and column, "
            "with mean and standard deviation of its draws",
        }
    )
    data: Slot[DataSpec] = named("human-dhs")
    """Source of the regions."""
    regions: int = Option(900, ge=1, le=100_000)
    """Consecutive regions of one chromosome in a window."""
    stride: int | None = Option(None, ge=1)
    """Regions from one training window to the next: 100, or `regions` if that is less. Held-out
    ones never overlap."""
    jitter: int = Option(0, ge=0, le=10_000)
    """Shift training windows by up to this many regions, within the chromosome; each shift of a
    window is a sample of its own."""
    span: int | None = Option(None, ge=1)
    """Largest number of bases of a window, such as 5000000; wider ones are dropped."""
    accessibility: bool | Accessibility = True
    """The column after the motifs: open (true) is 0 or 1, quantitative is atpm, constant is 1; none
    (false)."""
    largest: Largest = "global"
    """Divide quantitative accessibility by the largest value of its window, or of the training
    regions."""
    expression: bool = False
    """Add two last columns: log10(TPM + 1) on the plus and the minus strand."""
    expressed: float = Option(0.05, ge=0)
    """Expression is set to 0 where atpm is below this."""
    cell_type: str | list[str] = Option("K562", min_length=1)
    """Cell types of the training split, such as K562, HepG2, GM12878, hESC. Each window is a sample
    in each."""
    valid_cells: list[str] = []
    """Cell types held out for validation, on its chromosomes; by default those of the training
    split."""
    test_cells: list[str] = []
    """Cell types held out for testing, on its chromosomes; by default those of the training
    split."""
    trained_chromosomes: bool = False
    """Evaluate held-out cell types on the training chromosomes too; these metrics begin with
    trained_chromosomes_."""
    drop_closed: bool = False
    """Drop, for each cell type, the regions that are closed in it, before windows are cut."""
    motifs: int | None = Option(None, ge=1)
    """Require this number of motif columns, such as 282 for weights of GET."""
    standardise: bool = False
    """Give every column mean 0 and standard deviation 1 over the training regions; required for
    Gaussian noise."""
    transform: Transform = "none"
    """Transform the motifs before the model: sqrt, log1p, or quantile (ranks among the training
    regions)."""
    given: Given = "nothing"
    """Columns that the model always sees and never predicts."""
    fill: float = Option(0.5, gt=0, le=1)
    """Share of a window's regions that sampling imputes; the others are given."""
    fill_unit: Literal["region", "element"] = "region"
    """Unit of `fill`; element if the process masks single elements."""
    rivals: bool = True
    """Fit logistic-sqrt, mlp and boosting as baselines as well, which takes 140 CPU s for 40,000
    regions: boosting 120 s, once, for its predictions are cached."""
    draws: int = Option(1, ge=1, le=1000)
    """Samples of each window; metrics are those of their mean, and of their spread."""

    @model_validator(mode="after")
    def _cells_apart(self) -> GetRegion:
        seen: dict[str, str] = {}
        cells_of = {
            "cell_type": self.trained(),
            "valid_cells": self.valid_cells,
            "test_cells": self.test_cells,
        }
        for option, cells in cells_of.items():
            for cell in cells:
                if seen.get(cell) == option:
                    raise ValueError(f'{option} names "{cell}" twice')
                if cell in seen:
                    raise ValueError(
                        f'"{cell}" is in {seen[cell]} and in {option}; a cell type is in one split'
                    )
                seen[cell] = option
        return self

    def trained(self) -> list[str]:
        if isinstance(self.cell_type, str):
            return [self.cell_type]
        return list(self.cell_type)

    def step(self) -> int:
        """Return the number of regions from one training window to the next."""
        if self.stride is None:
            return min(STRIDE, self.regions)
        return self.stride

    def column(self) -> Accessibility:
        """Return the values of the accessibility column."""
        if isinstance(self.accessibility, bool):
            return "open" if self.accessibility else "none"
        return self.accessibility

    def cells(self) -> dict[Split, list[str]]:
        """Return the cell types of each split; empty if nothing depends on one."""
        if self.column() in ("none", "constant") and not (
            self.expression or self.drop_closed
        ):
            return {}
        return {
            "train": self.trained(),
            "valid": self.valid_cells,
            "test": self.test_cells,
        }

    def check(self) -> Iterator[Misfit]:
        """Yield a wrong source, incompatible options, and options that the data do not support."""
        wrong = list(below("data", self.data.check_gives("regions")))
        yield from wrong
        if wrong:
            return
        data = list(below("data", self.data.check()))
        yield from data
        if self.stride is not None and self.stride > self.regions:
            unused = f"regions between windows of {self.regions} unused"
            message = f"a stride of {self.stride} leaves {unused}"
            fix = f"at most regions = {self.regions}"
            yield Misfit(message, ("stride",), help=fix, code="out-of-range")
        # With one motif: their number, for which a file is read, does not matter.
        if all(group.name in GIVEN[self.given] for group in self._groups(1)):
            message = f'given = "{self.given}" leaves nothing to predict'
            yield Misfit(
                message,
                ("given",),
                help="set accessibility = true, or expression = true",
            )
        if self.drop_closed and self.column() == "open":
            message = "without closed regions the accessibility column is 1 everywhere"
            fix = (
                'set accessibility = "constant", or "quantitative", which still varies'
            )
            yield Misfit(message, ("drop_closed",), help=fix)
        # Facts of a wrong source cannot be read.
        if data:
            return
        try:
            facts = self.data.facts()
        except Refused as refused:
            for problem in refused.problems:
                # Paths begin with "task", which is this spec.
                yield problem.as_misfit(problem.path[1:] or ("data",))
        else:
            yield from self._unsupported(facts)

    def warn(self) -> Iterator[Misfit]:
        # A default without effect is not a mistake of the user.
        if not self._is_default("largest") and self.column() != "quantitative":
            yield _no_effect("largest", 'set accessibility = "quantitative"')
        if self.trained_chromosomes and not (self.valid_cells or self.test_cells):
            yield _no_effect("trained_chromosomes", "set valid_cells or test_cells")
        # Only then may the facts be read, which takes a file.
        if self._is_default("expressed"):
            return
        if not self.expression:
            yield _no_effect("expressed", "set expression = true")
        elif not self.data.facts().atpm:
            yield _no_effect("expressed", "remove expressed", ": the data have no atpm")

    def _is_default(self, option: str) -> bool:
        return bool(getattr(self, option) == type(self).model_fields[option].default)

    def _unsupported(self, facts: RegionFacts) -> Iterator[Misfit]:
        """Yield options that the data do not support."""
        if self.motifs not in (None, facts.motifs):
            message = f"the data have {facts.motifs} motif columns, not {self.motifs}"
            fix = "a model requires the number of motifs that it was trained on"
            yield Misfit(message, ("motifs",), help=fix, code="wrong-shape")
        for split, cells in self.cells().items():
            option = "cell_type" if split == "train" else f"{split}_cells"
            for cell in cells:
                if cell not in facts.cells:
                    message = f'the data have no cell type "{cell}"'
                    fix = _available(cell, facts.cells)
                    yield Misfit(message, (option,), help=fix, code="unknown-value")
        for problem in unknown_values(
            cells=self.cells(),
            accessibility=self.column(),
            expression=self.expression,
            drop_closed=self.drop_closed,
            facts=facts,
        ):
            yield problem.as_misfit(problem.path[1:])
        if facts.longest == 0:
            message = "every chromosome is held out, none is left for training"
            yield Misfit(message, ("data", "valid"), code="no-samples")
        elif self.regions > facts.longest:
            longest = f"longer than every training chromosome ({facts.longest})"
            message = f"a window of {self.regions} regions is {longest}"
            yield Misfit(message, ("regions",), code="no-samples")

    def _groups(self, motifs: int) -> tuple[Group, ...]:
        return column_groups(motifs, self.column() != "none", self.expression)

    def space(self) -> FeatureSpace:
        """Return the space of windows: `regions` positions of motifs and columns after them."""
        return self.space_of(self.data.facts())

    def space_of(self, facts: RegionFacts) -> FeatureSpace:
        """Return the space of windows of a source."""
        groups = self._groups(facts.motifs)
        cells = self.cells()
        trained = tuple(cells.get("train", ()))
        held_out = [*cells.get("valid", ()), *cells.get("test", ())]
        conditions = [Condition("chromosome", facts.chromosomes), Condition("centre")]
        # A condition must be known of every cell type.
        if facts.tss and not any(
            f"tss:{cell}" in facts.unknown for cell in (*trained, *held_out)
        ):
            conditions.append(Condition("tss"))
        # Held-out cell types have no label.
        if trained:
            conditions.append(
                Condition("cell", len(trained), trained, partial=bool(held_out))
            )
        given = tuple(group.name for group in groups if group.name in GIVEN[self.given])
        return FeatureSpace(
            length=self.regions,
            width=groups[-1].stop,
            groups=groups,
            conditions=tuple(conditions),
            given=given,
            standardised=self.standardise,
        )

    def restore(self, folder: Path, space: Space) -> object:
        """Return the units of columns, with `inverse_transform`, without data."""
        from .data.units import UNITS, ColumnUnits

        return ColumnUnits.read(folder / UNITS)

    def build(self) -> RegionWindows:
        require_extra("regions", self.name, ("task",))
        from .task import RegionWindows

        return RegionWindows(self.data.build(), self)


def _no_effect(option: str, fix: str, reason: str = "") -> Misfit:
    return Misfit(
        f"{option} has no effect{reason}", (option,), help=fix, code="no-effect"
    )


def _available(cell: str, cells: Sequence[str]) -> str:
    if not cells:
        return "the data have none; set accessibility = false"
    available = f"available: {', '.join(cells[:30])}"
    close = nearest(cell, cells)

    if close:
        return f'did you mean "{close}"? {available}'
    return available
