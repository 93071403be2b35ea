"""Sequences in files of the user: FASTA, and tables with a column `sequence`. Read without torch."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from dither.registry.config.errors import Refused
from dither.registry.files.limits import unreadable

from ..get_region.formats.region_checks import line_problems
from ..get_region.formats.tables import open_table
from .facts import SequenceFacts

__all__ = ["SequenceTable", "read_sequence_file"]

BASES = frozenset("ACGT")
SPLITS = ("train", "valid", "test")
LABELS = ("label", "cell")
"""Names of the column of labels of a table."""
UNLABELLED = "all"
"""Label of sequences without one."""


class SequenceTable(NamedTuple):
    """Sequences of one length, and the names of the label and, perhaps, of the split of each."""

    sequences: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str, ...]

    def facts(self) -> SequenceFacts:
        """Return the length, and the names of the labels in alphabetical order."""
        return SequenceFacts(len(self.sequences[0]), tuple(sorted(set(self.labels))))


def read_sequence_file(path: Path) -> SequenceTable:
    """Read a FASTA file or a table, plain or gzipped; an unchanged file is not read again.

    Raises:
        Refused: It cannot be read, or has sequences of several lengths, other letters than A, C, G
            and T, labels or splits of some sequences only, or an unknown split.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    return _read(path, state.st_mtime_ns, state.st_size)


class _Record(NamedTuple):
    line: int
    sequence: str
    label: str
    split: str = ""


@lru_cache(maxsize=2)
def _read(path: Path, modified: int, size: int) -> SequenceTable:
    with open_table(path) as file:
        lines = file.read().splitlines()
    is_fasta = bool(lines) and lines[0].startswith(">")
    records = list(_fasta(lines) if is_fasta else _table(path, lines))
    if not records:
        raise Refused(f"{path}: no sequences", code="no-samples")

    mistakes = []
    for record in records:
        reason = _mistake(record, records)
        if reason:
            mistakes.append(f"{path}, line {record.line}: {reason}")
    if mistakes:
        raise Refused(line_problems(mistakes, len(mistakes), "invalid-sample"))
    return SequenceTable(
        sequences=tuple(record.sequence for record in records),
        labels=tuple(record.label or UNLABELLED for record in records),
        splits=tuple(record.split for record in records),
    )


def _fasta(lines: Sequence[str]) -> Iterator[_Record]:
    """Yield records `>NAME LABEL`; words after the label are a description."""
    starts = [number for number, line in enumerate(lines) if line.startswith(">")]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        words = lines[start][1:].split()
        sequence = "".join(map(str.strip, lines[start + 1 : stop]))
        yield _Record(start + 1, sequence, "".join(words[1:2]))


def _table(path: Path, lines: Sequence[str]) -> Iterator[_Record]:
    """Yield the rows of a table with the columns sequence, label or cell, and split."""
    delimiter = "\t" if lines and "\t" in lines[0] else ","
    rows = csv.DictReader(lines, delimiter=delimiter, restval="")
    names = rows.fieldnames or ()
    if "sequence" not in names:
        message = f'{path}: neither FASTA nor a table with a column "sequence"'
        raise Refused(message, code="unknown-format")
    label = next((name for name in LABELS if name in names), "")
    for row in rows:
        yield _Record(
            line=rows.line_num,
            sequence=row["sequence"].strip(),
            label=row.get(label, "").strip(),
            split=row.get("split", "").strip(),
        )


def _mistake(record: _Record, records: Sequence[_Record]) -> str:
    """Return why a record cannot be used; empty if it can."""
    first = records[0]
    others = sorted(set(record.sequence.upper()) - BASES)
    if others:
        return f"{', '.join(others)} in place of A, C, G or T"
    if not record.sequence or len(record.sequence) != len(first.sequence):
        return f"{len(record.sequence)} bases, the first has {len(first.sequence)}"
    for name, value, of_first in zip(
        ("label", "split"), record[2:], first[2:], strict=True
    ):
        if bool(value) != bool(of_first):
            return f"a {name} of some sequences only"
    if record.split and record.split not in SPLITS:
        return f'split "{record.split}" is none of {", ".join(SPLITS)}'
    return ""
