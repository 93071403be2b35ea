"""What a store of get_model knows of genes: the peak of each, its name and its strand. Letters: G genes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from dither.registry.problems import Problem, Refused

from ..region_order import first_of
from .peak_names import decoded
from .survey import GENES
from .zarr_array import ZarrArray

__all__ = ["read_genes"]


def read_genes(opened: Mapping[str, ZarrArray], path: Path) -> dict[str, Any]:
    """Return `gene_index`, `gene_name` and `gene_strand`.

    Args:
        opened: The arrays of the store by name; those of genes are there.
        path: The store, for messages.

    Raises:
        Refused: They are not of one length, genes are on no strand, or on peaks that are not there.
    """
    index, name, strand = (opened[each][:] for each in GENES)
    name, strand = decoded(name, f"{path}: {GENES[1]}"), decoded(strand, f"{path}: {GENES[2]}")
    if index.ndim != 1 or len({len(index), len(name), len(strand)}) > 1:
        said = ", ".join(f"{each} {opened[each].shape}" for each in GENES)
        raise Refused(f"{path}: what is known of genes has different shapes, expected (G,) for G genes: {said}")
    peaks = next((len(opened[each]) for each in ("peak_names", "data") if each in opened), None)
    wrong: list[str] = []
    if peaks is not None:
        away = ~np.isin(index, np.arange(peaks))
        wrong += _rows(GENES[0], away, lambda row: f"{index[row]} is none of the {peaks:,} peaks, 0 to {peaks - 1}")
    odd = ~np.isin(strand, ["+", "-"])
    wrong += _rows(GENES[2], odd, lambda row: f'"{strand[row]}" is neither "+" nor "-"')
    if wrong:
        raise Refused([Problem(f"{path}: {what}") for what in wrong])
    return {"gene_index": index, "gene_name": name, "gene_strand": strand}


def _rows(name: str, wrong: Bool[np.ndarray, " G"], say: Callable[[int], str]) -> Iterator[str]:
    rows = np.flatnonzero(wrong).tolist()
    yield from first_of((f"{name}, row {row}: {say(row)}" for row in rows), len(rows))
