"""`dither launch`: job files of clusters."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from .app import (
    Assignments,
    Experiment,
    Overrides,
    PluginNames,
    Removals,
    Runs,
    app,
    load,
)
from .output import echo

__all__: list[str] = []


@app.command()
def launch(
    experiment: Experiment,
    words: Assignments = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="A script for sbatch.")
    ] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="An indexed Job and its Service.")
    ] = False,
    skypilot: Annotated[
        bool, typer.Option("--skypilot", help="A managed job of SkyPilot.")
    ] = False,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Hosts.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs of each host.")] = 1,
    hours: Annotated[int, typer.Option("--hours", min=1, help="Time limit.")] = 24,
    image: Annotated[
        str, typer.Option("--image", help="Container image, for --kubernetes.")
    ] = "dither",
    claim: Annotated[
        str,
        typer.Option(
            "--claim",
            help="What is mounted at --runs: a volume claim of Kubernetes, a bucket of SkyPilot.",
        ),
    ] = "dither-runs",
    accelerator: Annotated[
        str, typer.Option("--accelerator", help="Type of GPU, for --skypilot.")
    ] = "H100",
    overrides: Overrides = None,
    removals: Removals = None,
    plugins: PluginNames = None,
    runs: Runs = Path("runs"),
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="By default NAME.sbatch or .yaml."),
    ] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Also submit the file.")
    ] = False,
) -> int:
    """Write a job file that trains an experiment on several hosts, and resumes after a stop.

    The job starts again if it is stopped with exit code 75, and resumes its own run.
    """
    from dither.registry.config.errors import Problem, Refused
    from dither.registry.files.lookup import exists

    from ..distributed.job_files import FORMATS, JobOptions, write_job

    flags = {"slurm": slurm, "kubernetes": kubernetes, "skypilot": skypilot}
    chosen = [form for form, flag in flags.items() if flag]
    if len(chosen) != 1:
        raise Refused("give one of --slurm, --kubernetes, --skypilot", code="usage")
    (form,) = chosen
    if form == "kubernetes" and not runs.is_absolute():
        hint = "the volume is mounted there: --runs /shared/runs"
        message = f"--kubernetes requires an absolute path after --runs, not {runs}"
        raise Refused(Problem(message, help=hint, code="usage"))
    loaded = load(experiment, [overrides, words], removals, plugins)
    command = ["run", str(experiment), *(words or ())]
    for option, values in (
        ("--set", overrides),
        ("--unset", removals),
        ("-p", plugins),
    ):
        for value in values or ():
            command += [option, value]
    options = JobOptions(
        name=loaded.experiment.name,
        command=[*command, "--runs", str(runs)],
        nodes=nodes,
        gpus=gpus,
        hours=hours,
        runs=runs,
        image=image,
        claim=claim,
        accelerator=accelerator,
    )

    out = out or Path(f"{loaded.experiment.name}{FORMATS[form].suffix}")
    if exists(out):
        hint = "choose another file with --out"
        raise Refused(Problem(f"{out} exists already", help=hint, code="file-exists"))
    try:
        out.write_text(write_job(form, options), encoding="utf-8")
    except OSError as error:
        raise Refused(f"{out}: {error.strerror}", code="unwritable-file") from None
    words_of_submit = [*FORMATS[form].submit, str(out)]
    if not submit:
        echo(f"{out}; submit it with: {' '.join(words_of_submit)}")
        return 0
    try:
        return subprocess.run(words_of_submit, check=False).returncode
    except FileNotFoundError:
        message = f"{words_of_submit[0]} is not installed"
        raise Refused(message, code="missing-dependency") from None
