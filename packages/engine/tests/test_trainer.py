"""Order of samples, prefetching, and training steps: gradients, clipping, and losses or weights with NaN or inf."""

import copy
import io
import math
import threading
import time
from array import array

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from dither.engine.distributed.ranks import Ranks, is_lost_rank
from dither.engine.files.metrics_file import read_metrics
from dither.engine.optimizers.components import AdamW
from dither.engine.optimizers.optimizer_state import flatten
from dither.engine.runs.run import DONE, NON_FINITE, run
from dither.engine.training import loss_scale
from dither.engine.training.data_order import (
    BucketOrder,
    Prefetcher,
    SampleOrder,
    permutation,
)
from dither.engine.training.ddp_fsdp import norm_of
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.nan_guard import (
    FiniteGuard,
    NonFinite,
    all_finite,
    step_where,
)
from dither.engine.training.randomness import Stream, mix_seed, seed_generators
from dither.engine.training.trainer import Trainer, divisor_of

CPU = torch.device("cpu")


def weights(trainer):
    return [p.detach().clone() for p in trainer.system.model.parameters()]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_step_is_adamw_on_the_weighted_mean(make_trainer, accumulate):
    """Also with gradient accumulation over micro-batches of different weight."""
    trainer = make_trainer(
        f"train.accumulate={accumulate}",
        "train.lr_schedule=constant",
        "train.clip=1e9",
        "model.dropout=0.0",
    )
    model = copy.deepcopy(trainer.system.model)
    reference, optimizer = trainer.system.with_model(model), AdamW(lr=0.02).build(model)
    for step in range(3):
        metrics = trainer.advance()

        seed_generators(CPU, Stream.STEP, trainer.seed, step, 0)
        measured = reference(reference.task.batch("train", trainer.batches.rows(step)))
        loss = measured.total() / measured.weights.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))
        optimizer.step()

        assert metrics["loss"].item() == pytest.approx(loss.item(), rel=1e-6)
        assert metrics["grad_norm"].item() == pytest.approx(norm, rel=1e-5)
        for mine, expected in zip(weights(trainer), model.parameters(), strict=True):
            torch.testing.assert_close(mine, expected.detach(), rtol=1e-4, atol=1e-5)


def test_rates_that_are_tensors_follow_the_schedule(make_trainer, monkeypatch):
    options = {"lr": torch.tensor(0.02), "foreach": False}
    monkeypatch.setattr(
        AdamW,
        "build",
        lambda _, module: torch.optim.AdamW(module.parameters(), **options),
    )
    trainer = make_trainer("train.lr_schedule=cosine")
    for step in range(4):
        trainer.advance()
        assert float(trainer.optimizer.param_groups[0]["lr"]) == pytest.approx(
            0.02 * trainer.lr_factor(step)
        )
    trainer.load_state(*trainer.state())
    assert isinstance(trainer.optimizer.param_groups[0]["lr"], torch.Tensor)


def test_epoch_has_every_sample_once_with_new_noise(make_trainer, monkeypatch):
    trainer = make_trainer("train.accumulate=1")
    taken, times = [], []
    system = trainer.system
    batch, corrupt = system.task.batch, system.process.corrupt
    monkeypatch.setattr(
        system.task,
        "batch",
        lambda split, rows: taken.extend(rows) or batch(split, rows),
    )
    monkeypatch.setattr(
        system.process,
        "corrupt",
        lambda clean, t: times.extend(t.tolist()) or corrupt(clean, t),
    )
    for _ in range(5):
        trainer.advance()
    assert sorted(taken) == list(range(40))
    assert len(set(times)) == 40


BAD = 3
"""The step that meets the poisoned sample."""
ROW = SampleOrder(40, 3).rows(8 * BAD + 5, 1)[0]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw-8bit", "muon"])
def test_nan_stops_before_the_update_and_names_the_sample(
    make_trainer, accumulate, optimizer
):
    """The host checks when it logs, and finds the weights from before the bad step."""
    changes = f"train.accumulate={accumulate}", f"train.optimizer={optimizer}"
    trainer = make_trainer(f"task.poison={ROW}", *changes)
    for _ in range(BAD):
        trainer.advance()
    trainer.check()
    before = weights(trainer)
    for _ in range(3):  # the later ones are fine by themselves
        trainer.advance()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    with pytest.raises(NonFinite) as caught:
        trainer.pop_metrics()
    assert (caught.value.step, caught.value.rows, caught.value.certain) == (
        BAD,
        [ROW],
        True,
    )
    assert f"step {BAD + 1}: loss is nan" in str(caught.value)
    assert str(caught.value).endswith(f"faulty training samples: {ROW}")


def test_outcomes_are_read_after_many_steps_without_a_log(make_trainer, monkeypatch):
    monkeypatch.setattr("dither.engine.training.trainer.MAX_UNREAD", 2)
    trainer = make_trainer(f"task.poison={ROW}")
    for _ in range(BAD):
        trainer.advance()
    with pytest.raises(NonFinite):
        trainer.advance()


@pytest.mark.parametrize(
    "build",
    [
        lambda weights: torch.optim.SGD(
            weights, lr=0.1, momentum=0.9, weight_decay=0.5
        ),
        lambda weights: torch.optim.AdamW(
            weights, lr=0.1, weight_decay=0.5, fused=False
        ),
        lambda weights: torch.optim.AdamW(
            weights, lr=0.1, weight_decay=0.5, fused=True
        ),
    ],
)
@pytest.mark.parametrize("bad", [0, 2])  # before and after there is state
def test_a_cancelled_step_changes_nothing_of_any_optimizer(build, bad):
    def three_steps(cancelled):
        weight = nn.Parameter(torch.ones(3))
        optimizer = build([weight])
        for step in range(4):
            if step == bad and not cancelled:
                continue
            weight.grad = torch.full((3,), torch.nan if step == bad else 1.0)
            applied = torch.tensor(step != bad)
            step_where(applied, optimizer, [weight.grad], torch.tensor(2.0))
        state = [
            value for entry in optimizer.state.values() for value in entry.values()
        ]
        return [weight.detach(), *state]

    for plain, skipping in zip(three_steps(False), three_steps(True), strict=True):
        assert torch.equal(plain, skipping)


def test_the_guard_counts_steps_in_a_row_on_the_device():
    guard = FiniteGuard(CPU, limit=2)
    no = torch.tensor(False)
    bad, good = torch.tensor(torch.nan), torch.tensor(1.0)
    losses = [good, bad, bad, good, bad, bad, bad, good]
    applied = [bool(guard.record(loss, good, good, no)) for loss in losses]
    assert applied == [True, False, False, True, False, False, False, False]
    assert [bool(outcome.stopped) for outcome in guard.read()] == [False] * 6 + [
        True
    ] * 2
    assert guard.read() == []
    guard.start(in_row=2)
    assert not guard.record(bad, good, good, no)
    assert guard.read()[0].stopped


def test_a_single_process_loses_no_rank():
    assert not is_lost_rank(RuntimeError("iglooflow/third_party/gloo timeout"))


def test_a_micro_batch_is_divisible_by_the_ranks(load, refusal):
    experiment = load("train.batch_size=6", "train.accumulate=2").experiment
    refused = refusal(
        Trainer, Diffusion.build(experiment), experiment.train, 0, Ranks(size=2)
    )
    assert [(p.code, p.path) for p in refused.problems] == [
        ("misfit", ("train", "batch_size"))
    ]


SKIP = (f"task.poison={ROW}", "train.non_finite=skip")


@pytest.fixture
def start(load, tmp_path):
    def started(*changes, resume=None):
        console = Console(record=True, width=200, file=io.StringIO())
        path = None if resume is None else resume / "resolved.toml"
        code = run(
            load(*changes, path=path), tmp_path / "runs", console=console, resume=resume
        )
        newest = resume or max(
            (tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_ctime_ns
        )
        return code, newest, console.export_text()

    return started


def overflow(trainer):
    """Make all gradients of the head infinite; returns the handle of the hook."""
    return trainer.system.model.head.weight.register_hook(
        lambda gradient: gradient * torch.inf
    )


def everything(trainer):
    """Return weights, moving average and optimizer state by name."""
    tensors, _ = flatten(trainer.optimizer)
    average = trainer.average
    return {
        **{
            f"model.{key}": value
            for key, value in trainer.system.model.state_dict().items()
        },
        **{f"ema.{key}": value for key, value in average.module.state_dict().items()},
        **{f"optimizer.{key}": value for key, value in tensors.items()},
        "updates": average.updates,
    }


@pytest.mark.parametrize("accumulate", [1, 2])
def test_skipped_step_changes_nothing(make_trainer, accumulate):
    """A trainer that skips a step equals one whose step counter is advanced by hand."""
    trainer, other = (
        make_trainer(*SKIP, f"train.accumulate={accumulate}") for _ in range(2)
    )
    messages = []
    trainer.on_skip = messages.append
    for _ in range(BAD):
        trainer.advance()
        other.advance()
    before = copy.deepcopy(everything(trainer))
    assert trainer.advance()["loss"].isnan()
    after = everything(trainer)
    assert before.keys() == after.keys()
    for key, value in after.items():
        assert torch.equal(before[key], value), key
    assert trainer.step == BAD + 1
    trainer.check()
    (message,) = messages
    assert message.startswith(f"step {BAD + 1}: loss is nan")
    assert message.endswith(
        f"faulty training samples: {ROW}; skipped (1 in a row, at most 10)"
    )
    other.step += 1
    for one in (trainer, other):
        one.advance()
        assert one.optimizer.param_groups[0]["lr"] == 0.02 * one.lr_factor(BAD + 1)
    theirs = everything(other)
    for key, value in everything(trainer).items():
        assert torch.equal(value, theirs[key]), key
    metrics = trainer.pop_metrics()
    assert metrics["skipped"] == 1
    assert metrics == pytest.approx(other.pop_metrics() | {"skipped": 1})
    assert trainer.pop_metrics()["skipped"] == 0


def test_skip_limit_in_a_row(make_trainer):
    trainer = make_trainer("train.non_finite=skip", "train.skip_limit=2")
    hook = overflow(trainer)
    trainer.advance()
    trainer.advance()
    hook.remove()
    trainer.advance()
    overflow(trainer)
    trainer.advance()
    trainer.check()
    trainer.advance()
    trainer.advance()
    with pytest.raises(NonFinite) as caught:
        trainer.check()
    assert caught.value.step == 5
    assert "3 such steps in a row; train.skip_limit = 2" in caught.value.__notes__[0]
    assert trainer.pop_metrics()["skipped"] == 4


@pytest.mark.parametrize("updates", [0, 2])
def test_nonfinite_weights_are_not_skipped(make_trainer, updates):
    """All later steps would be skipped; the error names the last update, not the steps skipped since."""
    trainer = make_trainer("train.non_finite=skip")
    for _ in range(updates):
        trainer.advance()
    hook = overflow(trainer)
    trainer.advance()
    trainer.check()
    hook.remove()
    with torch.no_grad():
        trainer.parameters[0].fill_(torch.inf)
    trainer.advance()
    with pytest.raises(
        NonFinite, match=f"step {updates}: the update" if updates else "initial weights"
    ) as caught:
        trainer.check()
    assert caught.value.weights
    assert caught.value.step == updates - 1
    assert trainer.skipped == 1


def test_resumed_run_with_skipped_steps_equals_an_uninterrupted_one(start):
    small = ("train.checkpoint_every=4", "train.log_every=2", "evaluate.every=99", "sample.count=0",
             "train.lr_schedule=constant")  # fmt: skip
    code, whole, text = start(*SKIP, *small, "train.steps=12")
    assert code == DONE
    bad = [step for step in range(12) if ROW in SampleOrder(40, 3).rows(8 * step, 8)]
    lines = [
        line
        for line in read_metrics(whole / "metrics.jsonl")
        if line["kind"] == "train"
    ]
    assert (
        sum(line["skipped"] for line in lines) == len(bad) == text.count("; skipped (")
    )
    assert len(bad) >= 2
    assert all(line["loss"] is not None for line in lines)

    code, half, _ = start(*SKIP, *small, "train.steps=4")
    for steps in (5, 12):
        code, *_ = start(f"train.steps={steps}", resume=half)
        assert code == DONE
    for name in ("model", "ema", "optimizer"):
        file = f"checkpoints/step-00000012/{name}.safetensors"
        assert (half / file).read_bytes() == (whole / file).read_bytes(), name


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_all_finite(bad):
    tensors = [
        torch.full((3, 2), 3e38),
        torch.zeros(0),
        torch.full((5,), -3e38),
        torch.tensor(1.0),
    ]
    assert all_finite(tensors)
    assert all_finite([])
    for at, tensor in enumerate(tensors):
        if tensor.numel():
            changed = tensor.flatten().index_fill(0, torch.tensor([0]), bad)
            assert not all_finite([*tensors[:at], changed, *tensors[at:]])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(
    ("lr", "message"),
    [
        ("1e39", "step 1: the update made weights NaN or inf"),
        (
            "1e20",
            "step 2: loss is nan, gradient norm is nan; the weights were not updated; lower train.optimizer.lr",
        ),
    ],
)
def test_too_large_a_learning_rate_is_not_blamed_on_samples(
    start, lr, message, optimizer
):
    """After the update the loss of every sample is NaN."""
    code, path, text = start(
        f'train.optimizer={{use = "{optimizer}", lr = {lr}}}',
        "train.lr_schedule=constant",
        "train.checkpoint_every=1",
    )
    assert code == NON_FINITE
    assert message in text
    assert "faulty" not in text
    if lr == "1e39":
        assert not list(path.glob("checkpoints/step-*"))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_step_equals_torch_clipping(fused, clip):
    """Divided in AdamW's fused kernel or before it, weights and gradients equal those clipped by torch."""
    ours = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    theirs = copy.deepcopy(ours)
    optimizers = [AdamW(lr=0.1).build(net) for net in (ours, theirs)]
    for step in range(3):
        for parameter in (*ours.parameters(), *theirs.parameters()):
            parameter.grad = torch.full_like(parameter, 1.0 + step)
        gradients = [parameter.grad for parameter in ours.parameters()]
        norm = norm_of(gradients).item()
        divisor = divisor_of(torch.tensor(2.0), clip, torch.tensor(norm))
        step_where(torch.tensor(True), optimizers[0], gradients, divisor, scale=fused)
        for parameter in theirs.parameters():
            parameter.grad.div_(2)
        assert torch.nn.utils.clip_grad_norm_(
            theirs.parameters(), clip
        ).item() == pytest.approx(norm / 2)
        optimizers[1].step()
        for mine, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad)
            torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_permutation_is_that_of_numpy_in_half_the_memory(size):
    numbers = permutation(size, np.random.default_rng([3, 1]))
    assert numbers.dtype == np.int32
    assert np.array_equal(numbers, np.random.default_rng([3, 1]).permutation(size))


def test_rows_are_a_function_of_the_start():
    order = SampleOrder(7, seed=1)
    stream = order.rows(0, 50)
    for size in (1, 3, 10):
        batches = [order.rows(start, size) for start in range(0, 50, size)]
        assert [row for rows in batches for row in rows][:50] == stream
    assert SampleOrder(7, seed=1).rows(23, 9) == stream[23:32]
    assert SampleOrder(7, seed=2).rows(0, 50) != stream


def test_seeds_differ_in_the_low_32_bits():
    """torch's CPU generator uses only these."""
    low = {
        mix_seed(Stream.STEP, seed, step, 0) & 0xFFFFFFFF
        for seed in range(20)
        for step in range(2000)
    }
    assert len(low) > 40_000 - 5
    assert mix_seed(1, 2) != mix_seed(2, 1) != mix_seed(2, 1, 0)


def test_seeding_is_independent_of_earlier_draws():
    seed_generators(CPU, Stream.STEP, 5, 1, 0)
    torch.randn(3)  # the generator caches half a pair of normals
    first = []
    for _ in range(2):
        seed_generators(CPU, Stream.STEP, 5, 2, 0)
        first.append((torch.randn(5), torch.rand(5), torch.randperm(5)))
        torch.randn(3)
    assert all(torch.equal(a, b) for a, b in zip(*first, strict=True))
    seed_generators(CPU, Stream.STEP, 5, 3, 0)
    assert not torch.equal(torch.randn(5), first[0][0])
    seed_generators(CPU, Stream.DRAWING, 5, 2, 0)
    assert not torch.equal(torch.randn(5), first[0][0])


BUCKETS = np.random.default_rng(0).choice(3, 64 * 8 + 5, p=[0.02, 0.38, 0.6])


def epoch(order, number):
    count = len(BUCKETS) // 8
    return [order.rows((number * count + batch) * 8, 8) for batch in range(count)]


def test_epoch_has_every_sample_once_except_the_last_partial_batch():
    order = BucketOrder(BUCKETS, 8, 3)
    taken = np.concatenate(epoch(order, 0))
    assert len(taken) == len(set(taken)) == 64 * 8
    left = {
        n: set(range(len(BUCKETS))) - set(np.concatenate(epoch(order, n)))
        for n in (0, 1)
    }
    assert left[0] != left[1]


def test_batches_hold_one_bucket_except_remainders():
    batches = epoch(BucketOrder(BUCKETS, 8, 3), 0)
    mixed = [batch for batch in batches if len(set(BUCKETS[batch])) > 1]
    assert len(mixed) <= 2
    kinds = [BUCKETS[batch[0]] for batch in batches if len(set(BUCKETS[batch])) == 1]
    assert kinds != sorted(kinds)


def test_order_is_a_function_of_seed_and_epoch():
    order = BucketOrder(BUCKETS, 8, 3)
    first = epoch(order, 0)
    assert epoch(order, 1) != first
    assert epoch(BucketOrder(array("b", BUCKETS.tolist()), 8, 3), 0) == first
    assert epoch(BucketOrder(BUCKETS, 8, 4), 0) != first


def test_task_without_buckets(load, refused):
    experiment = load("train.buckets=true").experiment
    with refused("misfit"):
        Trainer(Diffusion.build(experiment), experiment.train, 0)


class Source:
    """Reads with varying delay, and records rows and threads."""

    def __init__(self):
        self.read, self.threads = [], set()

    def __call__(self, step):
        self.read.append(step)
        self.threads.add(threading.current_thread())
        time.sleep(0.001 * (step * 7 % 5))
        if step == 13:
            raise ValueError("row 13 cannot be read")
        return [step]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("first", [0, 5])
def test_each_batch_is_read_once(workers, first):
    source = Source()
    batches = Prefetcher(source, workers, last=12)
    assert [batches(step) for step in range(first, 12)] == [
        [step] for step in range(first, 12)
    ]
    assert sorted(source.read) == list(range(first, 12))
    assert (threading.current_thread() in source.threads) == (not workers)
    assert len(source.threads) <= max(workers, 1)


def test_read_error_is_raised_at_its_step():
    batches = Prefetcher(Source(), 2, last=20)
    assert [batches(step) for step in (11, 12)] == [[11], [12]]
    with pytest.raises(ValueError, match="row 13"):
        batches(13)


@pytest.mark.parametrize("later", [False, True])
def test_a_skipped_step_says_whose_weights_found_the_samples(make_trainer, later):
    trainer = make_trainer(*SKIP)
    lines = []
    trainer.on_skip = lines.append
    while not lines:
        trainer.advance()
        if later:
            trainer.advance()
            trainer.advance()
        trainer.check()
    # The last step of those read at once has no later one.
    found = "with the weights of a later step" in lines[0]
    skipped = int(lines[0].split()[1].rstrip(":"))
    assert found == (later and skipped < trainer.step)


HALF = ("train.precision=float16", "train.batch_size=8")


def test_an_overflow_of_float16_halves_the_scale_and_changes_nothing(make_trainer):
    trainer = make_trainer(*HALF)
    trainer.loss_scale.scale.fill_(2.0**40)
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    trainer.advance()
    assert all(map(torch.equal, trainer.parameters, before))
    assert trainer.loss_scale.scale == 2.0**39

    trainer.loss_scale.scale.fill_(64.0)
    trainer.advance()
    assert not all(map(torch.equal, trainer.parameters, before))
    metrics = trainer.pop_metrics()
    assert metrics["loss_scale"] == 64.0
    assert math.isfinite(metrics["loss"])


def test_the_scale_does_not_change_the_step(make_trainer):
    norms = []
    moments = []
    for scale in (1.0, 64.0):
        trainer = make_trainer(*HALF)
        trainer.loss_scale.scale.fill_(scale)
        norms.append(float(trainer.advance()["grad_norm"]))
        states = trainer.optimizer.state.values()
        moments.append(torch.cat([state["exp_avg"].flatten() for state in states]))
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)
    assert (moments[0] - moments[1]).norm() < 0.02 * moments[0].norm()


def test_the_scale_is_part_of_a_checkpoint(make_trainer):
    first = make_trainer(*HALF)
    first.advance()
    first.loss_scale.scale.fill_(2.0**11)
    second = make_trainer(*HALF)
    second.load_state(*first.state())
    assert second.loss_scale.scale == 2.0**11
    assert second.loss_scale.steps == first.loss_scale.steps == 1


def test_the_scale_doubles_after_steps_without_overflow(monkeypatch):
    monkeypatch.setattr(loss_scale, "INTERVAL", 3)
    scale = loss_scale.LossScale(torch.device("cpu"))
    values = []
    for overflow in (0, 0, 0, 0, 1, 0):
        scale.update(torch.tensor(bool(overflow)))
        values.append(float(scale.scale) / loss_scale.FIRST)
    assert values == [1, 1, 2, 2, 1, 1]


def test_gradients_that_no_scale_makes_finite_stop_the_run(make_trainer):
    trainer = make_trainer(*HALF)
    trainer.loss_scale.scale.fill_(2.0)
    next(iter(trainer.parameters)).register_hook(lambda grad: grad * math.inf)
    trainer.advance()
    trainer.advance()
    with pytest.raises(NonFinite):
        trainer.check()


def test_resumed_run_in_float16_equals_an_uninterrupted_one(start):
    small = (*HALF, "train.checkpoint_every=4", "evaluate.every=99", "sample.count=0",
             "train.lr_schedule=constant")  # fmt: skip
    code, whole, _ = start(*small, "train.steps=8")
    assert code == DONE
    code, half, _ = start(*small, "train.steps=4")
    assert code == DONE
    code, *_ = start("train.steps=8", resume=half)
    assert code == DONE
    for name in ("model", "ema", "optimizer"):
        file = f"checkpoints/step-00000008/{name}.safetensors"
        assert (half / file).read_bytes() == (whole / file).read_bytes(), name
