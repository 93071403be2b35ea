import pytest
import torch
from torch import nn

from dither.engine.training.diffusion import Diffusion
from dither.engine.training.randomness import Stream, seed_generators

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


def test_times_are_drawn(system):
    clean = system.task.batch("train", range(6))
    seed_generators(CPU, Stream.STEP, 0)
    first = system(clean)
    seed_generators(CPU, Stream.STEP, 1)
    assert not torch.equal(first.values, system(clean).values)


def test_bfloat16_applies_to_the_model_only(load):
    system = Diffusion.build(load("train.precision=bfloat16", "model.dropout=0.0").experiment)
    seen = []
    system.model.head.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    clean = system.task.batch("train", range(6))
    t = torch.full((6,), 0.5)
    noised = system.process.corrupt(clean, t)
    prediction = system.denoise(noised.state, t, clean)  # the toy process asserts that it reads float32
    assert seen == [torch.bfloat16]
    measured = system.loss(prediction, noised)
    assert prediction.dtype == measured.values.dtype == torch.float32
    assert system.model.head.weight.dtype == torch.float32


def test_initial_weights_are_a_function_of_the_seed(load):
    torch.manual_seed(1)
    first = Diffusion.build(load().experiment)
    torch.manual_seed(2)
    again = Diffusion.build(load().experiment)
    other = Diffusion.build(load("seed=4").experiment)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.model.place, other.model.place)


def test_shared_parameters_are_counted_once(system):
    counts = system.parameter_counts()
    assert counts == {"own": 6 * 8, "table": 5 * 8, "time": 16, "body": 17 * 8, "head": 9 * 5}
    system.model.head.weight = system.model.table.weight  # tied
    tied = system.parameter_counts()
    assert tied == counts | {"head": 5}
    assert sum(tied.values()) == sum(p.numel() for p in system.model.parameters())


def test_with_model(system):
    other = system.with_model(nn.Identity().eval())
    assert (other.task, other.process, other.sampler) == (system.task, system.process, system.sampler)
    assert not other.training
    assert system.training
