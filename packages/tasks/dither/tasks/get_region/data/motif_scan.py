"""Binding motifs: counts -> integer log-odds -> the score at which a sequence is a hit.

A motif of W columns scores a W-mer by the sum of one number per base. Scores are integers in
hundredths of a bit, so that sums are exact in any order and on any machine, as is their
distribution over random sequences, which gives the threshold. Random bases are independent, with
the probabilities of a background, by default 1/4. Letters: W columns of a motif, 4 bases (A, C, G,
T), P sequences, S bases, K motifs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Integer, UInt8
from numpy import ndarray
from torch import Tensor
from torch.nn import functional

__all__ = [
    "BASES",
    "EVEN",
    "UNITS_PER_BIT",
    "Motif",
    "encode",
    "log_odds",
    "scan",
    "score_distribution",
    "threshold",
]

_Scores = Integer[ndarray, "W 4"]
_Counts = Float[ndarray, "W 4"]

BASES = "ACGT"
"""Order of the bases in every matrix and sequence."""
EVEN = (0.25, 0.25, 0.25, 0.25)
"""Background of equally likely bases."""
UNITS_PER_BIT = 100
"""Integer scores per bit."""


@dataclass(frozen=True)
class Motif:
    """A motif to scan for: name, integer log-odds (`W 4`), and the lowest score of a hit."""

    name: str
    scores: _Scores
    threshold: int

    @classmethod
    def of(
        cls,
        name: str,
        counts: _Counts,
        p_value: float = 1e-4,
        background: Sequence[float] = EVEN,
    ) -> Motif:
        """Return the motif of base counts `W 4`; `p_value` is that of a hit in a random word."""
        scores = log_odds(counts, background)
        return cls(name, scores, threshold(scores, p_value, background=background))


def log_odds(counts: _Counts, background: Sequence[float] = EVEN) -> _Scores:
    """Return log2 of the odds of each base against the background, in units of 1/100 bit, rounded.

    Each column of counts has one more, shared by its four bases as in the background. ValueError if
    the counts have another shape, are negative or not finite, or a column is empty.
    """
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != 4 or len(table) == 0:
        raise ValueError(
            f"a motif is a table of W columns by 4 bases, got the shape {table.shape}"
        )
    if not (
        np.isfinite(table).all() and (table >= 0).all() and (table.sum(1) > 0).all()
    ):
        raise ValueError(
            "counts of a motif are finite and at least 0, and no column is empty"
        )
    # A base that was never observed must not have minus infinity.
    expected = np.asarray(background)
    share = (table + expected) / (table.sum(1, keepdims=True) + 1)
    bits: _Counts = np.log2(share / expected)
    return np.rint(UNITS_PER_BIT * bits).astype(np.int64)


def score_distribution(
    scores: _Scores, background: Sequence[float] = EVEN
) -> tuple[int, Float[ndarray, " n"]]:
    """Return the lowest score of a random W-mer, and the probabilities of it and each one above.

    The sum over columns is a convolution, computed column by column.
    """
    probability = np.ones(1)
    for column in scores - scores.min(1, keepdims=True):
        longer = np.zeros(len(probability) + int(column.max()))
        for step, share in zip(column, background, strict=True):
            longer[step : step + len(probability)] += probability * share
        probability = longer
    return int(scores.min(1).sum()), probability


def threshold(
    scores: _Scores,
    p_value: float = 1e-4,
    floor: int = UNITS_PER_BIT // 2,
    background: Sequence[float] = EVEN,
) -> int:
    """Return the lowest score that a random W-mer reaches with probability at most `p_value`.

    A motif too short for that has its best word as the threshold; `floor` (half a bit) prevents
    negative hits.
    """
    lowest, probability = score_distribution(scores, background)
    # Probability of each score or a higher one; the tolerance is for the rounding of the sum.
    reached = np.cumsum(probability[::-1])[::-1]
    rare = np.flatnonzero(reached <= p_value * (1 + 1e-9))
    score = int(scores.max(1).sum())
    if len(rare):
        score = min(score, lowest + int(rare[0]))
    return max(score, floor)


# 128 unknown bases sum to 2^24, up to which float32 is exact.
UNKNOWN = -float(2**17)
"""Score of an unknown base: no word with one is a hit."""


def encode(sequences: Sequence[str]) -> UInt8[ndarray, "P S"]:
    """Return bases as numbers: A 0, C 1, G 2, T 3, others 4; ValueError unless of one length."""
    lengths = {len(sequence) for sequence in sequences}
    if len(lengths) != 1:
        raise ValueError(
            f"expected sequences of one length, got lengths {sorted(lengths)[:5]}"
        )
    # By byte, in either case: lower case marks repeats in FASTA.
    table = np.full(256, 4, dtype=np.uint8)
    for number, base in enumerate(BASES):
        table[[ord(base), ord(base.lower())]] = number
    letters = np.frombuffer(
        "".join(sequences).encode("ascii", "replace"), dtype=np.uint8
    )
    return table[letters].reshape(len(sequences), -1)


def scan(
    bases: UInt8[ndarray, "P S"],
    motifs: Sequence[Motif],
    rows: int = 16,
    update: Callable[[int, int], None] = lambda done, total: None,
) -> Float32[ndarray, "P K"]:
    """Return the sum of the scores of all hits on both strands, in bits, by sequence and motif.

    Scores are integers with sums below 2^24, exact in float32, so the result does not depend on the
    machine.

    `bases` (`P S`) are as from `encode`; `rows` sequences per step, few enough that the scores stay
    in the processor's cache; `update` is called with the number of motifs done and of all motifs.
    """
    totals = torch.zeros(len(bases), len(motifs))
    # Motifs of one width are the channels of one convolution.
    by_width: dict[int, list[int]] = {}
    for number, motif in enumerate(motifs):
        by_width.setdefault(len(motif.scores), []).append(number)
    done = 0
    for width, members in sorted(by_width.items()):
        if width <= bases.shape[1]:
            of_width = [motifs[number] for number in members]
            totals[:, members] = _scan_width(torch.from_numpy(bases), of_width, rows)
        done += len(members)
        update(done, len(motifs))
    return (totals / UNITS_PER_BIT).numpy()


def _scan_width(
    bases: UInt8[Tensor, "P S"], motifs: Sequence[Motif], rows: int
) -> Float[Tensor, "P K"]:
    """Convolve with motifs of one width on both strands.

    Three channels encode the bases, a bias the fourth; unknown bases have a channel.
    """
    scores = np.stack([motif.scores.T for motif in motifs])
    forward = torch.from_numpy(scores).float()
    # Reverse complement: A <-> T, C <-> G, reversed.
    both = torch.cat([forward, forward.flip(1, 2)])
    weight = both[:, :-1]
    last = both[:, -1:]
    channels = torch.arange(len(BASES) - 1, dtype=torch.uint8)
    if bool((bases >= len(BASES)).any()):
        weight = torch.cat([weight, torch.full_like(last, UNKNOWN)], 1)
        unknown = torch.tensor([len(BASES)], dtype=torch.uint8)
        channels = torch.cat([channels, unknown])
    # An integer score is a hit if it is above the threshold minus 1.
    below = torch.tensor([motif.threshold - 1 for motif in motifs]).float().repeat(2)
    bias = last.sum((1, 2)) - below
    sums = []
    for chunk in torch.split(bases, rows):
        indicator = (chunk[:, None] == channels[:, None]).float()
        # Score above the largest one without a hit; a hit counts with its whole score.
        excess = functional.conv1d(indicator, weight - last, bias).relu_()
        total = excess.sum(2)
        # Most sequences have no hit of most motifs.
        sequence, motif = total.nonzero(as_tuple=True)
        hits = excess[sequence, motif].count_nonzero(1)
        total[sequence, motif] += below[motif] * hits
        of_forward, of_reverse = total.chunk(2, 1)
        sums.append(of_forward + of_reverse)
    return torch.cat(sums)
