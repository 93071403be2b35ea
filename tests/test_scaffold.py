"""`dither new plugin` and `dither test-plugin`. CI also installs and runs every package (tests/scaffold/try_all.py)."""

import ast
import contextlib
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.scaffold.package import Names, check_names, example_file
from dither.registry import Refused
from dither.registry.kinds import KINDS
from dither.registry.plugins.manager import load_plugins
from dither.testing.conformance import cases


def new(*arguments: str) -> int:
    return main(["new", "plugin", *arguments])


def test_every_kind_has_an_example():
    assert {example_file(kind).stem.replace("_", "-") for kind in KINDS} == set(KINDS)
    script = (Path(__file__).parent / "scaffold/try_all.py").read_text()
    assert all(f'"{kind}"' in script for kind in KINDS), "CI tries every kind"


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_validates_and_passes_the_conformance_kit(kind, tmp_path, monkeypatch):
    """The package as `dither new` writes it, imported from its folder: torch-free at the top, dependencies declared."""
    names = Names(f"tidy-{kind}", kind)
    assert new(names.name, "--kind", kind, "--into", str(tmp_path)) == 0
    folder, file = tmp_path / names.distribution, tmp_path / "mine.py"
    texts = {path.name: path.read_text() for path in folder.rglob("*.*")}
    assert not [path for path, text in texts.items() if "$" in text]
    assert not [path for path, text in texts.items() if "example" in text.lower().replace(f"{names.name}-example", "")]
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["entry-points"]["dither.plugins"] == {names.name: names.module}
    tree = ast.parse(texts["__init__.py"])
    assert not any("torch" in ast.unparse(node) for node in tree.body if isinstance(node, ast.ImportFrom | ast.Import))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    needed = " ".join(project["dependencies"])
    own = {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names) - {"dither"}
    assert not [module for module in own if module not in needed]
    assert ("dither-tasks" in needed) == any(module.startswith("dither.tasks") for module in modules)

    file.write_text(f"from {names.module} import register_components\n")
    monkeypatch.syspath_prepend(str(folder))
    assert main(["validate", str(folder / "experiment.toml"), "-p", str(file)]) == 0
    assert main(["validate", str(folder / "experiment.toml")]) == 2, "the experiment does not use the component"
    catalog = load_plugins(files=[file]).catalog
    assert catalog.find(kind, names.name).spec.__name__ == names.spec
    for case in cases("mine", catalog):  # each check in one situation
        if case.check.name != "spec_without_torch":  # reads the menu of an installed plugin
            with contextlib.suppress(pytest.skip.Exception, pytest.xfail.Exception):
                replace(case, check=replace(case.check, examples=1)).run()


def test_a_single_file_is_a_plugin(tmp_path, capsys):
    assert new("tidy-trial", "--kind", "loss", "--into", str(tmp_path), "--single-file") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tidy-trial.py"]
    assert main(["describe", "loss", "tidy-trial", "-p", str(tmp_path / "tidy-trial.py")]) == 0
    assert new("tidy-trial", "--kind", "loss", "--into", str(tmp_path), "--single-file") == 2
    assert "[file-exists]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind", "spec"),
    [
        ("wavelet", "block", "WaveletBlock"),
        ("wavelet-block", "block", "WaveletBlock"),
        ("block", "block", "BlockBlock"),  # `Block` alone could clash with an import
        ("rate-lr-schedule", "lr-schedule", "RateLrSchedule"),
    ],
)
def test_class_names(name, kind, spec):
    assert Names(name, kind).spec == spec


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("MyBlock",), "invalid-value", 'try "my-block"'),
        (("my_block",), "invalid-value", 'try "my-block"'),
        (("a--b",), "invalid-value", 'try "a-b"'),
        (("../up",), "invalid-value", 'try "up"'),
        (("dither-wavelet",), "invalid-value", 'try "wavelet"'),
        (("3d",), "invalid-value", ""),
        (("-",), "invalid-value", ""),
        (("ümlaut",), "invalid-value", ""),
        (("none",), "invalid-value", ""),
        (("match",), "invalid-value", ""),
        (("a" * 41,), "invalid-value", ""),
        (("core-blocks",), "duplicate", ""),
        (("adaln-zero",), "duplicate", ""),
        (("registry",), "duplicate", ""),
        (("trial", "--kind", "lr_schedule"), "unknown-value", 'did you mean "lr-schedule"?'),
        (("trial", "--kind", "zzz"), "unknown-value", "kinds: "),
        (("trial", "--into", "no-such-folder"), "file-not-found", ""),
    ],
)
def test_invalid_arguments_are_refused(arguments, code, hint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *options = arguments
    assert new("--kind", "block", *options, "--", name) == 2
    message = capsys.readouterr().err
    assert f"[{code}]" in message
    assert hint in message
    assert hint or 'try "' not in message
    assert not list(tmp_path.rglob("*"))


def test_the_name_of_a_failed_plugin_is_taken():
    with pytest.raises(Refused) as info:
        check_names(Names("broken", "block"), {"broken"}, ())
    assert info.value.codes == ["duplicate"]


def test_nothing_is_overwritten(tmp_path, capsys):
    target = tmp_path / "dither-tidy-trial"
    for make in (target.mkdir, lambda: target.write_text("mine"), lambda: target.symlink_to(tmp_path / "nowhere")):
        make()
        assert new("tidy-trial", "--kind", "block", "--into", str(tmp_path)) == 2
        assert "[file-exists]" in capsys.readouterr().err
        assert [path.name for path in tmp_path.rglob("*")] == [target.name]
        assert not target.is_file() or target.read_text() == "mine"
        target.rmdir() if target.is_dir() else target.unlink()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
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
    assert new("tidy-trial", "--kind", "block", "--into", str(tmp_path)) in (2, 130)
    assert len(written) == 4
    assert not list(tmp_path.iterdir())


def install(folder: Path, name: str, code: str) -> dict[str, str]:
    """Install a one-module plugin into a folder; return an environment with that folder on the path."""
    module = f"fixture_{name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{module}-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(f"[dither.plugins]\n{name} = {module}\n")
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "DITHER_DATA": str(folder / "cache")}


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


def check(name: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from dither.engine.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, "test-plugin", name, *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_kit_runs_over_an_installed_plugin(tmp_path):
    environment = install(tmp_path, "wrong", WRONG)
    done = check("wrong", environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "lr-schedule:wrong-factor_valid" in done.stdout
    done = check("wrong", environment, "--expect", "lr-schedule:wrong-factor_valid=it is negative on purpose")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it is negative on purpose" in done.stdout
    done = check("wrong", environment, "--expect", "lr-schedule:wrong-factor_is_sond=why")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "factor_valid" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("code", "problem"), [("raise ImportError('no such thing')", "plugin-failed"), (HOOKS_ONLY, "unknown-component")]
)
def test_a_plugin_without_components_is_refused(code, problem, tmp_path):
    done = check("odd", install(tmp_path, "odd", code))
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"[{problem}]" in done.stderr
    assert "Traceback" not in done.stderr


def test_invalid_arguments_of_test_plugin_are_refused(capsys, monkeypatch):
    assert main(["test-plugin", "core-block"]) == 2
    assert 'did you mean "core-blocks"?' in capsys.readouterr().err
    assert main(["test-plugin", "core-blocks", "--expect", "nonsense", "--expect", "block:a-b= "]) == 2
    assert capsys.readouterr().err.count("[usage]") == 2
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["test-plugin", "core-blocks"]) == 2
    assert "[missing-dependency]" in capsys.readouterr().err
