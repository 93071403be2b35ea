"""Plugins of a run: hooks, records in the manifest, and changes on resuming."""

import importlib
import json
import sys
import tomllib

import pytest

from dither.engine.config.load_experiment import load_experiment
from dither.engine.files.checksums import text_with_checksum, with_checksum
from dither.engine.runs.launch import DONE, FAILED, run
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


@pytest.fixture
def watch(experiment_file):
    """Put an observer beside the experiment and name it there."""

    def watch(fail, policy=""):
        (experiment_file.parent / "watch.py").write_text(WATCH.replace("FAIL", str(fail)))
        text = experiment_file.read_text().replace('["toy_plugin.py"]', '["toy_plugin.py", "./watch.py"]')
        experiment_file.write_text(text)
        (experiment_file.parent / "registry.toml").write_text(policy)
        return experiment_file

    return watch


def finished(load_path, tmp_path, console, **more):
    runs = tmp_path / "runs"
    code = run(load_experiment(load_path, ["train.steps=6"]), runs, console=console, **more)
    return code, next(iter(runs.iterdir())) if runs.exists() else None


def test_a_failing_hook_ends_the_run(watch, tmp_path, console):
    code, directory = finished(watch(6), tmp_path, console)
    text = console.export_text()
    assert code == FAILED
    assert 'plugin "watch"' in text
    assert "failed in after_step: AssertionError: cannot count on (watch.py:8)" in " ".join(text.split())
    assert "and this too" in text
    assert "the last checkpoint is that of step 5" in text
    assert (directory / "checkpoints").is_dir()


def test_warn_once_disables_a_failing_hook(watch, tmp_path, console):
    code, _ = finished(watch(2, '[plugins]\non_observer_error = "warn-once"\n'), tmp_path, console)
    assert code == DONE
    assert console.export_text().count("its hooks are not called again") == 1


def test_the_manifest_records_components_and_plugins(watch, tmp_path, console):
    _, directory = finished(watch(99), tmp_path, console)
    manifest = json.loads((directory / "manifest.json").read_text())
    assert set(manifest["plugins"]) == {"toy-plugin", "watch", "engine"}
    assert len(manifest["plugins"]["watch"]["sha256"]) == 64
    assert manifest["parts"]["process"]["part"] == "toy-plugin/toy-mask@1"
    assert manifest["parts"]["train.optimizer"]["part"] == "engine/adamw@1"
    resolved = tomllib.loads((directory / "resolved.toml").read_text())
    assert resolved["plugins"] == ["plugins/toy_plugin.py", "plugins/watch.py"]


def test_changed_components_refuse_a_resume(experiment_file, tmp_path, console):
    """Changed options, of which a new one is listed with its value; a changed version; a changed file."""
    _, directory = finished(experiment_file, tmp_path, console)
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    for place in ("process", "train.optimizer"):
        manifest["parts"][place]["options"] = "sha256:0"
    manifest["plugins"]["engine"]["version"] = "0.0.7"
    manifest["plugins"]["toy-plugin"]["sha256"] = "0" * 64
    path.write_text(json.dumps(with_checksum(manifest)))
    path = directory / "resolved.toml"
    lines = path.read_text().partition("# sha256")[0].splitlines()
    path.write_text(text_with_checksum("\n".join(line for line in lines if not line.startswith("eps")) + "\n"))
    longer = load_experiment(path, ["train.steps=8"])
    with pytest.raises(Refused) as refused:
        run(longer, tmp_path, resume=directory, console=console)
    assert refused.value.codes == ["changed-components"] * 4
    messages = "\n".join(problem.message for problem in refused.value.problems)
    for part in (
        "process: the options of toy-plugin/toy-mask@1 changed",
        "changed; new options: eps = 1e-08",
        'plugin file toy_plugin.py of plugin "toy-plugin" changed',
        'plugin "engine" (dither-engine): version 0.0.7 ->',
    ):
        assert part in messages
    assert run(longer, tmp_path, resume=directory, console=console, accept_changes=True) == DONE
    assert "version 0.0.7 ->" in " ".join(console.export_text().split())


def test_another_revision_is_refused(experiment_file, tmp_path, console):
    _, directory = finished(experiment_file, tmp_path, console)
    copy = directory / "plugins" / "toy_plugin.py"
    name = 'name: ClassVar[str] = "toy-mask"'
    copy.write_text(copy.read_text().replace(name, f"{name}\n    rev: ClassVar[int] = 2"))
    with pytest.raises(Refused) as info:
        load_experiment(directory / "resolved.toml", trust=True)
    assert info.value.codes == ["revision-mismatch"]


def test_an_external_plugin_file_must_be_selected(experiment_file, tmp_path):
    other = tmp_path / "other.py"
    other.write_text(WATCH.replace("FAIL", "3"))
    named = experiment_file.read_text().replace('["toy_plugin.py"]', '["toy_plugin.py", "../other.py", "none.py"]')
    experiment_file.write_text(named)
    with pytest.raises(Refused) as refused:
        load_experiment(experiment_file)
    outside, missing = refused.value.problems
    assert outside.code == "untrusted-plugin"
    assert (outside.origin.line, outside.path) == (2, ("plugins", 1))
    assert "-p" in outside.help
    assert "does not exist" in missing.message
    experiment_file.write_text(named.replace(', "../other.py", "none.py"', ""))
    assert "other" in {report.name for report in load_experiment(experiment_file, select=[str(other)]).plugins.active}


def test_an_installed_plugin_is_loaded_by_name(experiment_file):
    experiment_file.write_text(experiment_file.read_text().replace('["toy_plugin.py"]', '["toy_plugin.py", "losses"]'))
    loaded = load_experiment(experiment_file)
    assert {"losses", "toy-plugin", "engine"} == {report.name for report in loaded.plugins.active}
    assert loaded.plugins.requested == ["losses"]
    experiment_file.write_text(experiment_file.read_text().replace('"losses"', '"loses"'))
    with pytest.raises(Refused, match=r'unknown plugin "loses"; did you mean "losses"(.|\n)*exp.toml:2'):
        load_experiment(experiment_file)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a plugin on the path with real distribution metadata, as pip would."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(name, source):
        module = "test_plugin_" + name.replace("-", "_")
        (site / f"{module}.py").write_text(source)
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[dither.plugins]\n{name} = {module}\n")
        importlib.invalidate_caches()

    yield install
    for name in [name for name in sys.modules if name.startswith("test_plugin_")]:
        del sys.modules[name]


def test_installed_observers(install, experiment_file, tmp_path, console):
    install("tp-watch", WATCH.replace("FAIL", "99"))
    install("tp-broken", "raise RuntimeError('no luck')")
    code, directory = finished(experiment_file, tmp_path, console)
    assert code == DONE
    assert sys.modules["test_plugin_tp_watch"].SEEN == ["before_run"]
    assert "tp-watch" in json.loads((directory / "manifest.json").read_text())["plugins"]
    shown = " ".join(console.export_text().split())
    assert 'plugin "tp-broken" (tp-broken 1.0) takes no part: failed, RuntimeError: no luck' in shown


def test_a_run_resumes_without_automatic_plugins(install, experiment_file, tmp_path, console, monkeypatch):
    install("tp-watch", WATCH.replace("FAIL", "99"))
    (experiment_file.parent / "registry.toml").write_text("[plugins]\nautoload = false\nrequire = ['engine']\n")
    loaded = load_experiment(experiment_file, ["train.steps=6"], select=["tp-watch"])
    assert run(loaded, tmp_path / "runs", console=console) == DONE
    (directory,) = (tmp_path / "runs").iterdir()
    again = load_experiment(directory / "resolved.toml")
    assert again.plugins.requested == ["tp-watch"]
    monkeypatch.setenv("DITHER_PLUGINS", "engine")
    assert "tp-watch" in {report.name for report in load_experiment(directory / "resolved.toml").plugins.active}
