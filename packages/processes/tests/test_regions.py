"""Masked regions: how much is hidden, that it does not leak, and how it is filled in."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dither.processes.features.masked_features import MaskedRegionProcess
from dither.processes.schedules.alpha import log_linear
from dither.processes.timestep_sampling import TimestepSampling
from dither.registry.flow.records import Clean, State
from dither.registry.flow.spaces import FeatureSpace, Group

SPACE = FeatureSpace(6, 4, (Group("motifs", 0, 3), Group("open", 3, 4)))
MASKS = ({"mask": "region"}, {"mask": "element"}, {"mask": "group", "group": "motifs"})


def process_of(**options) -> MaskedRegionProcess:
    return MaskedRegionProcess(SPACE, TimestepSampling(log_linear(1e-3)), **options)


@given(st.sampled_from(MASKS), st.floats(0.05, 1), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99))
def test_nothing_fixed_is_hidden_and_nothing_hidden_leaks(options, ratio, scheduled, exact, per_position, seed) -> None:
    torch.manual_seed(seed)
    process = process_of(ratio=None if scheduled else ratio, exact=exact, **options)
    clean = Clean.of(torch.randn(3, 6, 4), torch.rand(3, 6) < 0.7, torch.rand(3, 6, 4) < 0.3)
    t = torch.rand(3, 6) if per_position else torch.rand(3)
    noised = process.corrupt(clean, t)
    for state in (noised.state, process.prior(clean)):
        assert not (state.masked & clean.fixed).any()
        assert (state.x[state.masked] == 0).all()
        assert torch.equal(state.x[~state.masked], clean.x0[~state.masked])
        pred = process.read(torch.randn(3, 6, 4), state, noised.noise)
        later = process.step(state, pred, noised.noise, process.schedule(0.5 * t), clean)
        assert not (later.masked & ~state.masked).any()
        assert (later.x[later.masked] == 0).all()
        last = process.finish(later, pred, clean)
        assert torch.equal(last[~state.masked], clean.x0[~state.masked])
        assert torch.equal(last[state.masked], pred.x0[state.masked])
    other = Clean(torch.where(noised.state.masked, 1e9, clean.x0), clean.valid, clean.known)
    assert torch.equal(other.x0.masked_fill(noised.state.masked, 0), noised.state.x)


@pytest.mark.parametrize("options", MASKS)
def test_small_exact_steps_hide_as_many_as_training_does(options) -> None:
    """Rounding a part of what is hidden now would never let a small step fill in anything."""
    process, steps = process_of(exact=True, **options), 64
    clean = Clean.of(torch.randn(2, 6, 4))
    state = process.prior(clean)
    times = torch.linspace(1, 0, steps + 1)
    for t, s in itertools.pairwise(times):
        now, then = process.schedule(t.expand(2)), process.schedule(s.expand(2))
        state = process.step(state, process.read(torch.randn(2, 6, 4), state, now), now, then, clean)
        trained = process.corrupt(clean, s.expand(2)).state.masked
        assert torch.equal(state.masked.flatten(1).sum(1), trained.flatten(1).sum(1))


@pytest.mark.parametrize(("ratio", "moment"), [(0.5, 0.5), (0.15, 0.15), (1.0, 1.0), (1e-6, 1e-3)])
def test_a_fixed_ratio_has_one_moment(ratio: float, moment: float, part) -> None:
    """When as much would be hidden, within the times of training; samples are filled in there, by one call."""
    process = process_of(ratio=ratio)
    assert process.fixed_time == pytest.approx(moment, abs=2e-3)
    assert process_of().fixed_time is None
    like, told = Clean.of(torch.zeros(3, 6, 4)), []

    def session(state: State, t: Tensor):
        told.append(t)
        return process.read(torch.full_like(state.x, 7.0), state, process.schedule(t))

    (x,) = part("sampler", "ancestral", steps=9).build()(process, session, like)
    assert (x == 7).all()
    (t,) = told
    torch.testing.assert_close(t, torch.full((3,), process.fixed_time))
