"""Supply chain: a lock with hashes, a bill of materials, reproducible wheels."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from rich.console import Console

from dither.engine.runs.loop import Log
from dither.engine.tracking.trackers import TensorBoard

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PINNED = re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", LOCK, re.MULTILINE)
BUILD = "import sys, flit_core.buildapi as flit; print(flit.build_wheel(sys.argv[1]))"


def printed(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def test_every_requirement_is_locked_with_hashes():
    for line in printed(sys.executable, str(ROOT / ".ci" / "requirements.py")).splitlines():
        requirement = Requirement(line)
        versions = [version for name, version in PINNED if name == requirement.name]
        fits = bool(versions) and all(version in requirement.specifier for version in versions)
        assert fits, f"{line}, and locked is {versions}: compile the lock again, see .ci/requirements.py"
    assert f"torch=={dict(PINNED)['torch']}\n" in (ROOT / "constraints.txt").read_text()
    entries = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) == len(PINNED)
    without = [entry.partition(" ")[0] for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)]
    assert not without, without


@pytest.mark.slow
def test_the_bill_of_materials_lists_everything_in_the_lock():
    bill = json.loads(printed(str(ROOT / ".ci" / "sbom"), env={**os.environ, "PYTHON": sys.executable}, cwd="/"))
    assert {component["purl"] for component in bill["components"]} == {f"pkg:pypi/{name}@{v}" for name, v in PINNED}


def test_wheels_are_reproducible(tmp_path):
    digests = set()
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        where = {"cwd": ROOT / "packages" / "engine", "env": {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}}
        name = printed(sys.executable, "-c", BUILD, str(tmp_path / str(number)), **where).strip()
        digests.add(hashlib.sha256((tmp_path / str(number) / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_installation_runs_no_code_and_ci_fetches_nothing():
    projects = [path.read_text() for path in ROOT.glob("packages/*/pyproject.toml")]
    assert all('build-backend = "flit_core.buildapi"' in text for text in projects), "flit runs no code of a project"
    assert "hooks" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert not [path for path in ROOT.glob("packages/*/*") if path.name in ("setup.py", "setup.cfg")]
    assert not list(ROOT.glob("packages/**/*.pth"))
    steps = (ROOT / ".ci" / "run").read_text()
    assert not re.search(r"\buses:|curl|wget|git clone", steps)
    actions = [
        word for path in ROOT.glob(".github/workflows/*.yml") for word in re.findall("uses: (.*)", path.read_text())
    ]
    assert [word for word in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", word)] == []


def test_every_package_has_the_licence_and_requires_the_others_by_version():
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {*root["dependencies"]}
    for path in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        assert project["version"] == root["version"]
        assert f"{project['name']}=={root['version']}" in {word.replace("[tensorboard]", "") for word in required}
        ours = [word for word in project["dependencies"] if word.startswith("dither-")]
        assert all(word.endswith(f"=={root['version']}") for word in ours), path
        for name in ("LICENSE", "NOTICE"):
            assert (path.parent / name).read_text() == (ROOT / name).read_text(), path


def test_a_missing_tensorboard_is_reported_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    console = Console(file=io.StringIO(), width=200)
    log = Log(tmp_path, console, 1, trackers={"tensorboard": TensorBoard().build()})
    log.log(1, "train", {"loss": 1.0})
    log.close()
    assert console.file.getvalue().count("pip install 'tensorboard>=") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
