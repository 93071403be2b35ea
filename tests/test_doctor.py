"""What doctor finds, and that nothing it looks at can bring it down."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

from dither.engine.cli import doctor as examine
from dither.engine.cli import doctor as machine
from dither.engine.cli import doctor as parts
from dither.engine.cli import doctor as project
from dither.engine.cli import main
from dither.engine.cli.doctor import CHECKS, Environment, _guarded
from dither.registry import Catalog
from dither.registry.kinds import BlockSpec
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.policy import Policy
from dither.registry.plugins.status import PluginStatus
from dither.registry.spec.base import Alias
from dither.registry.spec.fingerprint import fingerprint

ROOT = Path(__file__).parents[1]


class Fine(BlockSpec):
    """A block."""

    name: ClassVar[str] = "fine"
    aliases: ClassVar[tuple[Alias, ...]] = (Alias("good", "2.0"),)

    def build(self, width, cond):
        """Nothing."""


class Careless(BlockSpec):
    name: ClassVar[str] = "careless"
    sizes: list[int] = [1, 2]

    def build(self, width, cond):
        """Nothing."""


def scene(tmp_path, *reports, specs=(), policy=None):
    catalog = Catalog()
    catalog.add("mine", specs)
    return Environment(
        tmp_path, tmp_path / "runs", policy or Policy(), SimpleNamespace(reports=list(reports), catalog=catalog)
    )


def found(check, where):
    return [(finding.state, finding.message) for finding in check(where)]


def test_states_of_plugins_and_what_to_do(tmp_path, monkeypatch):
    reports = (
        PluginStatus("a", "loaded", "dist-a", "1.0"),
        PluginStatus("b", "failed", "dist-b", "2.0", "SystemExit: 3 (b.py:1)"),
        PluginStatus("c", "clash", "dist-c, dist-d", "1, 2", "more than one"),
        PluginStatus("d", "blocked", "dist-e", "1", "registry.toml"),
    )
    findings = list(parts.states(scene(tmp_path, *reports)))
    assert [finding.state for finding in findings] == ["broken", "broken", "note", "ok"]
    assert "SystemExit: 3 (b.py:1)" in findings[0].message
    assert "dist-b" in findings[0].advice
    assert "-p no:b" in findings[0].advice
    assert "dist-c, dist-d" in findings[1].message
    assert findings[3].message == "1 loaded: a 1.0"
    assert list(parts.states(scene(tmp_path))) == [], "why there are no reports is said elsewhere"
    monkeypatch.setattr(parts, "installed_plugins", dict)
    assert [finding.state for finding in parts.states(scene(tmp_path))] == ["broken"]


def test_plugins_that_make_a_start_slow(tmp_path):
    reports = (
        PluginStatus("quick", "loaded", "d", seconds=0.1),
        PluginStatus("heavy", "loaded", "d", imports_torch=True, seconds=2.5),
        PluginStatus("slow", "loaded", "d", seconds=3.0),
    )
    messages = [message for _, message in found(parts.slow_imports, scene(tmp_path, *reports))]
    assert len(messages) == 2
    assert "heavy imports torch" in messages[0]
    assert "2.5 s" in messages[0]
    assert messages[1].startswith("slow takes 3.0 s")


def test_parts_that_their_authors_should_mend(tmp_path):
    where = scene(tmp_path, specs=[Fine, Careless])
    assert found(parts.mutable_defaults, where) == [
        ("note", "mine has defaults that can be changed in place: block careless (sizes)")
    ]
    assert found(parts.undocumented, where) == [("note", "block careless of mine has no docstring")]


def make_distribution(folder, kind, name, version, points=""):
    info = folder / f"{name.replace('-', '_')}{'-' + version if kind == 'dist-info' else ''}.{kind}"
    info.mkdir(parents=True)
    (info / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    if points:
        (info / "entry_points.txt").write_text(f"[dither.plugins]\n{points}\n")
    return info


def test_metadata_that_hides_a_plugin(tmp_path, monkeypatch):
    make_distribution(tmp_path / "site", "dist-info", "shady-plugin", "2.0", "shady = shady_plugin")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert [f for f in parts.shadowed(scene(tmp_path)) if "shady" in f.message] == []
    stale = make_distribution(tmp_path / "src", "egg-info", "shady-plugin", "1.0")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    (finding,) = (f for f in parts.shadowed(scene(tmp_path)) if "shady" in f.message)
    assert finding.state == "broken"
    assert "hides" in finding.message
    assert "plugin shady" in finding.message
    assert finding.advice == f"remove the folder {stale}"


def test_two_versions_of_a_distribution(tmp_path, monkeypatch):
    for version in ("1.0", "2.0"):
        make_distribution(tmp_path / "site", "dist-info", "twofold", version)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))  # a folder that is searched twice is no second version
    (finding,) = (f for f in parts.shadowed(scene(tmp_path)) if "twofold" in f.message)
    assert finding.state == "note"
    assert "1.0" in finding.message
    assert "2.0" in finding.message
    assert "pip uninstall twofold" in finding.advice


def test_a_requirement_that_is_not_met(tmp_path, monkeypatch):
    info = make_distribution(tmp_path / "site", "dist-info", "needy", "1.0", "needy = needy")
    with (info / "METADATA").open("a") as file:
        file.write("Requires-Dist: torch>=99\nRequires-Dist: no-such-thing\nRequires-Dist: other; extra == 'more'\n")
        file.write("Requires-Dist: pydantic>=2\nRequires-Dist: never; python_version < '3'\nProvides-Extra: more\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    messages = [message for state, message in found(machine.requirements, scene(tmp_path)) if state == "broken"]
    assert len(messages) == 2
    assert any(message.startswith("needy needs torch>=99, which is installed in version") for message in messages)
    assert "needy needs no-such-thing, which is not installed" in messages
    assert ("note", "needy[more] lacks other") in found(machine.extras, scene(tmp_path))


def test_no_torch(tmp_path, monkeypatch):
    assert found(machine.torch, scene(tmp_path)) == [("ok", importlib.metadata.version("torch"))]

    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    assert found(machine.torch, scene(tmp_path)) == [("broken", "is not installed")]


def test_python_is_one_that_is_supported(tmp_path, monkeypatch):
    assert {state for state, _ in found(machine.python, scene(tmp_path))} <= {"ok", "note"}
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert [state for state, _ in found(machine.python, scene(tmp_path))] == ["broken"]


def test_more_threads_than_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert [state for state, _ in found(machine.processor, scene(tmp_path))] == ["ok"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5000")
    assert [state for state, _ in found(machine.processor, scene(tmp_path))] == ["ok", "note"]


def test_folders_that_cannot_be_written_or_are_full(tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    assert not list(tmp_path.iterdir())
    usage = shutil.disk_usage(tmp_path)
    assert [state for state, _ in found(machine.folders, scene(tmp_path))] == ["ok" if usage.free > 5e9 else "note"] * 2
    assert not list(tmp_path.iterdir()), "it leaves something behind"
    (tmp_path / "runs").write_text("a file")
    states = dict(zip(("runs", "cache"), found(machine.folders, scene(tmp_path)), strict=True))
    assert states["runs"][0] == "broken"
    assert "cannot be written" in states["runs"][1]
    (tmp_path / "runs").unlink()
    for free, state in ((1e9, "note"), (1e6, "broken")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert [s for s, _ in found(machine.folders, scene(tmp_path))] == [state] * 2


def test_the_command_of_another_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: "/elsewhere/bin/dither")
    ((state, message),) = found(machine.command, scene(tmp_path))
    assert state == "note"
    assert "of another environment" in message
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert found(machine.command, scene(tmp_path)) == [("note", "there is no `dither` on PATH")]
    monkeypatch.setattr(shutil, "which", lambda _: str(Path(sys.executable).parent / "dither"))
    assert [state for state, _ in found(machine.command, scene(tmp_path))] == ["ok"]


def test_what_registry_toml_requires(tmp_path):
    policy = Policy.model_validate({"plugins": {"require": ["dist-a>=1", "a>=3", "absent"]}})
    where = scene(tmp_path, PluginStatus("a", "loaded", "dist-a", "2.0"), policy=policy)
    assert found(project.required, where) == [
        ("broken", 'requires "a>=3", but 2.0 is installed'),
        ("broken", 'requires "absent", which is not loaded'),
    ]


def test_a_catalogue_that_is_out_of_date(tmp_path):
    where = scene(tmp_path, specs=[Fine])
    (part,) = where.plugins.catalog.parts()
    entry = {"plugin": "mine", "rev": 1, "options": fingerprint(part.spec)}
    for entries, problems in (
        ({}, []),
        ({"fine": entry}, []),
        ({"fine": {**entry, "rev": 2}}, ['block "fine" is mine@2 in the catalogue, but mine@1 here']),
        (
            {"fine": {**entry, "options": "sha256:0"}},
            ['block "fine" of plugin "mine" has other options than rev 1 had'],
        ),
        ({"gone": entry}, ['block "gone" is in the catalogue, but plugin "mine" is not installed; and 1 more']),
    ):
        policy = Policy.model_validate({"components": {"block": entries}})
        where = scene(tmp_path, specs=[Fine], policy=policy)
        assert [message for _, message in found(project.catalogue, where)] == problems, entries


def test_experiments_that_use_earlier_names(tmp_path):
    folder = tmp_path / "experiments/deep"
    folder.mkdir(parents=True)
    (folder / "old.toml").write_text('[model]\nblock = { use = "mine/good@1" }\n')
    (folder / "new.toml").write_text('[model]\nblock = "fine"\nhead = "good"\n')
    (folder / "other.toml").write_text('[model]\nblock = "theirs/good"\n')
    (folder / "no.toml").write_text("this is no TOML [")
    (folder / "bytes.toml").write_bytes(b"\xff\xfe")
    (folder / "folder.toml").mkdir()
    (finding,) = project.earlier_names(scene(tmp_path, specs=[Fine]))
    assert "old.toml" in finding.message
    assert 'write "fine"' in finding.advice
    assert "2.0 of mine" in finding.advice


def test_every_mistake_of_a_registry_toml_and_what_else_is_wrong(tmp_path):
    (tmp_path / "registry.toml").write_text('[plugins]\nblok = []\nrequire = ["a>>1"]\n[prefer]\nx = 3\n')
    findings = [f for f in examine(tmp_path, tmp_path / "runs") if f.state == "broken"]
    text = " ".join(finding.message for finding in findings)
    assert "blok" in text
    assert "prefer" in text
    assert "registry.toml:2" in text


def test_a_check_that_raises_is_a_finding(tmp_path):
    def wild(where):
        yield from ()
        raise KeyError("what?")

    (finding,) = _guarded(wild, scene(tmp_path))
    assert (finding.topic, finding.state) == ("wild", "broken")
    assert "KeyError" in finding.message


def test_nothing_installed_breaks_no_check(tmp_path):
    empty = Environment(tmp_path, tmp_path / "runs", Policy(), Plugins())
    for check in CHECKS:
        for finding in _guarded(check, empty):
            assert "came to no end" not in finding.message, finding
            assert finding.state != "broken" or finding.advice, finding


def test_the_page_and_its_exit_code(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DITHER_PLUGINS", "core-blocks,embeddings,engine,losses,processes,tasks")
    assert main(["doctor", "--json"]) == 0, capsys.readouterr().out
    rows = json.loads(capsys.readouterr().out)
    assert {row["topic"] for row in rows} >= {"python", "torch", "machine", "runs", "cache", "command", "plugins"}
    assert all(row.keys() == {"topic", "state", "message", "advice"} for row in rows)
    (tmp_path / "runs").write_text("a file")
    assert main(["doctor"]) == 1
    page = capsys.readouterr().out
    assert "1 broken" in page
    assert "--runs" in page
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_hostile_plugin_is_named_and_the_page_is_printed(tmp_path):
    """In a process of its own, so that what the plugin might do stays there."""
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
    assert "hostile (hostile 1.0) cannot be loaded" in text
    assert "sleepy imports torch" in text
    assert "Traceback" not in done.stderr
