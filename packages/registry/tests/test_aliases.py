"""Earlier names of components: migrated options, warnings, expiry."""

from typing import ClassVar

import pytest
from packaging.version import Version
from pydantic import Field

from dither.registry.config.document import Document
from dither.registry.config.validation import alias_warnings, validate
from dither.registry.kinds import BlockSpec
from dither.registry.plugins.catalog import Catalog
from dither.registry.spec.base import Alias, Options, Slot


class New(BlockSpec):
    """A block."""

    name: ClassVar[str] = "new"
    aliases: ClassVar[tuple[Alias, ...]] = (
        Alias("old", "0.4", migrate=lambda options: {"heads": options.pop("num_heads", 2), **options}),
        Alias("older", "0.3"),
    )
    heads: int = Field(4, ge=1)

    def build(self, width, cond):
        """Nothing."""


class File(Options):
    """A file with blocks."""

    block: Slot[BlockSpec]
    more: list[Slot[BlockSpec]] = []


def catalog(version="0.2"):
    catalog = Catalog()
    catalog.add("ours", [New], Version(version))
    return catalog


def read(tmp_path, text, catalog):
    path = tmp_path / "exp.toml"
    path.write_text(text)
    document = Document.load(path)
    return validate(File, document, catalog), document


def test_an_earlier_name_takes_its_options_and_warns(tmp_path):
    text = 'more = ["new", "ours/older"]\n[block]\nuse = "old"\nnum_heads = 7\n'
    file, document = read(tmp_path, text, catalog())
    assert (file.block.name, file.block.heads, file.more[1].heads) == ("new", 7, 4)
    first, second = alias_warnings(file, document)
    assert first.code == "deprecated-name"
    assert (first.origin.line, first.help) == (3, 'write "new"')
    assert (second.path, second.origin.line) == (("more", 1), 1)
    assert catalog().find("block", "old").pinned == "ours/new@1"


def test_the_current_name_takes_current_options_only(tmp_path, refused):
    file, document = read(tmp_path, "block = 'new'", catalog())
    assert alias_warnings(file, document) == []
    with refused("unknown-key"):
        read(tmp_path, 'block = { use = "new", num_heads = 7 }', catalog())


def test_an_earlier_name_expires(tmp_path, refused):
    assert read(tmp_path, "block = 'older'", catalog("0.2.9"))
    with refused("unknown-component"):
        read(tmp_path, "block = 'older'", catalog("0.3"))
    assert read(tmp_path, "block = 'old'", catalog("0.3"))


def test_a_current_name_precedes_an_earlier_one():
    other = type("Other", (BlockSpec,), {"name": "old", "__doc__": "Another.", "build": lambda self, width, cond: None})
    found = catalog()
    found.add("theirs", [other])
    assert found.find("block", "old").spec is other
    assert found.find("block", "ours/old").spec is New


def block(name, *aliases):
    body = {"name": name, "__doc__": "A block.", "aliases": aliases, "build": lambda self, width, cond: None}
    return type("Made", (BlockSpec,), body)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([block("new", Alias("old", "soon"))], "'soon'"),
        ([block("new", Alias("old", None))], "None"),
        ([block("new", Alias("Old", "0.4"))], "kebab-case"),
        ([block("new", "old")], "kebab-case"),
        ([block("new", Alias("new", "0.4"))], '"new" is taken'),
        ([block("new", Alias("other", "0.4")), block("other")], '"other" is taken'),
        ([block("new", Alias("old", "0.4")), block("other", Alias("old", "0.4"))], '"old" is taken'),
    ],
)
def test_invalid_earlier_names_are_rejected(parts, message):
    found = Catalog()
    with pytest.raises(ValueError, match=message):
        found.add("ours", parts)
    assert not found.parts()


@pytest.mark.parametrize(
    ("migrate", "reason"),
    [
        (lambda options: options["half"], "KeyError: 'half'"),
        (lambda options: None, "TypeError"),
        (lambda options: exit(0), "SystemExit: 0"),
    ],
)
def test_a_migration_that_fails_is_attributed(tmp_path, migrate, reason, refused):
    found = Catalog()
    found.add("ours", [block("new", Alias("old", "0.4", migrate=migrate))])
    with refused("plugin-failed") as info:
        read(tmp_path, "[block]\nuse = 'old'", found)
    (problem,) = info.value.problems
    assert (problem.path, problem.origin.line) == (("block",), 1)
    assert f'"new" of plugin "ours" failed: {reason}' in problem.message


def test_a_migration_does_not_touch_the_document(tmp_path):
    class Nested(New):
        """A block."""

        aliases: ClassVar[tuple[Alias, ...]] = (
            Alias("old", "0.4", migrate=lambda options: {"heads": options["table"].pop("heads")}),
        )

    found = Catalog()
    found.add("ours", [Nested])
    file, document = read(tmp_path, "[block]\nuse = 'old'\ntable = { heads = 5 }", found)
    assert file.block.heads == 5
    assert document.at(("block", "table")) == {"heads": 5}
