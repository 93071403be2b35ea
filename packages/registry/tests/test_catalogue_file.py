"""registry.toml locks what parts are called, and what their options are."""

from typing import ClassVar

import pytest
from pydantic import Field

from dither.registry import hookimpl
from dither.registry.config.errors import Refused
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
            """Offer them."""
            return specs

    found = Plugins()
    found.register(name, Plugin())
    return found


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "registry.toml"
    path.write_text('# by hand\n[plugins]\nblock = ["x"]\n')
    return path


def told(path, *specs):
    return [problem.message for problem in check_lockfile(read_policy(path), plugins(*specs))]


def test_sync_keeps_the_policy_and_check_agrees(path):
    offered = plugins(Block, variant("more", base=LossSpec))
    assert sync_lockfile(path, offered) == (["added block ours/plain", "added loss ours/more"], [])
    assert path.read_text().startswith('# by hand\n[plugins]\nblock = ["x"]\n\n# ----')
    policy = read_policy(path)
    assert policy.block == ["x"]
    assert policy.components["block"]["plain"].options == fingerprint(Block)
    assert told(path, Block, variant("more", base=LossSpec)) == []
    text = path.read_text()
    assert sync_lockfile(path, plugins(Block, variant("more", base=LossSpec))) == ([], [])
    assert path.read_text() == text


@pytest.mark.parametrize("other", [variant(default=5), variant(lowest=2), variant(kind=float)])
def test_other_options_need_another_rev(path, other):
    sync_lockfile(path, plugins(Block))
    (message,) = told(path, other)
    assert message == 'block "plain" of plugin "ours" has other options than rev 1 had'
    before = path.read_text()
    with pytest.raises(Refused, match="raise its rev to 2"):
        sync_lockfile(path, plugins(other))
    assert path.read_text() == before
    other.rev = 2
    assert told(path, other) == ['block "plain" is ours@1 in the catalogue, but ours@2 here']
    assert sync_lockfile(path, plugins(other)) == (["changed block ours/plain"], [])
    assert told(path, other) == []


def test_a_part_that_is_renamed_missing_or_new_is_told(path):
    sync_lockfile(path, plugins(Block))
    gone, new = told(path, variant("plane"))
    assert gone == 'block "plain" is in the catalogue, but plugin "ours" does not offer it; nearest is "plane"'
    assert new == 'block "plane" of plugin "ours" is not in the catalogue'
    empty = check_lockfile(read_policy(path), Plugins())
    assert [p.message for p in empty] == ['block "plain" is in the catalogue, but plugin "ours" is not installed']
    stranger = plugins(Block)
    stranger.register("theirs", type("P", (), {"register_components": hookimpl(lambda self: [variant("their")])})())
    register = [p.message for p in check_lockfile(read_policy(path), stranger)]
    assert register == []


def test_two_plugins_with_one_name_are_both_in_it(path):
    both = plugins(Block)
    both.register("theirs", type("P", (), {"register_components": hookimpl(lambda self: [variant()])})())
    assert sync_lockfile(path, both) == (["added block ours/plain", "added block theirs/plain"], [])
    assert set(read_policy(path).components["block"]) == {"ours/plain", "theirs/plain"}
    assert check_lockfile(read_policy(path), both) == []


def stranger(*specs, ours=(Block,), name="theirs"):
    both = plugins(*ours)
    both.register(name, type("P", (), {"register_components": hookimpl(lambda self: specs)})())
    return both


def test_a_stranger_of_the_same_name_changes_nothing_of_ours(path):
    sync_lockfile(path, plugins(Block))
    both = stranger(variant())
    assert check_lockfile(read_policy(path), both) == []
    assert sync_lockfile(path, both) == ([], ['left out plugin "theirs" (dither registry sync theirs takes it in)'])
    assert sync_lockfile(path, both, named=["theirs"]) == (["added block theirs/plain"], [])
    assert set(read_policy(path).components["block"]) == {"ours/plain", "theirs/plain"}
    gone = plugins(Block)
    kept = 'kept 1 of plugin "theirs", which is not installed here (dither registry sync theirs takes them out)'
    assert sync_lockfile(path, gone) == ([], [kept])
    assert sync_lockfile(path, gone, named=["theirs"]) == (["removed block theirs/plain"], [])
    assert set(read_policy(path).components["block"]) == {"plain"}
    with pytest.raises(Refused, match='no plugin is named "ous".*\n.*did you mean "ours"'):
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
def test_the_lock_outlives_a_plugin_that_is_not_loaded(path, state):
    sync_lockfile(path, versioned(Block, version="0.1"))
    before = path.read_bytes()
    absent = versioned(version="0.1", state=state)
    assert sync_lockfile(path, absent) == (
        [],
        [f'kept 1 of plugin "ours", which is {state} here (dither plugins says why)'],
    )
    assert path.read_bytes() == before
    with pytest.raises(Refused, match=f'plugin "ours" is {state}'):
        sync_lockfile(path, absent, named=["ours"])
    with pytest.raises(Refused, match="raise its rev to 2"):
        sync_lockfile(path, plugins(variant(default=5)))


NASTY = 'a"b\\c'


@pytest.mark.parametrize(
    "by_hand", ["", "# x", '\ufeff# \u00fc\r\n[plugins]\r\nblock = ["x"]\r\n\r\n\r\n', "\n\n[prefer]\n\n\n"]
)
def test_the_policy_stays_byte_for_byte(path, by_hand):
    path.write_bytes(by_hand.encode())
    both = stranger(variant(), name=NASTY)
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
        ("", '\n[known.x]\ninstall = "pip install x"\n', r"move \[known\] above the line"),
        ("", '\n[prefer]\n"block:plain" = "ours"\n', r"move \[prefer\] above the line"),
        ('[components.loss.x]\nplugin = "x"\nrev = 1\noptions = "x"\n', "", r"\[components\] without the line"),
    ],
)
def test_what_stands_in_the_wrong_half_is_refused(path, above, below, message):
    sync_lockfile(path, plugins(Block))
    path.write_text(above + path.read_text() + below)
    before = path.read_bytes()
    with pytest.raises(Refused, match=message):
        sync_lockfile(path, plugins(Block))
    assert path.read_bytes() == before


def test_a_catalogue_without_the_marker_is_refused(path):
    sync_lockfile(path, plugins(Block))
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("# ----")))
    with pytest.raises(Refused, match=r"\[components\] without the line"):
        sync_lockfile(path, plugins(Block))


def test_a_place_where_it_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(Refused, match="is a folder"):
        sync_lockfile(tmp_path, plugins(Block))
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be written"):
        sync_lockfile(tmp_path / "file" / "registry.toml", plugins(Block))
