"""The task as the engine sees it: windows of regions, figures, and heat maps to look at.

Letters: B batch, L regions of a window, M columns (motifs, and perhaps accessibility behind them), N samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.protocols import Picture, Split
from dither.registry.flow.records import Clean

from .data.column_groups import BASELINE_REGIONS, GIVEN, Given, given_groups
from .data.columns import OPEN, Layout
from .data.dataset import RegionSamples
from .data.region_matrix import RegionMatrix
from .data.windows import WindowOptions
from .export import DrawnRegions, write_regions
from .metrics.baselines import Baselines, MaskedBatch
from .metrics.region_metrics import RegionMetrics, baseline_metrics
from .metrics.sample_metrics import judge, questions_of
from .plots.samples import BEHIND, Labels, plot_samples, plot_trajectory

__all__ = ["RegionWindows"]


class RegionWindows:
    """Windows of consecutive regions, in one cell type each; whole chromosomes are held out, and perhaps cell types.

    What a batch tells beside its windows is said in `RegionSamples`.

    Args:
        matrix: The regions.
        regions: Regions per window.
        stride: Regions from one training window to the next.
        jitter: Regions by which a training window may be shifted; see `WindowOptions`.
        span: Bases that a window may reach over; wider ones are left out.
        cell: The cell types trained on; None where nothing depends on one, and no accessibility column is wanted.
        held_cells: Cell types that are held out for validation and testing.
        layout: Which columns there are behind the motifs.
        drop_closed: Leave out, for each cell type, the regions that are closed in it.
        standardise: Give every column mean 0 and standard deviation 1 over the training regions.
        given: What a model is always told and never asked for.
        fill: Share of a window's regions that sampling is to fill in; the others are given.
        fill_unit: What it is a share of: regions, or their single elements.
        draws: Samples of each window, which stand together.

    Raises:
        Refused: No training chromosome is as long as a window, or there is no such cell type.
    """

    def __init__(
        self,
        matrix: RegionMatrix,
        *,
        regions: int = 900,
        stride: int = 100,
        jitter: int = 0,
        span: int | None = None,
        cell: str | Sequence[str] | None = "K562",
        held_cells: Mapping[Split, Sequence[str]] = MappingProxyType({}),
        layout: Layout = OPEN,
        drop_closed: bool = False,
        standardise: bool = False,
        given: Given = "nothing",
        fill: float = 0.5,
        fill_unit: Literal["region", "element"] = "region",
        draws: int = 1,
    ) -> None:
        cells = [cell] if isinstance(cell, str) else list(cell or ())
        layout = layout if cells or layout.accessibility != "open" else replace(layout, accessibility="none")
        if all(group.name in GIVEN[given] for group in layout.groups(1)):
            raise ValueError(f'with given = "{given}" and no accessibility or expression there is nothing to ask for')
        if not 0 < fill <= 1:
            raise ValueError(f"fill is a share above 0 and at most 1, got {fill}")
        self.matrix, self.regions, self.draws = matrix, regions, draws
        self.fill, self.fill_unit = fill, fill_unit
        self.cell = cells[0] if cells and layout.accessibility != "none" else None
        self.samples = RegionSamples(
            matrix,
            WindowOptions(regions, stride, jitter, span),
            {"train": cells, **held_cells},
            layout,
            standardise=standardise,
            drop_closed=drop_closed,
        )
        told = given_groups(self.samples.space.groups, given)
        self.space, self.motifs = replace(self.samples.space, given=told, standardised=standardise), len(matrix.motifs)
        self.standard, self._measured = self.samples.columns.standard, self.samples.measured
        self._given = torch.zeros(self.space.width, dtype=torch.bool)
        for group in self.space.groups:
            self._given[group.start : group.stop] = group.name in told
        self._newest: RegionMetrics | None = None
        self._drawn: list[MaskedBatch] = []

    def size(self, split: Split) -> int:
        """Number of windows of a split."""
        return self.samples.size(split)

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return windows by number."""
        clean = self.samples.batch(split, rows)
        return replace(clean, known=self._given & clean.valid[..., None])

    def like(self, n: int, seed: int) -> Clean:
        """Return validation windows with their truth, each as often as there are draws of it, `n` in all.

        In each, a share `fill` of the regions or elements is to be drawn, the same ones in every draw. Beside what
        `batch` tells, `window` is the number of each window in its split (`B`).
        """
        random = np.random.default_rng(seed)
        size, count = self.size("valid"), -(-n // self.draws)
        rows = np.concatenate([np.zeros(0, int), *(random.permutation(size) for _ in range(-(-count // size)))])[:count]
        clean = self.batch("valid", rows.tolist())
        places = clean.valid if self.fill_unit == "region" else ~clean.fixed.flatten(1)
        to_draw = torch.zeros_like(places)
        for own, drawn in zip(places, to_draw, strict=True):
            (candidates,) = torch.where(own)
            chosen = random.permutation(len(candidates))[: max(1, round(self.fill * len(candidates)))]
            drawn[candidates[chosen]] = True
        width = places.shape[1] // clean.valid.shape[1]
        known = clean.known | (places & ~to_draw).view(*clean.valid.shape, width)
        cond = clean.cond | {"window": torch.from_numpy(rows)}
        return Clean(clean.x0, clean.valid, known, cond).apply(lambda value: value.repeat_interleave(self.draws, 0)[:n])

    def metrics(self) -> RegionMetrics:
        """Return a fresh accumulator of errors, correlations and areas under curves."""
        self._newest = self._figures()
        return self._newest

    def _figures(self) -> RegionMetrics:
        return RegionMetrics(self.space.groups, self.standard, self._measured.mean)

    def _fit(self, cell: int) -> Baselines:
        """Fit the baselines on the training regions of a cell type, or of all for one that is held out."""
        return Baselines(*self.samples.training(cell=None if cell < 0 else cell), self.space.groups)

    def baselines(self, split: Split = "valid") -> dict[str, float]:
        """Return the figures of predictors without a deep model; see `Baselines`.

        They are asked for the very elements that the newest evaluation asked for, under the same masks; before any, for
        all that may be asked for in the split. Beside the figures of samples stands what they answer to what was drawn.
        """
        asked = [] if self._newest is None else self._newest.kept.questions
        questions = {"": asked or list(self._everything(split)), "sample ": self._drawn}
        return baseline_metrics(self._figures, self._fit, questions)

    def _everything(self, split: Split) -> Iterator[MaskedBatch]:
        """All that may be asked for in windows that stand evenly, a window at a time."""
        for row in range(0, self.size(split), max(1, -(-self.size(split) * self.regions // BASELINE_REGIONS))):
            clean = self.batch(split, [row])
            yield MaskedBatch.of(self._figures().plain(clean.x0), ~clean.fixed, clean)

    def sample_metrics(self, samples: Float[Tensor, "N L M"], like: Clean) -> dict[str, float]:
        """Return the figures of `metrics`, over the values that were drawn, and those of several draws of a window."""
        self._drawn = questions_of(self._figures(), samples, like)
        return judge(self._figures(), samples, like)

    def plots(self, samples: Float[Tensor, "N L M"], like: Clean) -> Iterator[Picture]:
        """Yield heat maps of the first few windows, and how well motifs, accessibility and draws came out."""
        return plot_samples(self._figures(), samples, like, self._labels())

    def data_warnings(self) -> Iterator[str]:
        """Yield what of the data was left out."""
        return self.samples.left_out()

    def export(
        self, samples: Float[Tensor, "N L M"], like: Clean, form: str, folder: Path
    ) -> tuple[list[Path], list[str]]:
        """Write samples in the units of the data, see `write_regions`; `like` is from the method of this name."""
        found = DrawnRegions.of(self.samples, samples, like)
        return write_regions(found, folder, form), [] if found.drawn.any() else ["no value was drawn: all were given"]

    def trajectory_plots(self, path: Float[Tensor, "T N L M"], like: Clean) -> Iterator[Picture]:
        """Yield the way of the first sample back from noise."""
        return plot_trajectory(self._figures(), path, like, self._labels())

    def _labels(self) -> Labels:
        which = {"accessibility": "open"} if self.samples.columns.layout.accessibility == "open" else {}
        behind = [name for group in self.space.groups[1:] for name in BEHIND[which.get(group.name, group.name)]]
        return Labels(self.matrix.motifs, behind, self._places, self._cell)

    def _cell(self, like: Clean, number: int) -> str:
        cells = self.samples.cells
        held = sorted({cells[cell] for cell in self.samples.windows["valid"].cell}) if cells else []
        told = int(like.cond["cell"][number]) if "cell" in like.cond else -1
        return cells[told] if told >= 0 else ", ".join(held[:3])

    def _places(self, like: Clean, number: int) -> list[str]:
        name = self.samples.chromosomes[int(like.cond["chromosome"][number])]
        return [f"{name}:{place:,}" for place in like.cond["centre"][number][like.valid[number]].tolist()]
