"""Plugins: a broken one is reported and affects no other; a lazy session imports only the plugins that are used."""

import sys

import pytest

from dither.registry import hookimpl
from dither.registry.config.errors import Refused
from dither.registry.plugins.discovery import GROUP
from dither.registry.plugins.manager import Plugins, load_plugins
from dither.registry.plugins.policy import Policy, find_policy
from dither.registry.plugins.status import PluginError, details

HOOK = "from dither.registry import hookimpl\n@hookimpl\n{}\n"
policy = Policy.model_validate


def reports(plugins):
    return {report.name: report for report in plugins.reports}


def states(plugins):
    return {report.name: report.state for report in plugins.reports}


def active(plugins):
    return [report.name for report in plugins.active]


def imported(name):
    return f"test_plugin_{name.replace('-', '_')}" in sys.modules


def codes_of(call):
    with pytest.raises(Refused) as info:
        call()
    return info.value.codes


BROKEN = {
    "tp-raises": (
        "raise RuntimeError('no luck')",
        "RuntimeError: no luck (test_plugin_tp_raises.py:1)",
    ),
    "tp-exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "tp-import": ("import not_there_at_all", "not_there_at_all"),
    "tp-syntax": ("def", "SyntaxError"),
    "tp-arguments": (HOOK.format("def after_step(run, stepp): ..."), "stepp"),
    "tp-typo": (
        HOOK.format("def register_component(): return []"),
        'did you mean "register_components"',
    ),
    "tp-wrapper": (
        HOOK.format("def before_run(run): yield").replace(
            "impl\n", "impl(wrapper=True)\n"
        ),
        "wrapper",
    ),
    "tp-nothing": ("x = 1", "ValueError: no function is marked with @hookimpl"),
}


@pytest.mark.parametrize("lazy", [False, True])
def test_a_broken_plugin_is_reported_and_the_others_load(install, block, lazy, refused):
    install("tp-good", block("good-block"))
    for name, (source, _) in BROKEN.items():
        install(name, source)
    install("tp-twice", block("half").replace("[Block]", "[Block, Block]"))
    install(
        "tp-then",
        block("half").replace(
            "return [Block]", "yield Block; raise ValueError('then')"
        ),
    )
    plugins = load_plugins(lazy=lazy)
    assert plugins.catalog.find("block", "good-block").plugin == "tp-good"
    found = reports(plugins)
    assert {name for name, report in found.items() if report.state == "failed"} == {
        *BROKEN,
        "tp-twice",
        "tp-then",
    }
    for name, (_, reason) in BROKEN.items():
        assert reason in found[name].reason
    assert "half" not in plugins.catalog.names("block")
    with refused("unknown-component", match="tp-raises.*no luck"):
        plugins.catalog.find("block", "something")
    assert codes_of(lambda: plugins.request("tp-raises")) == ["plugin-failed"]
    assert codes_of(lambda: plugins.request("tp-godo")) == ["unknown-plugin"]


CATALOGUE = policy(
    {"components": {"tp-one": {"block": ["one"]}, "tp-gone": {"block": ["gone"]}}},
)


def test_a_catalogued_name_imports_its_plugin_only(install, block):
    for name, part in (("tp-one", "one"), ("tp-two", "two"), ("tp-same", "one")):
        install(name, block(part))
    plugins = load_plugins(policy=CATALOGUE, lazy=True)
    assert states(plugins)["tp-one"] == "available"
    assert plugins.catalog.parse("block", "one").name == "one"
    assert plugins.catalog.find("block", "tp-same/one").pinned == "tp-same/one@1"
    assert imported("tp-one")
    assert not imported("tp-two")
    assert plugins.catalog.find("block", "one").plugin == "tp-one", (
        "not ambiguous: registry.toml has one owner"
    )
    assert plugins.catalog.find("block", "two").plugin == "tp-two", (
        "all are imported for a name it does not list"
    )
    assert active(plugins) == ["tp-one"]
    with pytest.raises(Refused, match='plugin "tp-gone", which is not installed'):
        plugins.catalog.find("block", "gone")


def test_two_distributions_with_one_entry_point_name_clash(install, block):
    install("tp-one", block("one"), entry="same")
    install("tp-two", block("two"), entry="same")
    plugins = load_plugins()
    assert (states(plugins)["same"], reports(plugins)["same"].source) == (
        "clash",
        "tp-one, tp-two",
    )
    assert not {"one", "two"} & set(plugins.catalog.names("block"))
    assert codes_of(lambda: plugins.request("same")) == ["plugin-conflict"]


def test_the_second_name_of_a_module_fails(install, block):
    source = install("tp-both", block("both"), entry="tp-a")
    points = next(source.parent.glob("test_plugin_tp_both-*")) / "entry_points.txt"
    points.write_text(
        f"[{GROUP}]\ntp-a = test_plugin_tp_both\ntp-b = test_plugin_tp_both\n"
    )
    found = reports(load_plugins())
    assert (found["tp-a"].state, found["tp-b"].state) == ("loaded", "failed")
    assert "test_plugin_tp_both" in found["tp-b"].reason


def test_blocked_plugins_are_never_imported(install, tmp_path):
    flag = tmp_path / "imported"
    install("tp-bomb", f"open({str(flag)!r}, 'w')", entry="tp-entry")
    for word in ("tp-entry", "TP_Entry", "tp.bomb"):
        blocked = policy({"plugins": {"block": [word]}})
        assert states(load_plugins(policy=blocked))["tp-entry"] == "blocked"
    assert states(load_plugins(["no:tp-entry"]))["tp-entry"] == "blocked"
    assert codes_of(lambda: load_plugins(["tp-entry"], policy=blocked)) == [
        "plugin-blocked"
    ]
    assert not flag.exists()


def test_an_allow_list_and_its_misspellings(install, block, monkeypatch, refused):
    install("tp-good", block("good-block"))
    monkeypatch.setenv("DITHER_PLUGINS", "tp-good")
    assert {
        kind for kind, state in states(load_plugins()).items() if state == "loaded"
    } == {"tp-good"}
    monkeypatch.setenv("DITHER_PLUGINS", "")
    assert set(states(load_plugins()).values()) == {"blocked"}
    monkeypatch.setenv("DITHER_PLUGINS", "tp-godo")
    with refused("unknown-plugin", match='did you mean "tp-good"'):
        load_plugins()
    monkeypatch.delenv("DITHER_PLUGINS")
    assert codes_of(lambda: load_plugins(["no:tp-goood"])) == ["unknown-plugin"]
    assert active(load_plugins(["tp-good"])) == ["tp-good"]


def test_required_plugins(install, block, refusal):
    install("tp-good", block("good-block"), version="1.4")
    install("tp-other", block("other"))
    plugins = load_plugins(
        policy=policy({"plugins": {"require": ["TP_good~=1.2", "dither-tasks"]}}),
        lazy=True,
    )
    plugins.require()
    assert set(active(plugins)) == {"tp-good", "tasks"}
    plugins = load_plugins(
        policy=policy({"plugins": {"require": ["tp-good>=2", "nobody", "tasks"]}})
    )
    info = refusal(plugins.require)
    assert [problem.message.split('"')[1] for problem in info.problems] == [
        "tp-good>=2",
        "nobody",
    ]
    assert info.codes == ["unknown-plugin"] * 2


def test_a_requirement_covers_all_plugins_of_a_distribution(install, block):
    source = install("tp-dist", block("one"), entry="tp-a", version="1.4.dev3")
    (source.parent / "test_plugin_other.py").write_text(block("two"))
    points = next(source.parent.glob("test_plugin_tp_dist-*")) / "entry_points.txt"
    points.write_text(
        f"[{GROUP}]\ntp-a = test_plugin_tp_dist\ntp-b = test_plugin_other\n"
    )
    plugins = load_plugins(
        policy=policy({"plugins": {"require": ["tp-dist>=1.3"]}}), lazy=True
    )
    plugins.require()
    assert active(plugins) == ["tp-a", "tp-b"]


@pytest.mark.parametrize(
    "text", ["a; python_version < '4'", "a[extra]", "a @ file:///a", "y 3"]
)
def test_a_requirement_is_a_name_with_versions(text):
    with pytest.raises(ValueError, match="requirement"):
        policy({"plugins": {"require": [text]}})


def test_file_plugins(tmp_path, block):
    path = tmp_path / "my_block.py"
    path.write_text(block("mine"))
    for plugins in (load_plugins(files=[path]), load_plugins([str(path)])):
        report = plugins.reports[-1]
        assert (report.name, report.state, len(report.sha256)) == (
            "my-block",
            "loaded",
            64,
        )
        assert plugins.catalog.find("block", "my-block/mine")
        assert active(plugins) == ["my-block"]
    assert codes_of(lambda: plugins.load_file(path)) == ["plugin-conflict"]
    blocked = policy({"plugins": {"block": ["My_Block"]}})
    assert codes_of(lambda: load_plugins(files=[path], policy=blocked)) == [
        "plugin-blocked"
    ]
    for source in ("x = 1 / 0", "x = 1"):
        path.write_text(source)
        assert codes_of(lambda: load_plugins(files=[path])) == ["plugin-failed"]
    assert codes_of(lambda: load_plugins(files=[tmp_path / "none.py"])) == [
        "file-not-found"
    ]
    assert codes_of(lambda: load_plugins(files=[path.rename(tmp_path / "a@b.py")])) == [
        "invalid-value"
    ]


@pytest.mark.parametrize(
    "name", ["a/b", "a@b", 'a"b', "a\\b", "a,b", "a\x07b", "no:a", "a.py"]
)
def test_names_that_a_pin_cannot_express_are_rejected(install, block, name):
    install("tp-odd", block("odd"), entry=name)
    assert "not a valid plugin name" in reports(load_plugins())[name].reason


def test_components_of_one_name_are_reported_with_both_plugins(install, block, refused):
    for name in ("tp-one", "tp-two"):
        install(name, block("same"))
    install("tp-raises", "raise RuntimeError('no luck')")
    with refused("ambiguous-component") as info:
        load_plugins(lazy=True).catalog.find("block", "same")
    assert '"tp-one/same", "tp-two/same"' in str(info.value)
    listed = policy({"components": {"tp-two": {"block": ["same"]}}})
    assert (
        load_plugins(policy=listed, lazy=True).catalog.find("block", "same").plugin
        == "tp-two"
    )
    plugins = load_plugins(["no:tp-two"], policy=listed)
    assert plugins.catalog.find("block", "same").plugin == "tp-one"


def test_a_known_plugin_is_named_with_its_command(refused):
    known = {
        "wavelet": {
            "provides": ["block:wavelet"],
            "install": "pip install dither-wavelet",
        }
    }
    with refused(
        "unknown-component", match='plugin "wavelet": pip install dither-wavelet'
    ):
        load_plugins(policy=policy({"known": known}), lazy=True).catalog.find(
            "block", "wavelet"
        )


def test_plugins_that_an_experiment_requests_may_be_used(install, monkeypatch):
    install("tp-watch", HOOK.format("def before_run(run): ..."))
    blocked = policy({"plugins": {"block": ["TP_watch"]}})
    for rules, select, named, state in (
        (blocked, [], ["tp-watch"], "blocked"),
        (None, ["no:tp-watch"], ["tp-watch"], "blocked"),
    ):
        assert (
            states(load_plugins(select, policy=rules, named=named))["tp-watch"] == state
        )
    monkeypatch.setenv("DITHER_PLUGINS", "losses")
    assert states(load_plugins(named=["tp-watch"]))["tp-watch"] == "loaded"
    assert active(load_plugins(["tp-watch"])) == ["tp-watch"]


def test_output_of_a_plugin_goes_to_stderr(install, block, tmp_path, capsys):
    install("tp-loud", "print('noise')\n" + block("loud"))
    path = tmp_path / "mine.py"
    path.write_text("print('more noise')\n" + block("mine"))
    load_plugins(files=[path])
    assert capsys.readouterr() == ("", "noise\nmore noise\n")


def test_the_nearest_policy_counts_and_its_mistakes_are_named(tmp_path, refusal):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "registry.toml").write_text('[plugins]\nblock = ["x"]\n')
    assert find_policy(tmp_path / "a" / "b").plugins.block == ["x"]
    for text, code, line in (
        ('[plugin]\nblock = ["y"]\n', "unknown-key", 1),
        ('[plugins]\nrequire = ["y 3"]\n', "invalid-value", 2),
    ):
        (tmp_path / "a" / "registry.toml").write_text(text)
        (problem,) = refusal(find_policy, tmp_path / "a" / "b").problems
        assert (problem.code, problem.origin.line) == (code, line)


def observer(*events):
    """Return an observer; each event is a hook and the error that it raises."""
    hooks = {hook: hookimpl(_raising(error)) for hook, error in events}
    return type(
        "Observer",
        (),
        {"after_eval": hookimpl(lambda self, metrics: metrics["loss"]), **hooks},
    )()


def _raising(error):
    def hook(self):
        raise error

    return hook


EVAL = {"run": None, "step": 3, "metrics": {"loss": 1.0}}


def session(name, plugin, rules=None):
    plugins = Plugins(rules)
    plugins.register(name, plugin)
    return plugins


def test_a_hook_that_raises_stops_the_run():
    broken = observer(("after_step", ValueError("three")))
    plugins = session("observer", broken)
    assert list(plugins.call_each("after_eval", **EVAL)) == [("observer", 1.0)], (
        "it gets only what it takes"
    )
    with pytest.raises(PluginError, match="observer.* after_step: ValueError: three"):
        list(plugins.call_each("after_step", **EVAL))


def test_only_used_plugins_and_observers_take_part_in_a_run(install, block):
    install("tp-good", block("good-block"))
    install("tp-watch", HOOK.format("def before_run(run): return 3"))
    install(
        "tp-checks", HOOK.format("def check_experiment(experiment): raise ValueError")
    )
    plugins = load_plugins()
    assert not plugins.active
    assert plugins.observe() == []
    assert active(plugins) == ["tp-watch"]
    assert reports(plugins)["tp-watch"].hooks == ("before_run",)
    assert list(plugins.call_each("check_experiment", experiment=None)) == []
    assert list(plugins.call_each("before_run", run=None)) == [("tp-watch", 3)]


@pytest.mark.parametrize(
    "body",
    [
        "yield 1 / 0",
        "return None",
        "return 3",
        "yield 'text'",
        "return 'text'",
        "exit(0)",
        "yield; exit(0)",
    ],
)
def test_a_check_that_fails_or_yields_something_else_is_a_plugin_error(tmp_path, body):
    (tmp_path / "strict.py").write_text(HOOK.format(f"def check_experiment(): {body}"))
    plugins = Plugins()
    plugins.load_file(tmp_path / "strict.py")
    with pytest.raises(PluginError, match="strict.*check_experiment"):
        list(plugins.call_each("check_experiment", experiment=None))


def test_a_refusal_in_a_run_is_attributed():
    events = (
        ("before_run", Refused("no disk")),
        ("check_experiment", Refused("not here", code="no-effect")),
    )
    plugins = session("unwilling", observer(*events))
    with pytest.raises(PluginError, match="unwilling.*before_run") as error:
        list(plugins.call_each("before_run", run=None))
    assert "no disk" in details(error.value.__cause__)
    assert "Traceback" not in details(error.value.__cause__)
    assert codes_of(
        lambda: list(plugins.call_each("check_experiment", experiment=None))
    ) == ["no-effect"]


def test_a_plugin_that_fails_to_register_leaves_no_trace():
    half = observer()
    type(half).register_components = hookimpl(lambda self: [3])
    plugins = Plugins()
    with pytest.raises(ValueError, match="Spec"):
        plugins.register("half", half)
    assert plugins.manager.get_plugins() == set()
    assert list(plugins.call_each("after_eval", **EVAL)) == []
    once = observer()
    plugins.register("once", once)
    with pytest.raises(ValueError, match="registered"):
        plugins.register("twice", once)
    assert plugins.manager.get_plugin("once") is once
