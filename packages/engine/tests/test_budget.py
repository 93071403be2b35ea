"""The estimate of memory: the largest moment of a step, the limits of the machine, and what is said of both."""

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.engine.config import experiment as budget
from dither.engine.config import experiment as footprint
from dither.engine.config import machine_memory as machine
from dither.engine.config.experiment import budgets, misfit_memory
from dither.engine.config.load_experiment import require_memory
from dither.engine.config.machine_memory import size, total_memory
from dither.registry import Refused, default_catalog
from dither.registry.flow.fused_loss import FUSED_FROM
from dither.registry.flow.spaces import FeatureSpace, Field, TokenSpace
from dither.registry.kinds.costs import Cost, Matrix, Stage

GIB = 2**30
numbers = st.integers(0, 1000)
costs = st.builds(Cost, numbers, numbers, numbers)
models = st.lists(st.builds(Stage, st.uuids().map(str), costs, st.integers(1, 3)), min_size=1, max_size=4)


def experiment(
    stages,
    reading=Cost(),  # noqa: B008
    loss=Cost(),  # noqa: B008
    batch=4,
    accumulate=1,
    ema=0.9,
    held=0,
    measured=0,
    judged=0,
    masked_share=0.0,
    bound=False,
):
    return SimpleNamespace(
        task=SimpleNamespace(
            held=lambda: held,
            reading=lambda: 11,
            measuring=lambda samples: measured * samples,
            judging=lambda samples: judged * samples,
            filled=lambda: 0.75,
            tells_some=lambda: False,
        ),
        process=SimpleNamespace(
            cost=lambda _: reading, facts=lambda space: SimpleNamespace(space=space, masked_share=masked_share)
        ),
        model=SimpleNamespace(stages=lambda _: stages, matrices=lambda _: [Matrix("blocks.0.mlp.up", 30, 20, 5)]),
        loss=SimpleNamespace(cost=lambda _: loss, fused_cost=lambda facts, half: None, bound=bound),
        sampler=SimpleNamespace(piecewise=lambda: False),
        train=SimpleNamespace(
            batch_size=batch,
            accumulate=accumulate,
            optimizer=SimpleNamespace(moments=2, name="toy", kept=lambda stage: 2 * stage.parameters),
            ema=ema,
            lora=None,
            freeze=[],
            compile=False,
            async_save=False,
            workers=0,
            precision="float32",
            device="cpu",
        ),
        evaluate=SimpleNamespace(batch_size=None, samples=7),
        sample=SimpleNamespace(count=3, batch_size=None),
    )


def walked(stages, samples):
    """The largest moment of a step, part by part, where nothing is handed back before all gradients are there."""
    parts = [stage.cost for stage in stages for _ in range(stage.times)]
    kept = largest = 0
    for part in parts:
        kept += part.kept
        largest = max(largest, samples * (kept + part.passing))
    return 4 * largest + 4 * largest // footprint.SLACK


@given(models, costs, st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_training_is_the_largest_moment_of_a_walk_there_and_back(stages, reading, batch, accumulate, ema):
    found = budgets(experiment(stages, reading, batch=batch * accumulate, accumulate=accumulate, ema=ema), None)
    training = found[0]
    every = [*stages, Stage("reading", reading)]
    weights = 4 * sum(stage.parameters for stage in every)
    standing = footprint.PROGRAM + weights * (5 if ema else 4)
    again = weights if accumulate > 1 else 0
    assert training.total == standing + again + walked(every, batch)
    assert training.phase == "training"


def activations(e):
    return sum(count for name, count in budgets(e, None)[0].terms.items() if name.startswith("activations"))


def test_a_cpu_without_a_compiler_computes_again_and_leaves_out():
    """0.75 of the positions are real; half of them are hidden as a whole, and one stands for these."""
    space = SimpleNamespace(length=1_000_000)
    for leaves_out, share in (("padding", 0.75), ("hidden", 0.501)):
        stages = [Stage("blocks", Cost(kept=10_000, remade=4000), 3, leaves_out=frozenset({leaves_out}))]
        e = experiment(stages, masked_share=0.5)
        e.process.facts = lambda _: SimpleNamespace(space=space, masked_share=0.5)
        assert activations(e) == pytest.approx(4 * 4 * 3 * 6000 * share, abs=100)
        e.train.compile = True
        assert activations(e) == 4 * 4 * 3 * 10_000
        e.train.compile, e.train.device = False, "cuda"
        assert activations(e) == 4 * 4 * 3 * 10_000


def test_a_bound_is_measured_beside_the_prediction_of_the_loss():
    for bound, most in ((False, 1000 + 300), (True, 1000 + 2 * 300)):
        e = experiment([Stage("blocks", Cost(passing=50))], reading=Cost(kept=300, passing=1000), bound=bound)
        assert budgets(e, None)[1].terms["4 samples passing through reading"] == 4 * 4 * most


def test_samples_that_are_judged_may_take_more_than_drawing_them():
    stages = [Stage("blocks", Cost(passing=50))]
    for judged, name in ((0, "3 samples passing through blocks"), (1000, "judging 3 samples")):
        assert name in budgets(experiment(stages, judged=judged), None)[2].terms


def test_changes_of_low_rank_alone_have_gradients():
    e = experiment([Stage("blocks", Cost(3000)), Stage("head", Cost(70))])
    e.train.lora = SimpleNamespace(rank=2, on=["mlp"], whole=["head.*"])
    terms, added = budgets(e, None)[0].terms, 5 * 2 * (30 + 20)
    assert terms["weights"] == terms["average of the weights"] == 4 * (3070 + added)
    assert terms["gradients"] == 4 * (added + 70)
    assert terms["optimizer moments"] == 8 * (added + 70)
    assert terms["changed matrices"] == 4 * 5 * 30 * 20
    e.train.lora.on = ["attention"]
    assert budgets(e, None)[0].terms["gradients"] == 4 * 70


def test_frozen_weights_have_no_gradients():
    e = experiment([Stage("blocks", Cost(3000)), Stage("head", Cost(70))])
    e.train.freeze = ["blocks.*"]
    terms = budgets(e, None)[0].terms
    assert (terms["weights"], terms["gradients"], terms["optimizer moments"]) == (4 * 3070, 4 * 70, 8 * 70)


@pytest.mark.parametrize("block", [0, 7, 11])
@pytest.mark.parametrize("apart", [False, True])
def test_one_block_of_twelve_saves_a_twelfth(block, apart):
    last = [Stage("last block", Cost(100))] if apart else []
    e = experiment([Stage("blocks", Cost(100), 12 - len(last)), *last])
    e.train.freeze = [f"blocks.{block}.*"]
    terms = budgets(e, None)[0].terms
    assert (terms["weights"], terms["gradients"], terms["optimizer moments"]) == (4 * 1200, 4 * 1100, 8 * 1100)
    e.train.lora = SimpleNamespace(rank=2, on=[], whole=e.train.freeze)
    terms = budgets(e, None)[0].terms
    assert (terms["gradients"], terms["optimizer moments"]) == (4 * 100, 8 * 100)


def test_of_many_blocks_names_at_even_distances_tell_the_share():
    e = experiment([Stage("blocks", Cost(100), 10_000)])
    e.train.freeze = ["blocks.[0-9].*", "blocks.??.*", "blocks.???.*"]
    assert budgets(e, None)[0].terms["gradients"] == pytest.approx(4 * 100 * 9000, rel=0.01)


def test_thousands_of_patterns_are_looked_at_as_one_expression():
    """Each by itself they took a minute; the counts are those of fnmatch all the same."""
    e = experiment([Stage("blocks", Cost(100), 20_000), Stage("head", Cost(70))])
    names = [f"blocks.{number}.mlp.up" for number in range(64)]
    e.model.matrices = lambda _: [Matrix(name, 30, 20, 5) for name in names]
    patterns = [f"b*.{number}.x" for number in range(3000)]
    began = time.process_time()
    for e.train.freeze in (patterns, [*patterns, "he?d.*"]):
        for _ in range(3):
            terms = budgets(e, None)[0].terms
        assert terms["gradients"] == 4 * (2_000_000 + 70 * (e.train.freeze is patterns))
    e.train.freeze, e.train.lora = [], SimpleNamespace(rank=2, on=[*patterns, "7", "*.1?.mlp"], whole=patterns)
    assert budgets(e, None)[0].terms["gradients"] == 4 * 11 * 5 * 2 * (30 + 20)
    assert time.process_time() - began < 5


def test_muon_keeps_one_number_for_each_weight_of_the_blocks():
    spec = default_catalog().parse("optimizer", "muon")
    assert [spec.kept(Stage(name, Cost(10))) for name in ("embedding", "blocks", "head")] == [20, 10, 20]


def head(last_map=True):
    """A head over 4 positions of 300 ids, and what comes before it."""
    return [Stage("blocks", Cost(10, 100, 50), 3), Stage("head", Cost(600, 8, 1200), last_map=last_map)]


def big(stages, fused, ids=300, piecewise=True):
    """An experiment over ids, whose loss has a fused form or none."""
    space = TokenSpace((Field("text", 4, ids),))
    e = experiment(stages, Cost(kept=1800, passing=2400), Cost(passing=2400))
    e.loss.fused_cost = lambda facts, half: fused
    e.sampler.piecewise = lambda: piecewise
    return e, space


def names(terms):
    return [name for name in terms if name.startswith(("passing", "activations"))]


@pytest.mark.parametrize(("samples", "tiled"), [(4, 4 * 1200), (40, 5000)])
def test_head_and_loss_in_one_hold_a_tile_at_a_time(samples, tiled):
    e, space = big(head(), Cost(tiled=1200, tile=5000))
    e.train.batch_size = samples
    terms = budgets(e, space)[0].terms
    assert names(terms) == [
        f"activations of 3 blocks for {samples} samples",
        f"activations of head and loss for {samples} samples",
        "passing through head and loss",
    ]
    assert terms["passing through head and loss"] == 4 * (samples * 2 * 8 + tiled)
    assert terms["weights"] == 4 * 630


def test_the_raw_output_counts_where_nothing_spares_it():
    tile = Cost(tiled=1200, tile=5000)
    for e, space in (big(head(), None), big(head(last_map=False), tile), big(head(), tile, ids=FUSED_FROM - 1)):
        terms = budgets(e, space)[0].terms
        assert "activations of reading for 4 samples" in terms
        assert not any("head and loss" in name for name in terms)


def test_a_sampler_that_asks_for_pieces_holds_no_table_of_all_ids(monkeypatch):
    monkeypatch.setattr(footprint, "LATER", 1000)
    for piecewise, most in ((True, 3 * 8 + 3000), (False, 3 * (2400 + 1800))):
        e, space = big(head(), None, piecewise=piecewise)
        (term,) = (count for name, count in budgets(e, space)[2].terms.items() if "passing" in name)
        assert term == 4 * most


def test_terms_by_name():
    found = budgets(experiment([Stage("blocks", Cost(10, 100, 50), 3)], Cost(kept=7), Cost(passing=9), held=5), None)
    training, evaluation, sampling, reading = found
    assert reading.terms == {"Python and torch": footprint.PROGRAM, "data": 5, "what is read": 11}
    assert training.terms["data"] == 5
    assert training.terms["weights"] == 4 * 30
    assert training.terms["optimizer moments"] == 2 * 4 * 30
    assert training.terms["average of the weights"] == 4 * 30
    assert training.terms["activations of 3 blocks for 4 samples"] == 4 * 4 * 300
    assert evaluation.terms["4 samples passing through blocks"] == 4 * 4 * 50
    assert not evaluation.certain
    assert sampling.terms["3 samples passing through blocks"] == 4 * 3 * 50
    assert training.largest.startswith("Python and torch 350.0 MiB, activations of 3 blocks for 4 samples 4.7 KiB")


def test_batches_that_workers_read_ahead_count():
    e = experiment([Stage("blocks", Cost(10, 100, 50), 3)])
    e.train.workers = 3
    for space, number in ((TokenSpace((Field("text", 7, 5),)), 10), (FeatureSpace(7, 6), 5 * 6)):
        training, evaluation, *_ = budgets(e, space)
        assert training.terms["batches read ahead"] == 2 * 3 * 4 * 7 * number
        assert "batches read ahead" not in evaluation.terms


def test_refused_above_the_memory_there_is_and_not_below(monkeypatch):
    e = experiment([Stage("blocks", Cost(GIB), 2)])
    need = budgets(e, None)[0].total
    assert not list(misfit_memory(with_numbers(e, monkeypatch), None, need))
    (misfit,) = misfit_memory(with_numbers(e, monkeypatch), None, need - 1)
    assert misfit.message.startswith("training needs 40.3 GiB, this machine has 40.3 GiB: optimizer moments 16.0 GiB")
    assert misfit.path == ("train", "batch_size")
    assert misfit.help is None


def with_numbers(e, monkeypatch):
    """Let a stand-in for an experiment name what drives it."""
    monkeypatch.setattr(budget, "_numbers", lambda options, path: iter([("train", "batch_size")]))
    monkeypatch.setattr(budget, "_with_one", lambda options, path: e)
    return e


def test_a_file_for_a_large_gpu_is_valid_here(monkeypatch):
    monkeypatch.setattr(budget, "total_memory", lambda: GIB)
    for need, refused in ((200, False), (300, True)):
        e = with_numbers(experiment([Stage("blocks", Cost(need * GIB // 20))]), monkeypatch)
        assert bool(list(misfit_memory(e, None))) == refused


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**30 - 1, "1024.0 MiB"),
        (int(3.2 * 2**40), "3.2 TiB"),
        (2**80, "1.0 YiB"),
        (2**4000, "over a thousand YiB"),
    ],
)
def test_bytes_as_a_person_reads_them(count, text):
    assert size(count) == text


def machine_with(monkeypatch, tmp_path, cgroup, limits):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(cgroup)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(limit)
    monkeypatch.setattr(machine, "PROCESSES", tmp_path)
    monkeypatch.setattr(machine, "CONTROL", tmp_path / "control")
    total_memory.cache_clear()


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/a/b\n", {"control/a/b/memory.max": "max\n", "control/a/memory.max": "4096000\n"}, 4096000),
        ("0::/a\n", {"control/a/memory.max": "5000\n", "control/memory.max": "9000\n"}, 5000),
        ("9:name=systemd:/\n4:memory:/x\n", {"control/memory/x/memory.limit_in_bytes": "7000\n"}, 7000),
        ("4:memory:/elsewhere\n", {"control/memory/memory.limit_in_bytes": "8000\n"}, 8000),
        ("0::/\n", {}, None),
    ],
)
def test_control_groups_limit_the_memory(monkeypatch, tmp_path, cgroup, limits, expected):
    total = total_memory()
    machine_with(monkeypatch, tmp_path, cgroup, limits)
    try:
        assert total_memory() == (expected or total)
        assert machine.available_memory() == min(2048 * 1024, total_memory())
    finally:
        total_memory.cache_clear()


def test_a_part_that_says_nothing_counts_as_nothing_and_is_named(load):
    e = load().experiment
    training = budgets(e, e.task.space())[0]
    assert training.terms["weights"] == 0
    assert training.total == footprint.PROGRAM
    (warning,) = [misfit.message for misfit in e.warn()]
    assert warning.startswith("memory is not told by")
    for name in ('model "toy-net"', 'process "toy-mask"', 'loss "toy-ce"'):
        assert name in warning
    assert "adamw" not in warning


def test_a_run_is_refused_where_it_cannot_fit(load, monkeypatch):
    loaded = load()
    require_memory(loaded)
    monkeypatch.setattr(budget, "total_memory", lambda: footprint.PROGRAM - 1)
    with pytest.raises(Refused, match=r"training needs 350\.0 MiB, this machine has 350\.0 MiB"):
        require_memory(loaded)
