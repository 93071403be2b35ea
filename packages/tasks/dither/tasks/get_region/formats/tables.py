"""Tables of regions: .csv and .tsv (also .gz), .parquet and .h5ad.

A text table has the header

    chromosome,start,end,open:K562,open:HepG2,GATA1,CTCF,...

Every column that is not one of the first three and has no prefix of a cell type is a motif. Columns
are separated by commas, or by tabs if the header has one. open:CELL is 0 or 1, atpm:CELL is a
number; expression_positive:CELL, expression_negative:CELL, tss_positive:CELL and tss_negative:CELL
belong to the two strands. In AnnData, regions are observations and motifs variables, with places
and values of cell types as columns of `obs`; or cell types are observations and regions variables,
with motifs in `varm`.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import LINE_BYTES, max_expanded

from ...missing_library import require_extra
from ...prepared.arrays import LIMIT, Arrays
from .column_names import NAMED, check_names, column_arrays, is_of_cell, standard_names
from .region_checks import (
    NAME,
    PLACES,
    RawArrays,
    collect_problems,
    limited,
    parse_names,
    table_locator,
    texts_of,
)

__all__ = ["BOOLEANS", "open_table", "read_anndata", "read_table"]

COLUMNS: Final = 100_000
"""Most columns of a text table."""
BOOLEANS: Final = {"True": "1", "TRUE": "1", "true": "1", "False": "0", "FALSE": "0", "false": "0"}


class _Gzip(gzip.GzipFile):
    """A gzipped text below the size policy: its expansion, and the length of a line."""

    def __init__(self, path: Path, limit: int | None) -> None:
        super().__init__(path, "rb")
        most = max_expanded(path.stat().st_size)
        self._limit = most if limit is None else min(most, limit)
        self._line = 0

    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        end = data.rfind(b"\n")
        self._line = self._line + len(data) if end < 0 else len(data) - end - 1
        if self.tell() > self._limit or self._line > LINE_BYTES:
            raise OSError(f"more than {self._limit:,} bytes, or {LINE_BYTES:,} in a line")
        return data


@contextmanager
def open_table(path: Path, limit: int | None = None) -> Iterator[TextIOWrapper]:
    """Open a text file, plain or gzipped, of at most `limit` bytes; errors while it is read are raised as Refused."""
    if path.exists() and not path.is_file():
        raise Refused(f"{path}: not a regular file", code="unreadable-file")
    if limit is not None and path.exists() and (size := path.stat().st_size) > limit:
        raise Refused(
            f"{path}: has {size:,} bytes, the limit of a text table is {limit:,}", code="too-large"
        )
    try:
        binary: Any = _Gzip(path, limit) if path.name.lower().endswith(".gz") else path.open("rb")
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


def read_table(path: Path) -> RawArrays:
    """Read a .csv, .tsv or .parquet file; places are columns, names of regions in the first one, or missing."""
    is_text = not path.name.lower().endswith(".parquet")
    frame = _read_text(path) if is_text else _read_parquet(path)
    names = standard_names([*map(str, frame.columns)])
    originals = [*map(str, frame.columns)]
    key, numbers = _roles(names)
    if len(frame) * len(numbers) * 8 > LIMIT:
        raise Refused(f"{path}: more than {LIMIT:,} bytes of numbers", code="too-large")

    def locate(row: int) -> str:
        return f"line {row + 2}" if is_text else f"row {row} (from 0)"

    columns = [(names[i], originals[i], frame.iloc[:, i].to_numpy()) for i in numbers]
    arrays, problems = _numeric(columns, path, locate)
    if key is not None:
        name = "chromosome" if names[key] == "chromosome" else "names"
        with collect_problems(problems):
            where = f', column "{originals[key]}"' if not is_text else ""
            texts = texts_of(
                frame.iloc[:, key].to_numpy(), lambda row: f"{path}: {locate(row)}{where}"
            )
            arrays[name] = np.char.strip(texts)
    if problems and any(np.isnan(arrays[name]).any() for name in PLACES[1:] if name in arrays):
        arrays = {name: array for name, array in arrays.items() if name not in PLACES}
    of_standard = dict(zip(names, originals, strict=True))
    find = table_locator(locate)
    return RawArrays(
        arrays,
        lambda name, row, column: find(name, row, of_standard.get(column, column)),
        (*problems,),
    )


def _read_text(path: Path) -> Any:
    """Return a text table; columns with anything but numbers hold text."""
    import pandas  # type: ignore[import-untyped,unused-ignore]

    with open_table(path, LIMIT) as lines:
        first = lines.readline()
        second = lines.readline()
        delimiter = "\t" if "\t" in first else ","
        if delimiter not in first and ";" in first:
            message = f'{path}: line 1: columns are separated by ";"'
            fix = "use commas or tabs, and points in numbers"
            raise Refused(Problem(message, help=fix, code="syntax-error"))
        if max(first.count(delimiter), second.count(delimiter)) >= COLUMNS:
            raise Refused(f"{path}: more than {COLUMNS:,} columns", code="too-large")
    with open_table(path, LIMIT) as lines:
        lines.readline()
        header = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
        key, _ = _roles(standard_names(header))
        try:
            frame = pandas.read_csv(
                lines,
                sep=delimiter,
                header=None,
                dtype={} if key is None else {key: str},
                na_filter=False,
                skip_blank_lines=False,
                low_memory=False,
                float_precision="round_trip",
            )
        except pandas.errors.EmptyDataError:
            frame = pandas.DataFrame(np.zeros((0, len(header))))
        except pandas.errors.ParserError as error:
            raise Refused(
                f"{path}: cannot be read after line 1: {error}", code="invalid-sample"
            ) from None
    if frame.shape[1] != len(header):
        raise Refused(
            f"{path}: line 2: has {frame.shape[1]} columns, the header {len(header)}",
            code="invalid-sample",
        )
    return frame.set_axis(header, axis=1)


def _roles(names: Sequence[str]) -> tuple[int | None, list[int]]:
    """Return the index of the column with chromosomes, or else names of regions, and those of numbers."""
    named = {0} if names and names[0].lower() in NAMED else set[int]()
    key = names.index("chromosome") if "chromosome" in names else next(iter(named), None)
    return key, [i for i in range(len(names)) if i != key and i not in named]


def _numeric(
    columns: Sequence[tuple[str, str, Shaped[np.ndarray, " P"]]],
    path: Path,
    locate: Callable[[int], str],
) -> tuple[Arrays, list[Problem]]:
    """Return the arrays of columns by standard and own name, with NaN in places and 0 in others for invalid numbers."""
    import pandas

    check_names([name for name, _, _ in columns], path)
    rows = len(columns[0][2]) if columns else 0
    table = np.zeros((rows, len(columns)))
    problems = list[Problem]()
    wrong = list[str]()
    for place, (standard, name, values) in enumerate(columns):
        if values.dtype.kind in "biuf":
            table[:, place] = values
            continue
        numbers = pandas.to_numeric(
            [BOOLEANS.get(text, text) for text in map(str, values.tolist())], errors="coerce"
        )
        bad = np.flatnonzero(np.isnan(numbers)).tolist()
        table[:, place] = np.where(np.isnan(numbers), np.nan if standard in PLACES else 0, numbers)
        if len(bad) == len(values) > 1:
            message = f'{path}: the column "{name}" holds text such as "{str(values[0])[:40]}"'
            problems.append(Problem(message, code="wrong-shape"))
        else:
            wrong += [
                f'{path}: {locate(row)}, column "{name}": "{values[row]!s:.40}" is not a number'
                for row in bad
            ]
    problems += [Problem(line, code="invalid-sample") for line in limited(iter(wrong), len(wrong))]
    return column_arrays([name for name, _, _ in columns], table), problems


def _read_parquet(path: Path) -> Any:
    """Return a parquet table; an index of pandas that holds places or names becomes columns."""
    require_extra("parquet", str(path))
    from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]

    try:
        metadata = parquet.read_metadata(path)
        most = max_expanded(path.stat().st_size)
        if (size := metadata.num_rows * metadata.num_columns * 8) > (limit := min(LIMIT, most)):
            raise Refused(f"{path}: takes {size:,} bytes, the limit is {limit:,}", code="too-large")
        frame = parquet.read_table(path).to_pandas()
    except (OSError, ValueError, ArrowException) as error:
        code = "file-not-found" if isinstance(error, FileNotFoundError) else "damaged-file"
        raise Refused(
            f"{path}: cannot be read as parquet ({str(error)[:200]})", code=code
        ) from None
    if {*PLACES} & {*standard_names([*map(str, frame.index.names)])}:
        return frame.reset_index()
    if frame.index.to_numpy().dtype.kind not in "biuf" and "peak" not in frame.columns:
        frame.insert(0, "peak", frame.index)
    return frame


def read_anndata(path: Path) -> RawArrays:
    """Read an .h5ad file; raises Refused without anndata, or if it is damaged or does not hold regions and motifs."""
    require_extra("anndata", str(path))
    import anndata  # type: ignore[import-not-found,unused-ignore]

    try:
        file = anndata.read_h5ad(path)
    except Exception as error:  # readers of AnnData and HDF5 raise almost anything
        message = f"{path}: cannot be read as AnnData ({type(error).__name__}: {str(error)[:160]})"
        raise Refused(message, code="damaged-file") from None
    if file.X is None:
        raise Refused(f"{path}: no matrix X", code="missing-array")
    if file.shape[0] * file.shape[1] * 4 > LIMIT:
        raise Refused(
            f"{path}: the matrix of shape {file.shape} is above {LIMIT:,} bytes", code="too-large"
        )
    names, motifs = (index.to_numpy().astype(np.str_) for index in (file.obs_names, file.var_names))
    by_cell: Arrays = {}
    if len(motifs) and NAME.fullmatch(motifs[0]) and not (len(names) and NAME.fullmatch(names[0])):
        names, file, by_cell = motifs, file.T, _of_cells(file.T, path)
        motifs = by_cell["motifs"]
    columns = dict(
        zip(standard_names(list(map(str, file.obs.columns))), file.obs.columns, strict=True)
    )
    known = [name for name in columns if name in PLACES[1:] or ":" in name]
    obs = [(name, str(columns[name]), file.obs[columns[name]].to_numpy()) for name in known]
    obs = [
        row for row in obs if is_of_cell(row[0]) or row[0] in PLACES or row[2].dtype.kind in "biuf"
    ]

    def locate(array: str, row: int, column: str) -> str:
        where = f"{'X' if array == 'features' else 'obs'}, row {row} (from 0)"
        return where + (
            f', column "{columns.get(column, column) if array in PLACES else column}"'
            if column
            else ""
        )

    arrays, problems = _numeric(obs, path, lambda row: f"obs, row {row} (from 0)")
    del arrays["features"], arrays["motifs"]
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
    shown = (
        {"features": "varm", "open": "X", "atpm": "X"}
        if by_cell
        else {"features": "X", "motifs": "var_names"}
    )
    return RawArrays(arrays, locate, tuple(problems), lambda name: shown.get(name, name))


def _dense(matrix: Any) -> Shaped[np.ndarray, "P K"]:
    return np.asarray(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())


def _of_cells(file: Any, path: Path) -> Arrays:
    """Return motifs, cell types and accessibility of regions x cell types; motifs are a table in `obsm`."""
    tables = {name: file.obsm[name] for name in file.obsm}
    if len(tables) != 1 and "motifs" not in tables:
        present = ", ".join(tables) or "none"
        message = (
            f"{path}: variables are regions, but their motifs are not in varm; it has {present}"
        )
        fix = 'store the motifs as varm["motifs"], a DataFrame, or regions as observations and motifs as variables'
        raise Refused(Problem(message, help=fix, code="wrong-shape"))
    table = tables.get("motifs", next(iter(tables.values())))
    features = _dense(table.to_numpy() if hasattr(table, "columns") else table)
    values = _dense(file.X)
    names = [f"motif-{number:04d}" for number in range(1, features.shape[1] + 1)]
    binary = bool(np.isin(values, (0, 1)).all())
    return {
        "features": features,
        "motifs": np.array(list(map(str, getattr(table, "columns", names))), np.str_),
        "cells": file.var_names.to_numpy().astype(np.str_),
        "open" if binary else "atpm": values,
        "unknown": np.zeros(0, np.str_),
    }
