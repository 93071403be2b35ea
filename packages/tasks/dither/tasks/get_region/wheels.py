"""The two wheels that the human matrix is made from: regions with their sequences, and motifs."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped

from dither.registry.problems import Refused
from dither.registry.storage import read_member

from .motifs import BASES

__all__ = ["CELLS", "MOTIF_WHEEL", "REGION_WHEEL", "Sequences", "read_counts", "read_sequences"]

REGION_WHEEL = ("dnadiffusion", "0.0.0.dev0", "d97becfde9c1cc2fcae3a5bd7584da2224d072ebf15194fdb25b85840d7f484c")
"""Name, version and sha256: 47,872 regions of hg38 (DNase hypersensitive sites), each open in one of 4 cell types."""

MOTIF_WHEEL = ("pyjaspar", "4.0.0", "01b393f668c3cb552d3d58262a50005b1410e389e0a6bf5d570e976fbdaf01b3")
"""Name, version and sha256: the JASPAR releases, of which we read 2026."""

CELLS = {
    "K562": "K562_ENCLB843GMH",
    "HepG2": "HepG2_ENCLB029COU",
    "GM12878": "GM12878_ENCLB441ZZZ",
    "hESC": "hESCT0_ENCLB449ZZZ",
}
"""Cell types by our names, and their columns in the wheel."""

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
    """Regions in genome order.

    Attributes:
        chromosome: `P`.
        start: First base, from 0. `P`.
        end: Behind the last base. `P`.
        sequence: 200 bases of the region each. `P`.
        open: True where the region is open in a cell type, in the order of `CELLS`. `P C`.
    """

    chromosome: Shaped[np.ndarray, " P"]
    start: Integer[np.ndarray, " P"]
    end: Integer[np.ndarray, " P"]
    sequence: list[str]
    open: Bool[np.ndarray, "P C"]


def read_sequences(wheel: Path) -> Sequences:
    """Read the regions, sorted by chromosome (1 to 22, X, Y) and start."""
    text = read_member(wheel, REGIONS_FILE).decode("ascii")
    rows = sorted(csv.DictReader(io.StringIO(text), delimiter="\t"), key=lambda row: _place(row["chr"], row["start"]))
    return Sequences(
        chromosome=np.array([row["chr"] for row in rows]),
        start=np.array([int(row["start"]) for row in rows]),
        end=np.array([int(row["end"]) for row in rows]),
        sequence=[row["sequence"] for row in rows],
        open=np.array([[row[column] == "1" for column in CELLS.values()] for row in rows]),
    )


def _place(chromosome: str, start: str) -> tuple[int, str, int]:
    name = chromosome.removeprefix("chr")
    return (int(name), "", int(start)) if name.isdigit() else (100, name, int(start))


def read_counts(wheel: Path) -> dict[str, tuple[str, Float[np.ndarray, "_ 4"]]]:
    """Read the newest version of each CORE motif of vertebrates: JASPAR id -> its name and base counts `W 4`."""
    tables: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    names: dict[str, str] = {}
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(read_member(wheel, MOTIFS_FILE))
        for name, base, column, count, motif in database.execute(NEWEST):
            names[motif] = name
            tables[motif][column - 1, BASES.index(base)] = count
    except sqlite3.Error as error:
        raise Refused(f"{wheel}: {MOTIFS_FILE} cannot be read: {error}") from None
    finally:
        database.close()
    return {motif: (names[motif], _table(tables[motif])) for motif in sorted(tables)}


def _table(cells: dict[tuple[int, int], float]) -> Float[np.ndarray, "W 4"]:
    table = np.zeros((max(column for column, _ in cells) + 1, len(BASES)))
    for place, count in cells.items():
        table[place] = count
    return table
