"""Attributions of predictions to motifs: gradient x input, and knock-out.

Letters: N windows, L regions of a window, n regions, g regions with a gene, G genes, M motifs, K
predicted columns, C cell types.
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

from dither.registry.contracts.protocols import TrainedModel
from dither.registry.contracts.records import Clean
from dither.registry.files.atomic import atomic_write

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
    predictions where each is transcribed, with gradients to all regions of the window.
    """
    check_forms(request.formats, ())
    source = SourceWindows.of(task, request)
    names = source.column_names()
    motifs = task.matrix.motifs
    matrix = source.matrix
    every = max(1, -(-len(source.windows) * task.regions // EXPLAINED))
    # A region without motifs, in the units of the model.
    zero = torch.from_numpy(
        task.units.forward(np.zeros((1, 1, task.space.width), np.float32))
    )
    scale = torch.from_numpy(task.standard.std * task.units.divisor)
    genes = matrix.gene_region
    if genes is None:
        genes = np.zeros(0, np.int64)
    cells = []
    for cell in source.cells:
        rows = []
        sites = []
        windows = []
        for clean, index in source.batches(cell, every):
            is_site = clean.valid & torch.from_numpy(np.isin(index, genes))
            rows.append(index[clean.valid.numpy()])
            sites.append(index[is_site.numpy()])
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
    # C K n M and C K n M of regions, C K g M and C K g M of genes.
    values = [part.numpy() for part in _stack(cells)]

    axes = {"cell": [*source.cells], "column": names}
    means = [value.mean(2) for value in values[:2]]
    tables = {"attributions.csv": _table({**axes, "motif": motifs}, means)}
    explained = np.concatenate(sites)
    if len(explained):
        gene_names, gene_means = _by_gene(matrix, explained, values[2:])
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

    files = [
        request.folder / name
        for name in ("attributions.npz", "attributions.png", *tables)
    ]
    with atomic_write(files[0]) as temporary:
        np.savez_compressed(temporary, **arrays)
    titles = [f"{cell} {column}".strip() for cell in source.cells for column in names]
    with atomic_write(files[1]) as temporary:
        png = draw_attributions(means[0].reshape(-1, len(motifs)), titles, motifs)
        temporary.write_bytes(png)
    for path, table in zip(files[2:], tables.values(), strict=True):
        with atomic_write(path) as temporary:
            table.to_csv(
                temporary, index=False, lineterminator="\n", float_format="%.6g"
            )
    return files


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
    assert matrix.gene is not None
    assert matrix.gene_region is not None
    number_of = {region: number for number, region in enumerate(regions.tolist())}
    sites: dict[str, list[int]] = {}
    places = zip(matrix.gene.tolist(), matrix.gene_region.tolist(), strict=True)
    for gene, region in places:
        # Windows were thinned out: not every gene is in one.
        if region in number_of:
            sites.setdefault(gene, []).append(number_of[region])
    means = []
    for value in values:
        of_genes = [value[:, :, numbers].mean(2) for numbers in sites.values()]
        means.append(np.stack(of_genes, 2))
    return [*sites], means


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
]:
    """Return gradient x input and knock-out of a column for regions, and for sites."""
    motifs = zero.shape[-1]
    valid = clean.valid
    inputs = (clean.x0[..., :motifs] - zero) * valid[..., None] * scale
    x0 = clean.x0.clone().requires_grad_()
    y = model.mean(replace(clean, x0=x0))[..., column]
    (grad,) = torch.autograd.grad(y[valid].sum(), x0, retain_graph=True)
    gradient = grad[..., :motifs] * inputs

    # One site of each window at a time: windows do not depend on each other.
    of_sites = torch.zeros(*sites.shape, motifs)
    order = sites.cumsum(1) * sites
    for number in range(1, int(order.max()) + 1):
        at = order == number
        (grad,) = torch.autograd.grad(y[at].sum(), x0, retain_graph=True)
        # Over all regions of the window.
        of_windows = (grad[..., :motifs] * inputs).sum(1)
        of_sites[at] = of_windows[at.any(1)]

    falls = torch.empty(*valid.shape, motifs)
    with torch.no_grad():
        for motif in range(motifs):
            without = clean.x0.clone()
            without[..., motif] = zero[..., motif]
            # Padding stays 0, whatever a region without the motif has in the units of the model.
            without *= valid[..., None]
            mean = model.mean(replace(clean, x0=without))[..., column]
            falls[..., motif] = (y - mean) * scale
    return gradient[valid], falls[valid], of_sites[sites], falls[sites]
