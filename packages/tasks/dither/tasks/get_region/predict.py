"""Apply a trained model to regions of any source: predictions, attributions to motifs, embeddings.

Letters: N windows, L regions of a window, R (or n) regions of a source, W columns, M motifs, k
columns after them, K predicted ones, C cell types, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.contracts.protocols import Split, TrainedModel
from dither.registry.contracts.records import Clean
from dither.registry.files.atomic import atomic_write

from .data.column_groups import Splits, extra_columns
from .data.region_matrix import RegionMatrix
from .data.windows import WindowOptions, Windows, cut_windows
from .export import check_forms, place_columns, write_anndata, write_tracks
from .formats.sources import ReadOptions, open_regions
from .plots import draw_attributions, draw_umap

__all__ = ["DataRequest", "attribute", "embed", "predict", "predict_values"]

RegionWindows = Any
"""The task of `task.py`, which imports this module."""
BATCH: Final = 8
"""Windows of one call of the model."""
EXPLAINED: Final = 4096
"""Largest number of regions that are explained; windows are thinned out evenly."""
FORMS: Final = ("csv", "npz", "h5ad", "bedgraph", "bigwig")


@dataclass(frozen=True)
class DataRequest:
    """Regions to apply a model to, and the files to write.

    Attributes:
        folder: Existing, empty folder for the files.
        data: Files or folders of the user; none for the data of the run.
        split: Split of the data, or all of them.
        cell: Cell type; None for all that the model was trained on.
        formats: File formats.
    """

    folder: Path
    data: Sequence[Path] = ()
    split: Split | Literal["all"] = "valid"
    cell: str | None = None
    formats: Sequence[str] = ()


@dataclass(frozen=True)
class _Source:
    """Regions of a split as windows that cover each once, and the cell types to predict, by name and label."""

    task: RegionWindows
    matrix: RegionMatrix
    windows: Windows
    cells: dict[str, int]

    @classmethod
    def of(cls, task: RegionWindows, request: DataRequest) -> _Source:
        """Open the source that a request names; raises Refused if it does not fit the task."""
        cells = _cells(task, request.cell)
        matrix = _read(task, request.data) if request.data else task.matrix
        split: Split = "train" if request.split == "all" else request.split
        part = replace(matrix, valid=(), test=()) if request.split == "all" else matrix
        windows = cut_windows(
            part, split, WindowOptions(task.regions, task.regions), [0], covering=True
        )
        if not len(windows):
            names = ", ".join(matrix.chromosomes.tolist()[:30])
            message = (
                f'no region is in the split "{request.split}"; chromosomes of the source: {names}'
            )
            raise Refused(Problem(message, help="use --split all", code="no-samples"))
        return cls(task, matrix, windows, cells)

    @property
    def columns(self) -> list[int]:
        """Columns that the model predicts."""
        motifs = self.task.motifs
        return [
            number for number in range(motifs, self.task.space.width) if not self.task.given[number]
        ]

    def truth(self, cell: str) -> Float32[np.ndarray, "R k"]:
        """Return the columns after the motifs in the units of the source; NaN where they are unknown."""
        matrix = self.matrix
        kind = self.task.spec.column()
        number = [*self.matrix.cells, cell].index(cell)
        name = {"quantitative": "atpm"}.get(kind, kind)
        parts: list[Any] = (
            [] if kind == "none" else [(name, np.full((len(matrix), 1), float(kind == "constant")))]
        )
        parts += [("expression", np.zeros((len(matrix), 2)))] * self.task.spec.expression
        for array, values in parts:
            known = getattr(matrix, array, None)
            if (
                known is not None
                and number < len(matrix.cells)
                and f"{array}:{cell}" not in matrix.unknown
            ):
                values[:] = known[:, number].reshape(values.shape)
            elif array != "constant":
                values[:] = np.nan
        return np.concatenate(
            [np.zeros((len(matrix), 0)), *(values for _, values in parts)], 1, dtype=np.float32
        )

    def batches(self, cell: str, every: int = 1) -> Iterator[tuple[Clean, Int[np.ndarray, "N L"]]]:
        """Yield windows with everything masked that the model predicts, and their regions."""
        task = self.task
        truth = self.truth(cell)
        motifs = task.motifs
        given = task.given.numpy()
        if np.isnan(truth[:, given[motifs:]]).any():
            message = f'the model is given accessibility, which is unknown of "{cell}"'
            raise Refused(message, code="missing-array")
        numbers = range(0, len(self.windows), every)
        for low in range(0, len(numbers), BATCH):
            index, real, _ = self.windows.take(numbers[low : low + BATCH], task.regions)
            rest = np.nan_to_num(truth[index]) / task.units.divisor[motifs:]
            scaled = np.concatenate(
                [self.matrix.scaled(index), np.minimum(rest, np.where(given[motifs:], 1, 0))], -1
            )
            yield self._clean(scaled, real, index, cell), index

    def _clean(
        self,
        scaled: Float[np.ndarray, "N L W"],
        real: Bool[np.ndarray, "N L"],
        index: Int[np.ndarray, "N L"],
        cell: str,
    ) -> Clean:
        matrix = self.matrix
        names = self.task.samples.chromosomes
        clean = _clean_of(self.task, scaled, real, self.cells[cell])
        numbers = [
            names.index(name) if name in names else 0
            for name in matrix.chromosome[index[:, 0]].tolist()
        ]
        centre = (matrix.start[index] + matrix.end[index]) // 2 * real
        cond = clean.cond | {
            "chromosome": torch.tensor(numbers),
            "centre": torch.from_numpy(centre),
        }
        read = any(condition.name == "tss" for condition in self.task.space.conditions)
        if (
            read
            and matrix.tss is not None
            and cell in matrix.cells
            and f"tss:{cell}" not in matrix.unknown
        ):
            sites = matrix.tss[index, matrix.cells.index(cell)].any(-1) & real
            cond["tss"] = torch.from_numpy(sites.astype(np.float32))
        return replace(clean, cond=cond)


def _clean_of(
    task: RegionWindows,
    scaled: Float[np.ndarray, "N L W"],
    real: Bool[np.ndarray, "N L"],
    label: int,
) -> Clean:
    """Return windows whose motifs, and groups that are always given, are known."""
    x0 = (
        torch.from_numpy(task.units.forward(scaled.astype(np.float32)))
        * torch.from_numpy(real)[..., None]
    )
    known = task.given.clone()
    known[: task.motifs] = True
    count, length = real.shape
    cond = {
        "chromosome": torch.zeros(count, dtype=torch.long),
        "centre": torch.zeros(count, length, dtype=torch.long),
    }
    if task.samples.columns.trained:
        cond["cell"] = torch.full((count,), label)
    valid = torch.from_numpy(real)
    return Clean(x0.float(), valid, known & valid[..., None], cond)


def _cells(task: RegionWindows, name: str | None) -> dict[str, int]:
    """Return the label of each cell type to predict; -1 for one that the model was not trained on, if it may be."""
    trained = task.samples.cells[: task.samples.columns.trained]
    labels = {cell: number for number, cell in enumerate(trained)} or {"": -1}
    if name is None:
        return labels
    partial = any(
        condition.name == "cell" and condition.partial for condition in task.space.conditions
    )
    if name not in labels and not partial:
        fix = did_you_mean(
            name, labels, "a model with valid_cells or test_cells may predict others"
        )
        message = f'the model was not trained on the cell type "{name}"; it knows {", ".join(trained) or "none"}'
        raise Refused(Problem(message, help=fix, code="unknown-value"))
    return {name: labels.get(name, -1)}


def _read(task: RegionWindows, paths: Sequence[Path]) -> RegionMatrix:
    """Read regions with the motifs of the task, in its order and divided by its divisors; raises Refused."""
    matrix = open_regions(paths, Splits((), (), scale=False), ReadOptions(overlaps=True))
    path = paths[0]
    place = {name: number for number, name in enumerate(matrix.motifs)}
    if missing := [name for name in task.matrix.motifs if name not in place]:
        message = f"{path}: {len(missing)} of {task.motifs} motifs of the model are missing: {', '.join(missing[:5])}"
        raise Refused(Problem(message, help="motifs are matched by name", code="missing-array"))
    order = [place[name] for name in task.matrix.motifs]
    features: Any = matrix.scores(slice(None))[:, order]
    own = task.matrix
    return replace(
        matrix,
        features=features,
        divisor=own.divisor,
        motifs=own.motifs,
        valid=own.valid,
        test=own.test,
    )


def _names(source: _Source) -> list[str]:
    """Return the names of the columns that are predicted; raises Refused if there are none."""
    task = source.task
    if not source.columns:
        raise Refused("the model predicts motifs only, and no column after them", code="usage")
    names = extra_columns(task.space.groups, task.spec.column())
    return [names[number - task.motifs] for number in source.columns]


def predict(task: RegionWindows, model: TrainedModel, request: DataRequest) -> list[Path]:
    """Write predictions of every region, one per cell type and column, in the units of the source."""
    forms = check_forms(request.formats or ("csv",), FORMS)
    source = _Source.of(task, request)
    rows = source.windows.rows
    names = _names(source)
    values = np.full((len(source.cells), len(source.matrix), len(names)), np.nan, np.float32)
    for number, cell in enumerate(source.cells):
        for clean, index in source.batches(cell):
            real = clean.valid.numpy()
            draws = [model.sample(clean) for _ in range(task.draws)]
            mean = task.inverse_transform(torch.stack(draws).mean(0))
            values[number, index[real]] = mean[real][:, source.columns]
    offsets = [column - task.motifs for column in source.columns]
    truth = np.stack([source.truth(cell)[:, offsets] for cell in source.cells])[:, rows]
    arrays: dict[str, Any] = {
        "prediction": values[:, rows],
        "truth": truth,
        "cell": np.array([*source.cells]),
    }
    arrays |= {"column": np.array(names), **place_columns(source.matrix, rows)}
    files: list[Path] = []
    for form in forms:
        if form in ("bedgraph", "bigwig"):
            files += write_tracks(request.folder, arrays, form)
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
    import pandas  # type: ignore[import-untyped,unused-ignore]

    cells = arrays["cell"]
    columns = arrays["column"]
    count = len(arrays["start"])
    table = {
        name: np.tile(arrays[name], len(cells) * len(columns))
        for name in ("chromosome", "start", "end")
    }
    table |= {
        "cell": np.repeat(cells, len(columns) * count),
        "column": np.tile(np.repeat(columns, count), len(cells)),
    }
    table |= {name: arrays[name].swapaxes(1, 2).ravel() for name in ("prediction", "truth")}
    pandas.DataFrame(table).to_csv(path, index=False, lineterminator="\n", float_format="%.7g")


def predict_values(
    task: RegionWindows,
    model: TrainedModel,
    x: Float[np.ndarray, "N L M"],
    cell: str | None = None,
) -> Float[np.ndarray, "N L K"]:
    """Return predictions for motifs in the units of the source; `cell` may be left out if there is only one."""
    labels = _cells(task, cell)
    if len(labels) > 1:
        raise Refused(f"name the cell type: {', '.join(labels)}", code="missing-argument")
    motifs = np.asarray(x, np.float32)
    if (
        motifs.ndim != 3
        or motifs.shape[-1] != task.motifs
        or not 1 <= motifs.shape[1] <= task.regions
    ):
        expected = f"N windows of 1 to {task.regions} regions, {task.motifs} motifs"
        message = f"x has the shape {motifs.shape}, expected {expected}"
        raise Refused(message, code="wrong-shape")
    if bool(task.given[task.motifs :].any()):
        raise Refused("the model is given accessibility too; use `dither predict`", code="usage")
    count, length = motifs.shape[:2]
    scaled = np.zeros((count, task.regions, task.space.width), np.float32)
    divided = motifs / task.units.divisor[: task.motifs]
    scaled[:, :length, : task.motifs] = (
        divided if task.matrix.divisor is None else np.minimum(divided, 1)
    )
    real = np.broadcast_to(np.arange(task.regions) < length, (count, task.regions)).copy()
    clean = _clean_of(task, scaled, real, next(iter(labels.values())))
    draws = torch.stack([model.sample(clean) for _ in range(task.draws)]).mean(0)
    mean: np.ndarray = task.inverse_transform(draws)
    return mean[:, :length, task.motifs :]


def attribute(task: RegionWindows, model: TrainedModel, request: DataRequest) -> list[Path]:
    """Write gradient x input and motif knock-out of every motif, in the units of the source: tables, arrays, picture.

    The input counts from a region without the motif. Knock-out is the fall of a prediction when a
    motif is removed from all regions of the window. The table has means over regions, attributions.npz
    the values of each. If the source names genes, genes.csv has the same of the predictions where
    each is transcribed, with gradients to all regions of the window.
    """
    check_forms(request.formats, ())
    source = _Source.of(task, request)
    names = _names(source)
    motifs = task.matrix.motifs
    matrix = source.matrix
    every = max(1, -(-len(source.windows) * task.regions // EXPLAINED))
    zero = torch.from_numpy(task.units.forward(np.zeros((1, 1, task.space.width), np.float32)))[
        ..., : task.motifs
    ]
    scale = torch.from_numpy(task.standard.std * task.units.divisor)
    genes = np.zeros(0, np.int64) if matrix.gene_region is None else matrix.gene_region
    parts: list[tuple[Tensor, ...]] = []
    for cell in source.cells:
        rows = []
        sites = []
        of_cell = []
        for clean, index in source.batches(cell, every):
            is_site = clean.valid & torch.from_numpy(np.isin(index, genes))
            rows.append(index[clean.valid.numpy()])
            sites.append(index[is_site.numpy()])
            of_columns = [
                _attribute(model, clean, zero, k, scale[k], is_site) for k in source.columns
            ]
            of_cell.append([torch.stack(side) for side in zip(*of_columns, strict=True)])
        parts.append(tuple(torch.cat(side, 1) for side in zip(*of_cell, strict=True)))
    values = [
        torch.stack(side).numpy() for side in zip(*parts, strict=True)
    ]  # C K n M, twice, and C K g M, twice
    arrays: dict[str, Any] = {
        "gradient_x_input": values[0],
        "knock_out": values[1],
        "motif": np.array(motifs),
    }
    arrays |= {"cell": np.array([*source.cells]), "column": np.array(names)}
    arrays |= place_columns(matrix, np.concatenate(rows))
    files = [
        request.folder / name
        for name in ("attributions.csv", "attributions.npz", "attributions.png")
    ]
    axes = {"cell": [*source.cells], "column": names}
    tables = [_attribution_table({**axes, "motif": motifs}, [side.mean(2) for side in values[:2]])]
    if len(explained := np.concatenate(sites)):
        files.append(request.folder / "genes.csv")
        of_genes, means = _by_gene(matrix, explained, values[2:])
        tables.append(_attribution_table({**axes, "gene": of_genes, "motif": motifs}, means))
    for path, table in zip((files[0], *files[3:]), tables, strict=True):
        with atomic_write(path) as temporary:
            table.to_csv(temporary, index=False, lineterminator="\n", float_format="%.6g")
    with atomic_write(files[1]) as temporary:
        np.savez_compressed(temporary, **arrays)
    titles = [f"{cell} {column}".strip() for cell in source.cells for column in names]
    with atomic_write(files[2]) as temporary:
        temporary.write_bytes(
            draw_attributions(values[0].mean(2).reshape(-1, len(motifs)), titles, motifs)
        )
    return files


def _attribution_table(axes: dict[str, Any], both: Sequence[Float[np.ndarray, "..."]]) -> Any:
    """Return a row for each element of gradient x input and knock-out, with the labels of its axes."""
    import pandas

    columns = {
        name: side.ravel()
        for name, side in zip(("gradient_x_input", "knock_out"), both, strict=True)
    }
    return pandas.DataFrame(
        columns, pandas.MultiIndex.from_product(axes.values(), names=axes)
    ).reset_index()


def _by_gene(
    matrix: RegionMatrix,
    regions: Int[np.ndarray, " g"],
    both: Sequence[Float[np.ndarray, "C K g M"]],
) -> tuple[list[str], list[Float[np.ndarray, "C K G M"]]]:
    """Return genes, and the mean of each over those of the regions in which it is transcribed."""
    sites: dict[str, list[int]] = {}
    number = {region: place for place, region in enumerate(regions.tolist())}
    for gene, region in zip(matrix.gene.tolist(), matrix.gene_region.tolist(), strict=True):  # type: ignore[union-attr]
        if region in number:
            sites.setdefault(gene, []).append(number[region])
    return [*sites], [
        np.stack([side[:, :, own].mean(2) for own in sites.values()], 2) for side in both
    ]


def _attribute(
    model: TrainedModel,
    clean: Clean,
    zero: Tensor,
    column: int,
    scale: Tensor,
    sites: Bool[Tensor, "N L"],
) -> tuple[Float[Tensor, "n M"], Float[Tensor, "n M"], Float[Tensor, "g M"], Float[Tensor, "g M"]]:
    """Return gradient x input and knock-out of a column for each region, and of the predictions at each site."""
    motifs = zero.shape[-1]
    valid = clean.valid
    inputs = (clean.x0[..., :motifs] - zero) * valid[..., None] * scale
    x0 = clean.x0.clone().requires_grad_()
    y = model.mean(replace(clean, x0=x0))[..., column]
    (slope,) = torch.autograd.grad(y[valid].sum(), x0, retain_graph=True)
    gradient = slope[..., :motifs] * inputs
    of_sites = torch.zeros(*sites.shape, motifs)
    order = sites.cumsum(1) * sites
    for number in range(1, int(order.max()) + 1):  # one site of each window at a time
        at = order == number
        (slope,) = torch.autograd.grad(y[at].sum(), x0, retain_graph=True)
        of_sites[at] = (slope[..., :motifs] * inputs).sum(1)[at.any(1)]
    falls = torch.empty(*valid.shape, motifs)
    with torch.no_grad():
        for motif in range(motifs):
            without = clean.x0.clone()
            without[..., motif] = zero[..., motif]
            without *= valid[..., None]
            falls[..., motif] = (y - model.mean(replace(clean, x0=without))[..., column]) * scale
    return gradient[valid], falls[valid], of_sites[sites], falls[sites]


def embed(task: RegionWindows, model: TrainedModel, request: DataRequest) -> list[Path]:
    """Write the input of the head for each region (mean over cell types) and each cell type (mean over regions)."""
    forms = check_forms(request.formats or ("npz",), ("npz", "h5ad"))
    source = _Source.of(task, request)
    rows = source.windows.rows
    regions: Any = 0.0
    cells = []
    for cell in source.cells:
        batches = [
            (index, clean.valid, model.hidden(clean)) for clean, index in source.batches(cell)
        ]
        order = np.argsort(np.concatenate([index[valid.numpy()] for index, valid, _ in batches]))
        hidden = torch.cat([hidden[valid] for _, valid, hidden in batches]).numpy()[order]
        regions = regions + hidden / len(source.cells)
        cells.append(hidden.mean(0))
    arrays = {
        "region": regions,
        "cell_embedding": np.stack(cells),
        "cell": np.array([*source.cells]),
    }
    arrays |= place_columns(source.matrix, rows)
    files = [request.folder / f"embeddings.{form}" for form in forms]
    for path in files:
        with atomic_write(path) as temporary:
            if path.suffix == ".npz":
                np.savez_compressed(temporary, **arrays)
            else:
                write_anndata(temporary, arrays)
    if (png := draw_umap(regions)) is not None:
        files.append(request.folder / "umap.png")
        with atomic_write(files[-1]) as temporary:
            temporary.write_bytes(png)
    return files
