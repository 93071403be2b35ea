"""Plots of samples: heat maps of a window, tracks, scatter plots, curves, calibration.

Letters: N samples or regions (rows), L regions, K draws, M columns (motifs, then accessibility and
expression), T states, n pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy import ndarray
from torch import Tensor

from dither.registry.contracts.protocols import Picture
from dither.registry.contracts.records import Clean

from ..plot_style import BLUE, GREY, LIGHT, ORANGE, bare, new_figure, to_picture
from .metrics.column_metrics import Pair, is_binary, pearson, varies
from .metrics.region_metrics import RegionMetrics
from .metrics.sample_metrics import (
    LEVEL,
    Draws,
    coverage,
    draw_groups,
    draw_metrics,
    half_width,
    sampled_batch,
    sampled_mask,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

__all__ = ["Labels", "draw_attributions", "draw_umap", "plot_samples"]

_Window = Float[ndarray, "L M"]
_Vector = Float[ndarray, " n"]
_Mask = Bool[ndarray, "L M"]

HEAT: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
STRIP = 0.16
WIDE_STRIP = 0.5
"""Width of a column after the motifs, as a share of that of the motifs; the wider one if no motif
was sampled."""
SHOWN = 12
MIN_PAIRS = 8
DOTS = 3000
"""Columns in the scatter plot, smallest number of pairs of each, and largest number of dots."""
ATTRIBUTED = 30
"""Motifs in the picture of attributions."""
BINS = 10
"""Groups of elements with similar spread."""
TRACKS = 3
"""Largest number of columns shown as tracks."""


@dataclass(frozen=True)
class _Panel:
    """A heat map of all columns of a window; `label` is that of the colours of motifs."""

    name: str
    values: Shaped[ndarray, "L M"]
    label: str = "motif score"
    is_mask: bool = False
    is_difference: bool = False


def _draw_window(
    title: str,
    truth: _Window,
    masked: _Mask,
    drawn: _Window,
    places: Sequence[str],
    motifs: Sequence[str],
    extra: Sequence[str],
) -> Figure:
    """Return heat maps: truth, mask unless all regions have the same, sample, difference.

    Motifs, and each column after them, are parts of their own.
    """
    count = len(motifs)
    # The most frequent motifs come first.
    order = np.argsort(-truth[:, :count].mean(0), kind="stable")
    parts: list[Any] = [order, *([column] for column in range(count, truth.shape[1]))]
    # A few large motif scores must not leave the others white.
    positive = truth[:, :count][truth[:, :count] > 0]
    largest = [float(np.quantile(positive, 0.95)) if positive.size else 1.0]
    largest += [float(column.max()) or 1.0 for column in truth[:, count:].T]

    # Parts of which nothing was sampled are shown once.
    sampled = [bool(masked[:, part].any()) for part in parts]
    panels = _panels(truth, masked, drawn)
    shown = [(panels[0], number) for number in range(len(parts))]
    for panel in panels[1:]:
        shown += [(panel, number) for number in np.flatnonzero(sampled).tolist()]

    strip = STRIP if sampled[0] else WIDE_STRIP
    widths = [strip if number else 1 for _, number in shown]
    figure = new_figure(15, 7.0, title)
    # Regions are shared by all panels, so that rows can be compared across them.
    axes = figure.subplots(
        1, len(shown), sharey=True, width_ratios=widths, squeeze=False
    )[0]
    before = None
    for axis, (panel, number) in zip(axes, shown, strict=True):
        bar = _draw_panel(
            figure=figure,
            axis=axis,
            panel=panel,
            columns=parts[number],
            high=largest[number],
            is_strip=number > 0,
        )
        # One title a panel, above its first part, and ticks of regions on the left only.
        title = "" if panel is before else panel.name
        bare(axis, title).tick_params(left=before is None)
        before = panel
        if number:
            name = extra[number - 1]
            axis.set_xticks([0], [name], rotation=90, fontsize=7)
            # Strips are too narrow for the name of the cell type.
            label = panel.label
            if not panel.is_difference:
                label = name.partition(" in ")[0]

            if not panel.is_mask:
                bar.set_label(label, fontsize=7)
            continue
        columns = _spread(count, 16 if sampled[0] else 24)
        names = [motifs[order[column]] for column in columns]
        axis.set_xticks(columns, names, rotation=90, fontsize=7)
        axis.set_xlabel(f"{count} motifs, most frequent first", fontsize=9)
        bar.set_label(panel.label, fontsize=8)

    rows = _spread(len(places), 17)
    axes[0].set_yticks(rows, [places[row] for row in rows], fontsize=7)
    axes[0].set_ylabel(f"{len(places)} regions, in genome order", fontsize=9)
    return figure


def _panels(
    truth: _Window,
    masked: _Mask,
    drawn: _Window,
) -> list[_Panel]:
    panels = [_Panel("truth", truth)]
    if (masked != masked[:1]).any():
        name = f"mask: {masked.mean():.1%} sampled"
        panels.append(_Panel(name, masked, "given        sampled", is_mask=True))
    panels.append(_Panel("sampled and given", drawn))
    difference = drawn - truth
    panels.append(
        _Panel("sample minus truth", difference, "difference", is_difference=True)
    )
    return panels


def _draw_panel(
    figure: Figure,
    axis: Axes,
    panel: _Panel,
    columns: Any,
    high: float,
    *,
    is_strip: bool,
) -> Colorbar:
    """Draw columns of a panel, with a colour bar below them."""
    from matplotlib.colors import ListedColormap

    low = 0.0
    colours: Any = "Greens" if is_strip else "Blues"
    if panel.is_mask:
        high = 1.0
        colours = ListedColormap(["#e9ecef", "#f08c00"])
    elif panel.is_difference:
        low = -high
        colours = "RdBu_r"
    image = axis.imshow(
        panel.values[:, columns], vmin=low, vmax=high, cmap=colours, **HEAT
    )
    bar = figure.colorbar(
        image,
        ax=axis,
        location="bottom",
        shrink=0.8,
        aspect=8 if is_strip else 30,
        pad=0.02,
    )
    bar.outline.set_visible(False)
    if panel.is_mask:
        bar.set_ticks([])
    else:
        bar.set_ticks([low, high], labels=[f"{low:.2g}", f"{high:.2g}"])
    bar.ax.tick_params(labelsize=7)
    return bar


def _spread(length: int, number: int) -> list[int]:
    """Return evenly spaced positions, including the first and the last."""
    positions = np.linspace(0, length - 1, min(number, length))
    return sorted({round(position) for position in positions})


def _quantitative(
    names: Sequence[str], pairs: Sequence[Pair], motifs: int
) -> list[tuple[str, Pair]]:
    """Return quantitative columns after the motifs, then the most frequent motifs."""
    extra = []
    frequent = []
    for column, (name, (truth, guess)) in enumerate(zip(names, pairs, strict=True)):
        # Others have no correlation.
        if len(truth) < MIN_PAIRS or not varies(truth) or not np.isfinite(guess).all():
            continue
        share = np.count_nonzero(truth) / len(truth)
        if column < motifs:
            frequent.append((share, name, (truth, guess)))
        elif not is_binary(truth):
            extra.append((share, name, (truth, guess)))
    columns = []
    for part in (extra, frequent):
        part.sort(key=lambda column: -column[0])
        columns += [(name, pair) for _, name, pair in part]
    return columns[:SHOWN]


def _draw_scatter(columns: Sequence[tuple[str, Pair]]) -> Figure:
    """Return predictions against the truth of columns."""
    from sklearn.metrics import r2_score

    width = min(4, len(columns))
    rows = -(-len(columns) // width)
    size = (3.1 * width, 2.9 * rows + 0.5)
    figure = new_figure(*size, "Predicted and observed values")
    axes = figure.subplots(rows, width, squeeze=False).ravel()
    for axis in axes[len(columns) :]:
        axis.remove()
    for axis, (name, (truth, guess)) in zip(axes, columns, strict=False):
        r = pearson(truth, guess)
        r2 = r2_score(truth, guess)
        bare(
            axis=axis,
            title=f"{name}\nr = {r:z.2f}, R² = {r2:z.2f}",
            x="observed",
            y="predicted",
        )
        # The diagonal, on which predictions are right.
        ends = [min(0.0, truth.min(), guess.min()), max(truth.max(), guess.max())]
        axis.plot(ends, ends, color=LIGHT, zorder=0)
        step = -(-len(truth) // DOTS)
        dot: dict[str, Any] = {"s": 9, "color": BLUE, "alpha": 0.35, "linewidths": 0}
        axis.scatter(truth[::step], guess[::step], **dot)
    return figure


def _draw_accessibility(metrics: RegionMetrics, where: str) -> Figure | None:
    """Return the ROC and precision-recall curves of accessibility, with their areas."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    # An evaluation has computed them, accumulated samples have not.
    values = metrics.values or metrics.compute()
    place = metrics.groups[1].start
    if "accessibility_auc" not in values:
        return None
    truth, score = metrics.predictions.pairs()[place]
    truth = truth > 0.5
    # The precision of a random order.
    share = float(truth.mean())

    def area(name: str) -> str:
        half = values.get(f"accessibility_{name}_ci95")
        text = f"{values[f'accessibility_{name}']:.3f}"

        if half is None:
            return text
        return f"{text} +- {half:.3f}"

    figure = new_figure(
        9, 4.2, f"{where}: {truth.sum():,} of {truth.size:,} regions are open"
    )
    roc, recall = figure.subplots(1, 2)
    false, true, _ = roc_curve(truth, score)
    title = f"ROC: area {area('auc')}, random .5"
    bare(
        axis=roc,
        title=title,
        x="false positive rate",
        y="true positive rate",
    ).plot([0, 1], [0, 1], color=LIGHT)
    roc.plot(false, true, color=BLUE)
    precision, sensitivity, _ = precision_recall_curve(truth, score)
    title = f"precision: average {area('auprc')}, random {share:.3f}"
    bare(
        axis=recall,
        title=title,
        x="recall",
        y="precision",
    ).axhline(share, color=LIGHT)
    recall.plot(sensitivity, precision, color=BLUE)
    recall.set(ylim=(0, 1.02))
    return figure


def _draw_calibration(draws: Draws) -> Figure:
    """Return the calibration of several draws of each window."""
    metrics = draw_metrics(draws)
    binary = is_binary(draws.truth)
    summary = (
        f"spread by error {metrics.get('spread_skill', 0.0):.2f} (1 is calibrated)"
    )
    if not binary:
        inside = f"{metrics['draw_coverage_90']:.1%} of the truths are inside"
        summary = f"{inside} the {LEVEL:.0%} interval, {summary}"
    title = f"{draws.count} draws of each window, {draws.truth.size:,} values"
    figure = new_figure(8, 5, f"{title}\n{summary}")
    axis = bare(figure.subplots())
    axis.plot([0, 1], [0, 1], color=LIGHT)
    if binary:
        # A share of 1 belongs to the last group.
        bins = np.minimum((draws.above * BINS).astype(int), BINS - 1)
        groups = [bins == number for number in np.unique(bins)]
        expected = [draws.above[rows].mean() for rows in groups]
        observed = [draws.truth[rows].mean() for rows in groups]
        axis.plot(expected, observed, color=BLUE, marker="o")
        axis.set(xlabel="share of draws above 1/2", ylabel="share of truths that are 1")
    else:
        # The interval of level 1 is infinite.
        levels = np.linspace(0.05, 0.95, 19)
        observed = [coverage(draws, level) for level in levels]
        axis.plot(levels, observed, color=BLUE, marker=".")
        axis.set(xlabel="level of the interval", ylabel="share of truths inside")
    return figure


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
    """Names of columns; places of regions, such as "chr2:1,234,567", and the cell of a sample."""

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
    """Yield heat maps of the first windows, and plots of columns and of the spread of draws.

    Curves of accessibility are those of the latest evaluation, if any; with several draws of a
    window, of their mean.
    """
    if not len(samples):
        return
    counted = sampled_mask(samples, like).numpy()
    groups = draw_groups(like)
    truth = metrics.in_data_units(like.x0)
    values = metrics.in_data_units(samples)
    for number, rows in enumerate(groups[:PICTURES]):
        row = rows.start
        keep = like.valid[row].cpu().numpy()
        sampled = counted[row, keep]
        places = labels.places(like, row)
        title = f"{places[0]} to {places[-1]}: {len(places)} regions, "
        title += f"values sampled in {sampled.any(1).sum()} of them"
        count = rows.stop - rows.start
        if count > 1:
            title += f"; the first of {count} draws"
        figure = _draw_window(
            title=title,
            truth=truth[row, keep],
            masked=sampled,
            drawn=values[row, keep],
            places=places,
            motifs=labels.motifs,
            extra=labels.titles(like, row),
        )
        yield to_picture(f"window-{number:03d}", figure)

    # Several draws of a window count as one prediction: their mean.
    metrics.add(sampled_batch(metrics, samples, like))
    pairs = metrics.predictions.pairs()
    names = [*labels.motifs, *labels.extra]
    if columns := _quantitative(names, pairs, len(labels.motifs)):
        yield to_picture("scatter", _draw_scatter(columns))

    draws = Draws.of(truth, values, counted, groups)
    if "open" in labels.extra and counted.any():
        names = sorted({labels.cell(like, rows.start) for rows in groups})
        cells = ", ".join(names[:4])
        if evaluated is None or draws is not None:
            curves = _draw_accessibility(metrics, f"{cells}, sampled")
        else:
            curves = _draw_accessibility(evaluated, f"{cells}, evaluated")
        if curves is not None:
            yield to_picture("accessibility", curves)
    if draws is not None:
        yield to_picture("calibration", _draw_calibration(draws))
    if counted[0].any():
        figure = _draw_tracks(
            like=like,
            truth=truth[0],
            draws=values[groups[0]],
            counted=counted[0],
            labels=labels,
        )
        yield to_picture("tracks", figure)


def _draw_tracks(
    like: Clean,
    truth: _Window,
    draws: Float[ndarray, "K L M"],
    counted: _Mask,
    labels: Labels,
) -> Figure:
    """Return the first window over the genome: columns after the motifs, or a motif."""
    names = [*labels.motifs, *labels.titles(like, 0)]
    places = labels.places(like, 0)
    # In million bases, as genome browsers show it.
    x = like.cond["centre"][0].cpu().numpy() / 1e6
    sites = x[:0]
    if "tss" in like.cond:
        sites = x[like.cond["tss"][0].cpu().numpy() > 0]
    sampled = np.flatnonzero(counted.any(0))
    shown = sampled[sampled >= len(labels.motifs)][:TRACKS]
    if not len(shown):
        # The most frequent motif, if no other column was sampled.
        shown = sampled[[np.argmax(truth[:, sampled].mean(0))]]

    figure = new_figure(13, 0.8 + 2.9 * len(shown), f"{places[0]} to {places[-1]}")
    heights = [2, 1] * len(shown)
    axes = figure.subplots(
        len(heights), 1, sharex=True, height_ratios=heights, squeeze=False
    )[:, 0]
    for values, errors, column in zip(
        axes[::2], axes[1::2], shown.tolist(), strict=True
    ):
        where = counted[:, column]
        true = truth[where, column]
        bare(values, y=names[column])
        mean = _draw_track(
            axis=values,
            place=x[where],
            truth=true,
            draws=draws[:, where, column],
        )
        if len(sites):
            values.scatter(
                sites,
                np.full(len(sites), values.get_ylim()[0]),
                s=20,
                color="black",
                marker="^",
                label="transcription start",
            )
        # Above the axes, where it hides no values.
        values.legend(
            fontsize=8,
            frameon=False,
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=4,
        )
        bare(errors, y="error").axhline(0, color=LIGHT, zorder=0)
        errors.vlines(x[where], 0, mean - true, color=BLUE, linewidth=1.5)
    axes[-1].set_xlabel("position on the chromosome, in million bases", fontsize=9)
    return figure


def _draw_track(
    axis: Axes,
    place: _Vector,
    truth: _Vector,
    draws: Float[ndarray, "K n"],
) -> _Vector:
    """Draw truth, mean and interval of the draws at places of regions; return the mean."""
    count = len(draws)
    mean: _Vector = draws.mean(0)
    label = "prediction"
    if count > 1:
        label = f"mean of {count} draws"
        if not is_binary(truth):
            half = half_width(count, LEVEL) * draws.std(0, ddof=1)
            line: dict[str, Any] = {"color": LIGHT, "linewidth": 4, "zorder": 0}
            interval = f"{LEVEL:.0%} interval"
            axis.vlines(place, mean - half, mean + half, label=interval, **line)
    axis.vlines(place, mean, truth, color=GREY, linewidth=0.5, zorder=1)
    cross: dict[str, Any] = {"s": 18, "color": ORANGE, "marker": "x", "linewidths": 1.2}
    axis.scatter(place, truth, label="truth", **cross)
    axis.scatter(place, mean, s=12, color=BLUE, linewidths=0, label=label)
    return mean


def draw_attributions(
    values: Float[ndarray, "K M"], titles: Sequence[str], motifs: Sequence[str]
) -> Figure:
    """Return the attributions of the strongest motifs to each column of a cell type."""
    # The strongest in any column, sorted by the first.
    strength = np.abs(values).max(0)
    order = np.argsort(-strength, kind="stable")[:ATTRIBUTED]
    order = order[np.argsort(-values[0, order], kind="stable")]

    width = 3.2 + 0.6 * len(values)
    height = 1.8 + 0.19 * len(order)
    figure = new_figure(width, height, "Gradient x input, mean over regions")
    axis = bare(figure.subplots())
    # White is 0.
    high = float(strength.max()) or 1.0
    image = axis.imshow(
        values[:, order].T, vmin=-high, vmax=high, cmap="RdBu_r", **HEAT
    )
    axis.set_xticks(range(len(titles)), titles, rotation=45, fontsize=8, ha="right")
    names = [motifs[column] for column in order]
    axis.set_yticks(range(len(order)), names, fontsize=7)
    _add_colorbar(figure, axis, image, "gradient x input")
    return figure


def draw_umap(
    embeddings: Float[ndarray, "N D"],
    label: str = "",
    values: Shaped[ndarray, " N"] | None = None,
) -> Figure:
    """Plot embeddings in two dimensions, coloured by a name or number of each."""
    from matplotlib import colormaps
    from umap import UMAP

    figure = new_figure(7, 6, f"UMAP of {len(embeddings):,} embeddings")
    axis = bare(figure.subplots(), x="1", y="2")
    # With a seed UMAP runs in one thread, and warns without n_jobs=1.
    flat = UMAP(n_jobs=1, random_state=0).fit_transform(embeddings)
    # In random order, so that no group covers another. Dots would be large files as vectors.
    order = np.random.default_rng(0).permutation(len(flat))
    x, y = flat[order].T
    dots: dict[str, Any] = {"s": 3, "alpha": 0.5, "linewidths": 0, "rasterized": True}
    if values is None:
        axis.scatter(x, y, color=BLUE, **dots)
        return figure

    if values.dtype.kind == "U":
        colour_of = _colours_of_names(values.tolist())
        colours = [colour_of[name] for name in values[order].tolist()]
        axis.scatter(x, y, c=colours, **dots)
        for name, colour in colour_of.items():
            axis.scatter([], [], color=colour, label=name)
        axis.legend(
            title=label,
            fontsize=8,
            frameon=False,
            loc="center left",
            bbox_to_anchor=(1, 0.5),
        )
        return figure

    # Unknown values are grey.
    shown = colormaps["viridis"].with_extremes(bad=LIGHT)
    image = axis.scatter(x, y, c=values[order], cmap=shown, plotnonfinite=True, **dots)
    _add_colorbar(figure, axis, image, label)
    return figure


def _colours_of_names(values: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Return a colour of each name, in the order of the first uses."""
    from matplotlib import colormaps

    names = [*dict.fromkeys(values)]
    palette = colormaps["tab10"](range(10))
    if len(names) > len(palette):
        palette = colormaps["turbo"](np.linspace(0, 1, len(names)))
    return {name: tuple(palette[number]) for number, name in enumerate(names)}


def _add_colorbar(figure: Figure, axis: Axes, image: Any, label: str) -> None:
    bar = figure.colorbar(image, ax=axis, shrink=0.6)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    # Dots are transparent, the scale is not.
    assert bar.solids is not None
    bar.solids.set_alpha(1)
