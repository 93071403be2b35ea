"""Invalid numbers in the files of a run: it is listed as damaged, and other runs are shown."""

import json
import re
from itertools import product

import pytest

from dither.engine.checkpoints.checkpoint import Scores
from dither.engine.cli import main
from dither.engine.files import checksums
from dither.engine.files.metrics_file import from_json, read_metrics
from dither.engine.reports.pages import write_report
from dither.engine.runs.list_runs import list_runs, verify_run
from dither.engine.runs.run_directory import read_manifest
from dither.registry.config.errors import CODES

HUGE = "9" * 400
"""An integer that no float holds."""
STRANGE = (
    "1e999",
    "-1e999",
    "NaN",
    HUGE,
    f"-{HUGE}",
    "1e308",
    '"text"',
    "null",
    "[]",
    "{}",
    "true",
)


@pytest.fixture
def folder(tmp_path):
    """Two runs as far as lists and pages look at them; the second is whole."""
    for name in ("a", "b"):
        path = tmp_path / "runs" / name
        path.mkdir(parents=True)
        (path / "resolved.toml").write_text(f'name = "{name}"\n[train]\nsteps = 4\n')
        (path / "manifest.json").write_text("{}")
        lines = [f'{{"step": {step}, "kind": "train", "loss": 0.5}}' for step in (2, 4)]
        (path / "metrics.jsonl").write_text("\n".join([*lines, ""]))
        summary = {
            "name": name,
            "step": 4,
            "steps": 4,
            "metrics": {"valid": {"loss": 0.25}},
            "baselines": {},
        }
        (path / "summary.json").write_text(sealed(json.dumps(summary)))
    return tmp_path / "runs"


def sealed(text):
    """Add the checksum to the text of a JSON object, whatever its numbers are."""
    values = from_json(text)
    checksum = checksums._table_hash(values)
    return f'{text[:-1]}, "sha256": "{checksum}"}}'


def put(path, old, new):
    text = path.read_text()
    if path.name == "summary.json":
        text = text.partition(', "sha256"')[0] + "}"
    assert old in text
    text = text.replace(old, new, 1)
    path.write_text(sealed(text) if path.name == "summary.json" else text)


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize(
    ("name", "old"), [("summary.json", "0.25"), ("summary.json", '"step": 4')]
)
def test_a_damaged_summary_does_not_hide_other_runs(folder, cli, name, old, value):
    put(folder / "a" / name, old, f'"step": {value}' if "step" in old else value)
    shown = cli("runs", "list", str(folder)).out
    assert "0.25" in shown
    assert shown.count("empty") == 2
    assert main(["runs", "list", str(folder), "--json"]) == 0
    assert [run.metrics.get("valid/loss") for run in list_runs(folder)][1] == 0.25


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", '"text"', "[]", "{}"])
def test_invalid_steps_are_listed_as_damaged(folder, value):
    put(folder / "a" / "resolved.toml", "steps = 4", f"steps = {value}")
    assert [(run.state, run.steps) for run in list_runs(folder)] == [
        ("damaged", None),
        ("empty", 4),
    ]


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize("old", ['"step": 2', '"loss": 0.5'])
def test_a_report_skips_invalid_metrics(folder, tmp_path, old, value):
    put(folder / "a/metrics.jsonl", old, f"{old.partition(':')[0]}: {value}")
    put(
        folder / "a/summary.json",
        '"baselines": {}',
        f'"baselines": {{"loss/x": {value}}}, "steps_per_second": {value}',
    )
    for paths in ([folder / "a"], [folder / "a", folder / "b"]):
        page = write_report(paths, tmp_path / "page.html").read_text()
        assert "nan," not in page.partition("<svg")[2], "no place in a drawing is none"
        assert ("lines cannot be read: 1" in page) == (
            "step" in old and value not in ("true", "1e308")
        )


@pytest.mark.parametrize(
    ("digits", "read"), [(18, 10**18 - 1), (19, 1e19), (400, float("inf"))]
)
def test_large_integers_are_read_as_floats(tmp_path, digits, read):
    (tmp_path / "x").write_text(
        f'{{"step": 1, "kind": "train", "loss": {"9" * digits}}}\n'
    )
    (line,) = read_metrics(tmp_path / "x")
    assert line["loss"] == read


@pytest.mark.parametrize("value", ["1e999", "NaN", '"text"', "null", "[]", "2.5"])
def test_a_line_without_step_is_damage(folder, value, refused):
    put(folder / "b/metrics.jsonl", '"step": 4', f'"step": {value}')
    reasons = {found.path: found.reason for found in verify_run(folder / "b")}
    assert "line 2" in reasons["metrics.jsonl"]
    with refused("damaged-file", match=r"metrics\.jsonl"):
        Scores.read(folder / "b", "loss", "lower")


def set_value(text, key, value):
    """Return the text of a JSON object with another value, and the checksum of the former one."""
    return json.dumps({**json.loads(text), key: value})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("0.25", "0.2"), "checksum"),
        (lambda text: text.partition(', "sha256"')[0] + "}", "checksum"),
        (lambda text: set_value(text, "sha256", None), "checksum"),
        (lambda text: text[:-9], "no valid JSON in line 1, column"),
        (lambda text: "", "no valid JSON in line 1, column 1"),
        (lambda text: "[]", "wrong type"),
        (lambda text: "9" * 400, "wrong type"),
        (lambda text: "[" * 500_000, "nested too deeply"),
        (lambda text: sealed('{"name": "a"}'), "a value is missing"),
        (lambda text: sealed('{"metrics": []}'), "wrong type"),
        (lambda text: sealed('{"metrics": {"valid": 3}}'), "wrong type"),
    ],
)
def test_verify_finds_damage_of_the_summary(folder, cli, change, reason):
    path = folder / "a" / "summary.json"
    reasons = {found.path: found.reason for found in verify_run(folder / "a")}
    assert reasons["summary.json"] is None
    path.write_text(change(path.read_text()))
    (found,) = [one for one in verify_run(folder / "a") if one.path == "summary.json"]
    assert reason in found.reason
    assert found.code == "damaged-file"
    assert "summary.json" in cli("runs", "verify", str(folder / "a"), code=3).out
    path.unlink()
    assert "summary.json" not in {found.path for found in verify_run(folder / "a")}


@pytest.mark.parametrize("text", ["{}", '{"resumed": []}', '{"sha256": null}'])
def test_a_manifest_without_its_checksum_is_damaged(folder, refused, text):
    (folder / "a" / "manifest.json").write_text(text)
    with refused("damaged-file"):
        read_manifest(folder / "a")


BYTES = (b"", b"\xff", b"[]", b"{", b'{"format": 1}', b"\x00" * 9, b"[" * 500_000)
NAMES = (
    "manifest.json",
    "metrics.jsonl",
    "summary.json",
    "resolved.toml",
    "checkpoints/step-00000004/MANIFEST.json",
)
PYTHON = re.compile(
    r"Error|Errno|object|codec|attribute|char \d|Expecting|error:|NoneType"
)
"""Words of exceptions of Python, and of a problem within a problem."""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *product(NAMES, BYTES),
        # Without resolved.toml, it is no run.
        *product([name for name in NAMES if name != "resolved.toml"], [None, "folder"]),
    ],
)
def test_every_damage_is_told_in_words_of_the_user(folder, name, content):
    path = folder / "a" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    for found in verify_run(folder / "a"):
        assert (found.reason is None) == (found.code is None)
        assert found.code is None or found.code in CODES
        assert not PYTHON.search(found.reason or ""), found
