"""`dither certify`: certificates of runs, exports and imported weights; changed ones are found."""

import html
import json
import math
import re
import shlex
import shutil

import pytest

from dither.engine.cli import main
from dither.engine.files.checksums import with_checksum
from dither.engine.runs.certificate import (
    read_certificate,
    results_of,
    verify_certificate,
)
from dither.engine.runs.exports import load
from dither.engine.training.likelihood import log_likelihood_of
from dither.registry.config.errors import Refused
from dither.registry.contracts.commands import RunOptions

SMALL = ["-n", "3", "--draws", "4", "--tight", "2"]


@pytest.fixture(scope="module")
def certified(tmp_path_factory, trained):
    """A copy of the run with a certificate, and the file."""
    _, run = trained
    copy = tmp_path_factory.mktemp("certified") / "a run"
    shutil.copytree(run, copy)
    assert main(["certify", str(copy), *SMALL]) == 0
    return copy, copy / "certificate" / "certificate.json"


def codes(work):
    with pytest.raises(Refused) as refused:
        work()
    return refused.value.codes


def disagreeing(file, run=None, part=3, changes=()):
    options = RunOptions(changes=changes)
    findings = verify_certificate(file, run, options, part)
    return [finding.part for finding in findings if not finding.agrees]


def test_results_are_those_of_the_samples(certified) -> None:
    run, file = certified
    record = read_certificate(file)
    nats = [row["nats"] for row in record["rows"]]
    results = record["results"]
    assert results["nats per sample"]["value"] == pytest.approx(sum(nats) / 3)
    # The tokens of this experiment are bytes.
    assert record["units"]["byte"] == record["units"]["token"] == [8, 8, 8]
    bits = sum(nats) / math.log(2) / 24
    assert results["bits per byte"]["value"] == pytest.approx(bits)
    removed = [row["nats"] - row["tight_nats"] for row in record["rows"]]
    slack = results["slack removed, nats per sample"]
    assert slack["value"] == pytest.approx(sum(removed) / 3)
    assert slack["ci95"] > 0

    # The bound of a sample is near that of many other draws.
    system = load(run)
    clean = system.task.batch("valid", range(3))
    many = log_likelihood_of(system, clean, 200, seed=1)
    for row, value in zip(record["rows"], -many.values, strict=True):
        assert abs(row["nats"] - value) < 4 * row["half_width"] + 0.5
    page = file.with_suffix(".html").read_text()
    assert record["fingerprints"]["weights"] in page
    assert "bits per byte" in page
    # The command on the page can be pasted.
    command = html.unescape(re.search(r"dither certify [^<\n]*", page)[0])
    assert shlex.split(command)[-1] == str(file)


def test_a_certificate_agrees_with_its_run_and_an_export(
    certified, trained, tmp_path
) -> None:
    run, file = certified
    assert main(["certify", "--verify", str(file), "--part", "1"]) == 0
    assert main(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    # Data are not in an export.
    data = f'task.data.paths=["{trained[0].parent}/*.txt"]'
    assert disagreeing(file, tmp_path / "model", changes=[data]) == []


def test_a_second_certificate_overwrites_nothing(certified) -> None:
    run, file = certified
    before = file.read_bytes()
    assert main(["certify", str(run), *SMALL, "--seed", "1"]) == 0
    assert file.read_bytes() == before
    second = run / "certificate-2" / "certificate.json"
    # Another seed is other noise.
    assert read_certificate(second)["rows"] != read_certificate(file)["rows"]
    assert main(["certify", str(run), *SMALL, "--out", str(file.parent)]) == 2


def changed(record, change):
    record = json.loads(json.dumps(record))
    change(record)
    return record


def lower_results(record):
    record["results"]["bits per byte"]["value"] *= 0.9


def lower_rows(record):
    for row in record["rows"]:
        row["nats"] *= 0.99
    record["results"] = results_of(record["rows"], record["units"])


def more_bytes(record):
    record["units"]["byte"] = [9, 9, 9]
    record["results"] = results_of(record["rows"], record["units"])


def other_weights(record):
    record["fingerprints"]["weights"] = "0" * 64


def lower_tight(record):
    for row in record["rows"]:
        row["tight_nats"] *= 0.99
    record["results"] = results_of(record["rows"], record["units"])


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lower_results, ["results"]),
        (lower_rows, ["sample 0", "sample 1", "sample 2"]),
        (lower_tight, ["sample 0", "sample 1", "sample 2"]),
        (more_bytes, ["units"]),
        (other_weights, ["weights"]),
    ],
)
def test_a_changed_certificate_disagrees(certified, tmp_path, change, parts) -> None:
    run, file = certified
    forged = changed(read_certificate(file), change)
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(with_checksum(forged)))
    assert disagreeing(path, run) == parts
    # Without a new checksum that is found, too.
    path.write_text(json.dumps(forged))
    assert disagreeing(path, run) == ["checksum", *parts]
    assert main(["certify", str(run), "--verify", str(path)]) == 1


def test_other_weights_disagree(certified, tmp_path) -> None:
    run, file = certified
    other = tmp_path / "other"
    shutil.copytree(run, other)
    # The earlier checkpoint has other weights.
    newest = max((other / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    assert "weights" in disagreeing(file, other)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "file-not-found"),
        ("{", "damaged-file"),
        ("[]", "damaged-file"),
        ('{"format": 2}', "other-version"),
        ('{"format": 1, "options": {"path": "/etc"}}', "damaged-file"),
    ],
)
def test_files_that_are_no_certificate(tmp_path, text, code) -> None:
    file = tmp_path / "certificate.json"
    if text is not None:
        file.write_text(text)
    assert codes(lambda: read_certificate(file)) == [code]
    assert main(["certify", "--verify", str(file)]) == 2


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("options", "seed"), "0"),
        (("options", "split"), "../data"),
        (("options", "draws"), 0),
        (("options", "path"), "/etc"),
        (("options", "samples"), 4),
        (("rows",), []),
        (("rows", 1), {"nats": 1.0, "half_width": None}),
        (("rows", 1, "nats"), "1"),
        (("units", "byte"), [8, 8]),
        (("units", "byte", 0), 1 << 60),
        (("results",), {"bits per byte": 1.0}),
        (("fingerprints", "weights"), None),
        (("source",), ["start.toml"]),
    ],
)
def test_a_value_that_no_certificate_has(certified, tmp_path, place, value) -> None:
    record = read_certificate(certified[1])
    *tables, key = place
    table = record
    for inner in tables:
        table = table[inner]
    table[key] = value
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(with_checksum(record)))
    assert codes(lambda: read_certificate(file)) == ["damaged-file"]


def test_a_certificate_without_its_run(certified, tmp_path) -> None:
    _, file = certified
    alone = tmp_path / "elsewhere" / "certificate.json"
    alone.parent.mkdir()
    shutil.copy(file, alone)
    assert codes(lambda: disagreeing(alone)) == ["not-a-run"]


def test_models_without_a_likelihood_or_weights_are_refused(trained, tmp_path) -> None:
    file, run = trained
    assert main(["certify", str(file)]) == 2
    text = file.read_text()
    weights = next((run / "checkpoints").glob("*/model.safetensors"))
    start = text.replace("[train]", f'[train]\nstart_from = "{weights}"')
    plain = tmp_path / "plain.toml"
    plain.write_text(start.replace('loss = "masked-ce"', 'loss = "discrete-flow"'))
    assert main(["certify", str(plain)]) == 2


def test_an_experiment_that_starts_from_weights(trained, tmp_path) -> None:
    file, run = trained
    weights = max((run / "checkpoints").glob("step-*")) / "model.safetensors"
    text = file.read_text().replace("[train]", f'[train]\nstart_from = "{weights}"')
    experiment = tmp_path / "start.toml"
    experiment.write_text(text)
    assert main(["certify", str(experiment), *SMALL]) == 0
    certificate = tmp_path / "certificate" / "certificate.json"
    assert disagreeing(certificate) == []
    assert read_certificate(certificate)["source"] == "start.toml"


@pytest.mark.slow
def test_features_have_bits_per_dimension(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["train.steps=1", "model.width=12", "evaluate.samples=4", "sample.count=1"]
    assert main(["run", "images/digits", *small]) == 0
    (run,) = (tmp_path / "runs").glob("*-*")
    assert main(["certify", str(run), "-n", "2", "--draws", "4"]) == 0
    file = run / "certificate" / "certificate.json"
    record = read_certificate(file)
    # 8 x 8 pixels, which have no weights of trajectories
    assert record["units"] == {"dimension": [64, 64]}
    assert "bits per dimension" in record["results"]
    assert record["estimator"]["tight"] == ""
    assert disagreeing(file) == []
