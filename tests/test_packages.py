"""Packages: the namespace `dither`, a lock with hashes, a bill of materials, reproducible wheels."""

import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import dither

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PINNED = re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", LOCK, re.MULTILINE)
BUILD = "import sys, flit_core.buildapi as flit; print(flit.build_wheel(sys.argv[1]))"


def printed(*command, **options):
    return subprocess.run(
        command, capture_output=True, text=True, check=True, **options
    ).stdout


def test_every_requirement_is_locked_with_hashes():
    for line in printed(
        sys.executable, str(ROOT / ".ci" / "requirements.py")
    ).splitlines():
        requirement = Requirement(line)
        versions = [version for name, version in PINNED if name == requirement.name]
        fits = bool(versions) and all(
            version in requirement.specifier for version in versions
        )
        assert fits, (
            f"{line}, and locked is {versions}: compile the lock again, see .ci/requirements.py"
        )
    assert f"torch=={dict(PINNED)['torch']}\n" in (ROOT / "constraints.txt").read_text()
    entries = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) == len(PINNED)
    without = [
        entry.partition(" ")[0]
        for entry in entries
        if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)
    ]
    assert not without, without


@pytest.mark.slow
def test_the_bill_of_materials_lists_everything_in_the_lock():
    bill = json.loads(
        printed(
            str(ROOT / ".ci" / "sbom"),
            env={**os.environ, "PYTHON": sys.executable},
            cwd="/",
        )
    )
    assert {component["purl"] for component in bill["components"]} == {
        f"pkg:pypi/{name}@{v}" for name, v in PINNED
    }


def test_wheels_are_reproducible(tmp_path):
    digests = set()
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        where = {
            "cwd": ROOT / "packages" / "engine",
            "env": {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        }
        name = printed(
            sys.executable, "-c", BUILD, str(tmp_path / str(number)), **where
        ).strip()
        digests.add(
            hashlib.sha256((tmp_path / str(number) / name).read_bytes()).hexdigest()
        )
    assert len(digests) == 1


def test_installation_runs_no_code_and_ci_fetches_nothing():
    projects = [path.read_text() for path in ROOT.glob("packages/*/pyproject.toml")]
    assert all('build-backend = "flit_core.buildapi"' in text for text in projects), (
        "flit runs no code of a project"
    )
    assert (
        "hooks"
        not in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"][
            "build"
        ]
    )
    assert not [
        path
        for path in ROOT.glob("packages/*/*")
        if path.name in ("setup.py", "setup.cfg")
    ]
    assert not list(ROOT.glob("packages/**/*.pth"))
    steps = (ROOT / ".ci" / "run").read_text()
    assert not re.search(r"\buses:|curl|wget|git clone[^\n]*:", steps)
    actions = [
        word
        for path in ROOT.glob(".github/workflows/*.yml")
        for word in re.findall("uses: (.*)", path.read_text())
    ]
    assert [
        word
        for word in actions
        if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", word)
    ] == []


def test_no_message_or_page_installs_a_distribution_that_no_index_has():
    sources = (
        path
        for pattern in ("packages/*/dither/**/*.py", "docs/*.md", "README.md")
        for path in ROOT.glob(pattern)
    )
    assert not [
        path
        for path in sources
        if re.search(r"dither-\w+\[", path.read_text(encoding="utf-8"))
    ]


def test_every_package_has_the_licence_and_requires_the_others_by_version():
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {*root["dependencies"]}
    extras = [
        word
        for words in root["optional-dependencies"].values()
        for word in words
        if word.startswith("dither-")
    ]
    assert all(word.endswith(f"=={root['version']}") for word in extras)
    for path in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        assert project["version"] == root["version"]
        assert f"{project['name']}=={root['version']}" in {
            re.sub(r"\[.*\]", "", word) for word in required
        }
        ours = [word for word in project["dependencies"] if word.startswith("dither-")]
        assert all(word.endswith(f"=={root['version']}") for word in ours), path
        for name in ("LICENSE", "NOTICE"):
            assert (path.parent / name).read_text() == (ROOT / name).read_text(), path


def test_the_version_is_set_everywhere(tmp_path):
    files = [
        *("pyproject.toml", "CITATION.cff"),
        *(path.relative_to(ROOT) for path in ROOT.glob("packages/*/pyproject.toml")),
    ]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    tool = runpy.run_path(str(ROOT / "tools/version.py"))
    assert tool["main"](tmp_path, "9.8.7rc1") == 0
    old = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for file in files:
        before = (ROOT / file).read_text()
        assert (tmp_path / file).read_text() == before.replace(old, "9.8.7rc1"), file


PACKAGES = Path(__file__).parents[1] / "packages"
FOLDERS = sorted(
    path for path in PACKAGES.iterdir() if (path / "pyproject.toml").is_file()
)


def python(code, *folders, expected=0):
    """Run code with nothing but these folders, and what is installed that is not ours, on the path."""
    begin = f"import sys; sys.path[:] = [p for p in sys.path if {str(PACKAGES)!r} not in p]\n"
    begin += f"sys.path[:0] = {[str(folder) for folder in folders]!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + code],
        capture_output=True,
        text=True,
        check=False,
    )
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
    assert (
        python(code, *FOLDERS)
        == " ".join(sorted(f.name.replace("-", "_") for f in FOLDERS)) + "\n"
    )


def test_without_the_engine_it_is_a_namespace():
    code = "import dither.registry, dither\nprint(dither.__file__)\ndither.load"
    output = python(
        code, *(folder for folder in FOLDERS if folder.name != "engine"), expected=1
    )
    assert output.startswith("None\n")
    assert "module 'dither' has no attribute 'load'" in output


def test_what_editors_read_is_the_same_everywhere():
    stubs = {
        (folder / "dither/__init__.pyi").read_text()
        for folder in FOLDERS
        if folder.name != "engine"
    }
    (stub,) = stubs
    for name in set(dither.__all__) - {"__version__"}:
        assert f" import {name} as {name}\n" in stub
    assert "\n__version__: str\n" in stub
