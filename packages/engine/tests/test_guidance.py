"""Guidance by a condition, against closed forms: what is read, how often the model is called, and with which memory."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dither.engine.config.options import Guidance
from dither.engine.sampling.classifier_free_guidance import rescale
from dither.engine.sampling.session import ModelCalls, Session
from dither.engine.training.diffusion import Diffusion
from dither.processes.features.gaussian import GaussianProcess
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.specs import Absorbing, Uniform
from dither.registry import Condition, FeatureSpace, Field, TokenSpace, default_catalog
from dither.registry.contracts.records import Clean, State

torch.set_num_threads(1)

WEIGHTS = [0.0, 0.5, 1.0, 2.5]
TOLD = (Condition("cell", 2),)
TEXT = TokenSpace((Field("text", 4, 3),), TOLD)


def parse(kind, table):
    return default_catalog().parse(kind, table)


def system_of(process, model, weight=None, sampler=None):
    guidance = None if weight is None else Guidance(condition="cell", weight=weight)
    return Diffusion(None, process, model, None, sampler, guidance=guidance).eval()


# Features: a mixture of two normal distributions, with and without the label as a condition.

MEAN, STD = torch.tensor([-1.0, 2.0], dtype=torch.float64), 0.7


def log_density(x, noise, label):
    """Log of the law of x_t, given a label, or of the even mixture of both."""
    a, b = noise.alpha(x).sqrt(), noise.one_minus_alpha(x).sqrt()
    normal = torch.distributions.Normal(
        a[..., None] * MEAN, ((a * STD).square() + b.square()).sqrt()[..., None]
    )
    each = normal.log_prob(x[..., None])
    if label is None:
        return each.logsumexp(-1)
    return each.gather(-1, label[:, None, None, None].expand(*x.shape, 1))[..., 0]


def score(x, noise, label):
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(log_density(x, noise, label).sum(), x)[0]


class Mixture(nn.Module):
    """Exact prediction, conditional or unconditional; the level is t."""

    def __init__(self, process):
        super().__init__()
        self.process, self.calls = process, []
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(self, state, level, valid, cond, cache=None):
        self.calls.append(dict(cond))
        noise, x = self.process.schedule(level), state.x
        a, b = noise.alpha(x).sqrt(), noise.one_minus_alpha(x).sqrt()
        eps = -b * score(x, noise, cond.get("cell"))
        x0 = (x - b * eps) / a
        return {"x0": x0, "eps": eps, "velocity": a * eps - b * x0}[
            self.process.predict
        ]


def gaussian(predict):
    clock = TimestepSampling(parse("schedule", "cosine").build(), "t")
    return GaussianProcess(FeatureSpace(3, 2, conditions=TOLD), clock, predict)


def noisy():
    x = torch.randn(
        4, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    t = torch.tensor([0.1, 0.4, 0.7, 0.95], dtype=torch.float64)
    return (
        State.of(x),
        t,
        Clean.of(
            torch.zeros_like(x), cell=torch.tensor([0, 1, 1, 0]), other=torch.ones(4)
        ),
    )


@pytest.mark.parametrize("predict", ["x0", "eps", "velocity"])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_features_follow_the_guided_score(predict, weight):
    process = gaussian(predict)
    state, t, like = noisy()
    session = Session(system_of(process, Mixture(process), weight), like)
    said, noise = session(state, t), process.schedule(t)
    led = (1 - weight) * score(state.x, noise, None) + weight * score(
        state.x, noise, like.cond["cell"]
    )
    a, b = noise.alpha(state.x).sqrt(), noise.one_minus_alpha(state.x).sqrt()
    torch.testing.assert_close(said.eps, -b * led, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(
        said.x0, (state.x + b.square() * led) / a, atol=1e-8, rtol=1e-8
    )  # Tweedie


def test_only_the_condition_is_dropped_and_weight_1_calls_once():
    process = gaussian("eps")
    state, t, like = noisy()
    for weight, calls in ((None, 1), (1.0, 1), (2.0, 2), (0.0, 2)):
        model, spent = Mixture(process), ModelCalls()
        Session(system_of(process, model, weight), like, spent)(state, t)
        assert (len(model.calls), spent.rows) == (calls, calls * 4)
        assert set(model.calls[0]) == {"cell", "other"}
        if calls == 2:
            assert set(model.calls[1]) == {"other"}
    plain, once = (
        Session(system_of(process, Mixture(process), w), like)(state, t).raw
        for w in (None, 1.0)
    )
    assert torch.equal(plain, once)
    without = Session(
        system_of(process, Mixture(process)),
        replace(like, cond={"other": like.cond["other"]}),
    )(state, t).raw
    none = Session(system_of(process, Mixture(process), 0.0), like)(state, t).raw
    assert torch.equal(none, without), "weight 0 leaves the condition out"


# Tokens: tables of logits, one for each label and one without.


class Table(nn.Module):
    """Says the logits of a label, the same for every state; a third row is said without one."""

    def __init__(self, space, extra=()):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        logits = torch.randn(3, space.length, space.vocab, generator=generator)
        self.logits = nn.Parameter(logits.masked_fill(~space.usable(), -torch.inf))
        self.calls = 0

    def forward(self, state, level, valid, cond, cache=None):
        self.calls += 1
        label = cond["cell"] if "cell" in cond else torch.full((len(state.x),), 2)
        return self.logits[label]


def tokens(process):
    process = process.build(TEXT)
    model = Table(process.space)
    state = process.prior(Clean.of(torch.zeros(5, 4, dtype=torch.int64)))
    return process, model, state


LIKE = Clean.of(
    torch.zeros(5, 4, dtype=torch.int64), cell=torch.tensor([0, 1, 1, 0, 1])
)


@pytest.mark.parametrize("predict", ["posterior", "plug-in"])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_tokens_follow_guided_log_probabilities(predict, weight):
    process, model, state = tokens(Absorbing(predict=predict))
    said = Session(system_of(process, model, weight), LIKE)(
        state, torch.full((5,), 0.5)
    ).log_clean()[..., :3]
    told, plain = (
        model.logits[rows][..., :3].log_softmax(-1).double()
        for rows in (LIKE.cond["cell"], torch.full((5,), 2))
    )
    product = told.exp() ** weight * plain.exp() ** (1 - weight)
    torch.testing.assert_close(
        said.exp().double(),
        product / product.sum(-1, keepdim=True),
        atol=1e-6,
        rtol=1e-5,
    )


@pytest.mark.parametrize("weight", WEIGHTS)
def test_scores_of_tokens_are_guided_as_rates(weight):
    process, model, state = tokens(Uniform(predict="score"))
    said = Session(system_of(process, model, weight), LIKE)(
        state, torch.full((5,), 0.5)
    ).log_score()
    told, plain = model.logits[LIKE.cond["cell"]], model.logits[torch.full((5,), 2)]
    led = (told.exp() ** weight * plain.exp() ** (1 - weight)).log()
    torch.testing.assert_close(
        said, led.scatter(-1, state.x[..., None], 0.0), atol=1e-5, rtol=1e-5
    )


def denoiser(space, **options):
    parts = ["level", {"use": "label", "of": "cell", "dropout": 0.1}]
    table = {
        "use": "denoiser",
        "width": 16,
        "depth": 2,
        "condition": {"use": "sum", "parts": parts},
        **options,
    }
    spec = parse("model", table)
    assert not list(spec.check(space))
    torch.manual_seed(0)
    model, generator = spec.build(space).eval(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.2)
    return model


def test_guided_rows_are_those_of_the_whole():
    process = Absorbing().build(TEXT)
    system = system_of(process, denoiser(process.space), 2.5)
    state, t = process.prior(LIKE), torch.full((5,), 0.5)
    where = torch.rand(5, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    with torch.no_grad():
        whole = Session(system, LIKE)(state, t)
        rows = Session(system, LIKE)(state, t, at=where)
        torch.testing.assert_close(rows.log_clean()[0], whole.log_clean()[where])


@pytest.mark.parametrize("weight", [None, 1.0, 2.5])
def test_each_branch_has_its_own_cache(weight):
    """Behind remembered positions, guidance is of what the model says behind them with the condition, and without."""
    process = Absorbing().build(TEXT)
    system = system_of(process, denoiser(process.space, block_size=2), weight)
    x, t = torch.tensor([[0, 1, 3, 3], [2, 1, 3, 0]]), torch.tensor([0.3, 0.6])
    like = Clean.of(torch.zeros(2, 4, dtype=torch.int64), cell=torch.tensor([0, 1]))
    level = torch.cat([torch.zeros(2, 2), t[:, None].expand(2, 2)], 1)
    with torch.no_grad():
        told, plain = (
            system.model(State.of(x), process.level(level), like.valid, cond)[:, 2:]
            for cond in (like.cond, {})
        )
        session = Session(system, like)
        session.append(x[:, :2])
        said = session(State.of(x[:, 2:]), t).log_clean()
    led = told if weight in (None, 1.0) else plain + weight * (told - plain)
    wanted = process.read(led, State.of(x[:, 2:]), process.schedule(t)).log_clean()
    torch.testing.assert_close(said, wanted, atol=1e-5, rtol=1e-5)
    assert len(session.branches) == (1 if weight in (None, 1.0) else 2)
    session.drop(2)
    assert not any(branch.cache.held for branch in session.branches)


def test_samples_without_the_condition_are_not_guided():
    process, model, state = tokens(Absorbing())
    absent = Clean.of(torch.zeros(5, 4, dtype=torch.int64), tissue=torch.zeros(5))
    session = Session(system_of(process, model, 2.0), absent)
    session(state, torch.full((5,), 0.5)).log_clean()
    assert model.calls == 1
    network = denoiser(process.space)
    some = Clean.of(LIKE.x0, cell=torch.tensor([-1, 1, -1, 0, 1]))
    with torch.no_grad():
        led, plain = (
            Session(system_of(process, network, weight), some)(
                state, torch.full((5,), 0.5)
            ).log_clean()
            for weight in (2.0, None)
        )
    assert torch.equal(led[[0, 2]], plain[[0, 2]])
    assert not torch.allclose(led[[1, 3, 4]], plain[[1, 3, 4]])


def guided(process, model, **options):
    guidance = Guidance(condition="cell", **options)
    return Diffusion(None, process, model, None, None, guidance=guidance).eval()


def features_at(process, t):
    x = torch.randn(2, 3, 2, dtype=torch.float64)
    label = torch.tensor([0, 1])
    clean = Clean.of(x, cell=label)
    return State.of(x), clean, torch.tensor(t, dtype=torch.float64)


def gaussian_process():
    table = {"use": "gaussian", "predict": "velocity"}
    return parse("process", table).build(FeatureSpace(3, 2, conditions=TOLD))


def test_guidance_acts_inside_its_interval_only():
    process = gaussian_process()
    state, clean, t = features_at(process, [0.2, 0.6])
    model = Mixture(process)
    plain = Session(guided(process, model, weight=1.0), clean)(state, t)
    full = Session(guided(process, model, weight=3.0), clean)(state, t)
    options = {"weight": 3.0, "start": 0.4, "stop": 0.8}
    calls = ModelCalls()
    session = Session(guided(process, model, **options), clean, calls)
    part = session(state, t)
    assert torch.equal(part.raw[0], plain.raw[0])
    assert torch.equal(part.raw[1], full.raw[1])
    assert not torch.allclose(full.raw[0], plain.raw[0])
    # Where no sample is inside, the model is called once.
    before = calls.rows
    session(state, t / 10)
    assert (before, calls.rows - before) == (4, 2)


def test_rescaled_guidance_has_the_deviation_of_the_condition():
    process = gaussian_process()
    state, clean, t = features_at(process, [0.5, 0.7])
    model = Mixture(process)
    raws = [
        Session(guided(process, model, **options), clean)(state, t).raw
        for options in (
            {"weight": 1.0},
            {"weight": 4.0},
            {"weight": 4.0, "rescale": 1.0},
            {"weight": 4.0, "rescale": 0.25},
        )
    ]
    cond, full, rescaled, quarter = raws
    assert torch.allclose(rescaled.std((1, 2)), cond.std((1, 2)))
    ratio = rescaled / full
    assert torch.allclose(ratio, ratio[:, :1, :1].expand_as(ratio))
    assert torch.allclose(quarter, 0.75 * full + 0.25 * rescaled)


def test_padding_does_not_count_in_rescaled_guidance():
    guided = torch.randn(2, 5, 3)
    cond = torch.randn(2, 5, 3)
    valid = torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    expected = rescale(guided[:1, :3], cond[:1, :3], 0.7, valid[:1, :3])
    padded = rescale(guided, cond, 0.7, valid)
    assert torch.allclose(padded[:1, :3], expected)


def test_predicted_variances_are_not_guided():
    process = parse("process", "learned-variance").build(
        FeatureSpace(3, 2, conditions=TOLD)
    )

    class Both(Mixture):
        def forward(self, state, level, valid, cond, cache=None):
            share = torch.full_like(state.x, 1.0 if "cell" in cond else 0.0)
            return torch.cat([share, share], -1)

    state, clean, t = features_at(process, [0.5, 0.7])
    pred = Session(guided(process, Both(process), weight=3.0), clean)(state, t)
    assert torch.equal(pred.raw, torch.full_like(pred.raw, 3.0))
    assert torch.equal(pred.variance_share, torch.full_like(pred.raw, 1.0))
