"""Motif files (MEME, JASPAR), and regions as the hits of motifs in a genome.

Letters: W columns of a motif, P regions, K motifs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.cache import fetch_wheel

from ...prepared.progress import Progress
from ..data.human_dhs import MOTIF_WHEEL, read_counts
from ..data.motif_scan import Motif, encode, scan
from .matrices import from_bed, locate_in, read_bed
from .region_checks import RawArrays, check_arrays
from .tables import open_table

__all__ = ["read_motifs", "scan_regions"]

SITES = 20
"""Sites behind a probability matrix of MEME that does not state their number: its own default."""
NUMBERS = re.compile(r"\s*(?:[ACGTacgt]\s*)?\[?((?:\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?)+)\s*\]?\s*")


def read_motifs(path: Path | None, p_value: float = 1e-4) -> list[Motif]:
    """Read a file in MEME or JASPAR format; None reads the CORE motifs of vertebrates in JASPAR 2026.

    A motif is named by its alternative name, or by its id where names repeat. `p_value` is the
    probability of a hit in a random word. Refused with all tables that are not W columns of four
    counts.
    """
    if path is None:
        return [
            Motif.of(name, counts, p_value)
            for name, counts in read_counts(fetch_wheel(*MOTIF_WHEEL)).values()
        ]
    with open_table(path) as file:
        lines = file.read().splitlines()
    meme = any(line.startswith("MEME version") for line in lines)
    tables = list(_tables(lines, meme))
    repeated = Counter(name for _, _, name, _ in tables)
    motifs = []
    problems = []
    for line, key, name, table in tables:
        try:
            motifs.append(Motif.of(name if repeated[name] == 1 else key, table, p_value))
        except (ValueError, TypeError) as error:
            problems.append(
                Problem(f"{path}: line {line}: motif {key}: {error}", code="invalid-sample")
            )
    if not tables:
        problems.append(
            Problem(f"{path}: no motifs in MEME or JASPAR format", code="unknown-format")
        )
    if problems:
        raise Refused(problems)
    return motifs


def _tables(
    lines: list[str], meme: bool
) -> Iterator[tuple[int, str, str, Shaped[np.ndarray, "_ _"]]]:
    """Yield line number, id, name and counts of each motif; the counts may have any shape."""
    head = re.compile(r"MOTIF\s+(\S+)(?:\s+(\S+))?" if meme else r">\s*(\S+)(?:\s+(\S+))?")
    starts = [(number, match) for number, line in enumerate(lines) if (match := head.match(line))]
    stops = [*(number for number, _ in starts[1:]), len(lines)]
    for (number, match), stop in zip(starts, stops, strict=bool(starts)):
        block = lines[number + 1 : stop]
        sites = float(SITES)
        if meme:
            matrix = next(
                (n for n, line in enumerate(block) if line.startswith("letter-probability")),
                len(block),
            )
            stated = re.search(r"nsites=\s*([\d.]+)", block[matrix] if matrix < len(block) else "")
            sites = float(stated[1]) if stated else sites
            block = block[matrix + 1 :]
        rows = [
            [float(word) for word in found[1].split()]
            for line in block
            if (found := NUMBERS.fullmatch(line))
        ]
        ragged = len({len(row) for row in rows}) != 1
        table = np.zeros((0, 0)) if ragged else np.array(rows) * sites if meme else np.array(rows).T
        yield number + 1, match[1], match[2] or match[1], table


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
    arrays |= from_bed(peaks, bed, peaks, arrays)
    raw = RawArrays(
        arrays,
        locate_in(peaks, bed, lambda array, row, name: f"{peaks.name}, line {bed.lines[row]}"),
    )
    check_arrays(peaks, raw, overlaps=overlaps)
    chromosome, starts, ends = bed.places
    problems = []
    seen = set()
    with Progress("regions scanned") as progress:
        for name, sequence in _chromosomes(genome, set(chromosome.tolist())):
            seen.add(name)
            rows = np.flatnonzero(chromosome == name)
            for row in rows[ends[rows] > len(sequence)].tolist():
                what = f"{peaks}: line {bed.lines[row]}: ends at {ends[row]}, but {name} has {len(sequence)} bases"
                problems.append(Problem(what, code="out-of-range"))
            if not problems:
                longest = int(
                    (ends - starts)[rows].max()
                )  # shorter ones end in unknown bases, which have no hits
                texts = [
                    sequence[starts[row] : ends[row]].ljust(longest, "N") for row in rows.tolist()
                ]
                features[rows] = scan(encode(texts), scanned)
            progress.update(sum(int((chromosome == known).sum()) for known in seen), len(features))
    for name in sorted(set(chromosome.tolist()) - seen):
        what = f'{genome}: no sequence "{name}", which {peaks} names'
        fix = did_you_mean(name, seen)
        problems.append(Problem(what, help=fix, code="unknown-value"))
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
