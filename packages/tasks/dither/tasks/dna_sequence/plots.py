"""Plots of DNA: samples next to held-out sequences, and sequence logos of motif hits.

Letters: N sequences, L bases, n words, W bases of a motif.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from ..get_region.data.motif_scan import BASES, Motif
from ..plot_style import BLUE, GREY, LIGHT, ORANGE, bare, new_figure
from .metrics import Group, Reference, contrast
from .sequences import Bases, reverse_complement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path

__all__ = ["compare_groups", "draw_logo", "draw_logos", "hit_words"]

SERIES = {
    "markov": ("Markov chain, order 5", ORANGE),
    "floor": ("held-out, other half", GREY),
    "samples": ("samples", BLUE),
}
"""Label and colour of each group, the newest on top."""
LOGOS = 6
"""Motifs whose hits are drawn."""
LETTER_COLOURS = ("#2b8a3e", "#1864ab", "#f08c00", "#c92a2a")
"""A, C, G and T, as in most logos."""


def compare_groups(reference: Reference, groups: dict[str, dict[int, Group]]) -> Figure:
    """Plot k-mers, motif hits, GC content, accuracy of groups by `SERIES` and label."""
    figure = new_figure(10, 7.5)
    (kmers, hits), (gc, accuracy) = figure.subplots(2, 2)
    for number, (name, (label, colour)) in enumerate(SERIES.items()):
        compared = reference.comparable(groups[name])
        # The other half of a small validation split may have none of these cell types.
        if not compared:
            continue
        of_cells = list(compared.values())
        held_out = [reference.reference[cell] for cell in compared]
        dots: dict[str, Any] = {
            "color": colour,
            "s": 5,
            "alpha": 0.5,
            "linewidths": 0,
            # Thousands of dots would be large files as vectors.
            "rasterized": True,
            "label": label,
        }
        counts = np.sum([group.kmers for group in of_cells], 0)
        held_counts = np.sum([group.kmers for group in held_out], 0)
        x = held_counts / held_counts.sum()
        kmers.scatter(x, counts / max(counts.sum(), 1), **dots)

        x = contrast([group.hits for group in held_out])
        hits.scatter(x, contrast([group.hits for group in of_cells]), **dots)

        gc.hist(
            np.concatenate([group.gc for group in of_cells]),
            np.linspace(0, 1, 41),
            density=True,
            histtype="step",
            color=colour,
            linewidth=1.5,
            label=label,
        )

        # Bars of the three series side by side around each tick.
        values = reference.accuracies(groups[name])
        ticks = np.arange(len(values))
        heights = list(values.values())
        places = ticks + (number - 1) * 0.27
        accuracy.bar(places, heights, 0.25, color=colour, label=label)
        names = [key.partition("_")[2] or "all" for key in values]
        accuracy.set_xticks(ticks, names)

    for axis in (kmers, hits):
        low, high = axis.get_xlim()
        axis.plot([low, high], [low, high], color=LIGHT, linewidth=1, zorder=0)
    kmers.set(xscale="log", yscale="log", title="k-mers")
    kmers.set(xlabel="frequency in held-out sequences", ylabel="frequency")
    hits.set(title="motifs: cell type minus mean of cell types")
    hits.set(xlabel="held-out sequences", ylabel="share with a hit")
    gc.set(xlabel="GC content of a sequence", ylabel="density", title="GC content")
    accuracy.set(title="classifier of cell types (trained on test sequences)")
    accuracy.set(ylim=(0, 1), ylabel="accuracy")
    gc.legend(frameon=False, fontsize=8)
    for axis in (kmers, hits, gc, accuracy):
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def draw_logos(reference: Reference, bases: Bases) -> Figure | None:
    """Draw logos of the hits of motifs in held-out sequences and in samples; None without hits.

    Motifs are those with the largest share of hits in a cell type above the mean of cell types.
    """
    held_out = reference.reference[-1].bases
    groups = [group for label, group in reference.reference.items() if label >= 0]
    if not reference.motifs:
        return None
    shares = np.stack([group.hits for group in groups])
    specific = shares.max(0) - shares.mean(0)
    # Most hits first where no cell type differs, as with a single one.
    order = np.lexsort((-shares.mean(0), -specific))
    shown = [
        reference.motifs[number] for number in order[:LOGOS] if shares[:, number].any()
    ]
    if not shown:
        return None

    figure = new_figure(10, 0.6 + 1.7 * len(shown), "Bases at the hits of motifs")
    axes = figure.subplots(len(shown), 2, squeeze=False)
    for row, motif in zip(axes, shown, strict=True):
        for axis, name, sequences in zip(
            row, ("held-out sequences", "samples"), (held_out, bases), strict=True
        ):
            words = hit_words(sequences, motif)
            rate = len(words) / len(sequences)
            bare(axis, f"{motif.name}: {rate:.2g} hits per sequence, {name}", y="bits")
            draw_logo(axis, words)
    return figure


def hit_words(bases: UInt8[ndarray, "N L"], motif: Motif) -> UInt8[ndarray, "n W"]:
    """Return the words at the hits of a motif, those of the other strand as the motif reads them."""
    words = []
    # The other strand as the motif reads it, so that words of both are added up.
    for strand in (bases, reverse_complement(bases)):
        windows = np.lib.stride_tricks.sliding_window_view(
            strand, len(motif.scores), axis=1
        )
        scores = np.zeros(windows.shape[:2], np.int64)
        for place, of_bases in enumerate(motif.scores):
            scores += of_bases[windows[..., place]]
        words.append(windows[scores >= motif.threshold])
    return np.concatenate(words)


def draw_logo(axis: Axes, words: UInt8[ndarray, "n W"]) -> None:
    """Draw a sequence logo: the share of each base times the information of its column.

    The information is 2 bits minus the entropy, with the correction for few words of Schneider et
    al. (1986).
    """
    from matplotlib.patches import PathPatch
    from matplotlib.transforms import Affine2D

    width = words.shape[1]
    axis.set(xlim=(0.5, width + 0.5), ylim=(0, 2))
    axis.set_xticks(range(1, width + 1))
    if not len(words):
        return
    heights = logo_heights(words)
    for place, column in enumerate(heights):
        bottom = 0.0
        # The most frequent base is on top.
        for base in np.argsort(column):
            stretch = Affine2D().scale(1, column[base])
            move = stretch.translate(place + 0.5, bottom)
            letter = _letter(BASES[base]).transformed(move)
            axis.add_patch(PathPatch(letter, color=LETTER_COLOURS[base], linewidth=0))
            bottom += column[base]


def logo_heights(words: UInt8[ndarray, "n W"]) -> Float[ndarray, "W 4"]:
    """Return the height of each base in a logo, in bits."""
    shares = (words[..., None] == np.arange(4)).mean(0)
    entropy = -(shares * np.log2(np.maximum(shares, 1e-12))).sum(1)
    correction = 3 / (2 * np.log(2) * len(words))
    bits = np.maximum(2 - entropy - correction, 0)
    return shares * bits[:, None]


@lru_cache(maxsize=4)
def _letter(text: str) -> Path:
    """Return the outline of a letter, 1 wide and 1 high."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    outline = TextPath((0, 0), text, prop=FontProperties(weight="bold"))
    box = outline.get_extents()
    to_origin = Affine2D().translate(-box.x0, -box.y0)
    return outline.transformed(to_origin.scale(1 / box.width, 1 / box.height))
