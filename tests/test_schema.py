"""JSON Schemas for editors: up to date, precise, and consistent with validation."""

import json
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import tomlkit
from pydantic import Field

from dither.engine.cli.plugins import schema_text
from dither.engine.config.experiment import Experiment
from dither.registry import Catalog, Options, Slot, named
from dither.registry.config.document import Document
from dither.registry.config.json_schema import schema_of
from dither.registry.config.validation import dump, validate
from dither.registry.kinds import BlockSpec, ScheduleSpec
from dither.registry.plugins.describe import describe
from dither.registry.plugins.manager import load_plugins
from dither.registry.spec.base import components_in

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "experiments").rglob("*.toml"))
OURS = "core-blocks,embeddings,engine,losses,processes,tasks"
SCHEMA = ROOT / "docs/schema/experiment.schema.json"


def draft_07() -> Any:
    # Importing it takes longer than the tests here, so that no other test waits for it.
    from jsonschema import Draft7Validator

    return Draft7Validator


def paths(schema: dict, tree: dict) -> list[str]:
    errors = draft_07()(schema).iter_errors(tree)
    return sorted(".".join(map(str, error.absolute_path)) for error in errors)


@pytest.fixture(scope="module")
def ours() -> dict:
    return json.loads(SCHEMA.read_text())


@pytest.mark.parametrize("of", ["experiment", "registry"])
def test_the_schemas_are_up_to_date_and_draft_07_without_alternatives(of, monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", OURS)
    text = (ROOT / f"docs/schema/{of}.schema.json").read_text(encoding="utf-8")
    assert schema_text(of) == text, (
        f"DITHER_PLUGINS={OURS} dither schema --of {of} --out docs/schema/{of}.schema.json"
    )
    draft_07().check_schema(json.loads(text))
    for absent in ('"oneOf"', '"anyOf"', '"default": null'):
        assert absent not in text
    for reference in set(re.findall(r'"\$ref": "#/definitions/([^"]+)"', text)):
        assert reference in json.loads(text)["definitions"], reference


GOOD = """\
name = "x"
task = { use = "bubble-diagram", data = "procedural-plans" }
process = { use = "absorbing", schedule = "log-linear" }
loss = "masked-ce"
sampler = "first-hitting"

[model]
use = "denoiser"
width = 64
embedding = "graph"
block = { use = "adaln-zero", heads = 4, affine = true }
head = { use = "embeddings/tokens@1" }

[train]
steps = 1500
optimizer = { use = "adamw", lr = 3e-3 }
"""

# Replaced text, replacement, the key at fault, and the text that a tool must mark.
BROKEN = [
    ('name = "x"', 'nmae = "x"', "nmae", '"x"'),
    ("steps = 1500", "stpes = 1500", "train.stpes", "1500"),
    ("heads = 4", "heds = 4", "model.block.heds", "4"),
    ('"first-hitting"', '{ use = "first-hitting", steps = 3 }', "sampler.steps", "3"),
    ('"log-linear"', '"log-liner"', "process.schedule", '"log-liner"'),
    ('"adaln-zero"', '"adaln-zer"', "model.block.use", '"adaln-zer"'),
    ('loss = "masked-ce"', 'loss = "absorbing"', "loss", '"absorbing"'),
    (
        '"adaln-zero"',
        '"core-blocks/adaln-zero@9"',
        "model.block.use",
        '"core-blocks/adaln-zero@9"',
    ),
    ("heads = 4", "heads = 0", "model.block.heads", "0"),
    ("steps = 1500", 'steps = "many"', "train.steps", '"many"'),
    ("width = 64", "width = 64.5", "model.width", "64.5"),
    ("affine = true", 'affine = "scal"', "model.block.affine", '"scal"'),
    ('embedding = "graph"', "embedding = 3", "model.embedding", "3"),
    ('"log-linear"', '{ use = "log-linear", eps = 2 }', "process.schedule.eps", "2"),
]


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sysconfig.get_path("scripts")) / "taplo"),
        "lint",
        "--colors",
        "never",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_mistake_is_marked(ours, tmp_path):
    """Both by jsonschema, which check-jsonschema uses, and by taplo, which editors use."""
    assert paths(ours, tomllib.loads(GOOD)) == []
    places = {}
    for number, (old, new, key, pointed) in enumerate(BROKEN):
        assert GOOD.count(old) == 1, old
        text, file = GOOD.replace(old, new), tmp_path / f"{number}.toml"
        file.write_text(text)
        assert paths(ours, tomllib.loads(text)) == [key]
        start = text.index(new) + new.rindex(pointed)
        places[str(file)] = {
            (text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start))
        }
    done = lint("--schema", SCHEMA.as_uri(), *places)
    assert done.returncode != 0
    found: dict[str, set] = {}
    for path, line, column in re.findall(
        r"┌─ (.+):(\d+):(\d+)$", done.stdout + done.stderr, re.MULTILINE
    ):
        found.setdefault(path, set()).add((int(line), int(column)))
    assert found == places


def test_our_files_and_their_resolved_form_are_valid(ours, tmp_path):
    catalog, files, resolved = load_plugins().catalog, list(map(str, FILES)), []
    for file in FILES:
        first = file.read_text().splitlines()[0]
        assert first.startswith("#:schema "), file
        assert (file.parent / first.split()[1]).resolve() == SCHEMA, file
        other = (
            ["task.data=stdlib-text", "task.tokenizer=bytes"]
            if file.stem in ("text8", "lm1b", "owt")
            else []
        )
        experiment = validate(Experiment, Document.load(file, other), catalog)
        resolved.append(tmp_path / f"{file.parent.name}-{file.name}")
        resolved[-1].write_text(tomlkit.dumps(dump(experiment, catalog)))
        for each in (file, resolved[-1]):
            assert paths(ours, tomllib.loads(each.read_text())) == [], each
    assert "@1" in resolved[0].read_text()
    for command in (("--schema", SCHEMA.as_uri(), *files, *map(str, resolved)), files):
        done = lint(*command)
        assert done.returncode == 0, done.stderr
    policy = json.loads(SCHEMA.with_name("registry.schema.json").read_text())
    assert paths(policy, tomllib.loads((ROOT / "registry.toml").read_text())) == []


def test_schema_and_validation_agree_on_the_bounds_of_every_option(monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", OURS)
    catalog = load_plugins().catalog
    schema = json.loads(schema_text("experiment"))
    tried = 0
    for part in catalog.parts():
        if part.kind == "executor":
            # No experiment names one.
            continue
        definition = {**schema, "$ref": f"#/definitions/{part.kind}"}
        for key, info in part.spec.model_fields.items():
            for item in info.metadata:
                for bound, beyond in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
                    if (limit := getattr(item, bound, None)) is None:
                        continue
                    options = {key: limit + beyond}
                    with pytest.raises(ValueError, match=key):
                        part.spec.model_validate(options, context={"catalog": catalog})
                    assert key in paths(definition, {"use": part.name, **options}), (
                        part.pinned,
                        options,
                    )
                    tried += 1
    assert tried > 50


def test_the_snippet_of_every_component_is_valid(ours, tmp_path):
    catalog = load_plugins().catalog
    base = GOOD.replace('"graph"', '"tokens"')
    (tmp_path / "base.toml").write_text(base)
    ours_only = [part for part in catalog.parts() if part.plugin in OURS.split(",")]
    # No experiment names an executor.
    parts = [part for part in ours_only if part.kind != "executor"]
    assert len(parts) > 40
    for part in parts:
        snippet = describe(part, catalog)["snippet"]
        file = tmp_path / "snippet.toml"
        if part.kind == "reward":
            # Only some samplers have a reward.
            snippet = snippet.replace("[sampler]", '[sampler]\nuse = "reward-smc"')
        file.write_text(f'extends = "base.toml"\n{snippet}\n')
        experiment = validate(Experiment, Document.load(file), catalog)
        assert part.spec in [type(spec) for _, spec in components_in(experiment)], (
            snippet
        )
        assert paths(ours, tomllib.loads(file.read_text())) == [], snippet


# The rules on small parts of our own.


class Inside(Options):
    size: int = Field(1, ge=1)
    """How large."""


class Plain(BlockSpec):
    """A block with every sort of option."""

    name: ClassVar[str] = "plain"
    width: int = Field(ge=1)
    """Words that agree."""
    shape: Literal["a", "b"] | Annotated[float, Field(gt=0)] = "a"
    maybe: int | None = Field(None, ge=2)
    inside: Inside = Field(default_factory=Inside)
    pair: tuple[int, float] = (1, 2.0)
    table: dict[str, Annotated[int, Field(ge=0)]] = {}
    schedule: Slot[ScheduleSpec] = named("none-here")

    def build(self, width, cond): ...


class Other(BlockSpec):
    """A block that understands one option in another way."""

    name: ClassVar[str] = "other"
    width: int = Field(1, ge=1)
    """Other words."""
    shape: bool = False

    def build(self, width, cond): ...


class Holder(Options):
    block: Slot[BlockSpec]
    blocks: list[Slot[BlockSpec]] = []


def mine() -> Catalog:
    catalog = Catalog()
    catalog.add("mine", [Plain, Other])
    return catalog


@pytest.fixture(scope="module")
def small() -> dict:
    made = schema_of(Holder, mine(), title="t", extends=True)
    draft_07().check_schema(made)
    return made


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        ("plain", []),
        ("plane", [""]),
        (
            {
                "use": "plain",
                "width": 3,
                "shape": 2.5,
                "maybe": 2,
                "inside": {"size": 4},
                "pair": [1, 2],
            },
            [],
        ),
        ({"use": "plain", "width": 0}, ["width"]),
        ({"use": "plain", "widht": 3}, ["widht"]),
        ({"use": "plain", "shape": "c"}, ["shape"]),
        ({"use": "plain", "shape": True}, ["shape"]),
        ({"use": "other", "shape": True}, []),
        ({"use": "other", "shape": "a"}, ["shape"]),
        ({"use": "other", "maybe": 2}, ["maybe"]),
        ({"use": "plain", "maybe": "x"}, ["maybe"]),
        ({"use": "plain", "inside": {"sise": 4}}, ["inside.sise"]),
        ({"use": "plain", "pair": [1, "x"]}, ["pair.1"]),
        ({"use": "plain", "pair": [1, 2, 3]}, ["pair"]),
        ({"use": "plain", "table": {"k": -1}}, ["table.k"]),
        ({"use": "plain", "schedule": "anything, as no schedule is known"}, []),
        ({"maybe": 1}, ["maybe"]),
        ({"inside": {"size": 0}, "nothing": 1}, ["inside.size", "nothing"]),
        ({"use": "plane", "nothing": 1}, ["use"]),
        (True, [""]),
    ],
    ids=str,
)
def test_a_component_is_checked_at_its_key(small, block, wrong):
    assert paths(small, {"block": block}) == [
        f"block.{key}".removesuffix(".") for key in wrong
    ]
    assert paths(small, {"blocks": [block]}) == [
        f"blocks.0.{key}".removesuffix(".") for key in wrong
    ]


def test_descriptions_and_defaults(small):
    kind = small["definitions"]["block"]["properties"]
    assert kind["use"]["enum"][:2] == ["other", "plain"]
    assert kind["maybe"] == {"type": "integer", "minimum": 2}
    assert kind["width"] == {"description": "Other words. / Words that agree."}
    assert (
        small["definitions"]["block.mine.plain"]["properties"]["width"]["description"]
        == "Words that agree."
    )
    assert kind["schedule"] == {
        "default": "none-here",
        "allOf": [{"$ref": "#/definitions/schedule"}],
    }


def test_required_options_are_required_in_files_that_extend_no_other(small):
    assert paths(small, {}) == []
    whole = schema_of(Holder, mine(), title="t")
    assert paths(whole, {}) == [""]
    assert paths(whole, {"block": {"use": "plain"}}) == ["block"]
    assert "extends" not in whole["properties"]


def test_a_name_of_two_plugins_must_be_written_with_its_plugin():
    yours = type("Yours", (Plain,), {"name": "other"})
    for owners, wrong in (({}, ["block.use"]), ({"block:other": ["mine"]}, [])):
        catalog = Catalog(owners=owners)
        catalog.add("mine", [Other])
        catalog.add("yours", [yours])
        made = schema_of(Holder, catalog, title="t")
        assert paths(made, {"block": {"use": "other", "shape": True}}) == wrong
        assert paths(made, {"block": {"use": "mine/other", "shape": True}}) == []
        assert paths(
            made, {"block": {"use": "yours/other", "width": 1, "shape": True}}
        ) == ["block.shape"]


def test_a_table_that_holds_itself_ends():
    class Nest(Options):
        depth: int = 0
        inner: "Nest | None" = None

    Nest.model_rebuild(_types_namespace={"Nest": Nest})
    made = schema_of(Nest, Catalog(), title="t")
    assert paths(made, {"inner": {"inner": {"depth": "x"}}}) == ["inner.inner.depth"]
