"""Earlier names of components: migrated options and warnings."""

from typing import ClassVar

import pytest
from pydantic import Field

from dither.registry.config.document import Document
from dither.registry.config.validation import alias_warnings, validate
from dither.registry.kinds import BlockSpec
from dither.registry.plugins.catalog import Catalog
from dither.registry.spec.base import Alias, Options, Slot


class New(BlockSpec):
    """A block."""

    name = "new"
    aliases: ClassVar[tuple[Alias, ...]] = (
        Alias(
            "old",
            "0.4",
            migrate=lambda options: {"heads": options["table"].pop("heads")} if options else {},
        ),
        Alias("older", "0.3"),
        Alias("absent", "0.4", migrate=lambda options: options["half"]),
        Alias("none", "0.4", migrate=lambda options: None),
        Alias("exit", "0.4", migrate=lambda options: exit(0)),
    )
    heads: int = Field(4, ge=1)

    def build(self, width, cond): ...


class File(Options):
    """A file with blocks."""

    block: Slot[BlockSpec]
    more: list[Slot[BlockSpec]] = []


@pytest.fixture
def catalog():
    catalog = Catalog()
    catalog.add("ours", [New])
    return catalog


@pytest.fixture
def read(tmp_path, catalog):
    def read(text):
        (tmp_path / "exp.toml").write_text(text)
        document = Document.load(tmp_path / "exp.toml")
        return validate(File, document, catalog), document

    return read


def test_an_earlier_name_takes_its_options_and_warns(read, catalog):
    file, document = read(
        'more = ["new", "ours/older"]\n[block]\nuse = "old"\ntable = { heads = 7 }\n'
    )
    assert (file.block.name, file.block.heads, file.more[1].heads) == ("new", 7, 4)
    assert document.at(("block", "table")) == {"heads": 7}, "the migration got a copy"
    first, second = alias_warnings(file, document)
    assert first.code == "deprecated-name"
    assert (first.origin.line, first.help) == (3, 'write "new"')
    assert (second.path, second.origin.line) == (("more", 1), 1)
    assert catalog.find("block", "old").pinned == "ours/new@1"


def test_the_current_name_takes_current_options_only(read, refused):
    assert alias_warnings(*read("block = 'new'")) == []
    with refused("unknown-key"):
        read('block = { use = "new", table = { heads = 7 } }')


def test_a_current_name_precedes_an_earlier_one(catalog):
    other = type(
        "Other",
        (BlockSpec,),
        {"name": "old", "__doc__": "Another.", "build": lambda self, width, cond: None},
    )
    catalog.add("theirs", [other])
    assert catalog.find("block", "old").spec is other
    assert catalog.find("block", "ours/old").spec is New


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent", "KeyError: 'half'"), ("none", "TypeError"), ("exit", "SystemExit: 0")],
)
def test_a_migration_that_fails_is_attributed(read, name, reason, refused):
    with refused("plugin-failed") as info:
        read(f"[block]\nuse = '{name}'")
    (problem,) = info.value.problems
    assert (problem.path, problem.origin.line) == (("block",), 1)
    assert f'"new" of plugin "ours" failed: {reason}' in problem.message
