"""Looks for motifs in sequences: how much of each motif does each sequence hold?

Letters: P sequences, S bases of a sequence, K motifs, W columns of a motif.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everyone knows

from .motifs import BASES, UNITS_PER_BIT, Motif

__all__ = ["encode", "scan"]

UNKNOWN = -float(2**17)
"""The score of an unknown base: no word that holds one is a hit."""


def encode(sequences: Sequence[str]) -> UInt8[np.ndarray, "P S"]:
    """Return bases as numbers: A 0, C 1, G 2, T 3, anything else 4. `P S`.

    Raises:
        ValueError: If the sequences differ in length, or there is none.
    """
    lengths = {len(sequence) for sequence in sequences}
    if len(lengths) != 1:
        raise ValueError(f"sequences of one length are expected, got the lengths {sorted(lengths)[:5]}")
    table = np.full(256, 4, dtype=np.uint8)
    for number, base in enumerate(BASES):
        table[[ord(base), ord(base.lower())]] = number
    letters = np.frombuffer("".join(sequences).encode("ascii", "replace"), dtype=np.uint8)
    return table[letters].reshape(len(sequences), -1)


def scan(
    bases: UInt8[np.ndarray, "P S"],
    motifs: Sequence[Motif],
    rows: int = 16,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Float32[np.ndarray, "P K"]:
    """Return, per sequence and motif, the sum of the scores of all hits on both strands, in bits. `P K`.

    Scores are integers whose sums stay below 2^24, so float32 holds them exactly and
    the result does not depend on the machine.

    Args:
        bases: Sequences as `encode` returns them. `P S`.
        motifs: What to look for.
        rows: Sequences at a time: few enough that the scores stay in the processor's cache.
        tell: Called with how many motifs were looked for, and how many there are.
    """
    found = torch.zeros(len(bases), len(motifs))
    order = sorted(range(len(motifs)), key=lambda number: len(motifs[number].scores))
    done = 0
    for width, group in groupby(order, key=lambda number: len(motifs[number].scores)):
        members = list(group)
        done += len(members)
        if width <= bases.shape[1]:
            found[:, members] = _scan_width(torch.from_numpy(bases), [motifs[number] for number in members], rows)
        tell(done, len(motifs))
    bits: Float32[np.ndarray, "P K"] = (found / UNITS_PER_BIT).numpy()
    return bits


def _scan_width(bases: UInt8[Tensor, "P S"], motifs: Sequence[Motif], rows: int) -> Float[Tensor, "P K"]:
    """Scan for motifs of one width: a convolution over bases, both strands at once.

    A base is one of four, so three channels say which; the fourth's score is in the bias. Unknown bases have a channel
    of their own where there are any.
    """
    forward = torch.from_numpy(np.stack([motif.scores.T for motif in motifs])).float()  # K 4 W
    both = torch.cat([forward, forward.flip(1, 2)])  # the other strand: A <-> T, C <-> G, read backwards
    weight, last = both[:, :-1], both[:, -1:]
    channels = torch.arange(len(BASES) - 1, dtype=torch.uint8)
    if bool((bases >= len(BASES)).any()):
        weight = torch.cat([weight, torch.full_like(last, UNKNOWN)], 1)
        channels = torch.cat([channels, torch.tensor([len(BASES)], dtype=torch.uint8)])
    below = torch.tensor([motif.threshold - 1 for motif in motifs] * 2).float()
    bias = last.sum((1, 2)) - below
    sums = []
    for chunk in torch.split(bases, rows):
        indicator = (chunk[:, None] == channels[:, None]).float()
        excess = F.conv1d(indicator, weight - last, bias).relu_()  # by how much a word beats the last score of no hit
        total = excess.sum(2)
        i, k = total.nonzero(as_tuple=True)
        total[i, k] += below[k] * excess[i, k].count_nonzero(1)
        sums.append(total[:, : len(motifs)] + total[:, len(motifs) :])
    return torch.cat(sums)
