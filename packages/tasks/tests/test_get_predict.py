"""Predictions, attributions and embeddings of a model that is known exactly, for regions of several sources."""

import csv
import importlib.machinery
import importlib.util
import sys
import types

import anndata
import numpy as np
import pandas
import pyBigWig
import pytest
import torch

from dither.registry.config.errors import Refused
from dither.tasks.get_region import predict as predict_module
from dither.tasks.get_region.attributions import attribute
from dither.tasks.get_region.data_specs import RegionStore, RegionStores
from dither.tasks.get_region.export import read_chrom_sizes, write_tracks
from dither.tasks.get_region.plots import draw_umap
from dither.tasks.get_region.predict import embed, predict
from dither.tasks.get_region.source_windows import DataRequest
from dither.tasks.get_region.specs import GetRegion
from dither.tasks.plot_style import to_picture

P, M, CELLS = 60, 4, ("a", "b")
WEIGHTS = torch.tensor([[0.5, 0.0, -0.3, 0.1], [0.0, 0.7, 0.2, -0.4]])
"""Activity of each motif in each cell type."""


def arrays_of(seed=0):
    g = np.random.default_rng(seed)
    return {
        "features": (g.random((P, M)) * 5).astype(np.float32),
        "motifs": np.array([f"m{k}" for k in range(M)]),
        "chromosome": np.repeat(["chr1", "chr2", "chr3"], P // 3),
        "start": np.tile(np.arange(P // 3) * 1000, 3),
        "end": np.tile(np.arange(P // 3) * 1000, 3) + 500,
        "cells": np.array(CELLS),
        "atpm": g.random((P, 2)).astype(np.float32) * 3,
        "tss": g.integers(0, 2, (P, 2, 2)).astype(np.int8),
        "gene_name": np.array(["DHFR", "TP53", "MYC", "DHFR", "OTHER"]),
        "gene_index": np.array([20, 21, 35, 39, 50]),
    }


ARRAYS = arrays_of()
TOP = ARRAYS["features"][40:].max(0)


class Linear:
    """Accessibility as a linear function of the motifs of the region, in the units of the model."""

    def mean(self, clean):
        weights = WEIGHTS[clean.cond["cell"]]
        value = (clean.x0[..., :M] * weights[:, None]).sum(-1, keepdim=True)
        return torch.cat([clean.x0[..., :M], value], -1)

    sample = mean

    def hidden(self, clean):
        return clean.x0[..., :3] + clean.cond["cell"][:, None, None]


@pytest.fixture
def task(tmp_path, write_store):
    write_store(tmp_path / "x.zarr", ARRAYS)
    return open_task(tmp_path / "x.zarr")


def open_task(path, **options):
    data = RegionStore(path=str(path), valid=["chr2"], test=["chr1"])
    options = {
        "regions": 7,
        "stride": 3,
        "cell_type": list(CELLS),
        "accessibility": "quantitative",
    } | options
    return GetRegion(data=data, given="motifs", **options).build()


def expected(features, cell, top):
    scaled = np.minimum(features / TOP, 1)
    return scaled @ WEIGHTS[cell].numpy() * top


@pytest.mark.parametrize(("split", "rows"), [("test", range(20)), ("all", range(60))])
def test_predictions_are_in_the_units_of_the_source(task, tmp_path, split, rows):
    top = ARRAYS["atpm"][40:].max()
    forms = ("csv", "npz", "h5ad", "bedgraph")
    files = predict(task, Linear(), DataRequest(tmp_path, split=split, formats=forms))
    found = dict(np.load(tmp_path / "predictions.npz", allow_pickle=False))
    for c in range(2):
        want = expected(ARRAYS["features"][list(rows)], c, top)
        np.testing.assert_allclose(
            found["prediction"][c, :, 0], want, rtol=1e-4, atol=1e-5
        )
        np.testing.assert_array_equal(
            found["truth"][c, :, 0], ARRAYS["atpm"][list(rows), c]
        )
    np.testing.assert_array_equal(found["start"], ARRAYS["start"][list(rows)])
    with (tmp_path / "predictions.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 2 * len(rows)
    np.testing.assert_allclose(
        [float(row["prediction"]) for row in table],
        found["prediction"].ravel(),
        rtol=1e-5,
    )
    written = anndata.read_h5ad(tmp_path / "predictions.h5ad")
    assert list(written.obs_names) == [*CELLS]
    np.testing.assert_array_equal(written.X, found["prediction"][..., 0])
    tracks = [path for path in files if path.suffix == ".bedgraph"]
    assert [path.name for path in tracks] == [
        "a-accessibility.bedgraph",
        "b-accessibility.bedgraph",
    ]
    values = [
        float(line.split("\t")[3]) for line in tracks[1].read_text().splitlines()[1:]
    ]
    np.testing.assert_allclose(values, found["prediction"][1, :, 0], rtol=1e-4)


def test_bigwig_holds_what_bedgraph_holds(task, tmp_path):
    files = predict(
        task,
        Linear(),
        DataRequest(tmp_path, split="all", formats=("bedgraph", "bigwig")),
    )
    text, binary = (path for path in files if path.name.startswith("b-"))
    lines = [line.split("\t") for line in text.read_text().splitlines()[1:]]
    with pyBigWig.open(str(binary)) as file:
        found = [
            (name, *entry)
            for name in sorted(file.chroms())
            for entry in file.intervals(name)
        ]
    assert [entry[:3] for entry in found] == [
        (name, int(low), int(high)) for name, low, high, _ in lines
    ]
    np.testing.assert_allclose(
        [entry[3] for entry in found], [float(line[3]) for line in lines], rtol=1e-5
    )


class Drawn(Linear):
    """Draws with a standard deviation of 1 in the units of the model."""

    def sample(self, clean):
        return self.mean(clean) + torch.randn(clean.x0.shape)


def test_the_spread_of_draws_is_written(tmp_path, write_store):
    write_store(tmp_path / "x.zarr", ARRAYS)
    task = open_task(tmp_path / "x.zarr", draws=40)
    torch.manual_seed(0)
    forms = ("csv", "npz", "h5ad")
    predict(task, Drawn(), DataRequest(tmp_path, split="all", formats=forms))
    found = dict(np.load(tmp_path / "predictions.npz", allow_pickle=False))
    top = ARRAYS["atpm"][40:].max()
    assert found["sd"].mean() == pytest.approx(top, rel=0.05)
    error = found["prediction"][0, :, 0] - expected(ARRAYS["features"], 0, top)
    assert error.std() == pytest.approx(top / 40**0.5, rel=0.3)
    table = pandas.read_csv(tmp_path / "predictions.csv")
    np.testing.assert_allclose(table["sd"], found["sd"].ravel(), rtol=1e-5)
    layer = anndata.read_h5ad(tmp_path / "predictions.h5ad").layers["accessibility_sd"]
    np.testing.assert_array_equal(layer, found["sd"][..., 0])


def test_overlapping_regions_have_their_mean(tmp_path):
    """Each base of a track has one value; no region is dropped."""
    g = np.random.default_rng(0)
    start = np.sort(g.integers(0, 400, 60))
    end = start + g.integers(1, 90, 60)
    values = g.normal(size=60)
    arrays = {
        "chromosome": np.array(["chr1"] * 60 + ["chr2"]),
        "start": np.append(start, 5),
        "end": np.append(end, 9),
        "cell": np.array(["a"]),
        "column": np.array(["open"]),
        "prediction": np.append(values, 3.0)[None, :, None],
    }
    covers = (np.arange(500) >= start[:, None]) & (np.arange(500) < end[:, None])
    with np.errstate(invalid="ignore"):
        want = (values @ covers) / covers.sum(0)
    notes = []
    (bed,) = write_tracks(tmp_path, arrays, "bedgraph", notes.append)
    found = np.full(500, np.nan)
    for line in bed.read_text().splitlines()[1:-1]:
        _, low, high, value = line.split("\t")
        found[int(low) : int(high)] = float(value)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    crossing = (start[1:] < np.maximum.accumulate(end)[:-1]).sum()
    assert notes[0].startswith(f"{crossing} of 61 regions")

    sizes = tmp_path / "sizes"
    sizes.write_text("chr2\t1000\nchr1\t2000\nchrM\t300\n")
    lengths = read_chrom_sizes(sizes, ["bigwig"])
    (path,) = write_tracks(tmp_path, arrays, "bigwig", notes.append, lengths)
    with pyBigWig.open(str(path)) as file:
        assert file.chroms() == {"chr1": 2000, "chr2": 1000, "chrM": 300}
        np.testing.assert_allclose(file.values("chr1", 0, 500), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("chr1\t2000\nchr1\t2000\n", "invalid-sample"),
        ("chr1\tmany\n", "invalid-sample"),
        (f"chr1\t{'9' * 5000}\n", "invalid-sample"),
        ("chr1\t4294967296\n", "invalid-sample"),
        ("chr2\t2000\n", "unknown-value"),
        ("chr1\t10\nchr2\t10\nchr3\t10\n", "out-of-range"),
    ],
)
def test_sizes_of_chromosomes_that_do_not_fit(task, tmp_path, refusal, text, code):
    sizes = tmp_path / "sizes"
    sizes.write_text(text)
    request = DataRequest(tmp_path, split="all", formats=("bigwig",), chrom_sizes=sizes)
    assert refusal(predict, task, Linear(), request).codes[0] == code
    request = DataRequest(tmp_path, split="all", chrom_sizes=sizes)
    assert refusal(predict, task, Linear(), request).codes == ["no-effect"]


def test_notes_do_not_change_the_terminal(tmp_path):
    request = DataRequest(tmp_path)
    request.note("motifs: \x1b[2J")
    assert request.notes == ["motifs: \ufffd[2J"]


def test_bigwig_of_a_region_beyond_its_longest_chromosome(tmp_path, refusal):
    arrays = {
        "chromosome": np.array(["chr1"]),
        "start": np.array([1 << 32]),
        "end": np.array([(1 << 32) + 1]),
        "cell": np.array(["a"]),
        "column": np.array(["atpm"]),
        "prediction": np.ones((1, 1, 1), np.float32),
    }
    notes = []
    refused = refusal(write_tracks, tmp_path, arrays, "bigwig", notes.append)
    assert refused.codes == ["out-of-range"]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of umap-learn and numba
def test_umap_is_drawn():
    """Twelve seconds, most of which numba compiles."""
    figure = draw_umap(np.random.default_rng(0).random((60, 5)))
    assert to_picture("umap", figure).png.startswith(b"\x89PNG")


class FirstTwo:
    """In place of UMAP: the first two columns."""

    def __init__(self, **_):
        pass

    def fit_transform(self, x):
        return x[:, :2]


@pytest.fixture
def quick_umap(monkeypatch):
    module = types.ModuleType("umap")
    module.__spec__ = importlib.machinery.ModuleSpec("umap", None)
    module.UMAP = FirstTwo
    monkeypatch.setitem(sys.modules, "umap", module)


@pytest.mark.usefixtures("quick_umap")
def test_a_umap_is_coloured_by_a_column(task, tmp_path, refusal, monkeypatch):
    seen = []

    def drawn(points, label, values):
        figure = draw_umap(points, label, values)
        seen.append((points, values, figure))
        return figure

    monkeypatch.setattr(predict_module, "draw_umap", drawn)
    for color, expected in (
        ("chromosome", ARRAYS["chromosome"]),
        ("m2", ARRAYS["features"][:, 2]),
        ("accessibility", ARRAYS["atpm"].mean(1)),
        ("b accessibility", ARRAYS["atpm"][:, 1]),
        ("cell", np.repeat(CELLS, P)),
    ):
        out = tmp_path / color
        out.mkdir()
        request = DataRequest(out, split="all", color=color, figures=("svg",))
        files = embed(task, Linear(), request)
        assert {file.name for file in files} >= {"umap.png", "umap.svg"}
        points, values, figure = seen.pop()
        if values.dtype.kind == "U":
            assert values.tolist() == expected.tolist()
            legend = figure.axes[0].get_legend()
            names = [text.get_text() for text in legend.get_texts()]
            assert names == sorted(set(names)) == sorted(set(expected.tolist()))
        else:
            np.testing.assert_allclose(values, expected, rtol=1e-5)
            assert figure.axes[1].get_ylabel() == color
        # Dots and colours are shuffled alike.
        dots = figure.axes[0].collections[0]
        order = np.lexsort(points[:, :2].T)
        shown = np.lexsort(dots.get_offsets().T)
        np.testing.assert_array_equal(dots.get_offsets()[shown], points[order, :2])
        if values.dtype.kind != "U":
            np.testing.assert_array_equal(dots.get_array()[shown], values[order])
    request = DataRequest(tmp_path, split="all", color="opne")
    assert refusal(embed, task, Linear(), request).codes == ["unknown-value"]
    for method in (embed, attribute):
        request = DataRequest(tmp_path, split="all", figures=("eps",))
        assert refusal(method, task, Linear(), request).codes == ["unknown-format"]


def test_colours_require_umap(task, tmp_path, refusal, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "umap" else find(name)
    )
    request = DataRequest(tmp_path, split="all", color="cell")
    assert refusal(embed, task, Linear(), request).codes == ["missing-dependency"]
    request = DataRequest(tmp_path, split="all")
    assert [file.name for file in embed(task, Linear(), request)] == ["embeddings.npz"]
    # With the command that installs it.
    assert "install" in request.notes[0]


def test_regions_of_another_source_are_divided_by_the_divisors_of_the_run(
    task, tmp_path, refusal, write_store, monkeypatch
):
    """By every verb, in every format: without accessibility and TSS, with motifs in another order and one more."""
    monkeypatch.setitem(sys.modules, "umap", None)
    other, order = arrays_of(1), [2, 0, 3, 1]
    features = np.column_stack([other["features"][:, order], np.ones(P)])
    names = [*other["motifs"][order], "further"]
    places = {name: other[name] for name in ("chromosome", "start", "end")}
    np.savez(tmp_path / "y.npz", features=features, motifs=np.array(names), **places)
    lines = [
        ",".join(names),
        *(",".join(map(repr, map(float, row))) for row in features),
    ]
    (tmp_path / "z.csv").write_text("\n".join(lines))
    bed = zip(*(values.tolist() for values in places.values()), strict=True)
    (tmp_path / "z.bed").write_text(
        "\n".join("\t".join(map(str, line)) for line in bed)
    )
    index = [f"{c}:{s}-{e}" for c, s, e in zip(*places.values(), strict=True)]
    file = anndata.AnnData(features)
    file.obs_names, file.var_names = index, names
    file.write_h5ad(tmp_path / "w.h5ad")
    write_store(
        tmp_path / "v.zarr", {"features": features, "motifs": np.array(names), **places}
    )
    top = ARRAYS["atpm"][40:].max()
    for paths in (["y.npz"], ["z.csv", "z.bed"], ["w.h5ad"], ["v.zarr"]):
        out = tmp_path / paths[0].replace(".", "-")
        out.mkdir()
        data = tuple(tmp_path / name for name in paths)
        request = DataRequest(out, data, "all", "b", ("npz",))
        predict(task, Linear(), request)
        unknown, above = request.notes
        assert unknown == "1 motifs that the model lacks are ignored: further"
        share = (other["features"] > TOP).mean() * 100
        assert above.startswith(f"{share:.2g} % of the motif scores above")
        found = dict(np.load(out / "predictions.npz", allow_pickle=False))
        want = expected(other["features"], 1, top)
        np.testing.assert_allclose(
            found["prediction"][0, :, 0], want, rtol=1e-4, atol=1e-5
        )
        assert np.isnan(found["truth"]).all()
        attribute(task, Linear(), DataRequest(out, data, "all", "b"))
        inputs = np.minimum(other["features"] / TOP, 1)
        found = np.load(out / "attributions.npz")["knock_out"][0, 0]
        np.testing.assert_allclose(
            found, inputs * WEIGHTS[1].numpy() * top, rtol=1e-3, atol=1e-5
        )
        embed(task, Linear(), DataRequest(out, data, "all", "b"))
        np.testing.assert_allclose(
            np.load(out / "embeddings.npz")["region"], inputs[:, :3] + 1, atol=1e-5
        )
    np.savez(
        tmp_path / "y.npz",
        features=features[:, 1:],
        motifs=np.array(names[1:]),
        **places,
    )
    request = DataRequest(tmp_path, (tmp_path / "y.npz",), "all")
    assert refusal(predict, task, Linear(), request).codes == ["missing-array"]
    for request, code in (
        (DataRequest(tmp_path, cell="c"), "unknown-value"),
        (DataRequest(tmp_path, formats=("cvs",)), "unknown-format"),
    ):
        assert refusal(predict, task, Linear(), request).codes == [code]


def test_predictions_of_arrays(task, refusal):
    x = arrays_of(2)["features"].reshape(20, 3, M)
    found = task.predict_values(Linear(), x, "a")
    np.testing.assert_allclose(
        found[..., 0], expected(x, 0, ARRAYS["atpm"][40:].max()), rtol=1e-4, atol=1e-5
    )
    assert refusal(task.predict_values, Linear(), x).codes == ["missing-argument"]
    assert refusal(task.predict_values, Linear(), x[..., 1:], "a").codes == [
        "wrong-shape"
    ]


@pytest.mark.parametrize("options", [{}, {"transform": "sqrt", "standardise": True}])
def test_a_linear_model_is_explained_exactly(tmp_path, write_store, options):
    write_store(tmp_path / "x.zarr", ARRAYS)
    task = open_task(tmp_path / "x.zarr", **options)
    attribute(task, Linear(), DataRequest(tmp_path, split="valid"))
    found = dict(np.load(tmp_path / "attributions.npz", allow_pickle=False))
    scaled = np.zeros((20, M + 1), np.float32)
    scaled[:, :M] = np.minimum(ARRAYS["features"][20:40] / TOP, 1)
    inputs = (task.units.forward(scaled) - task.units.forward(np.zeros_like(scaled)))[
        :, :M
    ]
    scale = task.standard.std[M] * task.units.divisor[M]
    for c in range(2):
        want = inputs * WEIGHTS[c].numpy() * scale
        np.testing.assert_allclose(
            found["gradient_x_input"][c, 0], want, rtol=1e-3, atol=1e-5
        )
        np.testing.assert_allclose(found["knock_out"][c, 0], want, rtol=1e-3, atol=1e-5)
    assert (tmp_path / "attributions.png").read_bytes().startswith(b"\x89PNG")
    assert len(pandas.read_csv(tmp_path / "attributions.csv")) == 2 * M
    genes = pandas.read_csv(tmp_path / "genes.csv")
    assert genes["gene"].unique().tolist() == ["DHFR", "TP53", "MYC"], (
        "OTHER is not on this chromosome"
    )
    for cell, rows in genes.groupby("cell"):
        want = found["knock_out"][CELLS.index(cell), 0][
            [[0, 19], [1, 1], [15, 15]]
        ].mean(1)
        for name in ("gradient_x_input", "knock_out"):
            np.testing.assert_allclose(
                rows[name].to_numpy().reshape(3, M), want, rtol=1e-3, atol=1e-5
            )


class Smoothed(Linear):
    """Accessibility from the motifs of the window, by a weight of each region."""

    weights = torch.arange(1.0, 8.0)

    def mean(self, clean):
        value = super().mean(clean)[..., M:]
        share = self.weights[:, None] * clean.valid[..., None]
        total = (value * share).sum(1, keepdim=True).expand_as(value)
        return torch.cat([clean.x0[..., :M], total], -1)


def test_scores_of_regions_for_genes(task, tmp_path):
    """Per start site, the gradient x input of every region of its window, which sums to that of the gene."""
    attribute(task, Smoothed(), DataRequest(tmp_path, split="valid"))
    table = pandas.read_csv(tmp_path / "gene_regions.csv")
    genes = pandas.read_csv(tmp_path / "genes.csv")
    rows = table[(table["gene"] == "TP53") & (table["cell"] == "b")]
    assert rows["tss_region"].unique().tolist() == [1000]
    assert (rows["distance"] == rows["start"] - 1000).all()
    inputs = np.minimum(ARRAYS["features"][20:27] / TOP, 1)
    top = ARRAYS["atpm"][40:].max()
    want = inputs @ WEIGHTS[1].numpy() * np.arange(1, 8) * top
    np.testing.assert_allclose(rows["gradient_x_input"], want, rtol=1e-3)
    of_gene = genes[(genes["gene"] == "TP53") & (genes["cell"] == "b")]
    assert of_gene["gradient_x_input"].sum() == pytest.approx(want.sum(), rel=1e-3)


def test_embeddings_of_regions_and_cell_types(task, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    embed(task, Linear(), DataRequest(tmp_path, formats=("npz", "h5ad")))
    found = dict(np.load(tmp_path / "embeddings.npz", allow_pickle=False))
    inputs = np.minimum(ARRAYS["features"][20:40] / TOP, 1)[:, :3]
    np.testing.assert_allclose(found["region"], inputs + 0.5, atol=1e-5)
    np.testing.assert_allclose(
        found["cell_embedding"], [inputs.mean(0), inputs.mean(0) + 1], atol=1e-5
    )
    written = anndata.read_h5ad(tmp_path / "embeddings.h5ad").obsm["X_dither"]
    np.testing.assert_allclose(written, inputs + 0.5, atol=1e-5)


@pytest.fixture
def stores(tmp_path, write_store):
    """Two stores of other regions: cell types a and b, and b and c."""
    other = arrays_of(1) | {
        "cells": np.array(["b", "c"]),
        "start": ARRAYS["start"] + 600,
        "end": ARRAYS["end"] + 300,
    }
    del other["tss"]
    write_store(tmp_path / "x.zarr", ARRAYS)
    write_store(tmp_path / "y.zarr", other)
    return [tmp_path / "x.zarr", tmp_path / "y.zarr"], other


def joined(paths, **options):
    data = RegionStores(paths=[*map(str, paths)], valid=["chr2"], test=["chr1"])
    common = {"regions": 7, "stride": 3, "given": "motifs"}
    cells = {"accessibility": "quantitative", "cell_type": ["a", "b", "c"]}
    return GetRegion(data=data, **common, **cells | options)


def test_stores_are_joined_without_mixing_their_regions_or_cell_types(stores):
    paths, other = stores
    spec = joined(paths)
    assert not list(spec.check())
    task = spec.build()
    matrix = task.matrix
    assert spec.data.facts() == matrix.facts()
    assert (matrix.facts().longest, matrix.cells) == (20, ("a", "b", "c"))

    features = np.concatenate([ARRAYS["features"], other["features"]])
    np.testing.assert_array_equal(matrix.scores([3, 119]), features[[3, 119]])
    np.testing.assert_array_equal(matrix.scores(slice(58, 62)), features[58:62])
    train = matrix.chromosome == "chr3"
    np.testing.assert_array_equal(matrix.divisor, features[train].max(0))

    windows = task.samples.windows["train"]
    index, _, cells = windows.take(range(len(windows)), 7)
    store = index // P
    assert (store == store[:, :1]).all()
    for cell, expected in enumerate(({0}, {0, 1}, {1})):
        assert set(store[cells == cell, 0].tolist()) == expected
    np.testing.assert_array_equal(np.diff(index), 1)

    # The column of each window is that of its store.
    atpm = np.zeros((2 * P, 3), np.float32)
    atpm[:P, :2] = ARRAYS["atpm"]
    atpm[P:, 1:] = other["atpm"]
    clean = task.batch("train", range(len(windows)))
    values = task.inverse_transform(clean.x0)[..., M]
    np.testing.assert_allclose(values, atpm[index, cells[:, None]], rtol=1e-5)


def test_predictions_of_stores_have_a_truth_where_it_was_measured(stores, tmp_path):
    paths, other = stores
    task = joined(paths).build()
    out = tmp_path / "out"
    out.mkdir()
    linear = Linear()
    linear.mean = linear.sample = lambda clean: clean.x0
    predict(task, linear, DataRequest(out, split="all", formats=["npz", "bedgraph"]))
    found = dict(np.load(out / "predictions.npz"))
    truth = found["truth"][..., 0]
    np.testing.assert_array_equal(np.isnan(truth[0]), np.arange(2 * P) >= P)
    np.testing.assert_array_equal(np.isnan(truth[2]), np.arange(2 * P) < P)
    np.testing.assert_allclose(truth[1, P:], other["atpm"][:, 0], rtol=1e-5)
    track = (out / "b-accessibility.bedgraph").read_text().splitlines()[1:]
    starts = [line.split()[:2] for line in track]
    assert starts == sorted(starts, key=lambda place: (place[0], int(place[1])))


def test_stores_with_other_motifs_and_named_twice_are_refused(stores, write_store):
    paths, other = stores
    (misfit,) = joined([paths[0], paths[0]]).data.check()
    assert misfit.path == ("paths",)
    for motifs in (["m0", "m1", "m2", "m9"], ["m1", "m0", "m2", "m3"]):
        path = paths[1].with_name(f"{'-'.join(motifs)}.zarr")
        write_store(path, other | {"motifs": np.array(motifs)})
        with pytest.raises(Refused) as error:
            joined([paths[0], path]).build()
        assert error.value.codes == ["misfit"]
        assert str(path) in error.value.problems[0].message
