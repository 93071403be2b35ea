"""An executor: processes of low priority, as a model for Ray, Dask or another machine."""

from __future__ import annotations

import subprocess

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.contracts.jobs import Command, Executor
from dither.registry.kinds import ExecutorSpec


class ExampleExecutor(ExecutorSpec):
    """Processes that leave the machine to others, by `nice`."""

    name = "example-executor"
    level: int = Field(10, ge=0, le=19)
    """Niceness: 19 is the lowest priority."""

    def build(self) -> Executor:
        return NiceProcesses(self.level)


class NiceProcesses:
    """An `Executor`; jobs that outlive the sweep have `submit` instead, as a `Cluster`."""

    def __init__(self, level: int) -> None:
        self.level = level

    def start(self, command: Command) -> NiceProcess:
        with command.output.open("ab") as output:
            process = subprocess.Popen(
                ["nice", "-n", str(self.level), *command.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return NiceProcess(process)


class NiceProcess:
    """A `Job`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self, force: bool = False) -> None:
        if force:
            self.process.kill()
        else:
            self.process.terminate()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleExecutor]
