"""What `dither new plugin` and `dither test-plugin` do and refuse. The CI installs and runs what is written."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dither.engine import scaffold
from dither.engine.cli import main
from dither.engine.scaffold import Names, render
from dither.engine.scaffold.package import check_names
from dither.registry import Refused
from dither.registry.kinds import KINDS
from dither.registry.plugins.manager import load_plugins

SCAFFOLD = Path(scaffold.__file__).parent


def new(*arguments: str) -> int:
    return main(["new", "plugin", *arguments])


@pytest.fixture
def files_of(tmp_path):
    """Everything in a folder: path -> text."""
    return lambda: {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}


def test_there_is_a_template_for_every_kind():
    folders = {path.name for path in (SCAFFOLD / "templates").iterdir()} - {"package"}
    assert folders == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_whole(kind):
    names = Names("tidy-trial", kind)
    texts = render(names)
    assert set(texts) >= {"pyproject.toml", "README.md", ".gitignore", "experiment.toml", "tests/test_conformance.py"}
    for path, text in texts.items():
        assert "$" not in text, path
        if path.endswith(".py"):
            ast.parse(text)
        if path.endswith(".toml"):
            tomllib.loads(text)
    project = tomllib.loads(texts["pyproject.toml"])
    assert project["project"]["entry-points"]["dither.plugins"] == {"tidy-trial": "dither_tidy_trial.specs"}
    assert '"tidy-trial"' in texts["experiment.toml"], "the experiment uses the part"
    menu = texts["dither_tidy_trial/specs.py"]
    top = {alias for node in ast.parse(menu).body if isinstance(node, ast.ImportFrom | ast.Import) for alias in [node]}
    assert not any("torch" in ast.unparse(node) for node in top), "the menu imports torch"
    imported = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else node.names[0].name.split(".")[0]
        for path, text in texts.items()
        if path.startswith("dither_tidy_trial/") and path.endswith(".py")
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.ImportFrom) and not node.level) or isinstance(node, ast.Import)
    } - set(sys.stdlib_module_names)
    needed = " ".join(project["project"]["dependencies"])
    for module in imported - {"dither"}:
        assert module in needed, f"{module} is imported, and not among the dependencies"
    assert ("dither-tasks" in needed) == ("dither.tasks" in "".join(texts.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_loads_and_validates(kind, tmp_path, monkeypatch):
    """The package, seen from a path instead of an installation."""
    names = Names(f"tidy-{kind}", kind)
    assert new(names.name, "--kind", kind, "--into", str(tmp_path)) == 0
    folder, file = tmp_path / names.distribution, tmp_path / "mine.py"
    file.write_text(f"from {names.module}.specs import register_components\n")
    monkeypatch.syspath_prepend(str(folder))
    assert main(["validate", str(folder / "experiment.toml"), "-p", str(file)]) == 0
    assert main(["validate", str(folder / "experiment.toml")]) == 2, "the experiment does without the part"
    part = load_plugins(files=[file]).catalog.find(kind, names.name)
    assert part.plugin == "mine"
    assert part.spec.__name__ == names.part


def test_it_says_what_to_do_next(tmp_path, capsys):
    assert new("tidy-trial", "--kind", "loss", "--into", str(tmp_path)) == 0
    said = capsys.readouterr().out
    for word in ("dither-tidy-trial", "pip install -e '.[test]'", "pytest", "dither run experiment.toml"):
        assert word in said


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("wavelet", "WaveletBlock"),
        ("wavelet-block", "WaveletBlock"),
        ("block", "BlockBlock"),  # `Block` alone could be the name of something that a template imports
        ("a1-b2", "A1B2Block"),
    ],
)
def test_names_follow(name, part):
    assert Names(name, "block").part == part
    assert Names("rate-lr-schedule", "lr-schedule").part == "RateLrSchedule"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("MyBlock", "no name for a plugin", "write my-block"),
        ("my_block", "no name for a plugin", "write my-block"),
        ("my block", "no name for a plugin", "write my-block"),
        ("3d", "no name for a plugin", ""),
        ("-", "no name for a plugin", ""),
        ("a--b", "no name for a plugin", "write a-b"),
        ("../up", "no name for a plugin", "write up"),
        ("ümlaut", "no name for a plugin", ""),
        ("class", "keyword", ""),
        ("none", "keyword", ""),
        ("match", "keyword", ""),
        ("dither-wavelet", "leave the prefix out", "write wavelet"),
        ("a" * 41, "at most 40 letters", ""),
        ("core-blocks", 'a plugin named "core-blocks" is installed already', "dither plugins"),
        ("adaln-zero", 'a block named "adaln-zero" is registered already', "dither describe block adaln-zero"),
        ("registry", 'a distribution named "dither-registry" is installed', ""),
    ],
)
def test_bad_names_are_refused(name, message, hint, tmp_path, capsys, files_of):
    assert new("--kind", "block", "--into", str(tmp_path), "--", name) == 2
    said = capsys.readouterr().err
    assert message in said
    assert hint in said
    assert not list(tmp_path.rglob("*"))


def test_a_failed_plugin_has_its_name_taken_too():
    with pytest.raises(Refused, match="installed already"):
        check_names(Names("broken", "block"), {"broken"}, ())


@pytest.mark.parametrize(
    ("kind", "close"), [("lr_schedule", "lr-schedule"), ("blocks", "block"), ("Sampler", "sampler"), ("zzz", "")]
)
def test_a_kind_that_is_none_gets_the_nearest(kind, close, tmp_path, capsys):
    assert new("tidy-trial", "--kind", kind, "--into", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert f'"{kind}" is no kind' in said
    assert (f'did you mean "{close}"?' in said) == bool(close)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["folder", "file", "dangling link"])
def test_nothing_is_overwritten(what, tmp_path, capsys, files_of):
    target = tmp_path / "dither-tidy-trial"
    if what == "folder":
        target.mkdir()
    elif what == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    before = files_of()
    assert new("tidy-trial", "--kind", "block", "--into", str(tmp_path)) == 2
    assert "exists already, and nothing is overwritten" in capsys.readouterr().err
    assert files_of() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_must_be_there(tmp_path, capsys):
    assert new("tidy-trial", "--kind", "block", "--into", str(tmp_path / "no")) == 2
    assert "is no folder" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_half_a_package_never_stays(error, tmp_path, capsys, monkeypatch):
    written = []
    whole = Path.write_text

    def fails_at_the_fourth(path, *arguments, **options):
        if "dither-tidy" in str(path):
            written.append(path)
            if len(written) == 4:
                raise error
        return whole(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", fails_at_the_fourth)
    assert new("tidy-trial", "--kind", "block", "--into", str(tmp_path)) in (2, 130)
    assert len(written) == 4
    assert not list(tmp_path.iterdir())
    if isinstance(error, OSError):
        assert "cannot be written: No space left on device" in capsys.readouterr().err


def test_writing_imports_no_torch(tmp_path):
    code = (
        "import sys; from dither.engine.cli import main; "
        f"code = main(['new', 'plugin', 'tidy-trial', '--kind', 'block', '--into', {str(tmp_path)!r}]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def install(folder: Path, name: str, code: str) -> dict[str, str]:
    """Put a one-module plugin and its metadata into a folder; return the environment in which Python sees it."""
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
    """Up the hill."""
    name: ClassVar[str] = "wrong"
    def build(self, steps):
        return lambda step: -1.0

@hookimpl
def register_components():
    return [Wrong]
'''


def check(name: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from dither.engine.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, "test-plugin", name, *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_kit_runs_over_an_installed_plugin(tmp_path):
    """One that is broken fails, and passes where that is on purpose, with its reason. The tutorial has a sound one."""
    environment = install(tmp_path, "wrong", WRONG)
    done = check("wrong", environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "lr-schedule:wrong-factor_is_sound" in done.stdout
    assert "checks ran over 1 parts" in done.stdout
    done = check("wrong", environment, "--expect", "lr-schedule:wrong-factor_is_sound=it climbs on purpose")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it climbs on purpose" in done.stdout
    done = check("wrong", environment, "--expect", "lr-schedule:wrong-factor_is_sond=why")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "factor_is_sound" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ImportError('no such thing')", "cannot be tested: failed, ImportError: no such thing"),
        (
            "from dither.registry import hookimpl\n@hookimpl\ndef after_run(run, summary): pass\n",
            "offers no parts, only hooks",
        ),
    ],
)
def test_a_plugin_without_parts_is_refused(code, message, tmp_path):
    done = check("odd", install(tmp_path, "odd", code))
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_be_tested_is_refused(capsys, monkeypatch):
    assert main(["test-plugin", "core-block"]) == 2
    assert 'did you mean "core-blocks"?' in capsys.readouterr().err
    assert main(["test-plugin", "core-blocks", "--expect", "nonsense", "--expect", "block:a-b= "]) == 2
    said = capsys.readouterr().err
    assert said.count("names no check with a reason") == 2
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["test-plugin", "core-blocks"]) == 2
    assert "pip install dither-testing" in capsys.readouterr().err


def test_the_lists_know_every_kind(capsys):
    """The kinds that CI writes are all there are."""
    script = (Path(__file__).parent / "scaffold/try_all.py").read_text()
    kinds = next(
        ast.literal_eval(node.value)
        for node in ast.parse(script).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KINDS"
    )
    assert sorted(kinds) == sorted(KINDS)
    assert main(["list", "--json"]) == 0
    assert {row["kind"] for row in json.loads(capsys.readouterr().out)} == set(KINDS)
