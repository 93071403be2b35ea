"""Runs that start from the weights of others, freeze some, or train low-rank updates."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dither.engine.checkpoints.checkpoint import Damaged
from dither.engine.cli import main
from dither.engine.config.options import LoRA
from dither.engine.optimizers.components import AdamW
from dither.engine.runs.exports import export_adapter, export_run, load
from dither.engine.runs.loading import start_from
from dither.engine.runs.run import DAMAGED, run
from dither.engine.training.lora import LowRank, add_lora, merged
from dither.engine.training.peft_adapter import read_adapter, write_adapter
from dither.registry.config.errors import Refused


def lora(model, *on, rank=2, alpha=2.0, whole=(), seed=0):
    return add_lora(
        model, LoRA(rank=rank, alpha=alpha, on=list(on), whole=list(whole)), seed
    )


def net():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "table": nn.Embedding(7, 6),
            "body": nn.Sequential(
                nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4, bias=False)
            ),
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


def test_trained_parameters():
    model = net()
    lora(model, "body", rank=3, alpha=8.0, whole=["head.*"])
    trained = {
        name: weight.numel()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
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
    assert sum(weight.numel() for group in groups for weight in group["params"]) == sum(
        trained.values()
    )


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


def test_unknown_names(refusal):
    refused = refusal(lora, net(), "bodi", "head", "norm", whole=["haed.weight"])
    problems = [(problem.path, problem.code) for problem in refused.problems]
    paths = [
        ("train", "lora", "on", 0),
        ("train", "lora", "on", 2),
        ("train", "lora", "whole", 0),
    ]
    assert problems == [(path, "unknown-value") for path in paths], (
        "norms are not matrices"
    )
    assert refused.problems[0].help == 'did you mean "body"?'
    assert refused.problems[2].help == 'did you mean "head.weight"?'


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("body", ["body.0.weight", "body.2.weight"]),
        ("body.0", ["body.0.weight"]),
        ("*.2", ["body.2.weight"]),
        ("bod?", ["body.0.weight", "body.2.weight"]),
        ("head", ["head.weight"]),
        ("*", ["table.weight", "body.0.weight", "body.2.weight", "head.weight"]),
    ],
)
def test_patterns_choose_matrices_and_the_initial_model_is_unchanged(pattern, chosen):
    plain, changed, ids = net(), net(), torch.arange(7)
    assert lora(changed, pattern, rank=3, alpha=8.0) == chosen
    assert torch.equal(forward(plain, ids), forward(changed, ids))
    assert not torch.equal(forward(plain, ids), forward(randomize_b(changed), ids))


def test_tied_matrix(refused):
    model = net()
    model["again"] = nn.Linear(6, 7, bias=False)
    model["again"].weight = model["table"].weight
    with refused("misfit"):
        lora(model, "again")
    lora(model, "body")


LORA = (
    "train.lora.on=['body', 'time']",
    "train.lora.rank=2",
    "train.lora.whole=['head.*']",
)


@pytest.fixture
def start(start):
    return lambda *changes: start(*changes)[1]


def weights(path, name="ema", step=20):
    return load_file(path / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors")


def test_run_trains_updates_only(start, console):
    base = start()
    tuned = start(f"train.start_from={base}", *LORA)
    before, after = weights(base), weights(tuned, "model")
    assert torch.equal(
        after["body.0.parametrizations.weight.original"], before["body.0.weight"]
    )
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
    for name in ("model", "ema", "optimizer"):
        file = f"checkpoints/step-00000020/{name}.safetensors"
        assert (half / file).read_bytes() == (whole / file).read_bytes(), name


def test_start_from_loads_averaged_weights_and_freeze_holds_them(start):
    first = start()
    names = sorted(weights(first))
    second = start(
        "train.steps=2", f"train.start_from={first}", f"train.freeze=['{names[0]}']"
    )
    assert torch.equal(weights(second, "model", 2)[names[0]], weights(first)[names[0]])
    assert any(
        not torch.equal(weights(second, "model", 2)[name], weights(first)[name])
        for name in names[1:]
    )
    third = start("train.steps=0", f"train.start_from={first}")
    assert all(
        torch.equal(weight, weights(first)[name])
        for name, weight in weights(third, "model", 0).items()
    )


def test_weights_that_do_not_match_are_listed(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    given = {
        "0.weight": torch.ones(3, 2),
        "0.bias": torch.ones(4),
        "2.weight": torch.ones(1),
    }
    save_file(given, tmp_path / "x.safetensors")
    before = model[1].weight.clone()
    with pytest.raises(Refused) as refused:
        start_from(model, tmp_path / "x.safetensors")
    assert refused.value.codes == 3 * ["shape-mismatch"]
    message = str(refused.value)
    for names in (
        "1.weight, 1.bias",
        "2.weight",
        "0.bias 4 for 3",
        "train.start_partial",
    ):
        assert names in message
    assert not model[0].weight.eq(1).all(), "nothing is loaded when it is refused"
    assert len(start_from(model, tmp_path / "x.safetensors", partial=True)) == 3
    assert model[0].weight.eq(1).all()
    assert torch.equal(model[1].weight, before)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda tensor: tensor.to(torch.int8), "shape-mismatch"),
        (lambda tensor: tensor / 0, "non-finite"),
    ],
)
def test_quantised_and_non_finite_tensors_are_refused(tmp_path, refusal, change, code):
    model = adapted()
    write_adapter(model, OPTIONS, tmp_path / "a")
    file = tmp_path / "a" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = sorted(tensors)[0]
    save_file({**tensors, name: change(tensors[name])}, file)
    assert refusal(read_adapter, tmp_path / "a", model, OPTIONS).codes == [code]

    other = nn.Linear(2, 3)
    weights = {"weight": change(torch.ones(3, 2)), "bias": torch.ones(3)}
    save_file(weights, tmp_path / "x.safetensors")
    assert refusal(start_from, other, tmp_path / "x.safetensors").codes == [code]


@pytest.mark.parametrize("worst", [float("nan"), float("inf"), 1e300])
def test_non_finite_weights_are_refused(tmp_path, worst, refusal):
    """1e300 is a number in the file, and none in the precision of the model."""
    model, path = (
        nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)),
        tmp_path / "x.safetensors",
    )
    good = {
        name: torch.ones_like(weight) for name, weight in model.state_dict().items()
    }
    save_file(
        good | {"1.weight": torch.tensor([[1.0, worst, 1.0]], dtype=torch.float64)},
        path,
    )
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    (problem,) = refusal(start_from, model, path).problems
    assert (problem.code, problem.path) == ("non-finite", ("train", "start_from"))
    assert problem.message.endswith(": 1.weight")
    assert all(
        torch.equal(weight, before[name]) for name, weight in model.state_dict().items()
    )
    save_file(
        {f"there.{name}": weight for name, weight in load_file(path).items()}, path
    )
    with pytest.raises(Refused, match=r"1\.weight") as refused:
        start_from(
            model, path, rename=lambda given: {name[6:]: given[name] for name in given}
        )
    assert ("there.1.weight" in str(refused.value)) == (worst != 1e300), (
        "named as in the file"
    )
    save_file({"0.weight": good["0.weight"], "other": torch.tensor(worst)}, path)
    assert start_from(model, path, partial=True), "what is not taken may be anything"


@pytest.fixture
def exported(start, tmp_path):
    """An export, with the run and the model that it is of."""
    directory = start("train.steps=1")
    export_run(directory, tmp_path / "export")
    return tmp_path / "export", directory


def flip(path):
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # of a weight, which stays a number
    path.write_bytes(content)


def test_a_damaged_export_is_refused(exported, load, tmp_path, console):
    folder, _ = exported
    others = tmp_path / "others"
    assert (
        run(
            load("train.steps=0", f"train.start_from={folder}"),
            others,
            [],
            console=console,
        )
        == 0
    )
    flip(folder / "weights.safetensors")
    shutil.rmtree(others)
    for path in (folder, folder / "weights.safetensors"):
        assert (
            run(
                load("train.steps=0", f"train.start_from={path}"),
                others,
                [],
                console=console,
            )
            == DAMAGED
        )
        assert not others.exists()


def test_files_of_a_damaged_checkpoint_are_refused(exported, tmp_path):
    _, directory = exported
    checkpoint = directory / "checkpoints/step-00000001"
    model = nn.Linear(1, 1)
    for part in ("model", "ema"):
        flip(checkpoint / f"{part}.safetensors")
        with pytest.raises(Damaged, match=f"{part}.safetensors does not match"):
            start_from(model, checkpoint / f"{part}.safetensors")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "MANIFEST.json").write_text("{}")  # of another program
    assert start_from(model, tmp_path / "model.safetensors") == []


@pytest.mark.parametrize("content", [None, b"", b"no tensors in here"])
def test_a_file_without_weights_is_refused(tmp_path, content, refused):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with refused("unreadable-file"):
        start_from(nn.Linear(1, 1), path)
    save_file({"other": torch.ones(1)}, path)
    with pytest.raises(Refused, match="other"):
        start_from(nn.Linear(1, 1), path, partial=True)


OPTIONS = LoRA(rank=3, alpha=5.0, on=["table", "body"], whole=["head.*"])


class Net(nn.Module):
    """The modules of `net` with a forward pass, as peft wants it."""

    def __init__(self, seed=0):
        super().__init__()
        self.modules_by_name = net()
        for name, module in self.modules_by_name.items():
            self.add_module(name, module)
        del self.modules_by_name
        torch.manual_seed(seed)
        nn.init.normal_(self.head.bias)

    def forward(self, ids):
        return self.head(self.norm(self.body(self.table(ids))))


def adapted(seed=1):
    model = Net()
    add_lora(model, OPTIONS)
    nn.init.normal_(randomize_b(model, seed).head.weight)
    return model


@pytest.mark.slow
def test_adapters_of_peft_have_equal_logits(tmp_path):
    peft = pytest.importorskip("peft")
    ids = torch.arange(7)
    ours = adapted()
    write_adapter(ours, OPTIONS, tmp_path / "ours")
    theirs = peft.PeftModel.from_pretrained(Net(seed=2), tmp_path / "ours")
    torch.testing.assert_close(theirs(ids), ours(ids))

    config = peft.LoraConfig(
        r=3,
        lora_alpha=5,
        target_modules=["table", "body.0", "body.2"],
        modules_to_save=["head"],
        init_lora_weights=False,
        lora_dropout=0.1,
    )
    theirs = peft.get_peft_model(Net(), config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    model = Net()
    add_lora(model, OPTIONS)
    assert not torch.allclose(model(ids), theirs(ids))
    read_adapter(tmp_path / "theirs", model, OPTIONS)
    torch.testing.assert_close(model(ids), theirs(ids))


def test_an_adapter_comes_back_and_mistakes_are_listed(tmp_path, refusal):
    first = adapted()
    write_adapter(first, OPTIONS, tmp_path / "a")
    second = adapted(seed=2)
    read_adapter(tmp_path / "a", second, OPTIONS)
    assert torch.equal(first(torch.arange(7)), second(torch.arange(7)))

    other = LoRA(rank=2, alpha=4.0, on=["table"])
    assert refusal(read_adapter, tmp_path / "a", second, other).codes == ["misfit"] * 2
    fewer = Net()
    add_lora(fewer, OPTIONS.model_copy(update={"on": ["body"], "whole": []}))
    refused = refusal(read_adapter, tmp_path / "a", fewer, OPTIONS)
    # Both updates of the table, and weight and bias of the head.
    assert refused.codes == ["shape-mismatch"] * 4
    config = tmp_path / "a" / "adapter_config.json"
    config.write_text(
        config.read_text().replace('"use_dora": false', '"use_dora": true')
    )
    assert "use_dora" in str(refusal(read_adapter, tmp_path / "a", second, OPTIONS))
    config.write_text("[]")
    assert refusal(read_adapter, tmp_path / "a", second, OPTIONS).codes == [
        "damaged-file"
    ]
    config.unlink()
    assert refusal(read_adapter, tmp_path / "a", second, OPTIONS).codes == [
        "file-not-found"
    ]

    part = Net()
    options = OPTIONS.model_copy(update={"whole": ["head.bias"]})
    add_lora(part, options)
    assert refusal(write_adapter, part, options, tmp_path / "b").codes == ["misfit"]


@pytest.mark.parametrize(
    ("option", "value", "is_plain"),
    [
        ("lora_dropout", 0.1, True),
        ("init_lora_weights", "gaussian", True),
        ("alora_invocation_tokens", None, True),
        ("rank_pattern", None, True),
        ("an_option_of_tomorrow", False, True),
        ("init_lora_weights", "pissa_niter_4", False),
        ("init_lora_weights", "olora", False),
        ("alora_invocation_tokens", [3], False),
        ("alpha_pattern", {"table": 2}, False),
        ("bias", "lora_only", False),
        ("kasa_config", {"beta": 1.0}, False),
        ("layer_replication", [[0, 2]], False),
        ("use_bdlora", {"nblocks": 2}, False),
        ("use_rslora", True, False),
        ("an_option_of_tomorrow", 1, False),
    ],
)
def test_options_of_peft_that_change_the_result_are_refused_by_name(
    tmp_path, refusal, option, value, is_plain
):
    model = adapted()
    write_adapter(model, OPTIONS, tmp_path / "a")
    config = tmp_path / "a" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), option: value}))
    if is_plain:
        read_adapter(tmp_path / "a", model, OPTIONS)
        return
    refused = refusal(read_adapter, tmp_path / "a", model, OPTIONS)
    assert refused.codes == ["misfit"]
    assert option in str(refused)


@pytest.mark.slow
def test_an_exported_adapter_starts_another_run(start, tmp_path, refusal):
    base = start()
    tuned = start(f"train.start_from={base}", *LORA)
    files = export_adapter(tuned, tmp_path / "adapter")
    assert [file.name for file in files] == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    again = start(
        f"train.start_from={base}",
        *LORA,
        f"train.lora.start_from={tmp_path / 'adapter'}",
        "train.steps=0",
    )
    expected, found = merged(weights(tuned)), merged(weights(again, "model", 0))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    # The export of the run does not need the folder of the adapter.
    shutil.rmtree(tmp_path / "adapter")
    export_run(again, tmp_path / "exported")
    assert "adapter" not in (tmp_path / "exported" / "experiment.toml").read_text()
    assert load(tmp_path / "exported")
    assert refusal(export_adapter, base, tmp_path / "x").codes == ["misfit"]
    assert main(["export", str(tuned), "--adapter", "--push", "a/b"]) == 2
    missing = f"train.lora.start_from={tmp_path / 'adapter'}"
    assert refusal(start, *LORA, missing).codes == ["file-not-found"]
