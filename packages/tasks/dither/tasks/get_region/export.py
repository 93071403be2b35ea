"""Files of other programs: AnnData, bedGraph and bigWig tracks.

Letters: C cell types, R regions, K columns, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.atomic import atomic_write
from dither.registry.files.safe_path import safe_name

from ..missing_library import missing_libraries

__all__ = ["check_forms", "write_anndata", "write_tracks"]

EXTRAS = {"h5ad": "anndata", "bigwig": "bigwig"}
"""Extra of dither-tasks that a format requires."""


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
    file.write_h5ad(path)


def write_tracks(folder: Path, arrays: Mapping[str, Any], form: str) -> list[Path]:
    """Write one bedGraph or bigWig file per cell type and column."""
    files = []
    suffix = "bw" if form == "bigwig" else "bedgraph"
    cells = arrays["cell"].tolist()
    columns = arrays["column"].tolist()
    regions = _places(arrays)
    for cell, of_cell in zip(cells, arrays["prediction"], strict=True):
        for column, values in zip(columns, of_cell.T, strict=True):
            name = column
            if cell:
                # Cell types are named by the data: never paths, and different ones stay apart.
                name = f"{safe_name(cell, cells)}-{column}"
            files.append(folder / f"{name}.{suffix}")
            table = regions.assign(value=values)
            with atomic_write(files[-1]) as temporary:
                if form == "bigwig":
                    _write_bigwig(temporary, table)
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


def _write_bigwig(path: Path, table: Any) -> None:
    """Write a bigWig file; a chromosome ends with its last region.

    Regions of bigWig may not overlap: the first one counts.
    """
    import pyBigWig

    with pyBigWig.open(str(path), "w") as file:
        groups = table.groupby("chromosome")
        ends = groups["end"].max().items()
        file.addHeader([(name, int(end)) for name, end in ends])
        for name, group in groups:
            reach = group["end"].cummax().shift(fill_value=0)
            rows = group[group["start"] >= reach]
            file.addEntries(
                [name] * len(rows),
                rows["start"].tolist(),
                ends=rows["end"].tolist(),
                values=rows["value"].tolist(),
            )
