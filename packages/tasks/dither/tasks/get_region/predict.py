"""Predictions and embeddings of regions of any source by a trained model.

Letters: N windows, L regions of a window, M motifs, K predicted columns, C cell types, D width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from dither.registry.config.errors import Refused
from dither.registry.contracts.pictures import check_figure_formats
from dither.registry.contracts.protocols import TrainedModel
from dither.registry.files.atomic import atomic_write

from ..missing_library import missing_libraries
from ..plot_style import to_picture
from .export import (
    EMBEDDINGS,
    PREDICTIONS,
    check_forms,
    read_chrom_sizes,
    write_anndata,
    write_tracks,
)
from .plots import draw_umap
from .source_windows import (
    DataRequest,
    RegionWindows,
    SourceWindows,
    cell_labels,
    known_motifs,
)

__all__ = ["embed", "predict", "predict_values"]


def predict(
    task: RegionWindows, model: TrainedModel, request: DataRequest
) -> list[Path]:
    """Write predictions of every region, per cell type and column, in the units of the source.

    Of several draws they are the mean, and the standard deviation `sd` is written, too.
    """
    forms = check_forms(request.formats or PREDICTIONS[:1], PREDICTIONS)
    sizes = None
    if request.chrom_sizes is not None:
        sizes = read_chrom_sizes(request.chrom_sizes, forms)
    source = SourceWindows.of(task, request)
    names = source.column_names()
    shape = (len(source.cells), len(source.matrix), len(names))
    # By region of the source; those outside the split stay NaN.
    values = np.full(shape, np.nan, np.float32)
    spread = np.full(shape, np.nan, np.float32)
    for number, cell in enumerate(source.cells):
        for clean, index in source.batches(cell):
            drawn = [
                task.inverse_transform(model.sample(clean)) for _ in range(task.draws)
            ]
            draws = np.stack(drawn)[..., source.columns]
            real = clean.valid.numpy()
            # Windows cover each region once, so nothing is overwritten.
            values[number, index[real]] = draws.mean(0)[real]
            if task.draws > 1:
                spread[number, index[real]] = draws.std(0, ddof=1)[real]

    rows = source.windows.rows
    offsets = [column - task.motifs for column in source.columns]
    truth = np.stack([source.truth(cell)[:, offsets] for cell in source.cells])
    arrays: dict[str, Any] = {
        "prediction": values[:, rows],
        "truth": truth[:, rows],
        "cell": np.array([*source.cells]),
        "column": np.array(names),
        **source.places(),
    }
    if task.draws > 1:
        arrays["sd"] = spread[:, rows]
    files: list[Path] = []
    for form in forms:
        if form in ("bedgraph", "bigwig"):
            files += write_tracks(request.folder, arrays, form, request.note, sizes)
            continue
        files.append(request.folder / f"predictions.{form}")
        with atomic_write(files[-1]) as temporary:
            if form == "npz":
                np.savez_compressed(temporary, **arrays | task.units.arrays())
            elif form == "h5ad":
                write_anndata(temporary, arrays)
            else:
                _write_table(temporary, arrays)
    return files


def _write_table(path: Path, arrays: dict[str, Any]) -> None:
    """Write a row for each cell type, column and region."""
    import pandas  # type: ignore[import-untyped,unused-ignore]

    cells = arrays["cell"]
    columns = arrays["column"]
    count = len(arrays["start"])
    table = {
        name: np.tile(arrays[name], len(cells) * len(columns))
        for name in ("chromosome", "start", "end")
    }
    table["cell"] = np.repeat(cells, len(columns) * count)
    table["column"] = np.tile(np.repeat(columns, count), len(cells))
    for name in ("prediction", "sd", "truth"):
        if name in arrays:
            # Regions vary fastest from row to row, then columns.
            table[name] = arrays[name].swapaxes(1, 2).ravel()
    pandas.DataFrame(table).to_csv(
        path, index=False, lineterminator="\n", float_format="%.7g"
    )


def predict_values(
    task: RegionWindows,
    model: TrainedModel,
    x: Float[ndarray, "N L M"],
    cell: str | None = None,
) -> Float[ndarray, "N L K"]:
    """Return predictions for motifs in the units of the source.

    `cell` may be left out if the model knows only one.
    """
    labels = cell_labels(task, cell)
    if len(labels) > 1:
        raise Refused(
            f"name the cell type: {', '.join(labels)}", code="missing-argument"
        )
    motifs = np.asarray(x, np.float32)
    is_windows = motifs.ndim == 3 and motifs.shape[-1] == task.motifs
    if not is_windows or not 1 <= motifs.shape[1] <= task.regions:
        expected = f"N windows of 1 to {task.regions} regions, {task.motifs} motifs"
        message = f"x has the shape {motifs.shape}, expected {expected}"
        raise Refused(message, code="wrong-shape")
    if bool(task.given[task.motifs :].any()):
        raise Refused(
            "the model is given accessibility too; use `dither predict`", code="usage"
        )

    count, length = motifs.shape[:2]
    divided = motifs / task.units.divisor[: task.motifs]
    # As in training, where only scaled motifs are cut.
    if task.matrix.divisor is not None:
        divided = np.minimum(divided, 1)
    scaled = np.zeros((count, task.regions, task.space.width), np.float32)
    scaled[:, :length, : task.motifs] = divided
    real = np.broadcast_to(
        np.arange(task.regions) < length, (count, task.regions)
    ).copy()
    clean = known_motifs(task, scaled, real, next(iter(labels.values())))
    draws = torch.stack([model.sample(clean) for _ in range(task.draws)])
    mean: ndarray = task.inverse_transform(draws.mean(0))
    return mean[:, :length, task.motifs :]


def embed(task: RegionWindows, model: TrainedModel, request: DataRequest) -> list[Path]:
    """Write the input of the head for each region and each cell type, means over the other.

    The UMAP is of regions, or of each region in each cell type if it is coloured by them.
    """
    forms = check_forms(request.formats or EMBEDDINGS[:1], EMBEDDINGS)
    check_figure_formats(request.figures)
    color = request.color
    has_umap = _has_umap(request)
    source = SourceWindows.of(task, request)
    colours = None
    if color is not None and color != "cell":
        colours = source.colours(color)
    regions: Any = 0.0
    cells = []
    by_cell = []
    for cell in source.cells:
        # Windows are in the order of `places`, each region in one of them.
        parts = []
        for clean, _ in source.batches(cell):
            parts.append(model.hidden(clean)[clean.valid])

        hidden = torch.cat(parts).numpy()
        regions = regions + hidden / len(source.cells)
        cells.append(hidden.mean(0))
        if color == "cell":
            by_cell.append(hidden)
    arrays = {
        "region": regions,
        "cell_embedding": np.stack(cells),
        "cell": np.array([*source.cells]),
        **source.places(),
    }
    files = [request.folder / f"embeddings.{form}" for form in forms]
    for path in files:
        with atomic_write(path) as temporary:
            if path.suffix == ".npz":
                np.savez_compressed(temporary, **arrays)
            else:
                write_anndata(temporary, arrays)

    if not has_umap:
        return files
    points = regions
    if color == "cell":
        points = np.concatenate(by_cell)
        colours = np.repeat(arrays["cell"], len(regions))
    picture = to_picture("umap", draw_umap(points, color or "", colours))
    return files + picture.write(request.folder, request.figures)


def _has_umap(request: DataRequest) -> bool:
    """Return whether a UMAP can be drawn; Refused if its colours are requested and it cannot."""
    missing = list(missing_libraries("umap", "the UMAP"))
    if missing and request.color is not None:
        raise Refused(missing)
    for problem in missing:
        request.note(f"no picture: {problem.message}; {problem.help}")
    return not missing
