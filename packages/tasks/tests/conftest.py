"""Fixtures of the tests of tasks."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import zarr

from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.get_region.metrics import baselines


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _quick_boosting(tmp_path_factory, monkeypatch):
    """Few rounds of boosting, whose cache is not that of the user."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setitem(baselines.BOOSTING, "max_iter", 20)
    monkeypatch.setattr(baselines, "cache_folder", lambda: folder)


@pytest.fixture(scope="session")
def make_diagrams():
    """Return procedural diagrams: `make_diagrams(count, seed=0, most=8, boxes=True)`."""

    def make(count, seed=0, *, most=8, boxes=True):
        plans = make_plans(seed, 0, count, most)
        diagrams = [plans.diagram(row) for row in range(count)]
        return (
            diagrams
            if boxes
            else [replace(diagram, boxes=None) for diagram in diagrams]
        )

    return make


@pytest.fixture(scope="session")
def write_array():
    """Write a zarr array: `write_array(folder, values, rows=None, version=2)`, chunks of zeros included."""

    def write(folder, values, rows=None, version=2):
        is_text = values.dtype.kind == "U"
        with warnings.catch_warnings(
            action="ignore"
        ):  # text in format 3 is not specified yet
            array = zarr.create_array(
                str(folder),
                shape=values.shape,
                chunks=(rows or max(len(values), 1), *values.shape[1:]),
                dtype=str if version == 3 and is_text else values.dtype,
                fill_value="" if is_text else 0 if values.dtype.kind != "S" else None,
                zarr_format=version,
                config={"write_empty_chunks": True},
            )
            array[:] = values

    return write


@pytest.fixture(scope="session")
def write_store(write_array):
    """Write a store of get_model: `write_store(path, arrays, version=2)`, with the arrays of a table of regions."""

    def write(path, arrays, version=2):
        zarr.create_group(str(path), zarr_format=version)
        places = zip(
            *(arrays[name] for name in ("chromosome", "start", "end")), strict=True
        )
        write_array(
            path / "peak_names",
            np.array([f"{c}:{s}-{e}" for c, s, e in places]),
            None,
            version,
        )
        write_array(path / "motif_names", np.asarray(arrays["motifs"]), None, version)
        write_array(
            path / "data", np.asarray(arrays["features"], np.float32), 1000, version
        )
        for number, cell in enumerate(arrays.get("cells", ())):
            of_cell = {
                name: arrays[name][:, number]
                for name in ("atpm", "expression", "tss")
                if name in arrays
            }
            if "expression" in of_cell:
                plus, minus = of_cell.pop("expression").T
                of_cell |= {"expression_positive": plus, "expression_negative": minus}
            for name, values in of_cell.items():
                write_array(
                    path / name / cell, np.ascontiguousarray(values), 1000, version
                )
        for name in ("index", "name", "strand"):
            if f"gene_{name}" in arrays:
                write_array(
                    path / f"gene_idx_info_{name}",
                    arrays[f"gene_{name}"],
                    None,
                    version,
                )

    return write
