"""One-file plugins are modules in this process and its child processes."""

import json
import os
import sys

import pytest

from dither.registry.plugins.plugin_files import KNOWN, import_file, module_name


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.delenv(KNOWN, raising=False)
    yield
    for name in [name for name in sys.modules if name.startswith("dither.registry.plugins.plugin_files.tp_")]:
        del sys.modules[name]


def write(tmp_path, name, text):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return path


def test_a_file_that_fails_is_not_passed_on(tmp_path):
    with pytest.raises(ZeroDivisionError):
        import_file(write(tmp_path, "tp_bad", "1 / 0"))
    assert KNOWN not in os.environ
    good = write(tmp_path, "tp_good", "")
    import_file(good)
    with pytest.raises(ZeroDivisionError):
        import_file(write(tmp_path, "tp_bad", "1 / 0"))
    assert list(json.loads(os.environ[KNOWN])) == [module_name(good)]


def test_an_invalid_environment_variable_is_ignored(tmp_path, monkeypatch):
    for text in ("{", "[]"):
        monkeypatch.setenv(KNOWN, text)
        assert import_file(write(tmp_path, "tp_good", "value = 3"))[0].value == 3


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
