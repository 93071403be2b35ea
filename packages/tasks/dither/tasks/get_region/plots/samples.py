"""All plots of samples.

Letters: N samples, T states, L regions of a window, M columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow.protocols import Picture
from dither.registry.flow.records import Clean

from ..metrics.column_metrics import Pair, is_binary
from ..metrics.region_metrics import RegionMetrics
from ..metrics.sample_metrics import Draws, draw_groups, sampled_mask
from .evaluation import (
    Column,
    MotifPredictions,
    draw_accessibility,
    draw_imputation,
    draw_motif_bars,
    draw_motif_scatter,
)
from .heatmaps import WindowPicture, draw_trajectory, draw_window

__all__ = ["PICTURES", "Labels", "plot_samples", "plot_trajectory"]

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
    """Names of columns, places and cell types.

    Attributes:
        motifs: Names of the motif columns.
        extra: Names of the columns after them; see `extra_columns`.
        places: Returns the places of the regions of a sample, such as "chr2:1,234,567", given batch and number.
        cell: Returns the cell type of a sample, given batch and number; "" if none matters.
    """

    motifs: Sequence[str]
    extra: Sequence[str]
    places: Callable[[Clean, int], list[str]]
    cell: Callable[[Clean, int], str]


def plot_samples(
    metrics: RegionMetrics, samples: Float[Tensor, "N L M"], like: Clean, labels: Labels
) -> Iterator[Picture]:
    """Yield heat maps of the first windows, and plots of motifs, accessibility and the spread of draws.

    Args:
        metrics: New accumulator; inverts the standardisation.
        samples: The samples.
        like: What sampling started from; draws of one window are adjacent.
        labels: Names.
    """
    if not len(samples):
        return
    counted, groups = sampled_mask(samples, like).numpy(), draw_groups(like)
    truth, values = metrics.in_data_units(like.x0), metrics.in_data_units(samples)
    for number, rows in enumerate(groups[:PICTURES]):
        yield Picture(f"window-{number:03d}", png=_window(truth, values, counted, like, rows, labels))
    first = [rows.start for rows in groups]
    metrics.predictions.add(truth[first], np.stack([values[rows].mean(0) for rows in groups]), counted[first])
    pairs = metrics.predictions.pairs()
    yield from _motifs(pairs, labels)
    cells = sorted({labels.cell(like, row) for row in first})
    yield from _accessibility(pairs[len(labels.motifs) :], labels, ", ".join(cells[:4]))
    draws = Draws.of(truth, values, counted, groups)
    if draws is not None:
        column = _column(truth, values, counted, like, groups, labels)
        yield Picture("imputation", png=draw_imputation(draws, column))


def plot_trajectory(
    metrics: RegionMetrics, path: Float[Tensor, "T N L M"], like: Clean, labels: Labels
) -> Iterator[Picture]:
    """Yield a plot of the trajectory of the first sample."""
    if not path.shape[1]:
        return
    keep = like.valid[0].cpu().numpy()
    sampled = sampled_mask(path[-1], like)[0].numpy()[keep]
    places = labels.places(like, 0)
    states = np.stack([metrics.in_data_units(state[0])[keep] for state in path])
    truth = metrics.in_data_units(like.x0[0])[keep]
    png = draw_trajectory(states, truth, sampled, f"{places[0]} to {places[-1]}: {len(path)} states of a sampler")
    if png is not None:
        yield Picture("trajectory", png=png)


def _window(
    truth: Float[np.ndarray, "N L M"],
    values: Float[np.ndarray, "N L M"],
    counted: Bool[np.ndarray, "N L M"],
    like: Clean,
    rows: slice,
    labels: Labels,
) -> bytes:
    row, count = rows.start, rows.stop - rows.start
    keep, places = like.valid[row].cpu().numpy(), labels.places(like, row)
    sampled = counted[row, keep]
    title = f"{places[0]} to {places[-1]}: {len(places)} regions, values sampled in {sampled.any(1).sum()} of them"
    return draw_window(
        WindowPicture(
            title=title + (f"; the first of {count} draws" if count > 1 else ""),
            truth=truth[row, keep],
            given=~sampled,
            drawn=values[row, keep],
            places=places,
            motifs=labels.motifs,
            extra=[TITLES[name].format(cell=labels.cell(like, row)) for name in labels.extra],
        )
    )


def _motifs(pairs: Sequence[Pair], labels: Labels) -> Iterator[Picture]:
    predictions = MotifPredictions.of(labels.motifs, pairs[: len(labels.motifs)])
    if predictions.names:
        yield Picture("motif-scatter", png=draw_motif_scatter(predictions))
        yield Picture("motif-pearson", png=draw_motif_bars(predictions))


def _accessibility(pairs: Sequence[Pair], labels: Labels, cells: str) -> Iterator[Picture]:
    for name, (truth, score) in zip(labels.extra, pairs, strict=True):
        if name == "open" and truth.size and is_binary(truth):
            png = draw_accessibility(truth > 0.5, score, cells)
            if png is not None:
                yield Picture("accessibility", png=png)


def _column(
    truth: Float[np.ndarray, "N L M"],
    values: Float[np.ndarray, "N L M"],
    counted: Bool[np.ndarray, "N L M"],
    like: Clean,
    groups: Sequence[slice],
    labels: Labels,
) -> Column:
    """Return the last sampled column of the first window with several draws."""
    rows = next(rows for rows in groups if rows.stop - rows.start > 1 and counted[rows.start].any())
    row = rows.start
    number = int(np.flatnonzero(counted[row].any(0))[-1])
    where = counted[row, :, number]
    names = [*labels.motifs, *(TITLES[name].format(cell=labels.cell(like, row)) for name in labels.extra)]
    places = np.array(labels.places(like, row))[where[like.valid[row].cpu().numpy()]]
    return Column(names[number], truth[row, where, number], values[rows][:, where, number], places.tolist())
