"""Entry points are read from metadata that may be damaged."""

import sys

import pytest

from dither.registry.plugins.discovery import installed_plugins

POINTS = "[dither.plugins]\n{} = {}\n"


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Write a distribution to a folder that is the only one on the path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path)])

    def add(folder, points, metadata=None):
        info = tmp_path / folder
        info.mkdir(parents=True)
        if metadata is not None:
            (info / "METADATA").write_bytes(metadata.encode("latin-1"))
        (info / "entry_points.txt").write_bytes(points.encode("latin-1"))

    return add


def metadata(name, version="1.0"):
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


@pytest.mark.parametrize("unreadable", [None, "[other]\n\xff\n", "[dither.plugins]\ntp-equals\n"])
def test_damaged_metadata_affects_its_own_plugin_only(add, unreadable):
    add("good-1.0.dist-info", POINTS.format("tp-good", "good"), metadata("good"))
    add("no_name-1.0.dist-info", POINTS.format("tp-name", "m"), "Metadata-Version: 2.1\n")
    add("no_file-1.0.dist-info", POINTS.format("tp-file", "m"))
    if unreadable:
        add("foreign-1.0.dist-info", unreadable, metadata("foreign"))
    failed = {name: bool(plugin.failure) for name, (plugin,) in installed_plugins().items()}
    expected = {"tp-file": True, "tp-good": False, "tp-name": True}
    assert failed == (expected | {"tp-equals": True} if "tp-equals" in (unreadable or "") else expected)


def test_the_first_distribution_of_a_name_counts_and_intact_ones_come_first(add):
    add("first/Twice_There-2.0.dist-info", "[dither.plugins]\n", metadata("twice.there"))
    add("twice.there-1.0.dist-info", POINTS.format("tp-shadowed", "m"), metadata("twice-there"))
    add("damaged-1.0.dist-info", POINTS.format("tp-same", "m"))
    add("intact-1.0.dist-info", POINTS.format("tp-same", "m"), metadata("intact"))
    found = {name: [plugin.distribution for plugin in same] for name, same in installed_plugins().items()}
    assert found == {"tp-same": ["intact"]}
