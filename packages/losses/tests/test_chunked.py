"""Chunked losses equal the plain ones in values, weights and gradients, and take little memory."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dither.losses import chunked
from dither.losses.chunked import (
    ChunkedCrossEntropy,
    ChunkedLoss,
    ChunkedMaskedCE,
    ChunkedScoreEntropy,
)
from dither.losses.reductions import PerSample
from dither.losses.tokens import masked_ce
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.gidd import GIDDProcess
from dither.processes.tokens.priors import even_prior, frequency_prior, mask_prior
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.protocols import FusedLoss
from dither.registry.contracts.records import Clean, Noise
from dither.registry.contracts.spaces import Field, TokenSpace

B, L, D, V = 3, 7, 5, 19


class Constant:
    """A level per sample, whatever it is."""

    def __init__(self, sigma):
        self.sigma = sigma

    def __call__(self, t):
        return Noise(torch.full_like(t, self.sigma), 2.0 + t)


def make_process(name, predict, sigma, size=V, length=L):
    space = TokenSpace((Field("text", length, size),))
    if name in ("absorbing", "gidd"):
        space = space.with_mask()
    timesteps = TimestepSampling(Constant(sigma))
    if name == "gidd":
        tables = (mask_prior(space), even_prior(space))
        return GIDDProcess(space, *tables, 0.3, timesteps, predict)
    uneven = {"text": [float(i % 4) for i in range(size)]}  # some ids never occur
    prior = {
        "uniform": lambda: even_prior(space),
        "absorbing": lambda: mask_prior(space),
        "marginal": lambda: frequency_prior(space, uneven),
    }[name]()
    return TokenProcess(space, prior, timesteps, predict)


def situation(process, dtype=torch.float64, scale=1.0, biased=True, per_position=False):
    torch.manual_seed(0)
    linear = nn.Linear(D, process.space.vocab, biased).to(dtype)
    for parameter in linear.parameters():
        nn.init.normal_(parameter, std=scale)
    h = torch.randn(B, L, D, dtype=dtype, requires_grad=True)
    clean = Clean(
        torch.randint(0, V, (B, L)), torch.rand(B, L) > 0.2, torch.rand(B, L) < 0.2, {}
    )
    t = torch.rand((B, L) if per_position else (B,), dtype=torch.float64)
    return linear, h, process.corrupt(clean, t), t


def both(loss, process, linear, h, noised, t, **options):
    generic = loss(process.read(linear(h), noised.state, process.schedule(t)), noised)
    return generic, loss.fused(h, linear, process, noised, t, **options)


def same(generic, fused, inputs, tolerance=1e-12):
    """Values, weights, the sum and its gradients agree, relative to the largest."""
    assert not fused.values.requires_grad
    pairs = [
        (generic.values, fused.values),
        (generic.weights, fused.weights),
        (generic.total(), fused.total()),
    ]
    pairs += zip(
        *(torch.autograd.grad(m.mean(), inputs) for m in (generic, fused)), strict=True
    )
    for one, other in pairs:
        assert one.shape == other.shape
        assert (
            one - other
        ).detach().abs().max() <= tolerance * one.detach().abs().max()


@pytest.fixture(params=["one chunk", "ragged chunks", "all rows"])
def chunks(request, monkeypatch):
    """Chunks of several sizes, and the rows that a GPU computes: all."""
    if request.param == "ragged chunks":
        monkeypatch.setattr(chunked, "CPU_CHUNK", 4 * V)
    elif request.param == "all rows":
        monkeypatch.setattr(
            chunked, "_rows_of", lambda active: torch.arange(active.numel())
        )


CASES = [
    (name, predict)
    for name in ("uniform", "absorbing", "marginal")
    for predict in ("score", "plug-in", "posterior")
]
CASES.append(("gidd", "plug-in"))


@pytest.mark.parametrize("sigma", [1e-5, 0.7, 20.0])
@pytest.mark.parametrize(("name", "predict"), CASES)
def test_score_entropy_is_the_generic_one(name, predict, sigma, chunks):
    process = make_process(name, predict, sigma)
    linear, h, noised, t = situation(process)
    same(
        *both(ChunkedScoreEntropy(), process, linear, h, noised, t),
        [h, *linear.parameters()],
    )


def test_a_level_for_each_position_and_no_bias(chunks):
    process = make_process("uniform", "score", 0.7)
    linear, h, noised, t = situation(process, biased=False, per_position=True)
    same(
        *both(ChunkedScoreEntropy(), process, linear, h, noised, t), [h, linear.weight]
    )


@pytest.mark.parametrize("scale", [0.1, 30.0])
@pytest.mark.parametrize(
    "reduced", [lambda loss: loss, PerSample], ids=["token", "sample"]
)
@pytest.mark.parametrize(
    "loss", [ChunkedMaskedCE(), ChunkedLoss(masked_ce)], ids=["closed", "any"]
)
@pytest.mark.parametrize("predict", ["posterior", "plug-in"])
def test_masked_ce_is_the_generic_one_however_it_is_reduced(
    predict, loss, reduced, scale, chunks
):
    process = make_process("absorbing", predict, 0.7)
    linear, h, noised, t = situation(process, scale=scale)
    loss = reduced(loss)
    assert isinstance(loss, FusedLoss)
    same(*both(loss, process, linear, h, noised, t), [h, *linear.parameters()])


@pytest.mark.parametrize(
    ("name", "predict"), [case for case in CASES if case[1] != "score"]
)
def test_plain_cross_entropy_is_that_of_uncertain_tokens(name, predict, chunks):
    process = make_process(name, predict, 0.7)
    linear, h, noised, t = situation(process)
    generic, fused = both(ChunkedCrossEntropy(), process, linear, h, noised, t)
    same(generic, fused, [h, *linear.parameters()])
    log_p = process.read(linear(h), noised.state, noised.noise).log_clean()
    expected = nn.functional.nll_loss(
        log_p[noised.target_mask], noised.x0[noised.target_mask]
    )
    torch.testing.assert_close(fused.mean(), expected)
    assert not (noised.target_mask & noised.fixed).any()


def test_nothing_in_doubt():
    process = make_process("absorbing", "posterior", 0.7)
    linear, h, _, t = situation(process)
    clean = Clean.of(
        torch.zeros(B, L, dtype=torch.int64), known=torch.ones(B, L, dtype=torch.bool)
    )
    for loss in (ChunkedMaskedCE(), ChunkedScoreEntropy(), ChunkedCrossEntropy()):
        measured = loss.fused(h, linear, process, process.corrupt(clean, t), t)
        assert measured.total() == 0
        assert torch.autograd.grad(measured.mean(), [h])[0].abs().max() == 0


def test_gradients_are_computed_on_request_and_not_copied():
    process = make_process("uniform", "score", 0.7)
    linear, h, noised, t = situation(process)
    linear.weight.requires_grad_(False)
    total = ChunkedScoreEntropy().fused(h, linear, process, noised, t).total()
    where = total.grad_fn.grads[2].data_ptr()
    total.backward(retain_graph=True)
    assert linear.weight.grad is None
    assert linear.bias.grad.data_ptr() == where
    with pytest.raises(RuntimeError, match="once"):
        total.backward()
    with torch.no_grad():
        assert (
            ChunkedScoreEntropy().fused(h, linear, process, noised, t).total().grad_fn
            is None
        )


@pytest.mark.parametrize("sigma", [1e-4, 0.1, 20.0])
@pytest.mark.parametrize("off", [1e-2, 1.0])
def test_float32_near_the_truth_is_as_good_as_the_generic_form(sigma, off):
    size, width = 4001, 8
    process = make_process("uniform", "score", sigma, size, 16)
    torch.manual_seed(0)
    x0, t = torch.randint(0, size, (2, 16)), torch.rand(2)
    noised = process.corrupt(Clean.of(x0), t)
    alpha = torch.exp(torch.tensor(-sigma, dtype=torch.float64))
    landed = -torch.expm1(torch.tensor(-sigma, dtype=torch.float64)) / size
    h, linear = torch.randn(2, 16, width), nn.Linear(width, size)
    h[..., 0] = (
        landed / torch.where(noised.state.x == x0, alpha + landed, landed)
    ).log()  # the score of all but x_0
    nn.init.normal_(linear.weight, std=off / width**0.5)
    linear.weight.data[:, 0] = 1.0
    nn.init.zeros_(linear.bias)
    wide = nn.Linear(width, size).double()
    wide.load_state_dict(linear.state_dict())
    loss = ChunkedScoreEntropy()
    truth = loss(
        process.read(wide(h.double()), noised.state, process.schedule(t)), noised
    ).values
    assert torch.allclose(
        loss.fused(h.double(), wide, process, noised, t).values, truth, rtol=1e-9
    )
    fused = loss.fused(h, linear, process, noised, t).values
    assert ((fused.double() - truth).abs() <= 1e-3 * truth).all()


def test_half_precision_products_keep_sparse_gradients_exact():
    size, width = 2003, 32
    process = make_process("uniform", "score", 1e-2, size, 32)
    torch.manual_seed(0)
    linear = nn.Linear(width, size)
    h = torch.randn(2, 32, width, requires_grad=True)
    t = torch.rand(2)
    noised = process.corrupt(
        Clean.of(torch.randint(0, size, (2, 32))), torch.full((2,), 0.5)
    )
    moved = torch.randint(0, size, (2, 32))
    noised.state.x.copy_(moved)
    generic, fused = both(
        ChunkedScoreEntropy(), process, linear, h, noised, t, half=True
    )
    with torch.autocast("cpu", torch.bfloat16):
        raw = linear(h).float()
    rough = ChunkedScoreEntropy()(
        process.read(raw, noised.state, process.schedule(t)), noised
    )
    exact, ours, theirs = (
        torch.autograd.grad(m.total(), [h, *linear.parameters()])
        for m in (generic, fused, rough)
    )
    for truth, own, other in zip(exact, ours, theirs, strict=True):
        assert (own - truth).norm() < (other - truth).norm() / 20
    assert torch.allclose(fused.values, generic.values.detach(), rtol=1e-3)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation gives back, weights and their gradients left out."""

    def __init__(self, apart):
        super().__init__()
        self.numel, self.apart = 0, apart

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if (
                isinstance(value, torch.Tensor)
                and sorted(value.shape) not in self.apart
            ):
                self.numel = max(self.numel, value.numel())
        return out


@pytest.mark.parametrize(
    ("name", "predict", "loss"),
    [
        ("uniform", "score", ChunkedScoreEntropy()),
        ("uniform", "posterior", ChunkedScoreEntropy()),
        ("absorbing", "posterior", ChunkedMaskedCE()),
    ],
)
def test_no_tensor_grows_with_batch_times_ids(name, predict, loss, monkeypatch):
    size, length = 499, 64
    monkeypatch.setattr(chunked, "CPU_CHUNK", 2**12)
    process = make_process(name, predict, 3.0, size, length)
    linear = nn.Linear(D, process.space.vocab)
    t = torch.rand(8)
    noised = process.corrupt(Clean.of(torch.randint(0, size, (8, length))), t)
    h = torch.randn(8, length, D, requires_grad=True)
    with Largest([sorted(linear.weight.shape)]) as seen:
        loss.fused(h, linear, process, noised, t).total().backward()
    assert seen.numel <= 2 * 2**12
    with Largest([sorted(linear.weight.shape)]) as seen:
        loss(
            process.read(linear(h), noised.state, process.schedule(t)), noised
        ).total().backward()
    assert seen.numel >= 8 * length * size


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
@pytest.mark.parametrize(
    ("name", "predict", "loss"),
    [
        ("uniform", "score", ChunkedScoreEntropy()),
        ("absorbing", "score", ChunkedScoreEntropy()),
        ("absorbing", "posterior", ChunkedMaskedCE()),
        ("uniform", "posterior", ChunkedCrossEntropy()),
    ],
)
def test_compiled_loss_is_the_eager_one(name, predict, loss, monkeypatch):
    monkeypatch.setattr(chunked, "CPU_CHUNK", 4 * V)
    process = make_process(name, predict, 0.7)
    linear, h, noised, t = situation(process)
    inputs = (h, *linear.parameters())
    eager = loss.fused(h, linear, process, noised, t)
    compiled = loss.fused(h, linear, process, noised, t, compiled=True)
    torch.testing.assert_close(compiled.values, eager.values, rtol=1e-12, atol=1e-12)
    for one, other in zip(
        *(
            torch.autograd.grad(measured.total(), inputs)
            for measured in (compiled, eager)
        ),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_padded_vocabulary_changes_nothing(monkeypatch):
    """As on a GPU, where matrix products have a multiple of 64 columns."""
    process = make_process("uniform", "score", 0.7)
    linear, h, noised, t = situation(process)
    inputs = (h, *linear.parameters())
    plain = ChunkedScoreEntropy().fused(h, linear, process, noised, t)
    expected = torch.autograd.grad(plain.total(), inputs)

    build = chunked._ChunkedHead.__init__

    def padded(self, *arguments, **options):
        build(self, *arguments, **options)
        self.factor = nn.functional.pad(self.factor, (0, 0, 0, -V % 64))

    monkeypatch.setattr(chunked._ChunkedHead, "__init__", padded)
    measured = ChunkedScoreEntropy().fused(h, linear, process, noised, t)
    torch.testing.assert_close(measured.values, plain.values)
    for one, other in zip(
        torch.autograd.grad(measured.total(), inputs), expected, strict=True
    ):
        torch.testing.assert_close(one, other)
