"""Regions of several stores as one matrix.

Letters: S stores, P regions of all, C cell types of any.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused

from .region_matrix import RegionMatrix
from .stacked_rows import StackedRows

__all__ = ["join_stores"]


def join_stores(
    paths: Sequence[Path], matrices: Sequence[RegionMatrix]
) -> RegionMatrix:
    """Return the regions of all stores, in the cell types of any.

    Motifs stay where they are stored. Values of a cell type that a store lacks are 0 and not
    `measured`; those that one of its stores lacks are unknown.

    Raises:
        Refused: A store has other motifs than the first, or in another order.
    """
    first = matrices[0]
    for path, matrix in zip(paths, matrices, strict=True):
        if matrix.motifs != first.motifs:
            raise Refused(_other_motifs(path, matrix, paths[0], first))
    names: list[str] = []
    notes: list[str] = []
    unknown: set[str] = set()
    for matrix in matrices:
        names += matrix.cells
        notes += matrix.notes
        unknown.update(matrix.unknown)
    cells = tuple(dict.fromkeys(names))
    chromosomes, number = np.unique(
        np.concatenate([matrix.chromosome for matrix in matrices]), return_inverse=True
    )

    arrays: dict[str, Any] = {}
    for kind in ("open", "atpm", "expression", "tss"):
        arrays[kind] = _stack(kind, matrices, cells, unknown)
    sizes = [len(matrix) for matrix in matrices]
    genes = _genes(matrices, sizes)
    measured = [np.isin(cells, matrix.cells) for matrix in matrices]
    return RegionMatrix(
        features=StackedRows([matrix.features for matrix in matrices]),
        motifs=first.motifs,
        chromosomes=chromosomes,
        chromosome_number=number.astype(np.min_scalar_type(len(chromosomes))),
        start=np.concatenate([matrix.start for matrix in matrices]),
        end=np.concatenate([matrix.end for matrix in matrices]),
        cells=cells,
        valid=(),
        test=(),
        # A set of strings has another order in each process.
        unknown=tuple(sorted(unknown)),
        notes=tuple(notes),
        # No window crosses from one store to the next.
        store=np.repeat(np.arange(len(matrices)), sizes),
        measured=np.repeat(measured, sizes, axis=0),
        **arrays,
        **genes,
    )


def _other_motifs(
    path: Path, matrix: RegionMatrix, first_path: Path, first: RegionMatrix
) -> Problem:
    """Return what distinguishes the motifs of a store from those of the first."""
    message = f"{path}: its motifs are in another order than those of {first_path}"
    for name, kind in (
        (sorted(set(first.motifs) - set(matrix.motifs)), "lacks"),
        (sorted(set(matrix.motifs) - set(first.motifs)), "also has"),
    ):
        if name:
            message = f"{path} {kind} motif {name[0]} unlike {first_path}"
    return Problem(message, path=("task", "data", "paths"), code="misfit")


def _stack(
    kind: str,
    matrices: Sequence[RegionMatrix],
    cells: tuple[str, ...],
    unknown: set[str],
) -> Shaped[ndarray, "P C *_"] | None:
    """Return an array of all regions and cell types; None if no store has it."""
    arrays = [getattr(matrix, kind) for matrix in matrices]
    existing = [array for array in arrays if array is not None]
    if not existing:
        return None
    parts = []
    for matrix, array in zip(matrices, arrays, strict=True):
        # Expression and tss have a last axis of two strands.
        shape = (len(matrix), len(cells), *existing[0].shape[2:])
        part = np.zeros(shape, existing[0].dtype)
        if array is None:
            unknown.update(f"{kind}:{cell}" for cell in matrix.cells)
        else:
            part[:, [cells.index(cell) for cell in matrix.cells]] = array
        parts.append(part)
    return np.concatenate(parts)


def _genes(matrices: Sequence[RegionMatrix], sizes: Sequence[int]) -> dict[str, Any]:
    """Return genes and their regions, of the stores that name them."""
    names = []
    regions = []
    start = 0
    for matrix, size in zip(matrices, sizes, strict=True):
        if matrix.gene is not None and matrix.gene_region is not None:
            names.append(matrix.gene)
            # Regions are numbered through all stores.
            regions.append(matrix.gene_region.astype(np.int64) + start)
        start += size
    if not names:
        return {}
    return {"gene": np.concatenate(names), "gene_region": np.concatenate(regions)}
