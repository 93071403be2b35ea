"""registry.toml locks what parts are called, and what their options are."""

from typing import ClassVar

import pytest
from pydantic import Field

from dither.registry import hookimpl
from dither.registry.catalogue_file import check_catalogue, sync_catalogue
from dither.registry.fingerprint import fingerprint
from dither.registry.kinds import BlockSpec, LossSpec
from dither.registry.plugins import Plugins
from dither.registry.policy import read_policy
from dither.registry.problems import Refused


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
    return [problem.message for problem in check_catalogue(read_policy(path), plugins(*specs))]


def test_sync_keeps_the_policy_and_check_agrees(path):
    assert sync_catalogue(path, plugins(Block, variant("more", base=LossSpec))) == [
        "added block plain",
        "added loss more",
    ]
    assert path.read_text().startswith('# by hand\n[plugins]\nblock = ["x"]\n\n# ----')
    policy = read_policy(path)
    assert policy.block == ["x"]
    assert policy.components["block"]["plain"].options == fingerprint(Block)
    assert told(path, Block, variant("more", base=LossSpec)) == []
    text = path.read_text()
    assert sync_catalogue(path, plugins(Block, variant("more", base=LossSpec))) == []
    assert path.read_text() == text


@pytest.mark.parametrize("other", [variant(default=5), variant(lowest=2), variant(kind=float)])
def test_other_options_need_another_rev(path, other):
    sync_catalogue(path, plugins(Block))
    (message,) = told(path, other)
    assert message == 'block "plain" of plugin "ours" has other options than rev 1 had'
    before = path.read_text()
    with pytest.raises(Refused, match="raise its rev to 2"):
        sync_catalogue(path, plugins(other))
    assert path.read_text() == before
    other.rev = 2
    assert told(path, other) == ['block "plain" is ours@1 in the catalogue, but ours@2 here']
    assert sync_catalogue(path, plugins(other)) == ["changed block plain"]
    assert told(path, other) == []


def test_a_fingerprint_does_not_depend_on_words_or_order():
    class Same(BlockSpec):
        """Said in another way."""

        name: ClassVar[str] = "other"
        heads: int = Field(4, ge=1, description="how many")

    assert fingerprint(Same) == fingerprint(Block)
    assert fingerprint(variant(default=5)) != fingerprint(Block)


def test_a_part_that_is_renamed_missing_or_new_is_told(path):
    sync_catalogue(path, plugins(Block))
    gone, new = told(path, variant("plane"))
    assert gone == 'block "plain" is in the catalogue, but plugin "ours" does not offer it; nearest is "plane"'
    assert new == 'block "plane" of plugin "ours" is not in the catalogue'
    empty = check_catalogue(read_policy(path), Plugins())
    assert [p.message for p in empty] == ['block "plain" is in the catalogue, but plugin "ours" is not installed']
    stranger = plugins(Block)
    stranger.register("theirs", type("P", (), {"register_components": hookimpl(lambda self: [variant("their")])})())
    register = [p.message for p in check_catalogue(read_policy(path), stranger)]
    assert register == []


def test_two_plugins_with_one_name_are_both_in_it(path):
    both = plugins(Block)
    both.register("theirs", type("P", (), {"register_components": hookimpl(lambda self: [variant()])})())
    assert sync_catalogue(path, both) == ["added block ours/plain", "added block theirs/plain"]
    assert check_catalogue(read_policy(path), both) == []
