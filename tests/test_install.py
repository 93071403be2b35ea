"""`dither search`, `install` and `uninstall`; and the index that dither ships, of the example plugins."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dither.registry.plugins.install_command import install_command

ROOT = Path(__file__).parents[1]
INDEX = [sys.executable, str(ROOT / "tools" / "index.py")]


@pytest.fixture
def commands(monkeypatch):
    """The commands that would have been run."""
    run = []

    def record(command, check, stdout=None):
        run.append(command[1:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("dither.engine.cli.install.subprocess.run", record)
    return run


def test_search_and_list_show_the_examples(cli, install):
    assert "dither-digits" in cli("search", "handwritten").out
    assert "no plugin" in cli("search", "no-such-word").out
    assert "dither-dilated" in cli("list", "sampler", "--available").out
    assert "dither-digits" not in cli("list", "sampler", "--available").out
    assert "dither-digits" not in cli("list", "--available", "--filter", "dil*").out
    install("dither-dilated", "", entry="dilated")
    available = cli("list", "--available").out
    assert "dither-digits" in available
    assert "dither-dilated" not in available


def test_the_index_is_that_of_the_examples():
    subprocess.run([*INDEX, "--check"], check=True)


@pytest.mark.parametrize("target", ["digits", "dither-digits", "Dither_Digits"])
def test_a_plugin_of_the_index_is_installed_by_its_distribution(target, cli, commands):
    assert "-- dither-digits" in cli("install", target, "--yes").out
    pip, plugins = commands
    assert pip == ["-Pm", "pip", "install", "--upgrade", "--", "dither-digits"]
    assert plugins[0] == "-Pc"


def test_a_wheel_or_a_project_is_installed_by_its_absolute_path(
    cli, commands, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("--wild-1.0-py3-none-any.whl").touch()
    Path("pyproject.toml").touch()
    cli("install", "--yes", "--", "--wild-1.0-py3-none-any.whl")
    cli("install", "--yes", ".")
    paths = [command[-1] for command in commands if "pip" in command]
    assert paths == [str(tmp_path / "--wild-1.0-py3-none-any.whl"), str(tmp_path)]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("dither-digit", "unknown-plugin"),
        ("--index-url=x", "invalid-value"),
        ("-r", "invalid-value"),
        ("git+https://x/y", "invalid-value"),
        ("x @ https://y", "invalid-value"),
        ("requests\n", "invalid-value"),
        ("./no-such-folder", "invalid-value"),
        ("missing.whl", "unknown-plugin"),
    ],
)
def test_other_targets_are_refused(target, code, cli, commands):
    assert f"[{code}]" in cli("install", "--yes", "--", target, code=2).err
    if code == "invalid-value":
        cli("install", "--yes", "--any", "--", target, code=2)
    assert not commands


def test_any_takes_a_name_and_nothing_runs_unasked(cli, commands, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert "[usage]" in cli("install", "--any", "requests", code=2).err
    assert not commands
    cli("install", "--any", "--yes", "requests")
    assert commands[0][-1] == "requests"


def test_uv_installs_where_pip_is_missing(cli, commands, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "[missing-dependency]" in cli("install", "digits", "--yes", code=2).err
    monkeypatch.setattr("shutil.which", lambda name: "/bin/uv")
    cli("install", "digits", "--yes")
    assert commands[0] == [
        "pip",
        "install",
        "--python",
        sys.executable,
        "--",
        "dither-digits",
    ]


def test_uninstall_takes_plugins_that_nothing_requires(
    cli, commands, install, tmp_path
):
    install("fixture-wave", "", entry="wave")
    install("other", "")
    (metadata,) = tmp_path.glob("site/*other*/METADATA")
    with metadata.open("a") as file:
        file.write("Requires-Dist: fixture-wave; extra == 'waves'\n")
    cli("uninstall", "wave", "--yes")
    assert commands[0] == ["-Pm", "pip", "uninstall", "--yes", "--", "fixture-wave"]
    commands.clear()
    assert "[unknown-plugin]" in cli("uninstall", "pydantic", "--yes", code=2).err
    assert (
        "dither-diffusion requires" in cli("uninstall", "losses", "--yes", code=2).err
    )
    assert not commands


def test_the_command_of_an_extra_is_found_without_imports(monkeypatch):
    """A search for pip would replace an imported distutils, of which setuptools warns."""
    monkeypatch.setitem(sys.modules, "distutils", SimpleNamespace())
    assert "umap-learn" in install_command("dither-tasks", "umap")
