"""Motif files (MEME, JASPAR), and regions as the hits of motifs in a genome.

Letters: W columns of a motif, P regions, K motifs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.cache import fetch_wheel

from ...prepared.progress import Progress
from ..data.human_dhs import MOTIF_WHEEL, read_counts
from ..data.motif_scan import BASES, EVEN, Motif, encode, scan
from ..data.region_matrix import RowsOf, all_rows
from .matrices import from_bed, locate_in, read_bed
from .region_checks import RawArrays, check_arrays, other_style
from .tables import open_table

__all__ = ["read_motifs", "scan_regions"]

Counts = Float[ndarray, "_ _"]

SITES = 20
"""Sites behind a matrix of probabilities that does not state their number: the default of MEME."""
MAX_CHROMOSOME = 1 << 32
"""Most bytes of a line of a gzipped genome."""
ROUNDING = 0.05
"""Largest difference of the sum of probabilities from 1."""

NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
ROW = re.compile(rf"\s*{NUMBER}(?:\s+{NUMBER})*\s*")
LETTERED_ROW = re.compile(
    rf"\s*(?:([A-Za-z])\s*)?(?:\[({ROW.pattern})\]|({ROW.pattern}))\s*"
)
"""A row of JASPAR, as in "A [ 3 0 1 ]", "A 3 0 1" or "3 0 1"."""
HEAD = re.compile(r"(?:MOTIF\s|>)\s*(\S+)(?:\s+(\S+))?")
"""The first line of a motif: its id, and in most files a name."""
STATED = re.compile(r"(alength|w|nsites)=\s*(\S+)")
TABLE_HEAD = "letter-probability matrix:"
TABLE_END = re.compile(r"\s*|[A-Za-z].*|[-*]{3,}")
"""The line after the rows of MEME: a blank, a keyword, or a rule."""


def read_motifs(path: Path | None, p_value: float = 1e-4) -> list[Motif]:
    """Read a file in MEME or JASPAR format; None reads vertebrates of JASPAR 2026 CORE.

    A motif is named by its alternative name, or by its id where names repeat. `p_value` is the
    probability of a hit in a random word, under the background of a MEME file, which is averaged
    over both strands. Columns that sum to 1 are probabilities. Refused with all tables that
    contradict what they state, or are not W columns of four counts.
    """
    if path is None:
        newest = read_counts(fetch_wheel(*MOTIF_WHEEL)).values()
        return [Motif.of(name, counts, p_value) for name, counts in newest]

    with open_table(path) as file:
        lines = file.read().splitlines()
    first = next((line for line in lines if line.strip()), "")
    is_meme = first.startswith("MEME version")
    mark = "MOTIF" if is_meme else ">"
    counts_of = _meme_counts if is_meme else _jaspar_counts
    starts = [number for number, line in enumerate(lines) if line.startswith(mark)]
    mistakes = []

    background: Sequence[float] = EVEN
    if is_meme:
        head = lines[: min(starts, default=len(lines))]
        try:
            background = _background(head)
        except ValueError as error:
            mistakes.append(str(error))

    # All tables are read before the first is refused, so that every mistake is reported.
    tables = []
    for start, stop in pairwise([*starts, len(lines)]):
        key, name = _id_and_name(lines[start])
        try:
            counts = counts_of(lines[start + 1 : stop])
            # Checks the values, too.
            motif = Motif.of(name, counts, p_value, background)
            tables.append(_Table(start + 1, key, motif))
        except (ValueError, TypeError) as error:
            mistakes.append(f"line {start + 1}: motif {key}: {error}")

    motifs, repetitions = _with_own_names(tables)
    mistakes += repetitions
    problems = [
        Problem(f"{path}: {mistake}", code="invalid-sample") for mistake in mistakes
    ]
    if not starts:
        message = f"{path}: no motifs in MEME or JASPAR format"
        problems.append(Problem(message, code="unknown-format"))
    if problems:
        raise Refused(problems)
    return motifs


class _Table(NamedTuple):
    """A motif with the number of its line in the file, and its id."""

    line: int
    key: str
    motif: Motif


def _id_and_name(line: str) -> tuple[str, str]:
    """Return id and alternative name, by default the id, in the first line of a motif."""
    match = HEAD.match(line)
    if match is None:
        return "", ""
    return match[1], match[2] or match[1]


def _with_own_names(tables: Sequence[_Table]) -> tuple[list[Motif], list[str]]:
    """Return motifs, named by their id where names repeat, and a mistake for each repeated id."""
    counts = Counter(table.motif.name for table in tables)
    motifs: dict[str, Motif] = {}
    mistakes = []
    for line, key, motif in tables:
        name = key
        if counts[motif.name] == 1:
            name = motif.name

        if name in motifs:
            mistakes.append(f"line {line}: motif {name} again")
        motifs[name] = replace(motif, name=name)
    return list(motifs.values()), mistakes


def _background(lines: Sequence[str]) -> Sequence[float]:
    """Return the background of the head of a MEME file, the same on both strands; by default even."""
    for number, line in enumerate(lines):
        if line.startswith("ALPHABET=") and line.split("=")[1].strip() != BASES:
            raise ValueError(f'line {number + 1}: "{line.strip()}" is not {BASES}')
        if not line.startswith("Background letter frequencies"):
            continue
        # Letters and numbers alternate, on one line or more.
        words = " ".join(takewhile(str.strip, lines[number + 1 :])).split()
        shares = dict(zip(words[::2], map(_number, words[1::2]), strict=False))
        total = sum(shares.values())
        has_bases = sorted(shares) == list(BASES) and len(words) == 2 * len(BASES)
        is_one = abs(total - 1) <= ROUNDING
        if not has_bases or not is_one or min(shares.values()) <= 0:
            raise ValueError(
                f'line {number + 2}: a background is "A p C p G p T p" with a sum of 1, '
                f'not "{" ".join(words)[:60]}"'
            )
        # Hits are counted on both strands (as in FIMO).
        # Averaging over the strands makes complementary bases equally likely.
        at = (shares["A"] + shares["T"]) / (2 * total)
        return at, 0.5 - at, 0.5 - at, at
    return EVEN


def _meme_counts(lines: Sequence[str]) -> Counts:
    """Return counts from the probabilities and the number of sites of a motif in MEME format."""
    heads = [number for number, line in enumerate(lines) if line.startswith(TABLE_HEAD)]
    if len(heads) != 1:
        raise ValueError(f'has {len(heads)} tables "{TABLE_HEAD}", expected 1')
    (head,) = heads
    stated = {}
    for key, text in STATED.findall(lines[head]):
        stated[key] = _number(text)

    rows = []
    for line in lines[head + 1 :]:
        if TABLE_END.fullmatch(line):
            break
        if not ROW.fullmatch(line):
            raise ValueError(f'"{line.strip()[:60]}" is not a row of probabilities')
        rows.append([float(number) for number in line.split()])

    if len(rows) != stated.get("w", len(rows)):
        raise ValueError(f"states w= {stated['w']:g}, but has {len(rows)} rows")
    if stated.get("alength", 4) != 4:
        raise ValueError(f"states alength= {stated['alength']:g}, expected 4")
    for number, row in enumerate(rows, 1):
        if len(row) != len(BASES) or abs(sum(row) - 1) > ROUNDING:
            raise ValueError(f"row {number} is not four probabilities with a sum of 1")
    return np.array(rows) * stated.get("nsites", SITES)


def _jaspar_counts(lines: Sequence[str]) -> Counts:
    """Return counts of a motif in JASPAR format: a row for each base, in any order if it is named."""
    rows: dict[str, list[float]] = {}
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        match = LETTERED_ROW.fullmatch(line)
        if match is None:
            raise ValueError(f'"{line.strip()[:60]}" is not a row of counts')
        # Rows without letters are A, C, G, T.
        letter = match[1] or BASES[len(rows) : len(rows) + 1]
        numbers = match[2] or match[3]
        if letter.upper() in rows:
            raise ValueError(f"has two rows of {letter.upper()}")
        rows[letter.upper()] = [float(number) for number in numbers.split()]

    if sorted(rows) != list(BASES):
        raise ValueError(f"has rows of {', '.join(rows)}, expected A, C, G, T")
    if len({len(row) for row in rows.values()}) != 1:
        raise ValueError("has rows of different lengths")
    table = np.array([rows[base] for base in BASES]).T
    sums = table.sum(1)
    # Probabilities, or counts of a single site, which look the same.
    if (abs(sums - 1) <= ROUNDING).all():
        return table * SITES
    # A column of one site, or of fractions that are no distribution
    wrong = np.flatnonzero(sums < 2)
    if wrong.size:
        number = int(wrong[0])
        raise ValueError(
            f"column {number + 1} sums to {sums[number]:g}: "
            "neither counts nor probabilities"
        )
    return table


def _number(text: str) -> float:
    if not ROW.fullmatch(text):
        raise ValueError(f'"{text[:40]}" is not a number')
    return float(text)


def scan_regions(
    peaks: Path,
    genome: Path,
    motifs: Path | None = None,
    *,
    p_value: float = 1e-4,
    overlaps: bool = False,
    rows: RowsOf = all_rows,
) -> RawArrays:
    """Return regions with the summed scores of the hits of each motif, in bits, as `features`.

    `peaks` is a sorted BED file; if it is called CELL.atac.bed, its fourth column is the
    accessibility of a cell type. `genome`, a FASTA file, plain or gzipped, is read one chromosome
    at a time. Other regions than `rows` are not scanned. For the others see `read_motifs`.
    """
    scanned = read_motifs(motifs, p_value)
    bed = read_bed(peaks)
    names = np.array([motif.name for motif in scanned], np.str_)
    features = np.zeros((len(bed.lines), len(names)), np.float32)
    arrays = {"features": features, "motifs": names}
    arrays |= from_bed(bed, peaks, arrays)
    locate = locate_in(
        bed, lambda array, row, name: f"{peaks.name}, line {bed.lines[row]}"
    )
    raw = RawArrays(arrays, locate)
    check_arrays(peaks, raw, overlaps=overlaps)

    chromosome = bed.places["chromosome"]
    start = bed.places["start"]
    end = bed.places["end"]
    wanted = set(chromosome.tolist())
    found = set[str]()
    sequences = set[str]()
    scanned_rows = rows(len(features))
    done = 0
    problems = []
    with Progress("regions scanned") as progress:
        for name, sequence in _chromosomes(genome, wanted, sequences):
            found.add(name)
            of_name = np.flatnonzero(chromosome == name)
            for row in of_name[end[of_name] > len(sequence)].tolist():
                where = f"{peaks}: line {bed.lines[row]}"
                message = (
                    f"{where}: ends at {end[row]}, but {name} has {len(sequence)} bases"
                )
                problems.append(Problem(message, code="out-of-range"))
            chosen = of_name[
                (of_name >= scanned_rows.start) & (of_name < scanned_rows.stop)
            ]
            if len(chosen) and not problems:
                # Shorter regions end in unknown bases, which have no hits.
                longest = int((end - start)[of_name].max())
                texts = []
                for row in chosen.tolist():
                    texts.append(sequence[start[row] : end[row]].ljust(longest, "N"))
                features[chosen] = scan(encode(texts), scanned)
            done += len(of_name)
            progress.update(done, len(features))

    for name in sorted(wanted - found):
        message = f'{genome}: no sequence "{name}", which {peaks} names'
        fix = did_you_mean(name, sequences)
        if (other := other_style(name)) in sequences:
            fix = f'the genome calls it "{other}"; name chromosomes the same way'
        problems.append(Problem(message, help=fix, code="unknown-value"))
    if problems:
        raise Refused(problems)
    return raw


def _chromosomes(
    genome: Path, wanted: set[str], names: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield name and bases of the wanted records of a FASTA file; collect the names of all."""
    name = ""
    parts = list[str]()
    # A chromosome may be one line.
    with open_table(genome, line_limit=MAX_CHROMOSOME) as file:
        for line in file:
            if line.startswith(">"):
                if name in wanted:
                    yield name, "".join(parts)
                name = (line[1:].split() or [""])[0]
                names.add(name)
                parts = []
            # Records of no interest are skipped without being held.
            elif name in wanted:
                parts.append(line.strip())
    if name in wanted:
        yield name, "".join(parts)
