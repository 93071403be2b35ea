"""DiT: parameter counts, its forward in the formulas of the paper, its weights, and patches of a grid."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from dither.registry import FeatureSpace, default_catalog
from dither.registry.config.errors import Refused
from dither.registry.contracts.records import State
from dither.registry.contracts.spaces import Condition

SIZES = {
    "S": (384, 12, 6, 32_963_360),
    "B": (768, 12, 12, 130_512_416),
    "L": (1024, 24, 16, 458_102_816),
    "XL": (1152, 28, 16, 675_129_632),
}
WIDTH, DEPTH, HEADS, PATCH, CHANNELS, LABELS = 24, 2, 3, 2, 3, 5


def spec_of(width, depth, heads, patch=2, **options):
    parts = ["level", {"use": "label", "of": "label", "dropout": 0.1, "std": 0.02}]
    table = {
        "use": "denoiser",
        "width": width,
        "depth": depth,
        "patch": patch,
        "embedding": "patches",
        "condition": {"use": "sum", "parts": parts},
        "block": {"use": "adaln-zero", "heads": heads, "mlp": "gelu-tanh"},
        "head": {"use": "features", "zero": True},
    }
    return default_catalog().parse("model", table | options)


def grid(side, channels, labels, **options):
    return FeatureSpace(
        side * side,
        channels,
        conditions=(Condition("label", labels),),
        grid=(side, side),
        outputs=2,
        level_end=999.0,
        **options,
    )


@pytest.mark.parametrize("size", SIZES)
def test_published_parameter_counts(size):
    width, depth, heads, published = SIZES[size]
    spec, space = spec_of(width, depth, heads), grid(32, 4, 1000)
    assert not list(spec.check(space))
    with torch.device("meta"):
        model = spec.build(space)
    trained = sum(weight.numel() for weight in model.parameters())
    # The count includes the fixed positions, a buffer here.
    assert trained + 256 * width == published


def their_weights():
    """Random weights of a small DiT under its names, with the shapes of the paper."""
    generator = torch.Generator().manual_seed(0)
    width, out = WIDTH, PATCH**2 * CHANNELS * 2
    shapes = {
        "x_embedder.proj": (width, CHANNELS, PATCH, PATCH),
        "t_embedder.mlp.0": (width, 256),
        "t_embedder.mlp.2": (width, width),
        "final_layer.linear": (out, width),
        "final_layer.adaLN_modulation.1": (2 * width, width),
    }
    for n in range(DEPTH):
        shapes[f"blocks.{n}.attn.qkv"] = (3 * width, width)
        shapes[f"blocks.{n}.attn.proj"] = (width, width)
        shapes[f"blocks.{n}.mlp.fc1"] = (4 * width, width)
        shapes[f"blocks.{n}.mlp.fc2"] = (width, 4 * width)
        shapes[f"blocks.{n}.adaLN_modulation.1"] = (6 * width, width)
    weights = {}
    for name, shape in shapes.items():
        weights[f"{name}.weight"] = 0.2 * torch.randn(shape, generator=generator)
        weights[f"{name}.bias"] = 0.2 * torch.randn(shape[0], generator=generator)
    table = 0.2 * torch.randn(LABELS + 1, width, generator=generator)
    return weights | {
        "y_embedder.embedding_table.weight": table,
        "pos_embed": positions(4)[None],
    }


def positions(side):
    """Sine and cosine of the column, then of the row, at WIDTH / 4 frequencies."""
    rows = []
    for row in range(side):
        for column in range(side):
            values = []
            for number in (column, row):
                angles = [number / 10_000 ** (4 * i / WIDTH) for i in range(WIDTH // 4)]
                values += [*map(math.sin, angles), *map(math.cos, angles)]
            rows.append(values)
    return torch.tensor(rows)


def their_forward(weights, image, t, y):
    """DiT on `N C H W` (Peebles and Xie, 2023, figure 3), from weights under its names."""

    def layer(name, x):
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x):
        return (x - x.mean(-1, keepdim=True)) / (
            x.var(-1, unbiased=False, keepdim=True) + 1e-6
        ).sqrt()

    frequencies = torch.exp(-math.log(10_000) / 128 * torch.arange(128))
    angles = t[:, None] * frequencies
    level = layer("t_embedder.mlp.0", torch.cat([angles.cos(), angles.sin()], 1))
    level = layer("t_embedder.mlp.2", functional.silu(level))
    c = functional.silu(level + weights["y_embedder.embedding_table.weight"][y])
    c = c[:, None]

    kernel = weights["x_embedder.proj.weight"]
    x = functional.conv2d(image, kernel, weights["x_embedder.proj.bias"], stride=PATCH)
    x = x.flatten(2).mT + weights["pos_embed"]
    for n in range(DEPTH):
        vectors = layer(f"blocks.{n}.adaLN_modulation.1", c).split(WIDTH, -1)
        shift, scale, gate = vectors[:3]
        qkv = layer(f"blocks.{n}.attn.qkv", norm(x) * (1 + scale) + shift)
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in qkv.split(WIDTH, -1)
        )
        attended = ((q @ k.mT) / math.sqrt(WIDTH // HEADS)).softmax(-1) @ v
        x = x + gate * layer(
            f"blocks.{n}.attn.proj", attended.transpose(1, 2).flatten(2)
        )
        shift, scale, gate = vectors[3:]
        hidden = layer(f"blocks.{n}.mlp.fc1", norm(x) * (1 + scale) + shift)
        hidden = functional.gelu(hidden, approximate="tanh")
        x = x + gate * layer(f"blocks.{n}.mlp.fc2", hidden)
    shift, scale = layer("final_layer.adaLN_modulation.1", c).split(WIDTH, -1)
    x = layer("final_layer.linear", norm(x) * (1 + scale) + shift)

    # Each patch has its pixels row by row, each with all output channels.
    side = image.shape[2] // PATCH
    out = torch.empty(len(image), 2 * CHANNELS, *image.shape[2:])
    for number in range(side * side):
        top, left = PATCH * (number // side), PATCH * (number % side)
        patch = x[:, number].unflatten(-1, (PATCH, PATCH, 2 * CHANNELS))
        patch = patch.permute(0, 3, 1, 2)
        out[:, :, top : top + PATCH, left : left + PATCH] = patch
    return out


def test_weights_of_dit_give_its_output():
    weights = their_weights()
    space = grid(8, CHANNELS, LABELS)
    spec = spec_of(WIDTH, DEPTH, HEADS)
    model = spec.build(space).eval()
    model.load_state_dict(spec.rename("dit", weights))
    image = torch.randn(4, CHANNELS, 8, 8)
    t, y = torch.tensor([0.0, 17.0, 500.0, 999.0]), torch.tensor([0, 3, 4, LABELS])
    expected = their_forward(weights, image, t, y)

    x = image.flatten(2).mT
    label = torch.where(y == LABELS, -1, y)
    valid = torch.ones(x.shape[:2], dtype=torch.bool)
    raw = model(State.of(x), t, valid, {"label": label})
    assert torch.allclose(raw.mT.reshape(expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize("variances", [True, False])
def test_weights_of_sit_give_its_velocity(variances):
    weights = their_weights()
    image = torch.randn(3, CHANNELS, 8, 8)
    u, y = torch.tensor([0.0, 0.3, 1.0]), torch.tensor([0, 3, 4])
    # SiT (models.py of willisma/SiT): t is 0 at noise, the second half of channels is dropped.
    velocity = their_forward(weights, image, 1 - u, y)[:, :CHANNELS]
    if not variances:
        for name in ("final_layer.linear.weight", "final_layer.linear.bias"):
            of_pixels = weights[name].unflatten(0, (PATCH**2, -1))
            weights[name] = of_pixels[:, :CHANNELS].flatten(0, 1)

    parts = [{"use": "level", "time_scale": 1.0}, {"use": "label", "of": "label"}]
    parts[1]["dropout"] = 0.1
    condition = {"use": "sum", "parts": parts}
    spec = spec_of(WIDTH, DEPTH, HEADS, condition=condition)
    space = replace(grid(8, CHANNELS, LABELS), outputs=1, level_end=1.0)
    model = spec.build(space).eval()
    model.load_state_dict(spec.rename("sit", weights))
    x = image.flatten(2).mT
    valid = torch.ones(x.shape[:2], dtype=torch.bool)
    raw = model(State.of(x), u, valid, {"label": y})
    assert torch.allclose(raw.mT.reshape(image.shape), -velocity, atol=1e-5)


def test_weights_of_sit_need_times_as_they_are():
    """The default scale of times is 1000, with which the same shapes compute something else."""
    for level in ("level", {"use": "level", "time_scale": 1000.0}):
        parts = [level, {"use": "label", "of": "label", "dropout": 0.1}]
        condition = {"use": "sum", "parts": parts}
        spec = spec_of(WIDTH, DEPTH, HEADS, condition=condition)
        with pytest.raises(Refused, match="time_scale"):
            spec.rename("sit", their_weights())
        spec.rename("dit", their_weights())


def test_other_positions_than_those_of_dit_are_refused():
    weights = their_weights()
    weights["pos_embed"] = weights["pos_embed"].roll(1, 1)
    with pytest.raises(Refused) as error:
        spec_of(WIDTH, DEPTH, HEADS).rename("dit", weights)
    assert error.value.problems[0].code == "misfit"


def test_patches_take_masks_levels_and_padding_of_their_positions(opened):
    space = replace(grid(4, 1, LABELS), outputs=1)
    spec = spec_of(16, 2, 2, embedding={"use": "regions", "elements": True})
    model = opened(spec.build(space).eval()).double()
    x = torch.randn(2, 16, 1, dtype=torch.float64)
    valid = torch.ones(2, 16, dtype=torch.bool)
    level = torch.tensor([0.2, 0.9], dtype=torch.float64)
    out = model(State.of(x), level, valid, {})
    assert out.shape == x.shape
    # Head and trunk meet at the patches.
    trunk = model.trunk(State.of(x), level, valid, {})
    assert trunk.shape == (2, 4, 16)
    assert torch.equal(model.head(trunk), out)
    per_position = level[:, None].expand(2, 16)
    assert torch.allclose(model(State.of(x), per_position, valid, {}), out, rtol=1e-10)
    # Positions 5 and 0 are in the first patch of a grid of 4 x 4.
    masked = torch.zeros_like(x, dtype=torch.bool)
    masked[:, 5] = True
    other = model(State(x, masked), level, valid, {})
    assert not torch.allclose(other[:, 0], out[:, 0])
    valid[:, 5] = False
    padded = model(State.of(x), level, valid, {})
    changed = x.clone()
    changed[:, 5] += 1
    assert torch.equal(model(State.of(changed), level, valid, {}), padded)


@pytest.mark.parametrize(
    ("space", "options", "path"),
    [
        (FeatureSpace(16, 1), {}, "patch"),
        (grid(3, 1, LABELS), {}, "patch"),
        (grid(4, 1, LABELS), {"block_size": 2}, "block_size"),
        (grid(4, 1, LABELS), {"head": "token-diffusion"}, "head"),
    ],
)
def test_patches_that_do_not_fit_are_rejected(space, options, path):
    misfits = list(spec_of(16, 2, 2, **options).check(space))
    assert path in {misfit.path[0] for misfit in misfits}
