"""The task and its Spec: batches, sampling, incompatible options, plots."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from dither.registry.flow.spaces import Condition, FeatureSpace, Group
from dither.registry.kinds import DataSpec
from dither.tasks.get_region.data.human_dhs import read_human
from dither.tasks.get_region.data_specs import HumanDHS, RegionFile
from dither.tasks.get_region.specs import GetRegion

torch.set_num_threads(1)
SMALL = HumanDHS(subset="chr21-22")


def small(**options):
    return GetRegion(data=SMALL, regions=50, **options)


@pytest.fixture(scope="module")
def task():
    return small().build()


def test_the_default_size_fits_the_default_data():
    spec = GetRegion(data=HumanDHS())
    assert list(spec.check()) == []
    groups = (Group("motifs", 0, 282), Group("accessibility", 282, 283))
    conditions = (Condition("chromosome", 24), Condition("centre"), Condition("cell", 1, ("K562",)))
    assert spec.space() == FeatureSpace(900, 283, groups, conditions, standardised=False)
    task = spec.build()
    assert {split: task.size(split) for split in ("train", "valid", "test")} == {"train": 218, "valid": 5, "test": 6}
    clean = task.batch("train", [0, 217])
    assert clean.x0.shape == (2, 900, 283)
    assert clean.valid.all()
    assert task.batch("valid", range(5)).valid.sum() == 4_053


@pytest.mark.parametrize("subset", ["whole", "chr21-22"])
def test_facts_equal_those_of_the_table(subset):
    assert HumanDHS(subset=subset).facts() == read_human(subset).facts()


def test_given_motifs_are_known_everywhere():
    task = small(given="motifs", fill=1.0).build()
    for clean in (task.batch("train", [0, 1]), task.like(3, 0)):
        assert (clean.known[..., :282] == clean.valid[..., None]).all()
        assert not clean.known[..., 282].any()
    assert "motif_mse/mean" not in task.baselines()


@pytest.mark.parametrize("fill", [0.02, 0.3, 1.0])
def test_sampling_imputes_a_share_of_each_window(fill):
    task = small(fill=fill).build()
    like = task.like(20, 1)  # more than there are windows
    drawn = (like.valid[..., None] & ~like.known).sum(1)
    count = like.valid.sum(1, keepdim=True)
    assert (drawn == (fill * count).round().clamp(min=1)).all()
    assert not like.known[~like.valid].any()
    if fill == 0.3:  # not always the same regions
        assert len({tuple(row) for row in like.known[..., 0].tolist()}) > 12
    again, other = task.like(20, 1), task.like(20, 2)
    assert torch.equal(like.known, again.known)
    assert torch.equal(like.x0, again.x0)
    assert not torch.equal(like.known, other.known) or fill == 1
    assert task.like(0, 0).x0.shape == (0, 50, 283)


def test_sampling_imputes_a_share_of_the_elements():
    task = small(fill=0.3, fill_unit="element", draws=2).build()
    like = task.like(8, 1)
    drawn = (like.valid[..., None] & ~like.known).flatten(1).sum(1)
    assert (drawn == (0.3 * 283 * like.valid.sum(1)).round()).all()
    assert torch.equal(like.known[::2], like.known[1::2])
    share = (~like.known).double().mean(2)[like.valid]  # no region is drawn whole, none is left out
    assert ((share > 0.15) & (share < 0.5)).all()
    assert not like.known[~like.valid].any()


def test_sampling_imputes_elements_that_are_not_given():
    like = small(fill=0.02, fill_unit="element", given="motifs").build().like(16, 0)
    drawn = (~like.fixed).flatten(1).sum(1)
    assert (drawn == (0.02 * like.valid.sum(1)).round().clamp(min=1)).all()


def test_sample_metrics_count_only_sampled_values(task):
    like = task.like(4, 0)
    assert task.sample_metrics(like.x0 + torch.where(like.fixed, 5.0, 1e-4), like)["masked_mse"] == pytest.approx(
        1e-8, rel=0.01
    )
    assert task.sample_metrics(like.x0 + 0.5, like)["masked_mse"] == pytest.approx(0.25, rel=1e-5)
    assert task.sample_metrics(like.x0 + 0.5, like)["accessibility_auc"] == 1
    half = torch.arange(50)[:, None] % 2 == 0  # what a process left in sight does not halve the error
    assert task.sample_metrics(like.x0 + 0.5 * half, like)["masked_mse"] == pytest.approx(0.25, rel=1e-5)
    assert task.sample_metrics(like.x0, like) == {}


class Nonsense(DataSpec):
    """A source of something else."""

    name: ClassVar[str] = "nonsense"
    gives: ClassVar[str] = "text"

    def build(self):
        raise AssertionError("must not be read")


def misfits(**options):
    return [(misfit.path, misfit.message) for misfit in GetRegion(**options).check()]


def test_incompatible_options_are_found_by_check(tmp_path):
    assert misfits(data=Nonsense()) == [(("data",), '"nonsense" gives text, get-region requires regions')]
    ((path, message),) = misfits(data=SMALL)
    assert (path, "859" in message) == (("regions",), True)
    assert misfits(data=HumanDHS(), cell_type="k562")[0][0] == ("cell_type",)
    assert misfits(data=HumanDHS(), stride=901)[0][0] == ("stride",)
    assert misfits(data=HumanDHS(), given="motifs", accessibility=False)[0][0] == ("given",)
    ((path, message),) = misfits(data=RegionFile(path=str(tmp_path / "none.csv")))
    assert path == ("data",)
    assert "none.csv: No such file" in message


def test_a_region_file_trains(tmp_path):
    lines = ["chromosome,start,end,open:T,M1,M2"]
    lines += [
        f"{name},{10 * i},{10 * i + 5},{i % 2},{i % 3},{i % 5}" for name in ("chr1", "chr2", "chr3") for i in range(8)
    ]
    path = tmp_path / "regions.csv"
    path.write_text("\n".join(lines))
    spec = GetRegion(data=RegionFile(path=str(path)), regions=4, cell_type="T")
    assert list(spec.check()) == []
    conditions = (Condition("chromosome", 3), Condition("centre"), Condition("cell", 1, ("T",)))
    groups = (Group("motifs", 0, 2), Group("accessibility", 2, 3))
    assert spec.space() == FeatureSpace(4, 3, groups, conditions, standardised=False)
    task = spec.build()
    assert task.batch("train", [0]).x0[0].tolist() == [[0, 0, 0], [0.5, 0.25, 1], [1, 0.5, 0], [0, 0.75, 1]]

    last = GetRegion(data=RegionFile(path=str(path), valid=["chr3"], test=[]), regions=5, cell_type="T").build()
    clean = last.batch("valid", [1])  # the last three regions of the file, and padding
    assert clean.valid.tolist() == [[True] * 3 + [False] * 2]
    assert clean.cond["centre"].tolist() == [[52, 62, 72, 0, 0]]
    assert clean.x0[0, 3:].abs().sum() == 0


def test_prepare_builds_once(tmp_path, monkeypatch):
    from dither.tasks.get_region.data import human_dhs as prepare
    from dither.tasks.prepared.arrays import write_archive

    built = []

    def pretend(path):
        built.append(path)
        arrays = {"features": np.ones((3, 2), np.float32)}
        write_archive(path, arrays, {})
        return arrays

    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    monkeypatch.setattr(prepare, "write_built", pretend)
    assert HumanDHS().prepare() is None
    assert "built 3 regions x 2 motifs" in HumanDHS(subset="built").prepare()
    assert "exists already" in HumanDHS(subset="built").prepare()
    built[0].write_bytes(b"damaged")
    assert "built" in HumanDHS(subset="built").prepare()
    assert len(built) == 2
