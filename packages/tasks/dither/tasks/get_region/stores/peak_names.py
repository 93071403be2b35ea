"""Names of peaks such as "chr1:9790-10675", and the files that list places: BED."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Int, Shaped

from dither.registry.problems import Problem, Refused

__all__ = ["Places", "parse_names", "read_bed"]

Places = tuple[Shaped[np.ndarray, " P"], Int[np.ndarray, " P"], Int[np.ndarray, " P"]]
"""Chromosome, start and end of each region."""

NAME: Final = re.compile(r"([^\s:]{1,60}):(\d{1,12})-(\d{1,12})")
SHOWN: Final = 5
LONGEST: Final = 1 << 31
"""Bytes of text that a BED file may hold."""


def parse_names(names: Shaped[np.ndarray, " P"], where: str) -> Places:
    """Return the places that names say.

    Args:
        names: As text.
        where: What to call them in a message.

    Raises:
        Refused: Names the rows that are no place.
    """
    found = [NAME.fullmatch(name) for name in names.tolist()]
    wrong = [row for row, match in enumerate(found) if match is None]
    if wrong:
        problems = [
            Problem(f'{where}, row {row}: "{names[row][:40]}" is no place such as chr1:9790-10675')
            for row in wrong[:SHOWN]
        ]
        if len(wrong) > SHOWN:
            problems.append(Problem(f"{where}: ... and {len(wrong) - SHOWN:,} more that are no place"))
        raise Refused(problems)
    groups = [match.groups() for match in found if match]
    chromosome = np.array([group[0] for group in groups], np.str_)
    start, end = (np.array([group[k] for group in groups], np.int64) for k in (1, 2))
    return chromosome, start, end


def read_bed(path: Path) -> tuple[Places, Any]:
    """Read a BED file, plain or gzipped: chromosome, start, end, and a fourth column of numbers or None without one.

    Raises:
        Refused: It cannot be read, or a line is no place; names the line.
    """
    chromosome: list[str] = []
    numbers: list[tuple[int, int]] = []
    fourth: list[float] = []
    for line, text in enumerate(_lines(path), 1):
        if not text.strip() or text.startswith(("#", "track", "browser")):
            continue
        fields = text.rstrip("\r\n").split("\t") if "\t" in text else text.split()
        try:
            numbers.append((int(fields[1]), int(fields[2])))
            chromosome.append(fields[0].strip())
        except (ValueError, IndexError):
            raise Refused(f'{path}: line {line}: "{text.strip()[:60]}" is no chromosome, start and end') from None
        if len(fields) > 3:
            try:
                fourth.append(float(fields[3]))
            except ValueError:
                continue
    places = np.array(numbers, np.int64).reshape(-1, 2)
    values = np.array(fourth) if len(fourth) == len(chromosome) and fourth else None
    return (np.array(chromosome, np.str_), places[:, 0], places[:, 1]), values


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
