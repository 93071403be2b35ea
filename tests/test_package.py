"""The package `dither`: many folders, ours and those of others, with the engine and without."""

import subprocess
import sys
from pathlib import Path

import pytest

import dither

PACKAGES = Path(__file__).parents[1] / "packages"
FOLDERS = sorted(path for path in PACKAGES.iterdir() if (path / "pyproject.toml").is_file())


def python(code, *folders, expected=0):
    """Run code with nothing but these folders, and what is installed that is not ours, on the path."""
    begin = f"import sys; sys.path[:] = [p for p in sys.path if {str(PACKAGES)!r} not in p]\n"
    begin += f"sys.path[:0] = {[str(folder) for folder in folders]!r}\n"
    done = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("order", [1, -1])
def test_importing_it_imports_nothing_else_wherever_the_engine_comes_on_the_path(order):
    code = "import dither\nprint(*(m for m in sys.modules if m.startswith(('dither', 'torch', 'pydantic'))))"
    assert python(code, *FOLDERS[::order]) == "dither\n"


def test_all_packages_are_found_also_one_that_others_add_later(tmp_path):
    code = "import dither, pkgutil\nfound = lambda: sorted(one.name for one in pkgutil.iter_modules(dither.__path__))\n"
    code += f"before = found()\nsys.path.append({str(tmp_path)!r})\nimport dither.theirs\nfrom dither import registry\n"
    code += "print(*before)\nassert sorted([*before, 'theirs']) == found()"
    theirs = tmp_path / "dither" / "theirs"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("")
    assert python(code, *FOLDERS) == " ".join(sorted(f.name.replace("-", "_") for f in FOLDERS)) + "\n"


def test_without_the_engine_it_is_a_namespace():
    code = "import dither.registry, dither\nprint(dither.__file__)\ndither.load"
    output = python(code, *(folder for folder in FOLDERS if folder.name != "engine"), expected=1)
    assert output.startswith("None\n")
    assert "module 'dither' has no attribute 'load'" in output


def test_what_editors_read_is_the_same_everywhere():
    stubs = {(folder / "dither/__init__.pyi").read_text() for folder in FOLDERS if folder.name != "engine"}
    assert len(stubs) == 1
    for name in dither.__all__:
        assert f" import {name} as {name}\n" in stubs.copy().pop()
