"""Attributions of predictions to motifs: gradient x input, and knock-out.

Letters: N windows, L regions of a window, n regions, g regions with a gene, G genes, M motifs, K
predicted columns, C cell types, L regions of a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from dither.registry.contracts.pictures import check_figure_formats
from dither.registry.contracts.protocols import TrainedModel
from dither.registry.contracts.records import Clean
from dither.registry.files.atomic import atomic_write

from ..plot_style import to_picture
from .data.region_matrix import RegionMatrix
from .export import check_forms
from .plots import draw_attributions
from .source_windows import DataRequest, RegionWindows, SourceWindows

__all__ = ["attribute"]

EXPLAINED = 4096
"""Largest number of regions that are explained; windows are thinned out evenly."""
METHODS = ("gradient_x_input", "knock_out")


def attribute(
    task: RegionWindows, model: TrainedModel, request: DataRequest
) -> list[Path]:
    """Write gradient x input and knock-out of every motif, in the units of the source.

    The input counts from a region without the motif. Knock-out is the fall of a prediction when a
    motif is removed from all regions of the window. The table has means over regions,
    attributions.npz the values of each. If the source names genes, genes.csv has the same of the
    predictions where each is transcribed, with gradients to all regions of the window, and
    gene_regions.csv the gradient x input of each of these regions, summed over motifs.
    """
    check_forms(request.formats, ())
    check_figure_formats(request.figures)
    source = SourceWindows.of(task, request)
    names = source.column_names()
    motifs = task.matrix.motifs
    matrix = source.matrix
    every = max(1, -(-len(source.windows) * task.regions // EXPLAINED))
    # A region without motifs, in the units of the model.
    zero = torch.from_numpy(
        task.units.forward(np.zeros((1, 1, task.space.width), np.float32))
    )
    # Differences of predictions times this are in the units of the source.
    scale = torch.from_numpy(task.standard.std * task.units.divisor)
    genes = matrix.gene_region
    if genes is None:
        genes = np.zeros(0, np.int64)
    cells = []
    for cell in source.cells:
        rows = []
        sites = []
        around = []
        windows = []
        for clean, index in source.batches(cell, every):
            is_site = clean.valid & torch.from_numpy(np.isin(index, genes))
            rows.append(index[clean.valid.numpy()])
            sites.append(index[is_site.numpy()])
            # The regions of the window of each site; -1 for padding.
            placed = np.where(clean.valid.numpy(), index, -1)
            around.append(placed[is_site.nonzero()[:, 0].numpy()])
            columns = []
            for column in source.columns:
                parts = _attribute(
                    model=model,
                    clean=clean,
                    zero=zero[..., : task.motifs],
                    column=column,
                    scale=scale[column],
                    sites=is_site,
                )
                columns.append(parts)
            windows.append(_stack(columns))
        cells.append([torch.cat(kinds, 1) for kinds in zip(*windows, strict=True)])
    # C K n M and C K n M of regions, C K g M, C K g M and C K g L of genes.
    values = [part.numpy() for part in _stack(cells)]

    axes = {"cell": [*source.cells], "column": names}
    means = [value.mean(2) for value in values[:2]]
    tables = {"attributions.csv": _table({**axes, "motif": motifs}, means)}
    explained = np.concatenate(sites)
    if len(explained):
        gene_names, gene_means = _by_gene(matrix, explained, values[2:4])
        tables["gene_regions.csv"] = _gene_regions(
            matrix=matrix,
            axes=axes,
            sites=explained,
            around=np.concatenate(around),
            scores=values[4],
        )
        axes["gene"] = gene_names
        tables["genes.csv"] = _table({**axes, "motif": motifs}, gene_means)
    index = np.concatenate(rows)
    arrays: dict[str, Any] = {
        "gradient_x_input": values[0],
        "knock_out": values[1],
        "motif": np.array(motifs),
        "cell": np.array([*source.cells]),
        "column": np.array(names),
        "chromosome": matrix.chromosome[index],
        "start": matrix.start[index],
        "end": matrix.end[index],
    }

    files = [request.folder / name for name in ("attributions.npz", *tables)]
    with atomic_write(files[0]) as temporary:
        np.savez_compressed(temporary, **arrays)
    for path, table in zip(files[1:], tables.values(), strict=True):
        with atomic_write(path) as temporary:
            table.to_csv(
                temporary, index=False, lineterminator="\n", float_format="%.6g"
            )

    titles = []
    for cell in source.cells:
        titles += [f"{cell} {column}".strip() for column in names]
    plot = draw_attributions(means[0].reshape(-1, len(motifs)), titles, motifs)
    picture = to_picture("attributions", plot)
    return files + picture.write(request.folder, request.figures)


def _stack(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Stack tensors of the same kind along a new first axis."""
    return [torch.stack(of_kind) for of_kind in zip(*parts, strict=True)]


def _table(axes: Mapping[str, Any], values: Sequence[Float[ndarray, "..."]]) -> Any:
    """Return a row for each element of both methods, with the labels of its axes."""
    import pandas  # type: ignore[import-untyped,unused-ignore]

    index = pandas.MultiIndex.from_product(axes.values(), names=axes)
    columns = {name: value.ravel() for name, value in zip(METHODS, values, strict=True)}
    return pandas.DataFrame(columns, index).reset_index()


def _by_gene(
    matrix: RegionMatrix,
    regions: Int[ndarray, " g"],
    values: Sequence[Float[ndarray, "C K g M"]],
) -> tuple[list[str], list[Float[ndarray, "C K G M"]]]:
    """Return genes, and means over the regions in which each is transcribed."""
    number_of = {region: number for number, region in enumerate(regions.tolist())}
    sites: dict[str, list[int]] = {}
    for gene, region in _gene_places(matrix):
        # Windows were thinned out: not every gene is in one.
        if region in number_of:
            sites.setdefault(gene, []).append(number_of[region])
    means = []
    for value in values:
        of_genes = [value[:, :, numbers].mean(2) for numbers in sites.values()]
        means.append(np.stack(of_genes, 2))
    return [*sites], means


def _gene_places(matrix: RegionMatrix) -> list[tuple[str, int]]:
    """Return each gene with a region in which it is transcribed."""
    assert matrix.gene is not None
    assert matrix.gene_region is not None
    return list(zip(matrix.gene.tolist(), matrix.gene_region.tolist(), strict=True))


def _gene_regions(
    matrix: RegionMatrix,
    axes: Mapping[str, Any],
    sites: Int[ndarray, " g"],
    around: Int[ndarray, "g L"],
    scores: Float[ndarray, "C K g L"],
) -> Any:
    """Return a row for each cell type, column, gene, start site and region of its window."""
    import pandas

    number_of = {region: number for number, region in enumerate(sites.tolist())}
    centre = (matrix.start + matrix.end) // 2
    parts = []
    for gene, site in _gene_places(matrix):
        if site not in number_of:
            continue
        number = number_of[site]
        real = np.flatnonzero(around[number] >= 0)
        regions = around[number][real]
        places = {
            "gene": gene,
            "chromosome": matrix.chromosomes[matrix.chromosome_number[site]],
            "tss_region": matrix.start[site],
            "start": matrix.start[regions],
            "end": matrix.end[regions],
            "distance": centre[regions] - centre[site],
        }
        for c, cell in enumerate(axes["cell"]):
            for k, column in enumerate(axes["column"]):
                values = {METHODS[0]: scores[c, k, number, real]}
                table = {"cell": cell, "column": column, **places, **values}
                parts.append(pandas.DataFrame(table))
    return pandas.concat(parts)


def _attribute(
    model: TrainedModel,
    clean: Clean,
    zero: Float[Tensor, "1 1 M"],
    column: int,
    scale: Tensor,
    sites: Bool[Tensor, "N L"],
) -> tuple[
    Float[Tensor, "n M"],
    Float[Tensor, "n M"],
    Float[Tensor, "g M"],
    Float[Tensor, "g M"],
    Float[Tensor, "g L"],
]:
    """Return gradient x input and knock-out of a column for regions, and for sites.

    Last is the gradient x input of the regions of the window of each site, summed over motifs.
    """
    motifs = zero.shape[-1]
    valid = clean.valid
    inputs = (clean.x0[..., :motifs] - zero) * valid[..., None] * scale
    x0 = clean.x0.clone().requires_grad_()
    y = model.mean(replace(clean, x0=x0))[..., column]
    # Of the sum over the window: a region's gradient has its effect on all predictions.
    (grad,) = torch.autograd.grad(y[valid].sum(), x0, retain_graph=True)
    gradient = grad[..., :motifs] * inputs

    # One site of each window at a time: windows do not depend on each other.
    of_sites = torch.zeros(*sites.shape, motifs)
    of_regions = torch.zeros(*sites.shape, sites.shape[1])
    # Number of each site in its window, from 1; 0 elsewhere.
    order = sites.cumsum(1) * sites
    for number in range(1, int(order.max()) + 1):
        at = order == number
        (grad,) = torch.autograd.grad(y[at].sum(), x0, retain_graph=True)
        in_window = (grad[..., :motifs] * inputs)[at.any(1)]
        of_sites[at] = in_window.sum(1)
        of_regions[at] = in_window.sum(2)

    falls = torch.empty(*valid.shape, motifs)
    with torch.no_grad():
        for motif in range(motifs):
            without = clean.x0.clone()
            without[..., motif] = zero[..., motif]
            # Padding stays 0, although 0 hits may be another number in the units of the model.
            without *= valid[..., None]
            mean = model.mean(replace(clean, x0=without))[..., column]
            falls[..., motif] = (y - mean) * scale
    return (
        gradient[valid],
        falls[valid],
        of_sites[sites],
        falls[sites],
        of_regions[sites],
    )
