"""Executors: local processes, and jobs of SLURM or of this machine by submitit. Read without torch."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from dither.registry.config.errors import Refused
from dither.registry.contracts.jobs import Command
from dither.registry.files.child_process import safe_path
from dither.registry.files.write_errors import unwritable
from dither.registry.kinds import ExecutorSpec
from dither.registry.plugins.install_command import install_command
from dither.registry.spec.misfit import Misfit

from ..signals import STOPPED, received

__all__ = ["Local", "Processes", "Slurm", "cpu_cores"]


class Processes(ExecutorSpec):
    """Processes of this machine, which share its CPU threads and CUDA devices."""

    name = "processes"

    def build(self) -> LocalProcesses:
        return LocalProcesses()


class LocalProcesses:
    """An `Executor`."""

    def start(self, command: Command) -> LocalProcess:
        with command.output.open("ab") as output:
            process = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_share_of_machine(command),
                # Otherwise Ctrl-C would reach the point as well, as a second signal.
                start_new_session=True,
            )
        return LocalProcess(process)


class LocalProcess:
    """A `Job`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self, force: bool = False) -> None:
        # A process that hangs in a driver may ignore SIGTERM.
        if force:
            self.process.kill()
        else:
            self.process.terminate()


def _share_of_machine(command: Command) -> dict[str, str]:
    """Return the environment of a process: its share of the CPU threads, and its CUDA devices."""
    variables = dict(os.environ)
    # A single process may use all threads and devices.
    if command.parallel * command.ranks == 1:
        return variables
    share = max(1, cpu_cores() // (command.parallel * command.ranks))
    # A number that the user has set is kept.
    variables.setdefault("OMP_NUM_THREADS", str(share))
    listed = variables.get("CUDA_VISIBLE_DEVICES", "").split(",")
    devices = [device for device in listed if device.strip()]
    if devices:
        first = command.slot * command.ranks
        places = range(first, first + min(command.ranks, len(devices)))
        # More points than devices share them in turn.
        chosen = [devices[place % len(devices)] for place in places]
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
    return variables


def cpu_cores() -> int:
    """Return the number of cores that this process may use."""
    # Only Linux has affinities; elsewhere points get one thread each.
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return 1


class _Submitit(ExecutorSpec):
    """Jobs by submitit. One that the cluster stops is put back into the queue."""

    cluster: ClassVar[str] = ""

    timeout_min: int = Field(60, ge=1)
    """Time limit of a job in minutes; 90 seconds before, its run writes a checkpoint."""
    requeues: int = Field(20, ge=0)
    """How often a job may reach its time limit and be put back into the queue."""
    gpus_per_node: int | None = Field(None, ge=0)
    """GPUs of a job."""

    def check(self) -> Iterable[Misfit]:
        if find_spec("submitit") is None:
            hint = install_command("dither-engine", "slurm")
            yield Misfit(
                "submitit is not installed", help=hint, code="missing-dependency"
            )

    def build(self) -> SubmititCluster:
        parameters = self.model_dump(exclude={"requeues"}, exclude_none=True)
        return SubmititCluster(self.cluster, parameters, self.requeues)


class Local(_Submitit):
    """Jobs on this machine that outlive the sweep, to try what SLURM would do."""

    name = "local"
    cluster: ClassVar[str] = "local"


class Slurm(_Submitit):
    """An array of SLURM jobs, `--jobs` of them at the same time."""

    name = "slurm"
    cluster: ClassVar[str] = "slurm"

    cpus_per_task: int | None = Field(None, ge=1)
    """CPU cores of a job."""
    mem_gb: float | None = Field(None, gt=0)
    """Memory of a job in GB."""
    slurm_partition: str | None = None
    """Partition of the cluster."""
    slurm_account: str | None = None
    """Account that is charged."""
    slurm_qos: str | None = None
    """Quality of service."""
    slurm_constraint: str | None = None
    """Features that nodes must have."""
    slurm_setup: list[str] | None = None
    """Shell commands before each job, such as `module load cuda`."""
    slurm_additional_parameters: dict[str, str | int | bool] | None = None
    """Other options of sbatch by name, without the dashes."""

    def check(self) -> Iterable[Misfit]:
        yield from super().check()
        # submitit runs every job with srun.
        missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
        if missing:
            message = (
                f"this machine is not part of a SLURM cluster: no {', '.join(missing)}"
            )
            yield Misfit(message, code="missing-dependency")


class SubmititCluster:
    """A `Cluster`."""

    def __init__(self, name: str, parameters: dict[str, Any], requeues: int) -> None:
        self.name = name
        self.parameters = parameters
        self.requeues = requeues

    def submit(self, commands: Sequence[Command], folder: Path) -> list[str]:
        import submitit

        parameters = dict(self.parameters)
        if commands:
            parameters["name"] = commands[0].name
        if commands and self.name == "slurm":
            parameters["slurm_array_parallelism"] = commands[0].parallel
        try:
            executor = submitit.AutoExecutor(
                folder=folder,
                cluster=self.name,
                **{f"{self.name}_max_num_timeout": self.requeues},
            )
            executor.update_parameters(**parameters)
            jobs = []
            # Implicit submissions: a sweep without an unfinished point is not an error.
            with safe_path(), executor.batch(allow_implicit_submissions=True):
                for command in commands:
                    jobs.append(executor.submit(_QueuedCommand(command)))
            return [job.job_id for job in jobs]
        # submitit writes the script and the command of each job into the folder.
        except OSError as error:
            raise unwritable(f"the jobs of {self.name}", error) from None
        # Options that submitit does not know, or that sbatch does not accept.
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            message = f"submitit cannot submit to {self.name}: {error}"
            raise Refused(message, code="invalid-value") from None


class _QueuedCommand:
    """Runs a command in the process of a job, the only one that all signals of a cluster reach."""

    def __init__(self, command: Command) -> None:
        self.command = command

    def __call__(self) -> None:
        """Run it; RuntimeError if it fails, so that the job counts as failed."""
        code = self._run()
        # The commands have replaced the handler of submitit, which calls `checkpoint` and puts the
        # job back into the queue; a job that a user cancels gets SIGTERM instead.
        if code == STOPPED and received[-1:] == ["SIGUSR2"]:
            signal.raise_signal(signal.SIGUSR2)
        if code:
            raise RuntimeError(f"{self.command.name}: exit code {code}")

    def _run(self) -> int:
        command = self.command
        sys.argv = [command.module, *command.arguments]
        try:
            runpy.run_module(command.module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
        return 0

    def checkpoint(self) -> Any:
        """Return the job that submitit queues again: the same one, which resumes its run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
