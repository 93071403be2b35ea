import numpy as np
import pytest
import torch

from dither.engine.config.options import Train
from dither.engine.training.trainer import BucketOrder, SampleOrder, make_order
from dither.registry.flow.protocols import Exports, Metrics, Task
from dither.registry.flow.records import Measured, Noise, Noised, State
from dither.tasks.bubble_diagram.formats.jsonl import plan_line, read_plans
from dither.tasks.bubble_diagram.metrics import Frequencies
from dither.tasks.bubble_diagram.plans import decode
from dither.tasks.bubble_diagram.specs import BubbleDiagram, JsonPlans, ProceduralPlans
from dither.tasks.bubble_diagram.task import GraphMetrics
from dither.tasks.bubble_diagram.validity import token_validity
from dither.tasks.bubble_diagram.vocabulary import EDGE_MASK, EDGE_PAD, NODE_MASK, NODE_PAD, pairs

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def spec():
    return BubbleDiagram(data=ProceduralPlans(train=600, valid=200, test=50))


@pytest.fixture(scope="module")
def task(spec):
    return spec.build()


def test_task_protocol(spec, task):
    assert isinstance(task, Task)
    assert isinstance(task, Exports)
    assert isinstance(task.metrics(), Metrics)
    assert task.space == spec.space()
    nodes, edges = task.space.fields
    assert (nodes.name, nodes.length, nodes.size, nodes.mask, nodes.pad) == ("nodes", 8, 15, 13, 14)
    assert (edges.name, edges.length, edges.size, edges.mask, edges.pad) == ("edges", 28, 13, 11, 12)
    assert [task.size(split) for split in ("train", "valid", "test")] == [600, 200, 50]


def test_batches_are_legal_and_depend_on_their_rows_only(task):
    clean = task.batch("train", [5, 0, 599, 5])
    assert clean.x0.dtype == torch.int64
    assert clean.x0.shape == (4, 36)
    assert torch.equal(clean.x0[0], clean.x0[3])
    assert torch.equal(task.batch("train", [599]).x0[0], clean.x0[2])
    assert not clean.known.any()
    allowed = task.space.clean().expand(4, -1, -1).gather(-1, clean.x0[..., None])[..., 0]
    assert torch.equal(allowed, clean.valid)
    pad = torch.tensor([NODE_PAD] * 8 + [EDGE_PAD] * 28).expand(4, -1)
    assert torch.equal(clean.x0[~clean.valid], pad[~clean.valid])
    assert token_validity(clean.x0.numpy(), 8).order.all()
    assert task.batch("valid", []).x0.shape == (0, 36)
    for rows in ([200], [-1]):
        with pytest.raises(IndexError, match=r"0\.\.199"):
            task.batch("valid", rows)


def test_numbers_of_rooms_are_drawn_from_training(task):
    like = task.like(5_000, 3)
    assert torch.equal(like.x0, task.like(5_000, 3).x0)
    assert not torch.equal(like.x0, task.like(5_000, 4).x0)
    real = like.valid[:, :8]
    assert torch.equal(like.x0[:, :8], torch.where(real, NODE_MASK, NODE_PAD))
    assert torch.equal(like.x0[:, 8:], torch.where(like.valid[:, 8:], EDGE_MASK, EDGE_PAD))
    for place, (i, j) in enumerate(pairs(8)):
        assert torch.equal(like.valid[:, 8 + place], real[:, i] & real[:, j])
    train = task.batch("train", range(600)).valid[:, :8].sum(1).bincount(minlength=9) / 600
    drawn = real.sum(1).bincount(minlength=9) / 5_000
    assert (train - drawn).abs().max() < 4 * 0.5 / 5_000**0.5
    assert not like.known.any()


def predicted(clean, frequencies):
    """Return the loss of the unigram predictor."""
    types, edges = (torch.from_numpy(share) for share in frequencies.unigram())
    nodes = -types[clean.x0[:, :8].clamp(max=12)].log()
    values = torch.cat([nodes, -edges[clean.x0[:, 8:].clamp(max=10)].log()], 1)
    return Measured(torch.where(clean.valid, values, 777.0), clean.valid.double())


def noised(clean):
    zeros = torch.zeros(len(clean.x0))
    return Noised(clean.x0, State.of(clean.x0), Noise(zeros, zeros), clean.valid, clean.valid, clean.fixed)


def test_metrics_of_a_known_model_for_any_batch_sizes(task):
    fitted = Frequencies.of(task.batch("train", range(600)).x0.numpy(), 8)
    found = []
    for cuts in ([200], [1, 99, 100], [64, 64, 64, 8]):
        metrics, start = task.metrics(), 0
        for size in cuts:
            clean = task.batch("valid", range(start, start + size))
            metrics.update(clean, noised(clean), None, predicted(clean, fitted))
            start += size
        found.append(metrics.compute())
    assert found[1] == pytest.approx(found[0])
    assert found[2] == pytest.approx(found[0])
    baselines = task.baselines()
    assert {f"{name}/unigram": value for name, value in found[0].items()}.items() <= {
        name: pytest.approx(value) for name, value in baselines.items()
    }.items()
    assert found[0]["nats_per_graph"] == pytest.approx(
        found[0]["nodes_nats_per_graph"] + found[0]["edges_nats_per_graph"]
    )


def test_baselines_are_metrics_in_the_expected_order(task):
    found = task.baselines()
    metrics = set(task.metrics().compute()) | set(
        task.sample_metrics(task.batch("valid", range(9)).x0, task.like(9, 0))
    )
    assert {name.split("/")[0] for name in found} <= metrics
    assert abs(found["nats_per_graph/unigram"] - 48.4) < 1.2
    assert abs(found["nats_per_graph/uniform"] - 65.3) < 1.2
    assert all(np.isnan(value) for value in GraphMetrics(task.space).compute().values())
    assert found["level_2/real"] == 1
    assert found["level_2/unigram"] < 0.4


def test_samples_are_evaluated_and_shown(task, tmp_path):
    clean = task.batch("valid", range(20))
    samples = clean.x0.clone()
    samples[3, 0] = NODE_MASK
    metrics = task.sample_metrics(samples, clean)
    assert metrics["level_0"] == pytest.approx(0.95)
    pictures = {picture.name: picture for picture in task.plots(samples, clean)}
    assert set(pictures) == {"diagram", "floorplan", "gallery", "diagrams", "unreadable"}
    for name in ("diagram", "gallery"):
        assert pictures[name].png.startswith(b"\x89PNG")
        assert pictures[name].svg.startswith("<svg")
    assert pictures["gallery"].svg.count("relations") == 16
    assert pictures["unreadable"].text.startswith("sample 3: room 0: ")
    path = tmp_path / "again.jsonl"
    path.write_text(pictures["diagrams"].text, "utf-8")
    assert read_plans(path, 8) == [decode(row, 8) for k, row in enumerate(samples.numpy()) if k != 3]


@pytest.mark.parametrize(("rooms", "most"), [(5, 5), (14, 8)])
def test_fewer_and_more_slots(rooms, most):
    spec = BubbleDiagram(rooms=rooms, data=ProceduralPlans(train=50, valid=20, test=20, most=most))
    assert not list(spec.check())
    task = spec.build()
    clean = task.batch("train", range(50))
    assert clean.x0.shape == (50, rooms * (rooms + 1) // 2) == (50, task.space.length)
    assert token_validity(clean.x0.numpy(), rooms).order.all()
    assert "nats_per_graph/unigram" in task.baselines()


def test_plans_from_json_lines(tmp_path, task):
    path = tmp_path / "mine.jsonl"
    given = task.batch("train", range(100)).x0
    path.write_text("\n".join(plan_line(decode(row, 8)) for row in given.numpy()))
    spec = BubbleDiagram(data=JsonPlans(path=str(path), valid=0.2, test=0.1))
    assert not list(spec.check())
    mine, sizes = spec.build(), {"train": 70, "valid": 20, "test": 10}
    assert {split: mine.size(split) for split in sizes} == sizes
    held = torch.cat([mine.batch(split, range(size)).x0 for split, size in sizes.items()])
    assert sorted(held.tolist()) == sorted(given.tolist())
    alone = BubbleDiagram(data=JsonPlans(path=str(path), valid=0.2, test=0.0)).build()
    assert alone.size("test") == 0
    assert "level_0/real" not in alone.baselines()


def test_training_batches_plans_of_equal_size_by_default():
    """Diagrams of a bucket have the same real positions."""
    task = BubbleDiagram(data=ProceduralPlans(train=40, valid=4, test=4)).build()
    for batch_size, buckets, expected in ((8, None, BucketOrder), (41, None, SampleOrder), (8, False, SampleOrder)):
        assert type(make_order(task, Train(batch_size=batch_size, buckets=buckets), 0)) is expected
    numbers, valid = np.array(task.buckets("train")), task.batch("train", range(40)).valid
    assert numbers.tolist() == valid[:, : task.rooms].sum(1).tolist()
    for bucket in set(numbers.tolist()):
        assert len(valid[torch.from_numpy(numbers == bucket)].unique(dim=0)) == 1
