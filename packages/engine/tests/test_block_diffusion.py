"""Block diffusion against brute force: the bound equals the likelihood, and samples follow the distribution."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import nn

from dither.engine.sampling.session import walk
from dither.engine.training.block_diffusion import BlockDiffusion
from dither.engine.training.diffusion import Diffusion
from dither.losses.tokens import masked_ce, score_entropy
from dither.processes.samplers.ancestral import Ancestral
from dither.processes.samplers.blocks import Blocks
from dither.processes.samplers.first_hitting import FirstHitting
from dither.processes.schedules.alpha import LogLinear
from dither.processes.schedules.sigma import Geometric
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.priors import even_prior, frequency_prior, mask_prior
from dither.processes.tokens.process import TokenProcess
from dither.registry import default_catalog
from dither.registry.contracts.records import Clean, Measured, State
from dither.registry.contracts.spaces import Field, TokenSpace
from dither.registry.kinds import ModelFacts

IDS, LENGTH = 2, 3


@pytest.fixture(autouse=True)
def _seeded():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def space(length=LENGTH, ids=IDS, end=None):
    return TokenSpace((Field("text", length, ids, end=end),))


def process_of(
    kind,
    length=LENGTH,
    ids=IDS,
    estimator="time",
    predict="posterior",
    level="t",
    t_min=1e-6,
    end=None,
):
    plain = space(length, ids, end)
    if kind == "absorbing":
        masked = plain.with_mask()
        clock = TimestepSampling(LogLinear(eps=1e-7).build(), level, t_min)
        return TokenProcess(masked, mask_prior(masked), clock, predict, estimator)
    odds = frequency_prior(plain, {"text": [1.0 + i for i in range(ids)]})
    table = even_prior(plain) if kind == "uniform" else odds
    return TokenProcess(
        plain, table, TimestepSampling(Geometric().build(), level, t_min), predict
    )


class Cache:
    def __init__(self):
        self.length, self.x = 0, None


class Tabular(nn.Module):
    """The exact p(x_0 | x_t of the block, x_0 of the blocks before) of a joint distribution, by enumeration."""

    def __init__(self, process, joint, size):
        super().__init__()
        self.process, self.joint, self.size = process, joint / joint.sum(), size
        self.head, self.weight = nn.Identity(), nn.Parameter(torch.zeros(1))
        self.seen = []

    def forward(
        self, state, level, valid, cond, *, context=None, cache=None, keep=False
    ):
        self.seen.append((level, context, state))
        x, t = (
            state.x,
            level[:, None].expand(state.x.shape) if level.ndim == 1 else level,
        )
        if context is None:
            past = (
                torch.zeros(len(x), 0, dtype=torch.long)
                if cache is None or cache.x is None
                else cache.x
            )
            if keep:
                cache.x, cache.length = (
                    torch.cat([past, x], 1),
                    past.shape[1] + x.shape[1],
                )
            return self.block(past, x, t)
        assert torch.equal(context.level, self.process.level(torch.zeros(len(x))))
        cuts = range(0, x.shape[1], self.size)
        parts = [
            (context.state.x[:, :a], x[:, a : a + self.size], t[:, a : a + self.size])
            for a in cuts
        ]
        return torch.cat([self.block(*part) for part in parts], 1)

    trunk = forward

    def new_cache(self):
        return Cache()

    def block(self, past, x, t):
        done, width, ids = past.shape[1], x.shape[1], self.joint.shape[0]
        rest = tuple(range(done + width, self.joint.ndim))
        joint = (self.joint.sum(rest) if rest else self.joint).flatten()
        sequences = torch.tensor(
            list(itertools.product(range(ids), repeat=done + width))
        )
        weight = joint.expand(len(x), -1) * (
            sequences[None, :, :done] == past[:, None]
        ).all(-1)
        alpha = (-self.process.schedule(t.double()).sigma).exp()[..., None]
        prior = self.process.prior_probs()[0][x][..., None]
        likelihood = alpha * (torch.arange(ids) == x[..., None]) + (1 - alpha) * prior
        for place in range(width):
            weight = weight * likelihood[:, place][:, sequences[:, done + place]]
        clean = torch.zeros(*x.shape, self.process.space.vocab, dtype=torch.float64)
        for place in range(width):
            clean[:, place].index_add_(1, sequences[:, done + place], weight)
        return clean.log()


def joint_of(*shape, seed=1):
    return (
        torch.rand(
            *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        ).pow(2)
        + 0.02
    )


def system_of(process, joint, size, loss=score_entropy, inner=None, **options):
    length = joint.ndim
    blocks = BlockDiffusion.of(process.space, ModelFacts(size))
    sampler = (
        None
        if inner is None
        else partial(Blocks(size=size, **options).sample, inner=inner)
    )
    assert blocks == BlockDiffusion(length, size)
    return Diffusion(
        None,
        process,
        Tabular(process, joint, size),
        loss,
        sampler,
        bound=True,
        blocks=blocks,
    )


def everything(ids, length):
    return torch.tensor(list(itertools.product(range(ids), repeat=length)))


def pairs(process, length=LENGTH, ids=IDS):
    x0, x_t = everything(ids, length), everything(process.space.vocab, length)
    return x0.repeat_interleave(len(x_t), 0), x_t.repeat(len(x0), 1)


def transition_probabilities(process, x0, x_t, t):
    """q(x_t | x_0) from the definition."""
    alpha = math.exp(
        -float(process.schedule(torch.tensor([t], dtype=torch.float64)).sigma)
    )
    return (alpha * (x0 == x_t) + (1 - alpha) * process.prior_probs()[0][x_t]).prod(1)


def bound_of_all(system, monkeypatch, nodes=80):
    """The bound of every sequence by enumeration of x_t and Gauss-Legendre quadrature over t."""
    process = system.process
    x0, x_t = pairs(process)

    def enumerated(x, moved, now):
        return system.blocks.rows(x_t)

    monkeypatch.setattr(process, "_replaced", enumerated)
    clean, each, t_min = (
        Clean.of(x0),
        process.space.vocab**LENGTH,
        process.timesteps.t_min,
    )
    place, share = np.polynomial.legendre.leggauss(nodes)
    total = torch.zeros(IDS**LENGTH, LENGTH, dtype=torch.float64)
    for t, part in zip(t_min + (1 - t_min) * (1 + place) / 2, share / 2, strict=True):
        q = transition_probabilities(process, x0, x_t, t)
        measured = system(clean, torch.full((len(x0),), t, dtype=torch.float64))
        total += (
            (1 - t_min)
            * part
            * (q[:, None] * measured.values * measured.weights)
            .view(-1, each, LENGTH)
            .sum(1)
        )
    q = transition_probabilities(process, x0, x_t, t_min)
    ends = system.bounded(
        clean, Measured(torch.zeros(x0.shape).double(), torch.ones(x0.shape))
    ).values
    return total + (q[:, None] * ends).view(-1, each, LENGTH).sum(1)


def block_nats(joint, size):
    """-log p(block | the blocks before it) of every sequence, from the joint."""
    p, found = joint / joint.sum(), []
    for start in range(0, LENGTH, size):
        stop = min(start + size, LENGTH)
        upto, before = (
            p.sum(tuple(range(n, LENGTH))) if n < LENGTH else p for n in (stop, start)
        )
        index = everything(IDS, LENGTH)
        found.append(
            before[tuple(index[:, :start].T)].log()
            - upto[tuple(index[:, :stop].T)].log()
        )
    return torch.stack(found, 1)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["absorbing", "uniform", "marginal"])
def test_bound_equals_the_likelihood_of_blocks(kind, size, monkeypatch):
    """With the exact model, the bound of every sequence is the sum over blocks of -log p(block | before).

    Its mean over other data is their entropy plus the divergence.
    """
    joint = joint_of(*[IDS] * LENGTH)
    system = system_of(process_of(kind), joint, size)
    nats = bound_of_all(system, monkeypatch)
    each = torch.stack(
        [nats[:, a : a + size].sum(1) for a in range(0, LENGTH, size)], 1
    )
    torch.testing.assert_close(each, block_nats(joint, size), atol=1e-5, rtol=0)
    p, other = (
        joint.flatten() / joint.sum(),
        joint_of(*[IDS] * LENGTH, seed=4).flatten(),
    )
    q = other / other.sum()
    entropy, divergence = -(q * q.log()).sum(), (q * (q / p).log()).sum()
    assert float(q @ nats.sum(1)) == pytest.approx(
        float(entropy + divergence), abs=1e-5
    )


@pytest.mark.parametrize("size", [1, 2])
def test_random_estimates_have_that_mean(size):
    """With random times per block and random noise, for each estimator of an absorbing process."""
    joint, n = joint_of(*[IDS] * LENGTH), 8_000
    rows = torch.randint(0, IDS, (n, LENGTH))
    expected = block_nats(joint, size).sum(1)[(rows * torch.tensor([4, 2, 1])).sum(1)]
    spread = {}
    for estimator in ("time", "importance", "mask-count"):
        system = system_of(
            process_of("absorbing", estimator=estimator, t_min=1e-3),
            joint,
            size,
            masked_ce,
        )
        measured = system(Clean.of(rows))
        gap = system.bounded(Clean.of(rows), measured).values.sum(1) - expected
        spread[estimator] = float(gap.std())
        assert abs(float(gap.mean())) < 4.5 * spread[estimator] / math.sqrt(n) + 1e-6, (
            estimator
        )
    assert spread["mask-count"] < 0.5 * spread["time"] < 10


@pytest.mark.parametrize("estimator", ["time", "importance", "mask-count"])
def test_fixed_positions_are_excluded(estimator):
    process = process_of("absorbing", 7, 4, estimator)
    system = system_of(process, torch.ones([4] * 7), 3)
    valid, known = torch.rand(40, 7) < 0.8, torch.rand(40, 7) < 0.4
    clean = Clean.of(torch.randint(0, 4, (40, 7)), valid, known)
    t, noised = system.noise(clean, system.times(40))
    assert t.shape == noised.noise.sigma.shape == noised.state.x.shape == (40, 7)
    assert torch.equal(noised.state.x[clean.fixed], clean.x0[clean.fixed])
    assert not noised.target_mask[clean.fixed].any()
    assert torch.equal(noised.valid, valid)
    assert torch.equal(noised.fixed, clean.fixed)
    assert torch.equal(noised.x0, clean.x0)
    if estimator == "mask-count":
        for start in (0, 3, 6):
            free, masked = (
                (part[:, start : start + 3]).any(1)
                for part in (~clean.fixed, noised.target_mask)
            )
            assert torch.equal(free, masked), (
                "every block with maskable positions has a masked one"
            )


def histogram(states, ids, length):
    code = (states * ids ** torch.arange(length - 1, -1, -1)).sum(1)
    return torch.bincount(code, minlength=ids**length)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
def test_cached_samples_follow_the_distribution(kind, size):
    n, joint = 3_000, joint_of(3, 3, 3)
    inner = (
        FirstHitting().build()
        if kind == "absorbing"
        else Ancestral(steps=64, t_min=1e-4).build()
    )
    system = system_of(process_of(kind, 3, 3), joint, size, inner=inner)
    (*_, last) = walk(system, Clean.of(torch.zeros(n, 3, dtype=torch.long)))
    expected = (joint / joint.sum()).flatten() * n
    assert chisquare(histogram(last, 3, 3).numpy(), expected.numpy()).pvalue > 1e-3


def denoiser(process, size, position="learned", **options):
    block = {"use": "adaln-zero", "heads": 2, "rope": position != "learned"}
    embedding = {"use": "tokens", "position": position}
    table = {
        "width": 16,
        "depth": 2,
        "block": block,
        "embedding": embedding,
        "block_size": size,
    } | options
    model = (
        default_catalog()
        .parse("model", {"use": "core-blocks/denoiser", **table})
        .build(process.space)
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape), alpha=0.2)
    return model.eval()


class Recording:
    """A sampler that records the predictions of another one."""

    def __init__(self, inner):
        self.inner, self.calls = inner, []

    def __call__(self, process, session, like):
        def recorded(state, t, at):
            prediction = session(state, t)
            self.calls.append(
                (
                    session.branches[0].start,
                    state.x.clone(),
                    t.clone(),
                    prediction.log_clean().clone(),
                )
            )
            return prediction.at(at)

        yield from self.inner(process, recorded, like)


@pytest.mark.parametrize(
    ("kind", "level", "position", "size", "prompt"),
    [
        ("absorbing", "t", "learned", 1, 0),
        ("uniform", "log-sigma", "none", 3, 0),
        ("uniform", "sigma", "learned", 4, 6),
        ("absorbing", "t", "none", 4, 8),
        ("uniform", "log-sigma", "learned", 10, 3),
        ("uniform", "sigma", "none", 11, 0),
    ],
)
def test_sampling_equals_training(kind, level, position, size, prompt):
    """Every prediction with the cache equals that of the training pass over [x_t | x_0]."""
    process = process_of(kind, 11, 6, level=level, predict="posterior", t_min=1e-3)
    inner = Recording(Ancestral(steps=3, t_min=1e-2).build())
    system = Diffusion(
        None, process, denoiser(process, size, position), score_entropy,
        partial(Blocks(size=size).sample, inner=inner),
        blocks=BlockDiffusion(11, size),
    )  # fmt: skip
    known = (torch.arange(11) < prompt).expand(3, -1)
    like = Clean.of(torch.randint(0, 6, (3, 11)), known=known)
    (*_, x0) = walk(system, like)
    assert torch.equal(x0[known], like.x0[known])
    assert len(inner.calls) == 4 * (math.ceil(11 / size) - prompt // size)
    clean = Clean.of(x0)
    for start, x, t, log_clean in inner.calls:
        part = slice(start, start + x.shape[1])
        whole, level_of = x0.clone(), torch.rand(3, 1).expand(-1, 11).clone()
        whole[:, part], level_of[:, part] = x, t[:, None]
        with torch.no_grad():
            expected = system.denoise(
                State.of(whole), level_of, clean, context=system.context(clean)
            ).log_clean()
        torch.testing.assert_close(log_clean, expected[:, part], atol=1e-5, rtol=0)
