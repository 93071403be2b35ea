"""`dither mcp`: a session of an agent over stdio, and names that lead out of the working folder."""

import asyncio
import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dither.engine.cli.mcp_server import CommandError, Tools
from dither.registry.config.errors import Refused

COMMAND = [sys.executable, "-m", "dither.engine.cli", "mcp"]
requires_sdk = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="requires the extra mcp"
)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """Tools in a folder next to a secret, with links to it."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/plans.toml").write_text('extends = "bubble_diagram/quick"')
    folder = tmp_path / "work"
    (folder / "experiments").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "link.toml").symlink_to(tmp_path / "secret/plans.toml")
    (folder / "mine.toml").write_text('extends = "bubble_diagram/quick"')
    (folder / "outer.toml").write_text('extends = ["experiments/inner.toml"]')
    inner = 'extends = "../mine.toml"\n[task]\ndata.paths = ["../link/*"]'
    (folder / "experiments/inner.toml").write_text(inner)
    return Tools(folder)


OUTSIDE = [
    *("/etc/passwd", "../secret/plans", "link", "link/plans", "link.toml", "~/x"),
    *("file:///etc", "s3://bucket/run", "memory:/x", "nul\0", "runs/../../secret"),
]
VALUES = [
    *("/etc/*", "../secret", "link/*", "l?nk/*.toml", "**/plans.toml", "~root/x"),
    *("experiments/../../secret", "https://host/x"),
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_folder(name, tools):
    for call in (
        tools.validate(name),
        tools.run(name),
        tools.run(resume=name),
        tools.status(name),
        tools.evaluate(name),
        tools.sample(name),
        tools.compare(["runs", name]),
    ):
        with pytest.raises(Refused) as refused:
            asyncio.run(call)
        assert set(refused.value.codes) <= {"outside-folder", "not-a-run"}
        assert not isinstance(refused.value, CommandError)


@pytest.mark.parametrize("value", VALUES)
def test_no_value_leads_out_of_the_folder(value, tools):
    override = f"task.data.paths=[{json.dumps(value)}]"
    for call in (
        tools.validate("mine.toml", [override]),
        tools.run("mine.toml", [override]),
        tools.sample("mine", overrides=[override]),
    ):
        with pytest.raises(Refused) as refused:
            asyncio.run(call)
        assert refused.value.codes == ["outside-folder"]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda tools: tools.validate("outer"), "outside-folder"),
        (lambda tools: tools.run("experiments/inner.toml"), "outside-folder"),
        (lambda tools: tools.validate("mine", ["plugins=['../x.py']"]), "outside-folder"),
        (lambda tools: tools.validate("mine", ["--traceback"]), "invalid-value"),
        (lambda tools: tools.validate("-p"), "invalid-value"),
        (lambda tools: tools.describe("--help"), "invalid-value"),
        (lambda tools: tools.list_components("-p"), "invalid-value"),
        (lambda tools: tools.compare(["mine.toml"]), "not-a-run"),
        (lambda tools: tools.write("../x", ""), "invalid-value"),
        (lambda tools: tools.write("x.py", ""), "invalid-value"),
        (lambda tools: tools.write("inner", ""), "file-exists"),
        (lambda tools: tools.write("big", "#" * 200_000), "too-large"),
    ],
)  # fmt: skip
def test_a_wrong_call_has_its_code(call, code, tools, refused):
    before = sorted(tools.folder.rglob("*"))
    with refused(code):
        asyncio.run(call(tools))
    assert sorted(tools.folder.rglob("*")) == before


def test_nothing_is_written_through_a_link(tools, refused):
    (tools.folder / "experiments/inner.toml").unlink()
    (tools.folder / "experiments").rmdir()
    (tools.folder / "experiments").symlink_to(tools.folder.parent / "secret")
    with refused("outside-folder"):
        asyncio.run(tools.write("new", ""))
    assert len(list((tools.folder.parent / "secret").iterdir())) == 1


def test_the_command_that_installs_the_sdk(cli, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    problem = json.loads(cli("mcp", str(tmp_path), "--format", "json", code=2).out)
    (problem,) = problem["problems"]
    assert problem["code"] == "missing-dependency"
    assert " mcp" in problem["help"].replace("'", " ")


def test_a_missing_folder(cli, tmp_path):
    assert "[file-not-found]" in cli("mcp", str(tmp_path / "none"), code=2).err


@requires_sdk
@pytest.mark.slow
def test_a_session_over_stdio(tmp_path, text_experiment):
    """An agent lists components, writes an experiment, validates, runs and reads the metrics."""
    from mcp import Client, StdioServerParameters

    for n in range(6):
        (tmp_path / f"{n}.txt").write_text(f"the cat {n} sat on the mat. " * 4)
    server = StdioServerParameters(
        command=COMMAND[0],
        args=[*COMMAND[1:], str(tmp_path)],
        env={"OMP_NUM_THREADS": "1"},
    )
    text = text_experiment("*.txt").replace("steps = 2", "steps = 20")

    async def session():
        async with Client(server) as client:

            async def call(tool: str, error: bool = False, **arguments):
                result = await client.call_tool(tool, arguments)
                assert result.is_error == error, result
                assert json.loads(result.content[0].text) == result.structured_content
                return result.structured_content

            names = {tool.name for tool in (await client.list_tools()).tools}
            assert names == {
                *("list", "describe", "write", "validate", "run"),
                *("status", "evaluate", "sample", "compare"),
            }
            listed = await call("list", kind="loss")
            assert "masked-ce" in [row["name"] for row in listed["components"]]
            described = await call("describe", name="masked-ce", kind="loss")
            assert described["kind"] == "loss"

            (file,) = (await call("write", name="mine", text=text))["files"]
            assert file == "experiments/mine.toml"
            failure = await call(
                "validate", True, experiment=file, overrides=["loss=mse"]
            )
            assert failure["problems"][0]["code"] == "misfit"
            assert (await call("validate", experiment=file))["valid"]

            began = time.monotonic()
            events = (await call("run", experiment=file, seconds=300))["events"]
            assert events[-1]["event"] == "finished"
            budget = 3 * (time.monotonic() - began)
            run = events[0]["run"]
            status = await call("status", run=run)
            assert [row["state"] for row in status["runs"]] == ["done"]
            assert status["metrics"]["valid"]["step"] == 20
            (row,) = (await call("status"))["runs"]
            assert row["path"] == run
            metrics = await call("evaluate", run=run, overrides=["evaluate.samples=2"])
            assert metrics["loss"] > 0
            sampled = await call("sample", run=run, count=2)
            assert len(sampled["texts"]) == 2

            # A run that takes longer than its budget continues from its checkpoint.
            long = {"experiment": file, "overrides": ["train.steps=1000000"]}
            stopped = (await call("run", **long, seconds=budget))["events"][-1]
            assert stopped["event"] == "stopped"
            assert stopped["step"] > 20
            assert stopped["resume"][:3] == ["dither", "run", "--resume"]
            # Training has not begun yet.
            failure = await call("run", True, resume=stopped["run"], seconds=0.1)
            assert failure["exit_code"] == 75
            assert failure["problems"][0]["code"] == "stopped"

    asyncio.run(session())


@requires_sdk
@pytest.mark.slow
def test_the_session_of_the_docs():
    """The committed log has the same calls and lines as a new session."""
    examples = Path(__file__).parents[1] / "docs/examples"
    done = subprocess.run(
        [sys.executable, str(examples / "mcp_session.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    def outline(log: str) -> list[str]:
        return [line[:6] for line in log.splitlines() if line[:1] in "> "]

    log = (examples / "mcp_session.txt").read_text()
    assert outline(done.stdout) == outline(log)
    assert "nats per graph" in done.stdout


@requires_sdk
@pytest.mark.slow
def test_ctrl_c_ends_the_server(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    # The server answers, so it is past its imports; tasks of it still run.
    process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "Traceback" not in stderr
