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

from dither.engine import scaffold
from dither.engine.cli import main
from dither.engine.scaffold import Names, render
from dither.engine.scaffold.package import check_names
from dither.registry import Refused
from dither.registry.kinds import KINDS
from dither.registry.plugins.manager import load_plugins
from dither.testing.conformance import cases

EXAMPLES = Path(scaffold.__file__).parent / "examples"


def new(*arguments: str) -> int:
    return main(["new", "plugin", *arguments])


def test_every_kind_has_an_example():
    assert {path.stem.replace("_", "-") for path in EXAMPLES.glob("*.py")} == set(KINDS)
    script = (Path(__file__).parent / "scaffold/try_all.py").read_text()
    assert all(f'"{kind}"' in script for kind in KINDS), "CI tries every kind"


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_validates_and_passes_the_conformance_kit(kind, tmp_path, monkeypatch):
    """The package as `dither new` writes it, imported from its folder."""
    names = Names(f"tidy-{kind}", kind)
    assert new(names.name, "--kind", kind, "--into", str(tmp_path)) == 0
    folder, file = tmp_path / names.distribution, tmp_path / "mine.py"
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


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_imports_no_torch_at_the_top_and_declares_its_dependencies(kind):
    texts = render(Names("tidy-trial", kind))
    for path, text in texts.items():
        assert "$" not in text, path
        assert "example" not in text.lower().replace("tidy-trial-example", ""), path
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["entry-points"]["dither.plugins"] == {"tidy-trial": "dither_tidy_trial"}
    tree = ast.parse(texts["dither_tidy_trial/__init__.py"])
    assert not any("torch" in ast.unparse(node) for node in tree.body if isinstance(node, ast.ImportFrom | ast.Import))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    needed = " ".join(project["dependencies"])
    for module in {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names) - {"dither"}:
        assert module in needed
    assert ("dither-tasks" in needed) == any(module.startswith("dither.tasks") for module in modules)


def test_a_single_file_is_a_plugin(tmp_path, capsys):
    assert new("tidy-trial", "--kind", "loss", "--into", str(tmp_path), "--single-file") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tidy-trial.py"]
    assert main(["describe", "loss", "tidy-trial", "-p", str(tmp_path / "tidy-trial.py")]) == 0
    assert new("tidy-trial", "--kind", "loss", "--into", str(tmp_path), "--single-file") == 2
    assert "[file-exists]" in capsys.readouterr().err


def test_the_next_commands_are_printed(tmp_path, capsys):
    assert new("tidy-trial", "--kind", "loss", "--into", str(tmp_path)) == 0
    text = capsys.readouterr().out
    for word in ("dither-tidy-trial", "pip install -e '.[test]'", "pytest", "dither run experiment.toml"):
        assert word in text


@pytest.mark.parametrize(
    ("name", "kind", "spec"),
    [
        ("wavelet", "block", "WaveletBlock"),
        ("wavelet-block", "block", "WaveletBlock"),
        ("block", "block", "BlockBlock"),  # `Block` alone could clash with an import
        ("a1-b2", "block", "A1B2Block"),
        ("rate-lr-schedule", "lr-schedule", "RateLrSchedule"),
    ],
)
def test_class_names(name, kind, spec):
    assert Names(name, kind).spec == spec


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("MyBlock", "invalid-value", "my-block"),
        ("my_block", "invalid-value", "my-block"),
        ("my block", "invalid-value", "my-block"),
        ("3d", "invalid-value", None),
        ("-", "invalid-value", None),
        ("a--b", "invalid-value", "a-b"),
        ("../up", "invalid-value", "up"),
        ("ümlaut", "invalid-value", None),
        ("class", "invalid-value", None),
        ("none", "invalid-value", None),
        ("match", "invalid-value", None),
        ("dither-wavelet", "invalid-value", "wavelet"),
        ("a" * 41, "invalid-value", None),
        ("core-blocks", "duplicate", None),
        ("adaln-zero", "duplicate", None),
        ("registry", "duplicate", None),
    ],
)
def test_invalid_names_are_refused(name, code, hint, tmp_path, capsys):
    assert new("--kind", "block", "--into", str(tmp_path), "--", name) == 2
    message = capsys.readouterr().err
    assert f"[{code}]" in message
    assert (f'try "{hint}"' in message) if hint else ('try "' not in message)
    assert not list(tmp_path.rglob("*"))


def test_the_name_of_a_failed_plugin_is_taken():
    with pytest.raises(Refused) as info:
        check_names(Names("broken", "block"), {"broken"}, ())
    assert info.value.codes == ["duplicate"]


@pytest.mark.parametrize(
    ("kind", "close"), [("lr_schedule", "lr-schedule"), ("blocks", "block"), ("Sampler", "sampler"), ("zzz", "")]
)
def test_an_unknown_kind_is_refused_with_the_nearest(kind, close, tmp_path, capsys):
    assert new("tidy-trial", "--kind", kind, "--into", str(tmp_path)) == 2
    message = capsys.readouterr().err
    assert "[unknown-value]" in message
    assert (f'did you mean "{close}"?' in message) == bool(close)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("existing", ["folder", "file", "dangling link"])
def test_nothing_is_overwritten(existing, tmp_path, capsys):
    target = tmp_path / "dither-tidy-trial"
    if existing == "folder":
        target.mkdir()
    elif existing == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    assert new("tidy-trial", "--kind", "block", "--into", str(tmp_path)) == 2
    assert "[file-exists]" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == [target.name]
    assert existing != "file" or target.read_text() == "mine"


def test_a_missing_folder_is_refused(tmp_path, capsys):
    assert new("tidy-trial", "--kind", "block", "--into", str(tmp_path / "no")) == 2
    assert "[file-not-found]" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


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
