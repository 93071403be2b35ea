"""A run, an export or a sweep that somebody gave you may hold a plugin file: no verb runs it without a flag."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import dither
from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment, open_experiment
from dither.engine.config.plugins import came_with_run
from dither.engine.sweeps import cluster, execution
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


def said(*words):
    """Run a command; return its exit code and all that it said, on one line."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main([str(word) for word in words])
    return code, " ".join(out.getvalue().split())


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A run, an export and a sweep of somebody else, whose plugin file leaves a flag wherever it runs."""
    folder = tmp_path_factory.mktemp("theirs")
    flag = folder / "ran"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "their-state"))
        code = TOY.read_text() + f"\nopen({str(flag)!r}, 'a').close()\n"
        (folder / "toy_plugin.py").write_text(code)
        (folder / "parent.toml").write_text(TEXT)
        (folder / "exp.toml").write_text('extends = "parent.toml"')
        assert said("run", folder / "exp.toml", "--runs", folder / "runs")[0] == 0
        (run,) = (folder / "runs").iterdir()
        assert said("export", run, "--to", folder / "export")[0] == 0
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
def here(theirs, monkeypatch, tmp_path):
    """What they gave, on a machine where nothing of it has run yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("run", "export", "sweep"):
        shutil.copytree(theirs / name, tmp_path / name)
    (theirs / "ran").unlink(missing_ok=True)
    return tmp_path


def test_what_only_reads_a_run_does_so_without_its_code(here, theirs):
    for words in (
        ["runs", "list", "."],
        ["runs", "verify", "run"],
        ["report", "run"],
        ["diff", "run", "run"],
        ["export", "run", "--to", "again"],
        ["sweep", "status", "sweep"],
        ["report", "sweep"],
    ):
        assert said(*words)[0] == 0, words
    assert not (theirs / "ran").exists()


def test_no_verb_runs_it_without_a_flag(here, theirs):
    for words in (
        ["evaluate", "run"],
        ["sample", "run"],
        ["sample", "run", "--export", "dot"],
        ["run", "--resume", "run", "--set", "train.steps=3"],
        ["run", "--resume", "run", "--set", "train.steps=3", "--accept-changes"],
        ["run", "run/resolved.toml"],
        ["run", "run/resolved.toml", "--accept-changes"],
        ["bench", "run/resolved.toml"],
        ["validate", "run/resolved.toml"],
        ["explain", "run/resolved.toml"],
        ["resolve", "export/experiment.toml"],
        ["diff", "run/resolved.toml", "run"],
        ["sweep", "run/resolved.toml", "--sweep", "seed=[1]"],
    ):
        code, told = said(*words)
        assert code == 2, words
        assert "[untrusted-plugin]" in told
        assert "-p run/plugins/toy_plugin.py" in told or "-p export/plugins/toy_plugin.py" in told, words
    for file in ("run/experiment", "run/extends/1-parent", "sweep/experiment", "sweep/extends/1-parent"):
        (here / f"{file}.toml").write_text(TEXT)
        (here / file).with_name("toy_plugin.py").write_bytes((here / "run/plugins/toy_plugin.py").read_bytes())
        assert "[untrusted-plugin]" in said("validate", f"{file}.toml")[1], file
    (here / "mine.toml").write_text('extends = "run/resolved.toml"\n')
    assert said("validate", "mine.toml")[0] == 2, "nor where my own file extends theirs"
    for folder in ("run", "export"):
        with pytest.raises(Refused, match="untrusted-plugin"):
            dither.load(folder)
    assert run_point(here / "sweep" / "0-seed=0") == 2, "as `dither sweep --resume` begins it"
    assert not (theirs / "ran").exists()
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "run", "-p", "run/plugins/toy_plugin.py"],
        ["sample", "run", "--out", "drawn", "-p", "run/plugins/toy_plugin.py"],
        ["run", "--resume", "run", "--set", "train.steps=3", "-p", "run/plugins/toy_plugin.py"],
    ],
)
def test_with_a_flag_it_runs_and_then_is_known(here, theirs, words):
    assert said(*words)[0] == 0
    assert (theirs / "ran").exists()
    assert said("evaluate", "run")[0] == 0, "the same content has run here"
    with (here / "run" / "plugins" / "toy_plugin.py").open("a") as file:
        file.write("# more\n")
    assert "[untrusted-plugin]" in said("evaluate", "run")[1]


def test_python_names_it_too(here):
    for folder in ("run", "export"):
        system = dither.load(folder, plugins=[f"{folder}/plugins/toy_plugin.py"])
        assert len(dither.draw(system, system.task.like(2, seed=0), seed=0)) == 2


def test_a_sweep_goes_on_with_a_flag(here):
    point = here / "sweep" / "0-seed=0"
    assert run_point(point, [str(point / "plugins" / "toy_plugin.py")]) == 0


def test_where_nothing_can_be_kept_it_is_named_each_time(here, monkeypatch):
    (here / "state").touch()
    flag = ["-p", "run/plugins/toy_plugin.py"]
    assert said("evaluate", "run", *flag)[0] == 0
    assert "[untrusted-plugin]" in said("evaluate", "run")[1]
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(here / "state"))
    assert said("evaluate", "run", *flag)[0] == 0


def test_what_lies_beside_an_experiment_of_mine_does_not_make_it_theirs(tmp_path):
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


def test_nor_does_a_link_make_theirs_mine(here, monkeypatch):
    (here / "away" / "far").mkdir(parents=True)
    (here / "sweep" / "0-seed=0").rename(here / "away" / "far" / "point")
    (here / "sweep" / "0-seed=0").symlink_to(here / "away" / "far" / "point")
    assert came_with_run(here / "sweep" / "0-seed=0" / "experiment.toml")
    monkeypatch.chdir(here / "sweep")
    assert came_with_run(Path("0-seed=0/experiment.toml"))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """An experiment of one's own, where nothing can be kept in the state folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "toy_plugin.py").write_text(TOY.read_text())
    (tmp_path / "exp.toml").write_text(TEXT)
    return tmp_path


def test_a_run_says_that_nothing_was_kept_and_how_to_go_on(mine):
    code, told = said("run", "exp.toml")
    hint = f"to resume, name the plugin files: -p {mine / 'toy_plugin.py'}"
    assert code == 0
    assert told.count("the state folder is not writable") == 1
    assert "".join(hint.split()) in "".join(told.split())
    (run,) = (mine / "runs").iterdir()
    longer = ["run", "--resume", run, "--set", "train.steps=3"]
    assert "[untrusted-plugin]" in said(*longer)[1]
    assert said(*longer, "-p", mine / "toy_plugin.py")[0] == 0
    (mine / "state").unlink()
    assert "the state folder is not writable" not in said("run", "exp.toml")[1]


def test_points_run_the_plugins_of_their_sweep_where_nothing_was_kept(mine):
    code, told = said("sweep", "exp.toml", "--sweep", "seed=[1]")
    assert code == 0, [path.read_text() for path in mine.glob("runs/*/*/output.txt")]
    assert "the state folder is not writable" in told


@pytest.mark.parametrize(("search", "more"), [(False, []), (False, ["--executor", "debug"]), (True, [])])
def test_only_points_of_a_fresh_sweep_are_trusted(mine, monkeypatch, search, more):
    given = []
    monkeypatch.setattr(execution, "run_points", lambda source, jobs, console, select, keep_going: given.append(select))
    monkeypatch.setattr(cluster, "submit_points", lambda sweep, executor, select, *rest: given.append(select) or [])
    if search:
        (mine / "exp.toml").write_text(TEXT + "[sweep.search]\ntrials = 1\nspace = { seed = [1, 2] }\n")
    _, told = said("sweep", "exp.toml", *([] if search else ["--sweep", "seed=[1]"]), *more)
    assert given == [("--trusted",)], told
    (sweep,) = (mine / "runs").iterdir()
    said("sweep", "--resume", sweep, "-p", "toy_plugin.py", *more)
    assert given[1:] == [("toy_plugin.py",)]


def test_an_export_tells_the_form_of_a_sample_with_a_plugin_that_is_known_or_named(
    mine, theirs, monkeypatch, text_experiment
):
    (mine / "a.txt").write_text("some words of a text\n" * 40)
    (mine / "watch.py").write_text("from dither.registry import hookimpl\n@hookimpl\ndef after_step(step): pass\n")
    (mine / "exp.toml").write_text('plugins = ["watch.py"]\n' + text_experiment(str(mine / "a.txt")))
    assert said("run", "exp.toml")[0] == 0
    (run,) = (mine / "runs").iterdir()

    def space(name):
        return json.loads((mine / name / "MANIFEST.json").read_text())["space"]

    code, told = said("export", run, "--to", "blind")
    assert (code, space("blind")) == (0, None)
    assert told.count("the space of a sample is unknown") == 1
    code, told = said("export", run, "--to", "told", "-p", "watch.py")
    assert code == 0
    assert "is not told" not in told
    assert space("told")["fields"]


def test_tests_never_note_plugins_in_the_state_of_whoever_runs_them(tmp_path):
    code = "import runpy, os; runpy.run_path('conftest.py'); print(os.environ['XDG_STATE_HOME'])"
    surroundings = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    told = subprocess.check_output(command, cwd=Path(__file__).parents[1], env=surroundings, text=True)
    assert told.strip() not in ("", str(tmp_path))
