"""Files of other programs: AnnData, bedGraph and bigWig tracks.

Letters: C cell types, R regions, K columns, D width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.atomic import atomic_write
from dither.registry.files.safe_path import safe_name

from ..missing_library import missing_libraries
from .formats.tables import open_table

__all__ = [
    "EMBEDDINGS",
    "PREDICTIONS",
    "check_forms",
    "read_chrom_sizes",
    "write_anndata",
    "write_tracks",
]

PREDICTIONS = ("csv", "npz", "h5ad", "bedgraph", "bigwig")
EMBEDDINGS = ("npz", "h5ad")
"""Formats of predictions, and of embeddings; the first is the default."""
EXTRAS = {"h5ad": "anndata", "bigwig": "bigwig"}
"""Extra of dither-tasks that a format requires."""
# bigWig stores positions in 32 bits.
LONGEST = (1 << 32) - 1
"""Most bases of a chromosome of bigWig."""


def check_forms(forms: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """Return formats; raise Refused with those that are unknown or whose library is missing."""
    problems = []
    for form in forms:
        if form not in known:
            listed = ", ".join(known) or "none"
            message = f'unknown format "{form}"; formats: {listed}'
            fix = did_you_mean(form, known)
            problems.append(Problem(message, help=fix, code="unknown-format"))
        elif form in EXTRAS:
            problems += missing_libraries(EXTRAS[form], form)
    if problems:
        raise Refused(problems)
    return forms


def write_anndata(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write AnnData: predictions (cells x regions, a layer per column), or embeddings (`obsm`)."""
    import anndata
    import pandas  # type: ignore[import-untyped,unused-ignore]

    regions = _places(arrays)
    regions.index = [
        f"{row.chromosome}:{row.start}-{row.end}" for row in regions.itertuples()
    ]
    # Text of any length, as AnnData writes it.
    names = arrays["cell"].astype(object)
    if "region" in arrays:
        empty = np.zeros((len(regions), 0), np.float32)
        file = anndata.AnnData(empty, obs=regions, obsm={"X_dither": arrays["region"]})
        file.uns["cell"] = names
        file.uns["cell_embedding"] = arrays["cell_embedding"]
    else:
        cells = pandas.DataFrame(index=names)
        file = anndata.AnnData(arrays["prediction"][..., 0], obs=cells, var=regions)
        for number, column in enumerate(arrays["column"].tolist()):
            file.layers[column] = arrays["prediction"][..., number]
            file.layers[f"{column}_truth"] = arrays["truth"][..., number]
            if "sd" in arrays:
                file.layers[f"{column}_sd"] = arrays["sd"][..., number]
    file.write_h5ad(path)


def read_chrom_sizes(path: Path, forms: Sequence[str]) -> dict[str, int]:
    """Read name and length of each chromosome: a table of two columns, or a .fai file."""
    if "bigwig" not in forms:
        message = "--chrom-sizes has no effect without --export bigwig"
        raise Refused(message, code="no-effect")
    sizes = {}
    with open_table(path) as file:
        for line, text in enumerate(file, 1):
            words = text.split()
            if not words or text.startswith("#"):
                continue
            # int() also takes signs, underscores and digits of other scripts.
            is_length = len(words) > 1 and re.fullmatch(r"[0-9]{1,10}", words[1])
            if not is_length or words[0] in sizes or int(words[1]) > LONGEST:
                message = f'{path}: line {line}: "{text.strip()[:60]}"'
                fix = "expected the name and the length of another chromosome"
                raise Refused(message, help=fix, code="invalid-sample")
            sizes[words[0]] = int(words[1])
    return sizes


def write_tracks(
    folder: Path,
    arrays: Mapping[str, Any],
    form: str,
    note: Callable[[str], None],
    sizes: Mapping[str, int] | None = None,
) -> list[Path]:
    """Write one bedGraph or bigWig file per cell type and column.

    Tracks have one value a base: where regions overlap, the mean of their values.
    """
    files = []
    suffix = "bw" if form == "bigwig" else "bedgraph"
    cells = arrays["cell"].tolist()
    columns = arrays["column"].tolist()
    regions = _places(arrays)
    lengths = {}
    if form == "bigwig":
        lengths = _lengths(regions, sizes, note)
    for cell, of_cell in zip(cells, arrays["prediction"], strict=True):
        for column, values in zip(columns, of_cell.T, strict=True):
            name = column
            if cell:
                # Cell types are named by the data: never paths, and different ones stay apart.
                name = f"{safe_name(cell, cells)}-{column}"
            files.append(folder / f"{name}.{suffix}")
            table = _without_overlaps(regions.assign(value=values), note)
            with atomic_write(files[-1]) as temporary:
                if form == "bigwig":
                    _write_bigwig(temporary, table, lengths)
                else:
                    lines = table.to_csv(
                        sep="\t", header=False, index=False, float_format="%.6g"
                    )
                    text = f'track type=bedGraph name="{name}"\n{lines}'
                    temporary.write_text(text, encoding="utf-8")
    return files


def _places(arrays: Mapping[str, Any]) -> Any:
    """Return a table of chromosome, start and end."""
    import pandas

    return pandas.DataFrame(
        {name: arrays[name] for name in ("chromosome", "start", "end")}
    )


def _lengths(
    regions: Any, sizes: Mapping[str, int] | None, note: Callable[[str], None]
) -> dict[str, int]:
    """Return the length of each chromosome; Refused if a region is outside of it."""
    ends = {
        name: int(end)
        for name, end in regions.groupby("chromosome")["end"].max().items()
    }
    if sizes is None:
        note("bigWig chromosomes end with their last region; --chrom-sizes FILE")
        sizes = ends
    problems = []
    for name, end in ends.items():
        if end > LONGEST:
            message = f"bigWig: {name} has {end:,} bases, at most {LONGEST:,}"
            problems.append(Problem(message, code="out-of-range"))
        elif name not in sizes:
            message = f'--chrom-sizes: no chromosome "{name}", which has regions'
            fix = did_you_mean(name, sizes)
            problems.append(Problem(message, help=fix, code="unknown-value"))
        elif end > sizes[name]:
            message = f"--chrom-sizes: {name} has {sizes[name]:,} bases"
            message = f"{message}, but a region ends at {end:,}"
            problems.append(Problem(message, code="out-of-range"))
    if problems:
        raise Refused(problems)
    return dict(sizes)


def _without_overlaps(table: Any, note: Callable[[str], None]) -> Any:
    """Cut overlapping regions at their ends, and give each piece the mean of those over it."""
    import pandas

    parts = []
    overlapping = 0
    for name, group in table.groupby("chromosome", sort=False):
        start = group["start"].to_numpy()
        end = group["end"].to_numpy()
        # The largest end so far: a long region may reach over several later ones.
        reach = np.maximum.accumulate(end)[:-1]
        crossing = start[1:] < reach
        if not crossing.any():
            parts.append(group)
            continue

        overlapping += int(crossing.sum())
        cuts = np.unique(np.r_[start, end])
        # Each region adds its value at its start, and takes it away at its end.
        steps = np.zeros((2, len(cuts)))
        values = np.stack([group["value"].to_numpy(np.float64), np.ones(len(group))])
        for row, added in zip(steps, values, strict=True):
            np.add.at(row, np.searchsorted(cuts, start), added)
            np.subtract.at(row, np.searchsorted(cuts, end), added)
        total, count = steps.cumsum(1)[:, :-1]
        covered = np.flatnonzero(count > 0.5)
        pieces = {
            "chromosome": name,
            "start": cuts[covered],
            "end": cuts[covered + 1],
            "value": total[covered] / count[covered],
        }
        parts.append(pandas.DataFrame(pieces))
    if overlapping:
        note(
            f"{overlapping:,} of {len(table):,} regions overlap one before: "
            "tracks hold the mean where they do"
        )
    return pandas.concat(parts) if parts else table


def _write_bigwig(path: Path, table: Any, lengths: Mapping[str, int]) -> None:
    """Write a bigWig file; `lengths` of chromosomes are its header."""
    import pyBigWig

    with pyBigWig.open(str(path), "w") as file:
        file.addHeader(list(lengths.items()))
        groups = dict(iter(table.groupby("chromosome")))
        # Entries are in the order of the header.
        for name in lengths:
            if name not in groups:
                continue
            rows = groups[name]
            file.addEntries(
                [name] * len(rows),
                rows["start"].tolist(),
                ends=rows["end"].tolist(),
                values=rows["value"].tolist(),
            )
