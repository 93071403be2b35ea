"""Text longer than the window of training, drawn block by block."""

from pathlib import Path

import pytest
import torch

from dither.engine import System, load_experiment
from dither.engine.runs.api import load as load_system
from dither.engine.training.diffusion import random_lengths

BLOCKS = (
    "model.block_size=4",
    'sampler={use="blocks",size=4,inner="first-hitting"}',
    "model.block.rope=true",
)


@pytest.fixture
def system_of(trained, tmp_path):
    def build(*changes: str) -> System:
        return System.build(load_experiment(trained[0], changes).experiment)

    return build


@pytest.mark.parametrize(
    ("chosen", "context"), [((), 4), (("sampler.context=32",), 32)]
)
def test_longer_samples_are_those_of_a_longer_model(system_of, chosen, context) -> None:
    """By default no block sees further than in training; a model of 30 positions, built by itself, is the oracle."""
    short = system_of(*BLOCKS, "task.prompt=the c", *chosen).double()
    # The head of an untrained model is zero.
    for weight in short.model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    changes = ("task.prompt=the c", "task.length=30", f"sampler.context={context}")
    longer = system_of(*BLOCKS, *changes).double()
    longer.model.load_state_dict(short.model.state_dict())
    drawn = short.with_length(30).sample(3, seed=1)
    assert drawn.shape == (3, 30)
    assert torch.equal(drawn, longer.sample(3, seed=1))
    assert len(drawn[:, 8:].unique()) > 20
    # A longer window changes nothing before its end.
    assert torch.equal(drawn[:, :8], short.sample(3, seed=1))
    assert short.task.space.length == 8


def test_a_window_that_slides(system_of) -> None:
    """The text is another one from the first block on whose context is cut."""
    system = system_of(*BLOCKS)
    for weight in system.model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    longer = system.with_length(32)
    sampler = {"use": "blocks", "size": 4, "inner": "first-hitting"}
    whole = longer.sample(2, sampler=sampler)
    same = longer.sample(2, sampler={**sampler, "context": 32})
    cut = longer.sample(2, sampler={**sampler, "context": 8})
    assert torch.equal(whole, same)
    assert torch.equal(whole[:, :12], cut[:, :12])
    assert not torch.equal(whole, cut)


@pytest.mark.parametrize(
    "changes",
    [
        (),
        (*BLOCKS[:2], "model.embedding.position=learned"),
        (*BLOCKS[:2], "model={block_size=8}", "sampler.size=8"),
    ],
)
def test_models_of_one_length_are_refused(system_of, refused, changes) -> None:
    """Those of whole windows, those with learned positions, and those of a single block."""
    system = system_of(*changes)
    with refused("misfit"):
        system.with_length(9)


def test_lengths_do_not_depend_on_those_before(system_of, refused) -> None:
    """Also after a length of one block, from which alone no longer one would follow."""
    system = system_of(*BLOCKS)
    for weight in system.model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    expected = system.with_length(32).sample(2, seed=1)
    detour = system.with_length(4).with_length(32)
    assert detour.experiment == system.with_length(32).experiment
    assert torch.equal(detour.sample(2, seed=1), expected)
    back = detour.with_length(8)
    assert torch.equal(back.sample(2, seed=1), system.sample(2, seed=1))
    for length in (0, -1):
        with refused("out-of-range"):
            system.with_length(length)


def test_saved_systems_know_the_length_of_training(system_of, tmp_path) -> None:
    """Otherwise longer blocks would see less, and whole windows not have their length again."""
    system = system_of(*BLOCKS)
    for weight in system.model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    expected = system.with_length(32)
    loaded = load_system(system.with_length(4).save(tmp_path / "short"))
    assert loaded.task.space.length == 4
    longer = loaded.with_length(32)
    assert longer.experiment.sampler == expected.experiment.sampler
    assert torch.equal(longer.sample(2, seed=1), expected.sample(2, seed=1))
    again = load_system(longer.save(tmp_path / "long")).with_length(8)
    assert torch.equal(again.sample(2, seed=1), system.sample(2, seed=1))
    whole = system_of("train.random_lengths=0.1")
    short = load_system(whole.with_length(5).save(tmp_path / "whole"))
    assert short.with_length(8).sample(1).shape == (1, 8)


def test_a_shorter_sample_has_room_for_its_prompt(system_of, refused) -> None:
    system = system_of(*BLOCKS, "task.prompt=the c")
    shorter = system.with_length(6)
    assert (
        shorter.sample(1).shape == shorter.task.batch("train", [0]).x0.shape == (1, 6)
    )
    with refused("misfit"):
        system.with_length(5)


def test_samples_of_runs_and_exports(trained, tmp_path: Path, cli) -> None:
    runs = tmp_path / "runs"
    cli("run", str(trained[0]), *BLOCKS, "task.prompt=ab", "--runs", str(runs))
    (run,) = runs.glob("*-*")
    cli("export", str(run), "--out", str(tmp_path / "export"))
    for source in (run, tmp_path / "export"):
        out = tmp_path / f"samples-of-{source.name}"
        words = ["--length", "40", "--prompt", "the cat and the", "-n", "2"]
        # An export has no data to compare with.
        words += ["--metrics" if source == run else "--no-metrics"]
        said = cli("sample", str(source), *words, "--out", str(out)).out
        assert "sampler.context = 4" in said
        for file in out.glob("*.txt"):
            assert file.read_text().startswith("the cat and the")
    longer = load_system(tmp_path / "export").with_length(20)
    longer.save(tmp_path / "longer")
    for system in (longer, load_system(tmp_path / "longer")):
        assert system.sample(1).shape == (1, 20)
    cli("sample", str(run), "--length", "4", "--prompt", "the cat", code=2)
    cli("sample", str(trained[1]), "--length", "40", code=2)
    cli("sample", str(run), "--length", "0", code=2)


def test_random_lengths_are_uniform() -> None:
    """In a share of the samples, from 1 to all valid positions; padding stays padding."""
    valid = torch.arange(6) < torch.tensor([6, 4]).repeat(4000)[:, None]
    cut = random_lengths(valid, 0.5)
    sizes = cut.sum(1)
    assert torch.equal(cut, torch.arange(6) < sizes[:, None])
    for first, full in ((0, 6), (1, 4)):
        counts = torch.bincount(sizes[first::2], minlength=full + 1)
        assert counts[0] == 0
        expected = torch.full((full,), 2000 / full)
        expected[-1] += 2000
        # Standard deviations are below 32.
        assert ((counts[1 : full + 1] - expected).abs() < 4 * 32).all()
    assert torch.equal(random_lengths(valid, 0.0), valid)


def test_lengths_of_training_are_those_of_its_step(system_of) -> None:
    system = system_of("train.random_lengths=1.0").train()
    clean = system.task.batch("train", [0, 1, 2, 3])
    torch.manual_seed(3)
    measured = system(clean)
    torch.manual_seed(3)
    prepared, _, noised = system.prepare(clean)
    assert not prepared.valid.all()
    assert torch.equal(measured.weights > 0, prepared.valid)
    assert torch.equal(noised.valid, prepared.valid)
    assert torch.equal(system.eval().prepare(clean)[0].valid, clean.valid)
    shorter = system.with_length(5)
    assert shorter.sample(2).shape == (2, 5)
    assert shorter.with_length(8).sample(2).shape == (2, 8)


def test_a_model_of_whole_windows_draws_no_longer_ones(system_of, refused) -> None:
    with refused("misfit"):
        system_of("train.random_lengths=0.01").with_length(9)


def test_random_lengths_are_of_a_single_field(refused) -> None:
    changes = ["train.random_lengths=0.01"]
    with refused("misfit"):
        load_experiment("experiments/bubble_diagram/quick.toml", changes)
