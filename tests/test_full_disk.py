"""Commands end with 5 and `disk-full` where a file cannot grow, and leave nothing half written."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dither.engine.cli import main

resource = pytest.importorskip("resource")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes: the error is EFBIG in place of ENOSPC."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="module")
def mirrored(
    tmp_path_factory: pytest.TempPathFactory, text_experiment: Callable[..., str]
) -> Path:
    """A run on a text, in a mirror of a local folder."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "a.txt").write_text("the cat sat on the mat. " * 60)
    text = text_experiment(str(folder / "a.txt"), tokenizer="chars")
    text += f'\n[run]\nmirror = "file://{folder}/mirror"\n'
    (folder / "exp.toml").write_text(text)
    words = [str(folder / "exp.toml"), "--runs", str(folder / "runs")]
    assert main(["run", *words]) == 0
    (run,) = (folder / "mirror").glob("*-*")
    return run


@pytest.mark.parametrize(
    "words",
    [
        "export RUN --out OUT",
        "export RUN --out OUT --program",
        "report RUN --out OUT",
        "certify RUN --count 2",
        "sample RUN --count 1 --out OUT",
        "sample MIRROR --count 1",
        "prepare text TEXT --tokenizer bytes --to OUT",
        "prepare text TEXT --tokenizer bytes --to OUT --shard 1/1",
        "schema --of experiment --out OUT",
        "new plugin abc --kind sampler",
        "new experiment OUT.toml --from bubble_diagram/quick",
        "sweep EXPERIMENT --sweep seed=[1,2] --runs OUT",
        "run EXPERIMENT --runs OUT",
    ],
)
def test_a_full_disk_ends_a_command_with_5(
    words: str,
    mirrored: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(mirrored, run)
    names = {
        "RUN": str(run),
        "MIRROR": f"file://{mirrored}",
        "TEXT": str(mirrored.parent.parent / "a.txt"),
        "EXPERIMENT": str(mirrored.parent.parent / "exp.toml"),
    }
    arguments = []
    for word in words.split():
        argument = names.get(word, word)
        arguments.append(argument.replace("OUT", str(tmp_path / "out")))
    capsys.readouterr()
    with files_of_at_most(20):
        code = main([*arguments, "--json"])
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == events[-1]["exit_code"] == 5
    assert [problem["code"] for problem in events[-1]["problems"]] == ["disk-full"]
    left = [path.name for path in tmp_path.rglob(".tmp-*")]
    assert left == []
