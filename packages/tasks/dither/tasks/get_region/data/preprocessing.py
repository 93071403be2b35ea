"""From checked arrays to a `RegionMatrix`: default values, held-out chromosomes, scaled motifs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dither.registry.config.errors import Problem, Refused, nearest

from .lazy_matrix import LazyMatrix, column_divisors
from .region_matrix import RegionMatrix, scale_to_largest

__all__ = ["assemble"]


def assemble(
    path: Path, arrays: Mapping[str, Any], *, valid: Sequence[str], test: Sequence[str], scale: bool
) -> RegionMatrix:
    """Return the matrix of arrays that `check_arrays` accepted.

    Args:
        path: Source of the arrays, for messages.
        arrays: The arrays. Features that are memory-mapped stay so. Without `open`, regions with atpm > 0 are open.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test.
        scale: Divide each motif by its largest value in the training regions and clip at 1.

    Raises:
        Refused: A chromosome to hold out does not exist, or none is left for training.
    """
    columns = dict(arrays)
    regions = len(columns["start"])
    columns.setdefault("cells", np.zeros(0, "U1"))
    closed = np.zeros((regions, len(columns["cells"])), bool)
    columns.setdefault("open", columns["atpm"] > 0 if "atpm" in columns else closed)
    if "tss" in columns:
        columns["tss"] = np.asarray(columns["tss"]).astype(np.bool_)
    stored = columns["features"]
    mapped = isinstance(stored, np.memmap)
    columns["features"] = LazyMatrix(stored) if mapped else stored
    matrix = RegionMatrix.of(columns, valid, test)
    _check_chromosomes(path, matrix)
    if not scale:
        return matrix
    train = matrix.rows("train")
    if mapped:
        columns["features"] = LazyMatrix(stored, column_divisors(stored, train))
    else:
        columns["features"], _ = scale_to_largest(np.asarray(matrix.features), train)
    return RegionMatrix.of(columns, valid, test)


def _check_chromosomes(path: Path, matrix: RegionMatrix) -> None:
    existing = sorted(set(matrix.chromosome.tolist()))
    problems = []
    for split, names in (("valid", matrix.valid), ("test", matrix.test)):
        for name in names:
            if name not in existing:
                close = nearest(name, existing)
                help_text = (f'did you mean "{close}"? ' if close else "") + f"available: {', '.join(existing[:30])}"
                message = f'{path}: no chromosome "{name}" to hold out for {split}'
                problems.append(Problem(message, help=help_text, code="unknown-value"))
    if not problems and not matrix.rows("train").any():
        message = f"{path}: every chromosome is held out, none is left for training"
        problems.append(Problem(message, code="no-samples"))
    if problems:
        raise Refused(problems)
