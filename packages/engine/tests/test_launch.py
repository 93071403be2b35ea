"""Job files of clusters, read by a parser of each format; one runs on a stand-in for SLURM."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dither.engine.cli.__main__ import run_rank
from dither.engine.distributed.ranks import join_ranks
from dither.testing.fake_slurm import write_fake_slurm

yaml = pytest.importorskip("yaml")
FORMS = ["slurm", "kubernetes", "skypilot"]
SBATCH_OPTIONS = {
    "job-name": "[a-z0-9-]+",
    "nodes": r"\d+",
    "ntasks-per-node": "1",
    "gpus-per-node": r"\d+",
    "time": r"\d+:00:00",
    "output": r"[a-z0-9%.-]+",
    "open-mode": "append",
    "requeue": "",
    "signal": r"USR1@\d+",
}


@pytest.fixture
def job(experiment_file, tmp_path, cli):
    """Return a function that writes a job file and returns its text."""

    def written(form, *words):
        out = tmp_path / f"job.{form}"
        cli("launch", str(experiment_file), f"--{form}", "--out", str(out), *words)
        return out.read_text()

    return written


def wait(done, seconds=400):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def checked(script):
    done = subprocess.run(
        ["bash", "-n"], input=script, text=True, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return script


def test_directives_of_sbatch(job, experiment_file):
    text = checked(job("slurm", "train.steps=30", "--nodes", "4", "--gpus", "8"))
    directives = {}
    for line in re.findall(r"^#SBATCH (.+)$", text, re.MULTILINE):
        name, _, value = line.removeprefix("--").partition("=")
        directives[name] = value
    assert directives.keys() == SBATCH_OPTIONS.keys()
    for name, value in directives.items():
        assert re.fullmatch(SBATCH_OPTIONS[name], value), name
    assert (directives["nodes"], directives["gpus-per-node"]) == ("4", "8")
    assert "--nnodes 4 --nproc-per-node 8" in text
    assert f"run {experiment_file} train.steps=30 --runs runs" in text
    # Directives after the first command are ignored by sbatch.
    assert text.rindex("#SBATCH") < text.index("export")


def test_the_manifest_of_kubernetes(job):
    words = ["--nodes", "2", "--gpus", "4", "--hours", "2", "--image", "me/x:1"]
    words += ["--runs", "/shared/runs", "--claim", "volume"]
    service, manifest = yaml.safe_load_all(job("kubernetes", *words))
    spec = manifest["spec"]
    name = manifest["metadata"]["name"]
    assert spec["completions"] == spec["parallelism"] == 2
    assert spec["activeDeadlineSeconds"] == 7200
    again = spec["podFailurePolicy"]["rules"][0]
    assert (again["action"], again["onExitCodes"]["values"]) == ("Ignore", [75])
    # The names of pods resolve only with a headless service of the name of their subdomain.
    pod = spec["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"] == name
    assert service["spec"]["clusterIP"] == "None"
    (container,) = pod["containers"]
    assert container["image"] == "me/x:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert mounts[0] == "/shared/runs"
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "volume"}
    job_name, head = container["env"]
    assert head == {"name": "head", "value": f"{name}-0.{name}"}
    # Another job of the same name trains another run.
    assert job_name["name"] == "DITHER_JOB"
    field = job_name["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.labels['controller-uid']"
    assert "--nnodes 2 --nproc-per-node 4" in checked(container["args"][0])


def test_the_task_of_skypilot(job):
    task = yaml.safe_load(job("skypilot", "--nodes", "2", "--accelerator", "A100"))
    assert task["num_nodes"] == 2
    assert task["file_mounts"] == {"runs": {"name": "dither-runs", "mode": "MOUNT"}}
    assert task["resources"]["accelerators"] == "A100:1"
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    assert 'exit "$code"' in checked(task["run"])


@pytest.mark.parametrize("form", FORMS)
def test_words_of_a_user_are_quoted(job, form):
    folder = "/a b/$(head)$$ \U0001f600'\""
    text = job(form, "--runs", folder, "name=x.Y_z")
    script = text
    if form != "slurm":
        task = [*yaml.safe_load_all(text)][-1]
        script = task["run"] if form == "skypilot" else None
        if script is None:
            script = task["spec"]["template"]["spec"]["containers"][0]["args"][0]
            # As Kubernetes does.
            script = script.replace("$$", "$")
            assert task["metadata"]["name"] == "dither-x-y-z"
        else:
            assert [*task["file_mounts"]] == [folder]
    words = re.search("cli run .*", checked(script))[0]
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {words}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == folder


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", ["a\nb", "a\u2028b", "a\x07"])
def test_words_that_would_end_a_line_are_refused(cli, experiment_file, form, text):
    words = ("launch", str(experiment_file), f"--{form}", "--runs", f"/{text}")
    assert "[invalid-value]" in cli(*words, code=2).err


@pytest.mark.parametrize("name", ["on", "2d", "a" * 41 + "." + "b" * 9])
def test_any_name_of_an_experiment_is_a_name_of_kubernetes(job, name):
    words = ("--runs", "/runs", f"name={name}")
    for document in yaml.safe_load_all(job("kubernetes", *words)):
        assert re.fullmatch("[a-z][a-z0-9-]*[a-z0-9]", document["metadata"]["name"])


RANK = """
import os, pathlib, signal, sys, time

def stop(*_):
    pathlib.Path(os.environ["DITHER_EXIT_CODE"]).write_text("75")
    sys.exit()

signal.signal(signal.SIGUSR1, stop)
pathlib.Path("ready").touch()
time.sleep(30)
"""


def test_sigterm_reaches_the_ranks_of_a_container_as_sigusr1(
    job, tmp_path, monkeypatch
):
    script = yaml.safe_load(job("skypilot"))["run"]
    script = script.replace("/tmp/dither-exit-code", str(tmp_path / "code"))
    (tmp_path / "rank.py").write_text(RANK)
    torchrun = f"#!/bin/sh\n{sys.executable} -S rank.py &\nwait\nexit 1\n"
    (tmp_path / "torchrun").write_text(torchrun)
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with subprocess.Popen(["bash", "-c", script], cwd=tmp_path) as process:
        wait((tmp_path / "ready").exists, seconds=20)
        process.terminate()
        assert process.wait(20) == 75


@pytest.mark.parametrize(("code", "returned"), [(75, 0), (4, 4), (0, 0)])
def test_a_rank_leaves_its_exit_code_and_a_stopped_one_is_not_started_again(
    tmp_path, monkeypatch, code, returned
):
    left = tmp_path / "code"
    assert run_rank(lambda: code) == code
    monkeypatch.setenv("DITHER_EXIT_CODE", str(left))
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert run_rank(lambda: code) == returned
    assert not left.exists()
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert run_rank(lambda: code) == returned
    assert left.read_text() == f"{code}\n"
    # A crash leaves none, not even that of an earlier start.
    with pytest.raises(ZeroDivisionError):
        run_rank(lambda: 1 // 0)
    assert not left.exists()


def test_ranks_without_a_gpu_or_an_address_have_a_code(monkeypatch, refused):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with refused("lost-rank"), join_ranks("cpu"):
        pass
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with refused("out-of-range"), join_ranks():
        pass


def test_nothing_is_submitted_or_overwritten_unasked(
    experiment_file, tmp_path, monkeypatch, cli
):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(f"#!/bin/sh\necho $1 >{tmp_path}/submitted\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    out = str(tmp_path / "job.sbatch")
    words = ["launch", str(experiment_file), "--slurm", "--out", out]
    cli(*words)
    assert not (tmp_path / "submitted").exists()
    assert "[file-exists]" in cli(*words, "--submit", code=2).err
    (tmp_path / "job.sbatch").unlink()
    cli(*words, "--submit")
    assert (tmp_path / "submitted").read_text().strip() == out
    assert "[usage]" in cli(*words, "--skypilot", code=2).err
    monkeypatch.chdir(tmp_path)
    words = ["launch", str(experiment_file), "--slurm", "--out", "-job", "--submit"]
    cli(*words)
    assert (tmp_path / "submitted").read_text().strip() == "./-job"
    words = ["launch", str(experiment_file), "--kubernetes"]
    assert "[usage]" in cli(*words, "--runs", "relative", code=2).err


@pytest.mark.slow
def test_a_stopped_job_is_requeued_and_resumes_its_run(
    experiment_file, tmp_path, monkeypatch, cli
):
    slurm = write_fake_slurm(tmp_path / "slurm")
    torchrun = f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    (slurm / "torchrun").write_text(torchrun)
    (slurm / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{slurm}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    words = ["train.steps=600", "evaluate.every=600", "--runs", str(runs)]
    cli("launch", str(experiment_file), *words, "--slurm", "--gpus", "2", "--submit")

    wait(lambda: [*runs.glob("*/checkpoints/step-*")])
    (pid,) = slurm.glob("pid-*")
    # As SLURM does, to every process of the job.
    agent = int(pid.read_text())
    ranks = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    assert len(ranks) == 2
    for process in (agent, *map(int, ranks)):
        os.kill(process, signal.SIGUSR1)
    wait(lambda: [*runs.glob("*/summary.json")])
    (path,) = runs.glob("*-*")
    manifest = json.loads((path / "manifest.json").read_text())
    assert len(manifest["resumed"]) == 1
    assert manifest["launch"].startswith("slurm-")
    assert (slurm / "requeues").read_text().split() == ["requeued"]
