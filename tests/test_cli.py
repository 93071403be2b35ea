"""The command line."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from dither.engine.cli import components, main
from dither.engine.cli.app import PANELS, VERBS
from dither.engine.cli.commands import app_for
from dither.engine.config.load_experiment import load_experiment
from dither.engine.files.checksums import with_checksum
from dither.engine.runs.diff_runs import differences, read_side

ROOT = Path(__file__).parents[1]
QUICK = str(ROOT / "experiments/bubble_diagram/quick.toml")


def python(code: str, *arguments: str, **options) -> str:
    """Run code in a new process and return its standard output."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_command_has_help_without_heavy_imports():
    """Only the list of all commands, which has those of plugins, imports the registry."""
    code = (
        "import contextlib, io, json, sys, time\n"
        "from dither.engine.cli import main\n"
        "said = {}\n"
        f"for verb in [*{list(VERBS)!r}, '']:\n"
        "    heavy = set(sys.modules) & {'torch', 'numpy', 'dither.registry', 'pluggy', 'tomlkit'}\n"
        "    with contextlib.redirect_stdout(out := io.StringIO()), contextlib.redirect_stderr(out):\n"
        "        code = main([*verb.split(), '--help'])\n"
        "    said[verb] = (code, out.getvalue(), time.process_time())\n"
        "heavy |= set(sys.modules) & {'torch', 'numpy'}\n"
        "print(json.dumps([said, sorted(heavy)]))\n"
    )
    said, heavy = json.loads(python(code))
    assert heavy == []
    assert said["schema"][2] < 0.8, "0.2 s of CPU time on an idle machine"
    assert all(
        f"─ {panel} ─" in said[""][1] for panel in [*PANELS, "tasks and plugins"]
    )
    assert " infill " in said[""][1]
    for verb, (code, text, _) in said.items():
        assert code == 0, f"{verb}: {text}"
        assert f" {verb} " in text, verb
        before_options = text.partition("Usage:")[2].partition("╭")[0]
        assert (
            len([line for line in before_options.splitlines() if line.strip()]) >= 2
        ), f"{verb} has no help"
        assert "<bool>" not in text
        assert (
            not verb
            or text.rstrip().splitlines()[-1].startswith(" Example: dither ")
            or "Commands" in text
        ), verb


def test_wrong_requests_to_a_model_are_refused_before_torch_is_imported(tmp_path):
    model = "zoo/bubble-small"
    wrong = [
        (["sample", model, "--export", "dwg"], "unknown-format"),
        (["sample", model, "--figures", "eps"], "unknown-format"),
        (["sample", model, "--checkpoint", "last"], "usage"),
        (["sample", model, "--checkpoint", "best"], "usage"),
        (["sample", model, "--out", str(ROOT)], "file-exists"),
        (["sample", model, "sampler.temprature=1"], "unknown-key"),
        (["sample", model, "model.width=8"], "invalid-value"),
        (["sample", str(tmp_path)], "not-a-run"),
        (["edit", model, "plan.json", "--export", "dwg"], "unknown-format"),
        (["infill", model, "text", "--checkpoint", "last"], "usage"),
        (["frontier", model, "--over", "temprature=1,2"], "unknown-key"),
        (["evaluate", model, "evaluate.sampels=8"], "unknown-key"),
        (["evaluate", model, "--likelihood", "ode"], "misfit"),
        (["certify", model, "--out", str(ROOT)], "file-exists"),
        (["certify", model, "sampler.steps=8"], "invalid-value"),
        (["export", str(tmp_path), "--out", "new"], "not-a-run"),
        (["export", str(tmp_path), "--out", str(ROOT)], "file-exists"),
        (["export", str(tmp_path), "--adapter"], "usage"),
        (["export", str(tmp_path), "--push", "a/b", "--program"], "usage"),
        *(
            (["export", str(tmp_path), "--out", "new", "--adapter", *flags], "usage")
            for flags in (["--hub"], ["--program"], ["--push", "a/b"])
        ),
        (["predict", model, "--export", "xls"], "unknown-format"),
        (["predict", model, "--checkpoint", "last"], "usage"),
        (["embed", model, "--export", "csv"], "unknown-format"),
        (["attribute", model, "--figures", "eps"], "unknown-format"),
    ]
    code = (
        "import contextlib, io, json, sys\n"
        "from dither.engine.cli import main\n"
        "rows = []\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stdout(out := io.StringIO()), contextlib.redirect_stderr(out):\n"
        "        code = main(['--format', 'json', *words])\n"
        "    rows.append((code, out.getvalue(), 'torch' in sys.modules))\n"
        "print(json.dumps(rows))\n"
    )
    rows = json.loads(
        python(code, json.dumps([words for words, _ in wrong]), cwd=tmp_path)
    )
    for (words, problem), (exit_code, text, torch) in zip(wrong, rows, strict=True):
        assert exit_code == 2, f"{words}: {text}"
        assert f'"{problem}"' in text, f"{words}: {text}"
        assert not torch, words
        if "ode" in words:
            assert r"use method \"bound\"" in text
    assert not any(tmp_path.iterdir()), "a folder remains"


@pytest.mark.slow
def test_light_commands_import_no_torch():
    verbs = [
        ["list"],
        ["plugins"],
        ["doctor"],
        ["schema"],
        ["--help"],
        ["describe", "block", "adaln-zero"],
    ]
    verbs.append(["runs", "list", "."])
    files = [
        ["validate", QUICK],
        ["resolve", QUICK],
        ["resolve", QUICK, "--origins"],
        ["runs", "diff", QUICK, QUICK],
    ]
    code = (
        "import sys; from dither.engine.cli import main\n"
        f"for words in {[*verbs, *files]!r}:\n"
        "    assert main(words) == 0, words\n"
        "    assert 'torch' not in sys.modules, words\n"
        "from dither.registry.plugins.manager import default_catalog\n"
        "assert not default_catalog.cache_info().currsize, 'plugins were imported that the policy may block'\n"
    )
    assert python(code).strip()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dither des", {"describe"}),
        ("dither inf", {"infill"}),
        ("dither run --un", {"--unset"}),
        ("dither infill --co", {"--count"}),
    ],
)
def test_shell_completion(line, expected):
    """Of commands of the engine and of tasks, and of their options."""
    code = "import sys; sys.argv = ['dither']; from dither.engine.cli import main; sys.exit(main())"
    variables = {
        "_DITHER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    completed = python(code, cwd=ROOT, env={**os.environ, **variables}).split()
    assert set(completed) == expected


def test_list_and_plugins(cli):
    def listed(*arguments: str) -> list[tuple[str, str]]:
        return [
            (row["kind"], row["name"])
            for row in json.loads(cli("list", "--json", *arguments).out)
        ]

    wanted = {
        ("task", "bubble-diagram"),
        ("process", "uniform"),
        ("sampler", "blocks"),
        ("optimizer", "adamw"),
    }
    assert wanted <= set(listed())
    assert listed("--filter", "log-*") == [("schedule", "log-linear")]
    assert listed("block", "--filter", "ada*") == [("block", "adaln-zero")]
    ours = ["--plugin", "losses", "--plugin", "core-blocks"]
    assert {kind for kind, _ in listed(*ours)} == {"loss", "model", "block"}
    page = cli("list", "loss", "--filter", "ms?", "--markdown").out
    assert "### mse" in page
    assert "score-entropy" not in page
    assert "save_total_limit" not in page
    states = {
        row["name"]: row["state"] for row in json.loads(cli("plugins", "--json").out)
    }
    assert {
        states[name]
        for name in (
            "core-blocks",
            "embeddings",
            "engine",
            "losses",
            "processes",
            "tasks",
        )
    } == {"loaded"}


def test_describe(cli, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = cli("describe", "loss", "masked-ce").out
    for word in (
        "loss masked-ce",
        'use = "masked-ce"',
        "losses/masked-ce@1",
        "plugin",
        "source",
        "used in",
    ):
        assert word in page
    facts = json.loads(cli("describe", "loss", "masked-ce", "--json").out)
    assert (facts["kind"], facts["pinned"]) == ("loss", "losses/masked-ce@1")
    assert "experiments/bubble_diagram/quick.toml" in facts["used_in"]
    assert "experiments/get_region/quick.toml" not in facts["used_in"]
    assert "specs.py:" in facts["source"]
    assert "save_total_limit" in cli("describe", "train").out
    (use,) = json.loads(cli("describe", "tracking", "--json").out)["options"]
    assert (use["name"], use["default"]) == ("use", '["tensorboard"]')


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["run", "missing.toml"], "", "missing.toml"),
        (["run", "RUN"], "usage", "dither run --resume"),
        (["run", "--resume", "nowhere"], "", "nowhere"),
        (["run", QUICK, "--set", "nonsense"], "", "key=value"),
        (["run", QUICK, "-p", "nobody"], "unknown-plugin", '"nobody"'),
        (["run", QUICK, "-p", "no:losses"], "unknown-component", '"masked-ce"'),
        (["list", "blok"], "unknown-value", '"block"'),
        (["list", "--plugin", "loses"], "unknown-plugin", '"losses"'),
        (["list", "--filter", "adaln-zer"], "unknown-component", '"adaln-zero"'),
        (["describe", "blok", "adaln-zero"], "unknown-value", '"block"'),
        (["describe", "block", "absorbing"], "unknown-component", "process"),
        (["describe", "sampler"], "usage", "dither list sampler"),
        (["describe", "train", "lr"], "usage", "train"),
        (["prepare", "human-dhz"], "unknown-component", '"human-dhs"'),
        (["prepare", "text", "--to"], "missing-argument", "--to"),
        (["sample", "nowhere"], "", "nowhere"),
        (["sample", "nowhere", "--checkpoint", "last"], "usage", "last"),
        (["perplexity", "RUN", "a", "--data", "b"], "usage", "--data"),
        (["edit", "RUN"], "usage", "--outline"),
        (["edit", "RUN", "a", "--keep", "3-0"], "usage", "0-3,5"),
        (["frontier", "RUN"], "usage", "--over"),
        (["new", "experiment", "a.toml"], "usage", "--task"),
        (["resolve", QUICK, "train.steps"], "usage", "--origins"),
        (["schema", "--of", "everything"], "usage", "everything"),
        (["frobnicate"], "unknown-command", "No such command"),
        (["run", "--bogus"], "unknown-option", "No such option"),
        (["validate", "bubble_diagrm/quick"], "file-not-found", "bubble_diagram/quick"),
        (["validate", QUICK, "train.compile=yes"], "unknown-value", "true or false"),
        (["validate", QUICK, "train.start_from=EXPOR"], "file-not-found", "EXPORT"),
        (["validate", QUICK, "train.start_from=RUN"], "file-not-found", ""),
        (
            ["validate", QUICK, "train.start_layout=get"],
            "",
            "start_layout requires start_from",
        ),
        (["validate", QUICK, "train.start_partial=true"], "no-effect", "start_from"),
        (
            [
                "validate",
                QUICK,
                "train.lora={on=['attention']}",
                "train.freeze=['head.*']",
            ],
            "misfit",
            "freeze",
        ),
    ],
)
def test_invalid_input_is_refused_with_a_hint(
    arguments, code, word, cli, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name, file in (("RUN", "resolved.toml"), ("EXPORT", "weights.safetensors")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    printed = cli("--format", "json", *arguments, code=2)
    (problem,) = json.loads(printed.out)["problems"]
    assert not code or problem["code"] == code
    assert word in f"{problem['message']} {problem['help']}"
    assert printed.err == ""
    assert len(list(tmp_path.rglob("*"))) == 4


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


def test_a_plugin_file_adds_commands(tmp_path, cli):
    file = tmp_path / "greeter.py"
    file.write_text(COMMANDS)
    printed = cli("hello", "--name", "you", "-p", str(file), code=3)
    assert printed.out == "hello you\n"
    assert 'adds the command "validate", which exists already' in printed.err
    assert main(["validate", QUICK]) == 0, "the built-in command stays"
    assert main(["hello"]) == 2, "without the plugin the command is unknown"
    file.write_text(COMMANDS.replace("(app):\n", "(app):\n    1 / 0\n"))
    assert "ZeroDivisionError" in cli("hello", "-p", str(file), code=2).err


ENGINE_COMMANDS = COMMANDS.replace("(app):", "(app, engine):").replace(
    'print("hello", name)',
    """from pathlib import Path
        from dither.registry.contracts.commands import RunOptions
        model = engine.load(Path(name), RunOptions(changes=["sampler.temperature=0.5"]))
        like = model.task.like(2, 0)
        print(tuple(model.sample(like, 0).shape), tuple(model.log_clean(like).shape[:2]))""",
)


def test_a_command_of_a_plugin_applies_the_model_of_a_run(trained, tmp_path, cli):
    (file := tmp_path / "greeter.py").write_text(ENGINE_COMMANDS)
    assert (
        cli("hello", "--name", str(trained[1]), "-p", str(file), code=3).out
        == "(2, 8) (2, 8)\n"
    )


def test_commands_of_plugins_run_with_garbage_collection(tmp_path, cli):
    (file := tmp_path / "greeter.py").write_text(
        COMMANDS.replace('"hello", name', '__import__("gc").isenabled()')
    )
    gc.disable()  # as `main` does
    try:
        assert cli("hello", "-p", str(file), code=3).out == "True\n"
    finally:
        gc.unfreeze()
        gc.enable()


def test_a_plugin_adds_a_group_without_a_name(tmp_path, cli):
    group = "typer.Typer(name='group'); app.add_typer(group)\n    @group.command()"
    source = "import typer\n" + COMMANDS.replace(
        "@app.command()\n    def hello", f"group = {group}\n    def hello"
    )
    (file := tmp_path / "greeter.py").write_text(source)
    assert cli("group", "hello", "-p", str(file), code=3).out == "hello world\n"
    file.write_text(source.replace("'group'", "'runs'"))
    assert (
        'adds the command "runs", which exists already'
        in cli("group", "-p", str(file), code=2).err
    )


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The working directory, which is on the path too, and a function that installs a plugin in it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def install(name: str, source: str, entry: str = "") -> None:
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
        )
        (info / "entry_points.txt").write_text(
            f"[dither.plugins]\n{entry or name} = {name}\n"
        )

    yield install
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_help_and_corrections_need_no_valid_registry_toml(site, capsys, cli):
    """Nor valid entry points of other packages."""
    broken = Path("broken-1.dist-info")
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[console_scripts]\nnoequals\n")
    site("tp_greeter", COMMANDS)
    for invalid in (False, True):
        for words, said in (
            ([], ""),
            (["--help"], ""),
            (["validat"], "No such command"),
        ):
            main(words)
            printed = capsys.readouterr()
            assert said in printed.err
            assert said or "validate" in printed.out
            assert ("registry.toml" in printed.err) == invalid
        Path("registry.toml").write_text("plugins = 3\n")
    assert "No such command" not in (message := cli("hello", code=2).err)
    assert "registry.toml" in message


def test_one_plugin_that_fails_to_add_commands_takes_no_others_away(site, cli):
    for name in ("tp_aaa", "tp_bbb", "tp_ccc"):
        site(
            name,
            COMMANDS.replace("hello", f"hello-{name}").replace(
                "def hello-", "def hello_"
            ),
        )
    Path("tp_bbb.py").write_text(
        COMMANDS.replace("(app):\n", "(app):\n    raise SystemExit(0)\n")
    )
    printed = cli("--help")
    assert [
        name
        for name in ("tp-aaa", "tp-bbb", "tp-ccc")
        if f"hello-{name}" in printed.out
    ] == [
        "tp-aaa",
        "tp-ccc",
    ]
    assert "─ tasks and plugins ─" in printed.out
    assert 'plugin "tp_bbb" (tp_bbb 1) failed in register_commands' in printed.err


def test_a_command_of_a_plugin_may_have_an_option_p(site, cli):
    site(
        "tp_greeter",
        "import typer\n"
        + COMMANDS.replace('str = "world"', 'str = typer.Option("world", "-p")'),
    )
    assert cli("hello", "-p", "8080", code=3).out == "hello 8080\n"
    assert main(["hello", "-p"]) == 2


BLOCK = """
from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec
class Block(BlockSpec):
    "A block."
    name = "{name}"
    def build(self, width, cond): raise NotImplementedError
@hookimpl
def register_components(): return [Block]
"""
BROKEN = {
    "tp_raises": "raise RuntimeError('no luck')",
    "tp_half": BLOCK.format(name="half").replace(
        "return [Block]", "yield Block; raise ValueError('half')"
    ),
}
LINGERS = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
OTHERS = {
    "tp_prints": "print('noise')\n" + BLOCK.format(name="prints"),
    "tp_lingers": LINGERS + BLOCK.format(name="lingers"),
    "tp_one": "",
    "tp_two": "",
    "tp_clash": BLOCK.format(name="adaln-zero"),
}


def test_broken_plugins_are_listed_and_stop_only_experiments_that_use_them(
    site, capsys, monkeypatch, cli
):
    for name, source in {**BROKEN, **OTHERS}.items():
        site(name, source, "tp_same" if name in ("tp_one", "tp_two") else "")
    monkeypatch.chdir(ROOT)  # registry.toml lists the owner of each name
    assert main(["validate", QUICK]) == 0
    assert not {"tp_raises", "tp_prints", "tp_clash", "tp_lingers"} & set(sys.modules)
    capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(cli("plugins", "--json").out)}
    assert {name for name, row in rows.items() if row["state"] == "failed"} == set(
        BROKEN
    )
    assert all(row["reason"] for name, row in rows.items() if name in BROKEN)
    assert (rows["tp_same"]["state"], rows["tp_same"]["source"]) == (
        "clash",
        "tp_one, tp_two",
    )
    assert rows["core-blocks"]["state"] == rows["tp_lingers"]["state"] == "loaded"
    assert main(["describe", "process", "absorbing"]) == 0
    assert "tp_raises" in cli("doctor", code=1).out
    message = cli("validate", QUICK, "--set", "model.block=half", code=2).err
    assert "[unknown-component]" in message
    assert 'plugin "tp_half" (tp_half 1)' in message
    message = cli("validate", QUICK, "-p", "tp_raises", code=2).err
    assert "[plugin-failed]" in message
    assert "no luck" in message


@pytest.mark.slow
def test_list_is_cached_until_a_plugin_changes(install, cli, tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(components, "CACHE_FROM_SECONDS", 0.0)
    file = install("listed", BLOCK.format(name="first"))
    before = cli("list", "--json").out
    with monkeypatch.context() as patch:
        patch.setattr(components, "visible_plugins", None)  # no plugin is loaded
        assert cli("list", "--json").out == before
        assert "first" in cli("list", "block", "--plugin", "listed").out
    with monkeypatch.context() as patch:
        patch.setenv("DITHER_PLUGINS", "engine")
        assert '"first"' not in cli("list", "--json").out
    file.write_text(BLOCK.format(name="second"))
    sys.modules.pop(file.stem)
    after = cli("list", "--json").out
    assert '"second"' in after
    assert '"first"' not in after
    install("another", BLOCK.format(name="third"))
    assert '"third"' in cli("list", "--json").out


def test_run_sample_evaluate_and_resume(trained, tmp_path, capsys):
    def printed(*arguments: str) -> str:
        assert main([*arguments], verb="run") == 0, capsys.readouterr().err
        return capsys.readouterr().out

    assert (trained[1].parent / "latest").resolve() == trained[1].resolve()
    run = Path(shutil.copytree(trained[1], tmp_path / "a run"))
    for name in (
        "experiment.toml",
        "resolved.toml",
        "manifest.json",
        "metrics.jsonl",
        "checkpoints",
        "samples",
    ):
        assert (run / name).exists(), name
    before = (run / "metrics.jsonl").read_bytes()
    measured = json.loads(printed("evaluate", str(run), "--json"))
    again = {name: value for name, value in measured.items() if "/" not in name}
    assert again["nats_per_token"] > 0
    known = json.loads((run / "summary.json").read_text())["baselines"]
    baselines = {name: known[name] for name in known if name.partition("/")[0] in again}
    assert {name: value for name, value in measured.items() if "/" in name} == baselines
    lines = [json.loads(line) for line in before.decode().splitlines()]
    assert {
        key: value for key, value in lines[-2].items() if key in again
    } == pytest.approx(again), "as in the run"
    other = json.loads(printed("evaluate", str(run), "--json", "--split", "test"))
    assert other["nats_per_token"] not in (0, again["nats_per_token"])
    assert other["nats_per_token/unigram"] not in (
        0,
        baselines["nats_per_token/unigram"],
    )
    (line,) = [
        line
        for line in printed("evaluate", str(run)).splitlines()
        if line.startswith("nats_per_token ")
    ]
    assert f"{again['nats_per_token']:.6g} ± " in line
    assert f"unigram {baselines['nats_per_token/unigram']:.4g}" in line
    output = printed(
        "sample", str(run), "--count", "3", "--out", str(tmp_path / "samples")
    )
    assert "nats_per_token" not in output, (
        "no baselines of metrics that were not measured"
    )
    assert list((tmp_path / "samples").iterdir())
    assert (run / "metrics.jsonl").read_bytes() == before
    printed("--resume", str(run), "--set", "train.steps=5")
    assert (run.parent / "latest").resolve() == run
    output = printed("--resume", str(run), "--set", "train.steps=6")
    assert f"dither sample '{run}'" in output, "commands can be pasted"
    steps = [
        json.loads(line).get("step")
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    assert max(step for step in steps if step is not None) == 6


def test_experiments_are_found_by_name_in_any_folder_and_copied(
    tmp_path, monkeypatch, cli
):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["new", "experiment", "mine.toml", "--from", "bubble_diagram/seed_base"])
        == 0
    )
    for words in (
        ["mine"],
        ["experiments/bubble_diagram/quick.toml"],
        ["language_model/quick", "seed=3"],
    ):
        assert main(["validate", *words]) == 0
    (tmp_path / "more.toml").write_text('extends = "get_region/quick"\nseed = 3\n')
    assert load_experiment("more").experiment.seed == 3
    assert (
        "exists already"
        in cli(
            "new", "experiment", "mine.toml", "--from", "language_model/quick", code=2
        ).err
    )


def test_a_copied_experiment_has_its_own_name_and_no_results(
    tmp_path, monkeypatch, cli
):
    monkeypatch.chdir(tmp_path)
    words = ["new", "experiment", "my plans.toml", "--from", "bubble_diagram/quick"]
    printed = cli(
        *words, "train.steps=3", "sampler.use=ancestral", "sampler.steps=5"
    ).out
    assert printed.endswith("next: dither run 'my plans.toml'\n")
    text = Path("my plans.toml").read_text()
    for absent in ("schema", "Result", "experiments.run"):
        assert absent not in text
    copy = load_experiment("my plans.toml").experiment
    original = load_experiment("bubble_diagram/quick").experiment
    assert (copy.name, copy.train.steps, copy.sampler.steps) == ("my-plans", 3, 5)
    same = {"name", "sampler", "train"}
    assert copy.model_dump(exclude=same) == original.model_dump(exclude=same)
    assert (
        "[unknown-key]"
        in cli(*words[:2], "b.toml", *words[3:], "train.stpes=3", code=2).err
    )
    assert not Path("b.toml").exists()


def test_a_short_flag_is_the_same_everywhere():
    """-n is --count in every command, and a number of draws --draws."""
    app, _ = app_for(["--help"])
    pending = [get_command(app)]
    longs: dict[str, set[str]] = {}
    while pending:
        command = pending.pop()
        pending += getattr(command, "commands", {}).values()
        for parameter in command.params:
            short = [flag for flag in parameter.opts if re.fullmatch("-[a-z]", flag)]
            for flag in short:
                longs.setdefault(flag, set()).update(set(parameter.opts) - {flag})
            text = (getattr(parameter, "help", "") or "").lower()
            if text.startswith("draws "):
                assert parameter.opts[0] in ("--draws", "--tight")
    assert longs == {
        "-j": {"--jobs"},
        "-n": {"--count"},
        "-p": set(),
        "-y": {"--yes"},
    }


@pytest.mark.parametrize("task", ["bubble-diagram", "get-region", "language-model"])
def test_new_experiment_writes_the_quick_experiment_with_every_option(task, tmp_path):
    assert main(["new", "experiment", str(tmp_path / "all.toml"), "--task", task]) == 0
    name = f"{task.replace('-', '_')}/quick"
    quick = load_experiment(name, ["name=all"]).experiment
    assert load_experiment(tmp_path / "all.toml").experiment == quick
    text = (tmp_path / "all.toml").read_text()
    keys = type(load_experiment(name).experiment.train).model_fields
    assert [
        key for key in keys if f"{key} = " not in text and f"[train.{key}]" not in text
    ] == []


EXPERIMENTS = Path(__file__).parents[1] / "experiments/bubble_diagram"


@pytest.fixture
def here(tmp_path, monkeypatch):
    for path in EXPERIMENTS.glob("*.toml"):
        shutil.copyfile(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def explained(cli):
    """`dither resolve --origins`, which returns value and story by key."""

    def call(*words: str) -> dict[str, tuple[str, str]]:
        split = (
            line.partition(" = ")
            for line in cli("resolve", "--origins", *words).out.splitlines()
        )
        return {
            key.strip(): tuple(part.strip() for part in rest.split("  ", 1))
            for key, _, rest in split
        }

    return call


def place(name: str, text: str, part: str) -> str:
    """Return file:line:column of a text in a file."""
    numbered = enumerate(Path(name).read_text().splitlines(), 1)
    number, line = next((number, line) for number, line in numbered if text in line)
    return f"{name}:{number}:{line.index(part, line.index(text)) + 1}"


def test_origins_shows_origins_and_overridden_values(here, explained):
    changes = [
        "--set",
        "train.optimizer.lr=1e-5",
        "--unset",
        "model.affine",
        "--set",
        "sampler=first-hitting",
    ]
    found = explained("seed_base.toml", *changes)
    base, small = (
        place("seed_base.toml", "lr = ", "5e-4"),
        place("seed_small.toml", "lr = ", "1.5e-3"),
    )
    assert found["train.optimizer.lr"] == (
        "1e-05",
        f"from --set train.optimizer.lr=1e-5, over {base}, {small}",
    )
    affine = place("seed_small.toml", "affine = true", "true")
    assert found["model.affine"] == (
        "false",
        f"default of denoiser after --unset model.affine, over {affine}",
    )
    assert found["sampler.use"][0] == '"processes/first-hitting@1"'
    assert found["sampler.use"][1].startswith("from --set sampler=first-hitting")
    head = place("seed_small.toml", "head = ", '"tokens"')
    assert found["model.head.use"] == ('"embeddings/tokens@1"', f"from {head}")
    assert found["model.head.zero"][1] == "default of tokens"
    assert found["train.threads"] == ("(none)", "default of [train]")
    assert found["seed"][1] == "default of the experiment"


def test_origins_one_key_or_table(here, cli, explained):
    found = explained("quick.toml", "model.block")
    assert "model.block.heads" in found
    assert all(key.startswith("model.block.") for key in found)
    steps = explained("quick.toml", "train.steps")
    assert steps == {
        "train.steps": ("1000", "from " + place("quick.toml", "steps = 1000", "1000"))
    }
    suggestions = {
        "model.bolck": "model.block",
        "train.stpes": "train.steps",
        "heads": "model.block.heads",
    }
    for wrong, right in suggestions.items():
        assert (
            f'did you mean "{right}"?'
            in cli("resolve", "--origins", "quick.toml", wrong, code=2).err
        )


def test_origins_as_json(here, cli, explained):
    found = cli(
        "resolve",
        "--origins",
        "quick.toml",
        "train",
        "--set",
        "train.steps=3",
        "--json",
    ).out
    rows = {row["key"]: row for row in json.loads(found)}
    steps = rows["train.steps"]
    assert (steps["value"], steps["from"]["file"], steps["default_of"]) == (
        3,
        "--set train.steps=3",
        None,
    )
    assert steps["over"][0]["file"] == "quick.toml"
    assert (rows["train.keep"]["from"], rows["train.keep"]["default_of"]) == (
        None,
        "[train]",
    )
    for words in (["train.steps=7"], ["--train.steps", "7"], ["--train.steps=7"]):
        assert (
            json.loads(
                cli(
                    "resolve",
                    "--origins",
                    "quick.toml",
                    "train.steps",
                    *words,
                    "--json",
                ).out
            )[0]["value"]
            == 7
        )
    assert (
        "[unknown-key]"
        in cli(
            "resolve", "--origins", "quick.toml", "--set", "train.stpes=3", code=2
        ).err
    )
    assert (
        explained("quick.toml", "model.block.heads", "--set", "model.block.heads=7")[
            "model.block.heads"
        ][0]
        == "7"
    )


def test_diff_of_two_files(here, cli):
    text = cli("runs", "diff", "quick.toml", "seed_base.toml").out
    assert "sampler" in text.partition("options")[0]
    assert "processes/first-hitting@1 -> processes/ancestral@1" in text
    assert re.search(r"model\.width +64 -> 256", text)
    assert re.search(r"sampler\.steps +\(none\) -> 100", text)
    assert "option types" not in text
    assert "no difference" in cli("runs", "diff", "quick.toml", "quick.toml").out


def test_diff_of_two_runs(here, cli):
    for name, one in {"one": True, "other": False}.items():
        (here / name).mkdir()
        manifest = {
            "environment": {
                "python": "3.11.7" if one else "3.12.1",
                "torch": "2.13.0",
                "threads": 1,
            },
            "git": {"commit": ("a" if one else "b") * 40, "clean": one},
            "plugins": {
                "core-blocks": {"version": "0.1.0" if one else "0.2.0", "sha256": ""}
            },
        }
        manifest["plugins"] |= {} if one else {"mine": {"version": "", "sha256": "f00"}}
        text = json.dumps(with_checksum(manifest))
        (here / name / "manifest.json").write_text(text)
        changes = [] if one else ["--set", "train.steps=3"]
        (here / name / "resolved.toml").write_text(
            cli("resolve", "quick.toml", *changes).out
        )
    found = json.loads(cli("runs", "diff", "one", "other", "--json").out)
    assert found["options"] == {"train.steps": [1000, 3]}
    assert found["parts"] == {}
    assert found["plugins"]["core-blocks.version"] == ["0.1.0", "0.2.0"]
    assert found["plugins"]["mine.sha256"] == [None, "f00"]
    assert found["environment"] == {"python": ["3.11.7", "3.12.1"]}
    assert found["git"] == {"commit": ["a" * 40, "b" * 40], "clean": [True, False]}
    mixed = differences(read_side(here / "one"), read_side(here / "quick.toml"))
    assert mixed["options"] == {}
    assert not {"environment", "git"} & set(mixed)


def test_diff_refuses_other_folders(here, cli):
    (here / "folder").mkdir()
    for wrong, message in {
        "folder": "[not-a-run]",
        "nowhere.toml": "nowhere.toml",
        ".": "[not-a-run]",
    }.items():
        assert message in cli("runs", "diff", wrong, "quick.toml", code=2).err


def test_validate_reports_the_experiment_with_its_sweep(tmp_path, cli):
    """Each problem once, the search without Optuna, and without torch."""
    file = tmp_path / "search.toml"
    file.write_text(
        'extends = "bubble_diagram/quick"\n'
        "[sweep.search]\n"
        'trials = "many"\n'
        "[sweep.search.space]\n"
        '"train.optimizer.lr" = { low = -0.1, high = 0.4 }\n'
        '"model.dept" = [1, 2]\n'
        '"seed" = { low = 3, high = 1 }\n'
    )
    code = (
        "import sys\n"
        "sys.modules['optuna'] = None\n"
        "from dither.engine.cli import main\n"
        "code = main(['validate', sys.argv[1], 'sample.count=-1', '--json'])\n"
        "assert code == 2 and 'torch' not in sys.modules\n"
    )
    problems = json.loads(python(code, str(file)))["problems"]
    found = {
        (problem["code"], problem["path"], problem["line"]) for problem in problems
    }
    assert len(problems) == len(found)
    assert found == {
        ("out-of-range", "sample.count", None),
        ("wrong-type", "sweep.search.trials", 3),
        ("out-of-range", "train.optimizer.lr", 5),
        ("unknown-key", "model.dept", 6),
        ("invalid-value", "sweep.search.space.seed", 7),
    }
    file.write_text('extends = "bubble_diagram/quick"\nsweep.grid.seed = [1, 2]\n')
    cli("validate", str(file))
