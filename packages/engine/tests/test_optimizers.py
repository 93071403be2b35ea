"""AdamW, Muon, learning-rate schedules and the moving average, also with tied weights."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from dither.engine.optimizers.components import (
    WSD,
    AdamW,
    AdamW8bit,
    Constant,
    Cosine,
    Linear,
    Muon,
)
from dither.engine.optimizers.ema import MovingAverage
from dither.engine.optimizers.muon import orthogonal, parameter_groups
from dither.engine.optimizers.optimizer_state import flatten, restore


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.frozen = nn.Parameter(torch.randn(4, 4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("constant", torch.arange(3.0), persistent=False)


def test_matrices_decay():
    net = Net()
    decayed, others = parameter_groups(net, 0.3, "matrices")
    assert [id(p) for p in decayed["params"]] == [id(net.linear.weight)]
    assert {id(p) for p in others["params"]} == {
        id(p)
        for p in (
            net.table.weight,
            net.linear.bias,
            net.norm.weight,
            net.norm.bias,
            net.token,
        )
    }
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)


def test_adamw_is_torch_fused_adamw():
    net = Net()
    optimizer = AdamW(lr=0.1, betas=[0.8, 0.9], eps=1e-6, weight_decay=0.5).build(net)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert type(optimizer).__name__ == "AdamW"  # which runs record
    calls = list[str]()
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    torch.optim.lr_scheduler.ConstantLR(optimizer, 1)
    optimizer.step()
    assert calls == ["post"]
    decayed = optimizer.param_groups[0]
    assert {key: decayed[key] for key in ("lr", "betas", "eps", "weight_decay", "fused")} == {
        "lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.5, "fused": True,
    }  # fmt: skip


NO_COMPILER = """
import sys
import torch
from dither.engine.optimizers.components import AdamW, AdamW8bit, Muon
for spec in (AdamW(), AdamW8bit(), Muon()):
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    optimizer = spec.build(net)
    for _ in range(2):
        net(torch.ones(2, 64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""


def test_no_optimizer_imports_the_compiler():
    """As those of torch do, which takes a second of the start of a run."""
    command = [sys.executable, "-c", NO_COMPILER]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def train(model, optimizer, steps, first=0):
    """Fit a fixed function of random inputs; return the last loss."""
    for step in range(first, first + steps):
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.cumsum(1).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def wide_net():
    """Two matrices whose averages have 8 bits, and biases whose averages have 32."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))


def test_adamw_8bit_trains_like_adamw_with_two_bytes_a_weight():
    spec = AdamW8bit(lr=3e-3)
    first, plain = wide_net(), wide_net()
    optimizer = spec.build(first)
    loss = train(first, optimizer, 60)
    assert loss == pytest.approx(
        train(plain, AdamW(lr=3e-3).build(plain), 60), rel=0.02
    )
    tensors, _ = flatten(optimizer)
    matrices = 2 * 64 * 128
    assert sum(x.nbytes for x in tensors.values()) < 2.1 * matrices + 8 * (64 + 128)

    # Resumed from what a checkpoint stores, it makes the same steps.
    second = copy.deepcopy(first)
    resumed = spec.build(second)
    restore(resumed, *copy.deepcopy(flatten(optimizer)))
    train(first, optimizer, 2, 60)
    train(second, resumed, 2, 60)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("spec", [AdamW(), AdamW8bit(), Muon()])
def test_a_copy_of_model_and_optimizer_makes_the_same_steps(spec):
    net = wide_net()
    optimizer = spec.build(net)
    train(net, optimizer, 2)
    twin, copied = copy.deepcopy((net, optimizer))
    train(net, optimizer, 2, 2)
    before = [p.clone() for p in net.parameters()]
    train(twin, copied, 2, 2)
    for a, b, now in zip(before, twin.parameters(), net.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, now)


def test_a_cancelled_step_of_adamw_8bit_changes_nothing():
    net = wide_net()
    optimizer = AdamW8bit().build(net)
    train(net, optimizer, 2)
    before = copy.deepcopy((net.state_dict(), flatten(optimizer)[0]))
    optimizer.found_inf = torch.tensor(1.0)
    for parameter in net.parameters():
        parameter.grad.fill_(math.nan)
    optimizer.step()
    after = net.state_dict(), flatten(optimizer)[0]
    for old, new in zip(before, after, strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)

    # Gradients are divided by their scale.
    other = copy.deepcopy(net)
    scaled = AdamW8bit().build(other)
    fresh = AdamW8bit().build(net)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        a.grad = torch.ones_like(a)
        b.grad = torch.full_like(b, 8.0)
    scaled.grad_scale = torch.tensor(8.0)
    fresh.step()
    scaled.step()
    assert torch.equal(net[0].weight, other[0].weight)


def test_adamw_8bit_equals_torchao():
    torchao = pytest.importorskip("torchao.optim")
    net, reference = wide_net(), wide_net()
    options = {"lr": 3e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    theirs = torchao.AdamW8bit(reference.parameters(), **options)
    with torch.compiler.set_stance("force_eager"):
        train(reference, theirs, 5)
    train(net, AdamW8bit(lr=3e-3, weight_decay=0.1, decay="all").build(net), 5)
    for a, b in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_moving_average_formula():
    net = Net()
    average = MovingAverage(net, 0.6)
    expected = net.linear.weight.detach().clone().double()
    for n in range(12):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update(torch.tensor(True))
        share = min(0.6, (1 + n) / (10 + n))
        expected = share * expected + (1 - share) * net.linear.weight.detach().double()
        torch.testing.assert_close(
            average.module.linear.weight.double(), expected, rtol=1e-5, atol=1e-6
        )
    assert average.updates == 12
    assert not any(p.requires_grad for p in average.module.parameters())
    assert not torch.equal(average.module.linear.weight, net.linear.weight)


def test_moving_average_without_an_applied_step():
    net = Net()
    average = MovingAverage(net, 0.6)
    before = copy.deepcopy(average.module.state_dict())
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.add_(1)
    average.update(torch.tensor(False))
    for key, value in average.module.state_dict().items():
        assert torch.equal(before[key], value), key
    assert average.updates == 0


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.inner(self.table(x)).tanh())


def build(seed=0):
    torch.manual_seed(seed)
    net = SmallNet()
    return net, Muon(lr=0.02, weight_decay=0.1).build(net)


def test_updates_equal_torch_muon_and_adamw():
    net, optimizer = build()
    twin, _ = build()
    inner = torch.optim.Muon(
        [twin.inner.weight], 0.02, 0.1, 0.95, adjust_lr_fn="match_rms_adamw"
    )
    table = torch.optim.AdamW(
        [twin.table.weight], lr=0.02, weight_decay=0.0, fused=True
    )
    for step in range(5):
        net.zero_grad()
        twin.zero_grad()
        x = torch.tensor([step % 5, 2, 3])
        for one in (net, twin):
            nn.functional.cross_entropy(one(x), x).backward()
        for group in [
            *optimizer.param_groups,
            *inner.param_groups,
            *table.param_groups,
        ]:
            group["lr"] = 0.02 / (1 + step)
        optimizer.step()
        inner.step()
        table.step()
        torch.testing.assert_close(
            net.inner.weight, twin.inner.weight, rtol=0, atol=0.05 * group["lr"]
        )  # in bfloat16
        torch.testing.assert_close(net.table.weight, twin.table.weight, rtol=0, atol=0)
        with torch.no_grad():
            for own, other in zip(net.parameters(), twin.parameters(), strict=True):
                other.copy_(own)


def test_muon_divides_gradients_by_their_scale():
    """The trainer leaves clipping and the mean over weights to optimizers that accept `grad_scale`."""
    (net, optimizer), (twin, other) = build(), build()
    for one, own, scales in ((net, optimizer, (1.0, 1.0)), (twin, other, (8.0, 2.0))):
        for step, scale in enumerate(
            scales
        ):  # which differ, as one factor of all gradients changes no update
            one.zero_grad()
            (
                scale
                * nn.functional.cross_entropy(
                    one(torch.tensor([step])), torch.tensor([step])
                )
            ).backward()
            own.grad_scale = torch.tensor(scale)
            own.step()
    for weight, clone in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(weight, clone)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_orthogonal_keeps_singular_vectors(shape):
    """Newton-Schulz maps each singular value by a polynomial; compared with the SVD in float64."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(
        orthogonal(matrix).double(), left * values @ right, rtol=0, atol=1e-5
    )


def test_wsd():
    factor = WSD(warmup=10, decay=0.25, final=0.1).build(110)
    assert [factor(step) for step in (0, 9, 10, 60, 84)] == pytest.approx(
        [0.1, 1, 1, 1, 1]
    )
    assert factor(85) == pytest.approx(1)
    assert factor(97) == pytest.approx(1 - 0.9 * 12 / 25)
    assert factor(110) == pytest.approx(0.1)
    sqrt = WSD(decay=0.5, shape="sqrt").build(100)
    assert sqrt(75) == pytest.approx(1 - math.sqrt(0.5))


@pytest.mark.parametrize(
    "spec", [Constant(warmup=4), Cosine(warmup=4), Linear(warmup=4)]
)
def test_linear_warmup(spec):
    factor = spec.build(20)
    assert [factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine():
    factor = Cosine(warmup=10, final=0.2).build(110)
    for step in (10, 35, 60, 109):
        expected = 0.2 + 0.8 * (1 + math.cos(math.pi * (step - 10) / 100)) / 2
        assert factor(step) == pytest.approx(expected)
    assert factor(60) == pytest.approx(0.6)
    assert factor(500) == pytest.approx(0.2)  # a run with more steps
