"""explain and diff: where values came from, and what differs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.runs.diff import compare, read_side

EXPERIMENTS = Path(__file__).parents[1] / "experiments/bubble_diagram"


@pytest.fixture
def here(tmp_path, monkeypatch):
    for path in EXPERIMENTS.glob("*.toml"):
        shutil.copyfile(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(capsys) -> dict[str, tuple[str, str]]:
    """Return value and story by key."""
    split = (line.partition(" = ") for line in capsys.readouterr().out.splitlines())
    return {key.strip(): tuple(part.strip() for part in rest.split("  ", 1)) for key, _, rest in split}


def place(name: str, text: str, part: str) -> str:
    """Return file:line:column of a text in a file."""
    for number, line in enumerate(Path(name).read_text().splitlines(), 1):
        if text in line:
            return f"{name}:{number}:{line.index(part, line.index(text)) + 1}"
    raise AssertionError(text)


def test_explain_shows_origins_and_overridden_values(here, capsys):
    changes = ["--set", "train.optimizer.lr=1e-5", "--unset", "model.affine", "--set", "sampler=first-hitting"]
    assert main(["explain", "seed_base.toml", *changes]) == 0
    found = lines(capsys)
    base, small = place("seed_base.toml", "lr = ", "5e-4"), place("seed_small.toml", "lr = ", "1.5e-3")
    assert found["train.optimizer.lr"] == ("1e-05", f"from --set train.optimizer.lr=1e-5, over {base}, {small}")
    assert found["model.width"][1] == "from {}, over {}".format(
        place("seed_base.toml", "width = ", "256"), place("seed_small.toml", "width = ", "128")
    )
    affine = place("seed_small.toml", "affine = true", "true")
    assert found["model.affine"] == ("false", f"default of denoiser after --unset model.affine, over {affine}")
    assert found["sampler.use"][0] == '"processes/first-hitting@1"'
    assert found["sampler.use"][1].startswith("from --set sampler=first-hitting")
    assert found["model.head.use"] == (
        '"embeddings/tokens@1"',
        "from " + place("seed_small.toml", "head = ", '"tokens"'),
    )
    assert found["model.head.zero"][1] == "default of tokens"
    assert found["train.clip"][1] == "default of [train]"
    assert found["train.threads"] == ("(none)", "default of [train]")
    assert found["seed"][1] == "default of the experiment"
    assert found["evaluate.every"][1] == "default of [evaluate]"


def test_explain_one_key_or_table(here, capsys):
    assert main(["explain", "quick.toml", "model.block"]) == 0
    found = lines(capsys)
    assert "model.block.heads" in found
    assert all(key.startswith("model.block.") for key in found)
    assert main(["explain", "quick.toml", "train.steps"]) == 0
    assert lines(capsys) == {"train.steps": ("1500", "from " + place("quick.toml", "steps = 1500", "1500"))}
    for wrong, right in {
        "model.bolck": "model.block",
        "train.stpes": "train.steps",
        "heads": "model.block.heads",
    }.items():
        assert main(["explain", "quick.toml", wrong]) == 2
        assert f'did you mean "{right}"?' in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--json"], ["--format", "json"]])
def test_explain_as_json(here, capsys, flag):
    assert main(["explain", "quick.toml", "train", "--set", "train.steps=3", *flag]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    steps = rows["train.steps"]
    assert (steps["value"], steps["from"]["file"], steps["default_of"]) == (3, "--set train.steps=3", None)
    assert steps["over"][0]["file"] == "quick.toml"
    assert (rows["train.keep"]["from"], rows["train.keep"]["default_of"]) == (None, "[train]")


def test_explain_refuses_what_validate_refuses(here, capsys):
    assert main(["explain", "quick.toml", "--set", "train.stpes=3"]) == 2
    assert 'did you mean "steps"' in capsys.readouterr().err


def test_explain_an_incompatible_experiment(here, capsys):
    assert main(["explain", "quick.toml", "model.block.heads", "--set", "model.block.heads=7"]) == 0
    assert lines(capsys)["model.block.heads"][0] == "7"


def test_diff_of_two_files(here, capsys):
    assert main(["diff", "quick.toml", "seed_base.toml"]) == 0
    text = capsys.readouterr().out
    assert "sampler" in text.partition("options")[0]
    assert "processes/first-hitting@1 -> processes/ancestral@1" in text
    assert "model.width                 64 -> 256" in text
    assert "sampler.steps               (none) -> 100" in text
    assert "option types" not in text
    assert main(["diff", "quick.toml", "quick.toml"]) == 0
    assert "no difference" in capsys.readouterr().out


def run_directory(folder: Path, experiment: str, **manifest) -> Path:
    folder.mkdir()
    assert main(["resolve", experiment]) == 0
    plugins = {"core-blocks": {"from": "dither-core-blocks", "version": "0.1.0", "sha256": ""}}
    content = {
        "environment": {"python": "3.11.7", "torch": "2.13.0", "threads": 1},
        "git": {"commit": "a" * 40, "clean": True},
        "plugins": plugins,
        "parts": {"model": {"part": "core-blocks/denoiser@1", "options": "sha256:1"}},
    }
    (folder / "manifest.json").write_text(json.dumps(content | manifest))
    return folder


def test_diff_of_two_runs(here, capsys):
    one = run_directory(here / "one", "quick.toml")
    (one / "resolved.toml").write_text(capsys.readouterr().out)
    other = run_directory(
        here / "other",
        "quick.toml",
        environment={"python": "3.12.1", "torch": "2.13.0", "threads": 1},
        git={"commit": "b" * 40, "clean": False},
        plugins={"core-blocks": {"version": "0.2.0", "sha256": ""}, "mine": {"version": "", "sha256": "f00"}},
        parts={"model": {"part": "core-blocks/denoiser@1", "options": "sha256:2"}},
    )
    (other / "resolved.toml").write_text(capsys.readouterr().out.replace("steps = 1500", "steps = 3"))
    assert main(["diff", "one", "other", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["options"] == {"train.steps": [1500, 3]}
    assert found["parts"] == {"model option types": ["sha256:1", "sha256:2"]}
    assert found["plugins"]["core-blocks.version"] == ["0.1.0", "0.2.0"]
    assert found["plugins"]["mine.sha256"] == [None, "f00"]
    assert found["environment"] == {"python": ["3.11.7", "3.12.1"]}
    assert found["git"] == {"commit": ["a" * 40, "b" * 40], "clean": [True, False]}
    mixed = compare(read_side(one), read_side(here / "quick.toml"))
    assert mixed["options"] == {}
    assert "environment" not in mixed
    assert "git" not in mixed


def test_diff_refuses_other_folders(here, capsys):
    (here / "folder").mkdir()
    for wrong, message in {
        "folder": "[not-a-run]",
        "nowhere.toml": "nowhere.toml",
        ".": "[not-a-run]",
    }.items():
        assert main(["diff", wrong, "quick.toml"]) == 2
        assert message in capsys.readouterr().err
    (here / "folder/resolved.toml").write_text("name = ")
    (here / "folder/manifest.json").write_text("{")
    assert main(["diff", "folder", "quick.toml"]) == 2


@pytest.mark.parametrize("arguments", [["explain", "quick.toml"], ["diff", "quick.toml", "seed_base.toml"]])
def test_explain_and_diff_import_no_torch(here, arguments):
    code = (
        f"import sys; from dither.engine.cli import main; code = main({arguments!r}); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
