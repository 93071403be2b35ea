"""Converted SEDD weights compute the same as the public model; other files are rejected."""

import math
import re
from pathlib import Path

import pytest
import tomlkit
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from dither.core_blocks.convert.sedd import MDLM, SEDD
from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.registry import Field, TokenSpace, default_catalog
from dither.registry.contracts.records import Context, State

IDS, WIDTH, HEADS, COND, DEPTH, LENGTH = 11, 24, 3, 10, 2, 6


def options_of_sedd(theirs):
    """The options of the denoiser with these weights, as in an experiment file."""
    ours = SEDD.weights(theirs)
    width = ours["embedding.tables.0.weight"].shape[1]
    return {
        "use": "denoiser",
        "width": width,
        "depth": SEDD.depth(theirs),
        "cond": len(ours["condition.enter.bias"]),
        "affine": "scale",
        "eps": 1e-5,
        "embedding": {"use": "tokens", "init": "kaiming"},
        "condition": {
            "use": "level",
            "frequencies": ours["condition.enter.weight"].shape[1],
        },
        "head": "tokens",
        "block": {
            "use": "adaln-zero",
            "heads": width // (2 * len(theirs["rotary_emb.inv_freq"])),
            "affine": "scale",
            "eps": 1e-5,
            "mlp": "gelu-tanh",
            "qkv_bias": False,
            "out_bias": False,
            "rope": True,
            "dropout": 0.1,
            "attention_dropout": 0.0,
        },
    }


def made(ids=IDS, width=WIDTH, heads=HEADS, cond=COND, depth=DEPTH):
    """Weights with the names and shapes of the public code, none of them zero."""
    shapes = {
        "vocab_embed.embedding": (ids, width),
        "sigma_map.mlp.0.weight": (cond, 256),
        "sigma_map.mlp.0.bias": (cond,),
        "sigma_map.mlp.2.weight": (cond, cond),
        "sigma_map.mlp.2.bias": (cond,),
        "output_layer.norm_final.weight": (width,),
        "output_layer.linear.weight": (ids, width),
        "output_layer.linear.bias": (ids,),
        "output_layer.adaLN_modulation.weight": (2 * width, cond),
        "output_layer.adaLN_modulation.bias": (2 * width,),
    }
    for n in range(depth):
        shapes |= {
            f"blocks.{n}.norm1.weight": (width,),
            f"blocks.{n}.attn_qkv.weight": (3 * width, width),
            f"blocks.{n}.attn_out.weight": (width, width),
            f"blocks.{n}.norm2.weight": (width,),
            f"blocks.{n}.mlp.0.weight": (4 * width, width),
            f"blocks.{n}.mlp.0.bias": (4 * width,),
            f"blocks.{n}.mlp.2.weight": (width, 4 * width),
            f"blocks.{n}.mlp.2.bias": (width,),
            f"blocks.{n}.adaLN_modulation.weight": (6 * width, cond),
            f"blocks.{n}.adaLN_modulation.bias": (6 * width,),
        }
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: 0.3 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }
    half = width // heads // 2
    weights["rotary_emb.inv_freq"] = 10_000.0 ** -(torch.arange(half).float() / half)
    return weights


def sedd(
    w: dict[str, Tensor],
    ids: Tensor,
    sigma: Tensor,
    heads: int = HEADS,
    x0: Tensor | None = None,
    size: int = 1,
) -> Tensor:
    """The public model, written from its description: log scores, 0 at the input ids.

    With `x0` it is that of BD3-LM in training: over [x_t | x_0], both at positions 0 .. L - 1, under its block mask.
    """

    def norm(x: Tensor, scale: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * scale

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def rotated(x: Tensor) -> Tensor:
        """Pairs (j, j + E/2), as complex numbers."""
        half = x.shape[-1] // 2
        angle = torch.arange(length).repeat(x.shape[1] // length)[
            :, None
        ] * 10_000.0 ** (-torch.arange(half) / half)
        pairs = (
            torch.complex(x[..., :half], x[..., half:])
            * torch.polar(torch.ones_like(angle), angle)[:, None, :]
        )
        return torch.cat([pairs.real, pairs.imag], -1)

    batch, length = ids.shape
    angle = sigma[:, None] * torch.exp(-math.log(10_000) * torch.arange(128) / 128)
    c = linear(
        functional.silu(
            linear(torch.cat([angle.cos(), angle.sin()], -1), "sigma_map.mlp.0")
        ),
        "sigma_map.mlp.2",
    )
    c = functional.silu(c)
    x = w["vocab_embed.embedding"][ids if x0 is None else torch.cat([ids, x0], 1)]
    clean, block = (
        torch.arange(x.shape[1]) >= length,
        torch.arange(x.shape[1]) % length // size,
    )
    (q_clean, k_clean), (q_block, k_block) = (
        (value[:, None], value) for value in (clean, block)
    )
    allowed = (q_block == k_block) & (q_clean == k_clean) | (
        q_block > k_block
    ) & k_clean
    allowed |= torch.tensor(x0 is None)
    for n in range(sum(name.endswith("attn_qkv.weight") for name in w)):
        name = f"blocks.{n}"
        six = linear(c, f"{name}.adaLN_modulation")[:, None].chunk(6, -1)
        y = norm(x, w[f"{name}.norm1.weight"]) * (1 + six[1]) + six[0]
        q, k, v = (
            linear(y, f"{name}.attn_qkv")
            .view(batch, x.shape[1], 3, heads, -1)
            .unbind(2)
        )
        scores = torch.einsum("bqhe,bkhe->bhqk", rotated(q), rotated(k)) / math.sqrt(
            q.shape[-1]
        )
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        y = torch.einsum("bhqk,bkhe->bqhe", weights, v).flatten(2)
        x = x + six[2] * linear(y, f"{name}.attn_out")
        y = linear(
            norm(x, w[f"{name}.norm2.weight"]) * (1 + six[4]) + six[3], f"{name}.mlp.0"
        )
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + six[5] * linear(y, f"{name}.mlp.2")
    shift, scale = linear(c, "output_layer.adaLN_modulation")[:, None].chunk(2, -1)
    out = linear(
        norm(x, w["output_layer.norm_final.weight"]) * (1 + scale) + shift,
        "output_layer.linear",
    )[:, :length]
    return out.scatter(-1, ids[..., None], 0.0)


def ours(weights, ids: int = IDS, **block) -> nn.Module:
    options = options_of_sedd(weights)
    spec = default_catalog().parse(
        "model", options | {"block": options["block"] | block}
    )
    return spec.build(TokenSpace((Field("text", LENGTH, ids),))).eval()


@pytest.fixture
def file(tmp_path):
    def write(weights):
        save_file(
            {name: weight.contiguous() for name, weight in weights.items()},
            tmp_path / "sedd.safetensors",
        )
        return tmp_path / "sedd.safetensors"

    return write


def states(ids: int):
    torch.manual_seed(1)
    return torch.randint(ids, (4, LENGTH)), torch.tensor([1e-4, 0.05, 1.0, 20.0])


@pytest.mark.parametrize(
    "sizes", [{}, {"heads": 1, "depth": 3}, {"width": 16, "heads": 4, "cond": 5}]
)
def test_equals_the_public_model(file, sizes):
    weights = made(**sizes)
    model = ours(weights)
    SEDD.load(file(weights), model)
    x, sigma = states(IDS)
    raw = model(State.of(x), sigma, torch.ones(x.shape, dtype=torch.bool), {}).scatter(
        -1, x[..., None], 0.0
    )
    expected = sedd(weights, x, sigma, sizes.get("heads", HEADS))
    assert expected.std() > 0.3, "the output is not constant"
    torch.testing.assert_close(raw, expected, rtol=1e-5, atol=1e-5)


def test_every_weight_and_convention_matters(file):
    """Reversing any weight, or using the other GELU, changes the logits."""
    weights = made()
    x, sigma = states(IDS)
    plain = sedd(weights, x, sigma)
    for name in weights:
        if name != "rotary_emb.inv_freq":
            changed = weights | {name: weights[name].flip(0)}
            assert (sedd(changed, x, sigma) - plain).abs().max() > 1e-3, name
    model = ours(weights, mlp="gelu")
    SEDD.load(file(weights), model)
    raw = model(State.of(x), sigma, torch.ones(x.shape, dtype=torch.bool), {}).scatter(
        -1, x[..., None], 0.0
    )
    assert (raw - plain).abs().max() > 2e-5


def on_page(language: str) -> str:
    """Return the code block about SEDD of docs/load-weights.md in a language."""
    page = (Path(__file__).parents[3] / "docs/load-weights.md").read_text(
        encoding="utf-8"
    )
    page = page.split("\n## SEDD\n")[1]
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return found


def test_parameter_count_of_sedd_small(tmp_path):
    """169,625,681 parameters with the vocabulary of GPT-2, and one more row at both ends for the absorbing model."""
    with torch.device("meta"):
        shapes = {
            name: torch.empty(weight.shape)
            for name, weight in made(4, 768, 12, 128, 12).items()
        }
    shapes["rotary_emb.inv_freq"] = 10_000.0 ** -(torch.arange(32).float() / 32)
    for rows, total in ((50_257, 169_625_681), (50_258, 169_627_218)):
        for name in ("vocab_embed.embedding", "output_layer.linear.weight"):
            shapes[name] = torch.empty(rows, 768, device="meta")
        shapes["output_layer.linear.bias"] = torch.empty(rows, device="meta")
        options = options_of_sedd(shapes)
        assert (
            options["width"],
            options["depth"],
            options["cond"],
            options["block"]["heads"],
        ) == (
            768,
            12,
            128,
            12,
        )
        with torch.device("meta"):
            model = (
                default_catalog()
                .parse("model", options)
                .build(TokenSpace((Field("text", 1024, rows),)))
            )
        assert sum(p.numel() for p in model.parameters()) == total
        expected = SEDD.weights(shapes)
        assert {key: value.shape for key, value in model.state_dict().items()} == {
            key: value.shape for key, value in expected.items()
        }
        if rows == 50_257:
            (tmp_path / "sedd.toml").write_text(on_page("toml"))
            assert load_experiment(
                tmp_path / "sedd.toml"
            ).experiment.model == default_catalog().parse("model", options)


def test_the_code_of_the_page_runs(file, monkeypatch):
    """On a small model, of the same experiment otherwise."""
    path = file(made(256, 8, 2, 4, 1))
    toml = (
        on_page("toml")
        .replace("width = 768", "width = 8")
        .replace("depth = 12", "depth = 1")
    )
    toml = (
        toml.replace("cond = 128", "cond = 4")
        .replace("heads = 12", "heads = 2")
        .replace("gpt2", "bytes")
    )
    toml = toml.replace("length = 1024", "length = 16").replace(
        '"ancestral"', '{ use = "ancestral", steps = 2 }'
    )
    path.with_name("sedd.toml").write_text(toml)
    monkeypatch.chdir(path.parent)
    names: dict[str, object] = {}
    exec(on_page("python"), names)  # the page itself
    assert names["samples"].shape == (2, 16)


def without(weights, prefix):
    return {
        name: weight for name, weight in weights.items() if not name.startswith(prefix)
    }


@pytest.mark.parametrize(
    ("changed", "convert", "code"),
    [
        (lambda w: without(w, "blocks.0.norm2"), SEDD.weights, "misfit"),
        (
            lambda w: w | {"blocks.1.attn_qvk.weight": torch.zeros(1)},
            SEDD.weights,
            "misfit",
        ),
        (lambda w: {}, SEDD.weights, "misfit"),
        (lambda w: without(w, "blocks.0."), SEDD.weights, "misfit"),
        (
            lambda w: w | {"rotary_emb.inv_freq": torch.ones(4)},
            SEDD.weights,
            "misfit",
        ),
    ],
)
def test_other_weights_are_rejected(changed, convert, code, refused):
    with refused(code):
        convert(changed(made()))


def test_bfloat16_weights_are_converted_to_float32(file):
    weights = {name: weight.to(torch.bfloat16) for name, weight in made().items()}
    model = ours(made())
    SEDD.load(file(weights), model)
    for name, weight in SEDD.weights(weights).items():
        own = model.get_parameter(name)
        assert own.dtype == torch.float32
        assert torch.equal(own, weight.float())


def test_mdlm_ignores_the_noise_level() -> None:
    """`time_conditioning = False` passes sigma = 0 at every time."""
    theirs = made()
    prefixed = {f"backbone.{name}": weight for name, weight in theirs.items()}
    spec = default_catalog().parse("model", options_of_sedd(theirs))
    model = spec.build(TokenSpace((Field("text", 6, 11, mask=10),))).eval()
    model.load_state_dict(MDLM.weights(prefixed))
    assert MDLM.rename(prefixed).keys() == model.state_dict().keys()
    ids, valid = torch.randint(0, 11, (2, 6)), torch.ones(2, 6, dtype=torch.bool)
    expected = sedd(theirs, ids, torch.zeros(2))
    own = ids[..., None]  # SEDD sets the score of the id itself to 0
    for level in (0.0, 3.0):
        ours = model(State.of(ids), torch.full((2,), level), valid, {})
        torch.testing.assert_close(
            ours.scatter(-1, own, 0.0),
            expected.scatter(-1, own, 0.0),
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_bd3_lm_is_the_layout_of_mdlm_with_blocks(size: int) -> None:
    """Published weights of BD3-LM have the names of MDLM; blocks are in the attention mask of [x_t | x_0]."""
    theirs = made()
    spec = default_catalog().parse(
        "model", {**options_of_sedd(theirs), "block_size": size}
    )
    model = spec.build(TokenSpace((Field("text", LENGTH, IDS, mask=10),))).eval()
    prefixed = {f"backbone.{name}": weight for name, weight in theirs.items()}
    model.load_state_dict(spec.rename("mdlm", prefixed))
    x, x0 = (torch.randint(0, IDS, (3, LENGTH)) for _ in range(2))
    expected = sedd(theirs, x, torch.zeros(3), x0=x0, size=size)
    context = Context(State.of(x0), torch.zeros(3))
    found = model(
        State.of(x),
        torch.rand(3, LENGTH),
        torch.ones(3, LENGTH, dtype=torch.bool),
        {},
        context=context,
    )
    own = x[..., None]  # SEDD sets the score of the id itself to 0
    torch.testing.assert_close(
        found.scatter(-1, own, 0.0), expected, rtol=1e-5, atol=1e-5
    )
    assert (
        size == LENGTH
        or (sedd(theirs, x, torch.zeros(3)) - expected).abs().max() > 0.01
    )


@pytest.mark.parametrize(
    ("layout", "process", "block_size"),
    [("sedd", "uniform", None), ("mdlm", "absorbing", None), ("mdlm", "absorbing", 4)],
    ids=["sedd", "mdlm", "bd3-lm"],
)
def test_likelihoods_of_published_layouts_are_certified(
    tmp_path, layout, process, block_size
) -> None:
    (tmp_path / "a.txt").write_text("abcdefghij" * 40)
    data = {"use": "text-files", "paths": [str(tmp_path / "a.txt")], "valid": 0.2}
    # Ten letters, unknown ones, and MASK under absorbing noise
    weights = made(ids=11 + (process == "absorbing"))
    model = {"use": "denoiser", **options_of_sedd(weights)}
    if layout == "mdlm":
        weights = {f"backbone.{name}": weight for name, weight in weights.items()}
    if block_size is not None:
        model["block_size"] = block_size
    save_file(weights, tmp_path / "start.safetensors")
    start = {
        "start_from": str(tmp_path / "start.safetensors"),
        "start_layout": layout,
        "threads": 1,
    }
    sampler = "ancestral"
    if block_size is not None:
        sampler = {"use": "blocks", "size": block_size, "inner": "ancestral"}
    experiment = {
        "name": "imported",
        "process": {"use": process, "level": "sigma"},
        "loss": "masked-ce" if process == "absorbing" else "score-entropy",
        "sampler": sampler,
        "task": {
            "use": "language-model",
            "length": 8,
            "tokenizer": "chars",
            "data": data,
        },
        "model": model,
        "train": {"device": "cpu", **start},
    }
    file = tmp_path / "exp.toml"
    file.write_text(tomlkit.dumps(experiment))
    assert main(["certify", str(file), "-n", "2", "--draws", "2", "--tight", "1"]) == 0
    certificate = tmp_path / "certificate" / "certificate.json"
    assert main(["certify", "--verify", str(certificate)]) == 0
