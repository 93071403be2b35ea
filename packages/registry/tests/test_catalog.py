"""Names, slots, errors: what a person sees when a file is wrong, and what they get when it is right."""

from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field, model_validator
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticCustomError

from dither.registry.config.document import Document
from dither.registry.config.errors import Refused, dotted
from dither.registry.config.validation import dump, validate
from dither.registry.kinds import BlockSpec, HeadSpec, ModelSpec
from dither.registry.kinds.process import ScheduleSpec
from dither.registry.kinds.training import LossSpec
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.describe import describe
from dither.registry.spec.base import Options, Slot, Spec, merge_tables, named


class Plain(BlockSpec):
    """A plain block."""

    name: ClassVar[str] = "plain"
    heads: int = Field(4, ge=1)
    """Number of heads."""
    norm: Literal["layer", "rms"] = "layer"

    def build(self, width: int, cond: int) -> Any:
        return (self, width, cond)


class Linear(HeadSpec):
    """A linear head."""

    name: ClassVar[str] = "linear"

    def build(self, space, width) -> Any:
        return None


class Squared(LossSpec):
    """A loss."""

    name: ClassVar[str] = "squared"

    def build(self, process) -> Any:
        return None


class Net(ModelSpec):
    """A model."""

    name: ClassVar[str] = "net"
    width: int
    block: Slot[BlockSpec] = named("plain", heads=2)
    heads: list[Slot[HeadSpec]] = []
    other: Slot[BlockSpec] | None = None

    def build(self, space) -> Any:
        return None


class File(Options):
    model: Slot[ModelSpec]
    steps: int = Field(10, ge=1)
    lr: float = 1e-3


@pytest.fixture
def catalog():
    catalog = Catalog()
    catalog.add("ours", [Plain, Linear, Squared, Net])
    return catalog


def refused(tmp_path, catalog, text: str) -> list:
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        validate(File, Document.load(path), catalog)
    return list(caught.value.problems)


def test_every_mistake_at_once_each_at_its_line(tmp_path, catalog):
    problems = refused(
        tmp_path,
        catalog,
        'steps = "many"\nlr = 1e999\nstpes = 3\n[model]\nuse = "net"\n'
        'block = { use = "plain", heds = 3, norm = "batch" }\n'
        'heads = ["linear", "plain"]\nother = { heads = 2 }\n',
    )
    shown = {str(p.path[-1] if p.path else ""): str(p) for p in problems}
    assert len(problems) == 8
    assert 'expected an integer, got the string "many"' in shown["steps"]
    assert "e.toml:1:9" in shown["steps"]
    assert 'did you mean "steps"? accepted: lr, model, steps' in shown["stpes"]
    assert "e.toml:3:1" in shown["stpes"]
    assert "expected a finite number" in shown["lr"]
    assert 'did you mean "heads"?' in shown["heds"]
    assert "e.toml:6:26" in shown["heds"]
    assert "layer" in shown["norm"]
    assert "is missing" in shown["width"]
    assert '"plain" is a block, not a head' in shown["1"]
    assert "expected the name of a block" in shown["other"]


@pytest.mark.parametrize(
    ("given", "heads", "norm"),
    [
        ({"norm": "rms"}, 2, "rms"),  # 2 is what the default says, 4 what the part does
        ({"heads": 8}, 8, "layer"),
        ({}, 2, "layer"),
        ({"use": "plain"}, 4, "layer"),
        ("plain", 4, "layer"),
    ],
)
def test_a_table_without_a_name_changes_the_part_that_stands_there_by_default(catalog, given, heads, norm):
    net = catalog.parse("model", {"use": "net", "width": 1, "block": given})
    assert (net.block.heads, net.block.norm) == (heads, norm)
    assert dump(net.block, catalog) == {"heads": heads, "norm": norm}
    assert dump(net, catalog)["block"]["use"].endswith("plain@1"), "what is written down names it"


def test_what_is_wrong_in_such_a_table_is_told_as_in_one_with_a_name(catalog, tmp_path):
    text = '[model]\nuse = "net"\nwidth = 1\nblock = { hads = 3, norm = "batch" }\nother = { heads = 3 }\n'
    told = {dotted(problem.path): problem for problem in refused(tmp_path, catalog, text)}
    assert told["model.block.hads"].message == "unknown key"
    assert told["model.block.hads"].help == 'did you mean "heads"? accepted: heads, norm, use'
    assert told["model.block.norm"].message.startswith('expected "layer" or "rms"')
    expected = 'expected the name of a block, or a table with `use = "name"`; registered: plain'
    assert expected in told["model.other"].message
    with pytest.raises(PydanticCustomError, match="the name of an optimizer, .* registered: none"):
        catalog.parse("optimizer", 3)


def test_tables_inside_a_default_are_laid_over_each_other():
    default = {"use": "a", "inner": {"use": "b", "x": 1, "y": 2}, "z": 3}
    assert merge_tables(default, {"inner": {"x": 5}}) == {"use": "a", "inner": {"use": "b", "x": 5, "y": 2}, "z": 3}
    assert merge_tables(default, {"inner": {"use": "c", "x": 5}})["inner"] == {"use": "c", "x": 5}
    assert merge_tables(default, {"z": {"x": 5}})["z"] == {"x": 5}


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("nett", 'Did you mean "net"?'),
        ("squared", '"squared" is a loss, not a model'),
        ("zzz", "Registered: net"),
        ("theirs/net", 'unknown model "theirs/net"'),
        ("net@7", "ours/net@1"),
    ],
)
def test_a_wrong_name_is_told_what_would_be_right(tmp_path, catalog, use, message):
    (problem,) = refused(tmp_path, catalog, f'model = {{ use = "{use}", width = 1 }}')
    assert message in problem.message


def test_two_plugins_with_one_name_are_both_kept(catalog):
    class Other(Plain):
        """Another one."""

    catalog.add("theirs", [Other])
    with pytest.raises(Refused, match='"ours/plain", "theirs/plain"'):
        catalog.find("block", "plain")
    assert catalog.find("block", "theirs/plain").spec is Other
    catalog.prefer["block:plain"] = "theirs"
    assert catalog.find("block", "plain").spec is Other


def test_a_plugin_is_added_as_a_whole_or_not_at_all(catalog):
    class Nameless(BlockSpec):
        """No name."""

        def build(self, width, cond) -> Any: ...

    class Loud(Plain):
        """Bad name."""

        name: ClassVar[str] = "Not_Kebab"

    class Fine(Plain):
        """Fine."""

        name: ClassVar[str] = "fine"

    for bad, message in (
        (Nameless, "kebab-case"),
        (Loud, "kebab-case"),
        (int, "not a Spec class"),
        (Spec, "subclass a kind"),
        (Fine, "twice"),
    ):
        with pytest.raises(ValueError, match=message):
            catalog.add("theirs", [Fine, bad])
        assert "fine" not in catalog.names("block")


def test_a_known_plugin_that_is_not_installed_is_named():
    catalog = Catalog(known={"block:wavelet": 'plugin "tp-wavelet": python -m pip install tp-wavelet'})
    with pytest.raises(Refused, match="pip install tp-wavelet"):
        catalog.find("block", "wavelet")


def test_dump_parses_to_the_same_and_pins_names(tmp_path, catalog):
    path = tmp_path / "e.toml"
    path.write_text('[model]\nuse = "net"\nwidth = 3\nheads = ["linear"]\nother = "plain"')
    file = validate(File, Document.load(path), catalog)
    tree = dump(file, catalog)
    assert tree["model"]["block"] == {"use": "ours/plain@1", "heads": 2, "norm": "layer"}
    assert validate(File, Document(tree), catalog) == file
    assert validate(File, Document(dump(file)), catalog) == file


def test_specs_are_frozen_and_strict(catalog):
    block = catalog.parse("block", {"use": "plain", "heads": 3})
    with pytest.raises(ValueError, match="frozen"):
        block.heads = 4
    for wrong in (3.0, "3", True):
        with pytest.raises(ValueError, match="heads"):
            catalog.parse("block", {"use": "plain", "heads": wrong})


def test_describe_gives_a_snippet_that_validates(catalog):
    import tomllib

    for part in catalog.parts():
        facts = describe(part, catalog)
        table = tomllib.loads(facts["snippet"])
        while "use" not in table:
            (table,) = table.values()
        assert isinstance(catalog.parse(part.spec.kind, table), part.spec)
    options = {o["name"]: o for o in describe(catalog.find("model", "net"), catalog)["options"]}
    assert options["block"]["type"] == "a block"
    assert options["block"]["default"] == '{ use = "plain", heads = 2 }'
    assert options["width"]["default"] == "(required)"
    assert options["other"]["default"] == "(none)"
    (heads, norm) = describe(catalog.find("block", "plain"), catalog)["options"]
    assert (heads["type"], heads["doc"]) == ("integer >= 1", "Number of heads.")
    assert norm["type"] == '"layer" | "rms"'


def test_the_end_of_a_schedule_without_sigma_end_is_evaluated_when_built():
    class Bare(ScheduleSpec):
        """Bare."""

        name: ClassVar[str] = "bare"

        def build(self) -> Any:
            from dither.registry.flow import Noise

            return lambda t: Noise(0.25 * t, 0.25 + 0 * t)

    assert Bare().sigma_end() is None
    assert Bare().built_sigma_end() == 0.25


def test_a_forgotten_method_is_named(catalog):
    class Unbuilt(BlockSpec):
        """No build."""

        name: ClassVar[str] = "unbuilt"

    with pytest.raises(ValueError, match="Unbuilt.*build"):
        catalog.add("theirs", [Unbuilt])


@pytest.mark.parametrize("error", [KeyError("a"), SystemExit(0), ZeroDivisionError()])
def test_a_validator_that_fails_is_told_with_its_plugin(tmp_path, catalog, error):
    class Failing(Plain):
        """Fails."""

        name: ClassVar[str] = "failing"

        @model_validator(mode="after")
        def _fail(self) -> Any:
            raise error

    catalog.add("theirs", [Failing])
    text = 'model = { use = "net", width = 1, other = "failing" }\nsteps = 0'
    first, second = refused(tmp_path, catalog, text)
    assert f'block "failing" of plugin "theirs" failed: {type(error).__name__}' in first.message
    assert (first.path, second.path) == (("model", "other"), ("steps",))


def test_options_that_cannot_be_checked_are_found_when_a_part_is_offered():
    """Not when it is used first, although the classes of a menu are made ready only then."""

    class Odd:
        pass

    class Strange(BlockSpec):
        """A block."""

        name: ClassVar[str] = "strange"
        odd: Odd | None = None
        """Of no type that TOML has."""

        def build(self, width: int, cond: int) -> Any:
            return None

    catalog = Catalog()
    with pytest.raises(PydanticSchemaGenerationError, match="Odd"):
        catalog.add("ours", [Plain, Strange])
    assert catalog.parts() == []
