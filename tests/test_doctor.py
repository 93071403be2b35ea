"""`dither doctor`: every check, and that nothing it looks at can stop it."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from dither.engine.cli import doctor, main
from dither.engine.cli.doctor import CHECKS, Environment
from dither.registry import Catalog
from dither.registry.kinds import BlockSpec
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.policy import Policy
from dither.registry.plugins.status import PluginStatus
from dither.registry.spec.fingerprint import fingerprint


class Fine(BlockSpec):
    """A block."""

    name: ClassVar[str] = "fine"

    def build(self, width, cond):
        """Nothing."""


@pytest.fixture
def results(tmp_path):
    """Run a check and return (state, code) of its findings."""

    def run(check, *reports, specs=(), policy=None):
        catalog = Catalog()
        catalog.add("mine", specs)
        plugins = SimpleNamespace(reports=list(reports), catalog=catalog)
        environment = Environment(tmp_path, tmp_path / "runs", policy or Policy(), plugins)
        return [(finding.state, finding.code) for finding in check(environment)]

    return run


def not_found(name):
    raise importlib.metadata.PackageNotFoundError(name)


DITHER = str(Path(sys.executable).parent / "dither")


@pytest.mark.parametrize(
    ("check", "target", "value", "expected"),
    [
        ("python", "sys.version_info", (3, 10, 1), [("broken", "python-version")]),
        ("python", "sys.prefix", sys.base_prefix, [("note", "no-venv")]),
        ("torch", "importlib.metadata.version", not_found, [("broken", "missing-dependency")]),
        ("torch", "importlib.metadata.version", lambda name: "2", [("ok", "")]),
        ("command", "shutil.which", lambda name: None, [("note", "not-on-path")]),
        ("command", "shutil.which", lambda name: "/elsewhere/bin/dither", [("note", "not-on-path")]),
        ("command", "shutil.which", lambda name: DITHER, [("ok", "")]),
        ("folders", "shutil.disk_usage", lambda path: SimpleNamespace(free=1e10), [("ok", "")] * 2),
        ("folders", "shutil.disk_usage", lambda path: SimpleNamespace(free=1e9), [("note", "disk-full")] * 2),
        ("folders", "shutil.disk_usage", lambda path: SimpleNamespace(free=1e6), [("broken", "disk-full")] * 2),
    ],
)
def test_checks_of_the_machine(results, monkeypatch, tmp_path, check, target, value, expected):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(target, value)
    assert results(getattr(doctor, check)) == expected
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_threads(results, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert results(doctor.machine) == [("ok", "")]
    monkeypatch.setenv("OMP_NUM_THREADS", "5000")
    assert results(doctor.machine) == [("ok", ""), ("note", "too-many-threads")]


def test_an_unwritable_folder(results, tmp_path):
    (tmp_path / "runs").write_text("a file")
    assert results(doctor.folders)[0] == ("broken", "unwritable-file")


def test_states_of_plugins(results, monkeypatch):
    reports = (
        PluginStatus("a", "loaded", "dist-a", "1.0"),
        PluginStatus("b", "failed", "dist-b", "2.0", "SystemExit: 3 (b.py:1)"),
        PluginStatus("c", "clash", "dist-c, dist-d", "1, 2", "more than one"),
        PluginStatus("d", "blocked", "dist-e", "1", "registry.toml"),
        PluginStatus("heavy", "loaded", "d", imports_torch=True, seconds=2.5),
        PluginStatus("slow", "loaded", "d", seconds=3.0),
    )
    assert results(doctor.plugins, *reports) == [
        ("broken", "plugin-failed"),
        ("broken", "plugin-conflict"),
        ("note", "plugin-blocked"),
        ("note", "slow-import"),
        ("note", "slow-import"),
        ("ok", ""),
    ]
    assert results(doctor.plugins) == [], "the reason for missing reports is given elsewhere"
    monkeypatch.setattr(doctor, "_plugin_names", lambda dist: set())
    assert results(doctor.plugins) == [("broken", "missing-dependency")]


def make_distribution(folder, kind, name, version, points=""):
    info = folder / f"{name.replace('-', '_')}{'-' + version if kind == 'dist-info' else ''}.{kind}"
    info.mkdir(parents=True)
    metadata = info / ("METADATA" if kind == "dist-info" else "PKG-INFO")
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if points:
        (info / "entry_points.txt").write_text(f"[dither.plugins]\n{points}\n")
    return info


def findings(check, tmp_path, word):
    environment = Environment(tmp_path, tmp_path / "runs", Policy(), Plugins())
    return [finding for finding in check(environment) if word in finding.message]


def test_stale_metadata_that_shadows_a_plugin(tmp_path, monkeypatch):
    make_distribution(tmp_path / "site", "dist-info", "shady-plugin", "2.0", "shady = shady_plugin")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert findings(doctor.duplicates, tmp_path, "shady") == []
    stale = make_distribution(tmp_path / "src", "egg-info", "shady-plugin", "1.0")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    (finding,) = findings(doctor.duplicates, tmp_path, "shady")
    assert (finding.state, finding.code, finding.advice) == ("broken", "duplicate", f"remove {stale}")


def test_two_versions_of_a_distribution(tmp_path, monkeypatch):
    for version in ("1.0", "2.0"):
        make_distribution(tmp_path / "site", "dist-info", "twofold", version)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))  # a folder that is searched twice is no second version
    (finding,) = findings(doctor.duplicates, tmp_path, "twofold")
    assert (finding.state, finding.code) == ("note", "duplicate")
    assert "1.0" in finding.message
    assert "2.0" in finding.message


def test_unmet_requirements(tmp_path, monkeypatch):
    info = make_distribution(tmp_path / "site", "dist-info", "needy", "1.0", "needy = needy")
    with (info / "METADATA").open("a") as file:
        file.write("Requires-Dist: torch>=99\nRequires-Dist: no-such-thing\nRequires-Dist: other; extra == 'more'\n")
        file.write("Requires-Dist: pydantic>=2\nRequires-Dist: never; python_version < '3'\nProvides-Extra: more\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = findings(doctor.requirements, tmp_path, "needy")
    assert [(finding.state, finding.code) for finding in found] == [
        ("broken", "missing-dependency"),
        ("broken", "missing-dependency"),
        ("note", "missing-extra"),
    ]
    assert [finding.advice.rpartition(" ")[2] for finding in found] == [
        "'torch>=99'",
        "'no-such-thing'",
        "'needy[more]'",
    ]


def test_requirements_of_registry_toml(results):
    policy = Policy.model_validate({"plugins": {"require": ["dist-a>=1", "a>=3", "absent"]}})
    assert results(doctor.registry_toml, PluginStatus("a", "loaded", "dist-a", "2.0"), policy=policy) == [
        ("ok", ""),
        ("broken", "missing-dependency"),
        ("broken", "unknown-plugin"),
    ]


@pytest.mark.parametrize(
    ("entries", "outdated"),
    [
        ({}, False),
        ({"fine": {}}, False),
        ({"fine": {"rev": 2}}, True),
        ({"fine": {"options": "sha256:0"}}, True),
        ({"gone": {}}, True),
    ],
)
def test_an_outdated_registry_toml(results, entries, outdated):
    entry = {"plugin": "mine", "rev": 1, "options": fingerprint(Fine)}
    policy = Policy.model_validate({"components": {"block": {name: entry | own for name, own in entries.items()}}})
    expected = [("ok", "")] + [("note", "lockfile-outdated")] * outdated
    assert results(doctor.registry_toml, specs=[Fine], policy=policy) == expected


def test_every_problem_of_registry_toml_is_a_finding(tmp_path):
    (tmp_path / "registry.toml").write_text('[plugins]\nblok = []\nrequire = ["a>>1"]\n[prefer]\nx = 3\n')
    broken = [finding.message for finding in doctor.examine(tmp_path, tmp_path / "runs") if finding.state == "broken"]
    assert [message.partition(":")[0] for message in broken[:3]] == ["plugins.blok", "plugins.require", "prefer.x"]
    assert "registry.toml:2" in broken[0]


def test_a_check_that_raises_is_a_finding(tmp_path, monkeypatch):
    def wild(environment):
        yield from ()
        raise KeyError("what?")

    monkeypatch.setattr(doctor, "CHECKS", (wild,))
    (finding,) = doctor.examine(tmp_path, tmp_path / "runs")
    assert (finding.topic, finding.state, finding.code) == ("wild", "broken", "check-failed")
    assert "KeyError" in finding.message


def test_without_plugins_every_broken_finding_has_advice(tmp_path):
    empty = Environment(tmp_path, tmp_path / "runs", Policy(), Plugins())
    for finding in (finding for check in CHECKS for finding in check(empty)):
        assert finding.code != "check-failed"
        assert finding.state != "broken" or finding.advice, finding


def test_the_command_and_its_exit_code(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DITHER_PLUGINS", "core-blocks,embeddings,engine,losses,processes,tasks")
    assert main(["doctor", "--json"]) == 0, capsys.readouterr().out
    rows = json.loads(capsys.readouterr().out)
    assert {row["topic"] for row in rows} >= {"python", "torch", "machine", "runs", "cache", "command", "plugins"}
    assert all(row.keys() == {"topic", "state", "message", "advice", "code"} for row in rows)
    (tmp_path / "runs").write_text("a file")
    assert main(["doctor"]) == 1
    page = capsys.readouterr().out
    assert "1 broken" in page
    assert "--runs" in page
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_broken_and_a_slow_plugin_are_named(tmp_path):
    site = tmp_path / "site"
    make_distribution(site, "dist-info", "hostile", "1.0", "hostile = hostile_plugin\nsleepy = torchy_plugin")
    (site / "hostile_plugin.py").write_text("raise SystemExit(7)\n")
    (site / "torchy_plugin.py").write_text(
        "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"
        "from dither.registry import hookimpl\n@hookimpl\ndef register_components():\n    return []\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r}); from dither.engine.cli import main; sys.exit(main(['doctor']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
        env={"DITHER_DATA": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    text = " ".join(done.stdout.split())
    assert "hostile (hostile 1.0) failed to load" in text
    assert "sleepy imports torch" in text
    assert "Traceback" not in done.stderr
