"""Job files of clusters, read by a parser of each format; one runs on a stand-in for SLURM."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

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
    "signal": r"TERM@\d+",
}


@pytest.fixture
def job(experiment_file, tmp_path, cli):
    """Return a function that writes a job file and returns its text."""

    def written(form, *words):
        out = tmp_path / f"job.{form}"
        cli("launch", str(experiment_file), f"--{form}", "--out", str(out), *words)
        return out.read_text()

    return written


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
    variables = {item["name"]: item["value"] for item in container["env"]}
    assert variables == {"DITHER_JOB": name, "head": f"{name}-0.{name}"}
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
    text = job(form, "--runs", "/a b/$(touch evil)'\"", "name=x.Y_z")
    script = text
    if form != "slurm":
        task = [*yaml.safe_load_all(text)][-1]
        script = task["run"] if form == "skypilot" else None
        if script is None:
            script = task["spec"]["template"]["spec"]["containers"][0]["args"][0]
            assert task["metadata"]["name"] == "x-y-z"
    words = re.search("cli run .*", checked(script))[0]
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {words}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "/a b/$(touch evil)'\""


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

    def wait(done):
        deadline = time.monotonic() + 400
        while not done():
            output = [path.read_text()[-2000:] for path in slurm.glob("out-*")]
            assert time.monotonic() < deadline, output
            time.sleep(0.1)

    wait(lambda: [*runs.glob("*/checkpoints/step-*")])
    (pid,) = slurm.glob("pid-*")
    os.kill(int(pid.read_text()), signal.SIGTERM)
    wait(lambda: [*runs.glob("*/summary.json")])
    (path,) = runs.glob("*-*")
    manifest = json.loads((path / "manifest.json").read_text())
    assert len(manifest["resumed"]) == 1
    assert manifest["launch"].startswith("slurm-")
    assert (slurm / "requeues").read_text().split() == ["requeued"]
