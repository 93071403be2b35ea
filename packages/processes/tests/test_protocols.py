"""Every sampler runs third-party processes that satisfy the protocols of the registry and share no code with ours."""

import torch

from dither.registry.contracts.protocols import (
    GaussianProcess,
    MaskedFeatureProcess,
    Process,
    TokenProcess,
)
from dither.registry.contracts.records import (
    Clean,
    FeaturePrediction,
    Noise,
    Noised,
    State,
    TokenPrediction,
    TokenStep,
)
from dither.registry.contracts.spaces import FeatureSpace, Field, TokenSpace

P = torch.tensor([0.5, 0.3, 0.2])
MASK, ROWS = 3, 3000
TOKEN_SAMPLERS = (
    "ancestral",
    "analytic",
    "euler",
    "predictor-corrector",
    "first-hitting",
    "guided",
    "ordered",
    "remdm",
)


class Foreign(Process):
    """What all three processes share."""

    def schedule(self, t):
        left = 1 - 0.999 * t
        return Noise(-left.log(), 0.999 / left)

    def times(self, n, device=None):
        return torch.rand(n, device=device)

    def level(self, t):
        return t

    def corrupt(self, clean: Clean, t) -> Noised:
        raise NotImplementedError("sampling does not corrupt")


class ForeignPrediction(TokenPrediction):
    """p(x_0 | x_t) of independent tokens."""

    def __init__(self, state, noise):
        self.state, self.noise = state, noise

    def log_clean(self):
        shown = torch.nn.functional.one_hot(self.state.x, MASK + 1).float()
        return torch.where(
            (self.state.x == MASK)[..., None], torch.cat([P, torch.zeros(1)]), shown
        ).log()

    def log_score(self):
        odds = self.noise.sigma.expm1()[:, None, None]  # (1 - alpha) / alpha
        return (
            (self.log_clean().exp() / odds)
            .scatter(-1, self.state.x[..., None], 1.0)
            .log()
        )


class ForeignTokens(Foreign, TokenProcess):
    """An absorbing process; a `TokenProcess`."""

    absorbing = True
    space = TokenSpace((Field("text", 2, MASK + 1, mask=MASK),))

    def prior_probs(self, device=None):
        return torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)

    def prior(self, like):
        return State.of(torch.where(like.fixed, like.x0, MASK))

    def renoise(self, state, now, then, like):
        lost = torch.rand(state.x.shape) < now.since(then).one_minus_alpha(state.x)
        return State.of(torch.where(lost & ~like.fixed, MASK, state.x))

    def read(self, raw, state, noise):
        return ForeignPrediction(state, noise)

    def begin_step(self, state, now, then, like):
        stays = then.one_minus_alpha(state.x) / now.one_minus_alpha(state.x)
        shown = (torch.rand(state.x.shape) >= stays) & (state.x == MASK)

        def complete(rows):
            ids = rows.log_clean()[0].exp().multinomial(1)[:, 0]
            return State.of(state.x.masked_scatter(shown, ids))

        return TokenStep(shown, complete)

    def finish(self, state, pred, like):
        return torch.distributions.Categorical(logits=pred.log_clean()).sample()


class ForeignGaussian(Foreign, GaussianProcess):
    """Gaussian noise; a `GaussianProcess`."""

    space = FeatureSpace(3, 2)

    def prior(self, like):
        return State.of(torch.where(like.fixed, like.x0, torch.randn_like(like.x0)))

    def read(self, raw, state, noise):
        a, b = noise.alpha(state.x).sqrt(), noise.one_minus_alpha(state.x).sqrt()
        return type(
            "Prediction",
            (FeaturePrediction,),
            {"x0": raw, "eps": (state.x - a * raw) / b},
        )()

    def step(self, state, pred, now, then, like, *, eta=1.0, eps=None):
        a, b = then.alpha(state.x).sqrt(), then.one_minus_alpha(state.x).sqrt()
        noise = torch.randn_like(state.x) if eps is None else eps
        return self.replace(
            state,
            a * pred.x0 + b * ((1 - eta**2) ** 0.5 * pred.eps + eta * noise),
            like,
        )

    def add_noise(self, x, noise, where):
        eps = torch.randn_like(x).masked_fill(~where, 0.0)
        noisy = noise.alpha(x).sqrt() * x + noise.one_minus_alpha(x).sqrt() * eps
        return State.of(torch.where(where, noisy, x)), eps

    def replace(self, state, x, like):
        return State.of(torch.where(like.fixed, like.x0, x))

    def finish(self, state, pred, like):
        return self.replace(state, pred.x0, like).x


class ForeignMasks(Foreign, MaskedFeatureProcess):
    """Masked positions; a `MaskedFeatureProcess`."""

    space = FeatureSpace(3, 2)

    def prior(self, like):
        return State(like.x0.masked_fill(~like.fixed, 0.0), ~like.fixed)

    def read(self, raw, state, noise):
        x0 = torch.where(state.masked, raw, state.x)
        return type(
            "Prediction", (FeaturePrediction,), {"x0": x0, "eps": torch.zeros_like(raw)}
        )()

    def units(self, masked):
        return masked.any(-1)

    def unit_sums(self, values):
        return values.sum(-1)

    def elements(self, units):
        return units[..., None].expand(-1, -1, 2)

    def reveal(self, state, x, masked):
        return State(torch.where(state.masked & ~masked, x, state.x), masked)

    def step(self, state, pred, now, then, like):
        stays = torch.rand(state.x.shape[:2])[..., None] < (
            then.one_minus_alpha(state.x) / now.one_minus_alpha(state.x)
        )
        return self.reveal(state, pred.draw(), state.masked & stays)

    def finish(self, state, pred, like):
        return self.reveal(state, pred.draw(), torch.zeros_like(state.masked)).x


def model_of(process, value=7.0):
    def model(state, t, at=None):
        pred = process.read(
            torch.full(state.x.shape, value), state, process.schedule(t)
        )
        return pred if at is None else pred.at(at)

    return model


def test_token_samplers_draw_from_the_distribution_of_a_foreign_process(part):
    process, like = ForeignTokens(), Clean.of(torch.zeros(ROWS, 2, dtype=torch.long))
    for name in TOKEN_SAMPLERS:
        options = {} if name in ("first-hitting", "guided") else {"steps": 30}
        *_, x = part("sampler", name, **options).build()(
            process, model_of(process), like
        )
        if (
            name != "ordered"
        ):  # which takes the likeliest positions first, all equal here
            shares = torch.bincount(x.flatten(), minlength=4) / x.numel()
            torch.testing.assert_close(
                shares, torch.tensor([0.5, 0.3, 0.2, 0.0]), atol=0.04, rtol=0, msg=name
            )
        assert (x != MASK).all()
        known = Clean.of(
            torch.ones(9, 2, dtype=torch.long),
            known=torch.tensor([[True, False]]).expand(9, 2),
        )
        *_, x = part("sampler", name, **options).build()(
            process, model_of(process), known
        )
        assert (x[:, 0] == 1).all(), name


def test_feature_samplers_run_foreign_processes(part):
    known = torch.tensor([True, False, False])[:, None].expand(4, 3, 2)
    like = Clean.of(torch.full((4, 3, 2), 2.0), known=known)
    names = {
        ForeignGaussian: ("ancestral", "ddim", "dpm-solver", "repaint"),
        ForeignMasks: ("ancestral", "ordered-regions"),
    }
    for make, samplers in names.items():
        for name in samplers:
            process = make()
            *_, x = part("sampler", name, steps=4).build()(
                process, model_of(process), like
            )
            torch.testing.assert_close(
                x, torch.where(known, 2.0, 7.0), msg=f"{make.__name__}, {name}"
            )
