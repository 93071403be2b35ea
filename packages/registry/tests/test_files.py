"""One-file plugins are modules; entry points of damaged metadata."""

import sys

import pytest

from dither.registry.plugins.discovery import import_file, installed_plugins


@pytest.fixture(autouse=True)
def _clean():
    yield
    for name in [name for name in sys.modules if name.startswith("dither_plugin_tp_")]:
        del sys.modules[name]


def write(tmp_path, name, text):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return path


def test_a_file_is_imported_again_and_forgotten_if_it_fails(tmp_path):
    path = write(tmp_path, "tp_good", "value = 3")
    assert import_file(path)[0].value == 3
    write(tmp_path, "tp_good", "value = 4")
    assert import_file(path)[0].value == 4
    with pytest.raises(ZeroDivisionError):
        import_file(write(tmp_path, "tp_bad", "1 / 0"))
    assert not [name for name in sys.modules if "tp_bad" in name]


def test_import_errors_are_unchanged(tmp_path):
    with pytest.raises(ImportError, match="No module named 'not_there'"):
        import_file(write(tmp_path, "tp_main", "import not_there"))


POINTS = "[dither.plugins]\n{} = {}\n"


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Write a distribution to a folder that is the only one on the path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path)])

    def add(folder, points, name=None, version="\nVersion: 1.0\n"):
        info = tmp_path / folder
        info.mkdir(parents=True)
        if name is not None:
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}{version}"
            )
        (info / "entry_points.txt").write_bytes(points.encode("latin-1"))

    return add


@pytest.mark.parametrize(
    "foreign",
    ["", "[other]\n\xff\n", "[other]\nequals\n", POINTS.format("a", "b") + "c"],
)
def test_damaged_metadata_do_not_hide_other_plugins(add, foreign):
    add("good-1.0.dist-info", POINTS.format("tp-good", "good"), "good")
    add("no_version-1.0.dist-info", POINTS.format("tp-name", "m"), "x", version="\n")
    add("no_file-1.0.dist-info", POINTS.format("tp-file", "m"))
    add("foreign-1.0.dist-info", foreign, "foreign")
    versions = {name: plugin.version for name, (plugin,) in installed_plugins().items()}
    assert versions == {"tp-file": "", "tp-good": "1.0", "tp-name": ""}


def test_the_first_distribution_of_a_name_counts(add):
    add("first/Twice_There-2.0.dist-info", "[dither.plugins]\n", "twice.there")
    add("twice.there-1.0.dist-info", POINTS.format("tp-shadowed", "m"), "twice-there")
    add("other-1.0.dist-info", POINTS.format("tp-other", "m"), "other")
    assert list(installed_plugins()) == ["tp-other"]
