"""Loading: a broken plugin is reported and stops nobody else."""

import importlib.metadata
import subprocess
import sys
import textwrap

import pytest

from dither.registry.plugins import GROUP, load_plugins
from dither.registry.policy import Policy, find_policy
from dither.registry.problems import Refused

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

    def install(dist: str, source: str, entry: str | None = None) -> None:
        module = "test_plugin_" + dist.replace("-", "_")
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry or dist} = {module}\n")
        importlib.invalidate_caches()

    yield install
    for name in [name for name in sys.modules if name.startswith("test_plugin_")]:
        del sys.modules[name]


def states(plugins):
    return {report.name: report.state for report in plugins.reports}


def test_a_broken_plugin_is_reported_and_the_others_load(install):
    install("tp-good", GOOD.replace("NAME", "good-block"))
    install("tp-raises", "raise RuntimeError('no luck')")
    install("tp-exits", "import sys; sys.exit(3)")
    install("tp-import", "import not_there_at_all")
    install("tp-half", GOOD.replace("NAME", "half").replace("[Block]", "[Block, Block]"))
    install("tp-arguments", "from dither.registry import hookimpl\n@hookimpl\ndef after_step(run, stepp): ...")
    install("tp-typo", "from dither.registry import hookimpl\n@hookimpl\ndef register_component(): return []")
    plugins = load_plugins()
    reports = {report.name: report for report in plugins.reports}
    assert reports["tp-good"].state == "loaded"
    assert plugins.catalog.find("block", "good-block").plugin == "tp-good"
    for name, reason in {
        "tp-raises": "no luck",
        "tp-exits": "SystemExit: 3",
        "tp-import": "not_there_at_all",
        "tp-half": "twice",
        "tp-arguments": "stepp",
        "tp-typo": 'did you mean "register_components"',
    }.items():
        assert reports[name].state == "failed"
        assert reason in reports[name].reason
    assert "half" not in plugins.catalog.names("block")
    assert not plugins.manager.get_plugin("tp-half")
    with pytest.raises(Refused, match="tp-raises.*failed to load"):
        plugins.catalog.find("block", "something")


def test_two_distributions_with_one_entry_point_name_clash(install):
    install("tp-one", GOOD.replace("NAME", "one"), entry="same")
    install("tp-two", GOOD.replace("NAME", "two"), entry="same")
    plugins = load_plugins()
    assert states(plugins)["same"] == "clash"
    assert not {"one", "two"} & set(plugins.catalog.names("block"))


def test_blocked_plugins_are_never_imported(install, monkeypatch):
    install("tp-bomb", "raise RuntimeError")
    for plugins in (
        load_plugins(["no:tp-bomb"]),
        load_plugins(policy=Policy(plugins={"block": ["tp-bomb"]})),
    ):
        assert states(plugins)["tp-bomb"] == "blocked"
    monkeypatch.setenv("DITHER_PLUGINS", "no:tp-bomb")
    assert states(load_plugins())["tp-bomb"] == "blocked"
    assert "test_plugin_tp_bomb" not in sys.modules


def test_selection_loads_only_what_is_named(install):
    install("tp-good", GOOD.replace("NAME", "good-block"))
    assert set(load_plugins(["tp-good"]).catalog.names("block")) == {"good-block"}
    with pytest.raises(Refused, match=r'no plugin is named "tp-godo"(.|\n)*did you mean "tp-good"'):
        load_plugins(["tp-godo"])


def test_file_plugins(tmp_path):
    path = tmp_path / "my_block.py"
    path.write_text(GOOD.replace("NAME", "mine"))
    plugins = load_plugins(files=[path])
    report = plugins.reports[-1]
    assert (report.name, report.state, len(report.sha256)) == ("my-block", "loaded", 64)
    assert plugins.catalog.find("block", "my-block/mine")
    path.write_text("x = 1 / 0")
    with pytest.raises(Refused, match="division by zero"):
        load_plugins(files=[path])
    with pytest.raises(Refused, match="does not exist"):
        load_plugins(files=[tmp_path / "none.py"])


def test_the_nearest_policy_counts_and_its_mistakes_are_named(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "registry.toml").write_text('[plugins]\nblock = ["x"]\n')
    assert find_policy(tmp_path / "a" / "b").block == ["x"]
    (tmp_path / "a" / "registry.toml").write_text('[plugin]\nblock = ["y"]\n')
    with pytest.raises(Refused, match=r'did you mean "plugins"\?'):
        find_policy(tmp_path / "a" / "b")


def test_hooks_get_only_the_arguments_they_ask_for():
    from dither.registry import hookimpl

    class Observer:
        @hookimpl
        def after_eval(self, metrics):
            return metrics["loss"]

    plugins = load_plugins([""])
    plugins.register("observer", Observer())
    assert list(plugins.called("after_eval", run=None, step=3, metrics={"loss": 1.0})) == [("observer", 1.0)]


def test_no_torch_and_quick():
    code = (
        "import sys, dither.registry.plugins as p; p.load_plugins(); "
        "assert 'torch' not in sys.modules, 'torch'; assert 'scipy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
