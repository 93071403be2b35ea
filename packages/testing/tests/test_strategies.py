"""Strategies over every part that is installed: what they draw is valid, as often as it is asked for."""

from typing import get_origin

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dither.registry import default_catalog
from dither.registry.config.validation import dump
from dither.testing.strategies import cleans, spaces, specs

CATALOG = default_catalog()
PARTS = CATALOG.parts()
DRAWS = 200


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.kind}:{part.name}")
def test_every_drawn_configuration_is_valid(part):
    """200 of 200, or fewer where there are no more; few draws are turned down, and half of the options or more vary."""
    seen, tries = [], []
    drawn = specs(part.spec, CATALOG, small=False)

    @settings(
        max_examples=DRAWS,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.builds(tries.append, st.none()).flatmap(lambda _: drawn))
    def draw(spec):
        seen.append(spec)

    draw()
    assert len(seen) == DRAWS or len({repr(spec) for spec in seen}) <= 12
    assert len(tries) <= 4 * len(seen)
    for spec in seen[:: max(1, len(seen) // 20)]:
        assert CATALOG.parse(part.kind, {"use": part.pinned, **dump(spec, CATALOG)}) == spec
    # What goes by names of fields (a table) cannot be drawn before there is a space.
    options = [key for key, field in part.spec.model_fields.items() if get_origin(field.annotation) is not dict]
    varying = [key for key in options if len({repr(getattr(spec, key)) for spec in seen}) > 1]
    assert len(varying) * 2 >= len(options) or part.kind in ("data", "task")


def test_a_strategy_is_for_tests_of_ones_own():
    """As the docstring of the module has it."""
    drawn = []

    @settings(max_examples=20, database=None, deadline=None)
    @given(st.data(), spaces())
    def draw(data, space):
        clean = data.draw(cleans(space, rows=2))
        drawn.append(clean)
        assert clean.x0.shape[:2] == (2, space.length)

    draw()
    assert len(drawn) == 20
