"""The human matrix: included in the package, or built from two wheels (DNase, JASPAR)."""

from __future__ import annotations

import io
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float32, Integer, Shaped
from numpy import ndarray

from dither.registry.config.errors import Refused
from dither.registry.files.cache import cache_folder, fetch_wheel, read_member

from ...prepared.arrays import read_archive, write_archive
from ...prepared.progress import Progress
from .motif_scan import BASES, Motif, encode, scan
from .region_matrix import RegionMatrix, column_divisors

__all__ = [
    "ARCHETYPES",
    "CELLS",
    "HELD_OUT",
    "MOTIF_WHEEL",
    "REGION_WHEEL",
    "Sequences",
    "archetype_names",
    "build_matrix",
    "cluster",
    "correlation",
    "ensure_built",
    "pool",
    "read_counts",
    "read_human",
    "read_sequences",
    "write_built",
]

_Matrix = Float[ndarray, "K K"]
_Labels = Integer[ndarray, " K"]

BUILT = "human-dhs/matrix-1.npz"
"""Path of the exact matrix in the cache folder; the number increases when the recipe changes."""

HELD_OUT = (("chr2",), ("chr1",))
"""Chromosomes for validation and for testing, as the authors of the regions split them."""

PACKAGED = Path(__file__).parent
BUILD = "run: dither prepare dhs"

REGION_WHEEL = (
    "dnadiffusion",
    "0.0.0.dev0",
    "d97becfde9c1cc2fcae3a5bd7584da2224d072ebf15194fdb25b85840d7f484c",
)
"""Name, version and sha256: 47,872 regions of hg38 (DNase hypersensitive sites), each open in one
of 4 cell types."""

MOTIF_WHEEL = (
    "pyjaspar",
    "4.0.0",
    "01b393f668c3cb552d3d58262a50005b1410e389e0a6bf5d570e976fbdaf01b3",
)
"""Name, version and sha256: releases of JASPAR, of which 2026 is read."""

CELLS = {
    "K562": "K562_ENCLB843GMH",
    "HepG2": "HepG2_ENCLB029COU",
    "GM12878": "GM12878_ENCLB441ZZZ",
    "hESC": "hESCT0_ENCLB449ZZZ",
}
"""Cell types, and their columns in the wheel."""

REGIONS_FILE = "dnadiffusion/data/K562_hESCT0_HepG2_GM12878_12k_sequences_per_group.txt"
MOTIFS_FILE = "pyjaspar/data/JASPAR2026.sqlite"
NEWEST = """
    SELECT m.NAME, d.row, d.col, d.val, m.BASE_ID
    FROM MATRIX m
    JOIN MATRIX_ANNOTATION a ON a.ID = m.ID AND a.TAG = 'tax_group' AND a.VAL = 'vertebrates'
    JOIN MATRIX_DATA d ON d.ID = m.ID
    WHERE m.COLLECTION = 'CORE'
      AND m.VERSION = (SELECT MAX(n.VERSION) FROM MATRIX n WHERE n.BASE_ID = m.BASE_ID AND n.COLLECTION = 'CORE')
"""


@dataclass(frozen=True)
class Sequences:
    """Regions in genome order: their 200 bases, and where they are open, by `CELLS`."""

    chromosome: Shaped[ndarray, " P"]
    start: Integer[ndarray, " P"]
    end: Integer[ndarray, " P"]
    sequence: list[str]
    open: Bool[ndarray, "P C"]


def read_sequences(wheel: Path) -> Sequences:
    """Read the regions, sorted by chromosome (1 to 22, X, Y) and start."""
    import pandas  # type: ignore[import-untyped,unused-ignore]

    table = pandas.read_csv(io.BytesIO(read_member(wheel, REGIONS_FILE)), sep="\t")
    # X and Y become NaN, which comes last.
    names = table["chr"].str.removeprefix("chr")
    table["number"] = pandas.to_numeric(names, errors="coerce")
    table = table.sort_values(["number", "chr", "start"], kind="stable")
    return Sequences(
        chromosome=table["chr"].to_numpy(str),
        start=table["start"].to_numpy(),
        end=table["end"].to_numpy(),
        sequence=table["sequence"].tolist(),
        open=table[list(CELLS.values())].to_numpy() == 1,
    )


def read_counts(wheel: Path) -> dict[str, tuple[str, Float[ndarray, "_ 4"]]]:
    """Read the newest CORE motifs of vertebrates: JASPAR id -> name and base counts `W 4`."""
    cells: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    names: dict[str, str] = {}
    # From the wheel without unpacking it to a file.
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(read_member(wheel, MOTIFS_FILE))
        for name, base, column, count, motif in database.execute(NEWEST):
            names[motif] = name
            # JASPAR counts columns from 1.
            cells[motif].append((column - 1, BASES.index(base), count))
    except sqlite3.Error as error:
        message = f"{wheel}: {MOTIFS_FILE} cannot be read: {error}"
        raise Refused(message, code="damaged-file") from None
    finally:
        database.close()
    result = {}
    for motif in sorted(cells):
        columns, bases, counts = (
            np.array(values) for values in zip(*cells[motif], strict=True)
        )
        table = np.zeros((columns.max() + 1, len(BASES)))
        table[columns, bases] = counts
        result[motif] = names[motif], table
    return result


def correlation(scores: Float[ndarray, "P K"]) -> _Matrix:
    """Return Pearson's correlation of columns; 0 where one is constant. `K K`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        r: _Matrix = np.nan_to_num(np.corrcoef(scores, rowvar=False, dtype=np.float64))
    np.fill_diagonal(r, 1)
    return r


def cluster(r: _Matrix, number: int) -> _Labels:
    """Return the archetype of each motif: average linkage on 1 - r, in order of appearance."""
    from pandas import factorize  # type: ignore[import-untyped,unused-ignore]
    from sklearn.cluster import AgglomerativeClustering

    # Made symmetric: the two triangles of correlations may differ by rounding.
    model = AgglomerativeClustering(number, metric="precomputed", linkage="average")
    return factorize(model.fit_predict(1 - (r + r.T) / 2))[0]


def pool(scores: Float[ndarray, "P K"], labels: _Labels) -> Float32[ndarray, "P M"]:
    """Sum the columns of `P K` that share an archetype. `P M`."""
    pooled = np.zeros((len(scores), int(labels.max()) + 1), dtype=np.float32)
    for archetype in range(pooled.shape[1]):
        # Column by column in float64: a copy of all scores in float64 would take 400 MB.
        pooled[:, archetype] = scores[:, labels == archetype].sum(1, dtype=np.float64)
    return pooled


def archetype_names(names: Sequence[str], r: _Matrix, labels: _Labels) -> list[str]:
    """Name each archetype after its medoid and the number of its other motifs, as in "GATA1+12".

    The medoid has the highest mean correlation with the others. Equal names are numbered, as in
    "CTCF+2 (1)".
    """
    from pandas import Series

    medoids = []
    for archetype in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == archetype)
        medoid = names[members[np.argmax(r[np.ix_(members, members)].sum(1))]]

        others = ""
        if len(members) > 1:
            others = f"+{len(members) - 1}"

        medoids.append(medoid + others)

    # Names must differ, as motifs are found by name.
    place = Series(medoids).groupby(medoids).cumcount() + 1
    unique = []
    for name, number in zip(medoids, place, strict=True):
        unique.append(f"{name} ({number})" if medoids.count(name) > 1 else name)
    return unique


ARCHETYPES = 282
"""Number of motif columns of GET."""

ABOUT = {
    "title": "Motif archetypes and accessibility of 47,872 regions of the human genome (hg38)",
    "source": [
        {
            "wheel": "==".join(REGION_WHEEL[:2]),
            "sha256": REGION_WHEEL[2],
            "holds": "DNase hypersensitive sites (ENCODE; index of Meuleman et al. 2020) "
            "with sequences and cell types",
            "licence": "MIT, (c) 2022 Luca Pinello",
        },
        {
            "wheel": "==".join(MOTIF_WHEEL[:2]),
            "sha256": MOTIF_WHEEL[2],
            "holds": "JASPAR 2026 CORE, vertebrates",
            "licence": "MIT (package), CC BY 4.0 (JASPAR data)",
        },
    ],
    "features": "bits of motif hits at p <= 1e-4, both strands, summed per archetype; "
    "divided by `scale`, cut at 1",
}


def build_matrix(
    sequences: Sequences,
    counts: dict[str, tuple[str, Float[ndarray, "_ 4"]]],
    archetypes: int,
) -> dict[str, Any]:
    """Return the arrays for `RegionMatrix.of`, and `scale`: the bits of a feature of 1, by motif.

    Motifs, with name and base counts by id, are pooled into `archetypes` columns.
    """
    motifs = [Motif.of(name, table) for name, table in counts.values()]
    with Progress("motifs scanned") as progress:
        scores = scan(encode(sequences.sequence), motifs, update=progress.update)
    r = correlation(scores)
    labels = cluster(r, archetypes)
    train = ~np.isin(sequences.chromosome, np.concatenate(HELD_OUT))
    pooled = pool(scores, labels)
    scale = column_divisors(pooled, train)
    return {
        "features": np.minimum(pooled / scale, np.float32(1)),
        "scale": scale,
        "motifs": np.array(
            archetype_names([motif.name for motif in motifs], r, labels)
        ),
        "chromosome": sequences.chromosome,
        "start": sequences.start.astype(np.int32),
        "end": sequences.end.astype(np.int32),
        "open": sequences.open,
        "cells": np.array(list(CELLS)),
    }


def write_built(path: Path) -> dict[str, Any]:
    """Download the wheels, build and write the exact matrix, and return its arrays."""
    arrays = build_matrix(
        read_sequences(fetch_wheel(*REGION_WHEEL)),
        read_counts(fetch_wheel(*MOTIF_WHEEL)),
        ARCHETYPES,
    )
    write_archive(path, arrays, ABOUT)
    return arrays


def ensure_built() -> str:
    """Build the exact matrix unless it exists intact, and return a report."""
    path = cache_folder() / BUILT
    try:
        read_archive(path, BUILD)
    except Refused:
        regions, motifs = write_built(path)["features"].shape
        return f"built {regions} regions x {motifs} motifs: {path}"
    return f"exists already: {path}"


def read_human(subset: Literal["whole", "chr21-22", "built"]) -> RegionMatrix:
    """Read a table and split it; raise Refused if the file is missing or damaged."""
    if subset == "built":
        return RegionMatrix.of(read_archive(cache_folder() / BUILT, BUILD), *HELD_OUT)
    arrays = read_archive(PACKAGED / f"{subset}.npz", "install dither-tasks again")
    # The package holds bytes, in steps of 1/255.
    arrays["features"] = arrays["features"] * np.float32(1 / 255)
    valid, test = (("chr21",), ()) if subset == "chr21-22" else HELD_OUT
    return RegionMatrix.of(arrays, valid, test)
