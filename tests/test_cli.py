"""The command line, as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dither.engine.cli import main

ROOT = Path(__file__).parents[1]
QUICK = str(ROOT / "experiments/bubble_diagram/quick.toml")
TINY = [
    "--set", "task.data={use='procedural-plans', train=64, valid=16}",
    "--set", "model.width=16", "--set", "model.depth=1",
    "--set", "train.steps=3", "--set", "train.batch_size=8",
    "--set", "evaluate.samples=16", "--set", "sample.count=2",
]  # fmt: skip


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.run", *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.parametrize("verb", ["list", "plugins", "validate", "describe", "resolve", "--help"])
def test_light_verbs_import_no_torch(verb):
    arguments = {"validate": [QUICK], "resolve": [QUICK], "describe": ["block", "adaln-zero"]}.get(verb, [])
    code = (
        f"import sys; from dither.engine.cli import main; code = main({[verb, *arguments]!r}); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_lists_have_every_part(capsys):
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    names = {(row["kind"], row["name"]) for row in rows}
    for wanted in (("task", "bubble-diagram"), ("process", "uniform"), ("sampler", "blocks"), ("optimizer", "adamw")):
        assert wanted in names
    assert all(row["summary"] for row in rows)
    assert main(["plugins", "--json"]) == 0
    states = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    ours = {"core-blocks", "embeddings", "engine", "losses", "processes", "tasks"}
    assert {name for name in ours if states.get(name) == "loaded"} == ours


def test_every_part_can_be_described_and_its_snippet_parses(capsys):
    from dither.registry.plugins import load_plugins

    for part in load_plugins().catalog.parts():
        assert main(["describe", part.spec.kind, part.spec.name]) == 0
        assert part.spec.name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "missing.toml"], "file missing.toml does not exist"),
        (["run"], "give an experiment file"),
        (["run", QUICK, "--resume", "nowhere"], "not both"),
        (["run", "--resume", "nowhere"], "nowhere is no run directory"),
        (["run", QUICK, "--set", "train.stpes=3"], 'did you mean "steps"'),
        (["run", QUICK, "--set", "model.block.use=adaln-zer"], 'Did you mean "adaln-zero"'),
        (["run", QUICK, "--set", "nonsense"], "expected key=value"),
        (["run", QUICK, "--set", "model.block.heads=7"], "heads"),
        (["run", QUICK, "-p", "nobody"], 'no plugin is named "nobody"'),
        (["run", QUICK, "-p", "no:losses"], 'no loss is named "masked-ce"'),
        (["validate", QUICK, "--unset", "modle"], 'did you mean "model"'),
        (["list", "blok"], 'did you mean "block"'),
        (["describe", "block", "absorbing"], '"absorbing" is a process, not a block'),
        (["prepare", "human-dhz"], 'Did you mean "human-dhs"'),
        (["sample", "nowhere"], "nowhere"),
        (["evaluate", "nowhere"], "nowhere"),
        (["frobnicate"], "No such command"),
        (["run", "--bogus"], "No such option"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_word_and_without_a_traceback(
    arguments, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert not list(tmp_path.iterdir())


def test_a_run_from_the_command_line_then_sample_evaluate_and_resume(tmp_path):
    runs = tmp_path / "runs with space"
    done = command(QUICK, *TINY, "--runs", str(runs))
    assert done.returncode == 0, done.stderr
    (run,) = [path for path in runs.iterdir() if path.is_dir()]
    for name in ("experiment.toml", "resolved.toml", "manifest.json", "metrics.jsonl", "checkpoints", "samples"):
        assert (run / name).exists(), name
    assert any(path.suffix == ".svg" for path in (run / "samples").rglob("*"))
    assert "unigram" in done.stdout

    before = (run / "metrics.jsonl").read_bytes()
    again = command("evaluate", str(run), "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["nats_per_graph"] > 0
    drawn = command("sample", str(run), "--count", "3", "--out", str(tmp_path / "drawn"))
    assert drawn.returncode == 0, drawn.stderr
    assert list((tmp_path / "drawn").iterdir())
    assert (run / "metrics.jsonl").read_bytes() == before

    resumed = command("--resume", str(run), "--set", "train.steps=5")
    assert resumed.returncode == 0, resumed.stderr
    steps = [json.loads(line).get("step") for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(step for step in steps if step is not None) == 5

    second = command(QUICK, *TINY, "--runs", str(runs))
    assert second.returncode == 0, second.stderr
    assert len([path for path in runs.iterdir() if path.is_dir()]) == 2


def test_the_output_may_be_cut_short():
    line = f"{sys.executable} -m experiments.run list | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == ""
