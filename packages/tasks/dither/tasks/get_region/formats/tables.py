"""Tables of regions: .csv and .tsv (also .gz), .parquet and .h5ad.

A text table has the header

    chromosome,start,end,open:K562,open:HepG2,GATA1,CTCF,...

Every column that is not one of the first three and has no prefix of a cell type is a motif. Columns are separated by
commas, or by tabs if the header has one. open:CELL is 0 or 1, atpm:CELL is a number; expression_positive:CELL,
expression_negative:CELL, tss_positive:CELL and tss_negative:CELL belong to the two strands. In AnnData, regions are
observations and motifs variables, with places and values of cell types as columns of `obs`; or cell types are
observations and regions variables, with motifs in `varm`.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import LINE_BYTES, max_expanded
from dither.registry.plugins.install_command import install_command

from ...prepared.arrays import LIMIT, Arrays
from .column_names import NAMED, TableColumns, check_names, is_of_cell, parse_columns, standard_names
from .region_checks import NAME, PLACES, RawArrays, collect_problems, limited, parse_names, table_locator, texts_of

__all__ = ["open_table", "read_anndata", "read_header", "read_parquet", "read_table"]

INDEX: Final = "__index_level_0__"
"""Name that pandas gives to an unnamed index."""

BOOLEANS: Final = {"True": "1", "TRUE": "1", "true": "1", "False": "0", "FALSE": "0", "false": "0"}

Columns = dict[str, Shaped[np.ndarray, " P"]]


class _Gzip(gzip.GzipFile):
    """A gzipped text below the size policy: its expansion, and the length of a line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._limit, self._line = max_expanded(path.stat().st_size), 0

    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        end = data.rfind(b"\n")
        self._line = self._line + len(data) if end < 0 else len(data) - end - 1
        if self.tell() > self._limit or self._line > LINE_BYTES:
            raise OSError(f"more than {self._limit:,} bytes, or {LINE_BYTES:,} in a line")
        return data


@contextmanager
def open_table(path: Path) -> Iterator[TextIOWrapper]:
    """Open a text file, plain or gzipped; errors while it is read are raised as Refused."""
    if path.exists() and not path.is_file():
        raise Refused(f"{path}: not a regular file", code="unreadable-file")
    try:
        binary: Any = _Gzip(path) if path.name.lower().endswith(".gz") else path.open("rb")
        file = TextIOWrapper(binary, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", code="file-not-found") from None
    with file:
        try:
            yield file
        except (EOFError, OSError, zlib.error) as error:
            raise Refused(f"{path}: damaged or cut short ({error})", code="damaged-file") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise Refused(f"{path}: not a text table ({error})", code="damaged-file") from None


def read_header(path: Path) -> tuple[TableColumns, dict[str, int]]:
    """Return the columns of a text table, and its number of regions by chromosome, without reading the numbers.

    Raises:
        Refused: It cannot be read, or has no places of regions.
    """
    with open_table(path) as lines:
        header, delimiter = _header(path, lines)
        index, numbers = _columns(header)
        columns = parse_columns([header[i] for i in numbers], path)
        if index is None or (header[index] == "chromosome" and not {*PLACES} <= {*header}):
            missing = ", ".join(name for name in PLACES if name not in header)
            message = f"{path}: line 1: no column {missing}; the header is {', '.join(header[:5]) or 'empty'}"
            raise Refused(Problem(message, help="chromosome,start,end,open:CELL,...,MOTIF,...", code="missing-array"))
        rows = (line.split(delimiter, index + 1) for line in lines)
        texts = (row[index].strip().strip('"') for row in rows if len(row) > index)
        placed = header[index] == "chromosome"  # otherwise names such as chr1:9790-10675
        return columns, dict(Counter(text if placed else text.rpartition(":")[0] for text in texts))


def _header(path: Path, lines: TextIOWrapper) -> tuple[list[str], str]:
    first = lines.readline()
    delimiter = "\t" if "\t" in first else ","
    if delimiter not in first and ";" in first:
        message, fix = f'{path}: line 1: columns are separated by ";"', "use commas or tabs, and points in numbers"
        raise Refused(Problem(message, help=fix, code="syntax-error"))
    return standard_names([column.strip() for column in next(csv.reader([first], delimiter=delimiter), [])]), delimiter


def _columns(header: list[str]) -> tuple[int | None, list[int]]:
    """Return the index of the column with chromosomes, or else names of regions, and those of numbers."""
    named = {0} if header and header[0].lower() in NAMED else set()
    index = header.index("chromosome") if "chromosome" in header else next(iter(named), None)
    return index, [i for i in range(len(header)) if i != index and i not in named]


def read_table(path: Path) -> RawArrays:
    """Read a text table; places are columns, names of regions in the first column, or missing.

    Raises:
        Refused: It cannot be read, or is too large.
    """
    names, values, complete = [], [], True
    wrong: list[tuple[int, int | None, str]] = []  # line, column, text
    with open_table(path) as lines:
        header, delimiter = _header(path, lines)
        named, numbers = _columns(header)
        columns = parse_columns([header[i] for i in numbers], path)
        for line, row in enumerate(csv.reader(lines, delimiter=delimiter), 2):
            if (line - 1) * len(numbers) * 8 > LIMIT:
                raise Refused(f"{path}: line {line}: more than {LIMIT:,} bytes of numbers", code="too-large")
            if len(row) != len(header):
                wrong.append((line, None, f"has {len(row)} columns, the header has {len(header)}"))
                values.append(np.zeros(len(numbers)))
                complete = False
            else:
                values.append(np.zeros(len(numbers)))
                try:
                    values[-1][:] = [BOOLEANS.get(row[i], row[i]) for i in numbers]
                except ValueError:
                    for place, i in enumerate(numbers):
                        try:
                            values[-1][place] = float(BOOLEANS.get(row[i], row[i]))
                        except ValueError:
                            wrong.append((line, i, row[i]))
                            complete = complete and header[i] not in PLACES
            names.append("" if named is None or named >= len(row) else row[named].strip())
    arrays = columns.arrays(np.stack(values) if values else np.zeros((0, len(numbers))))
    if named is not None:
        arrays["chromosome" if header[named] == "chromosome" else "names"] = np.array(names, dtype=np.str_)
    if not complete:  # the order of the regions cannot be checked
        arrays = {name: array for name, array in arrays.items() if name not in (*PLACES, "names")}
    messages = (f"{path}: {message}" for message in _messages(wrong, header, len(values)))
    problems = tuple(Problem(message, code="invalid-sample") for message in messages)
    return RawArrays(arrays, table_locator(lambda row: f"line {row + 2}"), problems)


def _messages(wrong: list[tuple[int, int | None, str]], header: list[str], rows: int) -> Iterator[str]:
    """Yield what is wrong with lines or values; a column without any number gives one message."""
    counts = Counter(column for _, column, _ in wrong)
    texts = [column for column, count in counts.items() if column is not None and count == rows > 1]
    for column in texts:
        line, text = next((line, text) for line, index, text in wrong if index == column)
        yield f'the column "{header[column]}" holds no numbers: "{text[:40]}" in line {line}, and so on'
    lines = [
        f"line {line}: {text}"
        if index is None
        else f'line {line}, column "{header[index]}": "{text[:40]}" is not a number'
        for line, index, text in wrong
        if index not in texts
    ]
    yield from limited(iter(lines), len(lines))


def read_parquet(path: Path) -> RawArrays:
    """Read a parquet file; places are columns, names of regions, or missing.

    Raises:
        Refused: pyarrow is not installed, the file is damaged, or columns hold neither numbers nor places.
    """
    columns, index = _parquet_columns(path)
    originals = dict(zip(standard_names(list(columns)), columns, strict=True))
    table = {name: columns[original] for name, original in originals.items()}
    naming = _drop_index(table, index)
    check_names([name for name in table if name != naming], path)
    arrays: Arrays = {}
    problems: list[Problem] = []
    if naming is not None:
        texts, name = table.pop(naming), "chromosome" if naming == "chromosome" else "names"
        with collect_problems(problems):
            arrays[name] = texts_of(texts, lambda row: f'{path}: row {row} (from 0), column "{originals[naming]}"')
    odd = [name for name, values in table.items() if values.dtype.kind not in "biuf"]
    lines = (f'{path}: the column "{originals[name]}" holds no numbers ({table[name].dtype})' for name in odd)
    problems += [Problem(line, code="wrong-shape") for line in limited(lines, len(odd))]
    rows = len(next(iter(columns.values()), ()))
    arrays |= _numeric_arrays({name: values for name, values in table.items() if name not in odd}, rows, path)

    def locate(array: str, row: int, column: str) -> str:
        return f"row {row} (from 0)" + (f', column "{originals.get(column, column)}"' if column else "")

    return RawArrays(arrays, locate, tuple(problems))


def _numeric_arrays(numbers: Columns, rows: int, path: Path) -> Arrays:
    stacked = [values.astype(np.float64) for values in numbers.values()]
    return parse_columns(list(numbers), path).arrays(np.stack(stacked, 1) if stacked else np.zeros((rows, 0)))


def _missing_package(path: Path, package: str, extra: str) -> Refused:
    fix = install_command("dither-tasks", extra)
    return Refused(Problem(f"{path}: requires {package}", help=fix, code="missing-dependency"))


def _parquet_columns(path: Path) -> tuple[Columns, list[str]]:
    """Return the columns, and which of them are an index of pandas."""
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise _missing_package(path, "pyarrow", "parquet") from None
    try:
        metadata = parquet.read_metadata(path)
        size = metadata.num_rows * metadata.num_columns * 8
        if size > LIMIT:
            raise Refused(f"{path}: takes {size:,} bytes, the limit is {LIMIT:,}", code="too-large")
        table = parquet.read_table(path)
        index = (table.schema.pandas_metadata or {}).get("index_columns", [])
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except (OSError, ValueError, ArrowException) as error:
        code = "file-not-found" if isinstance(error, FileNotFoundError) else "damaged-file"
        raise Refused(f"{path}: cannot be read as parquet ({str(error)[:200]})", code=code) from None
    return columns, [name for name in index if isinstance(name, str)]


def _drop_index(table: Columns, index: list[str]) -> str | None:
    """Remove row numbers that pandas stored; return the column with chromosomes or names of regions, if any."""
    placed = all(name in table for name in PLACES)
    first = next(iter(table), "")
    for name in {*index, INDEX, *([first] if first.lower() in NAMED else [])} & table.keys() - {*PLACES}:
        if placed or table[name].dtype.kind in "biuf":
            del table[name]
    if "chromosome" in table:
        return "chromosome"
    texts = [name for name, values in table.items() if values.dtype.kind not in "biuf"]
    return next((name for name in texts if name in (first, INDEX, *index)), None)


def read_anndata(path: Path) -> RawArrays:
    """Read an .h5ad file.

    Raises:
        Refused: anndata is not installed, or the file is damaged or does not hold regions and motifs.
    """
    try:
        import anndata  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise _missing_package(path, "anndata", "anndata") from None
    try:
        file = anndata.read_h5ad(path)
    except Exception as error:  # readers of AnnData and HDF5 raise almost anything
        message = f"{path}: cannot be read as AnnData ({type(error).__name__}: {str(error)[:160]})"
        raise Refused(message, code="damaged-file") from None
    if file.X is None:
        raise Refused(f"{path}: no matrix X", code="missing-array")
    if file.shape[0] * file.shape[1] * 4 > LIMIT:
        raise Refused(f"{path}: the matrix of shape {file.shape} is above {LIMIT:,} bytes", code="too-large")
    names, motifs = (index.to_numpy().astype(np.str_) for index in (file.obs_names, file.var_names))
    by_cell: Arrays = {}
    if len(motifs) and NAME.fullmatch(motifs[0]) and not (len(names) and NAME.fullmatch(names[0])):
        names, file, by_cell = motifs, file.T, _of_cells(file.T, path)
        motifs = by_cell["motifs"]
    columns = dict(zip(standard_names(list(map(str, file.obs.columns))), file.obs.columns, strict=True))

    def locate(array: str, row: int, column: str) -> str:
        where = f"{'X' if array == 'features' else 'obs'}, row {row} (from 0)"
        return where + (f', column "{columns.get(column, column) if array in PLACES else column}"' if column else "")

    problems: list[Problem] = []
    arrays = _obs_arrays({name: file.obs[original].to_numpy() for name, original in columns.items()}, columns, path)
    with collect_problems(problems):
        if all(name in columns for name in PLACES):
            chromosome = file.obs[columns["chromosome"]].to_numpy()
            arrays["chromosome"] = texts_of(
                chromosome, lambda row: f"{path}: {locate('chromosome', row, 'chromosome')}"
            )
        else:
            places = parse_names(names, lambda row: f"{path}: obs_names, row {row} (from 0)")
            arrays |= dict(zip(PLACES, places, strict=True))
    arrays |= by_cell or {"features": _dense(file.X), "motifs": motifs}
    display_names = (
        {"features": "varm", "open": "X", "atpm": "X"} if by_cell else {"features": "X", "motifs": "var_names"}
    )
    return RawArrays(arrays, locate, tuple(problems), lambda name: display_names.get(name, name))


def _dense(matrix: Any) -> Shaped[np.ndarray, "P K"]:
    return np.asarray(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())


def _of_cells(file: Any, path: Path) -> Arrays:
    """Return motifs, cell types and accessibility of regions x cell types; motifs are a table in `obsm`."""
    tables = {name: file.obsm[name] for name in file.obsm}
    if len(tables) != 1 and "motifs" not in tables:
        message = (
            f"{path}: variables are regions, but their motifs are not in varm; it has {', '.join(tables) or 'none'}"
        )
        fix = 'store the motifs as varm["motifs"], a DataFrame, or regions as observations and motifs as variables'
        raise Refused(Problem(message, help=fix, code="wrong-shape"))
    table = tables.get("motifs", next(iter(tables.values())))
    features, values = _dense(table.to_numpy() if hasattr(table, "columns") else table), _dense(file.X)
    names = [f"motif-{number:04d}" for number in range(1, features.shape[1] + 1)]
    binary = bool(np.isin(values, (0, 1)).all())
    return {
        "features": features,
        "motifs": np.array(list(map(str, getattr(table, "columns", names))), np.str_),
        "cells": file.var_names.to_numpy().astype(np.str_),
        "open" if binary else "atpm": values,
        "unknown": np.zeros(0, np.str_),
    }


def _obs_arrays(table: Columns, originals: dict[str, Any], path: Path) -> Arrays:
    """Return the columns of `obs` that are known, or look as if they were; others are ignored."""
    needed = [name for name in table if name in PLACES[1:] or is_of_cell(name)]
    if odd := [name for name in needed if table[name].dtype.kind not in "biuf"]:
        messages = (f'{path}: obs, column "{originals[name]}" holds {table[name].dtype}, not numbers' for name in odd)
        raise Refused([Problem(message, code="wrong-shape") for message in messages])
    numeric = [name for name, values in table.items() if values.dtype.kind in "biuf"]
    numbers = {name: table[name] for name in numeric if name in needed or ":" in name}
    rows = len(next(iter(table.values()), ()))
    arrays = _numeric_arrays(numbers, rows, path)
    del arrays["features"], arrays["motifs"]
    return arrays
