"""Fixtures of the tests of tasks."""

from dataclasses import replace

import pytest

from dither.registry.config.errors import CODES, Refused
from dither.tasks.bubble_diagram.data.procedural import make_plans


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def refusal():
    """Call something that must be refused, and return the exception."""

    def call(function, *args, **options):
        with pytest.raises(Refused) as info:
            function(*args, **options)
        assert set(info.value.codes) <= set(CODES)
        return info.value

    return call


@pytest.fixture(scope="session")
def make_diagrams():
    """Return procedural diagrams: `make_diagrams(count, seed=0, most=8, boxes=True)`."""

    def make(count, seed=0, *, most=8, boxes=True):
        plans = make_plans(seed, 0, count, most)
        diagrams = [plans.diagram(row) for row in range(count)]
        return diagrams if boxes else [replace(diagram, boxes=None) for diagram in diagrams]

    return make
