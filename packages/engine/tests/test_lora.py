"""LoRA: initial identity, exact gradients, frozen base, and equal weights when merged, exported and resumed."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dither.engine.config.options import LoRA
from dither.engine.optimizers.components import AdamW
from dither.engine.runs.exports import export_run, load
from dither.engine.runs.launch import run
from dither.engine.training.lora import LowRank, add_lora, merged
from dither.registry.config.errors import Refused


def lora(model, *on, rank=2, alpha=2.0, whole=(), seed=0):
    return add_lora(model, LoRA(rank=rank, alpha=alpha, on=list(on), whole=list(whole)), seed)


def net():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "table": nn.Embedding(7, 6),
            "body": nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4, bias=False)),
            "norm": nn.LayerNorm(4),
            "head": nn.Linear(4, 7),
        }
    )


def forward(net, ids):
    return net["head"](net["norm"](net["body"](net["table"](ids))))


def randomize_b(net, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, LowRank):
            nn.init.normal_(module.B, generator=generator)
    return net


def test_initial_model_is_unchanged():
    plain, changed, ids = net(), net(), torch.arange(7)
    assert lora(changed, "*", rank=3, alpha=8.0) == [
        "table.weight",
        "body.0.weight",
        "body.2.weight",
        "head.weight",
    ]
    assert torch.equal(forward(plain, ids), forward(changed, ids))
    assert not torch.equal(forward(plain, ids), forward(randomize_b(changed), ids))


def test_trained_parameters():
    model = net()
    lora(model, "body", rank=3, alpha=8.0, whole=["head.*"])
    trained = {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}
    stem = "parametrizations.weight.0"
    assert trained == {
        f"body.0.{stem}.A": 3 * 6,
        f"body.0.{stem}.B": 5 * 3,
        f"body.2.{stem}.A": 3 * 5,
        f"body.2.{stem}.B": 4 * 3,
        "head.weight": 28,
        "head.bias": 7,
    }
    groups = AdamW().build(model).param_groups
    assert sum(weight.numel() for group in groups for weight in group["params"]) == sum(trained.values())


def test_gradients():
    """dA = s B' G and dB = s G A' with G the gradient of the full matrix, and finite differences."""
    model = nn.Sequential(nn.Linear(5, 4)).double()
    lora(model, "0", alpha=6.0)
    part = randomize_b(model)[0].parametrizations.weight[0]
    x = torch.randn(3, 5, dtype=torch.float64)
    whole = model[0].weight.detach().requires_grad_()
    nn.functional.linear(x, whole, model[0].bias).square().sum().backward()
    model(x).square().sum().backward()
    torch.testing.assert_close(part.A.grad, 3.0 * part.B.T @ whole.grad)
    torch.testing.assert_close(part.B.grad, 3.0 * whole.grad @ part.A.T)
    assert model[0].parametrizations.weight.original.grad is None

    def changed(a, b):
        return torch.func.functional_call(part, {"A": a, "B": b}, (whole.detach(),))

    assert torch.autograd.gradcheck(changed, (part.A, part.B))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_merged_weights_are_bit_equal(precision):
    model, ids = net(), torch.arange(7)
    lora(model, "*", rank=3, alpha=5.0)
    randomize_b(model)
    plain = net()
    plain.load_state_dict(merged(model.state_dict()))
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        assert torch.equal(forward(plain, ids), forward(model, ids))
        for name in ("table", "head"):
            assert torch.equal(plain[name].weight, model[name].weight)
    assert merged(plain.state_dict()).keys() == plain.state_dict().keys()


def test_unknown_names():
    with pytest.raises(Refused) as refused:
        lora(net(), "bodi", "head", "norm", whole=["haed.weight"])
    problems = [(problem.path, problem.code) for problem in refused.value.problems]
    paths = [("train", "lora", "on", 0), ("train", "lora", "on", 2), ("train", "lora", "whole", 0)]
    assert problems == [(path, "unknown-value") for path in paths], "norms are not matrices"
    assert refused.value.problems[0].help == 'did you mean "body"?'
    assert refused.value.problems[2].help == 'did you mean "head.weight"?'


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("body", ["body.0.weight", "body.2.weight"]),
        ("body.0", ["body.0.weight"]),
        ("*.2", ["body.2.weight"]),
        ("bod?", ["body.0.weight", "body.2.weight"]),
        ("head", ["head.weight"]),
    ],
)
def test_patterns(pattern, chosen):
    assert lora(net(), pattern, rank=1, alpha=1.0) == chosen


def test_tied_matrix():
    model = net()
    model["again"] = nn.Linear(6, 7, bias=False)
    model["again"].weight = model["table"].weight
    with pytest.raises(Refused) as refused:
        lora(model, "again")
    assert refused.value.codes == ["misfit"]
    lora(model, "body")


LORA = ("train.lora.on=['body', 'time']", "train.lora.rank=2", "train.lora.whole=['head.*']")


@pytest.fixture
def start(start):
    """Run the experiment and return the run directory."""
    return lambda *changes: start(*changes)[1]


def weights(path, name="average", step=20):
    return load_file(path / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors")


def test_run_trains_updates_only(start, console):
    base = start()
    tuned = start(f"train.start_from={base}", *LORA)
    before, after = weights(base), weights(tuned, "model")
    assert torch.equal(after["body.0.parametrizations.weight.original"], before["body.0.weight"])
    assert torch.equal(after["table.weight"], before["table.weight"])
    assert after["body.0.parametrizations.weight.0.B"].any()
    assert not torch.equal(after["head.weight"], before["head.weight"])
    assert " trainable" in console.file.getvalue().replace("\n", " ")


def test_loaded_and_exported_weights_are_merged(start, tmp_path):
    tuned = start(*LORA)
    expected = merged(weights(tuned))
    export_run(tuned, tmp_path / "exported")
    again = start("train.steps=0", f"train.start_from={tuned}")
    for found in (
        load(tuned).model.state_dict(),
        load(tmp_path / "exported").model.state_dict(),
        load_file(tmp_path / "exported" / "weights.safetensors"),
        weights(again, "model", 0),
    ):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_resumed_run_is_bit_equal(start, load, tmp_path, console):
    steps = (*LORA, "train.lr_schedule=constant", "sample.count=0")
    whole, half = start(*steps), start(*steps, "train.steps=10")
    loaded = load("train.steps=20", path=half / "resolved.toml")
    assert run(loaded, tmp_path / "runs", [], half, console) == 0
    for name in ("model", "average", "optimizer"):
        file = f"checkpoints/step-00000020/{name}.safetensors"
        assert (half / file).read_bytes() == (whole / file).read_bytes(), name
