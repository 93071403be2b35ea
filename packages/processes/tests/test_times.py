"""The time that `corrupt` takes: one for all samples, one per sample, or one per position."""

import pytest
import torch

from dither.processes.timestep_sampling import as_times
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import Field, TokenSpace

SPACE = TokenSpace((Field("text", 4, 5),))
TOKENS = torch.randint(0, 5, (3, 4))


def noise_of(process, t):
    torch.manual_seed(0)
    return process.corrupt(Clean.of(TOKENS), t)


@pytest.mark.parametrize("t", [0.3, torch.tensor(0.3), torch.tensor([0.3]), torch.full((3,), 0.3)])
@pytest.mark.parametrize("name", ["absorbing", "uniform"])
def test_a_single_time_is_that_of_all_samples(process_of, name, t):
    noised, expected = (noise_of(process_of(name, SPACE), times) for times in (t, torch.full((3,), 0.3)))
    assert torch.equal(noised.state.x, expected.state.x)
    assert torch.equal(noised.noise.sigma, expected.noise.sigma)


def test_integers_and_times_per_position():
    clean = Clean.of(TOKENS)
    assert torch.equal(as_times(1, clean), torch.ones(3))
    assert as_times(torch.rand(3, 4), clean).shape == (3, 4)
    assert as_times(torch.rand(3, dtype=torch.float64), clean).dtype == torch.float64


@pytest.mark.parametrize(
    "t", [torch.rand(2), torch.rand(4), torch.rand(3, 1), torch.tensor([0.1, torch.nan, 0.2]), 1.5, -0.1]
)
def test_wrong_times(t):
    with pytest.raises(ValueError, match="^t must"):
        as_times(t, Clean.of(TOKENS))
