"""Samples for other programs."""

import re
from pathlib import Path

import pytest

from dither.engine.runs.evaluate_run import sample_run
from dither.engine.runs.launch import run
from dither.engine.sampling.samples import SHOWN, check_forms, export_samples, make_samples
from dither.engine.training.diffusion import Diffusion
from dither.registry.config.errors import Refused


@pytest.fixture
def offers(load, monkeypatch):
    """The toy task with two export formats, and its calls."""
    loaded, calls = load(), []
    monkeypatch.setattr(type(loaded.experiment.task), "exports", {"lines": "one a line", "files": "one a file"})

    def export(self, samples, like, form, folder):
        calls.append((form, folder, len(samples), len(like.valid)))
        count = {"lines": 1, "files": len(samples)}[form]
        folder.mkdir()
        files = [folder / f"{number}.txt" for number in range(count)]
        for file in files:
            file.write_text("word\n")
        return files, [f"sample {number} is odd" for number in range(count)]

    monkeypatch.setattr(type(loaded.experiment.task.build()), "export", export, raising=False)
    return loaded, calls


def test_each_format_has_a_folder(offers, tmp_path):
    system = Diffusion.build(offers[0].experiment)
    lines = list(export_samples(system, make_samples(system, 9, 0), ["files", "lines", "files"], tmp_path))
    assert offers[1] == [("files", tmp_path / "files", 9, 9), ("lines", tmp_path / "lines", 1 * 9, 9)]
    assert lines == [
        f"{tmp_path / 'files'}: 9 files of files",
        *(f"files: sample {number} is odd" for number in range(SHOWN)),
        "files: and 4 more",
        str(tmp_path / "lines" / "0.txt"),
        "lines: sample 0 is odd",
    ]


def test_unknown_formats_are_refused_together(offers):
    check_forms(offers[0].experiment.task, ["lines", "files"])
    with pytest.raises(Refused) as caught:
        check_forms(offers[0].experiment.task, ["line", "lines", "dot"])
    first, second = caught.value.problems
    assert first.message == 'task "toy-words" does not export "line"; its forms: lines, files'
    assert first.help == 'did you mean "lines"?'
    assert second.help is None


def test_a_task_without_formats(load):
    with pytest.raises(Refused, match=re.escape('does not export "dot"; its forms: none')):
        check_forms(load().experiment.task, ["dot"])


def test_a_missing_exporter_is_an_error_of_the_task(load, monkeypatch, tmp_path):
    system = Diffusion.build(load().experiment)
    with pytest.raises(TypeError, match="has no method export"):
        list(export_samples(system, make_samples(system, 1, 0), ["lines"], tmp_path))


def test_samples_are_exported(load, tmp_path, console, monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", "engine")
    assert run(load("train.steps=1"), tmp_path / "runs", console=console) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    before = set(directory.rglob("*"))
    with pytest.raises(Refused, match="its forms: none"):
        sample_run(directory, 2, 0, Path(tmp_path / "out"), console, forms=["dot"])
    assert set(directory.rglob("*")) == before
    assert not (tmp_path / "out").exists(), "refused before anything is drawn"
