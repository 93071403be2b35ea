"""Names of peaks such as "chr1:9790-10675", and BED files."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Int, Shaped

from dither.registry.config.errors import Problem, Refused

from .raw_arrays import limited
from .region_checks import PLACES, check_order

__all__ = ["NAME", "Bed", "Places", "decoded", "parse_names", "read_bed", "texts_of"]

Places = tuple[Shaped[np.ndarray, " P"], Int[np.ndarray, " P"], Int[np.ndarray, " P"]]
"""Chromosome, start and end of each region."""

NAME: Final = re.compile(r"([^\s:]{1,60}):(\d{1,12})-(\d{1,12})")
MAX_BYTES: Final = 1 << 31
"""Bytes of text in a BED file."""


def parse_names(names: Shaped[np.ndarray, " P"], where: Callable[[int], str]) -> Places:
    """Parse names of regions.

    Args:
        names: Text.
        where: Returns the place of a row, for messages.

    Raises:
        Refused: Names the rows that do not parse, and problems in the order of the others.
    """
    matches = [NAME.fullmatch(name) for name in names.tolist()]
    wrong = [row for row, match in enumerate(matches) if match is None]
    groups = [match.groups() for match in matches if match]
    chromosome = np.array([group[0] for group in groups], np.str_)
    start, end = (np.array([group[k] for group in groups], np.int64) for k in (1, 2))
    places = (chromosome, start, end)
    if wrong:
        good = [row for row, match in enumerate(matches) if match is not None]
        lines = (f'{where(row)}: "{names[row][:40]}" is not a place such as chr1:9790-10675' for row in wrong)
        problems = _invalid(limited(lines, len(wrong)))
        if good:
            arrays = dict(zip(PLACES, places, strict=True))
            problems += check_order(lambda array, row, column: where(good[row]), arrays, overlaps=True)
        raise Refused(problems)
    return places


def _invalid(lines: Iterable[str]) -> list[Problem]:
    return [Problem(line, code="invalid-sample") for line in lines]


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

    Args:
        values: The column, perhaps of objects.
        where: Returns the place of a row, for messages.

    Raises:
        Refused: Names the rows that hold no text, such as None or nan.
    """
    if values.dtype.kind in "iuU":
        return values.astype(np.str_)
    wrong = [row for row, value in enumerate(values.tolist()) if not isinstance(value, str)]
    if wrong:
        lines = (f"{where(row)}: {str(values[row])[:40]} is not text" for row in wrong)
        raise Refused(_invalid(limited(lines, len(wrong))))
    return values.astype(np.str_)


@dataclass(frozen=True)
class Bed:
    """Content of a BED file.

    Attributes:
        places: Chromosome, start and end of each region.
        lines: Line number of each, from 1. `P`.
        fourth: Fourth column, "" where there is none.
    """

    places: Places
    lines: list[int]
    fourth: list[str]


def read_bed(path: Path) -> Bed:
    """Read a BED file, plain or gzipped.

    Raises:
        Refused: It cannot be read, or lines do not hold a place.
    """
    chromosome: list[str] = []
    numbers: list[tuple[int, int]] = []
    lines: list[int] = []
    fourth: list[str] = []
    wrong: list[str] = []
    for line, text in enumerate(_lines(path), 1):
        if not text.strip() or text.startswith(("#", "track", "browser")):
            continue
        fields = text.rstrip("\r\n").split("\t") if "\t" in text else text.split()
        try:
            numbers.append((int(fields[1]), int(fields[2])))
        except (ValueError, IndexError):
            wrong.append(f'{path}: line {line}: expected chromosome, start and end, got "{text.strip()[:60]}"')
            continue
        chromosome.append(fields[0].strip())
        lines.append(line)
        fourth.append(fields[3].strip() if len(fields) > 3 else "")
    if wrong:
        raise Refused(_invalid(limited(iter(wrong), len(wrong))))
    outside = [row for row, pair in enumerate(numbers) if any(not 0 <= end < 1 << 62 for end in pair)]
    if outside:
        row = outside[0]
        start, end = numbers[row]
        raise Refused(f"{path}: line {lines[row]}: {start}-{end} are not base numbers", code="invalid-sample")
    places = np.array(numbers, np.int64).reshape(-1, 2)
    return Bed((np.array(chromosome, np.str_), places[:, 0], places[:, 1]), lines, fourth)


def _lines(path: Path) -> list[str]:
    try:
        if path.name.endswith(".gz"):
            with gzip.open(path) as file:
                content = file.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise Refused(f"{path}: more than {MAX_BYTES:,} bytes", code="too-large")
        return content.decode("utf-8-sig").splitlines()
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise Refused(f"{path}: damaged, cut short or not text ({error})", code="damaged-file") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}", code="unreadable-file") from None
