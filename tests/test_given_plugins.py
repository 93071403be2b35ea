"""Plugin files inside runs, exports and sweeps are executed as recorded, or if `-p` names them."""

import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import dither
from dither.engine.checkpoints.checkpoint import Damaged
from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment, open_experiment
from dither.engine.config.plugins import recorded_checksums
from dither.engine.runs import exports
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
def shared(tmp_path_factory):
    """A run, an export and a sweep, whose plugin file creates a flag file when it is executed."""
    folder = tmp_path_factory.mktemp("shared")
    code = TOY.read_text() + f"\nopen({str(folder / 'ran')!r}, 'a').close()\n"
    (folder / "toy_plugin.py").write_text(code)
    (folder / "parent.toml").write_text(TEXT)
    (folder / "exp.toml").write_text('extends = "parent.toml"')
    assert dither_cli("run", folder / "exp.toml", "--runs", folder / "runs")[0] == 0
    (run,) = (folder / "runs").glob("*-*")
    assert dither_cli("export", run, "--out", folder / "export")[0] == 0
    document, _ = open_experiment(folder / "exp.toml")
    sweep = SweepDirectory.create(folder / "sweeps", document, ["dither"])
    sweep.record(
        [sweep.add("0-seed=0", {"seed": 0}, load_experiment(folder / "exp.toml"))]
    )
    run.rename(folder / "run")
    sweep.path.rename(folder / "sweep")
    (folder / "toy_plugin.py").unlink()
    return folder


@pytest.fixture
def copies(shared, monkeypatch, tmp_path):
    """Copies of these, without the flag."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "export", "sweep"):
        shutil.copytree(shared / name, tmp_path / name)
    (shared / "ran").unlink(missing_ok=True)
    return tmp_path


def change_plugins(folder):
    """Append to every plugin file below a folder."""
    for file in folder.rglob("toy_plugin.py"):
        with file.open("a") as text:
            text.write("# changed\n")


def test_commands_that_only_read_do_not_execute_plugins(copies, shared):
    change_plugins(copies)
    for words in (
        "runs list .", "runs verify run", "report run", "runs diff run run", "export run --out again",
        "sweep status sweep", "report sweep",
    ):  # fmt: skip
        assert dither_cli(*words.split())[0] == 0, words
    assert not (shared / "ran").exists()


def test_plugins_are_executed_as_they_were_recorded(copies, shared):
    for words in (
        "evaluate run",
        "run --resume run --set train.steps=3",
        "validate run/resolved.toml",
        "resolve export/experiment.toml",
    ):
        assert dither_cli(*words.split())[0] == 0, words
    for folder in ("run", "export"):
        system = dither.load(folder)
        assert len(dither.draw(system, system.task.like(2, seed=0), seed=0)) == 2
    assert run_point(copies / "sweep" / "0-seed=0") == 0
    assert (shared / "ran").exists()


def test_no_command_executes_a_changed_plugin_without_a_flag(copies, shared):
    change_plugins(copies)
    for words in (
        "evaluate run", "sample run", "sample run --export dot", "run --resume run --set train.steps=3",
        "run --resume run --set train.steps=3 --accept-changes", "run run/resolved.toml",
        "bench run/resolved.toml", "validate run/resolved.toml",
        "resolve export/experiment.toml", "runs diff run/resolved.toml run",
        "sweep run/resolved.toml --sweep seed=[1]",
    ):  # fmt: skip
        code, output = dither_cli(*words.split())
        assert code == 2, words
        assert "[untrusted-plugin]" in output
        assert (
            "-p run/plugins/toy_plugin.py" in output
            or "-p export/plugins/toy_plugin.py" in output
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
    assert dither_cli("validate", "own.toml")[0] == 2, (
        "an own file that extends one of a run"
    )
    with pytest.raises(Refused, match="untrusted-plugin"):
        dither.load("run")
    with pytest.raises(Damaged):
        dither.load("export")
    assert run_point(copies / "sweep" / "0-seed=0") == 2, (
        "as `dither sweep --resume` starts it"
    )
    assert not (shared / "ran").exists()
    assert not (copies / "runs").exists()


def test_plugins_of_a_run_without_its_record_are_refused(copies, shared):
    change_plugins(copies)
    (copies / "run" / "manifest.json").unlink()
    for words in ("evaluate run", "sample run", "run --resume run"):
        code, output = dither_cli(*words.split())
        assert code != 0, words
        assert "manifest.json is missing" in output, words
        assert not (shared / "ran").exists(), words
    assert recorded_checksums(copies / "run") == set()


def test_a_flag_executes_a_changed_plugin(copies, shared):
    change_plugins(copies)
    longer = ["run", "--resume", "run", "--set", "train.steps=3", "--accept-changes"]
    assert dither_cli(*longer, "-p", "run/plugins/toy_plugin.py")[0] == 0
    assert (shared / "ran").exists()
    assert dither_cli("evaluate", "run")[0] == 0, (
        "the run recorded the accepted content"
    )
    point = copies / "sweep" / "0-seed=0"
    assert run_point(point, [str(point / "plugins" / "toy_plugin.py")]) == 0


def test_plugins_of_a_download_are_executed_only_if_they_are_named(
    copies, shared, monkeypatch
):
    monkeypatch.setattr(exports, "download", lambda name: copies / "export")
    with pytest.raises(Refused, match="untrusted-plugin"):
        dither.load("somebody/model")
    assert not (shared / "ran").exists()
    system = dither.load("somebody/model", plugins=["export/plugins/toy_plugin.py"])
    assert len(dither.draw(system, system.task.like(2, seed=0), seed=0)) == 2


def test_files_next_to_an_experiment_do_not_make_it_a_run(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("manifest.json", "MANIFEST.json"):
        (tmp_path / name).write_text('{"plugins": {"x": {"sha256": "0"}}}')
    assert recorded_checksums(tmp_path) is None
    assert recorded_checksums(tmp_path / "deep") is None
    for name in ("resolved.toml", "weights.safetensors"):
        (tmp_path / name).touch()
        assert recorded_checksums(tmp_path) == {"0"}
        assert recorded_checksums(tmp_path / "deep") == {"0"}
        (tmp_path / name).unlink()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """An own experiment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_plugin.py").write_text(TOY.read_text())
    (tmp_path / "exp.toml").write_text(TEXT)
    return tmp_path


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.slow
def test_points_of_a_sweep_execute_their_copies(own, search):
    if search:
        (own / "exp.toml").write_text(
            TEXT + "[sweep.search]\ntrials = 1\nspace = { seed = [1, 2] }\n"
        )
    code, output = dither_cli(
        "sweep", "exp.toml", *([] if search else ["--sweep", "seed=[1]"])
    )
    assert code == 0, output


def test_an_export_describes_its_space_with_the_recorded_or_a_given_plugin(
    own, text_experiment
):
    (own / "a.txt").write_text("some words of a text\n" * 40)
    (own / "watch.py").write_text(
        "from dither.registry import hookimpl\n@hookimpl\ndef after_step(step): pass\n"
    )
    (own / "exp.toml").write_text(
        'plugins = ["watch.py"]\n' + text_experiment(str(own / "a.txt"))
    )
    assert dither_cli("run", "exp.toml")[0] == 0
    (run,) = (own / "runs").glob("*-*")

    def space(name):
        return json.loads((own / name / "MANIFEST.json").read_text())["space"]

    assert dither_cli("export", run, "--out", "recorded")[0] == 0
    assert space("recorded")["fields"]
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
        (
            "sampler",
            "first-hitting",
            "sampler",
            "return self.build(*given)",
            "RecursionError",
        ),
        (
            "lr-schedule",
            "constant",
            "train.lr_schedule",
            "return lambda step: None",
            "the factor of step 0 is None",
        ),
        (
            "block",
            "adaln-zero",
            "model.block",
            FORWARD.format("None"),
            "forward returned None",
        ),
        (
            "block",
            "adaln-zero",
            "model.block",
            FORWARD.format("a[0][:, :1]"),
            "forward returned shape",
        ),
        (
            "condition",
            "level",
            "model.condition",
            FORWARD.format("None"),
            "forward returned None",
        ),
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
