"""Names, slots and errors of components in experiment files."""

from typing import Any, Literal

import pytest
from pydantic import Field, model_validator
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticCustomError

from dither.registry.config.document import Document
from dither.registry.config.errors import Refused
from dither.registry.config.validation import dump, validate
from dither.registry.kinds import BlockSpec, HeadSpec, LossSpec, ModelSpec
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.describe import describe
from dither.registry.spec.base import Options, Slot, Spec, merge_tables, named


class Plain(BlockSpec):
    """A plain block."""

    name = "plain"
    heads: int = Field(4, ge=1)
    """Number of heads."""
    norm: Literal["layer", "rms"] = "layer"

    def build(self, width, cond) -> Any: ...


class Linear(HeadSpec):
    """A linear head."""

    name = "linear"

    def build(self, space, width) -> Any: ...


class Squared(LossSpec):
    """A loss."""

    name = "squared"

    def build(self, process) -> Any: ...


class Net(ModelSpec):
    """A model."""

    name = "net"
    width: int
    block: Slot[BlockSpec] = named("plain", heads=2)
    heads: list[Slot[HeadSpec]] = []
    other: Slot[BlockSpec] | None = None

    def build(self, space) -> Any: ...


class File(Options):
    model: Slot[ModelSpec]
    steps: int = Field(10, ge=1)
    lr: float = 1e-3


@pytest.fixture
def catalog():
    catalog = Catalog()
    catalog.provider = lambda kind, name: (
        "pip install tp-gone" if name == "gone" else ""
    )
    catalog.add("ours", [Plain, Linear, Squared, Net])
    return catalog


def problems_of(tmp_path, catalog, text: str) -> list:
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        validate(File, Document.load(path), catalog)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("given", "heads", "norm"),
    [
        (
            {"norm": "rms"},
            2,
            "rms",
        ),  # 2 is the default of the slot, 4 that of the component
        ({"heads": 8}, 8, "layer"),
        ({}, 2, "layer"),
        ({"use": "plain"}, 4, "layer"),
        ("plain", 4, "layer"),
    ],
)
def test_a_table_without_a_name_changes_the_default_component(
    catalog, given, heads, norm
):
    net = catalog.parse("model", {"use": "net", "width": 1, "block": given})
    assert (net.block.heads, net.block.norm) == (heads, norm)
    assert dump(net.block, catalog) == {"heads": heads, "norm": norm}
    assert dump(net, catalog)["block"]["use"].endswith("plain@1")


def test_mistakes_in_a_table_without_a_name(catalog, tmp_path):
    text = '[model]\nuse = "net"\nwidth = 1\nblock = { hads = 3, norm = "batch" }\nother = { heads = 3 }\n'
    problems = problems_of(tmp_path, catalog, text)
    assert {(problem.code, *problem.path) for problem in problems} == {
        ("unknown-key", "model", "block", "hads"),
        ("unknown-value", "model", "block", "norm"),
        ("missing-key", "model", "other"),
    }
    (help_text,) = (
        problem.help for problem in problems if problem.code == "unknown-key"
    )
    assert help_text == 'did you mean "heads"? accepted: heads, norm, use'
    with pytest.raises(PydanticCustomError, match="an optimizer, .* registered: none"):
        catalog.parse("optimizer", 3)


def test_nested_tables_of_a_default_are_merged():
    default = {"use": "a", "inner": {"use": "b", "x": 1, "y": 2}, "z": 3}
    assert merge_tables(default, {"inner": {"x": 5}}) == {
        "use": "a",
        "inner": {"use": "b", "x": 5, "y": 2},
        "z": 3,
    }
    assert merge_tables(default, {"inner": {"use": "c", "x": 5}})["inner"] == {
        "use": "c",
        "x": 5,
    }


@pytest.mark.parametrize(
    ("use", "code", "message"),
    [
        ("nett", "unknown-component", 'Did you mean "net"?'),
        ("squared", "unknown-component", '"squared" is a loss, not a model'),
        ("zzz", "unknown-component", "Registered: net"),
        ("theirs/net", "unknown-component", "theirs/net"),
        ("net@7", "revision-mismatch", "ours/net@1"),
        ("gone", "unknown-component", "pip install tp-gone"),
    ],
)
def test_an_unknown_name_suggests_another(tmp_path, catalog, use, code, message):
    (problem,) = problems_of(
        tmp_path, catalog, f'model = {{ use = "{use}", width = 1 }}'
    )
    assert problem.code == code
    assert message in problem.message


def test_two_plugins_with_one_name_are_both_kept(catalog, refused):
    class Other(Plain):
        """Another one."""

    catalog.add("theirs", [Other])
    with refused("ambiguous-component") as info:
        catalog.find("block", "plain")
    assert '"ours/plain", "theirs/plain"' in str(info.value)
    assert catalog.find("block", "theirs/plain").spec is Other
    catalog.owners["block:plain"] = ["theirs"]
    assert catalog.find("block", "plain").spec is Other
    catalog.owners["block:plain"] = ["ours", "theirs"]
    with refused("ambiguous-component"):
        catalog.find("block", "plain")


def test_components_of_a_plugin_are_added_all_or_none(catalog):
    def made(base, **attributes):
        return type(
            "Made",
            (base,),
            {"__module__": __name__, "__doc__": "A block.", **attributes},
        )

    class Strange(Plain):
        """A type that TOML lacks."""

        odd: Catalog | None = None

    fine = made(Plain, name="fine")
    for bad, message in (
        (made(BlockSpec, build=Plain.build), "kebab-case"),
        (made(Plain, name="Not_Kebab"), "kebab-case"),
        (made(BlockSpec, name="unbuilt"), "Made.*build"),
        (int, "not a Spec class"),
        (Spec, "subclass a kind"),
        (fine, "twice"),
        (Strange, "Catalog"),
    ):
        with pytest.raises((ValueError, PydanticSchemaGenerationError), match=message):
            catalog.add("theirs", [fine, bad])
        assert "fine" not in catalog.names("block")


def test_dump_validates_to_the_same_and_pins_names(tmp_path, catalog):
    path = tmp_path / "e.toml"
    path.write_text(
        '[model]\nuse = "net"\nwidth = 3\nheads = ["linear"]\nother = "plain"'
    )
    file = validate(File, Document.load(path), catalog)
    tree = dump(file, catalog)
    assert tree["model"]["block"] == {
        "use": "ours/plain@1",
        "heads": 2,
        "norm": "layer",
    }
    assert validate(File, Document(tree), catalog) == file
    assert validate(File, Document(dump(file)), catalog) == file


def test_describe_gives_types_defaults_and_text(catalog):
    options = {
        o["name"]: o for o in describe(catalog.find("model", "net"), catalog)["options"]
    }
    assert options["block"]["type"] == "a block"
    assert options["block"]["default"] == '{ use = "plain", heads = 2 }'
    assert options["width"]["default"] == "(required)"
    assert options["other"]["default"] == "(none)"
    (heads, norm) = describe(catalog.find("block", "plain"), catalog)["options"]
    assert (heads["type"], heads["doc"]) == ("integer >= 1", "Number of heads.")
    assert norm["type"] == '"layer" | "rms"'


@pytest.mark.parametrize("error", [KeyError("a"), SystemExit(0), ZeroDivisionError()])
def test_a_validator_that_fails_is_attributed_to_its_plugin(tmp_path, catalog, error):
    class Failing(Plain):
        """Fails."""

        name = "failing"

        @model_validator(mode="after")
        def _fail(self) -> Any:
            raise error

    catalog.add("theirs", [Failing])
    text = 'model = { use = "net", width = 1, other = "failing" }\nsteps = 0'
    first, second = problems_of(tmp_path, catalog, text)
    assert first.code == "plugin-failed"
    assert (
        f'block "failing" of plugin "theirs" failed: {type(error).__name__}'
        in first.message
    )
    assert (first.path, second.path) == (("model", "other"), ("steps",))
