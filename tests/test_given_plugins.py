"""A run, an export or a sweep that somebody gave you may hold a plugin file: no verb runs it without a flag."""

import shutil
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest

import dither
from dither.engine.cli import main
from dither.engine.experiment import load_experiment, open_experiment
from dither.engine.sweep.directory import SweepDirectory
from dither.engine.sweep.point import run_point
from dither.registry.problems import Refused

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
        (folder / "exp.toml").write_text(TEXT)
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
        ["run", "run/resolved.toml"],
        ["bench", "run/resolved.toml"],
        ["validate", "run/resolved.toml"],
        ["explain", "run/resolved.toml"],
        ["resolve", "export/experiment.toml"],
        ["diff", "run/resolved.toml", "run"],
        ["sweep", "run/resolved.toml", "--sweep", "seed=[1]"],
    ):
        code, told = said(*words)
        assert code == 2, words
        assert "with this content it has not run here yet" in told
        assert "-p run/plugins/toy_plugin.py" in told or "-p export/plugins/toy_plugin.py" in told, words
    (here / "mine.toml").write_text('extends = "run/resolved.toml"\n')
    assert said("validate", "mine.toml")[0] == 2, "nor where my own file extends theirs"
    for folder in ("run", "export"):
        with pytest.raises(Refused, match="has not run here yet"):
            dither.load(folder)
    assert run_point(here / "sweep" / "0-seed=0") == 2, "as `dither sweep --resume` begins it"
    assert not (theirs / "ran").exists()
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "run", "-p", "run/plugins/toy_plugin.py"],
        ["sample", "run", "--out", "drawn", "-p", "run/plugins/toy_plugin.py"],
        ["run", "--resume", "run", "--set", "train.steps=3", "--accept-changes"],
    ],
)
def test_with_a_flag_it_runs_and_then_is_known(here, theirs, words):
    assert said(*words)[0] == 0
    assert (theirs / "ran").exists()
    assert said("evaluate", "run")[0] == 0, "the same content has run here"
    with (here / "run" / "plugins" / "toy_plugin.py").open("a") as file:
        file.write("# more\n")
    assert "has not run here yet" in said("evaluate", "run")[1]


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
    assert "has not run here yet" in said("evaluate", "run")[1]
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(here / "state"))
    with suppress(SystemExit):
        assert said("evaluate", "run", *flag)[0] == 0
