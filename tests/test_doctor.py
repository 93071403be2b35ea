"""`dither doctor`: every check, and that nothing it looks at can stop it."""

import json
from types import SimpleNamespace

import pytest

from dither.engine.cli import doctor
from dither.registry import Catalog
from dither.registry.plugins.policy import Policy
from dither.registry.plugins.status import PluginStatus


def codes(findings):
    return [(finding.state, finding.code) for finding in findings]


def plugins_of(*reports):
    return SimpleNamespace(reports=list(reports), catalog=Catalog())


@pytest.mark.parametrize(
    ("free", "expected"), [(1e10, ("ok", "")), (1e9, ("note", "disk-full"))]
)
def test_free_space(tmp_path, monkeypatch, free, expected):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    assert codes(doctor.check_folder("runs", tmp_path / "runs", "move")) == [expected]
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "runs").write_text("a file")
    assert codes(doctor.check_folder("runs", tmp_path / "runs", "move")) == [
        ("broken", "unwritable-file")
    ]


def test_states_of_plugins():
    reports = (
        PluginStatus("a", "loaded", "dist-a", "1.0"),
        PluginStatus("b", "failed", "dist-b", "2.0", "SystemExit: 3 (b.py:1)"),
        PluginStatus("c", "clash", "dist-c, dist-d", "1, 2", "more than one"),
        PluginStatus("d", "blocked", "dist-e", "1", "registry.toml"),
        PluginStatus("heavy", "loaded", "d", imports_torch=True, seconds=2.5),
        PluginStatus("slow", "loaded", "d", seconds=3.0),
    )
    assert codes(doctor.check_plugins(plugins_of(*reports))) == [
        ("broken", "plugin-failed"),
        ("broken", "plugin-conflict"),
        ("note", "plugin-blocked"),
        ("note", "slow-import"),
        ("note", "slow-import"),
        ("ok", ""),
    ]
    assert codes(doctor.check_plugins(plugins_of())) == [("broken", "unknown-plugin")]


def test_requirements_of_registry_toml():
    policy = Policy.model_validate(
        {"plugins": {"require": ["dist-a>=1", "a>=3", "absent"]}}
    )
    plugins = plugins_of(PluginStatus("a", "loaded", "dist-a", "2.0"))
    found = codes(doctor.check_policy(None, policy, plugins))
    assert found == [
        ("ok", ""),
        ("broken", "unknown-plugin"),
        ("broken", "unknown-plugin"),
    ]
    policy = Policy.model_validate({"components": {"mine": {"block": ["gone"]}}})
    assert codes(doctor.check_policy(None, policy, plugins)) == [
        ("ok", ""),
        ("note", "registry-outdated"),
    ]


def test_every_problem_of_registry_toml_is_a_finding(tmp_path):
    (tmp_path / "registry.toml").write_text(
        '[plugins]\nblok = []\nrequire = ["a>>1"]\n[known.a]\nx = 3\n'
    )
    broken = [
        finding.message
        for finding in doctor.examine(tmp_path, tmp_path / "runs")
        if finding.state == "broken"
    ]
    assert [message.partition(":")[0] for message in broken[:3]] == [
        "plugins.blok",
        "plugins.require",
        "known.a.install",
    ]
    assert "registry.toml:2" in broken[0]


def test_the_command_and_its_exit_code(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "DITHER_PLUGINS", "core-blocks,embeddings,engine,losses,processes,tasks"
    )
    rows = json.loads(cli("doctor", "--json").out)
    assert {row["topic"] for row in rows} >= {
        "python",
        "runs",
        "cache",
        "plugins",
        "registry.toml",
    }
    assert all(
        row.keys() == {"topic", "state", "message", "advice", "code"} for row in rows
    )
    (tmp_path / "runs").write_text("a file")
    page = cli("doctor", code=1).out
    assert "1 broken" in page
    assert "--runs" in page
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
