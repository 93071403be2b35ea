"""`dither new plugin` and `dither plugins test`.

CI also installs and runs every package (tests/scaffold/try_all.py).
"""

import ast
import contextlib
import re
import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.scaffold.manifest import project_plugins
from dither.engine.scaffold.package import Names
from dither.registry.kinds import KINDS
from dither.registry.plugins.manager import load_plugins
from dither.registry.plugins.manifest import MANIFEST, parse_manifest
from dither.testing.conformance import cases


def new(*arguments: str) -> int:
    return main(["new", "plugin", *arguments])


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow) if kind == "sampler" else kind
        for kind in [*KINDS, "task --features"]
    ],
)
@pytest.mark.slow
def test_an_example_validates_and_passes_the_conformance_kit(
    kind, tmp_path, monkeypatch
):
    """The package as `dither new` writes it, imported from its folder: torch-free at the top, dependencies declared."""
    kind, *features = kind.split()
    # Each case is a module of its own.
    names = Names("-".join(["tidy", kind, *(["numbers"] if features else [])]), kind)
    options = ["--kind", kind, *features, "--out", str(tmp_path)]
    assert new(names.name, *options) == 0
    folder, file = tmp_path / names.distribution, tmp_path / "mine.py"
    texts = {
        path.name: path.read_text() for path in folder.rglob("*.*") if path.is_file()
    }
    manifest = parse_manifest(texts.pop(MANIFEST).encode(), MANIFEST)
    components = [(part.kind, part.name) for part in manifest.components]
    assert components == [(kind, names.name)]
    assert (manifest.plugin, manifest.kit) == (names.name, None)
    assert not [path for path, text in texts.items() if re.search(r"\$\w", text)]
    assert not [
        path
        for path, text in texts.items()
        if "example" in text.lower().replace(f"{names.name}-example", "")
    ]
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["entry-points"]["dither.plugins"] == {names.name: names.module}
    tree = ast.parse(texts["__init__.py"])
    assert not any(
        "torch" in ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.ImportFrom | ast.Import)
    )
    imports = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)
    ]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    needed = " ".join(project["dependencies"])
    own = (
        {module.split(".")[0] for module in modules}
        - set(sys.stdlib_module_names)
        - {"dither"}
    )
    assert not [module for module in own if module not in needed]
    assert ("dither-tasks" in needed) == any(
        module.startswith("dither.tasks") for module in modules
    )

    file.write_text(f"from {names.module} import register_components\n")
    monkeypatch.syspath_prepend(str(folder))
    assert main(["validate", str(folder / "experiment.toml"), "-p", str(file)]) == 0
    # The command line names executors, no experiment does.
    unused = 0 if kind == "executor" else 2
    assert main(["validate", str(folder / "experiment.toml")]) == unused, (
        "the experiment does not use the component"
    )
    catalog = load_plugins(files=[file]).catalog
    assert catalog.find(kind, names.name).spec.__name__ == names.spec
    for case in cases("mine", catalog):  # each check in one situation
        if (
            case.check.name != "spec_without_torch"
        ):  # reads the menu of an installed plugin
            with contextlib.suppress(pytest.skip.Exception, pytest.xfail.Exception):
                replace(case, check=replace(case.check, examples=1)).run()


def test_a_single_file_is_a_plugin(tmp_path, capsys):
    assert (
        new("tidy-trial", "--kind", "loss", "--out", str(tmp_path), "--single-file")
        == 0
    )
    assert [path.name for path in tmp_path.iterdir()] == ["tidy-trial.py"]
    assert (
        main(["describe", "loss", "tidy-trial", "-p", str(tmp_path / "tidy-trial.py")])
        == 0
    )
    assert (
        new("tidy-trial", "--kind", "loss", "--out", str(tmp_path), "--single-file")
        == 2
    )
    assert "[file-exists]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("../up",), "invalid-value", ""),
        (("dither-wavelet",), "invalid-value", ""),
        (("-",), "invalid-value", ""),
        (("ümlaut",), "invalid-value", ""),
        (("match",), "invalid-value", ""),
        (("a" * 41,), "invalid-value", ""),
        (("core-blocks",), "duplicate", ""),
        (("adaln-zero",), "duplicate", ""),
        # A distribution without a plugin.
        (("zoo",), "duplicate", '"dither-zoo"'),
        (
            ("trial", "--kind", "lr_schedule"),
            "unknown-value",
            'did you mean "lr-schedule"?',
        ),
        (("trial", "--out", "no-such-folder"), "file-not-found", ""),
    ],
)
def test_invalid_arguments_are_refused(
    arguments, code, hint, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    name, *options = arguments
    assert new("--kind", "block", *options, "--", name) == 2
    message = capsys.readouterr().err
    assert f"[{code}]" in message
    assert hint in message
    assert not list(tmp_path.rglob("*"))


def test_nothing_is_overwritten(tmp_path, capsys):
    target = tmp_path / "dither-tidy-trial"
    for make in (
        target.mkdir,
        lambda: target.write_text("mine"),
        lambda: target.symlink_to(tmp_path / "nowhere"),
    ):
        make()
        assert new("tidy-trial", "--kind", "block", "--out", str(tmp_path)) == 2
        assert "[file-exists]" in capsys.readouterr().err
        assert [path.name for path in tmp_path.rglob("*")] == [target.name]
        assert not target.is_file() or target.read_text() == "mine"
        target.rmdir() if target.is_dir() else target.unlink()


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()]
)
def test_a_partial_package_is_removed(error, tmp_path, monkeypatch):
    written = []
    real = Path.write_text

    def fails_at_the_fourth(path, *arguments, **options):
        if "dither-tidy" in str(path):
            written.append(path)
            if len(written) == 4:
                raise error
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", fails_at_the_fourth)
    assert new("tidy-trial", "--kind", "block", "--out", str(tmp_path)) in (5, 130)
    assert len(written) == 4
    assert not list(tmp_path.iterdir())


WRONG = '''
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.kinds import LRScheduleSpec

class Wrong(LRScheduleSpec):
    """A negative learning rate."""
    name: ClassVar[str] = "wrong"
    def build(self, steps):
        return lambda step: -1.0

@hookimpl
def register_components():
    return [Wrong]
'''
HOOKS_ONLY = "from dither.registry import hookimpl\n@hookimpl\ndef after_run(run, summary): pass\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a one-module plugin called "odd", also for the process of the kit."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    metadata = tmp_path / "fixture_odd-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fixture_odd\nVersion: 0.1\n"
    )
    (metadata / "entry_points.txt").write_text("[dither.plugins]\nodd = fixture_odd\n")
    yield (tmp_path / "fixture_odd.py").write_text
    sys.modules.pop("fixture_odd", None)


@pytest.mark.slow
def test_the_kit_runs_over_an_installed_plugin_and_a_file(
    install, capfd, tmp_path, monkeypatch
):
    install(WRONG)
    (tmp_path / "my_rate.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "test", "./my_rate.py"]) == 1
    assert "lr-schedule:wrong-factor_valid" in capfd.readouterr().out
    for expected, code, text in (
        ([], 1, "lr-schedule:wrong-factor_valid"),
        (
            ["--expect", "lr-schedule:wrong-factor_valid=it is negative on purpose"],
            0,
            "it is negative on purpose",
        ),
        (["--expect", "lr-schedule:wrong-factor_is_sond=why"], 2, "factor_valid"),
    ):
        assert main(["plugins", "test", "odd", *expected]) == code
        printed = "".join(capfd.readouterr())
        assert text in printed
        assert "Traceback" not in printed


def test_sync_in_the_project_of_a_plugin_writes_its_manifest(
    tmp_path, monkeypatch, cli
):
    assert new("tidy-wave", "--kind", "loss", "--out", str(tmp_path)) == 0
    folder = tmp_path / "dither-tidy-wave"
    monkeypatch.chdir(folder)
    assert "[unknown-plugin]" in cli("registry", "sync", code=2).err

    # As an editable installation does.
    monkeypatch.syspath_prepend(folder)
    metadata = folder / "dither_tidy_wave-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: dither-tidy-wave\n"
    )
    point = "[dither.plugins]\ntidy-wave = dither_tidy_wave\n"
    (metadata / "entry_points.txt").write_text(point)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    with monkeypatch.context() as patch:
        patch.chdir(elsewhere)
        assert "[unknown-plugin]" in cli("registry", "sync", code=2).err

    path = folder / "dither_tidy_wave" / MANIFEST
    before = path.read_text()
    path.write_text("damaged")
    assert "tidy-wave: manifest ignored" in cli("plugins").out
    codes = [3, 1]

    def run_kit(name, expected, report, stdout):
        report.write_text(KIT_REPORT)
        return codes.pop(0)

    monkeypatch.setattr("dither.engine.scaffold.manifest.run_kit", run_kit)
    assert "[plugin-failed]" in cli("registry", "sync", "--kit", code=2).err
    assert path.read_text() == "damaged"
    cli("registry", "sync", "--kit")
    assert path.read_text().replace(KIT, "null") == before
    assert not (folder / "registry.toml").exists()
    assert "1 of 2" in cli("plugins", "--json").out


def test_the_versions_of_dither_are_those_of_the_project(tmp_path, refused):
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\ndependencies = ["torch", "Dither_Registry >= 0.2"]')
    assert project_plugins(tmp_path) == ({}, ">=0.2")
    file.write_text('[project]\ndependencies = ["torch ?"]')
    with refused("syntax-error"):
        project_plugins(tmp_path)


KIT_REPORT = """<testsuite><testcase/><testcase><skipped/></testcase>
<testcase><failure/></testcase></testsuite>"""
KIT = '{\n  "passed": 1,\n  "checks": 2\n }'


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise ImportError('no such thing')", "plugin-failed"),
        (HOOKS_ONLY, "unknown-component"),
    ],
)
def test_a_plugin_without_components_is_refused(code, problem, install, cli):
    install(code)
    assert f"[{problem}]" in cli("plugins", "test", "odd", code=2).err


def test_invalid_arguments_of_test_plugin_are_refused(monkeypatch, cli):
    assert "[file-not-found]" in cli("plugins", "test", "./missing.py", code=2).err
    assert (
        'did you mean "core-blocks"?'
        in cli("plugins", "test", "core-block", code=2).err
    )
    wrong = cli(
        "plugins",
        "test",
        "core-blocks",
        "--expect",
        "nonsense",
        "--expect",
        "block:a-b= ",
        code=2,
    )
    assert wrong.err.count("[usage]") == 2
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "[missing-dependency]" in cli("plugins", "test", "core-blocks", code=2).err
