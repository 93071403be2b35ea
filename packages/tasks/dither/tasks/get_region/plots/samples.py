"""All plots of samples.

Letters: N samples, T states, L regions of a window, M columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.protocols import Picture
from dither.registry.flow.records import Clean

from ..metrics.column_metrics import is_binary
from ..metrics.region_metrics import RegionMetrics
from ..metrics.sample_metrics import Draws, draw_groups, sampled_mask
from .figures import (
    WindowPicture,
    draw_accessibility,
    draw_imputation,
    draw_motif_scatter,
    draw_trajectory,
    draw_window,
    frequent_motifs,
)

__all__ = ["Labels", "plot_samples", "plot_trajectory"]

PICTURES = 4
"""Windows shown as heat maps."""

TITLES = {
    "open": "open in {cell}",
    "accessibility": "accessibility in {cell}",
    "expression_positive": "expressed, + strand",
    "expression_negative": "expressed, - strand",
}
"""Titles of the columns after the motifs."""


@dataclass(frozen=True)
class Labels:
    """Names of columns; places of regions, such as "chr2:1,234,567", and cell type of a sample, by its number."""

    motifs: Sequence[str]
    extra: Sequence[str]
    places: Callable[[Clean, int], list[str]]
    cell: Callable[[Clean, int], str]

    def titles(self, like: Clean, row: int) -> list[str]:
        """Return the titles of the columns after the motifs."""
        return [TITLES[name].format(cell=self.cell(like, row)) for name in self.extra]


def plot_samples(
    metrics: RegionMetrics, samples: Float[Tensor, "N L M"], like: Clean, labels: Labels
) -> Iterator[Picture]:
    """Yield heat maps of the first windows, and plots of motifs, accessibility and the spread of draws."""
    if not len(samples):
        return
    counted, groups = sampled_mask(samples, like).numpy(), draw_groups(like)
    truth, values = metrics.in_data_units(like.x0), metrics.in_data_units(samples)
    for number, rows in enumerate(groups[:PICTURES]):
        row, count = rows.start, rows.stop - rows.start
        keep, places = like.valid[row].cpu().numpy(), labels.places(like, row)
        sampled = counted[row, keep]
        title = f"{places[0]} to {places[-1]}: {len(places)} regions, values sampled in {sampled.any(1).sum()} of them"
        picture = WindowPicture(
            title=title + (f"; the first of {count} draws" if count > 1 else ""),
            truth=truth[row, keep],
            given=~sampled,
            drawn=values[row, keep],
            places=places,
            motifs=labels.motifs,
            extra=labels.titles(like, row),
        )
        yield Picture(f"window-{number:03d}", png=draw_window(picture))
    first = [rows.start for rows in groups]
    metrics.predictions.add(truth[first], np.stack([values[rows].mean(0) for rows in groups]), counted[first])
    pairs = metrics.predictions.pairs()
    if motifs := frequent_motifs(labels.motifs, pairs[: len(labels.motifs)]):
        yield Picture("motif-scatter", png=draw_motif_scatter(motifs))
    cells = ", ".join(sorted({labels.cell(like, row) for row in first})[:4])
    for name, (true, score) in zip(labels.extra, pairs[len(labels.motifs) :], strict=True):
        if name == "open" and true.size and is_binary(true):
            png = draw_accessibility(true > 0.5, score, cells)
            if png is not None:
                yield Picture("accessibility", png=png)
    draws = Draws.of(truth, values, counted, groups)
    if draws is not None:  # show the last sampled column of the first window with several draws
        rows = next(rows for rows in groups if rows.stop - rows.start > 1 and counted[rows.start].any())
        row = rows.start
        number = int(np.flatnonzero(counted[row].any(0))[-1])
        where = counted[row, :, number]
        name = [*labels.motifs, *labels.titles(like, row)][number]
        places = np.array(labels.places(like, row))[where[like.valid[row].cpu().numpy()]].tolist()
        png = draw_imputation(draws, name, truth[row, where, number], values[rows][:, where, number], places)
        yield Picture("imputation", png=png)


def plot_trajectory(
    metrics: RegionMetrics, path: Float[Tensor, "T N L M"], like: Clean, labels: Labels
) -> Iterator[Picture]:
    """Yield a plot of the trajectory of the first sample."""
    if not path.shape[1]:
        return
    sampled = (sampled_mask(path[-1], like)[0] & like.valid[0, :, None].cpu()).numpy()
    places = labels.places(like, 0)
    states = np.stack([metrics.in_data_units(state[0])[sampled] for state in path])
    title = f"{places[0]} to {places[-1]}: {len(path)} states of a sampler"
    png = draw_trajectory(states, metrics.in_data_units(like.x0[0])[sampled], title)
    if png is not None:
        yield Picture("trajectory", png=png)
