"""dither-plugin.json is read without importing the plugin, and never trusted."""

import json
import sys
from importlib.metadata import EntryPoint

import pytest

from dither.registry.kinds import BlockSpec
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.discovery import GROUP, Installed
from dither.registry.plugins.manifest import (
    MANIFEST,
    MAX_BYTES,
    Kit,
    component_entries,
    is_compatible,
    parse_manifest,
    read_manifest,
    write_manifest,
)


class Wave(BlockSpec):
    """A wave."""

    name = "wave"
    width: int = 3

    def traits(self):
        return frozenset({"zero-init"})

    def build(self, *args): ...


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in a package, neither of which can be imported."""
    folder = tmp_path / "tp_outer" / "inner"
    folder.mkdir(parents=True)
    for init in (folder, folder.parent):
        (init / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def entries(*specs):
    catalog = Catalog()
    catalog.add("wave", specs)
    return component_entries(catalog, "wave")


PLUGIN = Installed(
    "wave", "dither-wave", "1.0", EntryPoint("wave", "tp_outer.inner", GROUP)
)


def test_a_manifest_is_read_without_an_import(package):
    assert read_manifest(PLUGIN) is None
    write_manifest(package, "wave", ">=0.1,<1", entries(Wave), Kit(passed=4, checks=5))
    manifest = read_manifest(PLUGIN)
    (wave,) = manifest.components
    assert (wave.kind, wave.name, wave.rev, wave.summary) == (
        "block",
        "wave",
        1,
        "A wave.",
    )
    assert wave.traits == ["zero-init"]
    assert wave.options["properties"]["width"]["default"] == 3
    assert str(manifest.kit) == "4 of 5"
    assert "tp_outer" not in sys.modules
    assert is_compatible(manifest.dither, "0.2.dev1")
    assert not is_compatible(manifest.dither, "1.0")


def test_a_malformed_entry_point_has_no_manifest():
    point = EntryPoint("wave", "not a module", GROUP)
    assert read_manifest(Installed("wave", "dither-wave", "1.0", point)) is None


def test_a_package_inside_of_dither_has_a_manifest(tmp_path, monkeypatch):
    folder = tmp_path / "dither" / "wave"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    write_manifest(folder, "wave", "", entries(Wave))
    point = EntryPoint("wave", "dither.wave", GROUP)
    manifest = read_manifest(Installed("wave", "dither-wave", "1.0", point))
    assert manifest.components[0].name == "wave"


def test_the_result_of_the_kit_is_that_of_these_components(package):
    write_manifest(package, "wave", "", entries(Wave), Kit(passed=5, checks=5))
    write_manifest(package, "wave", ">=0.2", entries(Wave))
    assert str(read_manifest(PLUGIN).kit) == "5 of 5"

    class Changed(Wave):
        """A wave."""

        rev = 2

    write_manifest(package, "wave", ">=0.2", entries(Changed))
    assert read_manifest(PLUGIN).kit is None


@pytest.mark.parametrize(
    "change",
    [
        {"plugin": "other"},
        {"plugin": "--index-url"},
        {"dither": "any"},
        {"kit": {"passed": 6, "checks": 5}},
        {"components": [{"kind": "block", "name": "../x"}]},
        {"components": [{"kind": "block", "name": "x", "summary": 3}]},
        "[" * 100_000,
        "\xff",
        " " * (MAX_BYTES + 1),
    ],
    ids=str,
)
def test_a_damaged_manifest_is_refused(change, package, refusal):
    text = change
    if isinstance(change, dict):
        text = json.dumps({"plugin": "wave", **change})
    (package / MANIFEST).write_text(text, encoding="latin-1")
    assert refusal(read_manifest, PLUGIN).codes in (
        ["damaged-file"],
        ["unreadable-file"],
    )
    # It is replaced.
    write_manifest(package, "wave", "", entries(Wave))
    assert read_manifest(PLUGIN).components[0].name == "wave"


def test_texts_cannot_change_a_terminal_and_unknown_keys_are_dropped():
    summary = "red \x1b[31m\n\tand \u202eleft" + 1000 * " on"
    component = {"kind": "block", "name": "x", "summary": summary, "later": 1}
    table = {"plugin": "x", "components": [component], "later": {}}
    manifest = parse_manifest(json.dumps(table).encode(), "x")
    assert manifest.components[0].summary.startswith("red [31m and left on")
    assert len(manifest.components[0].summary) == 300
    assert "later" not in manifest.model_dump()
