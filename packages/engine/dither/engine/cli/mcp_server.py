"""`dither mcp`: tools for agents over the Model Context Protocol.

A tool runs a command with --json in a separate process, without a shell. Names sent by the client
must stay in the working folder: `..`, symbolic links, patterns and addresses are refused.
"""

from __future__ import annotations

import glob
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from signal import SIGTERM
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..signals import STOPPED, Stopped
from .app import app
from .output import error_record

if TYPE_CHECKING:
    from dither.registry.config.errors import Refused

__all__: list[str] = []

LIMIT = 3600.0
"""Seconds of any tool, at most."""
GRACE = 120.0
"""Seconds in which a stopped command finishes its step and writes a checkpoint."""
MAX_TEXT = 100_000
"""Characters of an experiment file."""
MAX_STDERR = 2000
"""Characters shown of the end of stderr, if a command fails without JSON."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
OVERRIDE = re.compile(r"[a-z_][\w.-]*=.*", re.DOTALL)
ADDRESS = re.compile(r"\w[\w+.-]*:/")
"""URLs and addresses of services, in which a path outside may be written."""
INSTRUCTIONS = """Train and sample diffusion transformers assembled from named components. \
list and describe show what there is; write writes an experiment (TOML); then validate, run, \
status, evaluate, sample and compare. bubble_diagram/quick comes with dither."""

Record = dict[str, Any]


@app.command()
def mcp(
    folder: Annotated[
        Path, typer.Argument(help="Working folder, which no name leaves.")
    ] = Path(),
) -> None:
    """Serve tools to agents over stdio, by the Model Context Protocol.

    They list and describe components, write and validate experiments, run them for some seconds,
    and evaluate, sample and compare runs. A shell is not available.
    """
    from dither.registry.config.errors import Refused
    from dither.registry.files.lookup import is_folder
    from dither.registry.plugins.install_command import optional_import

    if not is_folder(folder):
        raise Refused(f"not a folder: {folder}", code="file-not-found")
    message = "dither mcp requires the Python SDK of the Model Context Protocol"
    with optional_import(message, "dither-engine", "mcp"):
        from mcp.server.mcpserver import MCPServer
        from mcp.types import CallToolResult, TextContent

    def failure(record: Record) -> CallToolResult:
        content = TextContent(type="text", text=json.dumps(record))
        return CallToolResult(
            content=[content], structured_content=record, is_error=True
        )

    tools = Tools(folder.resolve())
    server: MCPServer[Any] = MCPServer(
        "dither", instructions=INSTRUCTIONS, log_level="WARNING"
    )
    by_name: dict[str, Callable[..., Any]] = {
        "list": tools.list_components,
        "describe": tools.describe,
        "write": tools.write,
        "validate": tools.validate,
        "run": tools.run,
        "status": tools.status,
        "evaluate": tools.evaluate,
        "sample": tools.sample,
        "compare": tools.compare,
    }
    for name, tool in by_name.items():
        server.add_tool(_with_errors(tool, failure), name)
    try:
        server.run()
    except BaseExceptionGroup as group:
        # The signal came while a task of the server ran.
        if (stopped := group.subgroup(Stopped)) is None:
            raise
        raise _first(stopped) from None


def _first(error: BaseException) -> BaseException:
    """Return the first exception of nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _with_errors(
    tool: Callable[..., Any], failure: Callable[[Record], object]
) -> Callable[..., Any]:
    """Report `Refused`, and the error of a command, to the client as the same JSON."""
    from dither.registry.config.errors import Refused

    @wraps(tool)
    async def call(**arguments: Any) -> Any:
        try:
            return await tool(**arguments)
        except Refused as refused:
            record = error_record(refused, refused.exit_code)
        except CommandError as failed:
            record = failed.record
        return failure(record)

    return call


class CommandError(Exception):
    """A command ended with an error, which it printed as `record`."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.record = record


class Tools:
    """The tools in a working folder, whose own path has no symbolic links."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def list_components(self, kind: str = "") -> Record:
        """List the components that an experiment may name, all or of a kind such as sampler."""
        words = [kind] if kind else []
        return {"components": await self._call("list", self._words(words))}

    async def describe(self, name: str, kind: str = "") -> Record:
        """Describe a component and its options; or a table: train, evaluate, sample, tracking."""
        words = [kind, name] if kind else [name]
        return await self._record("describe", self._words(words))

    async def write(self, name: str, text: str) -> Record:
        """Write a new experiment, experiments/NAME.toml; nothing is overwritten."""
        if not NAME.fullmatch(name):
            raise _refused(f'"{name}" is not a name of letters, digits, _ and -')
        if len(text) > MAX_TEXT:
            raise _refused(f"more than {MAX_TEXT:,} characters", "too-large")
        file = Path("experiments", f"{name}.toml")
        self._require_inside(str(file))
        path = self.folder / file
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            message = f"{file} exists already; choose another name"
            raise _refused(message, "file-exists") from None
        return {"files": [str(file)]}

    async def validate(self, experiment: str, overrides: Sequence[str] = ()) -> Record:
        """Check an experiment, a file or one that comes with dither; overrides are key=value."""
        words = [self._experiment(experiment), *self._overrides(overrides)]
        return await self._record("validate", words)

    async def run(
        self,
        experiment: str = "",
        overrides: Sequence[str] = (),
        resume: str = "",
        seconds: float = 60,
    ) -> Record:
        """Train an experiment, or resume a run, for at most so many seconds; return its events.

        A run that takes longer writes a checkpoint, and its last event is "stopped".
        """
        words = self._overrides(overrides)
        if experiment:
            words.append(self._experiment(experiment))
        if resume:
            words += ["--resume", self._run(resume)]
        self._require_inside("runs")
        return {"events": await self._call("run", words, seconds)}

    async def status(self, run: str = "") -> Record:
        """List the runs below runs/; or one run, with its newest metrics by kind."""
        from dither.registry.files.lookup import is_folder

        from ..files.metrics_file import read_metrics

        self._require_inside("runs")
        if not run:
            exists = is_folder(self.folder / "runs")
            return {"runs": await self._call("runs", ["list"]) if exists else []}
        path = (self.folder / self._run(run)).resolve()
        listed = await self._call("runs", ["list", str(path.parent)])
        metrics = {}
        with suppress(OSError):
            for line in read_metrics(path / "metrics.jsonl", skip=True):
                metrics[line["kind"]] = line
        rows = [row for row in listed if Path(row["path"]) == path]
        return {"runs": rows, "metrics": metrics}

    async def evaluate(
        self,
        run: str,
        overrides: Sequence[str] = (),
        split: Literal["train", "valid", "test"] = "valid",
        seconds: float = LIMIT,
    ) -> Record:
        """Evaluate the newest checkpoint of a run, or of a trained model such as zoo/digits."""
        words = [self._run(run), "--split", split, *self._overrides(overrides)]
        return await self._record("evaluate", words, seconds)

    async def sample(
        self,
        run: str,
        count: int = 4,
        seed: int = 0,
        overrides: Sequence[str] = (),
        seconds: float = LIMIT,
    ) -> Record:
        """Sample from the newest checkpoint of a run; overrides are of sampler.* and sample.*."""
        words = [self._run(run), "--count", str(count), "--seed", str(seed)]
        return await self._record("sample", words + self._overrides(overrides), seconds)

    async def compare(self, runs: Sequence[str], metric: str = "") -> Record:
        """Compare finished runs that differ in options or seeds: difference, interval, verdict."""
        from dither.registry.files.lookup import is_folder

        words = [self._run(run) for run in runs]
        # That of an experiment file would train all of its arms.
        for word in words:
            if not is_folder(self.folder / word):
                raise _refused(f"not a run directory: {word}", "not-a-run")
        if metric:
            words += ["--metric", *self._words([metric])]
        return {"arms": await self._call("compare", words)}

    # --- commands ----------------------------------------------------------------------------

    async def _record(
        self, verb: str, words: Sequence[str], seconds: float = LIMIT
    ) -> Record:
        record: Record = await self._call(verb, words, seconds)
        return record

    async def _call(
        self, verb: str, words: Sequence[str], seconds: float = LIMIT
    ) -> Any:
        """Run a command for at most so many seconds, and return its JSON; of `run` a list."""
        import asyncio

        # -P: no module of the working folder is imported in place of an installed one.
        command = [sys.executable, "-Pm", "dither.engine.cli", verb, *words, "--json"]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            # stdin of this process is the protocol.
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        # Both pipes are read at once, as a full one would block the command.
        reading = asyncio.ensure_future(process.communicate())
        try:
            # Not wait_for, which cancels the reading and loses what was read.
            await asyncio.wait([reading], timeout=min(seconds, LIMIT))
            if not reading.done():
                process.terminate()
                await asyncio.wait([reading], timeout=GRACE)
            if not reading.done():
                process.kill()
            stdout, stderr = await reading
        finally:
            # The client is gone: a run still writes its checkpoint.
            if process.returncode is None:
                process.terminate()
        return _parse(verb, stdout, stderr, process.returncode)

    # --- words of the client -----------------------------------------------------------------

    def _words(self, words: Sequence[str]) -> list[str]:
        """Return words that are names; refuse those that a command would take for options."""
        for word in words:
            if word.startswith("-"):
                raise _refused(f'"{word}" is an option, not a name')
        return list(words)

    def _overrides(self, overrides: Sequence[str]) -> list[str]:
        from dither.registry.config.document import Document

        words = []
        for override in overrides:
            if not OVERRIDE.fullmatch(override):
                raise _refused(f'"{override}" is not key=value')
            words += ["--set", override]
        for text in _texts(Document.from_overrides(overrides).tree):
            self._require_inside(text)
        return words

    def _run(self, run: str) -> str:
        self._require_inside(run)
        return self._words([run])[0]

    def _experiment(self, name: str) -> str:
        """Return a name of an experiment, none of whose values leads out of the folder."""
        for file in (name, f"{name}.toml"):
            self._require_inside(file)
            self._require_file_inside(self.folder / file, set())
        return self._words([name])[0]

    def _require_file_inside(self, file: Path, done: set[Path]) -> None:
        """Refuse a file with a value that leads out of the folder, also in a file it extends."""
        from dither.registry.files.limits import read_text
        from dither.registry.files.lookup import is_file

        if not is_file(file) or file in done:
            return
        done.add(file)
        tree: Record = {}
        # The command reports a file that it cannot read.
        with suppress(ValueError):
            tree = tomllib.loads(read_text(file))
        for text in _texts(tree):
            self._require_inside(text, file.parent)
        for parent in _texts(tree.get("extends", [])):
            for extended in (parent, f"{parent}.toml"):
                self._require_file_inside(file.parent / extended, done)

    def _require_inside(self, text: str, base: Path | None = None) -> None:
        """Refuse a text that, as a path or pattern in a folder, leads out of the working folder."""
        outside = ADDRESS.search(text) is not None
        # A value may be relative to the working folder, or to the file that it is in.
        for place in {self.folder, base or self.folder}:
            try:
                name = str(Path(text).expanduser())
                matches = glob.iglob(
                    name, root_dir=place, recursive=True, include_hidden=True
                )
                for path in (name, *matches):
                    resolved = (place / path).resolve()
                    outside = outside or not resolved.is_relative_to(self.folder)
            except (OSError, ValueError, RuntimeError):
                outside = True
        if outside:
            raise _refused(f'"{text}" leads out of {self.folder}', "outside-folder")


def _parse(verb: str, stdout: bytes, stderr: bytes, code: int | None) -> Any:
    """Return what a command has printed; CommandError if that is an error, or no JSON."""
    try:
        if verb == "run":
            value = [json.loads(line) for line in stdout.splitlines()]
            last = value[-1]
        else:
            value = json.loads(stdout)
            last = value
    except (ValueError, IndexError):
        text = stderr.decode("utf-8", "replace")[-MAX_STDERR:].strip()
        last = {"event": "error", "exit_code": code, "problems": [], "stderr": text}
        # A signal before the command has begun.
        if code in {STOPPED, -SIGTERM}:
            last = error_record(_refused(text or "stopped", "stopped"), STOPPED)
    if isinstance(last, dict) and last.get("event") == "error":
        raise CommandError(last)
    return value


def _texts(tree: Any) -> Iterator[str]:
    """Yield the strings in a tree of TOML."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value)


def _refused(message: str, code: str = "invalid-value") -> Refused:
    from dither.registry.config.errors import Refused

    return Refused(message, code=code)
