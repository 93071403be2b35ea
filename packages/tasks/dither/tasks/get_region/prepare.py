"""Builds the human matrix: fetch two wheels, scan every region for every motif, pool motifs into archetypes, scale.

One run takes about a minute of two cores and 1.5 GB of memory. The result is the same on every machine up to the
rounding of float32: scores are whole numbers, and nothing is random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from dither.registry.storage import cache_folder, fetch_wheel
from numpy.typing import NDArray

from .archetypes import archetype_names, cluster, correlation, pool
from .archive import write_archive
from .motifs import Motif
from .regions import scale_to_largest
from .scan import encode, scan
from .wheels import CELLS, MOTIF_WHEEL, REGION_WHEEL, Sequences, read_counts, read_sequences

__all__ = ["ARCHETYPES", "BUILT", "build_matrix", "built_path", "quantise", "write_built", "write_packaged"]

ARCHETYPES = 282
"""As many motif columns as GET has."""

BUILT = "human-dhs/matrix-1.npz"
"""Where `prepare` puts the exact matrix in the cache folder; the number grows when the recipe changes."""

HELD_OUT = ("chr2", "chr1")
ABOUT = {
    "title": "Motif archetypes and accessibility of 47,872 regions of the human genome (hg38)",
    "source": [
        {
            "wheel": "==".join(REGION_WHEEL[:2]),
            "sha256": REGION_WHEEL[2],
            "holds": "DNase hypersensitive sites (ENCODE; index of Meuleman et al. 2020) with sequences and four cell types",
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


def build_matrix(sequences: Sequences, counts: dict[str, tuple[str, NDArray[np.float64]]], archetypes: int) -> dict[str, Any]:
    """Return the arrays of the matrix: features `P M` in [0, 1], scale `M` (bits), motifs, chromosome, start, end, open, cells.

    Args:
        sequences: The regions.
        counts: Name and base counts of each motif, by id.
        archetypes: How many columns the motifs are pooled into.
    """
    motifs = [Motif.of(name, table) for name, table in counts.values()]
    found = scan(encode(sequences.sequence), motifs)
    r = correlation(found)
    labels = cluster(r, archetypes)
    train = ~np.isin(sequences.chromosome, HELD_OUT)
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


def built_path() -> Path:
    """Return where the exact matrix is kept."""
    return cache_folder() / BUILT


def write_built() -> dict[str, Any]:
    """Fetch, build, and keep the exact matrix in the cache folder. Returns its arrays."""
    arrays = build_matrix(read_sequences(fetch_wheel(*REGION_WHEEL)), read_counts(fetch_wheel(*MOTIF_WHEEL)), ARCHETYPES)
    write_archive(built_path(), arrays, ABOUT)
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
