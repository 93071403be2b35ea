"""Sequences in files of the user: FASTA, and tables with a column `sequence`. Read without torch."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from dither.registry.config.errors import Refused, did_you_mean
from dither.registry.contracts.spaces import Condition, NumberRange
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
LARGEST = 3.4e38
"""About the largest float32: batches of numbers are float32."""


class SequenceTable(NamedTuple):
    """Sequences of one length, the label, perhaps the split, and numbers (float32) of each."""

    path: Path
    lines: tuple[int, ...]
    sequences: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str, ...]
    numbers: Mapping[str, Sequence[float]]

    def cells(self) -> tuple[str, ...]:
        """Return the names of the labels in alphabetical order."""
        return tuple(sorted(set(self.labels)))

    def divided(self, held: float, seed: int) -> Sequence[str]:
        """Return the split of each sequence: that of the file, else at random."""
        # A file gives the split of every sequence or of none.
        if self.splits[0]:
            return self.splits
        import numpy as np

        count = round(held * len(self.labels))
        names = ["valid"] * count + ["test"] * count
        names += ["train"] * (len(self.labels) - 2 * count)
        return np.random.default_rng(seed).permutation(names).tolist()

    def facts(self, held: float, seed: int) -> SequenceFacts:
        """Return the sizes; the ranges of numbers are those of the training split.

        Raises:
            Refused: A number is the same in the whole training split.
        """
        conditions = []
        if self.numbers:
            splits = self.divided(held, seed)
            # Ranges scale the conditions, so they must not depend on held-out sequences.
            rows = [row for row, split in enumerate(splits) if split == "train"]
            for name, values in self.numbers.items():
                conditions.append(self._condition(name, values, rows))
        return SequenceFacts(len(self.sequences[0]), self.cells(), tuple(conditions))

    def _condition(
        self, name: str, values: Sequence[float], rows: Sequence[int]
    ) -> Condition:
        in_training = [values[row] for row in rows]
        different = set(in_training)
        # A constant has no range to scale by.
        if len(different) < 2:
            listed = "".join(f": {value:g}" for value in different)
            line = self.lines[rows[0]] if rows else 1
            message = f"{self.path}, line {line}: {name} is constant in the training split{listed}"
            raise Refused(message, code="invalid-sample")
        return Condition(name, number=NumberRange.of(in_training))


def read_sequence_file(path: Path, numbers: tuple[str, ...] = ()) -> SequenceTable:
    """Read a FASTA file or a table, plain or gzipped; an unchanged file is not read again.

    Raises:
        Refused: It cannot be read, or has sequences of several lengths, other letters than A, C, G
            and T, labels or splits of some sequences only, an unknown split, no column of
            `numbers`, or a cell there without a finite number.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    return _read(path, numbers, state.st_mtime_ns, state.st_size)


class _Record(NamedTuple):
    line: int
    sequence: str
    label: str
    split: str = ""
    numbers: tuple[float | str, ...] = ()
    """Finite values as numbers, others as text."""


@lru_cache(maxsize=2)
def _read(
    path: Path, numbers: tuple[str, ...], modified: int, size: int
) -> SequenceTable:
    with open_table(path) as file:
        lines = file.read().splitlines()
    is_fasta = bool(lines) and lines[0].startswith(">")
    read = _fasta if is_fasta else _table
    records = list(read(path, lines, numbers))
    if not records:
        raise Refused(f"{path}: no sequences", code="no-samples")

    mistakes = []
    for record in records:
        reason = _mistake(record, records, numbers)
        if reason:
            mistakes.append(f"{path}, line {record.line}: {reason}")
    if mistakes:
        raise Refused(line_problems(mistakes))
    return SequenceTable(
        path=path,
        lines=tuple(record.line for record in records),
        sequences=tuple(record.sequence for record in records),
        labels=tuple(record.label or UNLABELLED for record in records),
        splits=tuple(record.split for record in records),
        numbers={
            name: array("f", [float(record.numbers[column]) for record in records])
            for column, name in enumerate(numbers)
        },
    )


def _fasta(
    path: Path, lines: Sequence[str], numbers: Sequence[str]
) -> Iterator[_Record]:
    """Yield records `>NAME LABEL`; words after the label are numbers or a description."""
    # The first header decides on the columns, as the head of a table does.
    pairs = [word.partition("=") for word in lines[0].split()]
    _require_columns(path, [name for name, sign, _ in pairs if sign], numbers)
    starts = [number for number, line in enumerate(lines) if line.startswith(">")]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        words = []
        values = {}
        for word in lines[start][1:].split():
            name, is_value, value = word.partition("=")
            if is_value and name in numbers:
                values[name] = value
            else:
                words.append(word)
        yield _Record(
            line=start + 1,
            sequence="".join(map(str.strip, lines[start + 1 : stop])),
            label="".join(words[1:2]),
            numbers=tuple(_number(values.get(name, "")) for name in numbers),
        )


def _require_columns(path: Path, names: Sequence[str], numbers: Sequence[str]) -> None:
    for number in numbers:
        if number not in names:
            hint = did_you_mean(number, names)
            message = f'{path}, line 1: no column "{number}"'
            raise Refused(message, help=hint, code="missing-array")


def _number(text: str) -> float | str:
    """Return a finite number, or the text."""
    try:
        value = float(text)
    except ValueError:
        return text
    # False for NaN, too
    return value if abs(value) < LARGEST else text


def _table(
    path: Path, lines: Sequence[str], numbers: Sequence[str]
) -> Iterator[_Record]:
    """Yield the rows of a table with the columns sequence, label or cell, and split."""
    # Files named .csv may be separated by tabs, so the header decides.
    delimiter = "\t" if lines and "\t" in lines[0] else ","
    rows = csv.DictReader(lines, delimiter=delimiter, restval="")
    names = rows.fieldnames or ()
    if "sequence" not in names:
        message = f'{path}: neither FASTA nor a table with a column "sequence"'
        raise Refused(message, code="unknown-format")
    _require_columns(path, names, numbers)
    label = next((name for name in LABELS if name in names), "")
    for row in rows:
        yield _Record(
            line=rows.line_num,
            sequence=row["sequence"].strip(),
            label=row.get(label, "").strip(),
            split=row.get("split", "").strip(),
            numbers=tuple(_number(row[name]) for name in numbers),
        )


def _mistake(
    record: _Record, records: Sequence[_Record], numbers: Sequence[str]
) -> str:
    """Return why a record cannot be used; empty if it can."""
    first = records[0]
    others = sorted(set(record.sequence.upper()) - BASES)
    if others:
        return f"{', '.join(others)} in place of A, C, G or T"
    if not record.sequence or len(record.sequence) != len(first.sequence):
        return f"{len(record.sequence)} bases, the first has {len(first.sequence)}"
    for name, value, of_first in zip(
        ("label", "split"), record[2:4], first[2:4], strict=True
    ):
        if bool(value) != bool(of_first):
            return f"a {name} of some sequences only"
    if record.split and record.split not in SPLITS:
        return f'split "{record.split}" is none of {", ".join(SPLITS)}'
    for name, number in zip(numbers, record.numbers, strict=True):
        if isinstance(number, str):
            return f'{name} is "{number}", not a finite number'
    return ""
