"""Names of peaks such as "chr1:9790-10675", and columns of text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
from jaxtyping import Int, Shaped

from dither.registry.config.errors import Refused

from .region_checks import PLACES, check_order, invalid_rows

__all__ = ["NAME", "Places", "decoded", "parse_names", "texts_of"]

Places = tuple[Shaped[np.ndarray, " P"], Int[np.ndarray, " P"], Int[np.ndarray, " P"]]
"""Chromosome, start and end of each region."""

NAME: Final = re.compile(r"([^\s:]{1,60}):(\d{1,12})-(\d{1,12})")
"""Name of a peak."""


def parse_names(names: Shaped[np.ndarray, " P"], where: Callable[[int], str]) -> Places:
    """Parse names of regions.

    Args:
        names: Text.
        where: Returns the place of a row, for messages.

    Raises:
        Refused: Names the rows that do not parse, and problems in the order of the others.
    """
    matches = [NAME.fullmatch(name) for name in names.tolist()]
    groups = [match.groups() for match in matches if match]
    chromosome = np.array([group[0] for group in groups], np.str_)
    start, end = (np.array([group[k] for group in groups], np.int64) for k in (1, 2))
    wrong = np.array([match is None for match in matches], np.bool_)
    if wrong.any():
        problems = invalid_rows(
            wrong, lambda row: f'{where(row)}: "{names[row][:40]}" is not a place such as chr1:9790-10675'
        )
        if groups:
            rows, arrays = np.flatnonzero(~wrong), dict(zip(PLACES, (chromosome, start, end), strict=True))
            problems += check_order(lambda array, row, column: where(int(rows[row])), arrays, overlaps=True)
        raise Refused(problems)
    return chromosome, start, end


def decoded(values: Shaped[np.ndarray, " n"], where: str) -> Shaped[np.ndarray, " n"]:
    """Return text, decoded if it is stored as bytes.

    Raises:
        Refused: It is neither text nor UTF-8; names the row.
    """
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind != "S":
        raise Refused(f"{where} holds {values.dtype}, expected text", code="wrong-shape")
    texts = []
    for row, content in enumerate(values.ravel().tolist()):
        try:
            texts.append(content.decode("utf-8"))
        except UnicodeDecodeError:
            raise Refused(f"{where}, row {row}: {content[:40]!r} is not UTF-8", code="invalid-sample") from None
    return np.array(texts, np.str_).reshape(values.shape)


def texts_of(values: Shaped[np.ndarray, " P"], where: Callable[[int], str]) -> Shaped[np.ndarray, " P"]:
    """Return a column of names as text; whole numbers are names as well.

    Raises:
        Refused: Names the rows that hold no text, such as None or nan.
    """
    if values.dtype.kind not in "iuU":
        wrong = np.array([not isinstance(value, str) for value in values.tolist()], np.bool_)
        if problems := invalid_rows(wrong, lambda row: f"{where(row)}: {str(values[row])[:40]} is not text"):
            raise Refused(problems)
    return values.astype(np.str_)
