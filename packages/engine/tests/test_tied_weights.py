"""Tied weights: optimizer, EMA, parameter counts, checkpoints and resuming treat them as one."""

import copy

import pytest
import torch
from torch import nn

from dither.engine.checkpoints.checkpoint import Checkpoints, Contents, load_weights
from dither.engine.optimizers.components import parameter_groups
from dither.engine.optimizers.moving_average import MovingAverage
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer


def tied(model):
    """Tie the first two weights of equal shape in different modules."""
    seen = {}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            other = seen.setdefault(tuple(weight.shape), weight) if weight.ndim == 2 else weight
            if other is not weight:
                setattr(module, name, other)
                return model
    raise AssertionError("no two weights of equal shape")


class Ends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7)
        self.head.weight = self.table.weight


def test_optimizer():
    model = Ends()
    decayed, others = parameter_groups(model, 0.1, "matrices")
    assert [id(p) for p in decayed["params"]] == [id(model.middle.weight)]
    assert sum(p is model.table.weight for p in others["params"]) == 1
    assert len(others["params"]) == 3


def test_moving_average():
    model = Ends()
    average, expected = MovingAverage(model, 0.9), model.table.weight.detach().clone()
    for step in range(3):
        with torch.no_grad():
            model.table.weight.add_(1.0 + step)
        average.update_parameters()
        share = min(0.9, (1 + step) / (10 + step))
        expected = share * expected + (1 - share) * model.table.weight.detach()
    assert average.module.head.weight is average.module.table.weight
    torch.testing.assert_close(average.module.head.weight, expected)


def test_parameter_counts():
    system = Diffusion(None, None, Ends(), None, None)
    assert system.parameter_counts() == {"table": 28, "middle": 20, "head": 7}


def test_checkpoint(tmp_path):
    model, other = Ends(), Ends()
    contents = Contents(model, copy.deepcopy(model), {"a": torch.zeros(1)}, {})
    path = Checkpoints(tmp_path / "checkpoints").save(1, contents)
    for name in ("model.safetensors", "average.safetensors"):
        load_weights(path / name, other)
        assert other.head.weight is other.table.weight
        torch.testing.assert_close(other.table.weight, model.table.weight)


@pytest.fixture
def make(load):
    def trainer():
        experiment = load().experiment
        system = Diffusion.build(experiment)
        tied(system.model)
        return Trainer(system, experiment.train, experiment.seed)

    return trainer


def test_resume(make, tmp_path):
    whole, first = make(), make()
    for _ in range(6):
        whole.advance()
    for _ in range(3):
        first.advance()
    tensors, plain = first.state()
    path = Checkpoints(tmp_path / "c").save(3, Contents(first.system.model, first.average.module, tensors, plain))
    again = make()
    load_weights(path / "model.safetensors", again.system.model)
    load_weights(path / "average.safetensors", again.average.module)
    again.load_state(tensors, plain)
    for _ in range(3):
        again.advance()
    for mine, expected in zip(again.system.model.parameters(), whole.system.model.parameters(), strict=True):
        assert torch.equal(mine, expected)
    for mine, expected in zip(again.average.parameters(), whole.average.parameters(), strict=True):
        assert torch.equal(mine, expected)
