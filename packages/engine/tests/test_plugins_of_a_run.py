"""Plugins of a run: hooks, records in the manifest, and changes on resuming."""

import json
import sys
import tomllib

import pytest
import tomlkit

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.engine.config.plugins import governing_policy_file
from dither.engine.files.checksums import with_checksum
from dither.engine.runs.evaluate_run import evaluate_run
from dither.engine.runs.run import DONE, FAILED, run
from dither.registry.config.errors import Refused

WATCH = """
from dither.registry import hookimpl
SEEN = []
@hookimpl
def before_run(run): SEEN.append("before_run")
@hookimpl
def after_step(step):
    assert step != FAIL, "cannot count on"
@hookimpl
def on_run_error(error): raise RuntimeError("and this too")
"""
HARMLESS = WATCH.replace("FAIL", "99")


@pytest.fixture
def finish(experiment_file, tmp_path, console):
    """Run the experiment for six steps; return the exit code and the run directory."""
    (experiment_file.parent / "registry.toml").write_text("")

    def finish(**options):
        runs = tmp_path / "elsewhere" / "runs"
        code = run(
            load_experiment(experiment_file, ["train.steps=6"], **options),
            runs,
            console=console,
        )
        return code, next(iter(runs.iterdir()))

    return finish


@pytest.fixture
def watch(experiment_file):
    def watch(fail):
        (experiment_file.parent / "watch.py").write_text(
            WATCH.replace("FAIL", str(fail))
        )
        text = experiment_file.read_text().replace(
            '["toy_plugin.py"]', '["toy_plugin.py", "./watch.py"]'
        )
        experiment_file.write_text(text)

    return watch


@pytest.fixture
def directory(finish):
    return finish()[1]


@pytest.fixture
def go_on(directory, tmp_path, console):
    def go_on(steps, *select, accept_changes=False):
        changes = [f"train.steps={steps}"]
        loaded = load_experiment(
            directory / "resolved.toml", changes, select=[*map(str, select)]
        )
        return run(
            loaded,
            tmp_path,
            resume=directory,
            console=console,
            accept_changes=accept_changes,
        )

    return go_on


def manifest(directory):
    return json.loads((directory / "manifest.json").read_text())


def test_a_failing_hook_ends_the_run(finish, watch, console):
    watch(6)
    code, directory = finish()
    text = console.export_text()
    assert code == FAILED
    assert 'plugin "watch"' in text
    assert (
        "failed in after_step: AssertionError: cannot count on (watch.py:8)"
        in " ".join(text.split())
    )
    assert "and this too" in text
    assert "the last checkpoint is that of step 5" in text
    assert (directory / "checkpoints").is_dir()


def test_components_and_plugins_of_a_run_are_recorded(finish, watch):
    watch(99)
    code, directory = finish()
    assert code == DONE
    recorded = manifest(directory)
    assert set(recorded["plugins"]) == {"toy-plugin", "watch", "engine"}
    assert len(recorded["plugins"]["watch"]["sha256"]) == 64
    assert recorded["parts"]["process"]["part"] == "toy-plugin/toy-mask@1"
    assert recorded["parts"]["train.optimizer"]["part"] == "engine/adamw@1"
    resolved = tomllib.loads((directory / "resolved.toml").read_text())
    assert resolved["plugins"] == ["plugins/toy_plugin.py", "plugins/watch.py"]


def test_changed_components_refuse_a_resume(directory, go_on, console, refusal):
    """Changed options, of which a new one is listed with its value; a changed version; a changed file."""
    recorded = manifest(directory)
    recorded["parts"]["process"]["options"].append("gone")
    recorded["parts"]["train.optimizer"]["options"].remove("eps")
    recorded["plugins"]["engine"]["version"] = "0.0.7"
    recorded["plugins"]["toy-plugin"]["sha256"] = "0" * 64
    (directory / "manifest.json").write_text(json.dumps(with_checksum(recorded)))
    path = directory / "resolved.toml"
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join(line for line in lines if not line.startswith("eps")) + "\n"
    )
    copy = directory / "plugins" / "toy_plugin.py"
    refused = refusal(go_on, 8, copy)
    assert refused.codes == ["changed-components"] * 4
    messages = "\n".join(problem.message for problem in refused.problems)
    for part in (
        "process: the options of toy-plugin/toy-mask@1 changed; removed options: gone",
        "changed; new options: eps = 1e-08",
        'plugin file toy_plugin.py of plugin "toy-plugin" changed',
        'plugin "engine" (dither-engine): version 0.0.7 ->',
    ):
        assert part in messages
    assert go_on(8, copy, accept_changes=True) == DONE
    assert "version 0.0.7 ->" in " ".join(console.export_text().split())


def test_another_revision_and_another_component_are_refused(
    directory, tmp_path, console, refused
):
    other = load_experiment(directory / "resolved.toml", ["train.lr_schedule=constant"])
    with pytest.raises(
        Refused, match=r"train.lr_schedule.use: .*cosine@1.* -> .*constant@1"
    ):
        run(other, tmp_path, resume=directory, console=console)
    copy = directory / "plugins" / "toy_plugin.py"
    name = 'name = "toy-mask"'
    copy.write_text(copy.read_text().replace(name, f"{name}\n    rev = 2"))
    with refused("revision-mismatch"):
        load_experiment(directory / "resolved.toml", select=[str(copy)])


def test_an_external_plugin_file_must_be_selected(experiment_file, tmp_path, refusal):
    other = tmp_path / "other.py"
    other.write_text(HARMLESS)
    named = experiment_file.read_text().replace(
        '["toy_plugin.py"]', '["toy_plugin.py", "../other.py", "none.py"]'
    )
    experiment_file.write_text(named)
    outside, missing = refusal(load_experiment, experiment_file).problems
    assert outside.code == "untrusted-plugin"
    assert (outside.origin.line, outside.path) == (2, ("plugins", 1))
    assert "-p" in outside.help
    assert "does not exist" in missing.message
    experiment_file.write_text(named.replace(', "../other.py", "none.py"', ""))
    assert "other" in {
        report.name
        for report in load_experiment(
            experiment_file, select=[str(other)]
        ).plugins.active
    }


def test_an_installed_plugin_is_loaded_by_name(experiment_file):
    experiment_file.write_text(
        experiment_file.read_text().replace(
            '["toy_plugin.py"]', '["toy_plugin.py", "losses"]'
        )
    )
    loaded = load_experiment(experiment_file)
    assert {"losses", "toy-plugin", "engine"} == {
        report.name for report in loaded.plugins.active
    }
    assert loaded.plugins.requested == ["losses"]
    experiment_file.write_text(
        experiment_file.read_text().replace('"losses"', '"loses"')
    )
    with pytest.raises(
        Refused,
        match=r'unknown plugin "loses"(.|\n)*exp.toml:2(.|\n)*did you mean "losses"',
    ):
        load_experiment(experiment_file)


def test_installed_observers(install, finish, console):
    install("tp-watch", HARMLESS)
    install("tp-broken", "raise RuntimeError('no luck')")
    code, directory = finish()
    assert code == DONE
    assert sys.modules["test_plugin_tp_watch"].SEEN == ["before_run"]
    assert "tp-watch" in manifest(directory)["plugins"]
    shown = " ".join(console.export_text().split())
    assert (
        'plugin "tp-broken" (tp-broken 1.0) takes no part: failed, RuntimeError: no luck'
        in shown
    )


def test_a_run_resumes_with_the_plugins_it_requested(install, finish, monkeypatch):
    install("tp-watch", HARMLESS)
    _, directory = finish(select=["tp-watch"])
    assert load_experiment(directory / "resolved.toml").plugins.requested == [
        "tp-watch"
    ]
    monkeypatch.setenv("DITHER_PLUGINS", "engine")
    assert "tp-watch" in {
        report.name
        for report in load_experiment(directory / "resolved.toml").plugins.active
    }


def test_a_plugin_file_named_at_resume_is_copied_into_the_run(
    directory, go_on, tmp_path
):
    watch = tmp_path / "watch.py"
    watch.write_text(HARMLESS)
    assert go_on(8, watch) == DONE
    assert (directory / "plugins" / "watch.py").read_text() == HARMLESS
    assert not list((directory / "plugins").glob(".*"))
    named = tomllib.loads((directory / "resolved.toml").read_text())["plugins"]
    assert set(named) == {"plugins/toy_plugin.py", "plugins/watch.py"}
    assert go_on(9) == DONE
    assert evaluate_run(directory)[0]
    assert go_on(10, watch) == DONE, "the same file may be named again"
    watch.write_text(HARMLESS + "# otherwise\n")
    with pytest.raises(Refused, match="plugin-conflict"):
        go_on(12, watch)


def test_accepted_changes_are_recorded(directory, go_on):
    copy = directory / "plugins" / "toy_plugin.py"
    copy.write_text(copy.read_text() + "# otherwise\n")
    with pytest.raises(Refused, match="untrusted-plugin"):
        go_on(8)
    with pytest.raises(Refused, match="plugin file toy_plugin.py"):
        go_on(8, copy)
    assert go_on(8, copy, accept_changes=True) == DONE
    assert go_on(9) == DONE, "the accepted content is recorded"
    first, second = manifest(directory)["resumed"]
    assert [change.partition(" of ")[0] for change in first["changes"]] == [
        "train.steps: 6 -> 8",
        "plugin file toy_plugin.py",
    ]
    assert second["changes"] == ["train.steps: 8 -> 9"]
    assert {"parts", "environment"}.isdisjoint(first), (
        "only what is new is written down again"
    )
    assert "plugins" not in second
    assert (
        first["plugins"]["toy-plugin"] != manifest(directory)["plugins"]["toy-plugin"]
    )
    copy.write_text(copy.read_text() + "# again\n")
    with pytest.raises(Refused, match="untrusted-plugin"):
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


def test_the_output_of_resolve_is_a_valid_experiment(
    experiment_file, tmp_path, monkeypatch, capsys
):
    (tmp_path / "watch.py").write_text(HARMLESS)
    monkeypatch.chdir(tmp_path)
    assert main(
        ["resolve", str(experiment_file), "-p", "./watch.py", "-p", "losses"]
    ) in (0, None)
    text = capsys.readouterr().out
    assert set(tomlkit.parse(text)["plugins"]) == {
        "given/toy_plugin.py",
        "watch.py",
        "losses",
    }
    (tmp_path / "again.toml").write_text(text)
    again = load_experiment(tmp_path / "again.toml")
    assert {"toy-plugin", "watch", "losses"} <= {
        report.name for report in again.plugins.active
    }
