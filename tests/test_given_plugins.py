"""Plugin files inside runs, exports and sweeps from other users: no command executes them without `-p`."""

import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import dither
from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment, open_experiment
from dither.engine.config.plugins import came_with_run
from dither.engine.sweeps import launch
from dither.engine.sweeps.directory import SweepDirectory
from dither.engine.sweeps.point_process import run_point
from dither.registry.config.errors import Refused

TOY = Path(__file__).parents[1] / "packages" / "engine" / "tests" / "toy_plugin.py"
TEXT = """
plugins = ["toy_plugin.py"]
task = "toy-words"
process = "toy-mask"
model = "toy-net"
loss = "toy-ce"
sampler = "toy-walk"
[train]
steps = 2
batch_size = 4
device = "cpu"
[evaluate]
samples = 4
[sample]
count = 1
"""


def dither_cli(*words):
    """Run a command; return its exit code and its output on one line."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main([str(word) for word in words])
    return code, " ".join(out.getvalue().split())


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A run, an export and a sweep of another user, whose plugin file creates a flag file when it is executed."""
    folder = tmp_path_factory.mktemp("foreign")
    flag = folder / "ran"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "their-state"))
        code = TOY.read_text() + f"\nopen({str(flag)!r}, 'a').close()\n"
        (folder / "toy_plugin.py").write_text(code)
        (folder / "parent.toml").write_text(TEXT)
        (folder / "exp.toml").write_text('extends = "parent.toml"')
        assert dither_cli("run", folder / "exp.toml", "--runs", folder / "runs")[0] == 0
        (run,) = (folder / "runs").glob("*-*")
        assert dither_cli("export", run, "--out", folder / "export")[0] == 0
        document, _ = open_experiment(folder / "exp.toml")
        made = SweepDirectory.create(folder / "sweeps", document, ["dither"])
        made.record([made.add("0-seed=0", {"seed": 0}, load_experiment(folder / "exp.toml"))])
        sweep = made.path
    run.rename(folder / "run")
    sweep.rename(folder / "sweep")
    (folder / "toy_plugin.py").unlink()
    assert flag.exists()
    flag.unlink()
    return folder


@pytest.fixture
def copies(foreign, monkeypatch, tmp_path):
    """Copies of these on a machine where nothing of them has been executed yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("run", "export", "sweep"):
        shutil.copytree(foreign / name, tmp_path / name)
    (foreign / "ran").unlink(missing_ok=True)
    return tmp_path


def test_commands_that_only_read_do_not_execute_plugins(copies, foreign):
    for words in (
        "runs list .", "runs verify run", "report run", "diff run run", "export run --to again", "sweep status sweep",
        "report sweep",
    ):  # fmt: skip
        assert dither_cli(*words.split())[0] == 0, words
    assert not (foreign / "ran").exists()


def test_no_command_executes_the_plugin_without_a_flag(copies, foreign):
    for words in (
        "evaluate run", "sample run", "sample run --export dot", "run --resume run --set train.steps=3",
        "run --resume run --set train.steps=3 --accept-changes", "run run/resolved.toml",
        "run run/resolved.toml --accept-changes", "bench run/resolved.toml", "validate run/resolved.toml",
        "explain run/resolved.toml", "resolve export/experiment.toml", "diff run/resolved.toml run",
        "sweep run/resolved.toml --sweep seed=[1]",
    ):  # fmt: skip
        code, output = dither_cli(*words.split())
        assert code == 2, words
        assert "[untrusted-plugin]" in output
        assert (
            "-p run/plugins/toy_plugin.py" in output or "-p export/plugins/toy_plugin.py" in output
        ), words
    for file in (
        "run/experiment",
        "run/extends/1-parent",
        "sweep/experiment",
        "sweep/extends/1-parent",
    ):
        (copies / f"{file}.toml").write_text(TEXT)
        (copies / file).with_name("toy_plugin.py").write_bytes(
            (copies / "run/plugins/toy_plugin.py").read_bytes()
        )
        assert "[untrusted-plugin]" in dither_cli("validate", f"{file}.toml")[1], file
    (copies / "own.toml").write_text('extends = "run/resolved.toml"\n')
    assert dither_cli("validate", "own.toml")[0] == 2, "an own file that extends a foreign one"
    for folder in ("run", "export"):
        with pytest.raises(Refused, match="untrusted-plugin"):
            dither.load(folder)
    assert run_point(copies / "sweep" / "0-seed=0") == 2, "as `dither sweep --resume` starts it"
    assert not (foreign / "ran").exists()
    assert not (copies / "runs").exists()


@pytest.mark.parametrize(
    "words", [["evaluate", "run"], ["run", "--resume", "run", "--set", "train.steps=3"]]
)
def test_a_plugin_executed_with_a_flag_is_trusted_afterwards(copies, foreign, words):
    assert dither_cli(*words, "-p", "run/plugins/toy_plugin.py")[0] == 0
    assert (foreign / "ran").exists()
    assert dither_cli("evaluate", "run")[0] == 0, "the same content was executed before"
    with (copies / "run" / "plugins" / "toy_plugin.py").open("a") as file:
        file.write("# more\n")
    assert "[untrusted-plugin]" in dither_cli("evaluate", "run")[1]


def test_loading_and_points_take_plugins(copies, monkeypatch):
    for folder in ("run", "export"):
        system = dither.load(folder, plugins=[f"{folder}/plugins/toy_plugin.py"])
        assert len(dither.draw(system, system.task.like(2, seed=0), seed=0)) == 2
    point = copies / "sweep" / "0-seed=0"
    shutil.copytree("sweep", "other")
    assert run_point(point, [str(point / "plugins" / "toy_plugin.py")]) == 0
    (copies / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(copies / "file"))
    assert run_point(copies / "other" / point.name, trust=True) == 0, "without a state folder"


def test_without_a_state_folder_the_flag_is_required_each_time(copies, monkeypatch):
    (copies / "state").touch()
    flag = ["-p", "run/plugins/toy_plugin.py"]
    assert dither_cli("evaluate", "run", *flag)[0] == 0
    assert "[untrusted-plugin]" in dither_cli("evaluate", "run")[1]
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(copies / "state"))
    assert dither_cli("evaluate", "run", *flag)[0] == 0


def test_files_next_to_an_experiment_do_not_make_it_a_run(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("manifest.json", "MANIFEST.json"):
        (tmp_path / name).touch()
    assert not came_with_run(tmp_path / "exp.toml")
    assert not came_with_run(tmp_path / "deep" / "exp.toml")
    for name in ("resolved.toml", "weights.safetensors"):
        (tmp_path / name).touch()
        assert came_with_run(tmp_path / "exp.toml")
        assert came_with_run(tmp_path / "deep" / "exp.toml")
        (tmp_path / name).unlink()


def test_a_link_to_a_point_is_still_part_of_a_sweep(copies, monkeypatch):
    (copies / "away" / "far").mkdir(parents=True)
    (copies / "sweep" / "0-seed=0").rename(copies / "away" / "far" / "point")
    (copies / "sweep" / "0-seed=0").symlink_to(copies / "away" / "far" / "point")
    assert came_with_run(copies / "sweep" / "0-seed=0" / "experiment.toml")
    monkeypatch.chdir(copies / "sweep")
    assert came_with_run(Path("0-seed=0/experiment.toml"))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """An own experiment without a writable state folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "toy_plugin.py").write_text(TOY.read_text())
    (tmp_path / "exp.toml").write_text(TEXT)
    return tmp_path


def test_a_run_warns_that_nothing_was_recorded_and_how_to_resume(own):
    code, output = dither_cli("run", "exp.toml")
    hint = f"to resume, name the plugin files: -p {own / 'toy_plugin.py'}"
    assert code == 0
    assert output.count("the state folder is not writable") == 1
    assert "".join(hint.split()) in "".join(output.split())
    (run,) = (own / "runs").glob("*-*")
    longer = ["run", "--resume", run, "--set", "train.steps=3"]
    assert "[untrusted-plugin]" in dither_cli(*longer)[1]
    assert dither_cli(*longer, "-p", own / "toy_plugin.py")[0] == 0


@pytest.mark.parametrize(
    ("search", "more"), [(False, []), (False, ["--executor", "local"]), (True, [])]
)
def test_only_points_of_a_new_sweep_are_trusted(own, monkeypatch, search, more):
    given = []
    monkeypatch.setattr(
        launch, "run_points", lambda source, jobs, console, select, keep_going: given.append(select)
    )
    monkeypatch.setattr(
        launch, "_submit", lambda sweep, executor, select, console: given.append(select)
    )
    if search:
        (own / "exp.toml").write_text(
            TEXT + "[sweep.search]\ntrials = 1\nspace = { seed = [1, 2] }\n"
        )
    _, output = dither_cli("sweep", "exp.toml", *([] if search else ["--sweep", "seed=[1]"]), *more)
    assert given == [("--trusted",)], output
    (sweep,) = (own / "runs").glob("*-*")
    dither_cli("sweep", "--resume", sweep, "-p", "toy_plugin.py", *more)
    assert given[1:] == [("toy_plugin.py",)]


def test_an_export_describes_its_space_with_a_trusted_or_given_plugin(
    own, foreign, monkeypatch, text_experiment
):
    (own / "a.txt").write_text("some words of a text\n" * 40)
    (own / "watch.py").write_text(
        "from dither.registry import hookimpl\n@hookimpl\ndef after_step(step): pass\n"
    )
    (own / "exp.toml").write_text('plugins = ["watch.py"]\n' + text_experiment(str(own / "a.txt")))
    assert dither_cli("run", "exp.toml")[0] == 0
    (run,) = (own / "runs").glob("*-*")

    def space(name):
        return json.loads((own / name / "MANIFEST.json").read_text())["space"]

    code, output = dither_cli("export", run, "--out", "blind")
    assert (code, space("blind")) == (0, None)
    assert output.count("the space of a sample is unknown") == 1
    code, output = dither_cli("export", run, "--out", "output", "-p", "watch.py")
    assert code == 0
    assert "is not output" not in output
    assert space("output")["fields"]


WRONG = """
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.plugins.manager import default_catalog

class Wrong(default_catalog().find({kind!r}, {base!r}).spec):
    "Wrong."
    name: ClassVar[str] = "wrong"
    def build(self, *given):
        {body}

@hookimpl
def register_components(): return [Wrong]
"""
FORWARD = "made = super().build(*given); made.forward = lambda *a, **o: {}; return made"


@pytest.mark.parametrize(
    ("kind", "base", "place", "body", "reason"),
    [
        ("sampler", "first-hitting", "sampler", "return self.build(*given)", "RecursionError"),
        (
            "lr-schedule",
            "constant",
            "train.lr_schedule",
            "return lambda step: None",
            "the factor of step 0 is None",
        ),
        ("block", "adaln-zero", "model.block", FORWARD.format("None"), "forward returned None"),
        (
            "block",
            "adaln-zero",
            "model.block",
            FORWARD.format("a[0][:, :1]"),
            "forward returned shape",
        ),
        ("condition", "level", "model.condition", FORWARD.format("None"), "forward returned None"),
    ],
)
def test_wrong_results_name_component_and_plugin(
    tmp_path, text_experiment, capsys, kind, base, place, body, reason
):
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 20)
    (tmp_path / "exp.toml").write_text(text_experiment(str(tmp_path / "a.txt")))
    (tmp_path / "mine.py").write_text(WRONG.format(kind=kind, base=base, body=body))
    words = [
        "run",
        str(tmp_path / "exp.toml"),
        "--set",
        f"{place}.use=wrong",
        "-p",
        str(tmp_path / "mine.py"),
    ]
    words += ["--set", f"{place}=wrong"] if place == "sampler" else []
    assert main([*words, "--runs", str(tmp_path / "runs")]) == 2
    assert f'{kind} "wrong" of plugin "mine" failed: {reason}' in " ".join(
        capsys.readouterr().err.split()
    )
