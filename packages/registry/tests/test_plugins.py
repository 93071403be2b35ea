"""Plugins: a broken, slow or hostile one is reported and stops nobody else; one is imported only when it is used."""

import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dither.registry import hookimpl
from dither.registry.installed import installed_plugins
from dither.registry.menus import menus_of
from dither.registry.plugins import GROUP, Plugins, load_plugins
from dither.registry.policy import Policy, find_policy
from dither.registry.probe import probe
from dither.registry.problems import Refused
from dither.registry.reports import PluginError

GOOD = """
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec

class Block(BlockSpec):
    '''A block.'''
    name: ClassVar[str] = "NAME"
    def build(self, width, cond): ...

@hookimpl
def register_components():
    return [Block]
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put plugins on the path with real distribution metadata, as pip would."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(dist: str, source: str, entry: str | None = None, version: str = "1.0") -> Path:
        module = "test_plugin_" + dist.replace("-", "_")
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        info = site / f"{module}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry or dist} = {module}\n")
        importlib.invalidate_caches()
        return site / f"{module}.py"

    yield install
    for name in [name for name in sys.modules if name.startswith("test_plugin_")]:
        del sys.modules[name]


def states(plugins):
    return {report.name: report.state for report in plugins.reports}


def test_a_broken_plugin_is_reported_and_the_others_load(install):
    install("tp-good", GOOD.replace("NAME", "good-block"))
    install("tp-raises", "raise RuntimeError('no luck')")
    install("tp-exits", "import sys; sys.exit(3)")
    install("tp-dies", "import os, sys; print('last words', file=sys.stderr, flush=True); os._exit(7)")
    install("tp-kills", "import os; os.kill(os.getpid(), 9)")
    install("tp-interrupts", "raise KeyboardInterrupt")
    install("tp-import", "import not_there_at_all")
    install("tp-half", GOOD.replace("NAME", "half").replace("[Block]", "[Block, Block]"))
    install("tp-then", GOOD.replace("NAME", "half").replace("return [Block]", "yield Block; raise ValueError('then')"))
    install("tp-arguments", "from dither.registry import hookimpl\n@hookimpl\ndef after_step(run, stepp): ...")
    install("tp-typo", "from dither.registry import hookimpl\n@hookimpl\ndef register_component(): return []")
    plugins = load_plugins()
    reports = {report.name: report for report in plugins.reports}
    assert reports["tp-good"].state == "loaded"
    assert plugins.catalog.find("block", "good-block").plugin == "tp-good"
    for name, reason in {
        "tp-raises": "no luck (test_plugin_tp_raises.py:1)",
        "tp-exits": "SystemExit: 3",
        "tp-dies": "exit code 7: last words",
        "tp-kills": "killed by signal 9",
        "tp-interrupts": "KeyboardInterrupt",
        "tp-import": "not_there_at_all",
        "tp-half": "twice",
        "tp-then": "ValueError: then",
        "tp-arguments": "stepp",
        "tp-typo": 'did you mean "register_components"',
    }.items():
        assert reports[name].state == "failed"
        assert reason in reports[name].reason
    assert "half" not in plugins.catalog.names("block")
    assert not any(name.startswith("test_plugin_") for name in sys.modules)
    with pytest.raises(Refused, match="tp-raises.*failed to load"):
        plugins.catalog.find("block", "something")
    with pytest.raises(Refused, match=r'plugin "tp-raises" \(tp-raises 1.0\) cannot be used: failed'):
        plugins.ask("tp-raises")


def test_a_slow_plugin_is_given_up_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "test_plugin_slow.py").write_text(
        "import pathlib, subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(p.pid))\ntime.sleep(60)\n"
    )
    (menu,) = probe([("slow", "test_plugin_slow")], seconds=2.0)
    assert menu.failure == "its import took longer than 2 s"
    grandchild = int((tmp_path / "pid").read_text())
    status = Path(f"/proc/{grandchild}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_a_plugin_is_imported_only_when_a_part_of_it_is_used(install):
    install("tp-good", GOOD.replace("NAME", "good-block"))
    install("tp-patch", "import json; json.dumps = None\n" + GOOD.replace("NAME", "patch"))
    plugins = load_plugins()
    part = plugins.catalog.find("block", "good-block")
    assert (part.summary, part.pinned) == ("A block.", "tp-good/good-block@1")
    assert "patch" in plugins.catalog.names("block")
    assert not any(name.startswith("test_plugin_") for name in sys.modules)
    assert not plugins.active
    assert plugins.catalog.parse("block", "good-block").name == "good-block"
    assert [report.name for report in plugins.active] == ["tp-good"]
    assert "test_plugin_tp_patch" not in sys.modules
    assert json.dumps({}) == "{}"


def test_what_breaks_only_here_is_refused_when_it_is_used(install, monkeypatch):
    install("tp-late", "import os\nassert not os.environ.get('LATE'), 'too late'\n" + GOOD.replace("NAME", "late"))
    plugins = load_plugins()
    monkeypatch.setenv("LATE", "1")
    part = plugins.catalog.find("block", "late")
    with pytest.raises(Refused, match=r'plugin "tp-late" \(tp-late 1.0\) failed to load: AssertionError: too late'):
        _ = part.spec
    assert states(plugins)["tp-late"] == "failed"


def test_menus_are_kept_until_the_plugin_or_a_broken_one_s_surroundings_change(install, monkeypatch):
    source = install("tp-good", GOOD.replace("NAME", "first"))
    install("tp-bad", "import test_plugin_tp_more")
    assert states(load_plugins())["tp-bad"] == "failed"
    asked = []
    monkeypatch.setattr("dither.registry.menus.probe", lambda plugins: asked.append(plugins) or probe(plugins))
    load_plugins()
    assert not asked
    source.write_text(GOOD.replace("NAME", "second"))
    os.utime(source, ns=(1, 1))
    assert "second" in load_plugins().catalog.names("block")
    assert [[name for name, _ in plugins] for plugins in asked] == [["tp-good"]]
    install("tp-more", "")
    assert states(load_plugins())["tp-bad"] == "loaded"
    (good,) = installed_plugins()["tp-good"]
    asked.clear()
    menus_of([good], fresh=True)
    assert asked


def test_a_cache_that_is_damaged_or_cannot_be_written_is_done_without(install, monkeypatch, tmp_path):
    install("tp-good", GOOD.replace("NAME", "good-block"))
    load_plugins()
    cache = tmp_path / "cache"
    monkeypatch.setenv("DITHER_DATA", str(cache))
    load_plugins()
    for file in (cache / "plugins").iterdir():
        file.write_text('{"format": 1, "menu": {"offers": 3}, "surroundings": "", "at": 0}')
    assert "good-block" in load_plugins().catalog.names("block")
    monkeypatch.setenv("DITHER_DATA", "/proc/none")
    assert "good-block" in load_plugins().catalog.names("block")


def test_two_distributions_with_one_entry_point_name_clash(install):
    install("tp-one", GOOD.replace("NAME", "one"), entry="same")
    install("tp-two", GOOD.replace("NAME", "two"), entry="same")
    plugins = load_plugins()
    assert states(plugins)["same"] == "clash"
    assert "tp-one, tp-two" in {r.name: r.source for r in plugins.reports}["same"]
    assert not {"one", "two"} & set(plugins.catalog.names("block"))


def test_blocked_plugins_are_never_imported_and_never_asked(install, monkeypatch, tmp_path):
    flag = tmp_path / "imported"
    install("tp-bomb", f"open({str(flag)!r}, 'w')")
    blocked = Policy.model_validate({"plugins": {"block": ["tp-bomb"]}})
    for plugins in (load_plugins(["no:tp-bomb"]), load_plugins(policy=blocked)):
        assert states(plugins)["tp-bomb"] == "blocked"
    with pytest.raises(Refused, match="blocked"):
        load_plugins(["tp-bomb"], policy=blocked)
    monkeypatch.setenv("DITHER_PLUGINS", "no:tp-bomb")
    plugins = load_plugins()
    assert states(plugins)["tp-bomb"] == "blocked"
    assert states(plugins)["core-blocks"] == "loaded"
    assert not flag.exists()


def test_an_allow_list_and_its_misspellings(install, monkeypatch):
    install("tp-good", GOOD.replace("NAME", "good-block"))
    monkeypatch.setenv("DITHER_PLUGINS", "tp-good")
    assert {kind for kind, state in states(load_plugins()).items() if state == "loaded"} == {"tp-good"}
    monkeypatch.setenv("DITHER_PLUGINS", "")
    assert set(states(load_plugins()).values()) == {"blocked"}
    monkeypatch.setenv("DITHER_PLUGINS", "tp-godo")
    with pytest.raises(Refused, match=r'DITHER_PLUGINS: no plugin is named "tp-godo"(.|\n)*did you mean "tp-good"'):
        load_plugins()
    monkeypatch.delenv("DITHER_PLUGINS")
    with pytest.raises(Refused, match=r'-p: no plugin is named "tp-goood"'):
        load_plugins(["no:tp-goood"])
    assert [report.name for report in load_plugins(["tp-good"]).active] == ["tp-good"]


def test_required_plugins_and_no_autoload(install):
    install("tp-good", GOOD.replace("NAME", "good-block"), version="1.4")
    install("tp-other", GOOD.replace("NAME", "other"))
    policy = Policy.model_validate({"plugins": {"autoload": False, "require": ["TP_good~=1.2", "dither-tasks"]}})
    plugins = load_plugins(policy=policy)
    assert {name for name, state in states(plugins).items() if state == "loaded"} == {"tp-good", "tasks"}
    assert "autoload" in {r.name: r.reason for r in plugins.reports}["tp-other"]
    plugins.require()
    assert {report.name for report in plugins.active} == {"tp-good", "tasks"}
    policy = Policy.model_validate({"plugins": {"require": ["tp-good>=2", "nobody", "tasks"]}})
    with pytest.raises(Refused) as refused:
        load_plugins(policy=policy).require()
    assert [p.message.split('"')[1] for p in refused.value.problems] == ["tp-good>=2", "nobody"]


def test_strict_loading_stops_at_any_failure(install, monkeypatch):
    install("tp-raises", "raise RuntimeError('no luck')")
    monkeypatch.setenv("DITHER_STRICT_PLUGINS", "1")
    with pytest.raises(Refused, match="no luck"):
        load_plugins()


def test_file_plugins(tmp_path):
    path = tmp_path / "my_block.py"
    path.write_text(GOOD.replace("NAME", "mine"))
    for plugins in (load_plugins(files=[path]), load_plugins([str(path)])):
        report = plugins.reports[-1]
        assert (report.name, report.state, len(report.sha256)) == ("my-block", "loaded", 64)
        assert plugins.catalog.find("block", "my-block/mine")
    with pytest.raises(Refused, match="loaded already"):
        plugins.load_file(path)
    path.write_text("x = 1 / 0")
    with pytest.raises(Refused, match="division by zero"):
        load_plugins(files=[path])
    path.write_text("x = 1")
    with pytest.raises(Refused, match="no function that is marked"):
        load_plugins(files=[path])
    with pytest.raises(Refused, match="does not exist"):
        load_plugins(files=[tmp_path / "none.py"])


def test_what_a_file_plugin_defines_reaches_worker_processes(tmp_path):
    path = tmp_path / "my block.py"
    path.write_text(GOOD.replace("NAME", "mine"))
    code = f"""
import multiprocessing, pathlib
from dither.registry.plugins import load_plugins
def name_of(spec): return spec.name
if __name__ == "__main__":
    plugins = load_plugins(files=[pathlib.Path({str(path)!r})])
    spec = plugins.catalog.parse("block", "mine")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(name_of, [spec]))
        pathlib.Path({str(path)!r}).write_text("raise SystemExit('changed')")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        import pickle
        result = pool.apply_async(pickle.loads, [pickle.dumps(pickle.dumps(spec))])
        result.get()
        try:
            pool.apply_async(exec, ["import pickle; pickle.loads(" + repr(pickle.dumps(spec)) + ")"]).get(60)
        except ImportError as error:
            print(error)
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.splitlines()[0] == "['mine']", done.stderr
    assert "was changed after it was first imported" in done.stdout


def test_the_nearest_policy_counts_and_its_mistakes_are_named(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "registry.toml").write_text('[plugins]\nblock = ["x"]\n')
    assert find_policy(tmp_path / "a" / "b").block == ["x"]
    (tmp_path / "a" / "registry.toml").write_text('[plugin]\nblock = ["y"]\n')
    with pytest.raises(Refused, match=r'did you mean "plugins"\?'):
        find_policy(tmp_path / "a" / "b")
    (tmp_path / "a" / "registry.toml").write_text('[plugins]\nrequire = ["y 3"]\n')
    with pytest.raises(Refused, match=r'"y 3" is no requirement(.|\n)*registry.toml:2'):
        find_policy(tmp_path / "a" / "b")


class Observer:
    """Looks at evaluations, and cannot count to three."""

    @hookimpl
    def after_eval(self, metrics):
        """Return the loss."""
        return metrics["loss"]

    @hookimpl
    def after_step(self, step):
        """Fail at the third step."""
        assert step != 3, "three"


def test_hooks_get_only_the_arguments_they_ask_for():
    plugins = Plugins()
    plugins.register("observer", Observer())
    assert list(plugins.called("after_eval", run=None, step=3, metrics={"loss": 1.0})) == [("observer", 1.0)]


def test_a_hook_that_raises_is_attributed_or_silenced():
    plugins = Plugins()
    plugins.register("observer", Observer())
    with pytest.raises(PluginError, match=r'"observer" \(Observer\) failed in after_step: AssertionError: three'):
        list(plugins.called("after_step", run=None, step=3, metrics={}))
    lines = []
    plugins = Plugins(Policy.model_validate({"plugins": {"on_observer_error": "warn-once"}}))
    plugins.register("observer", Observer())
    plugins.warn = lines.append
    for step in range(6):
        list(plugins.called("after_step", run=None, step=step, metrics={}))
    assert len(lines) == 1
    assert "after_step" in lines[0]
    assert list(plugins.called("after_eval", run=None, step=3, metrics={"loss": 1.0})) == []


def test_only_observers_are_imported_for_a_run(install):
    install("tp-good", GOOD.replace("NAME", "good-block"))
    install("tp-watch", "from dither.registry import hookimpl\n@hookimpl\ndef before_run(run): ...")
    plugins = load_plugins()
    plugins.observe()
    assert [report.name for report in plugins.active] == ["tp-watch"]
    assert next(report.hooks for report in plugins.reports if report.name == "tp-watch") == ("before_run",)
    plugins = load_plugins(policy=Policy.model_validate({"plugins": {"autoload": False}}))
    plugins.observe()
    assert not plugins.active


def test_torch_at_import_is_noted(install):
    install("tp-torch", "import torch\n" + GOOD.replace("NAME", "heavy"))
    reports = {report.name: report for report in load_plugins().reports}
    assert reports["tp-torch"].imports_torch
    assert reports["tp-torch"].seconds > 0.1
    assert not any(r.imports_torch for name, r in reports.items() if not name.startswith("tp-"))


def test_no_torch_and_quick():
    code = (
        "import sys, dither.registry.plugins as p; p.load_plugins(); "
        "assert 'torch' not in sys.modules, 'torch'; assert 'scipy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
