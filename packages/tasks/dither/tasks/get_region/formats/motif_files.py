"""Motif files (MEME, JASPAR), and regions as the hits of motifs in a genome.

Letters: W columns of a motif, P regions, K motifs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.cache import fetch_wheel

from ...prepared.progress import Progress
from ..data.human_dhs import MOTIF_WHEEL, read_counts
from ..data.motif_scan import Motif, encode, scan
from .matrices import from_bed, locate_in, read_bed
from .region_checks import RawArrays, check_arrays
from .tables import open_table

__all__ = ["read_motifs", "scan_regions"]

Counts = Float[ndarray, "_ _"]

SITES = 20
"""Sites behind a probability matrix of MEME that does not state their number: its own default."""
NUMBERS = re.compile(
    r"\s*(?:[ACGTacgt]\s*)?\[?((?:\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?)+)\s*\]?\s*"
)


def read_motifs(path: Path | None, p_value: float = 1e-4) -> list[Motif]:
    """Read a file in MEME or JASPAR format; None reads vertebrates of JASPAR 2026 CORE.

    A motif is named by its alternative name, or by its id where names repeat. `p_value` is the
    probability of a hit in a random word. Refused with all tables that are not W columns of four
    counts.
    """
    if path is None:
        newest = read_counts(fetch_wheel(*MOTIF_WHEEL)).values()
        return [Motif.of(name, counts, p_value) for name, counts in newest]
    with open_table(path) as file:
        lines = file.read().splitlines()
    is_meme = any(line.startswith("MEME version") for line in lines)
    # All tables are read before the first is refused, so that every mistake is reported.
    tables = list(
        _tables(lines, _meme_counts if is_meme else _jaspar_counts, is_meme=is_meme)
    )
    # Motifs are found by name, so names must differ.
    repeated = Counter(name for _, _, name, _ in tables)
    motifs = []
    problems = []
    for line, key, name, counts in tables:
        try:
            unique = name if repeated[name] == 1 else key
            motifs.append(Motif.of(unique, counts, p_value))
        except (ValueError, TypeError) as error:
            message = f"{path}: line {line}: motif {key}: {error}"
            problems.append(Problem(message, code="invalid-sample"))
    if not tables:
        message = f"{path}: no motifs in MEME or JASPAR format"
        problems.append(Problem(message, code="unknown-format"))
    if problems:
        raise Refused(problems)
    return motifs


def _tables(
    lines: Sequence[str], counts: Callable[[list[str]], Counts], *, is_meme: bool
) -> Iterator[tuple[int, str, str, Counts]]:
    """Yield line number, id, name and counts of each motif; the counts may have any shape."""
    head = re.compile(
        r"MOTIF\s+(\S+)(?:\s+(\S+))?" if is_meme else r">\s*(\S+)(?:\s+(\S+))?"
    )
    matches = {number: head.match(line) for number, line in enumerate(lines)}
    starts = [number for number, match in matches.items() if match]
    for start, stop in pairwise([*starts, len(lines)]):
        match = matches[start]
        assert match is not None
        block = list(lines[start + 1 : stop])
        yield start + 1, match[1], match[2] or match[1], counts(block)


def _meme_counts(lines: list[str]) -> Counts:
    """Return counts from the probabilities and the number of sites of a motif in MEME format."""
    for number, line in enumerate(lines):
        if line.startswith("letter-probability"):
            stated = re.search(r"nsites=\s*([\d.]+)", line)
            sites = float(stated[1]) if stated else float(SITES)
            return _numbers(lines[number + 1 :]) * sites
    return np.zeros((0, 0))


def _jaspar_counts(lines: list[str]) -> Counts:
    """Return counts of a motif in JASPAR format: a row for each base."""
    return _numbers(lines).T


def _numbers(lines: Iterable[str]) -> Counts:
    """Return the rows of numbers; an empty table if they differ in length."""
    rows = []
    for line in lines:
        match = NUMBERS.fullmatch(line)
        if match:
            rows.append([float(number) for number in match[1].split()])
    if len({len(row) for row in rows}) != 1:
        return np.zeros((0, 0))
    return np.array(rows)


def scan_regions(
    peaks: Path,
    genome: Path,
    motifs: Path | None = None,
    *,
    p_value: float = 1e-4,
    overlaps: bool = False,
) -> RawArrays:
    """Return regions with the summed scores of the hits of each motif, in bits, as `features`.

    `peaks` is a sorted BED file; if it is called CELL.atac.bed, its fourth column is the
    accessibility of a cell type. `genome`, a FASTA file, plain or gzipped, is read one chromosome
    at a time. For the others see `read_motifs`.
    """
    scanned = read_motifs(motifs, p_value)
    bed = read_bed(peaks)
    names = np.array([motif.name for motif in scanned], np.str_)
    features = np.zeros((len(bed.lines), len(names)), np.float32)
    arrays = {"features": features, "motifs": names}
    arrays |= from_bed(
        path=peaks,
        bed=bed,
        matrix=peaks,
        arrays=arrays,
    )
    locate = locate_in(
        peaks, bed, lambda array, row, name: f"{peaks.name}, line {bed.lines[row]}"
    )
    raw = RawArrays(arrays, locate)
    check_arrays(peaks, raw, overlaps=overlaps)

    chromosome = bed.places["chromosome"]
    start = bed.places["start"]
    end = bed.places["end"]
    wanted = set(chromosome.tolist())
    found = set()
    done = 0
    problems = []
    with Progress("regions scanned") as progress:
        for name, sequence in _chromosomes(genome, wanted):
            found.add(name)
            rows = np.flatnonzero(chromosome == name)
            for row in rows[end[rows] > len(sequence)].tolist():
                where = f"{peaks}: line {bed.lines[row]}"
                message = (
                    f"{where}: ends at {end[row]}, but {name} has {len(sequence)} bases"
                )
                problems.append(Problem(message, code="out-of-range"))
            if not problems:
                # Shorter regions end in unknown bases, which have no hits.
                longest = int((end - start)[rows].max())
                texts = []
                for row in rows.tolist():
                    texts.append(sequence[start[row] : end[row]].ljust(longest, "N"))
                features[rows] = scan(encode(texts), scanned)
            done += len(rows)
            progress.update(done, len(features))

    for name in sorted(wanted - found):
        message = f'{genome}: no sequence "{name}", which {peaks} names'
        fix = did_you_mean(name, found)
        problems.append(Problem(message, help=fix, code="unknown-value"))
    if problems:
        raise Refused(problems)
    return raw


def _chromosomes(genome: Path, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Yield name and bases of the wanted records of a FASTA file."""
    name = ""
    parts = list[str]()
    with open_table(genome) as file:
        for line in file:
            if line.startswith(">"):
                if name in wanted:
                    yield name, "".join(parts)
                name = (line[1:].split() or [""])[0]
                parts = []
            elif name in wanted:
                parts.append(line.strip())
    if name in wanted:
        yield name, "".join(parts)
