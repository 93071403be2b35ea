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
from dither.registry.config.errors import Refused
from dither.registry.plugins.discovery import GROUP, installed_plugins
from dither.registry.plugins.manager import Plugins, load_plugins
from dither.registry.plugins.manifest_cache import menus_of
from dither.registry.plugins.policy import Policy, find_policy
from dither.registry.plugins.probe import probe
from dither.registry.plugins.status import PluginError

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
    assert menu.failure.startswith("its import took longer than 2 s")
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
    install("tp-bad", "import test_plugin_tp_more\n" + GOOD.replace("NAME", "bad"))
    assert states(load_plugins())["tp-bad"] == "failed"
    asked = []
    monkeypatch.setattr(
        "dither.registry.plugins.manifest_cache.probe", lambda plugins: asked.append(plugins) or probe(plugins)
    )
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
    monkeypatch.setenv("DITHER_MENUS", str(cache))
    load_plugins()
    for file in cache.glob("*.json"):
        file.write_text('{"format": 1, "menu": {"offers": 3}, "surroundings": "", "at": 0}')
    assert "good-block" in load_plugins().catalog.names("block")
    monkeypatch.setenv("DITHER_MENUS", "/proc/none")
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
    with pytest.raises(Refused, match=r'would be called "my-block", as .*my_block.py is, which is loaded'):
        plugins.load_file(path)
    path.write_text("x = 1 / 0")
    with pytest.raises(Refused, match="division by zero"):
        load_plugins(files=[path])
    path.write_text("x = 1")
    with pytest.raises(Refused, match="failed to load: ValueError: no function is marked with @hookimpl"):
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


def watcher(body):
    return f"from dither.registry import hookimpl\n@hookimpl\n{body}\n"


@pytest.mark.parametrize(
    "body", ["yield 1 / 0", "return None", "return 3", "yield 'text'", "return 'text'", "exit(0)", "yield; exit(0)"]
)
def test_misfits_are_taken_inside_the_guard_and_are_misfits(tmp_path, body):
    (tmp_path / "strict.py").write_text(watcher(f"def check_experiment(): {body}"))
    plugins = Plugins(Policy.model_validate({"plugins": {"on_observer_error": "warn-once"}}))
    plugins.load_file(tmp_path / "strict.py")
    with pytest.raises(PluginError, match=r'plugin "strict" \(.*strict.py\) failed in check_experiment: \w+: '):
        list(plugins.called("check_experiment", experiment=None))


class Ordered:
    """Says when it is called."""

    def __init__(self, word):
        self.word = word

    @hookimpl
    def before_run(self):
        """Return its word."""
        return self.word


class First(Ordered):
    """Goes first."""

    @hookimpl(tryfirst=True)
    def before_run(self):
        """Return its word."""
        return self.word


class Last(Ordered):
    """Goes last."""

    @hookimpl(trylast=True)
    def before_run(self):
        """Return its word."""
        return self.word


def test_hooks_are_called_in_the_order_of_pluggy():
    plugins = Plugins()
    for word, kind in (("b", Ordered), ("a", First), ("d", Last), ("c", Ordered)):
        plugins.register(word, kind(word))
    assert [word for _, word in plugins.called("before_run", run=None)] == plugins.manager.hook.before_run(run=None)
    assert next(plugins.called("before_run", run=None))[0] == "a"


class Unwilling:
    """Refuses what the user did."""

    @hookimpl
    def before_run(self):
        """Refuse."""
        raise Refused("no disk is mounted")

    @hookimpl
    def check_experiment(self):
        """Refuse."""
        raise Refused("not here")


def test_a_refusal_in_a_run_is_attributed_and_heeds_the_policy():
    plugins = Plugins()
    plugins.register("unwilling", Unwilling())
    with pytest.raises(
        PluginError, match=r'"unwilling" \(Unwilling\) failed in before_run: no disk is mounted'
    ) as error:
        list(plugins.called("before_run", run=None))
    assert error.value.told == "error: no disk is mounted"
    with pytest.raises(Refused, match="not here"):
        list(plugins.called("check_experiment", experiment=None))
    plugins, lines = Plugins(Policy.model_validate({"plugins": {"on_observer_error": "warn-once"}})), []
    plugins.register("unwilling", Unwilling())
    plugins.warn = lines.append
    assert list(plugins.called("before_run", run=None)) == []
    assert len(lines) == 1


def test_what_cannot_be_called_as_a_hook_is_refused(install):
    for option in ("wrapper", "hookwrapper"):
        install(f"tp-{option}", watcher("def before_run(run): yield").replace("@hookimpl", f"@hookimpl({option}=True)"))
    install("tp-nothing", "x = 1")
    reports = {report.name: report for report in load_plugins().reports}
    assert '"before_run" is a wrapper' in reports["tp-wrapper"].reason
    assert '"before_run" is a wrapper' in reports["tp-hookwrapper"].reason
    assert (reports["tp-nothing"].state, reports["tp-nothing"].reason) == (
        "failed",
        "ValueError: no function is marked with @hookimpl",
    )


def test_what_failed_to_register_leaves_nothing_behind():
    class Half(Observer):
        """Offers what is no part."""

        @hookimpl
        def register_components(self):
            """Return a number."""
            return [3]

    plugins = Plugins()
    with pytest.raises(ValueError, match="no Spec class"):
        plugins.register("half", Half())
    assert plugins.manager.get_plugins() == set()
    assert list(plugins.called("after_step", run=None, step=3, metrics={})) == []
    once = Observer()
    plugins.register("once", once)
    with pytest.raises(ValueError, match="already registered"):
        plugins.register("twice", once)
    assert plugins.manager.get_plugin("once") is once


def test_names_that_no_pin_could_hold_are_refused(install, tmp_path):
    names = ["a/b", "a@b", 'a"b', "a\\b", "a,b", "a\x07b", "no:a", "a.py"]
    for number, name in enumerate(names):
        install(f"tp-{number}", GOOD.replace("NAME", f"block-{number}"), entry=name)
    reports = {report.name: report for report in load_plugins().reports}
    for name in names:
        assert reports[name].state == "failed", name
        assert "no plugin can be called" in reports[name].reason
    for stem in ("no:a", "a@b", "a,b"):
        path = tmp_path / f"{stem}.py"
        path.write_text(GOOD.replace("NAME", "mine"))
        with pytest.raises(Refused, match="no plugin can be called"):
            load_plugins(files=[path])


def test_two_names_of_one_module_are_told(install):
    source = install("tp-both", GOOD.replace("NAME", "both"), entry="tp-a")
    points = next(source.parent.glob("test_plugin_tp_both-*")) / "entry_points.txt"
    points.write_text(f"[{GROUP}]\ntp-a = test_plugin_tp_both\ntp-b = test_plugin_tp_both\n")
    plugins = load_plugins()
    assert (states(plugins)["tp-a"], states(plugins)["tp-b"]) == ("loaded", "clash")
    assert 'plugin "tp-a" is the same module' in {r.name: r.reason for r in plugins.reports}["tp-b"]
    assert plugins.catalog.parse("block", "both").name == "both"
    plugins = load_plugins(["no:tp-a"])
    assert states(plugins)["tp-b"] == "loaded"


def test_preferring_a_plugin_that_cannot_be_used_is_refused(install):
    for name in ("tp-one", "tp-two"):
        install(name, GOOD.replace("NAME", "same"))
    install("tp-raises", "raise RuntimeError('no luck')")
    for wanted, state in {
        "tp-two": r'plugin "tp-two", which cannot be used: blocked, -p no:tp-two; it is there from "tp-one"',
        "tp-raises": "it failed to load, RuntimeError: no luck",
        "tp-tow": 'plugin "tp-tow", which offers none',
    }.items():
        plugins = load_plugins(["no:tp-two"], policy=Policy.model_validate({"prefer": {"block:same": wanted}}))
        with pytest.raises(Refused, match=state):
            plugins.catalog.find("block", "same")
    plugins = load_plugins(policy=Policy.model_validate({"prefer": {"block:same": "tp-two"}}))
    assert plugins.catalog.find("block", "same").plugin == "tp-two"


def test_what_an_experiment_asks_for_may_be_used(install, monkeypatch):
    install("tp-watch", watcher("def before_run(run): ..."))
    shy = Policy.model_validate({"plugins": {"autoload": False}})
    assert states(load_plugins(policy=shy))["tp-watch"] == "blocked"
    assert states(load_plugins(policy=shy, named=["tp-watch"]))["tp-watch"] == "loaded"
    blocked = Policy.model_validate({"plugins": {"block": ["TP_watch"]}})
    assert states(load_plugins(policy=blocked, named=["tp-watch"]))["tp-watch"] == "blocked"
    assert states(load_plugins(["no:tp-watch"], named=["tp-watch"]))["tp-watch"] == "blocked"
    monkeypatch.setenv("DITHER_PLUGINS", "losses")
    assert states(load_plugins(named=["tp-watch"]))["tp-watch"] == "loaded"
    assert [report.name for report in load_plugins(["tp-watch"]).active] == ["tp-watch"]


def test_a_block_means_a_plugin_or_its_distribution(install):
    install("tp-dist", GOOD.replace("NAME", "one"), entry="tp-entry")
    for word in ("TP_Entry", "tp.dist"):
        plugins = load_plugins(policy=Policy.model_validate({"plugins": {"block": [word]}}))
        assert states(plugins)["tp-entry"] == "blocked"


def test_requirements_say_what_is_here_and_take_the_whole_distribution(install):
    source = install("tp-dist", GOOD.replace("NAME", "one"), entry="tp-a", version="1.4.dev3")
    (source.parent / "test_plugin_other.py").write_text(GOOD.replace("NAME", "two"))
    points = next(source.parent.glob("test_plugin_tp_dist-*")) / "entry_points.txt"
    points.write_text(f"[{GROUP}]\ntp-a = test_plugin_tp_dist\ntp-b = test_plugin_other\n")
    plugins = load_plugins(policy=Policy.model_validate({"plugins": {"require": ["tp-dist>=1.3"]}}))
    plugins.require()
    assert [report.name for report in plugins.active] == ["tp-a", "tp-b"]
    with pytest.raises(Refused, match=r'requires "tp-dist>=2", but tp-dist 1.4.dev3 is installed'):
        load_plugins(policy=Policy.model_validate({"plugins": {"require": ["tp-dist>=2"]}})).require()
    for text in ("a; python_version < '4'", "a[extra]", "a @ file:///a"):
        with pytest.raises(ValueError, match="is no requirement"):
            Policy.model_validate({"plugins": {"require": [text]}})


def test_what_a_plugin_prints_is_no_answer(install, tmp_path, capsys):
    install("tp-loud", "print('noise')\n" + GOOD.replace("NAME", "loud"))
    path = tmp_path / "mine.py"
    path.write_text("print('more noise')\n" + GOOD.replace("NAME", "mine"))
    load_plugins(["tp-loud"], files=[path])
    out, err = capsys.readouterr()
    assert (out, err) == ("", "noise\nmore noise\n")


def test_what_exits_only_here_is_refused(install, monkeypatch):
    install("tp-late", "import os\nif os.environ.get('LATE'): exit(0)\n" + GOOD.replace("NAME", "late"))
    plugins = load_plugins()
    monkeypatch.setenv("LATE", "1")
    with pytest.raises(Refused, match='plugin "tp-late".*failed to load: SystemExit: 0'):
        plugins.ask("tp-late")


def test_a_file_takes_no_name_that_is_taken_or_blocked(install, tmp_path):
    install("tp-good", GOOD.replace("NAME", "good-block"))
    path = tmp_path / "tp_good.py"
    path.write_text(GOOD.replace("NAME", "mine"))
    for select in ([], ["no:tp-good"]):
        with pytest.raises(Refused, match=r'would be called "tp-good", as tp-good 1.0 is'):
            load_plugins(select, files=[path])
    other = path.rename(tmp_path / "other.py")
    with pytest.raises(Refused, match=r'would be called "other", which registry.toml blocks'):
        load_plugins(files=[other], policy=Policy.model_validate({"plugins": {"block": ["Other"]}}))


def test_a_run_is_told_which_plugins_take_no_part(install):
    install("tp-raises", "raise RuntimeError('no luck')")
    install("tp-one", GOOD.replace("NAME", "one"), entry="same")
    install("tp-two", GOOD.replace("NAME", "two"), entry="same")
    install("tp-blocked", "raise RuntimeError('no luck')")
    plugins, lines = load_plugins(["no:tp-blocked"]), []
    plugins.warn = lines.append
    plugins.observe()
    assert [line.partition(" takes no part: ")[0] for line in lines] == [
        'plugin "same" (tp-one, tp-two 1.0, 1.0)',
        'plugin "tp-raises" (tp-raises 1.0)',
    ]
    assert "failed, RuntimeError: no luck" in lines[1]


def test_a_part_of_the_catalogue_names_its_plugin_where_it_is_not_here():
    entry = {"plugin": "tp-gone", "rev": 1, "options": "sha256:0"}
    plugins = Plugins(Policy.model_validate({"components": {"block": {"gone": entry}}}))
    with pytest.raises(Refused, match='It comes with plugin "tp-gone", which is not loaded here'):
        plugins.catalog.find("block", "gone")
