"""An option without effect, in combination with others, is refused by its name before anything is read."""

import json
import os

import pytest

from dither.testing.fake_slurm import write_fake_slurm

LAUNCH = ("launch", "dna_sequence/quick", "--out", "job")
COMMANDS = {
    "--image": [
        (*LAUNCH, "--slurm", "--image", "dither"),
        (*LAUNCH, "--skypilot", "--image", "other"),
    ],
    "--claim": [(*LAUNCH, "--slurm", "--claim", "a")],
    "--accelerator": [
        (*LAUNCH, "--slurm", "--accelerator", "H100"),
        (*LAUNCH, "--kubernetes", "--runs", "/runs", "--accelerator", "A100"),
    ],
    "--hours": [(*LAUNCH, "--skypilot", "--hours", "3")],
    "--accept-changes": [("run", "dna_sequence/quick", "--accept-changes")],
    "--runs": [
        ("run", "--runs", "elsewhere"),
        ("run", "--resume", "runs/a", "--runs", "elsewhere"),
        ("sweep", "--resume", "runs/a", "--runs", "elsewhere"),
        ("compare", "--resume", "runs/a", "--runs", "elsewhere"),
    ],
    "--set": [
        ("run", "--set", "a=1"),
        ("export", "a", "--push", "b/c", "--set", "sampler.steps=4"),
        ("export", "a", "--out", "b", "--adapter", "--set", "sampler.steps=4"),
    ],
    "--unset": [("run", "--unset", "a")],
    "-p": [
        ("run", "-p", "a"),
        ("compare", "runs/a", "runs/b", "-p", "a"),
        ("export", "a", "--push", "b/c", "-p", "a"),
        ("list", "--available", "-p", "a"),
        ("list", "zoo", "-p", "a"),
        ("describe", "train", "-p", "a"),
        ("schema", "--of", "output", "-p", "a"),
    ],
    "--dry-run": [
        ("sweep", "--resume", "runs/a", "--dry-run"),
        ("compare", "--resume", "runs/a", "--dry-run"),
        ("compare", "runs/a", "runs/b", "--dry-run"),
    ],
    "--stop": [
        ("sweep", "dna_sequence/quick", "--stop", "--executor", "slurm"),
    ],
    "--jobs": [("compare", "runs/a", "runs/b", "-j", "2")],
    "--ranks": [("compare", "runs/a", "runs/b", "--ranks", "2")],
    "--executor": [("compare", "runs/a", "runs/b", "--executor", "local")],
    "--job": [("compare", "runs/a", "runs/b", "--job", "a=1")],
    "--figures": [("sample", "a", "--figures", "svg", "--no-pictures")],
    "--draws": [("evaluate", "a", "--draws", "4")],
    "--private": [("export", "a", "--out", "b", "--private")],
    "--license": [
        ("export", "a", "--out", "b", "--license", "MIT"),
        ("export", "a", "--push", "b/c", "--license", "MIT"),
    ],
    "--data-license": [("export", "a", "--out", "b", "--data-license", "MIT")],
    "--checkpoint": [
        ("export", "a", "--push", "b/c", "--checkpoint", "best"),
        ("certify", "a.toml", "--checkpoint", "best"),
    ],
    "--part": [("certify", "a", "--part", "2")],
    "--count": [("certify", "--verify", "a.json", "--count", "2")],
    "--tight": [("certify", "--verify", "a.json", "--tight", "2")],
    "--seed": [("certify", "--verify", "a.json", "--seed", "2")],
    "--out": [("certify", "--verify", "a.json", "--out", "b")],
    "--split": [
        ("certify", "--verify", "a.json", "--split", "test"),
        ("perplexity", "a", "book.txt", "--split", "test"),
    ],
    "--plugin": [
        ("list", "--available", "--plugin", "a"),
        ("list", "zoo", "--plugin", "a"),
    ],
    "--markdown": [("list", "zoo", "--markdown")],
    "--available": [("list", "--markdown", "--available")],
}
"""Options, each with commands in which it has no effect."""


@pytest.fixture(autouse=True)
def _slurm(tmp_path_factory, tmp_path, monkeypatch):
    programs = write_fake_slurm(tmp_path_factory.mktemp("slurm"))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("option", "words"),
    [(option, words) for option, several in COMMANDS.items() for words in several],
)
def test_options_without_effect_are_refused(cli, tmp_path, option, words):
    answer = cli(*words, "--format", "json", code=2)
    (problem,) = json.loads(answer.out.splitlines()[-1])["problems"]
    assert problem["code"] == "no-effect"
    assert option in problem["message"].partition(":")[0].replace("/", " ").split()
    assert not any(tmp_path.iterdir()), "nothing is written"


def test_options_with_an_effect_are_taken(cli):
    cli(*LAUNCH, "--kubernetes", "--runs", "/runs", "--image", "a", "--hours", "2")
    cli("list", "sampler", "--plugin", "processes")
    cli("run", "--json")
