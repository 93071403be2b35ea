"""What is installed is read off metadata that may be broken; a stamp changes with the source and with nothing else."""

import os
import sys
from importlib.metadata import EntryPoint

import pytest

from dither.registry.plugins import discovery as installed
from dither.registry.plugins.discovery import Installed, environment_stamp, installed_plugins

POINTS = "[dither.plugins]\n{} = {}\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of distributions that is all there is on the path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def add(site, folder, points, metadata=None):
    info = site / folder
    info.mkdir(parents=True)
    if metadata is not None:
        (info / "METADATA").write_bytes(metadata.encode("latin-1"))
    (info / "entry_points.txt").write_bytes(points.encode("latin-1"))


def metadata(name, version="1.0"):
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def test_broken_metadata_is_a_failure_of_its_own_plugin_only(site):
    add(site, "good-1.0.dist-info", POINTS.format("tp-good", "good"), metadata("good"))
    add(site, "no_version-1.0.dist-info", POINTS.format("tp-version", "m"), "Metadata-Version: 2.1\nName: no-version\n")
    add(site, "no_name-1.0.dist-info", POINTS.format("tp-name", "m"), "Metadata-Version: 2.1\n")
    add(site, "no_file-1.0.dist-info", POINTS.format("tp-file", "m"))
    add(site, "bytes-1.0.dist-info", POINTS.format("tp-bytes", "m"), metadata("b\xff"))
    add(site, "no_equals-1.0.dist-info", "[dither.plugins]\ntp-equals\n", metadata("no-equals"))
    add(
        site,
        "foreign-1.0.dist-info",
        "[other]\n\xff\nno equals\n" + POINTS.format("tp-foreign", "m"),
        metadata("foreign"),
    )
    add(site, "none_of_ours-1.0.dist-info", "[other]\n\xff\n")
    found = installed_plugins()
    assert list(found) == ["tp-bytes", "tp-equals", "tp-file", "tp-foreign", "tp-good", "tp-name", "tp-version"]
    failures = {name: one.failure for name, (one,) in found.items()}
    assert failures["tp-good"] == failures["tp-foreign"] == ""
    assert failures["tp-version"].startswith("its metadata has no Version (")
    assert failures["tp-name"].startswith("its metadata has no Name and no Version (")
    assert failures["tp-file"].startswith("its metadata has no Name and no Version (")
    assert failures["tp-bytes"].startswith("its metadata has no Name")
    assert "has no `=`" in failures["tp-equals"]
    assert len({one.stamp for (one,) in found.values()}) == 7


def test_the_first_distribution_of_a_name_counts_and_what_pip_left_behind_does_not(site, monkeypatch):
    first = site / "first"
    add(first, "Twice_There-2.0.dist-info", "[dither.plugins]\n", metadata("twice.there"))
    add(site, "twice.there-1.0.dist-info", POINTS.format("tp-shadowed", "m"), metadata("twice-there"))
    add(site, "~wo-1.0.dist-info", POINTS.format("tp-left", "m"), metadata("two"))
    add(site, "broken-1.0.dist-info", POINTS.format("tp-same", "m"))
    add(site, "whole-1.0.dist-info", POINTS.format("tp-same", "m"), metadata("whole"))
    monkeypatch.setattr(sys, "path", [str(first), str(site)])
    assert {name: [one.distribution for one in same] for name, same in installed_plugins().items()} == {
        "tp-same": ["whole"]
    }


def stamp(value, folder=""):
    return Installed("tp", value, "tp", "1.0", EntryPoint("tp", value, "dither.plugins"), str(folder)).stamp


@pytest.mark.parametrize(
    ("value", "files", "saved"),
    [
        ("tp_one", ["tp_one.py"], "tp_one.py"),
        ("tp_one:thing [extra]", ["tp_one.py"], "tp_one.py"),
        ("tp_pack.plugin", ["tp_pack/__init__.py", "tp_pack/plugin.py"], "tp_pack/plugin.py"),
        ("tp_pack.plugin", ["tp_pack/__init__.py", "tp_pack/plugin.py", "tp_pack/in/specs.py"], "tp_pack/in/specs.py"),
        ("tp_space.pack.plugin", ["tp_space/pack/__init__.py", "tp_space/pack/plugin.py"], "tp_space/pack/plugin.py"),
        ("tp_space.within.plugin", ["tp_space/within/plugin.py"], "tp_space/within/plugin.py"),
        ("tp_space.pack", ["tp_space/pack/__init__.py", "tp_space/pack/specs.py"], "tp_space/pack/specs.py"),
    ],
)
def test_a_stamp_changes_when_a_source_is_saved(site, value, files, saved):
    for name in files:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    before = stamp(value)
    assert stamp(value) == before
    os.utime(site / saved, ns=(1, 1))
    assert stamp(value) != before
    assert not any(name.startswith("tp_") for name in sys.modules)


def test_a_stamp_does_not_change_for_what_is_no_source(site):
    (site / "tp_pack").mkdir()
    (site / "tp_pack" / "__init__.py").touch()
    before = stamp("tp_pack")
    (site / "tp_pack" / "runs").mkdir()
    (site / "tp_pack" / "runs" / "resolved.toml").touch()
    (site / "tp_pack" / ".#m.py").symlink_to("user@host.1")
    (site / "tp_pack" / "dangling.py").symlink_to("nowhere.py")
    (site / "tp_pack" / ".hidden").mkdir()
    (site / "tp_pack" / ".hidden" / "m.py").touch()
    (site / "beside.py").touch()
    assert stamp("tp_pack") == before
    assert len({stamp("not_there"), stamp("..:"), stamp("sys"), before}) == 4


def test_a_stamp_changes_with_the_installation_and_with_us(site, monkeypatch):
    add(site, "tp-1.0.dist-info", "")
    before = stamp("sys", site / "tp-1.0.dist-info")
    os.utime(site / "tp-1.0.dist-info", ns=(1, 1))
    after = stamp("sys", site / "tp-1.0.dist-info")
    assert after != before
    (site / "registry").mkdir()
    (site / "registry" / "spec.py").touch()
    monkeypatch.setattr(installed, "__file__", str(site / "registry" / "installed.py"))
    installed._own_stamp.cache_clear()
    ours = stamp("sys", site / "tp-1.0.dist-info")
    os.utime(site / "registry" / "spec.py", ns=(1, 1))
    installed._own_stamp.cache_clear()
    saved = stamp("sys", site / "tp-1.0.dist-info")
    monkeypatch.undo()
    installed._own_stamp.cache_clear()
    assert len({after, ours, saved}) == 3


@pytest.mark.parametrize("name", ["one-1.0.dist-info", "one.egg-info", "__editable__.one.pth"])
def test_the_environment_changes_when_something_is_installed(site, monkeypatch, name):
    monkeypatch.setattr(sys, "path", [str(site), str(site / "missing")])
    before = environment_stamp()
    (site / "something.py").touch()
    assert environment_stamp() == before
    (site / name).touch()
    assert environment_stamp() != before
