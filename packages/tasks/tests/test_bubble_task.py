"""The task and its metrics: distances by brute force, levels, accuracy, baselines, noise floors."""

from collections import Counter
from math import exp, log
from types import SimpleNamespace

import networkx
import numpy as np
import pytest
import torch

from dither.engine.config.options import Train
from dither.engine.training.data_order import BucketOrder, SampleOrder, make_order
from dither.registry import TokenSpace
from dither.registry.contracts.records import Clean, Measured, Noise, Noised, State
from dither.tasks.bubble_diagram import plans as plan_arrays
from dither.tasks.bubble_diagram.constraints.table import Constraints
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.decoded_samples import (
    compatibility,
    decode_samples,
    edit_distance,
)
from dither.tasks.bubble_diagram.edit_distance import STEPS, graph_edit_distance
from dither.tasks.bubble_diagram.formats.jsonl import plan_line, read_plans
from dither.tasks.bubble_diagram.metrics import (
    Archetypes,
    Frequencies,
    Reference,
    Topology,
    divergence,
    mmd,
    shuffled,
    variation,
)
from dither.tasks.bubble_diagram.plans import Diagram, PlanSplits, decode, encode
from dither.tasks.bubble_diagram.specs import BubbleDiagram, JsonPlans, ProceduralPlans
from dither.tasks.bubble_diagram.task import GraphMetrics
from dither.tasks.bubble_diagram.validity import token_validity
from dither.tasks.bubble_diagram.vocabulary import (
    EDGE_MASK,
    EDGE_PAD,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    pairs,
)
from dither.tasks.token_metrics import Accuracy

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def task():
    return BubbleDiagram(data=ProceduralPlans(train=600, valid=200, test=50)).build()


def test_fields_and_batches(task):
    nodes, edges = task.space.fields
    assert (nodes.name, nodes.length, nodes.size, nodes.mask, nodes.pad) == (
        "nodes",
        8,
        15,
        13,
        14,
    )
    assert (edges.name, edges.length, edges.size, edges.mask, edges.pad) == (
        "edges",
        28,
        13,
        11,
        12,
    )
    clean = task.batch("train", [5, 0, 599, 5])
    assert token_validity(clean.x0.numpy(), 8).order.all()
    assert task.batch("valid", []).x0.shape == (0, 36)
    for rows in ([200], [-1]):
        with pytest.raises(IndexError, match=r"0\.\.199"):
            task.batch("valid", rows)


def test_numbers_of_rooms_are_drawn_from_training(task):
    like = task.like(5_000, 3)
    real = like.valid[:, :8]
    assert torch.equal(like.x0[:, :8], torch.where(real, NODE_MASK, NODE_PAD))
    assert torch.equal(
        like.x0[:, 8:], torch.where(like.valid[:, 8:], EDGE_MASK, EDGE_PAD)
    )
    for place, (i, j) in enumerate(pairs(8)):
        assert torch.equal(like.valid[:, 8 + place], real[:, i] & real[:, j])
    train = (
        task.batch("train", range(600)).valid[:, :8].sum(1).bincount(minlength=9) / 600
    )
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
    return Noised(
        clean.x0,
        State.of(clean.x0),
        Noise(zeros, zeros),
        clean.valid,
        clean.valid,
        clean.fixed,
    )


@pytest.mark.slow
def test_metrics_of_a_known_model_are_the_baselines(task):
    fitted = Frequencies.of(task.batch("train", range(600)).x0.numpy(), 8)
    metrics, clean = task.metrics(), task.batch("valid", range(200))
    metrics.update(clean, noised(clean), None, predicted(clean, fitted))
    found, baselines = metrics.compute(), task.baselines()
    for name, value in found.items():
        assert baselines[f"{name}/unigram"] == pytest.approx(value)
    assert found["nats_per_graph"] == pytest.approx(
        found["nodes_nats_per_graph"] + found["edges_nats_per_graph"]
    )
    assert abs(baselines["nats_per_graph/unigram"] - 48.4) < 1.2
    assert abs(baselines["nats_per_graph/uniform"] - 65.3) < 1.2
    assert all(np.isnan(value) for value in GraphMetrics(task.space).compute().values())
    assert (baselines["level_2/real"], baselines["level_2/unigram"] < 0.4) == (1, True)


@pytest.mark.slow
def test_samples_are_evaluated_and_shown(task, tmp_path):
    clean = task.batch("valid", range(20))
    samples = clean.x0.clone()
    samples[3, 0] = NODE_MASK
    metrics = task.sample_metrics(samples, clean)
    assert metrics["level_0"] == pytest.approx(0.95)
    pictures = {picture.name: picture for picture in task.plots(samples, clean)}
    assert set(pictures) == {
        "diagram",
        "floorplan",
        "gallery",
        "diagrams",
        "unreadable",
    }
    assert pictures["gallery"].svg.count("relations") == 16
    assert pictures["unreadable"].text.startswith("sample 3: room 0: ")
    path = tmp_path / "again.jsonl"
    path.write_text(pictures["diagrams"].text, "utf-8")
    assert read_plans(path, 8) == [
        decode(row, 8) for k, row in enumerate(samples.numpy()) if k != 3
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("rooms", "most"), [(5, 5), (14, 8)])
def test_fewer_and_more_slots(rooms, most):
    spec = BubbleDiagram(
        rooms=rooms, data=ProceduralPlans(train=50, valid=8, test=8, most=most)
    )
    assert not list(spec.check())
    task = spec.build()
    clean = task.batch("train", range(50))
    assert clean.x0.shape == (50, rooms * (rooms + 1) // 2) == (50, task.space.length)
    assert token_validity(clean.x0.numpy(), rooms).order.all()
    assert rooms == 14 or "nats_per_graph/unigram" in task.baselines()


def test_plans_from_json_lines(tmp_path, task):
    path = tmp_path / "mine.jsonl"
    given = task.batch("train", range(100)).x0
    path.write_text("\n".join(plan_line(decode(row, 8)) for row in given.numpy()))
    spec = BubbleDiagram(data=JsonPlans(path=str(path), valid=0.2, test=0.1))
    assert not list(spec.check())
    mine, sizes = spec.build(), {"train": 70, "valid": 20, "test": 10}
    assert {split: mine.size(split) for split in sizes} == sizes
    held = torch.cat(
        [mine.batch(split, range(size)).x0 for split, size in sizes.items()]
    )
    assert sorted(held.tolist()) == sorted(given.tolist())
    alone = BubbleDiagram(data=JsonPlans(path=str(path), valid=0.2, test=0.0)).build()
    assert alone.size("test") == 0
    assert "level_0/real" not in alone.baselines()


def test_training_batches_plans_of_equal_size_by_default():
    """Diagrams of a bucket have the same real positions."""
    task = BubbleDiagram(data=ProceduralPlans(train=40, valid=4, test=4)).build()
    for batch_size, buckets, expected in (
        (8, None, BucketOrder),
        (41, None, SampleOrder),
        (8, False, SampleOrder),
    ):
        assert (
            type(make_order(task, Train(batch_size=batch_size, buckets=buckets), 0))
            is expected
        )
    numbers, valid = (
        np.array(task.buckets("train")),
        task.batch("train", range(40)).valid,
    )
    assert numbers.tolist() == valid[:, : task.rooms].sum(1).tolist()
    for bucket in set(numbers.tolist()):
        assert len(valid[torch.from_numpy(numbers == bucket)].unique(dim=0)) == 1


VARIANTS = [
    {},
    {
        "order": "from-left-to-right",
        "orientation": "upright",
        "boundary": True,
        "doors": True,
        "areas": True,
    },
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.slow
def test_blocks_do_not_change_batches_templates_and_metrics(options, monkeypatch):
    spec = BubbleDiagram(data=ProceduralPlans(train=100, valid=30, test=20), **options)
    small = spec.build()
    monkeypatch.setattr(plan_arrays, "BLOCK", 16)
    large = spec.build()
    like = small.like(6, 1)
    templates = [(large.batch(split, rows), small.batch(split, rows))
                 for split, rows in (("train", [7, 99, 0, 7]), ("valid", [29, 3]), ("test", range(20)))]  # fmt: skip
    for mine, expected in (*templates, (large.like(6, 1), like)):
        assert torch.equal(mine.x0, expected.x0)
        assert torch.equal(mine.valid, expected.valid)
        assert mine.cond.keys() == expected.cond.keys()
        assert all(
            torch.equal(mine.cond[name], value) for name, value in expected.cond.items()
        )
    assert list(large.buckets("train")) == list(small.buckets("train"))
    samples = torch.cat([small.batch(split, [0]).x0 for split in ("train", "valid")])
    like = like[:2]
    assert large.sample_metrics(samples, like) == small.sample_metrics(samples, like)
    baselines = large.baselines()
    monkeypatch.undo()
    assert baselines == small.baselines()


@pytest.fixture(scope="module")
def plans():
    return make_plans(0, 0, 1100)


@pytest.fixture(scope="module")
def reference(plans):
    return Reference(PlanSplits(plans[300:], plans[:200], plans[200:300]), 8)


def test_divergence_and_variation_of_counts():
    a, b = np.array([1, 1, 0, 0]), np.array([0, 0, 3, 1])
    assert divergence(a, a * 7) == variation(a, a * 7) == pytest.approx(0)
    assert divergence(a, b) == pytest.approx(log(2))
    assert variation(a, b) == 1
    half, even = np.array([1, 0]), np.array([5, 5])
    expected = (log(1 / 0.75) + 0.5 * log(0.5 / 0.75) + 0.5 * log(0.5 / 0.25)) / 2
    assert divergence(half, even) == divergence(even, half) == pytest.approx(expected)
    assert variation(half, even) == pytest.approx(0.5)
    assert np.isnan(divergence(np.zeros(3, int), np.ones(3, int)))
    rows, others = (
        np.array([[1, 0], [0, 0], [9, 1], [3, 3]]),
        np.array([[5, 5], [2, 0], [9, 1], [0, 0]]),
    )
    assert variation(rows, others) == pytest.approx((10 * 0.5 + 2 * 1 + 10 * 0) / 22), (
        "missing rows have the largest distance"
    )
    assert divergence(rows, others) == pytest.approx((10 * expected + 2 * log(2)) / 22)


def test_distances_equal_brute_force(plans):
    first, second = plans.tokens(8)[:80], plans.tokens(8)[80:200]
    found = Frequencies.of(first, 8).distances(Frequencies.of(second, 8))

    def related(rows):
        for row in rows:
            for place, (i, j) in enumerate(pairs(8), start=8):
                if row[place] < NO_EDGE:
                    yield (row[i], row[j]), row[place]

    def apart(one, other, keys):
        return (
            sum(
                abs(one[key] / one.total() - other[key] / other.total()) for key in keys
            )
            / 2
        )

    one, other = Counter(related(first)), Counter(related(second))
    ours, theirs = (
        Counter(pair for pair, _ in related(rows)) for rows in (first, second)
    )
    total = 0.0
    for pair, times in theirs.items():
        gap = (
            sum(
                abs(one[pair, r] / ours[pair] - other[pair, r] / times)
                for r in range(10)
            )
            / 2
            if ours[pair]
            else 1
        )
        total += gap * times / theirs.total()
    assert found["conditional_edge_tv"] == pytest.approx(total)
    edges = [
        Counter(relation for _, relation in related(rows)) for rows in (first, second)
    ]
    assert found["edge_tv"] == pytest.approx(apart(*edges, range(10)))
    types = [
        Counter(kind for row in rows for kind in row[:8] if kind != NODE_PAD)
        for rows in (first, second)
    ]
    assert found["type_tv"] == pytest.approx(apart(*types, range(13)))
    assert found["relation_js"] < found["conditional_edge_js"]


def test_topology_equals_networkx(plans):
    tokens = plans.tokens(8)[:30]
    alone = encode(Diagram((0, 1, 2), ((0, 1, 2),)), 8)
    tokens = np.concatenate([tokens, alone[None]])
    found = Topology.of(tokens, 8)
    for row, tokens_of_one in enumerate(tokens):
        rooms = int((tokens_of_one[:8] != NODE_PAD).sum())
        graph = networkx.empty_graph(rooms)
        graph.add_edges_from(
            pair
            for pair, r in zip(pairs(8), tokens_of_one[8:], strict=True)
            if r < NO_EDGE
        )
        degrees = (
            np.bincount([degree for _, degree in graph.degree()], minlength=8) / rooms
        )
        assert found.degree[row] == pytest.approx(degrees)
        clustering = list(networkx.clustering(graph).values())
        bins = [min(int(round(100 * share, 6)), 99) for share in clustering]
        assert found.clustering[row] == pytest.approx(
            np.bincount(bins, minlength=100) / rooms
        )
        values = np.linalg.eigvalsh(
            networkx.normalized_laplacian_matrix(graph).toarray()
        )
        bins = np.minimum(
            (np.clip(np.round(values, 9), 0, 2) * 100).round(9).astype(int), 199
        )
        assert found.spectral[row] == pytest.approx(
            np.bincount(bins, minlength=200) / rooms
        )


def test_mmd_equals_the_sum_over_all_pairs():
    random = np.random.default_rng(0)
    first, second = (
        np.round(random.dirichlet(np.ones(4) * 0.4, n), 1) for n in (30, 50)
    )

    def mean(one, other):
        return np.mean(
            [
                [exp(-((np.abs(p - q).sum() / 2) ** 2) / (2 * 0.3**2)) for q in other]
                for p in one
            ]
        )

    expected = mean(first, first) + mean(second, second) - 2 * mean(first, second)
    assert mmd(first, second, 0.3) == pytest.approx(expected)
    assert mmd(first, first[::-1], 0.3) == pytest.approx(0, abs=1e-12)
    ends = np.eye(2)
    assert mmd(ends[:1], ends[1:], 1.0) == pytest.approx(2 - 2 * exp(-0.5))
    assert np.isnan(mmd(first[:0], second, 1.0))


def test_archetypes():
    rows = np.array(
        [encode(Diagram(types, ()), 4) for types in ((0, 1), (1, 0), (0, 1, 2), (0, 3))]
    )
    found = Archetypes.of(rows, 4)
    assert sorted(found.times.values()) == [1, 1, 2]
    some = {
        "archetypes": 1,
        "archetype_coverage": 1 / 3,
        "archetype_coverage_weighted": 1 / 2,
        "diversity": 0,
    }
    assert Archetypes.of(rows[:2], 4).metrics(found) == pytest.approx(some)
    assert found.metrics(found)["diversity"] == pytest.approx(1 - 2 / 12)
    assert found.metrics(found)["archetype_coverage_weighted"] == 1


def test_shuffled_preserves_frequencies_only(plans, reference):
    tokens = plans.tokens(8)[200:300]
    permuted = shuffled(tokens, 8, 0)
    assert (permuted[:, :8] == tokens[:, :8]).all()
    assert ((permuted == EDGE_PAD) == (tokens == EDGE_PAD)).all()
    assert (np.sort(permuted, 0) == np.sort(tokens, 0)).all()
    assert (permuted == shuffled(tokens, 8, 0)).all()
    real, shuffled_metrics = reference.floor(100), reference.metrics(permuted)
    for name in ("level_1", "level_2", "level_3", "level_4", "valid_unique_novel"):
        assert shuffled_metrics[name] < 0.95 * real[name], name
    for name in (
        "conditional_edge_js",
        "conditional_edge_tv",
        "mmd_degree",
        "mmd_clustering",
        "mmd_spectral",
    ):
        assert shuffled_metrics[name] > 1.3 * real[name], name
    assert shuffled_metrics["type_js"] == pytest.approx(real["type_js"])


@pytest.mark.slow
def test_distances_of_the_reference_and_of_nonsense(plans, reference):
    valid = plans.tokens(8)[:200]
    found = reference.metrics(valid)
    far = {
        name: value
        for name, value in found.items()
        if name.endswith(("_js", "_tv")) or name.startswith("mmd_")
    }
    assert len(far) == 13
    assert all(value == pytest.approx(0, abs=1e-12) for value in far.values())
    assert found["archetype_coverage"] == found["level_4"] == 1
    train = reference.metrics(plans.tokens(8)[300:350])
    assert train["novel"] == train["valid_unique_novel"] == 0
    copies = reference.metrics(np.concatenate([valid[:50]] * 4))
    assert copies["unique"] <= 0.25
    lonely = np.array([encode(Diagram((12, 12), ((0, 1, 4),)), 8)] * 3)
    nonsense = reference.metrics(lonely)
    assert nonsense["archetype_coverage"] == nonsense["level_1"] == 0
    assert nonsense["conditional_edge_tv"] > 0.99
    assert nonsense["type_tv"] > 0.98


@pytest.mark.slow
def test_noise_floor(plans, reference):
    samples = plans.tokens(8)[:60]
    found = reference.sample_metrics(samples)
    floors = {
        name.removesuffix("_floor"): value
        for name, value in found.items()
        if name.endswith("_floor")
    }
    bare = {
        *(f"level_{level}" for level in range(5)),
        "unknown",
        "connected",
        "one_living_room",
    }
    assert floors.keys() == {
        name for name in found if not name.endswith("_floor")
    } - bare - {"floor_plans"}
    again = reference.metrics(plans.tokens(8)[200:260])
    assert floors == pytest.approx({name: again[name] for name in floors})
    fewer = reference.sample_metrics(samples[:20])
    assert fewer["type_js_floor"] > found["type_js_floor"] > 0
    assert (fewer["floor_plans"], found["floor_plans"]) == (20, 60)
    assert reference.sample_metrics(plans.tokens(8)[:110])["floor_plans"] == 100, (
        "all test plans"
    )
    without = Reference(PlanSplits(plans[300:], plans[:200], plans[:0]), 8)
    bare = without.sample_metrics(samples[:20])
    assert not any(name.endswith("_floor") for name in bare)
    assert bare["floor_plans"] == 0
    assert reference.sample_metrics(samples[:0]) == {}


@pytest.mark.slow
def test_constraints_limit_the_plans_that_samples_are_compared_with(plans):
    """Real plans that meet the constraints are at the noise floor, unlike when compared with all plans."""
    constraints = Constraints(counts={"Balcony": 0}, rooms="at most 7", buildable=True)
    data = ProceduralPlans(train=300, valid=500, test=300)
    limited, free = (
        BubbleDiagram(data=data, constraints=one).build() for one in (constraints, None)
    )
    tokens = torch.from_numpy(plans[:250].tokens(8)).long()
    met = tokens[torch.stack([*limited._goal.satisfied(tokens).values()]).all(0)]
    assert 40 < len(met) < 200
    like = limited.like(len(met), 0)
    found, other = (
        limited.sample_metrics(met, like),
        free.sample_metrics(met, free.like(len(met), 0)),
    )
    assert found["type_tv"] < 0.5 * other["type_tv"]
    assert found["type_tv"] < 3 * found["type_tv_floor"] + 0.02
    assert 50 < found["compared_plans"] < 400
    assert "compared_plans" not in other
    none = BubbleDiagram(data=data, constraints=Constraints(rooms=3)).build()
    assert not any(
        name.startswith("type")
        for name in none.sample_metrics(tokens[:5], none.like(5, 0))
    )
    (warning,) = none.data_warnings()
    assert "3 rooms" in warning
    assert not [*limited.data_warnings(), *free.data_warnings()]


def test_illegal_samples(plans, reference):
    broken = plans.tokens(8)[:20].copy()
    broken[:10, 0] = NODE_MASK
    found = reference.sample_metrics(broken)
    assert found["level_0"] == found["level_4"] == 0.5
    assert found["unique"] <= 0.5
    broken[:, 0] = NODE_MASK
    found = reference.sample_metrics(broken)
    assert found["level_0"] == found["unique"] == found["novel"] == 0
    assert "type_js" not in found
    assert all(np.isfinite(value) for value in found.values())


def certain(ids):
    """Return a prediction that is certain of given ids."""
    return SimpleNamespace(
        log_clean=lambda: torch.nn.functional.one_hot(ids, 15).float().log()
    )


def test_accuracy_by_noise_counts_masked_tokens():
    space = BubbleDiagram().space()
    assert isinstance(space, TokenSpace)
    tokens = torch.from_numpy(make_plans(0, 0, 64).tokens(8)).long()
    valid = torch.cat([tokens[:, :8] != NODE_PAD, tokens[:, 8:] != EDGE_PAD], 1)
    random = torch.Generator().manual_seed(0)
    sigma = torch.rand(64, generator=random) * 3
    targets = valid & (torch.rand(tokens.shape, generator=random) < 0.5)
    guess = torch.where(
        torch.rand(tokens.shape, generator=random) < 0.3, tokens, (tokens + 1) % 11
    )
    noised = Noised(
        tokens,
        State.of(tokens),
        Noise(sigma, sigma),
        targets,
        valid,
        Clean.of(tokens, valid).fixed,
    )
    whole, parts = Accuracy(space), Accuracy(space)
    whole.update(noised, certain(guess))
    for start in range(0, 64, 7):
        parts.update(noised[start : start + 7], certain(guess[start : start + 7]))
    found, lost = whole.compute(), 1 - (-sigma).exp()
    assert found == parts.compute()
    for field, columns in (("nodes", slice(0, 8)), ("edges", slice(8, 36))):
        for low in (0, 25, 50, 75):
            rows = (lost >= low / 100) & (lost < (low + 25) / 100)
            right = (guess == tokens)[rows][:, columns][targets[rows][:, columns]]
            assert found[f"{field}_accuracy_{low}_{low + 25}"] == pytest.approx(
                right.double().mean().item()
            )
    assert len(found) == 8
    assert Accuracy(space).compute() == {}


def test_graph_edit_distance_is_that_of_networkx():
    random = np.random.default_rng(0)
    for _ in range(60):
        rooms = int(random.integers(1, 6))
        types = random.integers(0, 3, rooms).tolist()
        matrices = []
        graphs = []
        for _ in range(2):
            upper = np.triu(random.random((rooms, rooms)) < random.uniform(0.2, 0.8), 1)
            matrices.append(upper | upper.T)
            graph = networkx.from_numpy_array(matrices[-1].astype(int))
            networkx.set_node_attributes(graph, dict(enumerate(types)), "type")
            graphs.append(graph)
        expected = networkx.graph_edit_distance(
            *graphs, node_match=lambda room, other: room["type"] == other["type"]
        )
        assert graph_edit_distance(types, *matrices) == expected


def test_graph_edit_distance_of_many_rooms_is_a_bound_after_a_limited_search():
    class Counted(list):
        """Room types, of which each assignment reads two."""

        reads = 0

        def __getitem__(self, index):
            Counted.reads += 1
            return super().__getitem__(index)

    random = np.random.default_rng(0)
    upper = np.triu(random.random((14, 14)) < 0.5, 1)
    near = upper | upper.T
    order = random.permutation(14)
    # The graph under another order: no edge changes, and without types no room.
    distance = graph_edit_distance(Counted([0] * 14), near, near[order][:, order])
    assert 0 <= distance <= (near != near[order][:, order]).sum() // 2
    # The loop of each open room ends with its current assignment.
    assert 0 < Counted.reads <= 2 * (STEPS + 14 * 14)


def test_compatibility_counts_what_layouts_of_all_samples_change():
    """Zero for real plans; the mean over samples that decode, each as its layout is drawn."""
    plans = make_plans(3, 0, 100)
    assert compatibility(plans.tokens(8), 8) == {"compatibility": 0.0}
    drawn = Frequencies.of(plans.tokens(8), 8).draw(10, 0)
    distances = [
        edit_distance(sample.placement)
        for sample in decode_samples(drawn, 8)
        if sample.placement
    ]
    assert sum(distances) > 0
    tokens = np.concatenate([plans.tokens(8), drawn])
    tokens[0, 0] = NODE_MASK
    legal = 99 + len(distances)
    assert compatibility(tokens, 8) == {
        "compatibility": pytest.approx(sum(distances) / legal)
    }
    assert compatibility(tokens[:1], 8) == {}
