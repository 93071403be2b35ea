"""From checked arrays to a matrix: what is not known is filled in, chromosomes are held out, motifs are scaled."""

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
    """Make a matrix of arrays that `check_arrays` let pass.

    Args:
        path: Where they are from, for the message.
        arrays: What is known. Features that are mapped from a file stay there. A region is open where its atpm is above
            0, unless `open` says it otherwise.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test.
        scale: Divide each motif by its largest value in the training regions and cut at 1.

    Raises:
        Refused: A chromosome that is to be held out is not there, or none is left to train on.
    """
    given = dict(arrays)
    regions = len(given["start"])
    given.setdefault("cells", np.zeros(0, "U1"))
    given.setdefault("open", given["atpm"] > 0 if "atpm" in given else np.zeros((regions, len(given["cells"])), bool))
    if "tss" in given:
        given["tss"] = np.asarray(given["tss"]).astype(np.bool_)
    stored = given["features"]
    mapped = isinstance(stored, np.memmap)
    given["features"] = LazyMatrix(stored) if mapped else stored
    matrix = RegionMatrix.of(given, valid, test)
    _check_chromosomes(path, matrix)
    if not scale:
        return matrix
    train = matrix.rows("train")
    if mapped:
        given["features"] = LazyMatrix(stored, column_divisors(stored, train))
    else:
        given["features"], _ = scale_to_largest(np.asarray(matrix.features), train)
    return RegionMatrix.of(given, valid, test)


def _check_chromosomes(path: Path, matrix: RegionMatrix) -> None:
    there = sorted(set(matrix.chromosome.tolist()))
    problems = []
    for split, names in (("valid", matrix.valid), ("test", matrix.test)):
        for name in names:
            if name not in there:
                close = nearest(name, there)
                hint = f'did you mean "{close}"? ' if close else ""
                message = f'{path}: has no chromosome "{name}" to hold out for {split}'
                problems.append(Problem(message, help=f"{hint}there are: {', '.join(there[:30])}"))
    if not problems and not matrix.rows("train").any():
        problems.append(Problem(f"{path}: every chromosome is held out, none is left to train on"))
    if problems:
        raise Refused(problems)
