"""registry.toml lists the components of each package, and is written and checked."""

import pytest

from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec, LossSpec
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.policy import read_policy
from dither.registry.plugins.registry_file import check_components, sync_components
from dither.registry.plugins.status import PluginStatus


def component(spec_name, base=BlockSpec):
    class Component(base):
        """A component."""

        name = spec_name

        def build(self, *args): ...

    return Component


BLOCK = component("plain")


def plugins(*specs, **others):
    """Return plugin "ours", and others by name."""
    session = Plugins()
    for name, parts in {"ours": specs, **others}.items():
        hook = hookimpl(lambda self, parts=parts: parts)
        session.register(name, type("Plugin", (), {"register_components": hook})())
    return session


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "registry.toml"
    path.write_text('# by hand\n[plugins]\nblock = ["x"]  # why\n')
    return path


def messages(path, session):
    problems = check_components(read_policy(path), session)
    assert {problem.code for problem in problems} <= {"registry-outdated"}
    return [problem.message for problem in problems]


def test_sync_keeps_the_policy_and_check_agrees(path):
    specs = (component("more", LossSpec), component("another"), BLOCK)
    added = [
        "added block ours/another",
        "added block ours/plain",
        "added loss ours/more",
    ]
    assert sync_components(path, plugins(*specs)) == added
    text = path.read_text()
    tables = '[components.ours]\nloss = ["more"]\nblock = ["another", "plain"]\n'
    assert text == f'# by hand\n[plugins]\nblock = ["x"]  # why\n\n{tables}'
    assert messages(path, plugins(*specs)) == []
    others = plugins(*specs, theirs=[component("their")])
    assert messages(path, others) == [], "a plugin that is not listed"
    assert sync_components(path, plugins(*specs)) == []
    assert path.read_text() == text


def test_renamed_missing_and_new_components_are_reported(path):
    sync_components(path, plugins(BLOCK))
    gone, new = messages(path, plugins(component("plane")))
    assert '"plain"' in gone
    assert '"plane"' in new
    (absent,) = messages(path, Plugins())
    assert absent.endswith("is not installed")
    assert sync_components(path, Plugins()) == ["removed block ours/plain"]


def test_two_plugins_with_one_name_are_both_listed(path):
    both = plugins(BLOCK, theirs=[component("plain")])
    assert sync_components(path, both) == [
        "added block ours/plain",
        "added block theirs/plain",
    ]
    assert read_policy(path).owners() == {"block:plain": ["ours", "theirs"]}
    assert messages(path, both) == []


@pytest.mark.parametrize("state", ["failed", "blocked", "clash"])
def test_tables_of_a_plugin_that_is_not_loaded_are_kept(path, state):
    sync_components(path, plugins(BLOCK))
    before = path.read_bytes()
    absent = Plugins()
    absent._statuses["ours"] = PluginStatus("ours", state, "ours")
    assert sync_components(path, absent) == []
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "by_hand",
    [
        "",
        "# x",
        "\ufeff# \u00fc\r\n[plugins]\r\nblock = []\r\n",
        "[known.a]\ninstall = 'b'\n# end\n",
    ],
)
def test_other_tables_and_comments_stay(path, by_hand):
    path.write_bytes(by_hand.encode())
    nasty = 'a"b\\c'
    both = plugins(BLOCK, **{nasty: [component("plain")]})
    sync_components(path, both)
    first = path.read_bytes()
    assert first.decode().startswith(by_hand.strip("\ufeff\r\n"))
    assert read_policy(path).components == {
        "ours": {"block": ["plain"]},
        nasty: {"block": ["plain"]},
    }
    assert sync_components(path, both) == []
    assert path.read_bytes() == first


def test_paths_that_cannot_be_written(tmp_path, refused):
    (tmp_path / "file").write_text("")
    with refused("unwritable-file"):
        sync_components(tmp_path / "file" / "registry.toml", plugins(BLOCK))
    with refused("unwritable-file"):
        sync_components(tmp_path, plugins(BLOCK))
