"""The output of --json: one JSON value or lines of events on stdout, as `schema --of output` says."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import typer
from pydantic import TypeAdapter

from dither.engine.cli import commands, main
from dither.engine.cli.app import VERBS
from dither.engine.cli.output_schema import OUTPUTS, Failure
from dither.engine.signals import Stopped
from dither.registry.config.errors import CODES

NO_RESULT = {"mcp"}


def conforms(kind, value) -> bool:
    """Whether a value has this type, and nothing besides."""
    adapter = TypeAdapter(kind)
    record = adapter.validate_python(value)
    return value == adapter.dump_python(
        record, mode="json", by_alias=True, exclude_unset=True
    )


def printed(cli, *words: str, code: int = 0):
    return json.loads(cli(*words, "--json", code=code).out)


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> Path:
    """A copy of the trained run, in the working folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained[1], tmp_path / "run")
    return Path("run")


def leaves(command, name: str = ""):
    subcommands = getattr(command, "commands", {})
    if not subcommands or command.invoke_without_command:
        yield name.strip(), command
    for sub, inner in subcommands.items():
        yield from leaves(inner, f"{name} {sub}")


def test_every_command_prints_json_that_has_a_schema():
    of_engine = set()
    # With the commands of plugins.
    app, _ = commands.app_for(["--help"])
    for name, command in leaves(typer.main.get_command(app)):
        options = {option for one in command.params for option in one.opts}
        assert ("--json" in options) != (name in NO_RESULT), name
        if name.split(" ")[0] in VERBS:
            of_engine.add(name)
    # A schema has none of its own.
    assert of_engine - NO_RESULT - {"schema"} == set(OUTPUTS)


@pytest.mark.slow
def test_light_commands_conform(cli, run, tmp_path):
    for words in (
        "list loss",
        "list zoo",
        "describe masked-ce",
        "describe train",
        "search",
        "plugins",
        "doctor",
        "runs list .",
        "runs verify run",
        "runs diff run run",
        "validate run/resolved.toml",
        "resolve run/resolved.toml",
        "resolve run/resolved.toml train.steps --origins",
        "new experiment mine.toml --from bubble_diagram/quick",
        "new plugin wave --kind loss --single-file",
        "registry sync --file registry.toml",
        "registry check --file registry.toml",
        "launch run/resolved.toml --slurm --out job.sbatch",
        "schema --of output --out schema.json",
        "sweep run/resolved.toml --sweep seed=[1,2] --dry-run",
    ):
        value = printed(cli, *words.split(" "))
        fitting = [
            name
            for name in OUTPUTS
            if f"{words} ".replace("sweep", "sweep start").startswith(f"{name} ")
        ]
        if not words.startswith("schema"):
            assert conforms(OUTPUTS[max(fitting, key=len)], value), words
        assert value
    commands = json.loads((tmp_path / "schema.json").read_text())["commands"]
    assert set(commands) == {*OUTPUTS, "error"}
    assert commands["runs list"]["items"]["$ref"] in ("#/$defs/ListedRun",)


@pytest.mark.slow
def test_commands_on_a_run_conform(cli, run):
    sampled = printed(cli, "sample", "run", "-n", "2")
    assert conforms(OUTPUTS["sample"], sampled)
    assert len(sampled["texts"]) == 2
    assert all(Path(file).is_file() for file in sampled["files"])
    (first, *_) = printed(cli, "infill", "run", "th[MASK:2]", "-n", "1")["texts"]
    assert first.startswith("th")
    metrics = printed(cli, "evaluate", "run", "evaluate.samples=2")
    assert conforms(OUTPUTS["evaluate"], metrics)
    assert "nats_per_token" in metrics
    files = printed(cli, "report", "run")["files"]
    assert [Path(file).name for file in files] == ["report.html"]
    exported = printed(cli, "export", "run", "--out", "out")
    assert conforms(OUTPUTS["export"], exported)
    assert "task.data.paths" in dict(exported["data"])
    files = {str(path) for path in Path("out").rglob("*") if path.is_file()}
    assert set(exported["files"]) == files


def events_of(printed) -> list[dict]:
    return [json.loads(line) for line in printed.out.splitlines()]


def test_a_run_prints_events(cli, trained, tmp_path):
    file, _ = trained
    printed = cli("run", str(file), "--runs", str(tmp_path), "--json")
    events = events_of(printed)
    assert all(conforms(OUTPUTS["run"], event) for event in events)
    started, *middle, finished = events
    assert (started["event"], started["steps"]) == ("started", 3)
    assert finished["summary"]["metrics"]["valid"]["loss"]
    folder = Path(started["run"])
    assert finished["run"] == str(folder)
    lines = [
        json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    measured = [event for event in middle if event["event"] == "metrics"]
    assert [
        {"step": event["step"], "kind": event["kind"], **event["metrics"]}
        for event in measured
    ] == [
        {
            key: line[key]
            for key in line
            if key not in ("wall_time", "samples_per_second")
        }
        for line in lines
    ]
    saved = [event["path"] for event in middle if event["event"] == "checkpoint"]
    assert saved == [str(path) for path in sorted((folder / "checkpoints").iterdir())]
    (samples,) = [event for event in middle if event["event"] == "samples"]
    assert Path(samples["path"]).is_dir()
    # A person reads the progress meanwhile.
    assert "parameters" in printed.err

    # Its directory is damaged, as a run says with a code.
    for path in folder.glob("checkpoints/*/model.safetensors"):
        path.write_bytes(b"")
    failed = cli("run", "--resume", str(folder), "--json", code=3)
    (event,) = events_of(failed)
    assert conforms(Failure, event)
    assert event["problems"][0]["code"] == "damaged-checkpoint"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("frobnicate", "unknown-command"),
        ("list --bogus", "unknown-option"),
        ("run missing.toml", "file-not-found"),
        ("sample missing", "not-a-run"),
        ("sweep status missing", "not-a-run"),
        ("validate run/resolved.toml loss=mse", "misfit"),
    ],
)
def test_an_error_is_json_with_its_code(words, code, cli, run):
    (failure,) = events_of(cli(*words.split(" "), "--json", code=2))
    assert conforms(Failure, failure)
    assert failure["exit_code"] == 2
    assert code in [problem["code"] for problem in failure["problems"]]
    assert code in CODES


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (OSError(errno.ENOSPC, "No space left"), "disk-full", 5),
        (MemoryError(), "out-of-memory", 5),
        (Stopped("SIGTERM"), "stopped", 75),
    ],
)
def test_ends_without_a_result_are_json(error, code, exit_code, monkeypatch, capsys):
    def fail(*words, **options):
        raise error

    monkeypatch.setattr("dither.engine.runs.list_runs.list_runs", fail)
    assert main(["runs", "list", ".", "--json"]) == exit_code
    failure = json.loads(capsys.readouterr().out)
    assert conforms(Failure, failure)
    assert failure["exit_code"] == exit_code
    assert [problem["code"] for problem in failure["problems"]] == [code]
    assert code in CODES
