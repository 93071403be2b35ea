"""Tasks with conditions, and imputation with distribution heads and partial noise, from the experiment to samples."""

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomlkit
import torch
from safetensors.torch import load_file

from dither.embeddings.specs import check_experiment
from dither.engine.cli import main
from dither.engine.config.experiment import Experiment
from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs import evaluate_run
from dither.engine.sampling.samples import make_samples
from dither.engine.sampling.session import draw
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import evaluate
from dither.engine.training.trainer import Trainer
from dither.registry.config.errors import Refused
from dither.registry.config.validation import dump
from dither.registry.contracts.commands import RunOptions, SampleRequest
from dither.registry.contracts.protocols import Metrics
from dither.registry.contracts.records import Clean, Noise, State
from dither.registry.contracts.spaces import FeatureSpace
from dither.registry.plugins.manager import load_plugins
from dither.testing.toy_distributions import IDS, exact_outputs

ENDS = {
    "labelled-features": (
        {"use": "regions", "position": "genomic-sinusoid"},
        "features",
        "mse",
        "gaussian",
    ),
    "labelled-text": (
        {"use": "tokens", "position": "genomic-sinusoid"},
        "tokens",
        "masked-ce",
        "absorbing",
    ),
}
"""Embedding, head, loss and process of each task."""
KINDS = {"use": "label", "of": "kind", "dropout": 0.2}


@cache
def catalog():
    ours = ["core-blocks", "embeddings", "engine", "losses", "processes", "tasks"]
    return load_plugins(ours, [Path(__file__).with_name("toy_tasks.py")]).catalog


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
            "condition": {
                "use": "sum",
                "parts": [
                    {"use": "level", "frequencies": 8, "time_scale": 100.0},
                    KINDS,
                ],
            },
            "block": {
                "use": "adaln-zero",
                "heads": 2,
                "rope": "centre",
                "rope_unit": 10_000.0,
            },
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
    settings = {
        "count": 48,
        "seed": 1,
        "guidance": {"condition": "kind", "weight": 3.0},
    }
    e = experiment(task, sample=settings)
    assert not list(e.check())
    system = Diffusion.build(e)
    trainer = Trainer(system, e.train, 0)
    for _ in range(e.train.steps):
        trainer.advance()
    accuracy = {}
    for weight in (0.0, 1.0, 3.0):
        system.guidance = e.sample.guidance.model_copy(update={"weight": weight})
        metrics = make_samples(system, 48, 1).metrics
        accuracy[weight] = metrics["label_accuracy"]
        assert metrics["model_calls_per_sample"] <= (1 if weight == 1 else 2) * 9
    assert accuracy[0.0] < 0.85
    assert accuracy[3.0] >= accuracy[1.0] > accuracy[0.0]
    assert accuracy[3.0] > 0.9
    system.guidance, system.labels = None, {"kind": 1}
    assert make_samples(system, 48, 1).metrics["high"] > 0.75, (
        "all samples have the label high"
    )
    system.labels = {"kind": 0}
    assert make_samples(system, 48, 1).metrics["high"] < 0.25


def test_labels_are_requested_by_name_or_number():
    plain = Diffusion.build(experiment()).like(5, 0)
    assert plain.cond["kind"].tolist() == [0, 1, 0, 1, 0]
    for requested, label in (("high", 1), (1, 1), (-1, -1)):
        like = Diffusion.build(experiment(sample={"cond": {"kind": requested}})).like(
            5, 0
        )
        assert like.cond["kind"].tolist() == [label] * 5
        assert torch.equal(like.cond["centre"], plain.cond["centre"])
        assert torch.equal(like.x0, plain.x0)


def labels_seen(system):
    """Record the labels that the model embeds."""
    seen = []
    embedding = system.model.condition.parts[1]
    embedding.register_forward_pre_hook(
        lambda module, given: seen.append(given[1]["kind"].clone())
    )
    return seen


def test_label_dropout_follows_from_seed_and_step():
    """A resumed run drops the same labels; evaluation drops none."""
    e = experiment()
    whole, first, second = (Trainer(Diffusion.build(e), e.train, 0) for _ in range(3))
    seen, before, after = (
        labels_seen(trainer.system) for trainer in (whole, first, second)
    )
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
    assert all(
        torch.equal(a, b) for a, b in zip(*(end.values() for end in ends), strict=True)
    )
    whole.system.eval()
    clean = whole.system.task.batch("valid", range(16))
    whole.system.denoise(
        whole.system.process.prior(clean), torch.full((16,), 0.5), clean
    )
    assert torch.equal(seen[-1], clean.cond["kind"])


def test_label_dropout_is_the_same_on_every_rank():
    system = Diffusion.build(experiment()).train()
    clean, seen = system.task.batch("train", range(32)), labels_seen(system)
    for rows in (None, slice(0, 16), slice(16, 32)):
        torch.manual_seed(5)
        system(
            *(part if rows is None else part[rows] for part in system.prepare(clean))
        )
    whole, *parts = seen
    assert (whole < 0).any()
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("block_size", [None, 4])
def test_label_dropout_covers_clean_and_noised_halves(block_size):
    """Under block diffusion both halves of a sample have the same label."""
    sampler = (
        {"use": "blocks", "size": 4} if block_size else {"use": "ancestral", "steps": 8}
    )
    e = experiment(
        model={"block_size": block_size} if block_size else {}, sampler=sampler
    )
    assert not list(e.check())
    system = Diffusion.build(e).train()
    seen = labels_seen(system)
    system(system.task.batch("train", range(32)))
    assert len(seen) == (2 if block_size else 1)
    assert (seen[0] < 0).any()
    assert torch.equal(seen[0], seen[-1])


NO_DROPOUT = {
    "condition": {"use": "sum", "parts": ["level", {"use": "label", "of": "kind"}]}
}


@pytest.mark.parametrize(
    ("tables", "path"),
    [
        ({"sample": {"guidance": {"condition": "kin"}}}, "sample.guidance.condition"),
        (
            {"sample": {"guidance": {"condition": "centre"}}},
            "sample.guidance.condition",
        ),  # a number, not a label
        (
            {"sample": {"guidance": {"condition": "kind"}}, "model": NO_DROPOUT},
            "sample.guidance.condition",
        ),
        (
            {
                "sample": {"guidance": {"condition": "kind"}},
                "model": {"condition": "level"},
            },
            "sample.guidance.condition",
        ),
        ({"sample": {"cond": {"kind": "hih"}}}, "sample.cond.kind"),
        ({"sample": {"cond": {"kind": -2}}}, "sample.cond.kind"),
        ({"sample": {"cond": {"cell": 1}}}, "sample.cond.cell"),
        (
            {"model": {"condition": {"use": "sum", "parts": ["level", "label"]}}},
            "model.condition.parts.1.of",
        ),
    ],
)
def test_invalid_conditions_and_guidance(tables, path):
    (misfit,) = experiment(**tables).check()
    assert ".".join(map(str, misfit.path)) == path
    for text, suggestion in (('"kin"', "kind"), ("'hih'", "high")):
        assert text not in misfit.message or suggestion in misfit.help


def test_from_a_file_to_samples_and_to_other_samples_of_the_same_run(
    tmp_path, capsys, monkeypatch
):
    """The second drawing requests another label and no guidance, and costs half as much; weights are left alone."""
    shutil.copy(Path(__file__).with_name("toy_tasks.py"), tmp_path)
    sample = {"count": 2, "guidance": {"condition": "kind", "weight": 2.0}}
    tree = dump(
        experiment(sample=sample, sampler={"use": "ancestral", "steps": 4}), catalog()
    )
    (tmp_path / "exp.toml").write_text(
        'plugins = ["./toy_tasks.py"]\n'
        + tomlkit.dumps(tree).replace("plugins = []", "")
    )
    assert (
        main(
            [
                "run",
                str(tmp_path / "exp.toml"),
                "train.steps=2",
                "--runs",
                str(tmp_path / "runs"),
            ]
        )
        == 0
    )
    (run,) = (tmp_path / "runs").glob("*-*")
    calls = []
    for name, changes in (
        ("a", []),
        ("b", ["sample.guidance.weight=1", "sample.cond.kind=high", "sampler.steps=4"]),
    ):
        arguments = [word for change in changes for word in ("--set", change)]
        assert (
            main(
                [
                    "sample",
                    str(run),
                    "-n",
                    "8",
                    "--out",
                    str(tmp_path / name),
                    *arguments,
                ]
            )
            == 0
        )
        calls.append(
            float(
                re.search(
                    r"model_calls_per_sample\D*([\d.]+)", capsys.readouterr().out
                )[1]
            )
        )
        drawn = load_file(tmp_path / name / "samples.safetensors")["samples"]
        assert drawn.shape == (8, 8)
    assert calls[0] == 2 * calls[1]

    # Templates of a command, too, get the label that is requested.
    seen = []
    draw_set = evaluate_run.make_samples

    def make(*arguments, like, **options):
        seen.extend(like.cond["kind"].tolist())
        return draw_set(*arguments, like=like, **options)

    monkeypatch.setattr(evaluate_run, "make_samples", make)
    evaluate_run.sample_run(
        run,
        SampleRequest(count=2, out=tmp_path / "c"),
        RunOptions(changes=["sample.cond.kind=high"]),
        lambda task, n, seed: task.like(n, seed),
    )
    assert seen == [1, 1]
    assert (
        main(
            [
                "sample",
                str(run),
                "--set",
                "model.width=8",
                "--set",
                "sample.cond.kind=hihg",
            ]
        )
        == 2
    )
    assert "error: model.width: " in capsys.readouterr().err


def assemble(**changes: Any) -> Experiment:
    model = {
        "use": "denoiser",
        "width": 32,
        "depth": 1,
        "embedding": {"use": "regions", "elements": True, "position": "learned"},
        "condition": {"use": "level", "frequencies": 8},
        "block": {"use": "adaln-zero", "heads": 2},
        "head": changes.pop("head", "features"),
    }
    tree = {
        "task": "toy-features",
        "process": "masked-region",
        "model": model,
        "loss": "mse",
        "sampler": "ancestral",
    }
    return Experiment.model_validate(tree | changes, context={"catalog": catalog()})


class Pairs(Metrics):
    """Windows in which every region of a sample is one of two patterns, +1 or -1 in all columns: a mean is neither."""

    space = FeatureSpace(6, 4)

    def size(self, split: str) -> int:
        return 512

    def batch(self, split: str, rows) -> Clean:
        signs = (
            torch.randint(
                2, (512, 6, 1), generator=torch.Generator().manual_seed(len(split))
            )[list(rows)]
            * 2.0
            - 1
        )
        return Clean.of(signs.expand(-1, -1, 4).clone())

    def metrics(self):
        return self

    def update(self, clean, noised, pred, measured) -> None:
        self.x0 = pred.x0[noised.target_mask]

    def compute(self) -> dict[str, float]:
        return {"spread": float(self.x0.std())}


def train_on_pairs(experiment: Experiment, steps: int) -> Diffusion:
    torch.manual_seed(0)
    system = Diffusion.build(experiment)
    system.task = Pairs()
    optimizer = torch.optim.Adam(system.parameters(), 3e-3)
    for step in range(steps):
        loss = system(
            system.task.batch("train", range(32 * (step % 16), 32 * (step % 16) + 32))
        ).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return system.eval()


HEAD = {"use": "token-diffusion", "hidden": 32, "depth": 2, "steps": 16}


@pytest.mark.slow
def test_a_distribution_head_imputes_patterns_that_a_mean_cannot() -> None:
    process = {"use": "masked-region", "ratio": 0.5}
    like = Clean.of(torch.zeros(128, 6, 4))
    means = draw(train_on_pairs(assemble(process=process), 100), like, seed=0)
    assert means is not None
    assert means.abs().mean() < 0.4  # neither of the two
    system = train_on_pairs(assemble(process=process, head=HEAD), 300)
    draws = [draw(system, like, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert ((draws[0].abs() - 1).abs() < 0.4).double().mean() > 0.85
    signs = draws[0].sign()
    assert (signs == signs[..., :1]).double().mean() > 0.95  # a region is drawn as one
    metrics = evaluate(system, 128, 64)
    assert metrics is not None
    assert metrics["spread"] < 0.4  # metrics are of the mean
    assert metrics == evaluate(system, 128, 64)


ORDERED = {"use": "ordered-regions", "by": "spread", "steps": 3}
PARTIAL = [{"use": "gaussian", "mask": mask, "predict": predict}
           for mask, predict in (("region", "x0"), ("element", "eps"), ("column", "velocity"))]  # fmt: skip


@pytest.mark.parametrize("process", ["masked-region", *PARTIAL], ids=str)
def test_known_values_are_kept(process) -> None:
    """Drawn in the order of their spread, or with partial noise."""
    sampler = {"use": "dpm-solver", "steps": 5}
    changes = (
        {"sampler": sampler}
        if process in PARTIAL
        else {"head": HEAD, "sampler": ORDERED}
    )
    system = train_on_pairs(assemble(process=process, **changes), 3)
    clean = system.task.batch("valid", range(4))
    like = Clean(clean.x0, clean.valid, torch.rand(4, 6, 4) < 0.3)
    x = draw(system, like, seed=0)
    assert torch.equal(x[like.fixed], like.x0[like.fixed])
    assert (x[~like.fixed] != like.x0[~like.fixed]).all()
    assert x.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"loss": "huber"}, ("loss",)),
        ({"process": "gaussian"}, ("process",)),
        ({"train": {"strategy": "fsdp"}}, ("train", "strategy")),
        ({"sample": {"guidance": {"condition": "cell"}}}, ("sample", "guidance")),
        ({}, None),
    ],
)
def test_incompatible_with_a_distribution_head(changes: dict[str, Any], path) -> None:
    found = list(check_experiment(assemble(head=HEAD, **changes)))
    assert [misfit.path for misfit in found] == ([path] if path else [])
    assert not list(check_experiment(assemble(**changes)))


@pytest.mark.parametrize("process", ["absorbing", "uniform"])
@pytest.mark.parametrize(
    ("condition", "refused"),
    [
        ("none", True),
        ({"use": "label", "of": "cell"}, True),
        ({"use": "sum", "parts": [{"use": "label", "of": "cell"}]}, True),
        ("level", False),
        ({"use": "sum", "parts": ["level", {"use": "label", "of": "cell"}]}, False),
    ],
)
def test_scores_require_a_model_that_reads_the_noise_level(process, condition, refused):
    def problems(predict):
        changes = {
            "process": {"use": process, "predict": predict},
            "loss": "score-entropy",
            "sampler": "ancestral",
            "model": {"condition": condition},
        }
        try:
            load_experiment("dna_sequence/quick", changes)
        except Refused as error:
            return [(one.code, one.path) for one in error.problems]
        return []

    expected = [("misfit", ("process", "predict"))] if refused else []
    assert problems("score") == expected
    assert problems("posterior") == []


def test_only_scores_change_with_the_level_where_tokens_are_masked():
    """By enumeration: of a pair of ids with one masked, the ratio of scores is that of alpha / (1 - alpha)."""
    state = State.of(torch.tensor([[0, IDS]]))
    mask = torch.eye(IDS + 1)[-1:].double()
    levels = torch.tensor([0.1, 2.5], dtype=torch.float64)
    low, high = (
        exact_outputs(state, Noise(level[None], torch.ones(1)), mask)
        for level in levels
    )
    torch.testing.assert_close(low["posterior"], high["posterior"])
    difference = (low["score"] - high["score"])[0, 1, :IDS]
    expected = levels[1].expm1().log() - levels[0].expm1().log()
    torch.testing.assert_close(difference, expected.expand(IDS))
