"""One-file plugins are modules."""

import sys

import pytest

from dither.registry.plugins.plugin_files import import_file


@pytest.fixture(autouse=True)
def _clean():
    yield
    for name in [name for name in sys.modules if name.startswith("dither.registry.plugins.plugin_files.tp_")]:
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
    assert not [name for name in sys.modules if ".tp_bad" in name]


@pytest.mark.parametrize(
    "line", ["from . import tp_sibling", "from .tp_sibling import x", "from ..plugin_files import tp_no"]
)
def test_a_file_cannot_import_siblings(tmp_path, line):
    write(tmp_path, "tp_sibling", "x = 1")
    with pytest.raises(ImportError, match="one-file plugin is one file"):
        import_file(write(tmp_path, "tp_main", line))


def test_other_import_errors_are_unchanged(tmp_path):
    with pytest.raises(ImportError, match="No module named 'not_there'"):
        import_file(write(tmp_path, "tp_main", "import not_there"))
