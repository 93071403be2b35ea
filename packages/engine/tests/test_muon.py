import math

import pytest
import torch
from torch import nn

from dither.engine.optimizers.components import Muon
from dither.engine.optimizers.lr_schedules import WSD
from dither.engine.optimizers.muon import orthogonal
from dither.engine.optimizers.optimizer_state import flatten, restore


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.inner(self.table(x)).tanh())


def build(seed=0):
    torch.manual_seed(seed)
    net = Net()
    return net, Muon(lr=0.02, weight_decay=0.1).build(net)


def train(net, optimizer, steps, start=0):
    for step in range(start, start + steps):
        net.zero_grad()
        torch.manual_seed(step)
        x = torch.randint(5, (8,))
        nn.functional.cross_entropy(net(x), (x + 1) % 5).backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / (1 + step)
        optimizer.step()


def test_muon_optimizes_inner_matrices():
    net, optimizer = build()
    muon, adamw = optimizer.parts
    assert [id(p) for group in muon.param_groups for p in group["params"]] == [id(net.inner.weight)]
    others = {id(p) for group in adamw.param_groups for p in group["params"]}
    assert others == {id(p) for p in net.parameters()} - {id(net.inner.weight)}


def test_updates_equal_torch_muon_and_adamw():
    net, optimizer = build()
    twin, _ = build()
    inner = torch.optim.Muon([twin.inner.weight], 0.02, 0.1, 0.95, adjust_lr_fn="match_rms_adamw")
    table = torch.optim.AdamW([twin.table.weight], lr=0.02, weight_decay=0.0, fused=True)
    for step in range(5):
        net.zero_grad()
        twin.zero_grad()
        x = torch.tensor([step % 5, 2, 3])
        for one in (net, twin):
            nn.functional.cross_entropy(one(x), x).backward()
        for group in [*optimizer.param_groups, *inner.param_groups, *table.param_groups]:
            group["lr"] = 0.02 / (1 + step)
        optimizer.step()
        inner.step()
        table.step()
        torch.testing.assert_close(net.inner.weight, twin.inner.weight, rtol=0, atol=0.05 * group["lr"])  # in bfloat16
        torch.testing.assert_close(net.table.weight, twin.table.weight, rtol=0, atol=0)
        with torch.no_grad():
            for own, other in zip(net.parameters(), twin.parameters(), strict=True):
                other.copy_(own)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_orthogonal_keeps_singular_vectors(shape):
    """Newton-Schulz maps each singular value by a polynomial; compared with the SVD in float64."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(orthogonal(matrix).double(), left * values @ right, rtol=0, atol=1e-5)


def test_rounding_of_low_rank_gradients():
    """Iterations enlarge rounding noise 400 times, and ranks round differently."""
    torch.manual_seed(0)
    gradient = nn.Parameter(torch.zeros(16, 16))
    gradient.grad = torch.randn(16, 4) @ torch.randn(4, 16)
    assert torch.linalg.svdvals(orthogonal(gradient.grad))[4:].max() < 1e-3
    torch.optim.Muon([gradient], 1.0, 0.0, 0.0).step()
    assert torch.linalg.svdvals(gradient.detach())[4:].max() > 0.1, "torch computes in bfloat16"


def test_update_is_orthogonal():
    torch.manual_seed(1)
    linear = nn.Linear(16, 16, bias=False)
    before = linear.weight.detach().clone()
    linear.weight.grad = torch.randn(16, 16)
    Muon(lr=1.0, weight_decay=0.0).build(linear).step()
    change = (before - linear.weight.detach()) / (0.2 * math.sqrt(16))
    values = torch.linalg.svdvals(change)
    assert values.min() > 0.6, "Newton-Schulz brings singular values near 1"
    assert values.max() < 1.25


def test_restored_state_is_bit_exact():
    net, optimizer = build()
    train(net, optimizer, 6)
    other, again = build(1)
    half, first = build()
    train(half, first, 3)
    other.load_state_dict(half.state_dict())
    restore(again, *flatten(first))
    train(other, again, 3, start=3)
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_module_without_parameters():
    with pytest.raises(ValueError, match="Sequential has no parameter"):
        Muon().build(nn.Sequential())


def test_muon_learns():
    net, optimizer = build()
    for _ in range(100):
        net.zero_grad()
        x = torch.arange(5)
        loss = nn.functional.cross_entropy(net(x), (x + 1) % 5)
        loss.backward()
        optimizer.step()
    assert loss < 0.3


def test_wsd():
    factor = WSD(warmup=10, decay=0.25, final=0.1).build(110)
    assert [factor(step) for step in (0, 9, 10, 60, 84)] == pytest.approx([0.1, 1, 1, 1, 1])
    assert factor(85) == pytest.approx(1)
    assert factor(97) == pytest.approx(1 - 0.9 * 12 / 25)
    assert factor(110) == pytest.approx(0.1)
    sqrt = WSD(decay=0.5, shape="sqrt").build(100)
    assert sqrt(75) == pytest.approx(1 - math.sqrt(0.5))


def test_wsd_before_the_decay_is_independent_of_steps():
    short, long = (WSD(warmup=5, decay=0.2).build(steps) for steps in (100, 500))
    assert [short(step) for step in range(80)] == [long(step) for step in range(80)]
