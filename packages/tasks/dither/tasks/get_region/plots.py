"""Plots of samples: heat maps of a window and of a trajectory, motifs, accessibility, and the spread of draws.

Letters: N samples or regions (rows), L regions, M columns (motifs, then accessibility and expression), T states, n
pairs.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow.protocols import Picture
from dither.registry.flow.records import Clean

from .metrics.column_metrics import Pair, is_binary, pearson, r2, varies, windows_of
from .metrics.region_metrics import RegionMetrics
from .metrics.sample_metrics import LEVEL, Draws, coverage, draw_groups, draw_metrics, half_width, sampled_mask

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Labels", "draw_attributions", "draw_umap", "plot_samples", "plot_trajectory"]

BLUE: Final = "#1864ab"
"""Predictions."""
ORANGE: Final = "#e8590c"
"""Truth and highlights."""
GREY: Final = "#868e96"
"""References."""
LIGHT: Final = "#dee2e6"
"""Guide lines."""
HEAT: Final[dict[str, Any]] = {"aspect": "auto", "interpolation": "nearest"}
STRIP, WIDE_STRIP = 0.07, 1.5
"""Width of a column after the motifs, as a share of that of a panel; the wider one if no motif was sampled."""
SHOWN, MIN_PAIRS, DOTS = 12, 8, 3000
"""Motifs in the scatter plot, smallest number of pairs of each, and largest number of dots."""
ATTRIBUTED = 30
"""Motifs in the picture of attributions."""
LINES = 48
"""Values shown as lines."""
BINS, REGIONS = 10, 60
"""Groups of elements with similar spread, and the largest number of regions shown."""


def _new_figure(width: float, height: float, title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12)
    return figure


def _bare(axis: Axes, title: str = "", x: str = "", y: str = "") -> Axes:
    """Set a title and labels, and remove most of the frame."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(labelsize=8, color=GREY)
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    return axis


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


@dataclass(frozen=True)
class _Window:
    """Content of the heat maps of a window, in the units of the data; `given` is true for values that were given."""

    title: str
    truth: Float[np.ndarray, "N M"]
    given: Bool[np.ndarray, "N M"]
    drawn: Float[np.ndarray, "N M"]
    places: Sequence[str]
    motifs: Sequence[str]
    extra: Sequence[str] = ()


def _draw_window(picture: _Window) -> bytes:
    """Return a PNG of four heat maps side by side; columns after the motifs are a strip right of each."""
    from matplotlib.colors import ListedColormap

    count, strips = len(picture.motifs), len(picture.extra)
    motifs = picture.truth[:, :count]
    order = np.argsort(-motifs.mean(0), kind="stable")  # the most frequent motifs first
    largest = picture.truth[:, count:].max(0, initial=1.0)  # strips are from 0 to 1
    high = float(np.quantile(motifs[motifs > 0], 0.95)) if (motifs > 0).any() else 1.0
    masked, colours = ~picture.given, ListedColormap(["#e9ecef", "#f08c00"])
    panels: list[tuple[str, Any, Any, Any, float, float, str]] = [
        ("truth", picture.truth, "Blues", "Greens", 0.0, high, "motif score"),
        (f"mask: {masked.mean():.1%} sampled", masked, colours, colours, 0.0, 1.0, "given        sampled"),
        ("sampled and given", picture.drawn, "Blues", "Greens", 0.0, high, "motif score"),
        ("sample minus truth", picture.drawn - picture.truth, "RdBu_r", "RdBu_r", -high, high, "difference"),
    ]
    if (masked == masked[:1]).all():  # whole columns are sampled, so there is nothing to see in a mask
        del panels[1]
    figure = _new_figure(15, 7.0, picture.title)
    share = STRIP if masked[:, :count].any() else WIDE_STRIP
    widths = [1, share * strips] * len(panels) if strips else [1] * len(panels)
    axes = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
    for number, (title, values, colour, strip, low, top, label) in enumerate(panels):
        axis = axes[number * len(widths) // len(panels)]
        image = axis.imshow(values[:, :count][:, order], vmin=low, vmax=top, cmap=colour, **HEAT)
        _bare(axis, title, f"{count} motifs, most frequent first")
        columns = _spread(count, 7 if strips and share == WIDE_STRIP else 16)
        axis.set_xticks(columns, [picture.motifs[order[column]] for column in columns], rotation=90, fontsize=7)
        bar = figure.colorbar(image, ax=axis, location="bottom", shrink=0.8, aspect=30, pad=0.02)
        bar.set_label(label, fontsize=8)
        bar.outline.set_visible(False)
        if colour is colours:
            bar.set_ticks([])
        if strips:
            side = _bare(axes[2 * number + 1])
            extra = values[:, count:] / (1.0 if colour is colours else largest)
            side.imshow(extra, vmin=-1 if low < 0 else 0, vmax=1, cmap=strip, **HEAT)
            side.set_xticks(range(strips), picture.extra, rotation=90, fontsize=7)
    rows = _spread(len(picture.places), 17)
    axes[0].set_yticks(rows, [picture.places[row] for row in rows], fontsize=7)
    axes[0].set_ylabel(f"{len(picture.places)} regions, in genome order", fontsize=9)
    return _png(figure)


def _spread(length: int, number: int) -> list[int]:
    """Return evenly spaced positions, including the first and the last."""
    return sorted({round(position) for position in np.linspace(0, length - 1, min(number, length))})


def _draw_trajectory(path: Float[np.ndarray, "T n"], truth: Float[np.ndarray, " n"], title: str) -> bytes | None:
    """Return a PNG with the sampled values from noise to sample, and their truth; None without any."""
    if not truth.size or len(path) < 2:
        return None
    order = np.argsort(-truth, kind="stable")
    path, truth = path[:, order], truth[order]
    figure = _new_figure(12, 6.4, title)
    above, true, below = figure.subplots(3, 1, height_ratios=[3, 0.3, 2])
    low, high = float(truth.min()), float(truth.max())
    options: dict[str, Any] = {"vmin": low, "vmax": high, "cmap": "viridis", **HEAT}
    _bare(above, "from noise (top) to sample (bottom)", y="state").imshow(path, **options)
    above.set_xticks([])
    above.locator_params(axis="y", integer=True)
    _bare(true, x="sampled values, by decreasing truth").imshow(truth[None], **options)
    true.set_yticks([0], ["truth"])
    true.set_xticks([])
    _bare(below, "trajectories of values; orange: truth above the middle of its range", "state", "value")
    for place in range(0, len(truth), -(-len(truth) // LINES)):
        is_high = truth[place] > (low + high) / 2
        below.plot(path[:, place], color=ORANGE if is_high else GREY, alpha=0.6 if is_high else 0.3, linewidth=1)
    below.locator_params(axis="x", integer=True)
    return _png(figure)


def _frequent_motifs(names: Sequence[str], pairs: Sequence[Pair]) -> list[tuple[str, Pair]]:
    """Return the most frequent motifs whose truth varies, with enough pairs for a correlation."""
    motifs = [
        (name, pair)
        for name, pair in zip(names, pairs, strict=True)
        if len(pair[0]) >= MIN_PAIRS and varies(pair[0]) and np.isfinite(pair[1]).all()
    ]
    return sorted(motifs, key=lambda motif: -np.count_nonzero(motif[1][0]) / len(motif[1][0]))[:SHOWN]


def _draw_motif_scatter(motifs: Sequence[tuple[str, Pair]]) -> bytes:
    """Return a PNG: truth against prediction of motifs."""
    columns = min(4, len(motifs))
    rows = -(-len(motifs) // columns)
    figure = _new_figure(3.1 * columns, 2.9 * rows + 0.5, f"The {len(motifs)} most frequent motifs")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(motifs) :]:
        axis.set_visible(False)
    for axis, (name, (truth, guess)) in zip(axes, motifs, strict=False):
        title = f"{name}:  r = {pearson(truth, guess):z.2f}, R² = {r2(truth, guess):z.2f}"
        _bare(axis, title, "truth", "prediction")
        low, high = min(0.0, float(truth.min()), float(guess.min())), max(float(truth.max()), float(guess.max()))
        axis.plot([low, high], [low, high], color=LIGHT, zorder=0)
        step = -(-len(truth) // DOTS)
        axis.scatter(truth[::step], guess[::step], s=9, color=BLUE, alpha=0.35, linewidths=0)
    return _png(figure)


def _draw_accessibility(metrics: RegionMetrics, where: str) -> bytes | None:
    """Return a PNG of the ROC and precision-recall curves of accessibility, with the areas that `metrics` reports."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    values, place = metrics.values or metrics.compute(), metrics.groups[1].start
    if "accessibility_auc" not in values:
        return None
    truth, score = metrics.predictions.pairs()[place]
    truth = truth > 0.5
    share = float(truth.mean())

    def area(name: str) -> str:
        half = values.get(f"accessibility_{name}_ci95")
        return f"{values[f'accessibility_{name}']:.3f}" + ("" if half is None else f" +- {half:.3f}")

    figure = _new_figure(9, 4.2, f"{where}: {truth.sum():,} of {truth.size:,} regions are open")
    roc, recall = figure.subplots(1, 2)
    false, true, _ = roc_curve(truth, score)
    title = f"ROC: area {area('auc')}, random .5"
    _bare(roc, title, "false positive rate", "true positive rate").plot([0, 1], [0, 1], color=LIGHT)
    roc.plot(false, true, color=BLUE)
    precision, sensitivity, _ = precision_recall_curve(truth, score)
    title = f"precision: average {area('auprc')}, random {share:.3f}"
    _bare(recall, title, "recall", "precision").axhline(share, color=LIGHT)
    recall.plot(sensitivity, precision, color=BLUE)
    recall.set(ylim=(0, 1.02))
    return _png(figure)


def _draw_imputation(
    draws: Draws, name: str, truth: Float[np.ndarray, " L"], values: Float[np.ndarray, "K L"], places: Sequence[str]
) -> bytes:
    """Return a PNG: one column of a window with its intervals, and the calibration of all draws."""
    metrics, binary = draw_metrics(draws), is_binary(draws.truth)
    summary = f"spread by error {metrics.get('spread_skill', 0.0):.2f} (1 is calibrated)"
    if not binary:
        summary = f"{metrics['draw_coverage_90']:.1%} of the truths are inside the {LEVEL:.0%} interval, {summary}"
    figure = _new_figure(12, 7.2, f"{draws.count} draws of each window, {draws.truth.size:,} values: {summary}")
    above, below = figure.subplots(2, 1, height_ratios=[1, 1.25])
    _draw_column(_bare(above, y=name), truth[:REGIONS], values[:, :REGIONS], places, binary)
    _bare(below, "calibration").plot([0, 1], [0, 1], color=LIGHT)
    if binary:
        group = np.minimum((draws.above * BINS).astype(int), BINS - 1)
        groups = [rows for number in range(BINS) if (rows := np.flatnonzero(group == number)).size]
        shares = [draws.above[rows].mean() for rows in groups]
        below.plot(shares, [draws.truth[rows].mean() for rows in groups], color=BLUE, marker="o")
        below.set(xlabel="share of draws above 1/2", ylabel="share of truths that are 1")
    else:
        levels = np.linspace(0.05, 0.95, 19)
        below.plot(levels, [coverage(draws, level) for level in levels], color=BLUE, marker=".")
        below.set(xlabel="level of the interval", ylabel="share of truths inside")
    return _png(figure)


def _draw_column(
    axis: Axes, truth: Float[np.ndarray, " L"], draws: Float[np.ndarray, "K L"], places: Sequence[str], binary: bool
) -> None:
    place, middle = np.arange(truth.size), draws.mean(0)
    half = half_width(len(draws), LEVEL) * draws.std(0, ddof=1)
    if not binary:
        label = f"{LEVEL:.0%} interval"
        axis.vlines(place, middle - half, middle + half, color=LIGHT, linewidth=5, zorder=0, label=label)
    axis.scatter(np.tile(place, len(draws)), draws, s=5, color=BLUE, alpha=0.35, linewidths=0, label="draws")
    axis.scatter(place, middle, s=26, color=BLUE, marker="_", label="their mean")
    axis.scatter(place, truth, s=22, color=ORANGE, marker="x", linewidths=1.2, label="truth")
    step = max(1, truth.size // 12)
    axis.set_xticks(place[::step], places[: truth.size : step], rotation=20, fontsize=7, ha="right")
    axis.set_xlim(-1, truth.size)
    axis.legend(fontsize=8, frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))


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
    metrics: RegionMetrics,
    samples: Float[Tensor, "N L M"],
    like: Clean,
    labels: Labels,
    evaluated: RegionMetrics | None,
) -> Iterator[Picture]:
    """Yield heat maps of the first windows, and plots of motifs, accessibility and the spread of draws.

    Curves of accessibility are those of the latest evaluation, if any; with several draws of a window, of their mean.
    """
    if not len(samples):
        return
    counted, groups = sampled_mask(samples, like).numpy(), draw_groups(like)
    truth, values = metrics.in_data_units(like.x0), metrics.in_data_units(samples)
    for number, rows in enumerate(groups[:PICTURES]):
        row, count = rows.start, rows.stop - rows.start
        keep, places = like.valid[row].cpu().numpy(), labels.places(like, row)
        sampled = counted[row, keep]
        title = f"{places[0]} to {places[-1]}: {len(places)} regions, values sampled in {sampled.any(1).sum()} of them"
        picture = _Window(
            title=title + (f"; the first of {count} draws" if count > 1 else ""),
            truth=truth[row, keep],
            given=~sampled,
            drawn=values[row, keep],
            places=places,
            motifs=labels.motifs,
            extra=labels.titles(like, row),
        )
        yield Picture(f"window-{number:03d}", png=_draw_window(picture))
    first = [rows.start for rows in groups]
    starts = windows_of(like.apply(lambda value: value[first]))
    metrics.predictions.add(truth[first], np.stack([values[rows].mean(0) for rows in groups]), counted[first], starts)
    pairs = metrics.predictions.pairs()
    if motifs := _frequent_motifs(labels.motifs, pairs[: len(labels.motifs)]):
        yield Picture("motif-scatter", png=_draw_motif_scatter(motifs))
    cells = ", ".join(sorted({labels.cell(like, row) for row in first})[:4])
    draws = Draws.of(truth, values, counted, groups)
    shown, of = (metrics, "sampled") if evaluated is None or draws is not None else (evaluated, "evaluated")
    if "open" in labels.extra and counted.any() and (png := _draw_accessibility(shown, f"{cells}, {of}")) is not None:
        yield Picture("accessibility", png=png)
    if draws is not None:  # show the last sampled column of the first window with several draws
        rows = next(rows for rows in groups if rows.stop - rows.start > 1 and counted[rows.start].any())
        row = rows.start
        number = int(np.flatnonzero(counted[row].any(0))[-1])
        where = counted[row, :, number]
        name = [*labels.motifs, *labels.titles(like, row)][number]
        places = np.array(labels.places(like, row))[where[like.valid[row].cpu().numpy()]].tolist()
        png = _draw_imputation(draws, name, truth[row, where, number], values[rows][:, where, number], places)
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
    png = _draw_trajectory(states, metrics.in_data_units(like.x0[0])[sampled], title)
    if png is not None:
        yield Picture("trajectory", png=png)


def draw_attributions(values: Float[np.ndarray, "K M"], titles: Sequence[str], motifs: Sequence[str]) -> bytes:
    """Return a PNG: the attributions of the strongest motifs to each column of a cell type."""
    order = np.argsort(-np.abs(values).max(0), kind="stable")[:ATTRIBUTED]
    order = order[np.argsort(-values[0, order], kind="stable")]
    high = float(np.abs(values).max()) or 1.0
    figure = _new_figure(3.2 + 0.6 * len(values), 1.8 + 0.19 * len(order), "Gradient x input, mean over regions")
    axis = _bare(figure.subplots())
    image = axis.imshow(values[:, order].T, vmin=-high, vmax=high, cmap="RdBu_r", **HEAT)
    axis.set_xticks(range(len(titles)), titles, rotation=45, fontsize=8, ha="right")
    axis.set_yticks(range(len(order)), [motifs[column] for column in order], fontsize=7)
    figure.colorbar(image, ax=axis, shrink=0.6).outline.set_visible(False)
    return _png(figure)


def draw_umap(embeddings: Float[np.ndarray, "N D"]) -> bytes | None:
    """Return a PNG of embeddings in two dimensions; None if umap-learn is not installed."""
    try:
        from umap import UMAP  # type: ignore[import-not-found]
    except ImportError:
        return None
    figure = _new_figure(6, 6, f"UMAP of {len(embeddings):,} regions")
    flat = UMAP(random_state=0).fit_transform(embeddings)
    _bare(figure.subplots(), x="1", y="2").scatter(flat[:, 0], flat[:, 1], s=2, color=BLUE, alpha=0.4, linewidths=0)
    return _png(figure)
