"""The command line, as a person meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dither.engine.cli import main

ROOT = Path(__file__).parents[1]
QUICK = str(ROOT / "experiments/bubble_diagram/quick.toml")
TINY = [
    "--set", "task.data={use='procedural-plans', train=64, valid=16, test=64}",
    "--set", "model.width=16", "--set", "model.depth=1",
    "--set", "train.steps=3", "--set", "train.batch_size=8",
    "--set", "evaluate.samples=16", "--set", "sample.count=2",
]  # fmt: skip


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.run", *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


VERBS = (
    "run", "validate", "check", "explain", "resolve", "diff", "list", "describe", "plugins", "doctor", "schema",
    "registry", "new", "test-plugin", "sample", "evaluate", "prepare", "report", "sweep", "bench", "runs",
    "export",
)  # fmt: skip


def test_every_verb_has_help_without_torch_and_without_what_help_does_not_need():
    code = (
        "import contextlib, io, json, sys\n"
        "from dither.engine.cli import main\n"
        "said = {}\n"
        f"for verb in {VERBS!r}:\n"
        "    with contextlib.redirect_stdout(out := io.StringIO()), contextlib.redirect_stderr(out):\n"
        "        code = main([verb, '--help'])\n"
        "    said[verb] = (code, out.getvalue())\n"
        "heavy = [name for name in ('torch', 'numpy', 'dither.registry', 'pluggy', 'tomlkit') if name in sys.modules]\n"
        "print(json.dumps([said, heavy]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, heavy = json.loads(done.stdout)
    for verb in VERBS:
        code, text = said[verb]
        assert code == 0, f"{verb}: {text}"
        assert f" {verb} " in text, verb
        before_options = text.partition("Usage:")[2].partition("╭")[0]
        assert len([line for line in before_options.splitlines() if line.strip()]) >= 2, f"{verb} has no help"
    assert heavy == []


def test_help_groups_every_verb(capsys):
    from dither.engine.cli.app import PANELS, verbs

    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert [panel for panel in PANELS if f"─ {panel} ─" not in text] == []
    grouped = [verb for panel in PANELS.values() for verb in panel]
    assert sorted(grouped) == sorted(set(grouped))
    assert set(grouped) == set(VERBS)
    assert verbs() - set(grouped) == set(), "a verb stands in no group"


def test_help_is_quick():
    """In time of the processor, which other processes on the machine do not change much."""
    code = (
        "import sys, time; from dither.engine.cli import main; main(['--help'])\n"
        "assert 'pydantic' not in sys.modules\n"
        "print(time.process_time())"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    # 0.2 s on the machine of docs/benchmarks.md; an unoptimised Python takes twice that
    assert min(float(done.stdout.splitlines()[-1]) for done in runs) < 0.8


def test_a_check_is_quick():
    """What it does not need is not imported: other verbs, tables, requirements, the text under the options."""
    code = (
        f"import sys, time; from dither.engine.cli import main; main(['validate', {QUICK!r}])\n"
        "print(time.process_time(), *(name for name in sys.modules if name.startswith('dither.engine.cli.')))\n"
        "needless = 'torch', 'numpy', 'rich', 'packaging.requirements', 'dither.registry.spec.option_docs'\n"
        "print(*(name for name in needless if name in sys.modules))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    _, told, needless = runs[0].stdout.splitlines()
    assert needless == ""
    assert {name.rpartition(".")[2] for name in told.split()[1:]} == {
        "app", "completion", "experiments", "output", "root",
    }  # fmt: skip
    # 0.25 s on the machine of docs/benchmarks.md
    assert min(float(done.stdout.splitlines()[1].split()[0]) for done in runs) < 0.8


def completed(*words: str, shell: str = "bash") -> list[str]:
    """What a shell is offered for the last of these words."""
    code = "import sys; sys.argv = ['dither']; from dither.engine.cli import main; sys.exit(main())"
    line = " ".join(("dither", *words))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, "_DITHER_COMPLETE": f"complete_{shell}", "COMP_WORDS": line, "COMP_CWORD": str(len(words)),
             "_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["des"], ["describe"]),
        (["describe", "bl"], ["block"]),
        (["describe", "block", "ada"], ["adaln-zero"]),
        (["list", "lr"], ["lr-schedule"]),
        (["list", "--plugin", "core"], ["core-blocks"]),
        (["validate", "experiments/bubble_diagram/q"], ["experiments/bubble_diagram/quick.toml"]),
        (["run", "experiments/bub"], [
            f"experiments/bubble_diagram/{name}.toml" for name in ("quick", "seed_base", "seed_small", "small")]),
        (["describe", "nonsense", "a"], []),
        (["validate", "no/such/folder/"], []),
    ],
)  # fmt: skip
def test_the_shell_completes(words, offered):
    assert completed(*words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_as_well(shell):
    assert "adaln-zero" in " ".join(completed("describe", "block", "ada", shell=shell))


@pytest.mark.parametrize("verb", ["list", "plugins", "validate", "describe", "resolve", "doctor", "schema", "--help"])
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


def listed(capsys, *arguments: str) -> list[tuple[str, str]]:
    assert main(["list", "--json", *arguments]) == 0
    return [(row["kind"], row["name"]) for row in json.loads(capsys.readouterr().out)]


def test_lists_are_filtered(capsys):
    assert listed(capsys, "--filter", "log-*") == [("schedule", "log-linear")]
    assert listed(capsys, "block", "--filter", "ada*") == [("block", "adaln-zero")]
    assert {kind for kind, _ in listed(capsys, "--plugin", "losses")} == {"loss"}
    assert {kind for kind, _ in listed(capsys, "--plugin", "losses", "--plugin", "core-blocks")} == {
        "loss", "model", "block"}  # fmt: skip
    assert ("loss", "mse") not in listed(capsys, "loss", "--filter", "*-*")
    assert main(["list", "loss", "--filter", "ms?", "--markdown"]) == 0
    page = capsys.readouterr().out
    assert "### mse" in page
    assert "score-entropy" not in page


def test_every_part_can_be_described(capsys):
    for kind, name in listed(capsys):
        assert main(["describe", kind, name]) == 0
        page = capsys.readouterr().out
        for word in (f"{kind} {name}", f'use = "{name}"', "plugin", "source"):
            assert word in page, (kind, name, word)


def test_a_description_says_it_all(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["describe", "loss", "masked-ce", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["pinned"] == "losses/masked-ce@1"
    assert facts["version"]
    assert facts["contracts"]["serves"] == "tokens"
    assert "bound" in facts["contracts"]
    assert "why the closed form does not hold" in facts["contracts"]["checks"]
    assert "experiments/bubble_diagram/quick.toml" in facts["used_in"]
    assert "experiments/get_region/quick.toml" not in facts["used_in"]
    assert "specs.py:" in facts["source"]
    assert main(["describe", "adaln-zero", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kind"] == "block"
    assert facts["contracts"]["is given"] == "width, cond"
    options = {option["name"]: option for option in facts["options"]}
    assert options["heads"] == {
        "name": "heads", "type": "integer >= 1", "default": "4",
        "doc": "Attention heads. They divide the width of the model.",
    }  # fmt: skip
    assert options["mlp"]["type"] == '"gelu" | "gelu-tanh" | "swiglu"'
    assert main(["describe", "data", "procedural-plans", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["contracts"]["gives"] == "plans"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_pages_fit_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in (["list"], ["plugins"], ["doctor"], ["describe", "mse"], ["describe", "schedule", "cosine"]):
        main(arguments)
        wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > columns]
        assert wide == [], arguments


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
        (["run", QUICK, "-p", "nobody"], 'unknown plugin "nobody"'),
        (["run", QUICK, "-p", "no:losses"], 'unknown loss "masked-ce"'),
        (["validate", QUICK, "--unset", "modle"], 'did you mean "model"'),
        (["list", "blok"], 'did you mean "block"'),
        (["list", "--plugin", "loses"], 'no plugin is named "loses"; did you mean "losses"'),
        (["list", "--filter", "adaln-zer"], 'no name is like "adaln-zer"; did you mean "adaln-zero"'),
        (["describe", "adaln-zer"], 'no part is named "adaln-zer"; did you mean "adaln-zero"'),
        (["describe", "cosine"], "`describe schedule cosine` or `describe lr-schedule cosine`"),
        (["describe", "block"], "give the name of a block as well: adaln-zero"),
        (["describe", "blok", "adaln-zero"], 'did you mean "block"'),
        (["schema", "--of", "everything"], "everything"),
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


def test_a_run_from_the_command_line_then_sample_evaluate_and_resume(tmp_path, capsys, monkeypatch):
    """The run in a process of its own, as a person starts it; what comes after in this one, which has torch by now."""
    monkeypatch.chdir(ROOT)
    runs = tmp_path / "runs with space"
    done = command(QUICK, *TINY, "--runs", str(runs))
    assert done.returncode == 0, done.stderr
    (run,) = [path for path in runs.iterdir() if path.is_dir()]
    for name in ("experiment.toml", "resolved.toml", "manifest.json", "metrics.jsonl", "checkpoints", "samples"):
        assert (run / name).exists(), name
    assert any(path.suffix == ".svg" for path in (run / "samples").rglob("*"))
    assert "unigram" in done.stdout

    def printed(*arguments: str) -> str:
        assert main([*arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    before = (run / "metrics.jsonl").read_bytes()
    measured = json.loads(printed("evaluate", str(run), "--json"))
    beside = {name: measured.pop(name) for name in [name for name in measured if "/" in name]}
    again = measured
    assert again["nats_per_graph"] > 0
    known = json.loads((run / "summary.json").read_text())["baselines"]
    assert beside == {name: known[name] for name in known if name.partition("/")[0] in again}
    lines = [json.loads(line) for line in before.decode().splitlines()]
    assert {key: value for key, value in lines[-2].items() if key in again} == pytest.approx(again), "as in the run"
    other = json.loads(printed("evaluate", str(run), "--json", "--split", "test"))
    assert other["nats_per_graph"] not in (0, again["nats_per_graph"])
    assert other["nats_per_graph/unigram"] not in (0, beside["nats_per_graph/unigram"])
    (line,) = [line for line in printed("evaluate", str(run)).splitlines() if line.startswith("nats_per_graph ")]
    assert f"{again['nats_per_graph']:.6g} ± " in line
    assert f"unigram {beside['nats_per_graph/unigram']:.4g}" in line
    drawn = printed("sample", str(run), "--count", "3", "--out", str(tmp_path / "drawn"))
    assert "shuffled" in drawn
    assert "nats_per_graph" not in drawn, "no baselines of figures that were not measured"
    assert list((tmp_path / "drawn").iterdir())
    assert (run / "metrics.jsonl").read_bytes() == before

    printed("run", "--resume", str(run), "--set", "train.steps=5")
    steps = [json.loads(line).get("step") for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(step for step in steps if step is not None) == 5

    printed("run", QUICK, *TINY, "--set", "train.steps=1", "--runs", str(runs))
    assert len([path for path in runs.iterdir() if path.is_dir()]) == 2


def test_the_output_may_be_cut_short():
    line = f"{sys.executable} -m experiments.run list | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == ""
