"""The experiment of docs/sedd.md is valid, is the model that SEDD-small is, and its code runs as it stands."""

import re
from pathlib import Path

import torch
from safetensors.torch import save_file

from dither.core_blocks.convert.sedd import options_of_sedd
from dither.engine.config.load_experiment import load_experiment
from dither.registry import default_catalog

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/sedd.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


def made(ids: int, width: int, heads: int, cond: int, depth: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Weights of a SEDD."""
    outer = {
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
    inner = {
        "norm1.weight": (width,),
        "attn_qkv.weight": (3 * width, width),
        "attn_out.weight": (width, width),
        "norm2.weight": (width,),
        "mlp.0.weight": (4 * width, width),
        "mlp.0.bias": (4 * width,),
        "mlp.2.weight": (width, 4 * width),
        "mlp.2.bias": (width,),
        "adaLN_modulation.weight": (6 * width, cond),
        "adaLN_modulation.bias": (6 * width,),
    }
    shapes = outer | {f"blocks.{n}.{name}": shape for n in range(depth) for name, shape in inner.items()}
    weights = {name: torch.zeros(shape, device=device) for name, shape in shapes.items()}
    half = width // heads // 2
    return weights | {"rotary_emb.inv_freq": 10_000.0 ** -(torch.arange(half).float() / half)}


def test_the_experiment_of_the_page_is_sedd_small(tmp_path):
    (tmp_path / "sedd.toml").write_text(block("toml"))
    options = options_of_sedd(made(50_257, 768, 12, 128, 12, "meta"))
    assert load_experiment(tmp_path / "sedd.toml").experiment.model == default_catalog().parse("model", options)


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    """On a small model, of the same experiment otherwise."""
    toml = block("toml").replace("width = 768", "width = 8").replace("depth = 12", "depth = 1")
    toml = toml.replace("cond = 128", "cond = 4").replace("heads = 12", "heads = 2").replace("gpt2", "bytes")
    toml = toml.replace("length = 1024", "length = 16").replace('"ancestral"', '{ use = "ancestral", steps = 2 }')
    (tmp_path / "sedd.toml").write_text(toml)
    save_file(made(256, 8, 2, 4, 1), tmp_path / "sedd.safetensors")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(block("python"), names)  # the page itself
    assert names["samples"].shape == (2, 16)
