"""Fixtures of the tests of tasks."""

import pytest

from dither.registry.config.errors import CODES, Refused


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
