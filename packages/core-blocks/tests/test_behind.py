"""What wide blocks keep instead of what linear maps read: the same values and gradients, for less."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from dither.core_blocks.block_specs import AdaLNZero
from dither.core_blocks.cpu import recompute_linear as module
from dither.core_blocks.cpu.recompute_linear import DeferredInput, apply_linear, defer, keeps_inputs
from dither.core_blocks.norms import modulate, normed
from dither.core_blocks.qkv import QVBiased
from dither.core_blocks.specs import PreNorm

WIDTH, ROWS, LENGTH = 768, 2, 5
BLOCKS = [
    (AdaLNZero, {}),
    (AdaLNZero, {"mlp": "swiglu", "norm": "rms", "affine": True, "rope": True}),
    (AdaLNZero, {"affine": True, "bias": False, "mlp": "gelu-tanh"}),
    (PreNorm, {"qkv_bias": "qv"}),
    (PreNorm, {"norm": "rms", "affine": False, "qkv_bias": False}),
]


def plainly(monkeypatch):
    monkeypatch.setattr(module, "WIDE", 10**9)


def gradients(block, x, c, **options):
    """What a block makes of x, and the slopes of everything."""
    x, c = x.clone().requires_grad_(), c.clone().requires_grad_()
    y = block(x, c, **options)
    weights = [weight for weight in block.parameters() if weight.requires_grad]
    found = torch.autograd.grad(
        (y * torch.linspace(-1, 1, WIDTH, dtype=y.dtype)).sum(), [x, c, *weights], allow_unused=True
    )
    return [y.detach(), *(torch.zeros(1) if slope is None else slope for slope in found)]


def made(opened, kind, options, dtype=torch.float64):
    torch.manual_seed(0)
    block = opened(kind(heads=4, ratio=0.5, **options).build(WIDTH, 6), 0.02).to(dtype)
    return block, torch.randn(ROWS, LENGTH, WIDTH, dtype=dtype), torch.randn(ROWS, 6, dtype=dtype)


@pytest.mark.parametrize(("kind", "options"), BLOCKS, ids=str)
@pytest.mark.parametrize("way", ["all", "requested", "each", "checkpoint"])
def test_values_and_every_gradient_are_the_same(opened, monkeypatch, kind, options, way):
    block, x, c = made(opened, kind, options)
    told = (
        {"requested": torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)} if way == "requested" else {}
    )
    c = c[:, None].repeat(1, LENGTH, 1) * torch.arange(LENGTH)[:, None] if way == "each" else c
    run = block
    if way == "checkpoint":
        run = lambda x, c: checkpoint(block, x, c, use_reentrant=False)  # noqa: E731
        run.parameters = block.parameters
    lean = gradients(run, x, c, **told)
    plainly(monkeypatch)
    for one, other in zip(lean, gradients(block, x, c, **told), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert other.abs().max() > 0 or kind is PreNorm


@pytest.mark.parametrize(("kind", "options"), BLOCKS, ids=str)
def test_under_autocast_it_rounds_as_autocast_does(opened, monkeypatch, kind, options):
    block, x, c = made(opened, kind, options, torch.float32)
    exact = gradients(block, x, c)
    with torch.autocast("cpu", torch.bfloat16):
        lean = gradients(block, x, c)
        plainly(monkeypatch)
        plain = gradients(block, x, c)
    assert torch.equal(lean[0], plain[0])
    for one, other, right in zip(lean, plain, exact, strict=True):
        assert one.dtype == other.dtype
        assert torch.dist(one, right) <= 1.2 * torch.dist(other, right) + 1e-6 * right.norm()


def test_weights_that_stand_still_and_inputs_without_gradient(monkeypatch):
    linear, x = nn.Linear(WIDTH, 3).double(), torch.randn(4, WIDTH, dtype=torch.float64)
    apply_linear(linear, defer(functional.gelu, WIDTH, x)).square().sum().backward()
    found = linear.weight.grad, linear.bias.grad
    linear.zero_grad()
    linear(functional.gelu(x)).square().sum().backward()
    torch.testing.assert_close(found, (linear.weight.grad, linear.bias.grad))
    linear.requires_grad_(False)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(apply_linear(linear, defer(functional.gelu, WIDTH, x)).sum(), x)
    torch.testing.assert_close(slope, torch.autograd.grad(linear(functional.gelu(x)).sum(), x)[0])


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_a_map_that_is_changed_is_called_as_it_is():
    x = torch.randn(4, WIDTH, requires_grad=True)
    linear, seen = nn.Linear(WIDTH, 3), []
    handle = linear.register_forward_hook(lambda *_: seen.append(1))
    apply_linear(linear, DeferredInput(torch.sin, (x,)))
    handle.remove()
    assert seen == [1]
    expected = functional.linear(x.sin(), 2 * linear.weight, linear.bias)
    parametrize.register_parametrization(linear, "weight", Doubled())
    torch.testing.assert_close(apply_linear(linear, DeferredInput(torch.sin, (x,))), expected)
    biased = QVBiased(WIDTH)
    nn.init.normal_(biased.v_bias)
    torch.testing.assert_close(apply_linear(biased, DeferredInput(torch.sin, (x,))), biased(x.sin()))


HOOKS = ["forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"]


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_any_kind_fire(hook):
    linear, norm, seen = nn.Linear(WIDTH, 3), nn.LayerNorm(WIDTH), []
    for one in (linear, norm):
        getattr(one, f"register_{hook}")(lambda called, *_: seen.append(called))
    apply_linear(linear, DeferredInput(torch.sin, (torch.randn(4, WIDTH, requires_grad=True),))).sum().backward()
    apply_linear(nn.Linear(WIDTH, 3), normed(norm, torch.randn(1, 4, WIDTH, requires_grad=True))).sum().backward()
    assert seen == [linear, norm]


class Halved(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) / 2


@pytest.mark.parametrize("norm", [nn.Identity(), Halved(WIDTH)], ids=["none", "changed"])
def test_a_norm_that_is_another_is_called_as_it_is(norm):
    x, shift, scale = torch.randn(3, 2, 4, WIDTH, requires_grad=True)
    linear = nn.Linear(WIDTH, 3)
    torch.testing.assert_close(apply_linear(linear, normed(norm, x)), linear(norm(x)))
    found = apply_linear(linear, normed(norm, x, shift, scale))
    torch.testing.assert_close(found, linear(modulate(norm(x), shift, scale)))
    assert isinstance(normed(nn.LayerNorm(WIDTH), x), DeferredInput)


def test_only_where_it_pays(monkeypatch):
    wide, narrow = torch.zeros(1, WIDTH), torch.zeros(1, WIDTH - 1)
    assert keeps_inputs(wide, WIDTH)
    assert not keeps_inputs(narrow, WIDTH - 1)
    assert not keeps_inputs(torch.zeros(1, WIDTH, device="meta"), WIDTH)
    with torch.no_grad():
        assert not keeps_inputs(wide, WIDTH)
        assert isinstance(defer(torch.sin, WIDTH, wide), torch.Tensor)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not keeps_inputs(wide, WIDTH)
