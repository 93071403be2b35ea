"""Tasks with conditions (labels and coordinates), from the experiment file to samples."""

import re
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dither.engine.cli import main
from dither.engine.config.experiment import Experiment
from dither.engine.sampling.samples import make_samples
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer
from dither.registry.plugins.manager import load_plugins

torch.set_num_threads(1)

ENDS = {
    "labelled-features": ({"use": "regions", "position": "genomic-sinusoid"}, "features", "mse", "gaussian"),
    "labelled-text": ({"use": "tokens", "position": "genomic-sinusoid"}, "tokens", "masked-ce", "absorbing"),
}
"""Embedding, head, loss and process of each task."""
KINDS = {"use": "label", "of": "kind", "dropout": 0.2}


@cache
def catalog():
    ours = ["core-blocks", "embeddings", "engine", "losses", "processes", "tasks"]
    return load_plugins(ours, [Path(__file__).with_name("conditional_tasks.py")]).catalog


def experiment(task="labelled-text", model=None, **tables):
    embedding, head, loss, process = ENDS[task]
    tree = {
        "task": task,
        "process": process,
        "loss": loss,
        "sampler": {"use": "ancestral", "steps": 8},
        "model": {
            "use": "denoiser",
            "width": 16,
            "depth": 1,
            "embedding": embedding,
            "condition": {"use": "sum", "parts": [{"use": "level", "frequencies": 8, "time_scale": 100.0}, KINDS]},
            "block": {"use": "adaln-zero", "heads": 2, "rope": "centre", "rope_unit": 10_000.0},
            "head": head,
            **(model or {}),
        },
        "train": {
            "batch_size": 16,
            "steps": 60,
            "ema": 0.0,
            "device": "cpu",
            "optimizer": {"use": "adamw", "lr": 0.02},
        },
        **tables,
    }
    return Experiment.model_validate(tree, context={"catalog": catalog()})


@pytest.mark.parametrize("task", ENDS)
def test_guidance_strengthens_a_learned_label(task):
    """Weight 0 ignores the label, so that both kinds are sampled."""
    settings = {"count": 48, "seed": 1, "guidance": {"condition": "kind", "weight": 3.0}}
    e = experiment(task, sample=settings)
    assert not list(e.check())
    system = Diffusion.build(e)
    trainer = Trainer(system, e.train, 0)
    for _ in range(e.train.steps):
        trainer.advance()
    accuracy = {}
    for weight in (0.0, 1.0, 3.0):
        system.guidance = e.sample.guidance.model_copy(update={"weight": weight})
        metrics = make_samples(system, 48, 1).figures
        accuracy[weight] = metrics["label_accuracy"]
        assert metrics["model_calls_per_sample"] <= (1 if weight == 1 else 2) * 9
    assert accuracy[0.0] < 0.85
    assert accuracy[3.0] >= accuracy[1.0] > accuracy[0.0]
    assert accuracy[3.0] > 0.9
    system.guidance, system.labels = None, {"kind": 1}
    assert make_samples(system, 48, 1).figures["high"] > 0.75, "all samples have the label high"
    system.labels = {"kind": 0}
    assert make_samples(system, 48, 1).figures["high"] < 0.25


def test_labels_are_requested_by_name_or_number():
    by_name, by_number, left_out = (
        Diffusion.build(experiment(sample={"cond": {"kind": label}})) for label in ("high", 1, -1)
    )
    plain = Diffusion.build(experiment()).like(5, 0)
    assert plain.cond["kind"].tolist() == [0, 1, 0, 1, 0]
    for system, label in ((by_name, 1), (by_number, 1), (left_out, -1)):
        like = system.like(5, 0)
        assert like.cond["kind"].tolist() == [label] * 5
        assert torch.equal(like.cond["centre"], plain.cond["centre"])
        assert torch.equal(like.x0, plain.x0)


def labels_seen(system):
    """Record the labels that the model embeds."""
    seen = []
    embedding = system.model.condition.parts[1]
    embedding.register_forward_pre_hook(lambda module, given: seen.append(given[1]["kind"].clone()))
    return seen


def test_label_dropout_follows_from_seed_and_step():
    """A resumed run drops the same labels; evaluation drops none."""
    e = experiment()
    whole, first, second = (Trainer(Diffusion.build(e), e.train, 0) for _ in range(3))
    seen, before, after = (labels_seen(trainer.system) for trainer in (whole, first, second))
    for _ in range(6):
        whole.advance()
    assert all((kind < 0).any() for kind in seen)
    assert not torch.equal(seen[0] < 0, seen[1] < 0)
    for _ in range(3):
        first.advance()
    second.system.model.load_state_dict(first.system.model.state_dict())
    second.load_state(*first.state())
    for _ in range(3):
        second.advance()
    assert all(torch.equal(a, b) for a, b in zip(seen, [*before, *after], strict=True))
    ends = whole.system.model.state_dict(), second.system.model.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(*(end.values() for end in ends), strict=True))
    whole.system.eval()
    clean = whole.system.task.batch("valid", range(16))
    whole.system.denoise(whole.system.process.prior(clean), torch.full((16,), 0.5), clean)
    assert torch.equal(seen[-1], clean.cond["kind"])


def test_label_dropout_is_the_same_on_every_rank():
    system = Diffusion.build(experiment()).train()
    clean, seen = system.task.batch("train", range(32)), labels_seen(system)
    for rows in (None, slice(0, 16), slice(16, 32)):
        torch.manual_seed(5)
        system(*(part if rows is None else part[rows] for part in system.prepare(clean)))
    whole, *parts = seen
    assert (whole < 0).any()
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("block_size", [None, 4])
def test_label_dropout_covers_clean_and_noised_halves(block_size):
    """Under block diffusion both halves of a sample have the same label."""
    sampler = {"use": "blocks", "size": 4} if block_size else {"use": "ancestral", "steps": 8}
    e = experiment(model={"block_size": block_size} if block_size else {}, sampler=sampler)
    assert not list(e.check())
    system = Diffusion.build(e).train()
    seen = labels_seen(system)
    system(system.task.batch("train", range(32)))
    assert len(seen) == (2 if block_size else 1)
    assert (seen[0] < 0).any()
    assert torch.equal(seen[0], seen[-1])


NO_DROPOUT = {"condition": {"use": "sum", "parts": ["level", {"use": "label", "of": "kind"}]}}


@pytest.mark.parametrize(
    ("tables", "path"),
    [
        ({"sample": {"guidance": {"condition": "kin"}}}, "sample.guidance.condition"),
        ({"sample": {"guidance": {"condition": "centre"}}}, "sample.guidance.condition"),  # a number, not a label
        ({"sample": {"guidance": {"condition": "kind"}}, "model": NO_DROPOUT}, "sample.guidance.condition"),
        ({"sample": {"guidance": {"condition": "kind"}}, "model": {"condition": "level"}}, "sample.guidance.condition"),
        ({"sample": {"cond": {"kind": "hih"}}}, "sample.cond.kind"),
        ({"sample": {"cond": {"kind": 2}}}, "sample.cond.kind"),
        ({"sample": {"cond": {"kind": -2}}}, "sample.cond.kind"),
        ({"sample": {"cond": {"cell": 1}}}, "sample.cond.cell"),
        ({"model": {"condition": {"use": "sum", "parts": ["level", "label"]}}}, "model.condition.parts.1.of"),
    ],
)
def test_invalid_conditions_and_guidance(tables, path):
    (misfit,) = experiment(**tables).check()
    assert ".".join(map(str, misfit.path)) == path
    for text, suggestion in (('"kin"', "kind"), ("'hih'", "high")):
        assert text not in misfit.message or suggestion in misfit.help


FILE = """
plugins = ["./conditional_tasks.py"]
task = "labelled-text"
process = "absorbing"
loss = "masked-ce"
sampler = { use = "ancestral", steps = 4 }

[model]
use = "denoiser"
width = 16
depth = 1
block = { use = "adaln-zero", heads = 2 }

[model.condition]
use = "sum"
parts = ["level", { use = "label", of = "kind", dropout = 0.1 }]

[train]
steps = 2
batch_size = 8
device = "cpu"

[sample]
count = 2
guidance = { condition = "kind", weight = 2.0 }
"""


def test_from_a_file_to_samples_and_to_other_samples_of_the_same_run(tmp_path, capsys):
    """The second drawing asks for another label and no guidance, and costs half as much; weights are left alone."""
    shutil.copy(Path(__file__).with_name("conditional_tasks.py"), tmp_path)
    (tmp_path / "exp.toml").write_text(FILE)
    assert main(["run", str(tmp_path / "exp.toml"), "--runs", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    calls = []
    for name, changes in (("a", []), ("b", ["sample.guidance.weight=1", "sample.cond.kind=high", "sampler.steps=4"])):
        arguments = [word for change in changes for word in ("--set", change)]
        assert main(["sample", str(run), "-n", "8", "--out", str(tmp_path / name), *arguments]) == 0
        calls.append(float(re.search(r"model_calls_per_sample\D*([\d.]+)", capsys.readouterr().out)[1]))
        drawn = load_file(tmp_path / name / "samples.safetensors")["samples"]
        assert drawn.shape == (8, 8)
    assert calls[0] == 2 * calls[1]
    assert main(["sample", str(run), "--set", "model.width=8", "--set", "sample.cond.kind=hihg"]) == 2
    assert "error: model.width: " in capsys.readouterr().err
