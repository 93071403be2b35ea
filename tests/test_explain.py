"""explain and diff: where values came from, and what differs."""

import json
import shutil
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.runs.list_runs import compare, read_side

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
    numbered = enumerate(Path(name).read_text().splitlines(), 1)
    number, line = next((number, line) for number, line in numbered if text in line)
    return f"{name}:{number}:{line.index(part, line.index(text)) + 1}"


def test_explain_shows_origins_and_overridden_values(here, capsys):
    changes = ["--set", "train.optimizer.lr=1e-5", "--unset", "model.affine", "--set", "sampler=first-hitting"]
    assert main(["explain", "seed_base.toml", *changes]) == 0
    found = lines(capsys)
    base, small = place("seed_base.toml", "lr = ", "5e-4"), place("seed_small.toml", "lr = ", "1.5e-3")
    assert found["train.optimizer.lr"] == ("1e-05", f"from --set train.optimizer.lr=1e-5, over {base}, {small}")
    affine = place("seed_small.toml", "affine = true", "true")
    assert found["model.affine"] == ("false", f"default of denoiser after --unset model.affine, over {affine}")
    assert found["sampler.use"][0] == '"processes/first-hitting@1"'
    assert found["sampler.use"][1].startswith("from --set sampler=first-hitting")
    head = place("seed_small.toml", "head = ", '"tokens"')
    assert found["model.head.use"] == ('"embeddings/tokens@1"', f"from {head}")
    assert found["model.head.zero"][1] == "default of tokens"
    assert found["train.threads"] == ("(none)", "default of [train]")
    assert found["seed"][1] == "default of the experiment"


def test_explain_one_key_or_table(here, capsys):
    assert main(["explain", "quick.toml", "model.block"]) == 0
    found = lines(capsys)
    assert "model.block.heads" in found
    assert all(key.startswith("model.block.") for key in found)
    assert main(["explain", "quick.toml", "train.steps"]) == 0
    assert lines(capsys) == {"train.steps": ("1500", "from " + place("quick.toml", "steps = 1500", "1500"))}
    suggestions = {"model.bolck": "model.block", "train.stpes": "train.steps", "heads": "model.block.heads"}
    for wrong, right in suggestions.items():
        assert main(["explain", "quick.toml", wrong]) == 2
        assert f'did you mean "{right}"?' in capsys.readouterr().err


def test_explain_as_json(here, capsys):
    assert main(["explain", "quick.toml", "train", "--set", "train.steps=3", "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    steps = rows["train.steps"]
    assert (steps["value"], steps["from"]["file"], steps["default_of"]) == (3, "--set train.steps=3", None)
    assert steps["over"][0]["file"] == "quick.toml"
    assert (rows["train.keep"]["from"], rows["train.keep"]["default_of"]) == (None, "[train]")
    for words in (["train.steps=7"], ["--train.steps", "7"], ["--train.steps=7"]):
        assert main(["explain", "quick.toml", "train.steps", *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["value"] == 7
    assert main(["explain", "quick.toml", "--set", "train.stpes=3"]) == 2
    assert "[unknown-key]" in capsys.readouterr().err
    assert main(["explain", "quick.toml", "model.block.heads", "--set", "model.block.heads=7"]) == 0, "a misfit"
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


def test_diff_of_two_runs(here, capsys):
    for name, one in {"one": True, "other": False}.items():
        (here / name).mkdir()
        manifest = {
            "environment": {"python": "3.11.7" if one else "3.12.1", "torch": "2.13.0", "threads": 1},
            "git": {"commit": ("a" if one else "b") * 40, "clean": one},
            "plugins": {"core-blocks": {"version": "0.1.0" if one else "0.2.0", "sha256": ""}},
            "parts": {"model": {"part": "core-blocks/denoiser@1", "options": f"sha256:{name}"}},
        }
        manifest["plugins"] |= {} if one else {"mine": {"version": "", "sha256": "f00"}}
        (here / name / "manifest.json").write_text(json.dumps(manifest))
        assert main(["resolve", "quick.toml", *([] if one else ["--set", "train.steps=3"])]) == 0
        (here / name / "resolved.toml").write_text(capsys.readouterr().out)
    assert main(["diff", "one", "other", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["options"] == {"train.steps": [1500, 3]}
    assert found["parts"] == {"model option types": ["sha256:one", "sha256:other"]}
    assert found["plugins"]["core-blocks.version"] == ["0.1.0", "0.2.0"]
    assert found["plugins"]["mine.sha256"] == [None, "f00"]
    assert found["environment"] == {"python": ["3.11.7", "3.12.1"]}
    assert found["git"] == {"commit": ["a" * 40, "b" * 40], "clean": [True, False]}
    mixed = compare(read_side(here / "one"), read_side(here / "quick.toml"))
    assert mixed["options"] == {}
    assert not {"environment", "git"} & set(mixed)


def test_diff_refuses_other_folders(here, capsys):
    (here / "folder").mkdir()
    for wrong, message in {"folder": "[not-a-run]", "nowhere.toml": "nowhere.toml", ".": "[not-a-run]"}.items():
        assert main(["diff", wrong, "quick.toml"]) == 2
        assert message in capsys.readouterr().err
