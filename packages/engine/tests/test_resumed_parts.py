"""Resuming with plugin files, under a policy, and with renamed components."""

import json
import tomllib

import pytest
import tomlkit

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.engine.config.plugins import governing_policy_file
from dither.engine.files.checksums import with_checksum
from dither.engine.runs.evaluate_run import evaluate_run
from dither.engine.runs.launch import DONE, run
from dither.registry.config.errors import Refused

WATCH = """
from dither.registry import hookimpl
@hookimpl
def before_run(run): pass
"""


@pytest.fixture
def directory(experiment_file, tmp_path, console):
    """A finished run of the toy experiment."""
    (experiment_file.parent / "registry.toml").write_text("")
    loaded = load_experiment(experiment_file, ["train.steps=4"])
    assert run(loaded, tmp_path / "elsewhere" / "runs", console=console) == DONE
    (path,) = (tmp_path / "elsewhere" / "runs").iterdir()
    return path


@pytest.fixture
def watch(tmp_path):
    path = tmp_path / "watch.py"
    path.write_text(WATCH)
    return path


@pytest.fixture
def go_on(directory, tmp_path, console):
    def go_on(steps, *select, accept_changes=False):
        more = {"select": [*map(str, select)], "trust": True}
        loaded = load_experiment(directory / "resolved.toml", [f"train.steps={steps}"], **more)
        return run(loaded, tmp_path, resume=directory, console=console, accept_changes=accept_changes)

    return go_on


def manifest(directory):
    return json.loads((directory / "manifest.json").read_text())


def test_a_plugin_file_named_at_resume_is_copied_into_the_run(directory, go_on, watch):
    assert go_on(6, watch) == DONE
    assert (directory / "plugins" / "watch.py").read_text() == WATCH
    assert not list((directory / "plugins").glob(".*"))
    named = tomllib.loads((directory / "resolved.toml").read_text())["plugins"]
    assert set(named) == {"plugins/toy_plugin.py", "plugins/watch.py"}
    assert go_on(8) == DONE
    assert evaluate_run(directory)[0]
    assert go_on(10, watch) == DONE, "the same file may be named again"
    watch.write_text(WATCH + "# otherwise\n")
    with pytest.raises(Refused, match="plugin-conflict"):
        go_on(12, watch)


def test_accepted_changes_are_recorded(directory, go_on):
    copy = directory / "plugins" / "toy_plugin.py"
    copy.write_text(copy.read_text() + "# otherwise\n")
    with pytest.raises(Refused, match="plugin file toy_plugin.py"):
        go_on(6)
    assert go_on(6, accept_changes=True) == DONE
    assert go_on(8) == DONE
    first, second = manifest(directory)["resumed"]
    assert [change.partition(" of ")[0] for change in first["changes"]] == [
        "train.steps: 4 -> 6",
        "plugin file toy_plugin.py",
    ]
    assert second["changes"] == ["train.steps: 6 -> 8"]
    assert {"parts", "environment"}.isdisjoint(first), "only what is new is written down again"
    assert "plugins" not in second
    assert first["plugins"]["toy-plugin"] != manifest(directory)["plugins"]["toy-plugin"]
    copy.write_text(copy.read_text() + "# again\n")
    with pytest.raises(Refused, match="plugin file toy_plugin.py"):
        go_on(10)


def test_the_policy_of_the_start_applies_to_a_moved_run(directory, experiment_file):
    policy = experiment_file.parent / "registry.toml"
    assert manifest(directory)["registry"] == str(policy)
    policy.write_text('[plugins]\nblock = ["engine"]\n')
    with pytest.raises(Refused, match="engine"):
        load_experiment(directory / "resolved.toml")
    with pytest.raises(Refused, match="engine"):
        evaluate_run(directory)
    policy.unlink()
    nearest = directory.parent / "registry.toml"
    nearest.write_text("")
    assert governing_policy_file(directory / "resolved.toml") == nearest
    assert evaluate_run(directory)[0]


RENAMED = """name: ClassVar[str] = "toy-cover"
    aliases: ClassVar[tuple[Alias, ...]] = (Alias("toy-mask", removed_in="9.0"),)"""


def rename(directory):
    copy = directory / "plugins" / "toy_plugin.py"
    text = copy.read_text().replace('name: ClassVar[str] = "toy-mask"', RENAMED)
    copy.write_text(text.replace("\nimport torch\n", "\nimport torch\nfrom dither.registry.spec import Alias\n", 1))


def test_a_renamed_component_resumes_under_its_new_name(directory, go_on):
    rename(directory)
    assert go_on(6, accept_changes=True) == DONE
    assert tomllib.loads((directory / "resolved.toml").read_text())["process"]["use"] == "toy-plugin/toy-cover@1"
    assert manifest(directory)["resumed"][0]["parts"]["process"]["part"] == "toy-plugin/toy-cover@1"
    assert not any("process" in change for change in manifest(directory)["resumed"][0]["changes"])
    assert go_on(8) == DONE


def test_options_of_a_renamed_component_are_compared(directory, go_on):
    rename(directory)
    kept = manifest(directory)
    kept["parts"]["process"]["options"] = "sha256:0"
    (directory / "manifest.json").write_text(json.dumps(with_checksum(kept)))
    with pytest.raises(Refused, match="process: the options of toy-plugin/toy-cover@1 changed"):
        go_on(6)


def test_another_component_is_refused(directory, experiment_file, tmp_path, console):
    other = load_experiment(directory / "resolved.toml", ["train.lr_schedule=constant"])
    with pytest.raises(Refused, match=r"train.lr_schedule.use: .*cosine@1.* -> .*constant@1"):
        run(other, tmp_path, resume=directory, console=console)


def test_the_output_of_resolve_is_a_valid_experiment(experiment_file, watch, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["resolve", str(experiment_file), "-p", "./watch.py", "-p", "losses"]) in (0, None)
    text = capsys.readouterr().out
    assert set(tomlkit.parse(text)["plugins"]) == {"given/toy_plugin.py", "watch.py", "losses"}
    (tmp_path / "again.toml").write_text(text)
    again = load_experiment(tmp_path / "again.toml")
    assert {"toy-plugin", "watch", "losses"} <= {report.name for report in again.plugins.active}
