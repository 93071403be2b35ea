"""Wrong numbers: components of the right shapes with one wrong line, each of which a check of the kit detects."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.nn.functional import one_hot

from dither.registry import Misfit, default_catalog
from dither.registry.flow.records import Measured, Noise, State, over
from dither.registry.kinds import FEATURES, LossSpec, MetricSpec
from dither.testing.checks import CHECKS

sys.path.insert(0, str(Path(__file__).parent))
import test_mutants
from test_mutants import (
    PLANS,
    Mutant,
    altered,
    built,
    case_of,
    first_failure_is_enough,  # noqa: F401 - a fixture
    function,
    loss,
    module,
    sampled,
    scaled,
    spec,
    unchanged,
)


class GaussianBound(LossSpec):
    """Half the squared error of x0 times the slope of the signal-to-noise ratio (VDM, Kingma et al. 2021, eq. 15)."""

    name: ClassVar[str] = "gaussian-bound"
    serves = FEATURES
    bound = True

    def check(self, process):
        yield from super().check(process)
        if process.prior != "gaussian":
            yield Misfit("requires Gaussian noise")

    def build(self, process) -> Any:
        return half_square


def half_square(pred, noised):
    sigma, rate = (over(value, noised.x0).double() for value in (noised.noise.sigma, noised.noise.rate))
    slope = rate * sigma.exp() / sigma.expm1().square()
    values = torch.where(noised.target_mask, slope * (pred.x0 - noised.x0).square() / 2, 0.0).sum(-1)
    return Measured(values.float(), noised.valid.float())


class MeanLoss(MetricSpec):
    """The mean loss of predictions."""

    name: ClassVar[str] = "mean-loss"

    def build(self, space: Any) -> Any:
        return Function()


class Function:
    """A metric of predictions."""

    def metrics(self):
        return Sums()


class Sums:
    """A mean over positions."""

    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def update(self, clean, noised, pred, measured) -> None:
        self.total += float(measured.total())
        self.weight += float(measured.weights.sum())

    def compute(self) -> dict[str, float]:
        return {"mean_loss": self.total / self.weight}


class BatchMeans(Sums):
    """A mean over batches of their means."""

    def update(self, clean, noised, pred, measured) -> None:
        self.total += float(measured.mean())
        self.weight += 1


test_mutants.TOYS |= {"loss:gaussian-bound": GaussianBound, "metric:mean-loss": MeanLoss}


def rate_of(noised):
    return over(noised.noise.rate, noised.x0)


def times(factor):
    """A loss with values multiplied by factor(noised)."""
    return loss(lambda m, pred, noised: Measured(m.values * factor(noised), m.weights))


def without_constant(m, pred, noised):
    """Score entropy without r (log r - 1)."""
    alpha, prior = noised.noise.alpha(noised.x0)[..., None], noised.prior
    q = alpha * one_hot(noised.x0, prior.shape[-1]) + (1 - alpha) * prior
    ratio = (q / q.gather(-1, noised.state.x[..., None])).masked_fill(one_hot(noised.state.x, q.shape[-1]).bool(), 0.0)
    constant = (torch.xlogy(ratio, ratio) - ratio).sum(-1)
    own = prior.expand(noised.x0.shape[1], -1)[torch.arange(noised.x0.shape[1]), noised.state.x]
    return Measured(m.values - torch.where(noised.target_mask, rate_of(noised) * own * constant, 0.0), m.weights)


def greedy(inner, state, pred, like):
    return torch.where(like.fixed, like.x0, pred.log_clean().argmax(-1))


def in_pairs(inner, state, pred, like):
    """All positions of a sample share one uniform number."""
    ids = (pred.log_clean().exp().cumsum(-1) < torch.rand(len(like.x0), 1, 1)).sum(-1)
    return torch.where(like.fixed, like.x0, ids.clamp_max(pred.log_clean().shape[-1] - 1))


def moved_in_pairs(inner, clean, t):
    noised = inner.corrupt(clean, t)
    x = torch.where(noised.state.masked | clean.fixed, noised.state.x, noised.state.x[:, :1])
    return altered(noised, state=lambda n: State.of(x), target_mask=lambda n: n.target_mask[:, :1] & ~clean.fixed)


def prior_off(inner, like):
    """Two in a hundred draws are id 0."""
    x = inner.prior(like).x
    return State.of(torch.where((torch.rand(x.shape) < 0.02) & ~like.fixed, 0, x))


def wide_prior(inner, like):
    state = inner.prior(like)
    return replace(state, x=torch.where(like.fixed, state.x, state.x * 1.02))


def shared_noise(inner, clean, t):
    noised = inner.corrupt(clean, t)
    eps = torch.where(noised.target_mask, noised.eps[..., :1], 0.0)
    a, b = (part.sqrt() for part in (noised.noise.alpha(eps), noised.noise.one_minus_alpha(eps)))
    x = torch.where(noised.target_mask, a * clean.x0 + b * eps, noised.state.x)
    return replace(noised, eps=eps, state=replace(noised.state, x=x))


def step(factor):
    """A step to another noise."""
    return function(
        step=lambda inner, state, pred, now, then, *a, **o: inner.step(state, pred, now, scaled(then, factor), *a, **o)
    )


def drifting(method):
    """Each call uses a little more noise."""

    def change(inner):
        calls = []

        def called(inner, clean, t):
            calls.append(1)
            return getattr(inner, method)(clean, (t * 0.9 ** len(calls)))

        return test_mutants.Function(inner, **{method: called})

    return built(change)


def drifting_schedule(inner):
    calls = []

    def call(inner, t):
        calls.append(1)
        return scaled(inner(t), 1 + 0.1 * len(calls), 1 + 0.1 * len(calls))

    return test_mutants.Function(inner, call=call)


def dip(inner, t):
    """Decreases near t = 0.51, with the right rate."""
    noise, z = inner(t), (t - 0.5137) / 0.002
    bump = 0.05 * (-z.square()).exp()
    return Noise(noise.sigma - bump, noise.rate + bump * 2 * z / 0.002)


def halved(out):
    return out / 2 + out.detach() / 2


def half_gradient(inner, x, *a, **o):
    return inner(halved(x), *a, **o)


def long_unchanged(inner, x, *a, **o):
    return inner(x, *a, **o) if x.shape[1] <= 64 else x


def long_truncated(inner, x, c, **o):
    return inner(x, c, **o) if x.shape[1] <= 64 else torch.cat([inner(x[:, :64], c), x[:, 64:]], 1)


def climbs(inner):
    for group in inner.param_groups:
        group["lr"] = -group["lr"]
    return inner


def batch_of(wanted, actual):
    return function(batch=lambda inner, split, rows: inner.batch(actual if split == wanted else split, rows))


def all_known(inner, n, seed):
    like = inner.batch("valid", range(n))
    return altered(like, known=lambda c: c.valid)


def rounded(step):
    return module(forward=lambda inner, level, cond: inner((level / step).floor() * step, cond))


BOUND, JOINT, NORMAL = "bound_is_exact", "joint_distributions", "normal_step"
GRADIENTS, EXACT = "gradients_reach_all", "samples_exact_distribution"
MCE, ENTROPY, ABSORBING, UNIFORM = "loss:masked-ce", "loss:score-entropy", "process:absorbing", "process:uniform"
GAUSSIAN, BLOCK, TASK = "process:gaussian", "block:adaln-zero", "task:bubble-diagram"
LOG_LINEAR, LEVEL = "schedule:log-linear", "condition:level"
ROWS: dict[str, tuple[str, str, Any]] = {
    "loose bound of own jumps": ("bound_of_own_jumps", "loss:flow-kl", times(lambda n: 0.5)),
    "double": (BOUND, MCE, times(lambda n: 2)),
    "bits": (BOUND, ENTROPY, times(lambda n: 1 / 0.6931)),
    "no rate": (BOUND, MCE, times(lambda n: 1 / rate_of(n))),
    "missing constant": (BOUND, ENTROPY, loss(without_constant)),
    "counts masked": (BOUND, MCE, loss(lambda m, pred, n: Measured(m.values, n.target_mask.float()))),
    "ignored field": (BOUND, ENTROPY, times(lambda n: (torch.arange(n.x0.shape[1]) < 1).float())),
    "squared error without half": (BOUND, "loss:gaussian-bound", times(lambda n: 2)),
    "rate per sigma": (BOUND, MCE, times(lambda n: over(n.noise.sigma.expm1() / n.noise.sigma, n.x0))),
    "changed tokens only": (BOUND, ENTROPY, times(lambda n: (n.x0 != n.state.x).float())),
    "unweighted": (BOUND, MCE, times(lambda n: over(n.noise.sigma.expm1() / n.noise.rate, n.x0))),
    "half the gradient of a loss": ("gradcheck", MCE, loss(lambda m, pred, n: Measured(halved(m.values), m.weights))),
    "greedy finish": (JOINT, UNIFORM, function(finish=greedy)),
    "greedy finish of masks": (JOINT, ABSORBING, function(finish=greedy)),
    "finish in pairs": (JOINT, UNIFORM, function(finish=in_pairs)),
    "noise in pairs": (JOINT, UNIFORM, function(corrupt=moved_in_pairs)),
    "scaled reading": ("predictions_are_exact", ABSORBING, function(read=lambda i, raw, *a: i.read(raw * 1.03, *a))),
    "scaled scores": ("predictions_are_exact", UNIFORM, function(read=lambda i, raw, *a: i.read(raw * 1.03, *a))),
    "scaled features": (NORMAL, GAUSSIAN, function(read=lambda i, raw, *a: i.read(raw * 1.03, *a))),
    "prior off by 2 %": (JOINT, UNIFORM, function(prior=prior_off)),
    "wide prior": (NORMAL, GAUSSIAN, function(prior=wide_prior)),
    "early step": (JOINT, ABSORBING, step(0.97)),
    "early step, uniform": (JOINT, UNIFORM, step(0.97)),
    "early step, gaussian": (NORMAL, GAUSSIAN, step(0.97)),
    "step without noise": (NORMAL, GAUSSIAN, function(step=lambda i, *a, **o: i.step(*a, eta=0.0))),
    "shared noise": (NORMAL, GAUSSIAN, function(corrupt=shared_noise)),
    "constant level": ("time_per_position", ABSORBING, function(level=lambda i, t: torch.full_like(t, 0.5))),
    "one time": ("record_is_complete", ABSORBING, function(corrupt=lambda i, c, t: i.corrupt(c, t * 0 + t.mean()))),
    "hidden state": ("time_per_position", ABSORBING, drifting("corrupt")),
    "noise is left": (EXACT, "sampler:ddim", sampled(lambda x, proc, like: x + 0.02 * torch.randn_like(x))),
    "shrunk samples": (EXACT, "sampler:ddim", sampled(lambda x, proc, like: x * 0.98)),
    "dip": ("grows", LOG_LINEAR, function(call=dip)),
    "wrong rate near 1": (
        "rate_is_derivative",
        LOG_LINEAR,
        function(call=lambda i, t: scaled(i(t), rate=1 + 0.1 * (t > 0.999))),
    ),
    "wrong rate near 0": (
        "rate_is_derivative",
        LOG_LINEAR,
        function(call=lambda i, t: scaled(i(t), rate=1 + 0.1 * (t < 0.001))),
    ),
    "hidden state of a schedule": ("any_shape", LOG_LINEAR, built(drifting_schedule)),
    "end off by 2 %": ("sigma_end", LOG_LINEAR, lambda base: spec(sigma_end=lambda s: 1.02 * base.sigma_end(s))(base)),
    "long inputs unchanged": ("padding_inert", BLOCK, module(forward=long_unchanged)),
    "long inputs truncated": ("padding_inert", BLOCK, module(forward=long_truncated)),
    "half the gradient of the input": (GRADIENTS, BLOCK, module(forward=half_gradient)),
    "half the gradient of a block": (GRADIENTS, BLOCK, module(forward=lambda i, *a, **o: halved(i(*a, **o)))),
    "half the gradient of a model": (
        GRADIENTS,
        "model:denoiser",
        module(forward=lambda i, *a, **o: halved(i(*a, **o).nan_to_num(neginf=0.0))),
    ),
    "half the gradient of a head": (GRADIENTS, "head:features", module(forward=half_gradient)),
    "clipped head": ("head_unbounded", "head:tokens", module(forward=lambda i, h: i(h).clamp_max(5.0))),
    "bounded head": ("head_unbounded", "head:features", module(forward=lambda i, h: 3 * i(h).tanh())),
    "coarse level": ("levels_differ", LEVEL, rounded(0.01)),
    "clipped level": ("levels_differ", LEVEL, module(forward=lambda i, level, cond: i(level.clamp_max(0.9), cond))),
    "climbs": ("descends", "optimizer:adamw", built(climbs)),
    "climbs, muon": ("descends", "optimizer:muon", built(climbs)),
    "mean of batch means": ("metric_values", "metric:mean-loss", function(metrics=lambda i: BatchMeans())),
    "valid is train": ("splits_not_empty", TASK, batch_of("valid", "train")),
    "test is valid": ("splits_not_empty", TASK, batch_of("test", "valid")),
    "the judge sees one sample": (
        "evaluates_samples",
        TASK,
        function(sample_metrics=lambda i, x, like: i.sample_metrics(x[:1], like[:1])),
    ),
    "batch means of a task": ("metrics_batch_invariant", TASK, function(metrics=lambda i: BatchMeans())),
    "templates give every value": ("templates_seeded", TASK, function(like=all_known)),
}
MUTANTS = [
    Mutant(check, part, change, PLANS if part == TASK else None, name=name)
    for name, (check, part, change) in ROWS.items()
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_wrong_number_is_detected(mutant):
    case = case_of(mutant, mutant.change, "broken")
    with pytest.raises(AssertionError) as caught:
        case.run()
    assert "fits nowhere" not in str(caught.value)
    assert "never applied" not in str(caught.value)


@pytest.mark.parametrize("part", ["loss:gaussian-bound", "metric:mean-loss"])
def test_a_toy_is_sound(part):
    """The components of this file that are changed above, with the check that must detect the change."""
    check = {"loss": BOUND, "metric": "metric_values"}[part.partition(":")[0]]
    case_of(Mutant(check, part, unchanged), unchanged, "sound").run()


def test_another_plugin_cannot_fail_a_sound_one():
    """A process whose steps go wrong is installed beside a sound sampler."""
    catalog = test_mutants.catalog_with(Mutant(JOINT, GAUSSIAN, step(0.5)), step(0.5), "broken")
    sampler = default_catalog().find("sampler", "ddim").spec
    catalog.add("sound", [type("Sound", (sampler,), {"name": "sound", "__module__": sampler.__module__})])
    (case,) = (case for case in test_mutants.cases("sound", catalog) if case.check.name == EXACT)
    case.run()
    with pytest.raises(AssertionError):
        replace(case, catalog=catalog).run()


def test_every_check_has_a_mutant():
    seen = {(m.part.partition(":")[0], m.check) for m in (*MUTANTS, *test_mutants.MUTANTS)}
    for check in CHECKS:
        kinds = {kind for kind, name in seen if name == check.name}
        assert check.kind in kinds or (check.kind == "any" and kinds), f"{check.kind} {check.name}"
    assert len(MUTANTS) == 54
