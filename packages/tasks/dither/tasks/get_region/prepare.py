"""Builds the human matrix: fetch two wheels, scan every region for every motif, pool motifs into archetypes, scale.

One run takes about a minute of two cores and 1.5 GB of memory. The result is the same on every machine up to the
rounding of float32: scores are whole numbers, and nothing is random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from dither.registry.storage import fetch_wheel

from .archetypes import archetype_names, cluster, correlation, pool
from .archive import write_archive
from .human import HELD_OUT
from .motifs import Motif
from .progress import Progress
from .regions import scale_to_largest
from .scan import encode, scan
from .wheels import CELLS, MOTIF_WHEEL, REGION_WHEEL, Sequences, read_counts, read_sequences

__all__ = ["ARCHETYPES", "build_matrix", "quantise", "write_built", "write_packaged"]

ARCHETYPES = 282
"""As many motif columns as GET has."""

ABOUT = {
    "title": "Motif archetypes and accessibility of 47,872 regions of the human genome (hg38)",
    "source": [
        {
            "wheel": "==".join(REGION_WHEEL[:2]),
            "sha256": REGION_WHEEL[2],
            "holds": "DNase hypersensitive sites (ENCODE; index of Meuleman et al. 2020) with sequences and cell types",
            "licence": "MIT, (c) 2022 Luca Pinello",
        },
        {
            "wheel": "==".join(MOTIF_WHEEL[:2]),
            "sha256": MOTIF_WHEEL[2],
            "holds": "JASPAR 2026 CORE, vertebrates",
            "licence": "MIT (package), CC BY 4.0 (JASPAR data)",
        },
    ],
    "features": "bits of motif hits at p <= 1e-4, both strands, summed per archetype; divided by `scale`, cut at 1",
}


def build_matrix(
    sequences: Sequences, counts: dict[str, tuple[str, Float[np.ndarray, "_ 4"]]], archetypes: int
) -> dict[str, Any]:
    """Return the arrays that `RegionMatrix.of` takes, and `scale`: the bits `M` that a feature of 1 stands for.

    Args:
        sequences: The regions.
        counts: Name and base counts of each motif, by id.
        archetypes: How many columns the motifs are pooled into.
    """
    motifs = [Motif.of(name, table) for name, table in counts.values()]
    with Progress("motifs scanned for") as progress:
        found = scan(encode(sequences.sequence), motifs, tell=progress.tell)
    r = correlation(found)
    labels = cluster(r, archetypes)
    train = ~np.isin(sequences.chromosome, np.concatenate(HELD_OUT))
    features, scale = scale_to_largest(pool(found, labels), train)
    return {
        "features": features,
        "scale": scale,
        "motifs": np.array(archetype_names([motif.name for motif in motifs], r, labels)),
        "chromosome": sequences.chromosome,
        "start": sequences.start.astype(np.int32),
        "end": sequences.end.astype(np.int32),
        "open": sequences.open,
        "cells": np.array(list(CELLS)),
    }


def write_built(path: Path) -> dict[str, Any]:
    """Fetch, build, and write the exact matrix. Returns its arrays."""
    arrays = build_matrix(
        read_sequences(fetch_wheel(*REGION_WHEEL)), read_counts(fetch_wheel(*MOTIF_WHEEL)), ARCHETYPES
    )
    write_archive(path, arrays, ABOUT)
    return arrays


def quantise(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays with features in steps of 1/255: at most 0.002 off."""
    return {**arrays, "features": np.rint(arrays["features"] * 255).astype(np.uint8)}


def write_packaged(arrays: dict[str, Any], folder: Path) -> None:
    """Write what the package carries: the whole matrix quantised, and its chromosomes 21 and 22."""
    about = {**ABOUT, "quantised": "features are uint8, in steps of 1/255"}
    whole = quantise(arrays)
    write_archive(folder / "whole.npz", whole, about)
    few = np.isin(whole["chromosome"], ("chr21", "chr22"))
    part = {name: array[few] if len(array) == len(few) else array for name, array in whole.items()}
    write_archive(folder / "chr21-22.npz", part, about)
