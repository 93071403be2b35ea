"""registry.toml locks names, revisions and options of components."""

import pytest
from pydantic import Field

from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec, LossSpec
from dither.registry.plugins.discovery import PluginStatus
from dither.registry.plugins.lockfile import check_lockfile, sync_lockfile
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.policy import read_policy
from dither.registry.spec.fingerprint import fingerprint


class Block(BlockSpec):
    """A block."""

    name = "plain"
    heads: int = Field(4, ge=1)

    def build(self, width, cond): ...


def variant(name="plain", rev=1, default=4, lowest=1, base=BlockSpec, kind=int):
    class Other(base):
        """A block."""

        heads: kind = Field(default, ge=lowest)

        def build(self, *args): ...

    Other.name, Other.rev = name, rev
    return Other


def plugins(*specs, **others):
    """Return plugin "ours", and others by name."""
    found = Plugins()
    for name, parts in {"ours": specs, **others}.items():
        hook = hookimpl(lambda self, parts=parts: parts)
        found.register(name, type("Plugin", (), {"register_components": hook})())
    return found


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "registry.toml"
    path.write_text('# by hand\n[plugins]\nblock = ["x"]\n')
    return path


def messages(path, found):
    problems = check_lockfile(read_policy(path), found)
    assert {problem.code for problem in problems} <= {"lockfile-outdated"}
    return [problem.message for problem in problems]


def test_sync_keeps_the_policy_and_check_agrees(path):
    specs = (Block, variant("more", base=LossSpec))
    assert sync_lockfile(path, plugins(*specs)) == [
        "added block ours/plain",
        "added loss ours/more",
    ]
    text = path.read_text()
    assert text.startswith('# by hand\n[plugins]\nblock = ["x"]\n\n# ----')
    assert read_policy(path).components["block"]["plain"].options == fingerprint(Block)
    assert messages(path, plugins(*specs)) == []
    assert messages(path, plugins(*specs, theirs=[variant("their")])) == [], (
        "a plugin that is not listed"
    )
    assert sync_lockfile(path, plugins(*specs)) == []
    assert path.read_text() == text


@pytest.mark.parametrize("other", [variant(default=5), variant(lowest=2), variant(kind=float)])
def test_changed_options_require_a_new_rev(path, other, refused):
    sync_lockfile(path, plugins(Block))
    (message,) = messages(path, plugins(other))
    assert "rev 1" in message
    before = path.read_text()
    with refused("lockfile-outdated") as info:
        sync_lockfile(path, plugins(other))
    assert "raise its rev to 2" in info.value.problems[0].help
    assert path.read_text() == before
    other.rev = 2
    (message,) = messages(path, plugins(other))
    assert "ours@1 in the catalogue, but ours@2" in message
    assert sync_lockfile(path, plugins(other)) == ["changed block ours/plain"]
    assert messages(path, plugins(other)) == []


def test_renamed_missing_and_new_components_are_reported(path):
    sync_lockfile(path, plugins(Block))
    gone, new = messages(path, plugins(variant("plane")))
    assert 'did you mean "plane"' in gone
    assert "not in the catalogue" in new
    assert [message.rpartition(" is ")[2] for message in messages(path, Plugins())] == [
        "not installed"
    ]
    assert sync_lockfile(path, Plugins()) == ["removed block ours/plain"]


def test_two_plugins_with_one_name_are_both_included(path):
    both = plugins(Block, theirs=[variant()])
    assert sync_lockfile(path, both) == ["added block ours/plain", "added block theirs/plain"]
    assert set(read_policy(path).components["block"]) == {"ours/plain", "theirs/plain"}
    assert messages(path, both) == []


@pytest.mark.parametrize("state", ["failed", "blocked", "clash"])
def test_entries_of_a_plugin_that_is_not_loaded_are_kept(path, state):
    sync_lockfile(path, plugins(Block))
    before, absent = path.read_bytes(), Plugins()
    absent._reports["ours"] = PluginStatus("ours", state, "ours")
    assert sync_lockfile(path, absent) == []
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "by_hand", ["", "# x", '\ufeff# \u00fc\r\n[plugins]\r\nblock = ["x"]\r\n\r\n', "\n[prefer]\n"]
)
def test_the_policy_stays_byte_for_byte(path, by_hand):
    path.write_bytes(by_hand.encode())
    nasty = 'a"b\\c'
    both = plugins(Block, **{nasty: [variant()]})
    sync_lockfile(path, both)
    first = path.read_bytes()
    assert first.startswith(by_hand.encode())
    assert read_policy(path).components["block"][f"{nasty}/plain"].plugin == nasty
    sync_lockfile(path, both)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("above", "below", "message"),
    [
        ("", '\n[prefer]\n"block:plain" = "ours"\n', "[prefer]"),
        ('[components.loss.x]\nplugin = "x"\nrev = 1\noptions = "x"\n', "", "[components]"),
    ],
)
def test_tables_in_the_wrong_half_are_rejected(path, above, below, message, refused):
    path.write_text("")
    sync_lockfile(path, plugins(Block))
    path.write_text(above + path.read_text() + below)
    before = path.read_bytes()
    with refused("syntax-error") as info:
        sync_lockfile(path, plugins(Block))
    assert message in str(info.value)
    assert path.read_bytes() == before


def test_paths_that_cannot_be_written(tmp_path, refused):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "registry.toml"):
        with refused("unreadable-file"):
            sync_lockfile(path, plugins(Block))
