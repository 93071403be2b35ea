"""registry.toml locks names, revisions and options of components."""

from typing import ClassVar

import pytest
from pydantic import Field

from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec
from dither.registry.kinds.training import LossSpec
from dither.registry.plugins.lockfile import check_lockfile, sync_lockfile
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.policy import read_policy
from dither.registry.plugins.status import PluginStatus
from dither.registry.spec.fingerprint import fingerprint


class Block(BlockSpec):
    """A block."""

    name: ClassVar[str] = "plain"
    heads: int = Field(4, ge=1)

    def build(self, width, cond):
        """Nothing."""


def variant(name="plain", rev=1, default=4, lowest=1, base=BlockSpec, kind=int):
    class Other(base):
        """A block."""

        heads: kind = Field(default, ge=lowest)

        def build(self, *args):
            """Nothing."""

    Other.name, Other.rev = name, rev
    return Other


def plugins(*specs, name="ours"):
    class Plugin:
        @hookimpl
        def register_components(self):
            """Return the given classes."""
            return specs

    found = Plugins()
    found.register(name, Plugin())
    return found


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "registry.toml"
    path.write_text('# by hand\n[plugins]\nblock = ["x"]\n')
    return path


def messages(path, *specs):
    problems = check_lockfile(read_policy(path), plugins(*specs))
    assert {problem.code for problem in problems} <= {"lockfile-outdated"}
    return [problem.message for problem in problems]


def test_sync_keeps_the_policy_and_check_agrees(path):
    offered = plugins(Block, variant("more", base=LossSpec))
    assert sync_lockfile(path, offered) == (["added block ours/plain", "added loss ours/more"], [])
    assert path.read_text().startswith('# by hand\n[plugins]\nblock = ["x"]\n\n# ----')
    policy = read_policy(path)
    assert policy.block == ["x"]
    assert policy.components["block"]["plain"].options == fingerprint(Block)
    assert messages(path, Block, variant("more", base=LossSpec)) == []
    text = path.read_text()
    assert sync_lockfile(path, plugins(Block, variant("more", base=LossSpec))) == ([], [])
    assert path.read_text() == text


@pytest.mark.parametrize("other", [variant(default=5), variant(lowest=2), variant(kind=float)])
def test_changed_options_require_a_new_rev(path, other, refused):
    sync_lockfile(path, plugins(Block))
    (message,) = messages(path, other)
    assert "rev 1" in message
    before = path.read_text()
    with refused("lockfile-outdated") as info:
        sync_lockfile(path, plugins(other))
    assert "raise its rev to 2" in info.value.problems[0].help
    assert path.read_text() == before
    other.rev = 2
    (message,) = messages(path, other)
    assert "ours@1 in the catalogue, but ours@2" in message
    assert sync_lockfile(path, plugins(other)) == (["changed block ours/plain"], [])
    assert messages(path, other) == []


def test_renamed_missing_and_new_components_are_reported(path):
    sync_lockfile(path, plugins(Block))
    gone, new = messages(path, variant("plane"))
    assert 'did you mean "plane"' in gone
    assert "not in the catalogue" in new
    empty = check_lockfile(read_policy(path), Plugins())
    assert [p.message.rpartition(" is ")[2] for p in empty] == ["not installed"]
    assert check_lockfile(read_policy(path), with_other(variant("their"))) == []


def test_two_plugins_with_one_name_are_both_included(path):
    both = with_other(variant())
    assert sync_lockfile(path, both) == (["added block ours/plain", "added block theirs/plain"], [])
    assert set(read_policy(path).components["block"]) == {"ours/plain", "theirs/plain"}
    assert check_lockfile(read_policy(path), both) == []


def with_other(*specs, name="theirs"):
    both = plugins(Block)
    both.register(name, type("P", (), {"register_components": hookimpl(lambda self: specs)})())
    return both


def test_another_plugin_with_the_same_name_is_included_on_request(path, refused):
    sync_lockfile(path, plugins(Block))
    both = with_other(variant())
    assert check_lockfile(read_policy(path), both) == []
    assert sync_lockfile(path, both) == (
        [],
        ['did not include plugin "theirs" (dither registry sync theirs includes it)'],
    )
    assert sync_lockfile(path, both, named=["theirs"]) == (["added block theirs/plain"], [])
    assert set(read_policy(path).components["block"]) == {"ours/plain", "theirs/plain"}
    gone = plugins(Block)
    kept = 'kept 1 of plugin "theirs", which is not installed here (dither registry sync theirs removes them)'
    assert sync_lockfile(path, gone) == ([], [kept])
    assert sync_lockfile(path, gone, named=["theirs"]) == (["removed block theirs/plain"], [])
    assert set(read_policy(path).components["block"]) == {"plain"}
    with refused("unknown-plugin"):
        sync_lockfile(path, both, named=["ous"])


def versioned(*specs, version, state="loaded"):
    found = plugins(*specs) if state == "loaded" else Plugins()
    found._reports["ours"] = PluginStatus("ours", state, "ours", version)
    return found


def test_since_is_the_version_in_which_a_part_was_first_seen(path):
    sync_lockfile(path, versioned(Block, version="0.1"))
    changed = variant(rev=2)
    sync_lockfile(path, versioned(changed, variant("new"), version="0.2"))
    entries = read_policy(path).components["block"]
    assert (entries["plain"].rev, entries["plain"].since, entries["new"].since) == (2, "0.1", "0.2")


@pytest.mark.parametrize("state", ["failed", "blocked", "clash"])
def test_entries_of_a_plugin_that_is_not_loaded_are_kept(path, state, refused):
    sync_lockfile(path, versioned(Block, version="0.1"))
    before = path.read_bytes()
    absent = versioned(version="0.1", state=state)
    assert sync_lockfile(path, absent) == (
        [],
        [f'kept 1 of plugin "ours", which is {state} here (dither plugins shows why)'],
    )
    assert path.read_bytes() == before
    with refused("plugin-failed"):
        sync_lockfile(path, absent, named=["ours"])
    with refused("lockfile-outdated"):
        sync_lockfile(path, plugins(variant(default=5)))


NASTY = 'a"b\\c'


@pytest.mark.parametrize(
    "by_hand", ["", "# x", '\ufeff# \u00fc\r\n[plugins]\r\nblock = ["x"]\r\n\r\n\r\n', "\n\n[prefer]\n\n\n"]
)
def test_the_policy_stays_byte_for_byte(path, by_hand):
    path.write_bytes(by_hand.encode())
    both = with_other(variant(), name=NASTY)
    sync_lockfile(path, both)
    first = path.read_bytes()
    assert first.startswith(by_hand.encode())
    assert (b"\r\n" in first) == (first.count(b"\n") == first.count(b"\r\n"))
    assert read_policy(path).components["block"][f"{NASTY}/plain"].plugin == NASTY
    sync_lockfile(path, both)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("above", "below", "message"),
    [
        ("", '\n[known.x]\ninstall = "pip install x"\n', "[known]"),
        ("", '\n[prefer]\n"block:plain" = "ours"\n', "[prefer]"),
        ('[components.loss.x]\nplugin = "x"\nrev = 1\noptions = "x"\n', "", "[components]"),
    ],
)
def test_tables_in_the_wrong_half_are_rejected(path, above, below, message, refused):
    sync_lockfile(path, plugins(Block))
    path.write_text(above + path.read_text() + below)
    before = path.read_bytes()
    with refused("syntax-error") as info:
        sync_lockfile(path, plugins(Block))
    assert message in str(info.value)
    assert path.read_bytes() == before


def test_a_catalogue_without_the_marker_is_rejected(path, refused):
    sync_lockfile(path, plugins(Block))
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("# ----")))
    with refused("syntax-error"):
        sync_lockfile(path, plugins(Block))


def test_paths_that_cannot_be_written(tmp_path, refused):
    with refused("unreadable-file"):
        sync_lockfile(tmp_path, plugins(Block))
    (tmp_path / "file").write_text("")
    with refused("unreadable-file"):
        sync_lockfile(tmp_path / "file" / "registry.toml", plugins(Block))
