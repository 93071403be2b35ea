"""What the pages say is done here as they say it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.experiment import load_experiment
from dither.registry.plugins import load_plugins

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_plugin_of_the_readme_works_and_has_fifteen_lines(tmp_path):
    (code,) = blocks(ROOT / "README.md", "python")
    (toml,) = blocks(ROOT / "README.md", "toml")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    name = re.search(r'plugins = \["\./(\w+\.py)"\]', toml)
    assert name
    (tmp_path / name[1]).write_text(code)
    base = re.search(r'extends = "(.+?)"', toml)
    assert base
    (tmp_path / "mine.toml").write_text(toml.replace(base[1], str(ROOT / base[1])))
    loaded = load_experiment(tmp_path / "mine.toml")
    schedule = loaded.experiment.process.schedule
    assert type(schedule).__module__.startswith("dither.registry.files.")
    import torch

    t = torch.linspace(0.01, 0.99, 9, dtype=torch.float64, requires_grad=True)
    noise = schedule.build()(t)
    (slope,) = torch.autograd.grad(noise.sigma.sum(), t)
    torch.testing.assert_close(noise.rate, slope)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_experiment_of_the_page_is_valid(tmp_path):
    (toml,) = blocks(ROOT / "docs/experiments.md", "toml")
    (tmp_path / "my.toml").write_text(toml)
    load_experiment(tmp_path / "my.toml")


def test_the_reference_of_components_is_up_to_date(capsys):
    ours = ["-p", "core-blocks", "-p", "embeddings", "-p", "engine", "-p", "losses", "-p", "processes", "-p", "tasks"]
    assert main(["list", "--markdown", *ours]) == 0
    assert capsys.readouterr().out == (ROOT / "docs/components.md").read_text(), (
        "dither list --markdown > docs/components.md"
    )


def test_every_hook_is_documented():
    from dither.registry.hookspecs import Hooks

    page = (ROOT / "docs/plugins.md").read_text()
    for hook in (name for name in vars(Hooks) if not name.startswith("_")):
        assert f"`{hook}(" in page, hook


def test_every_kind_is_documented():
    from dither.registry.kinds import KINDS

    page = (ROOT / "docs/plugins.md").read_text()
    for kind in KINDS:
        assert f"| `{kind}` |" in page, kind


def test_the_commands_of_the_pages_exist():
    verbs = {"run", "validate", "resolve", "list", "describe", "plugins", "prepare", "sample", "evaluate"}
    for page in PAGES:
        for line in re.findall(r"^    (?:python -m experiments\.run|dither) (.*)$", page.read_text(), re.MULTILINE):
            word = line.split()[0]
            assert word in verbs or word.endswith(".toml") or word == "--resume", line
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", "--help"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    for verb in verbs:
        assert verb in done.stdout


def test_the_example_plugin_is_the_package_that_the_page_shows():
    """The CI installs it into a fresh environment, runs its tests and its experiment; here its file is run as it is."""
    folder = ROOT / "docs/examples/dither-sigmoid"
    plugins = load_plugins(files=[folder / "dither_sigmoid.py"])
    assert "sigmoid" in plugins.catalog.names("schedule")
    page = (ROOT / "docs/plugins.md").read_text()
    for shown in blocks(ROOT / "docs/plugins.md", "toml"):
        if "entry-points" in shown:
            assert shown.strip() in (folder / "pyproject.toml").read_text()
            break
    else:
        raise AssertionError("the page shows no entry point")
    assert "docs/examples/dither-sigmoid" in page or "examples/dither-sigmoid" in page
