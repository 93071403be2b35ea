"""Strategies draw valid options of every installed component, valid spaces and valid batches."""

import math
from typing import get_origin

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dither.registry import FeatureSpace, TokenSpace, default_catalog
from dither.registry.config.validation import dump
from dither.testing.strategies import cleans, spaces, specs

CATALOG = default_catalog()
PARTS = CATALOG.parts()
DRAWS = 16
QUIET = list(HealthCheck)
SETTINGS = settings(
    max_examples=200,
    database=None,
    derandomize=True,
    deadline=None,
    suppress_health_check=QUIET,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.kind}:{part.name}")
def test_drawn_options_are_valid(part):
    """Few draws are rejected, and at least half of the options vary."""
    seen, tries = [], []
    drawn = specs(part.spec, CATALOG, small=False)

    @settings(SETTINGS, max_examples=DRAWS, phases=[Phase.generate])
    @given(st.builds(tries.append, st.none()).flatmap(lambda _: drawn))
    def draw(spec):
        seen.append(spec)

    draw()
    assert len(seen) == DRAWS or len({repr(spec) for spec in seen}) <= 12
    assert len(tries) <= 4 * len(seen)
    for spec in seen[:: max(1, len(seen) // 20)]:
        assert (
            CATALOG.parse(part.kind, {"use": part.pinned, **dump(spec, CATALOG)})
            == spec
        )
    options = [
        key
        for key, field in part.spec.model_fields.items()
        if get_origin(field.annotation) is not dict
    ]
    varying = [
        key for key in options if len({repr(getattr(spec, key)) for spec in seen}) > 1
    ]
    assert len(varying) * 2 >= len(options) or part.kind in (
        "data",
        "executor",
        "task",
        "tracker",
    )


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
    assert seen == {
        "groups",
        "features",
        "graph",
        1,
        2,
        3,
        *((s, b) for s in ("mask", "pad") for b in (True, False)),
    }


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
            allowed = (
                space.clean()
                .expand(rows, length, -1)
                .gather(-1, clean.x0[..., None])[..., 0]
            )
            assert allowed[clean.valid].all()
            for valid in space.split(clean.valid).values():
                assert (valid.int().diff() <= 0).all()
                assert valid[:, 0].all()
        assert not clean.known[~clean.valid].any()
        seen.update(
            [
                ("known", bool(clean.known.any())),
                ("padded", not clean.valid.all()),
                rows,
            ]
        )

    draw()
    assert seen == {
        ("known", True),
        ("known", False),
        ("padded", True),
        ("padded", False),
        1,
        2,
        3,
    }
