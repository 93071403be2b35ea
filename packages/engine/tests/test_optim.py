import pytest
import torch
from torch import nn

from dither.engine.optimizers.components import AdamW, parameter_groups
from dither.engine.optimizers.moving_average import MovingAverage


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
        id(p) for p in (net.table.weight, net.linear.bias, net.norm.weight, net.norm.bias, net.token)
    }
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)


def test_all_decay():
    net = Net()
    (group,) = parameter_groups(net, 0.3, "all")
    assert len(group["params"]) == 6
    assert all(p is not net.frozen for p in group["params"])


def test_adamw_is_torch_fused_adamw():
    net = Net()
    optimizer = AdamW(lr=0.1, betas=[0.8, 0.9], eps=1e-6, weight_decay=0.5).build(net)
    assert type(optimizer) is torch.optim.AdamW
    decayed = optimizer.param_groups[0]
    assert {key: decayed[key] for key in ("lr", "betas", "eps", "weight_decay", "fused")} == {
        "lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.5, "fused": True,
    }  # fmt: skip


def test_module_without_parameters():
    with pytest.raises(ValueError, match="Sequential has no parameter"):
        AdamW().build(nn.Sequential())


def test_moving_average_formula():
    net = Net()
    average = MovingAverage(net, 0.6)
    expected = net.linear.weight.detach().clone().double()
    for n in range(12):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update_parameters()
        share = min(0.6, (1 + n) / (10 + n))
        expected = share * expected + (1 - share) * net.linear.weight.detach().double()
        torch.testing.assert_close(average.module.linear.weight.double(), expected, rtol=1e-5, atol=1e-6)
    assert average.updates == 12
    assert not any(p.requires_grad for p in average.parameters())
    assert not torch.equal(average.module.linear.weight, net.linear.weight)


def test_moving_average_copies_buffers():
    net = Net()
    average = MovingAverage(net, 0.9)
    net.seen += 7
    average.update_parameters(net)
    assert torch.equal(average.module.seen, net.seen)
    assert average.module.seen is not net.seen
