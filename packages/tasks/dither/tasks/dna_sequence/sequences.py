"""DNA sequences by split and cell type: human ones, and synthetic ones with planted motifs.

Letters: N sequences, L bases of a sequence, C cell types, K motifs of a cell type, W bases of a
motif. Bases are numbers: A 0, C 1, G 2, T 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Float, Float32, Int64, UInt8
from numpy import ndarray

from dither.registry.config.errors import Refused
from dither.registry.contracts.protocols import Split
from dither.registry.contracts.spaces import Condition, NumberRange
from dither.registry.files.cache import fetch_wheel

from ..get_region.data.human_dhs import CELLS, HELD_OUT, REGION_WHEEL, read_sequences
from ..get_region.data.motif_scan import BASES, Motif, encode
from ..get_region.formats.motif_files import read_motifs
from .facts import SequenceFacts
from .sequence_files import read_sequence_file

__all__ = [
    "Bases",
    "Labels",
    "Planted",
    "Sequences",
    "as_text",
    "choose_bases",
    "plant",
    "read_dhs",
    "read_own",
    "reverse_complement",
]

Bases = UInt8[ndarray, "N L"]
Labels = Int64[ndarray, " N"]

DOMINANT = 0.95
"""Probability of the most likely base of a column."""


@dataclass(frozen=True)
class Sequences:
    """Sequences of equal length, each from one cell type.

    `name` is that of the source. `motifs` returns the motifs whose hits are compared, and is called
    only when samples are evaluated; `nats` returns -log p of sequences given their cell types, if
    it is known. `numbers` are real numbers of each sequence, by name.
    """

    name: str
    cells: tuple[str, ...]
    bases: dict[Split, UInt8[ndarray, "_ L"]]
    labels: dict[Split, Int64[ndarray, " _"]]
    motifs: Callable[[], Sequence[Motif]]
    nats: Callable[[Bases, Labels], Float[ndarray, " N"]] | None = None
    numbers: Mapping[str, Mapping[Split, Float32[ndarray, " _"]]] = field(
        default_factory=dict
    )

    def facts(self) -> SequenceFacts:
        """Return the sizes; the ranges of numbers are those of the training split."""
        numbers = []
        for name, of_splits in self.numbers.items():
            known = NumberRange.of(of_splits["train"].tolist())
            numbers.append(Condition(name, number=known))
        return SequenceFacts(self.bases["train"].shape[1], self.cells, tuple(numbers))


def read_dhs(name: str) -> Sequences:
    """Read the human regions and split them by chromosome; raise Refused without the wheel."""
    regions = read_sequences(fetch_wheel(*REGION_WHEEL))
    bases = encode(regions.sequence)
    # Each region is open in one cell type.
    labels = regions.open.argmax(1)
    valid, test = (np.isin(regions.chromosome, chromosomes) for chromosomes in HELD_OUT)
    rows: dict[Split, ndarray] = {
        "train": ~(valid | test),
        "valid": valid,
        "test": test,
    }
    return Sequences(
        name=name,
        cells=tuple(CELLS),
        bases={split: bases[mask] for split, mask in rows.items()},
        labels={split: labels[mask] for split, mask in rows.items()},
        motifs=partial(read_motifs, None),
    )


def read_own(
    path: Path, held: float, seed: int, numbers: tuple[str, ...] = ()
) -> Sequences:
    """Return the sequences of a file by its column `split`, else divided at random."""
    table = read_sequence_file(path, numbers)
    cells = table.cells()
    bases = encode(table.sequences)
    labels = np.array([cells.index(label) for label in table.labels], np.int64)
    parts = np.array(table.divided(held, seed))
    for split in get_args(Split):
        # Samples are compared with held-out sequences of their cell type.
        missing = set(range(len(cells))) - set(labels[parts == split])
        if missing:
            listed = ", ".join(cells[number] for number in sorted(missing))
            message = f"{path}: no sequences of {listed} in the split {split}"
            raise Refused(message, code="no-samples")
    of_splits = {}
    for name, column in table.numbers.items():
        values = np.array(column, np.float32)
        of_splits[name] = {split: values[parts == split] for split in get_args(Split)}
    return Sequences(
        name=str(path),
        cells=cells,
        bases={split: bases[parts == split] for split in get_args(Split)},
        labels={split: labels[parts == split] for split in get_args(Split)},
        motifs=list,
        numbers=of_splits,
    )


def reverse_complement(bases: Bases) -> Bases:
    """Return the other strand of each sequence."""
    return 3 - bases[:, ::-1]


def as_text(bases: Bases) -> list[str]:
    """Return sequences as strings of A, C, G and T."""
    letters = np.frombuffer(BASES.encode(), np.uint8)
    return [letters[row].tobytes().decode() for row in bases]


class Planted:
    """Distribution of planted sequences: background bases, and motifs that begin at a rate."""

    def __init__(
        self,
        *,
        cells: int,
        motifs: int,
        width: int,
        rate: float,
        seed: int,
    ) -> None:
        # Seeds of splits begin with [seed, 1], so that they do not repeat these draws.
        rng = np.random.default_rng([seed, 0])
        best = rng.integers(4, size=(cells, motifs, width))
        is_best = np.arange(4) == best[..., None]
        self.rate = rate
        self.motifs: Float[ndarray, "C K W 4"] = np.where(
            is_best, DOMINANT, (1 - DOMINANT) / 3
        )
        gc = np.array([0.5])
        if cells > 1:
            gc = np.linspace(0.3, 0.7, cells)
        # G and C are as frequent as each other, and so are A and T.
        background = np.stack([1 - gc, gc, gc, 1 - gc], 1) / 2
        self.background: Float[ndarray, "C 4"] = background

    def draw(self, count: int, length: int, seed: list[int]) -> tuple[Bases, Labels]:
        """Draw sequences, cell types in turn."""
        rng = np.random.default_rng(seed)
        cells, motifs, width, _ = self.motifs.shape
        labels = np.arange(count) % cells
        bases = choose_bases(rng, self.background[labels][:, None], (count, length))
        # The first base after the newest motif.
        free = np.zeros(count, np.int64)
        for start in range(length - width + 1):
            stop = start + width
            begins = rng.random(count) < self.rate
            rows = np.flatnonzero((free <= start) & begins)
            number = rng.integers(motifs, size=len(rows))
            motif = self.motifs[labels[rows], number]
            bases[rows, start:stop] = choose_bases(rng, motif, (len(rows), width))
            free[rows] = stop
        return bases, labels

    def nats(self, bases: Bases, labels: Labels) -> Float[ndarray, " N"]:
        """Return -log p of each sequence given its cell type: the forward algorithm.

        The states are the places at which a motif may begin.
        """
        count, length = bases.shape
        width = self.motifs.shape[2]
        # log p of the bases before a place that no motif crosses.
        before = np.full((length + 1, count), -np.inf)
        before[0] = 0
        background = np.log(self.background)
        columns = np.log(self.motifs)[labels]
        for start in range(length):
            alone = before[start] + background[labels, bases[:, start]]
            # No motif fits any more: background bases only.
            if start + width > length:
                before[start + 1] = np.logaddexp(before[start + 1], alone)
                continue
            alone = alone + np.log1p(-self.rate)
            before[start + 1] = np.logaddexp(before[start + 1], alone)

            # One of the motifs, all equally likely, begins here.
            stop = start + width
            word = bases[:, None, start:stop, None].astype(np.int64)
            of_motif = np.take_along_axis(columns, word, 3)[..., 0].sum(2)
            rate = np.log(self.rate / self.motifs.shape[1])
            planted = np.logaddexp.reduce(of_motif, 1) + rate
            before[stop] = np.logaddexp(before[stop], before[start] + planted)
        return -before[length]


def choose_bases(
    rng: np.random.Generator,
    probabilities: Float[ndarray, "... 4"],
    shape: int | tuple[int, int],
) -> UInt8[ndarray, "..."]:
    """Draw one base for each of the distributions, which broadcast to `shape`."""
    u = rng.random(shape)
    bases = np.zeros(shape, np.uint8)
    # The inverse of the distribution function: the number of its steps that u passes.
    for step in np.moveaxis(probabilities.cumsum(-1), -1, 0)[:3]:
        bases += u >= step
    return bases


def plant(
    name: str,
    names: tuple[str, ...],
    *,
    length: int,
    train: int,
    held: int,
    seed: int,
    **options: Any,
) -> Sequences:
    """Draw the sequences of each split, of cell types `names`; other options as of `Planted`."""
    planted = Planted(seed=seed, **options)
    sizes: dict[Split, int] = {"train": train, "valid": held, "test": held}
    bases: dict[Split, UInt8[ndarray, "_ L"]] = {}
    labels: dict[Split, Int64[ndarray, " _"]] = {}
    for number, (split, size) in enumerate(sizes.items()):
        bases[split], labels[split] = planted.draw(size, length, [seed, 1 + number])

    def motifs() -> list[Motif]:
        result = []
        for cell, tables in zip(names, planted.motifs, strict=True):
            for number, table in enumerate(tables):
                # Counts as of 20 sites, since a motif is read from counts.
                result.append(Motif.of(f"{cell}.{number + 1}", 20 * table))
        return result

    return Sequences(name, names, bases, labels, motifs, planted.nats)
