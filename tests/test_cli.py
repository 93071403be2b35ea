"""The command line."""

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
    "run", "validate", "explain", "resolve", "diff", "list", "describe", "plugins", "doctor", "schema",
    "registry", "new", "test-plugin", "sample", "evaluate", "prepare", "report", "sweep", "bench", "runs",
    "export",
)  # fmt: skip


def test_every_command_has_help_without_heavy_imports():
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
    assert verbs() == set(grouped)


def test_help_is_quick():
    """CPU time, which other processes do not change much."""
    code = (
        "import sys, time; from dither.engine.cli import main; main(['--help'])\n"
        "assert 'pydantic' not in sys.modules\n"
        "print(time.process_time())"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    # 0.2 s on the machine of docs/benchmarks.md; an unoptimised Python takes twice that
    assert min(float(done.stdout.splitlines()[-1]) for done in runs) < 0.8


def test_validate_imports_little():
    """No other commands, tables, requirements, or option docstrings."""
    code = (
        f"import sys, time; from dither.engine.cli import main; main(['validate', {QUICK!r}])\n"
        "print(time.process_time(), *(name for name in sys.modules if name.startswith('dither.engine.cli.')))\n"
        "needless = 'torch', 'numpy', 'rich', 'dither.registry.spec.option_docs'\n"
        "print(*(name for name in needless if name in sys.modules))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    _, modules, needless = runs[0].stdout.splitlines()
    assert needless == ""
    assert {name.rpartition(".")[2] for name in modules.split()[1:]} == {
        "app", "experiments", "output",
    }  # fmt: skip
    # 0.25 s on the machine of docs/benchmarks.md
    assert min(float(done.stdout.splitlines()[1].split()[0]) for done in runs) < 0.8


def completed(*words: str, shell: str = "bash") -> list[str]:
    """Return the completions of the last word."""
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
    ("words", "expected"),
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
def test_shell_completion(words, expected):
    assert completed(*words) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_in_other_shells(shell):
    assert "adaln-zero" in " ".join(completed("describe", "block", "ada", shell=shell))


@pytest.mark.parametrize("verb", ["list", "plugins", "validate", "describe", "resolve", "doctor", "schema", "--help"])
def test_light_commands_import_no_torch(verb):
    arguments = {"validate": [QUICK], "resolve": [QUICK], "describe": ["block", "adaln-zero"]}.get(verb, [])
    code = (
        f"import sys; from dither.engine.cli import main; code = main({[verb, *arguments]!r}); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_list_and_plugins(capsys):
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


def test_every_component_can_be_described(capsys):
    for kind, name in listed(capsys):
        assert main(["describe", kind, name]) == 0
        page = capsys.readouterr().out
        for word in (f"{kind} {name}", f'use = "{name}"', "plugin", "source"):
            assert word in page, (kind, name, word)


def test_describe(capsys, monkeypatch):
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
    heads = options["heads"]
    assert (heads["type"], heads["default"]) == ("integer >= 1", "4")
    assert "width of the model" in heads["doc"]
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
    ("arguments", "code", "word"),
    [
        (["run", "missing.toml"], "", "missing.toml"),
        (["run"], "usage", "--resume"),
        (["run", QUICK, "--resume", "nowhere"], "usage", "--resume"),
        (["run", "--resume", "nowhere"], "", "nowhere"),
        (["run", QUICK, "--set", "train.stpes=3"], "unknown-key", '"steps"'),
        (["run", QUICK, "--set", "model.block.use=adaln-zer"], "unknown-component", '"adaln-zero"'),
        (["run", QUICK, "--set", "nonsense"], "", "key=value"),
        (["run", QUICK, "--set", "model.block.heads=7"], "misfit", "heads"),
        (["run", QUICK, "-p", "nobody"], "unknown-plugin", '"nobody"'),
        (["run", QUICK, "-p", "no:losses"], "unknown-component", '"masked-ce"'),
        (["validate", QUICK, "--unset", "modle"], "", '"model"'),
        (["list", "blok"], "unknown-value", '"block"'),
        (["list", "--plugin", "loses"], "unknown-plugin", '"losses"'),
        (["list", "--filter", "adaln-zer"], "unknown-component", '"adaln-zero"'),
        (["describe", "adaln-zer"], "unknown-component", '"adaln-zero"'),
        (["describe", "cosine"], "usage", "dither describe schedule cosine or dither describe lr-schedule cosine"),
        (["describe", "block"], "missing-argument", "adaln-zero"),
        (["describe", "blok", "adaln-zero"], "unknown-value", '"block"'),
        (["describe", "block", "absorbing"], "unknown-component", "process"),
        (["prepare", "human-dhz"], "unknown-component", '"human-dhs"'),
        (["prepare", "text", "--to"], "missing-argument", "--to"),
        (["sample", "nowhere"], "", "nowhere"),
        (["sample", "nowhere", "--checkpoint", "last"], "usage", "last"),
        (["evaluate", "nowhere"], "", "nowhere"),
        (["schema", "--of", "everything"], "", "everything"),
        (["frobnicate"], "", "No such command"),
        (["run", "--bogus"], "", "No such option"),
    ],
)
def test_invalid_input_is_refused_without_a_traceback(arguments, code, word, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert not code or f"[{code}]" in message, message
    assert word in message
    assert "Traceback" not in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["frobnicate"], ["run", "--bogus"], ["list", "blok"]])
def test_problems_as_json(arguments, capsys):
    assert main(["--format", "json", *arguments]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["code"] in ("usage", "unknown-command", "unknown-option", "unknown-value")


COMMANDS = """
from dither.registry import hookimpl

@hookimpl
def register_commands(app):
    @app.command()
    def hello(name: str = "world") -> int:
        "Print a greeting."
        print("hello", name)
        return 3

    @app.command()
    def validate() -> None:
        "The name of a built-in command."
"""


def test_plugins_add_commands(tmp_path, capsys):
    file = tmp_path / "greeter.py"
    file.write_text(COMMANDS)
    assert main(["hello", "--name", "you", "-p", str(file)]) == 3
    printed = capsys.readouterr()
    assert printed.out == "hello you\n"
    assert 'adds the command "validate", which exists already' in printed.err
    assert main(["validate", QUICK]) == 0, "the built-in command stays"
    assert main(["hello"]) == 2, "without the plugin the command is unknown"


def test_a_plugin_that_fails_to_add_commands_is_reported(tmp_path, capsys):
    (tmp_path / "broken.py").write_text(COMMANDS.replace("(app):\n", "(app):\n    1 / 0\n"))
    assert main(["hello", "-p", str(tmp_path / "broken.py")]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def add_plugin(site: Path, name: str, source: str) -> None:
    (site / f"{name}.py").write_text(source)
    info = site / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[dither.plugins]\n{name} = {name}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path, which is the working directory too."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_a_package_with_broken_entry_points_breaks_no_command(site, capsys):
    broken = site / "broken-1.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[console_scripts]\nnoequals\n")
    assert main(["--help"]) == 0
    assert "validate" in capsys.readouterr().out
    assert main(["frobnicate"]) == 2
    assert "No such command" in capsys.readouterr().err


def test_help_and_corrections_need_no_valid_registry_toml(site, capsys):
    add_plugin(site, "tp_greeter", COMMANDS)
    (site / "registry.toml").write_text("plugins = 3\n")
    for words, said in (
        ([], ""),
        (["--help"], ""),
        (["--version"], "No such option"),
        (["validat"], "No such command"),
    ):
        main(words)
        printed = capsys.readouterr()
        assert said in printed.err
        assert said or "validate" in printed.out
        assert ("registry.toml" in printed.err) == (words != ["--version"])
    assert main(["hello"]) == 2
    assert "No such command" not in (message := capsys.readouterr().err)
    assert "registry.toml" in message


@pytest.mark.parametrize("error", ["1 / 0", "raise SystemExit(0)", "raise Refused('no')"])
def test_one_plugin_that_fails_to_add_commands_takes_no_others_away(error, site, capsys):
    for name in ("tp_aaa", "tp_bbb", "tp_ccc"):
        add_plugin(site, name, COMMANDS.replace("hello", f"hello-{name}").replace("def hello-", "def hello_"))
    end = f"\n    from dither.registry import Refused\n    {error}\n"
    (site / "tp_bbb.py").write_text((site / "tp_bbb.py").read_text() + end)
    assert main(["--help"]) == 0
    printed = capsys.readouterr()
    assert [name for name in ("tp-aaa", "tp-bbb", "tp-ccc") if f"hello-{name}" in printed.out] == ["tp-aaa", "tp-ccc"]
    assert 'plugin "tp_bbb" (tp_bbb 1) failed in register_commands' in printed.err


def test_a_command_of_a_plugin_may_have_an_option_p(site, capsys):
    option = "import typer\n" + COMMANDS.replace('str = "world"', 'str = typer.Option("world", "-p")')
    add_plugin(site, "tp_greeter", option)
    assert main(["hello", "-p", "8080"]) == 3
    assert capsys.readouterr().out == "hello 8080\n"
    assert main(["hello", "-p", "losses", "-p", "you", "-p", "no:engine"]) == 3
    assert capsys.readouterr().out == "hello you\n"
    assert main(["hello", "-p"]) == 2
    assert main(["hello", "-p", "you", "--", "-p", "losses"]) == 2, "these are unexpected arguments"
    assert "losses" in capsys.readouterr().err


def test_commands_of_installed_plugins_are_in_the_help(tmp_path):
    add_plugin(tmp_path, "greeter", COMMANDS)
    code = "import sys; from dither.engine.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True, env=environment
    )
    assert "─ plugins ─" in done.stdout
    assert "Print a greeting." in done.stdout


def test_validate_deep_counts_parameters_memory_and_flops(capsys):
    arguments = [QUICK, "--set", "model.width=16", "--set", "model.depth=1"]
    assert main(["validate", "--deep", "--json", *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["valid"] is True
    deep = record["deep"]
    assert deep["shapes"]["parameters"] == deep["parameters"] > 1000
    assert deep["memory"]["weights"] >= 4 * deep["parameters"]
    assert main(["validate", "--deep", *arguments]) == 0
    page = capsys.readouterr().out
    assert f"{deep['parameters']:,}" in page
    assert "optimizer state" in page
    assert main(["check", "--json", *arguments]) == 0, "the former name"
    printed = capsys.readouterr()
    assert json.loads(printed.out)["memory"] == deep["memory"]
    assert "validate --deep" in printed.err


def test_run_sample_evaluate_and_resume(tmp_path, capsys, monkeypatch):
    """The run in its own process, the rest in this one."""
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
    baselines = {name: measured.pop(name) for name in [name for name in measured if "/" in name]}
    again = measured
    assert again["nats_per_graph"] > 0
    known = json.loads((run / "summary.json").read_text())["baselines"]
    assert baselines == {name: known[name] for name in known if name.partition("/")[0] in again}
    lines = [json.loads(line) for line in before.decode().splitlines()]
    assert {key: value for key, value in lines[-2].items() if key in again} == pytest.approx(again), "as in the run"
    other = json.loads(printed("evaluate", str(run), "--json", "--split", "test"))
    assert other["nats_per_graph"] not in (0, again["nats_per_graph"])
    assert other["nats_per_graph/unigram"] not in (0, baselines["nats_per_graph/unigram"])
    (line,) = [line for line in printed("evaluate", str(run)).splitlines() if line.startswith("nats_per_graph ")]
    assert f"{again['nats_per_graph']:.6g} ± " in line
    assert f"unigram {baselines['nats_per_graph/unigram']:.4g}" in line
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


def test_output_to_a_closed_pipe():
    line = f"{sys.executable} -m experiments.run list | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == ""
