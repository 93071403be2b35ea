"""One picture of samples next to held-out sequences and the Markov chain."""

from __future__ import annotations

import io
from typing import Final

import numpy as np

from .metrics import Group, Reference, contrast

__all__ = ["compare_plot"]

SERIES: Final = {
    "markov": ("Markov chain, order 5", "#e8590c"),
    "floor": ("held-out, other half", "#868e96"),
    "samples": ("samples", "#1864ab"),
}
"""Label and colour of each group, the newest on top."""


def compare_plot(reference: Reference, groups: dict[str, dict[int, Group]]) -> bytes:
    """Return a PNG: k-mer frequencies, motif hits, GC content, and accuracy by cell type.

    `groups` are sequences by the names of `SERIES`, then by label. Held-out sequences are halved as in `Reference`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.5), layout="constrained")
    (kmers, hits), (gc, accuracy) = figure.subplots(2, 2)
    for number, (name, (label, colour)) in enumerate(SERIES.items()):
        pairs = [(group, reference.reference[cell]) for cell, group in groups[name].items()]
        own, held = (np.sum([pair[side].kmers for pair in pairs], 0) for side in (0, 1))
        dots = {"color": colour, "s": 5, "alpha": 0.5, "linewidths": 0, "label": label, "rasterized": True}
        kmers.scatter(held / held.sum(), own / max(own.sum(), 1), **dots)
        own, held = (contrast([pair[side].hits for pair in pairs]) for side in (0, 1))
        hits.scatter(held, own, **dots)
        shares = np.concatenate([group.gc for group, _ in pairs])
        gc.hist(shares, np.linspace(0, 1, 41), density=True, histtype="step", color=colour, linewidth=1.5, label=label)
        values = reference.accuracies(groups[name])
        places = np.arange(len(values)) + (number - 1) * 0.27
        accuracy.bar(places, list(values.values()), 0.25, color=colour, label=label)
        accuracy.set_xticks(np.arange(len(values)), [key.partition("_")[2] or "all" for key in values])
    for axis in (kmers, hits):
        low, high = axis.get_xlim()
        axis.plot([low, high], [low, high], color="#ced4da", linewidth=1, zorder=0)
    kmers.set(xscale="log", yscale="log", xlabel="frequency in held-out sequences", ylabel="frequency", title="k-mers")
    hits.set(xlabel="held-out sequences", ylabel="share with a hit", title="motifs: cell type minus mean of cell types")
    gc.set(xlabel="GC content of a sequence", ylabel="density", title="GC content")
    accuracy.set(ylim=(0, 1), ylabel="accuracy", title="classifier of cell types (trained on test sequences)")
    gc.legend(frameon=False, fontsize=8)
    for axis in (kmers, hits, gc, accuracy):
        axis.spines[["top", "right"]].set_visible(False)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()
