"""Files of other programs: AnnData, bedGraph and bigWig tracks.

Letters: C cell types, R regions, K columns, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.atomic import atomic_write
from dither.registry.files.safe_path import safe_name

from ..missing_library import missing_libraries
from .data.region_matrix import RegionMatrix

__all__ = ["check_forms", "place_columns", "write_anndata", "write_tracks"]

EXTRAS = {"h5ad": "anndata", "bigwig": "bigwig"}
"""Extra of dither-tasks that a format requires."""


def check_forms(forms: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """Return formats; raises Refused with those that are unknown or whose library is not installed."""
    problems = []
    for form in forms:
        if form not in known:
            fix = did_you_mean(form, known)
            listed = ", ".join(known) or "none"
            problems.append(
                Problem(
                    f'unknown format "{form}"; formats: {listed}', help=fix, code="unknown-format"
                )
            )
        elif form in EXTRAS:
            problems += missing_libraries(EXTRAS[form], form)
    if problems:
        raise Refused(problems)
    return forms


def place_columns(matrix: RegionMatrix, rows: Integer[np.ndarray, " R"]) -> dict[str, Any]:
    """Return chromosome, start and end of regions."""
    return {name: getattr(matrix, name)[rows] for name in ("chromosome", "start", "end")}


def write_anndata(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write predictions (cell types x regions, a layer per column) or embeddings (`obsm`) of regions as AnnData."""
    import anndata
    import pandas  # type: ignore[import-untyped,unused-ignore]

    places = {name: arrays[name] for name in ("chromosome", "start", "end")}
    names = [
        f"{c}:{s}-{e}"
        for c, s, e in zip(*(array.tolist() for array in places.values()), strict=True)
    ]
    regions = pandas.DataFrame(places, index=names)
    cells = pandas.DataFrame(index=arrays["cell"].astype(object))
    if "region" in arrays:
        empty = np.zeros((len(names), 0), np.float32)
        file = anndata.AnnData(empty, obs=regions, obsm={"X_dither": arrays["region"]})
        file.uns["cell"] = arrays["cell"].astype(object)
        file.uns["cell_embedding"] = arrays["cell_embedding"]
    else:
        file = anndata.AnnData(arrays["prediction"][..., 0], obs=cells, var=regions)
        for number, column in enumerate(arrays["column"].tolist()):
            file.layers[column] = arrays["prediction"][..., number]
            file.layers[f"{column}_truth"] = arrays["truth"][..., number]
    file.write_h5ad(path)


def write_tracks(folder: Path, arrays: Mapping[str, Any], form: str) -> list[Path]:
    """Write one bedGraph or bigWig file per cell type and column."""
    import pandas

    files = []
    suffix = "bw" if form == "bigwig" else "bedgraph"
    cells = arrays["cell"].tolist()
    chromosome, start, end = (arrays[name] for name in ("chromosome", "start", "end"))
    for c, cell in enumerate(cells):
        for k, column in enumerate(arrays["column"].tolist()):
            # Cell types are named by the data: never paths, and different ones stay apart.
            name = f"{safe_name(cell, cells)}-{column}" if cell else column
            files.append(folder / f"{name}.{suffix}")
            values = arrays["prediction"][c, :, k]
            with atomic_write(files[-1]) as temporary:
                if form == "bigwig":
                    _write_bigwig(temporary, chromosome, start, end, values)
                else:
                    table = pandas.DataFrame(zip(chromosome, start, end, values, strict=True))
                    lines = table.to_csv(
                        None,
                        sep="\t",
                        header=False,
                        index=False,
                        float_format="%.6g",
                    )
                    temporary.write_text(
                        f'track type=bedGraph name="{name}"\n{lines}', encoding="utf-8"
                    )
    return files


def _write_bigwig(
    path: Path,
    chromosome: Any,
    start: Any,
    end: Any,
    values: Any,
) -> None:
    """Write a bigWig file; a chromosome ends with its last region, and of overlapping regions the first counts."""
    import pyBigWig

    order = sorted(dict.fromkeys(chromosome.tolist()))
    with pyBigWig.open(str(path), "w") as file:
        file.addHeader([(name, int(end[chromosome == name].max())) for name in order])
        for name in order:
            rows = np.flatnonzero(chromosome == name)
            reach = np.maximum.accumulate(np.r_[0, end[rows][:-1]])
            rows = rows[start[rows] >= reach]
            texts = [name] * len(rows)
            file.addEntries(
                texts, start[rows].tolist(), ends=end[rows].tolist(), values=values[rows].tolist()
            )
