"""Names of peaks such as "chr1:9790-10675", and the files that list places: BED."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Int, Shaped

from dither.registry.config.errors import Problem, Refused

from .region_checks import check_order, first_of

__all__ = ["Bed", "Places", "decoded", "parse_names", "read_bed", "texts_of"]

Places = tuple[Shaped[np.ndarray, " P"], Int[np.ndarray, " P"], Int[np.ndarray, " P"]]
"""Chromosome, start and end of each region."""

NAME: Final = re.compile(r"([^\s:]{1,60}):(\d{1,12})-(\d{1,12})")
LONGEST: Final = 1 << 31
"""Bytes of text that a BED file may hold."""


def parse_names(names: Shaped[np.ndarray, " P"], where: Callable[[int], str]) -> Places:
    """Return the places that names say.

    Args:
        names: As text.
        where: How a row is called in a message.

    Raises:
        Refused: Names the rows that are no place, and what is wrong with the order of the others.
    """
    found = [NAME.fullmatch(name) for name in names.tolist()]
    wrong = [row for row, match in enumerate(found) if match is None]
    places = _places([match.groups() for match in found if match])
    if wrong:
        good = [row for row, match in enumerate(found) if match is not None]
        lines = (f'{where(row)}: "{names[row][:40]}" is no place such as chr1:9790-10675' for row in wrong)
        said = [*first_of(lines, len(wrong))]
        if good:
            arrays = dict(zip(("chromosome", "start", "end"), places, strict=True))
            said += check_order(lambda array, row, column: where(good[row]), arrays, overlaps=True)
        raise Refused([*map(Problem, said)])
    return places


def _places(groups: list[tuple[str, ...]]) -> Places:
    chromosome = np.array([group[0] for group in groups], np.str_)
    start, end = (np.array([group[k] for group in groups], np.int64) for k in (1, 2))
    return chromosome, start, end


def decoded(values: Shaped[np.ndarray, " n"], where: str) -> Shaped[np.ndarray, " n"]:
    """Return text, also where it is kept as bytes.

    Raises:
        Refused: It is no text, or bytes are none; names the row.
    """
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind != "S":
        raise Refused(f"{where} holds {values.dtype}, expected text")
    found = []
    for row, content in enumerate(values.ravel().tolist()):
        try:
            found.append(content.decode("utf-8"))
        except UnicodeDecodeError:
            raise Refused(f"{where}, row {row}: {content[:40]!r} is no text in utf-8") from None
    return np.array(found, np.str_).reshape(values.shape)


def texts_of(values: Shaped[np.ndarray, " P"], where: Callable[[int], str]) -> Shaped[np.ndarray, " P"]:
    """Return a column of names as text; whole numbers are names as well.

    Args:
        values: What the column holds, perhaps objects.
        where: How a row is called in a message.

    Raises:
        Refused: Names the rows that hold no text, such as None or nan where nothing was said.
    """
    if values.dtype.kind in "iuU":
        return values.astype(np.str_)
    wrong = [row for row, value in enumerate(values.tolist()) if not isinstance(value, str)]
    if wrong:
        lines = (f"{where(row)}: {str(values[row])[:40]} is no text" for row in wrong)
        raise Refused([*map(Problem, first_of(lines, len(wrong)))])
    return values.astype(np.str_)


@dataclass(frozen=True)
class Bed:
    """What a BED file says.

    Attributes:
        places: Chromosome, start and end of each region.
        lines: The line that each stands in, from 1. `P`.
        fourth: What stands in the fourth column, "" where there is none.
    """

    places: Places
    lines: list[int]
    fourth: list[str]


def read_bed(path: Path) -> Bed:
    """Read a BED file, plain or gzipped.

    Raises:
        Refused: It cannot be read, or lines are no place; names them.
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
            wrong.append(f'{path}: line {line}: "{text.strip()[:60]}" is no chromosome, start and end')
            continue
        chromosome.append(fields[0].strip())
        lines.append(line)
        fourth.append(fields[3].strip() if len(fields) > 3 else "")
    if wrong:
        raise Refused([*map(Problem, first_of(iter(wrong), len(wrong)))])
    if any(not 0 <= end < 1 << 62 for pair in numbers for end in pair):
        row = next(row for row, pair in enumerate(numbers) if any(not 0 <= end < 1 << 62 for end in pair))
        raise Refused(f"{path}: line {lines[row]}: {numbers[row][0]}-{numbers[row][1]} are no bases")
    places = np.array(numbers, np.int64).reshape(-1, 2)
    return Bed((np.array(chromosome, np.str_), places[:, 0], places[:, 1]), lines, fourth)


def _lines(path: Path) -> list[str]:
    try:
        if path.name.endswith(".gz"):
            with gzip.open(path) as file:
                content = file.read(LONGEST + 1)
        else:
            with path.open("rb") as file:
                content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise Refused(f"{path}: holds more than {LONGEST:,} bytes")
        return content.decode("utf-8-sig").splitlines()
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise Refused(f"{path}: is damaged, cut short or no text ({error})") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}") from None
