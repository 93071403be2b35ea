"""The diffusion system: data flow, precision, initial weights, fused head and loss, compilation."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.loading import build
from dither.engine.training import device, diffusion
from dither.engine.training.diffusion import Diffusion, choose_precision, fused_head
from dither.engine.training.evaluation import evaluate
from dither.engine.training.randomness import Stream, seed_generators
from dither.engine.training.trainer import Trainer
from dither.registry.contracts.records import Clean

CPU = torch.device("cpu")


@pytest.fixture
def system(load):
    return Diffusion.build(load("model.dropout=0.0").experiment)


def test_forward_is_corrupt_denoise_loss(system):
    clean = system.task.batch("train", range(6))
    t = torch.linspace(0.1, 1, 6)
    seed_generators(CPU, Stream.STEP, 0)
    measured = system(clean, t)
    seed_generators(CPU, Stream.STEP, 0)
    noised = system.process.corrupt(clean, t)
    raw = system.model(noised.state, t, clean.valid, clean.cond)
    prediction = system.process.read(raw, noised.state, system.process.schedule(t))
    assert torch.equal(measured.values, system.loss(prediction, noised).values)
    assert measured.values.shape == clean.x0.shape
    assert measured.mean() > 0


def test_bfloat16_applies_to_the_model_only(load):
    system = Diffusion.build(
        load("train.precision=bfloat16", "model.dropout=0.0").experiment
    )
    seen = []
    system.model.head.register_forward_hook(
        lambda module, args, out: seen.append(out.dtype)
    )
    clean = system.task.batch("train", range(6))
    t = torch.full((6,), 0.5)
    noised = system.process.corrupt(clean, t)
    prediction = system.denoise(
        noised.state, t, clean
    )  # the toy process asserts that it reads float32
    assert seen == [torch.bfloat16]
    measured = system.loss(prediction, noised)
    assert prediction.dtype == measured.values.dtype == torch.float32
    assert system.model.head.weight.dtype == torch.float32


def test_shared_parameters_are_counted_once(system):
    counts = system.parameter_counts()
    assert counts == {
        "own": 6 * 8,
        "table": 5 * 8,
        "time": 16,
        "body": 17 * 8,
        "head": 9 * 5,
    }
    system.model.head.weight = system.model.table.weight  # tied
    tied = system.parameter_counts()
    assert tied == counts | {"head": 5}
    assert sum(tied.values()) == sum(p.numel() for p in system.model.parameters())


FILE = Path(__file__).parents[3] / "experiments" / "language_model" / "attention.toml"
SMALL = [
    "task.length=16",
    "model.width=16",
    "model.depth=1",
    "model.block.heads=2",
    "train.batch_size=4",
    "train.steps=3",
]
UNIFORM = ['process={use="uniform",predict="score"}', "loss=score-entropy"]
BLOCKS = ["model.block_size=4", 'sampler={use="blocks",size=4,inner="ancestral"}']


def system_of(*changes):
    experiment = load_experiment(FILE, [*SMALL, *changes]).experiment
    system = Diffusion.build(experiment)
    for (
        parameter
    ) in system.model.parameters():  # a head of zeros gives equal logits everywhere
        nn.init.normal_(parameter, std=0.2)
    return system, experiment.train


def train(*changes):
    system, options = system_of(*changes)
    trainer = Trainer(system.train(), options, 0)
    losses = [trainer.advance()["loss"].item() for _ in range(3)]
    return losses, [p.detach().clone() for p in system.model.parameters()]


@pytest.mark.parametrize(
    "changes",
    [
        [],
        UNIFORM,
        ["train.accumulate=2"],
        ["loss.reduction=sample"],
        BLOCKS,
        ["loss.training=plain"],
    ],
)
def test_fused_training_equals_generic(changes, monkeypatch):
    generic, plain = train(*changes)
    monkeypatch.setattr(diffusion, "FUSED_FROM", 2)
    losses, weights = train(*changes)
    assert losses == pytest.approx(generic, rel=1e-5)
    assert all(
        torch.allclose(a, b, atol=2e-4) for a, b in zip(weights, plain, strict=True)
    )
    again, same = train(*changes)
    assert again == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


def test_plain_training_leaves_the_evaluated_bound():
    (plain, _), (bound, _) = system_of("loss.training=plain"), system_of()
    plain.load_state_dict(bound.state_dict())
    assert evaluate(plain, 8, 4) == evaluate(bound, 8, 4)
    assert plain.with_model(bound.model).training_loss is plain.training_loss
    clean, t, noised = plain.prepare(plain.task.batch("train", range(4)))
    log_p = plain.denoise(noised.state, t, clean).log_clean()
    expected = nn.functional.nll_loss(
        log_p[noised.target_mask], clean.x0[noised.target_mask]
    )
    torch.testing.assert_close(plain(clean, t, noised).mean(), expected)
    assert bound.training_loss is bound.loss


def test_when_the_head_is_fused(monkeypatch):
    system, _ = system_of()
    assert system.process.space.vocab < diffusion.FUSED_FROM
    assert fused_head(system) is None
    monkeypatch.setattr(diffusion, "FUSED_FROM", system.process.space.vocab)
    assert fused_head(system) is system.model.head.maps[0]
    system.loss = lambda pred, noised: None
    assert fused_head(system) is None
    system, _ = system_of()
    system.model.head.maps[0] = nn.Sequential(nn.Linear(16, system.process.space.vocab))
    assert fused_head(system) is None


def test_missing_compiler(make_trainer, monkeypatch, refused):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with refused("missing-dependency") as info:
        make_trainer("train.compile=true")
    assert info.value.problems[0].path == ("train", "compile")
    device.prepare_compiler(torch.device("meta"))


def test_model_without_blocks(make_trainer, monkeypatch, refused):
    monkeypatch.setattr(device.shutil, "which", lambda name: name)
    with refused("misfit"):
        make_trainer("train.compile='blocks'")


def test_matmul_precision_is_set_by_every_build(load):
    before = torch.get_float32_matmul_precision()
    try:
        build(load("train.precision=tf32"))
        assert torch.get_float32_matmul_precision() == "high"
        build(load("train.precision=bfloat16"))
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("supported", "width", "half"),
    [(True, 512, True), (True, 64, False), (False, 512, False)],
)
def test_automatic_precision_on_a_cpu(supported, width, half, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    model = torch.nn.Linear(width, 512)
    assert choose_precision("auto", model, "cpu") == ("bfloat16" if half else "float32")
    assert choose_precision("tf32", model, "cpu") == "tf32"


@pytest.mark.parametrize(
    ("native", "width", "precision"),
    [(True, 1024, "bfloat16"), (False, 1024, "float16"), (True, 512, "tf32")],
)
def test_automatic_precision_on_a_gpu(native, width, precision, monkeypatch):
    monkeypatch.setattr(device, "choose_device", torch.device)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: native
    )
    assert choose_precision("auto", torch.nn.Linear(width, 512), "cuda") == precision


@pytest.mark.parametrize("padded", [False, True])
def test_a_batch_without_padding_is_marked_until_it_changes(padded):
    valid = torch.ones(2, 3, dtype=torch.bool)
    valid[1, 2] = not padded
    clean = Clean.of(torch.zeros(2, 3, dtype=torch.int64), valid)
    copy = device.to_device(clean.mark_unpadded(), torch.device("meta"))
    assert copy.unpadded is not padded
    assert not clean.unpadded
    assert not replace(copy, valid=torch.zeros_like(copy.valid)).unpadded


QUICK = FILE.parents[1] / "bubble_diagram" / "quick.toml"


@pytest.fixture(scope="module")
def plans():
    overrides = ["task.data.train=8", "task.data.valid=4", "task.data.test=4"]
    return Diffusion.build(load_experiment(QUICK, overrides).experiment).eval()


ONE_TIME = [0.3, torch.tensor(0.3), torch.tensor([0.3])]


@pytest.mark.parametrize("t", ONE_TIME)
@torch.no_grad()
def test_one_time_is_that_of_all_samples(plans, t):
    clean = plans.task.batch("train", range(3))
    times = torch.full((3,), 0.3)

    def values(t):
        seed_generators(CPU, Stream.STEP, 0)
        return plans(clean, t).values

    assert torch.equal(values(t), values(times))
    noised = plans.process.corrupt(clean, times)
    assert torch.equal(
        plans(clean, t, noised).values, plans(clean, times, noised).values
    )
    assert torch.equal(
        plans.denoise(noised.state, t, clean).log_clean(),
        plans.denoise(noised.state, times, clean).log_clean(),
    )
    assert torch.equal(
        plans.model(noised.state, t, clean.valid, clean.cond),
        plans.model(noised.state, times, clean.valid, clean.cond),
    )


@pytest.mark.parametrize(
    "t", [float("nan"), torch.tensor([0.1, torch.nan, 0.2]), torch.rand(2)]
)
def test_times_without_a_meaning_are_refused(plans, t):
    clean = plans.task.batch("train", range(3))
    state = plans.process.corrupt(clean, 0.5).state
    with pytest.raises(ValueError, match="^t must"):
        plans(clean, t)
    with pytest.raises(ValueError, match="^t must"):
        plans.denoise(state, t, clean)
    with pytest.raises(ValueError, match="^level must"):
        plans.model(state, t, clean.valid, clean.cond)
