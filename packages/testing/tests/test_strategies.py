"""Strategies draw valid options of every installed component, valid spaces and valid batches."""

import math
from typing import Annotated, Any, ClassVar, Literal, get_origin

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from dither.registry import FeatureSpace, Options, Slot, TokenSpace, default_catalog, named
from dither.registry.config.validation import dump
from dither.registry.kinds import BlockSpec, HeadSpec, ScheduleSpec
from dither.testing.strategies import cleans, spaces, specs

CATALOG = default_catalog()
PARTS = CATALOG.parts()
DRAWS = 200
QUIET = list(HealthCheck)
SETTINGS = settings(max_examples=DRAWS, database=None, derandomize=True, deadline=None, suppress_health_check=QUIET)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.kind}:{part.name}")
def test_drawn_options_are_valid(part):
    """Few draws are rejected, and at least half of the options vary."""
    seen, tries = [], []
    drawn = specs(part.spec, CATALOG, small=False)

    @settings(SETTINGS, phases=[Phase.generate])
    @given(st.builds(tries.append, st.none()).flatmap(lambda _: drawn))
    def draw(spec):
        seen.append(spec)

    draw()
    assert len(seen) == DRAWS or len({repr(spec) for spec in seen}) <= 12
    assert len(tries) <= 4 * len(seen)
    for spec in seen[:: max(1, len(seen) // 20)]:
        assert CATALOG.parse(part.kind, {"use": part.pinned, **dump(spec, CATALOG)}) == spec
    options = [key for key, field in part.spec.model_fields.items() if get_origin(field.annotation) is not dict]
    varying = [key for key in options if len({repr(getattr(spec, key)) for spec in seen}) > 1]
    assert len(varying) * 2 >= len(options) or part.kind in ("data", "task")


class Every(HeadSpec):
    """One option of each type."""

    name: ClassVar[str] = "every"
    flag: bool = False
    choice: Literal["a", "b"] = "a"
    size: int = Field(512, ge=8, le=4096)
    even: Annotated[int, Field(ge=2, multiple_of=2)] = 4
    odds: float | None = Field(None, gt=0, lt=1)
    pair: list[Annotated[float, Field(ge=0, le=1)]] = Field([0.5, 0.5], min_length=2, max_length=2)
    low: float = Field(0.0, ge=0)
    high: float = Field(1.0, gt=0)
    schedule: Slot[ScheduleSpec] = named("cosine")
    others: list[Slot[BlockSpec]] = []
    path: str = "here"

    class Inner(Options):
        depth: int = Field(1, ge=0)

    inner: Inner = Field(default_factory=Inner)

    @model_validator(mode="after")
    def _in_order(self):
        if self.low >= self.high:
            raise ValueError("low must be below high")
        return self

    def build(self, space, width) -> Any: ...


@pytest.mark.parametrize("small", [True, False])
def test_options_vary_within_bounds(small):
    seen: dict[str, set] = {}

    @settings(SETTINGS)
    @given(specs(Every, CATALOG, small=small))
    def draw(spec):
        for key in type(spec).model_fields:
            seen.setdefault(key, set()).add(repr(getattr(spec, key)))
        assert spec.low < spec.high
        if small:
            assert spec.size <= 40

    draw()
    assert {key for key, values in seen.items() if len(values) < 2} == {"path"}
    assert seen["flag"] == {"True", "False"}
    assert "None" in seen["odds"]
    if not small:
        assert "512" in seen["size"]


def test_spaces_of_every_type_are_drawn():
    seen = set()

    @settings(SETTINGS)
    @given(spaces())
    def draw(space):
        if isinstance(space, FeatureSpace):
            seen.add("groups" if space.groups else "features")
        else:
            seen.add(len(space.fields))
            seen.update(("mask", f.mask is not None) for f in space.fields)
            seen.update(("pad", f.pad is not None) for f in space.fields)
            if [f.name for f in space.fields] == ["nodes", "edges"]:
                assert space.fields[1].length == math.comb(space.fields[0].length, 2)
                seen.add("graph")

    draw()
    assert seen == {"groups", "features", "graph", 1, 2, 3, *((s, b) for s in ("mask", "pad") for b in (True, False))}


def test_batches_are_valid():
    seen = set()

    @settings(SETTINGS)
    @given(st.data(), spaces())
    def draw(data, space):
        clean = data.draw(cleans(space))
        rows, length = clean.valid.shape
        assert length == space.length
        assert clean.known.shape == clean.x0.shape
        if isinstance(space, TokenSpace):
            allowed = space.clean().expand(rows, length, -1).gather(-1, clean.x0[..., None])[..., 0]
            assert allowed[clean.valid].all()
            for valid in space.split(clean.valid).values():
                assert (valid.int().diff() <= 0).all()
                assert valid[:, 0].all()
        assert not clean.known[~clean.valid].any()
        seen.update([("known", bool(clean.known.any())), ("padded", not clean.valid.all()), rows])

    draw()
    assert seen == {("known", True), ("known", False), ("padded", True), ("padded", False), 1, 2, 3}
