"""Sequences by split, with the cell type of each, and the human ones.

Letters: N sequences, L bases of a sequence. Bases are numbers: A 0, C 1, G 2, T 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64, UInt8

from dither.registry.files.cache import fetch_wheel
from dither.registry.flow.protocols import Split

from ..get_region.data.build_human_dhs import CELLS, MOTIF_WHEEL, REGION_WHEEL, read_counts, read_sequences
from ..get_region.data.human_dhs import HELD_OUT
from ..get_region.data.motif_scan import BASES, Motif, encode
from .facts import SequenceFacts

__all__ = ["Sequences", "as_text", "read_dhs", "reverse_complement"]


@dataclass(frozen=True)
class Sequences:
    """Sequences of equal length, each from one cell type.

    Attributes:
        name: Name of the source.
        cells: Names of the cell types.
        bases: The sequences of each split. `N L`.
        labels: The cell type of each sequence. `N`.
        motifs: Returns the motifs whose hits are compared; called only when samples are evaluated.
        nats: Returns -log p of sequences given their cell types, if it is known. `N`.
    """

    name: str
    cells: tuple[str, ...]
    bases: dict[Split, UInt8[np.ndarray, "_ L"]]
    labels: dict[Split, Int64[np.ndarray, " _"]]
    motifs: Callable[[], Sequence[Motif]]
    nats: Callable[[UInt8[np.ndarray, "N L"], Int64[np.ndarray, " N"]], Float[np.ndarray, " N"]] | None = None

    def facts(self) -> SequenceFacts:
        """Return the length and the cell types."""
        return SequenceFacts(self.bases["train"].shape[1], self.cells)


def read_dhs(name: str) -> Sequences:
    """Read the human regions and split them by chromosome.

    Raises:
        Refused: The wheel cannot be downloaded, or is damaged.
    """
    regions = read_sequences(fetch_wheel(*REGION_WHEEL))
    bases, labels = encode(regions.sequence), regions.open.argmax(1)
    valid, test = (np.isin(regions.chromosome, chromosomes) for chromosomes in HELD_OUT)
    rows: dict[Split, np.ndarray] = {"train": ~(valid | test), "valid": valid, "test": test}
    return Sequences(
        name,
        tuple(CELLS),
        {split: bases[chosen] for split, chosen in rows.items()},
        {split: labels[chosen] for split, chosen in rows.items()},
        jaspar_motifs,
    )


def jaspar_motifs() -> list[Motif]:
    """Return the newest version of each CORE motif of vertebrates in JASPAR."""
    return [Motif.of(name, counts) for name, counts in read_counts(fetch_wheel(*MOTIF_WHEEL)).values()]


def reverse_complement(bases: UInt8[np.ndarray, "N L"]) -> UInt8[np.ndarray, "N L"]:
    """Return the other strand of each sequence."""
    return 3 - bases[:, ::-1]


def as_text(bases: UInt8[np.ndarray, "N L"]) -> list[str]:
    """Return sequences as strings of A, C, G and T."""
    letters = np.frombuffer(BASES.encode(), np.uint8)
    return [letters[row].tobytes().decode() for row in bases]
