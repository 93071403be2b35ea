"""All pictures of drawn windows.

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

from ..metrics.column_metrics import Pair, binary
from ..metrics.region_metrics import RegionMetrics
from ..metrics.sample_metrics import Draws, drawn, same_windows
from .evaluation import (
    Column,
    MotifPredictions,
    draw_accessibility,
    draw_imputation,
    draw_motif_bars,
    draw_motif_scatter,
)
from .heatmaps import WindowPicture, draw_trajectory, draw_window

__all__ = ["BEHIND", "PICTURES", "Labels", "plot_samples", "plot_trajectory"]

PICTURES = 4
"""Windows that are shown as heat maps."""

BEHIND = {
    "open": ("open in {cell}",),
    "accessibility": ("accessibility in {cell}",),
    "expression": ("expressed, + strand", "expressed, - strand"),
}
"""Names of the columns of a group behind the motifs; "open" are those of accessibility that is 0 or 1."""


@dataclass(frozen=True)
class Labels:
    """What things are called.

    Attributes:
        motifs: Names of the motif columns.
        behind: Names of the columns behind them.
        places: From a batch and the number of a sample to the place of each of its regions, such as "chr2:1,234,567".
        cell: From a batch and the number of a sample to the name of its cell type; "" where none matters.
    """

    motifs: Sequence[str]
    behind: Sequence[str]
    places: Callable[[Clean, int], list[str]]
    cell: Callable[[Clean, int], str]


def plot_samples(
    figures: RegionMetrics, samples: Float[Tensor, "N L M"], like: Clean, labels: Labels
) -> Iterator[Picture]:
    """Yield heat maps of the first few windows, how well motifs and accessibility came out, and what draws are worth.

    Args:
        figures: Fresh; undoes the standardising.
        samples: What was drawn.
        like: What sampling started from; draws of one window stand together.
        labels: What things are called.
    """
    if not len(samples):
        return
    counted, groups = drawn(samples, like).numpy(), same_windows(like)
    truth, plain = figures.plain(like.x0), figures.plain(samples)
    for number, rows in enumerate(groups[:PICTURES]):
        yield Picture(f"window-{number:03d}", png=_window(truth, plain, counted, like, rows, labels))
    first = [rows.start for rows in groups]
    figures.answers.add(truth[first], np.stack([plain[rows].mean(0) for rows in groups]), counted[first])
    pairs = figures.answers.pairs()
    yield from _motifs(pairs, labels)
    cells = sorted({labels.cell(like, row) for row in first})
    yield from _accessibility(pairs[len(labels.motifs) :], labels, ", ".join(cells[:4]))
    draws = Draws.of(truth, plain, counted, groups)
    if draws is not None:
        column = _column(truth, plain, counted, like, groups, labels)
        yield Picture("imputation", png=draw_imputation(draws, column))


def plot_trajectory(
    figures: RegionMetrics, path: Float[Tensor, "T N L M"], like: Clean, labels: Labels
) -> Iterator[Picture]:
    """Yield how the first sample came about."""
    if not path.shape[1]:
        return
    keep = like.valid[0].cpu().numpy()
    asked = drawn(path[-1], like)[0].numpy()[keep]
    places = labels.places(like, 0)
    states = np.stack([figures.plain(state[0])[keep] for state in path])
    truth = figures.plain(like.x0[0])[keep]
    png = draw_trajectory(states, truth, asked, f"{places[0]} to {places[-1]}: {len(path)} states of a sampler")
    if png is not None:
        yield Picture("trajectory", png=png)


def _window(
    truth: Float[np.ndarray, "N L M"],
    plain: Float[np.ndarray, "N L M"],
    counted: Bool[np.ndarray, "N L M"],
    like: Clean,
    rows: slice,
    labels: Labels,
) -> bytes:
    row, count = rows.start, rows.stop - rows.start
    keep, places = like.valid[row].cpu().numpy(), labels.places(like, row)
    asked = counted[row, keep]
    title = f"{places[0]} to {places[-1]}: {len(places)} regions, something was drawn in {asked.any(1).sum()} of them"
    return draw_window(
        WindowPicture(
            title=title + (f"; the first of {count} draws" if count > 1 else ""),
            truth=truth[row, keep],
            given=~asked,
            drawn=plain[row, keep],
            places=places,
            motifs=labels.motifs,
            behind=[name.format(cell=labels.cell(like, row)) for name in labels.behind],
        )
    )


def _motifs(pairs: Sequence[Pair], labels: Labels) -> Iterator[Picture]:
    answers = MotifPredictions.of(labels.motifs, pairs[: len(labels.motifs)])
    if answers.names:
        yield Picture("motif-scatter", png=draw_motif_scatter(answers))
        yield Picture("motif-pearson", png=draw_motif_bars(answers))


def _accessibility(behind: Sequence[Pair], labels: Labels, cells: str) -> Iterator[Picture]:
    for name, (truth, score) in zip(labels.behind, behind, strict=True):
        if name.startswith("open") and truth.size and binary(truth):
            png = draw_accessibility(truth > 0.5, score, cells)
            if png is not None:
                yield Picture("accessibility", png=png)


def _column(
    truth: Float[np.ndarray, "N L M"],
    plain: Float[np.ndarray, "N L M"],
    counted: Bool[np.ndarray, "N L M"],
    like: Clean,
    groups: Sequence[slice],
    labels: Labels,
) -> Column:
    """Choose, of the first window with several draws, the last column that was drawn."""
    rows = next(rows for rows in groups if rows.stop - rows.start > 1 and counted[rows.start].any())
    row = rows.start
    number = int(np.flatnonzero(counted[row].any(0))[-1])
    where = counted[row, :, number]
    names = [*labels.motifs, *(name.format(cell=labels.cell(like, row)) for name in labels.behind)]
    places = np.array(labels.places(like, row))[where[like.valid[row].cpu().numpy()]]
    return Column(names[number], truth[row, where, number], plain[rows][:, where, number], places.tolist())
