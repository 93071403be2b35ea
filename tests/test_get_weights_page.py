"""The experiments of docs/get-weights.md are valid, the first is GETRegionPretrain, and runs begin with its weights."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from rich.console import Console
from safetensors.torch import load_file

from dither.core_blocks.convert.get import weights_of_get
from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.launch import run
from dither.registry.config.errors import Refused

torch.set_num_threads(1)
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/get-weights.md").read_text(encoding="utf-8")
SMALL = (
    "task.regions=6",
    "model.width=24",
    "model.depth=2",
    "train.steps=2",
    "train.batch_size=2",
    "train.device='cpu'",
    "evaluate.samples=2",
    "sample.count=1",
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


PRETRAIN, LORA, EXPRESSION = blocks("toml")


def made(width: int, depth: int, features: int = 283) -> dict[str, torch.Tensor]:
    """Weights of a GET, as Lightning saves them."""
    shapes = {
        "mask_token": (1, 1, width),
        "cls_token": (1, 1, width),
        "region_embed.embed.weight": (width, features),
        "region_embed.embed.bias": (width,),
        "encoder.norm.weight": (width,),
        "encoder.norm.bias": (width,),
        "head_mask.weight": (features, width),
        "head_mask.bias": (features,),
    }
    for n in range(depth):
        block = f"encoder.blocks.{n}"
        shapes |= {f"{block}.attn.qkv.weight": (3 * width, width), f"{block}.attn.proj.weight": (width, width)}
        shapes |= {f"{block}.mlp.fc1.weight": (4 * width, width), f"{block}.mlp.fc1.bias": (4 * width,)}
        shapes |= {f"{block}.mlp.fc2.weight": (width, 4 * width)}
        for name in ("q_bias", "v_bias", "proj.bias"):
            shapes |= {f"{block}.attn.{name}": (width,)}
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "mlp.fc2.bias"):
            shapes |= {f"{block}.{name}": (width,)}
    generator = torch.Generator().manual_seed(0)
    return {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the experiments of the page, and the weights that the first begins with."""
    (tmp_path / "get.toml").write_text(PRETRAIN)
    (tmp_path / "lora.toml").write_text(f'extends = "get.toml"\n{LORA}')
    (tmp_path / "expression.toml").write_text(f'extends = "get.toml"\n{EXPRESSION}')
    weights = {f"model.{name}": weight for name, weight in made(24, 2).items()}
    torch.save({"state_dict": weights, "epoch": 799}, tmp_path / "checkpoint.pth")
    monkeypatch.chdir(tmp_path)
    return tmp_path


HUMAN = "task.data.subset='chr21-22'"


def begun(folder: Path, name: str, *changes: str) -> tuple[dict[str, torch.Tensor], str]:
    """Run an experiment; return its last weights, and what it said."""
    console = Console(file=io.StringIO(), width=200)
    loaded = load_experiment(folder / name, [*SMALL, *([] if name == "expression.toml" else [HUMAN]), *changes])
    assert run(loaded, folder / "runs", [], console=console) == 0
    (path,) = (folder / "runs").glob("*/checkpoints/*/model.safetensors")
    return load_file(path), console.file.getvalue()


def test_the_first_experiment_is_get_region_pretrain(folder):
    loaded = load_experiment(folder / "get.toml")
    space = loaded.experiment.task.space()
    assert space.width == 283
    with torch.device("meta"):
        model = loaded.experiment.model.build(space)
    assert sum(weight.numel() for weight in model.parameters()) == 85_484_059
    weights = made(768, 12)
    wanted = {name: weight.shape for name, weight in weights_of_get(weights).items()}
    assert {name: weight.shape for name, weight in model.state_dict().items()} == wanted


def test_a_run_begins_with_the_weights_of_the_file(folder):
    found, _ = begun(folder, "get.toml", "train.steps=0")
    for name, weight in weights_of_get(made(24, 2)).items():
        assert torch.equal(found[name], weight), name


@pytest.mark.parametrize(
    ("changes", "path", "code"),
    [
        (["train.start_layout='gte'"], ("train", "start_layout"), "unknown-value"),
        (["train.lora={on=['attention']}", "train.freeze=['head.*']"], ("train", "freeze"), "misfit"),
    ],
)
def test_options_that_do_not_go_together(folder, changes, path, code):
    with pytest.raises(Refused) as refused:
        load_experiment(folder / "get.toml", changes)
    assert [(problem.path, problem.code) for problem in refused.value.problems] == [(path, code)]
    with pytest.raises(Refused, match="start_layout requires start_from"):
        load_experiment(folder / "get.toml", [], ["train.start_from"])


def test_the_code_of_the_page_runs(folder):
    """On a small model, of the same experiment otherwise."""
    toml = PRETRAIN.replace("width = 768", "width = 24").replace("depth = 12", "depth = 2")
    toml = toml.replace("regions = 200", "regions = 6")
    toml = toml.replace('"human-dhs"', '{ use = "human-dhs", subset = "chr21-22" }')
    (folder / "get.toml").write_text(toml)
    names: dict[str, object] = {}
    (code,) = blocks("python")
    exec(code, names)  # the page itself
    assert names["samples"].shape == (1, 6, 283)


def store(folder: Path, regions: int = 120) -> np.ndarray:
    """Write the store that the page names: expression follows from the first motifs and from accessibility."""
    generator = np.random.default_rng(0)
    motifs = generator.random((3 * regions, 282), np.float32)
    atpm = generator.random(3 * regions, np.float32)
    expression = np.stack([motifs[:, 0] + 3 * atpm, 2 * motifs[:, 1]], -1)
    group = zarr.create_group(str(folder / "astrocyte.zarr"), zarr_format=2)
    places = [f"chr{number}:{1000 * n}-{1000 * n + 500}" for number in (1, 2, 3) for n in range(regions)]
    group.create_array("peak_names", data=np.array(places))
    group.create_array("motif_names", data=np.array([f"m{n}" for n in range(282)]))
    group.create_array("data", data=motifs)
    group.create_array("atpm/astrocyte", data=atpm)
    for strand, values in zip(("positive", "negative"), expression.T, strict=True):
        group.create_array(f"expression_{strand}/astrocyte", data=np.ascontiguousarray(values))
    return expression


@pytest.mark.parametrize("loss", ["mse", "poisson"])
def test_expression_is_predicted_from_the_other_columns(folder, loss):
    expression = store(folder)
    assert expression.std() > 0.5
    changes = [f"loss='{loss}'", "train.steps=60", "train.log_every=10", "train.optimizer.lr=0.01", "train.ema=0"]
    found, said = begun(folder, "expression.toml", *changes)
    assert "1 weights without counterpart" not in said
    assert "head.linear.weight, head.linear.bias" in said
    assert found["embedding.linear.weight"].shape == (24, 283)
    assert found["head.linear.weight"].shape == (2, 24)
    (path,) = (folder / "runs").glob("*")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line and "lr" in line]
    assert losses[-1] < losses[0] - 0.05, losses
    (samples,) = path.glob("samples/*/samples.safetensors")
    drawn = load_file(samples)["samples"]
    assert drawn[..., 283:].min() > 0
