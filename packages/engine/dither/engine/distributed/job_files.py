"""Job files of SLURM, Kubernetes and SkyPilot that train an experiment with torchrun on several hosts. No torch.

A job that is stopped exits with 75 and starts again; DITHER_JOB names it, so that it finds its run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from string import Template

from dither.registry.config.errors import Refused

__all__ = ["FORMATS", "Format", "JobOptions", "write_job"]

PORT = 29500
"""Port of the rendezvous, the default of torchrun."""

TORCHRUN = """sh -c 'trap "" USR1; exec torchrun "$$@"' torchrun \\
    --nnodes $nodes --nproc-per-node $gpus --max-restarts 3 \\
    --rdzv-backend c10d --rdzv-id "$$DITHER_JOB" --rdzv-endpoint "$$head:$$port" \\
    -m dither.engine.cli $command"""
"""torchrun ignores SIGUSR1, which stops ranks; 30 seconds after SIGTERM it would kill them."""

SLURM = (
    """#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=$gpus
#SBATCH --time=$hours:00:00
#SBATCH --output=$name-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
# Two minutes before the time limit the run writes a checkpoint and exits with 75.
#SBATCH --signal=USR1@120

export DITHER_JOB="slurm-$$SLURM_JOB_ID"
export DITHER_EXIT_CODE="$$PWD/.$name-$$SLURM_JOB_ID.code"
rm -f "$$DITHER_EXIT_CODE"
head=$$(scontrol show hostnames "$$SLURM_JOB_NODELIST" | head -n 1)
# Jobs may share a host.
port=$$(($port + SLURM_JOB_ID % 1000))

srun """
    + TORCHRUN
    + """
code=$$?

# torchrun exits with 1 for every exit code of its ranks.
if [ -s "$$DITHER_EXIT_CODE" ]; then code=$$(cat "$$DITHER_EXIT_CODE"); fi
rm -f "$$DITHER_EXIT_CODE"
if [ "$$code" = 75 ]; then scontrol requeue "$$SLURM_JOB_ID"; fi
exit "$$code"
"""
)

SCRIPT = (
    """export DITHER_EXIT_CODE=/tmp/dither-exit-code
rm -f "$$DITHER_EXIT_CODE"
port=$port

"""
    + TORCHRUN
    + """ &
agent=$$!
# SIGTERM reaches this shell only. Without it, the first process of a container ignores it.
trap 'kill -USR1 $$(cat /proc/$$agent/task/$$agent/children)' TERM
wait "$$agent"
code=$$?
# The trap ends the first wait.
while kill -0 "$$agent" 2>/dev/null; do
    wait "$$agent"
    code=$$?
done

# torchrun exits with 1 for every exit code of its ranks.
if [ -s "$$DITHER_EXIT_CODE" ]; then code=$$(cat "$$DITHER_EXIT_CODE"); fi
exit "$$code"
"""
)

KUBERNETES = """# kubectl apply -f this file; the run directories are on a volume claim.
apiVersion: v1
kind: Service
metadata:
  name: $name
spec:
  clusterIP: None
  # The ranks meet before any pod is ready.
  publishNotReadyAddresses: true
  selector: {job-name: $name}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: $name
spec:
  completionMode: Indexed
  completions: $nodes
  parallelism: $nodes
  backoffLimit: 6
  activeDeadlineSeconds: $seconds
  podFailurePolicy:
    rules:
      # Stopped with a checkpoint, or evicted: start again, as often as it takes.
      - action: Ignore
        onExitCodes: {containerName: train, operator: In, values: [75]}
      - action: Ignore
        onPodConditions: [{type: DisruptionTarget}]
      # Invalid input, a damaged run, NaN: another attempt would end the same.
      - action: FailJob
        onExitCodes: {containerName: train, operator: In, values: [2, 3, 4]}
  template:
    spec:
      restartPolicy: Never
      subdomain: $name
      # Time for a checkpoint after SIGTERM.
      terminationGracePeriodSeconds: 300
      containers:
        - name: train
          image: $image
          env:
            # Of this job, also if another one had the same name.
            - name: DITHER_JOB
              valueFrom: {fieldRef: {fieldPath: "metadata.labels['controller-uid']"}}
            - {name: head, value: $name-0.$name}
          command: [bash, -c]
          args:
            - |
$script
          resources:
            limits: {nvidia.com/gpu: $gpus}
          volumeMounts:
            - {name: runs, mountPath: $mount}
            # Shared memory of NCCL and of data loading.
            - {name: memory, mountPath: /dev/shm}
      volumes:
        - name: runs
          persistentVolumeClaim: {claimName: $claim}
        - name: memory
          emptyDir: {medium: Memory}
"""

SKYPILOT = """# sky jobs launch this file; the run directories are in a bucket.
name: $name
num_nodes: $nodes
workdir: .
file_mounts:
  $mount: {name: $claim, mode: MOUNT}
resources:
  accelerators: $accelerator
  job_recovery:
    strategy: FAILOVER
    recover_on_exit_codes: [75]
setup: |
  pip install dither
run: |
  export DITHER_JOB="$$SKYPILOT_TASK_ID"
  head=$$(echo "$$SKYPILOT_NODE_IPS" | head -n 1)
$script
"""


@dataclass(frozen=True)
class JobOptions:
    """Size and place of a job; `command` is that of dither, without its name."""

    name: str
    command: Sequence[str]
    nodes: int = 1
    gpus: int = 1
    hours: int = 24
    runs: Path = Path("runs")
    image: str = "dither"
    claim: str = "dither-runs"
    accelerator: str = "H100"


@dataclass(frozen=True)
class Format:
    """A template, the indentation of its script, the suffix of the file, and the command that submits it.

    `ignored` are the fields of `JobOptions` that the template does not have.
    """

    template: str
    indent: int
    suffix: str
    submit: tuple[str, ...]
    ignored: tuple[str, ...]


FORMATS = {
    "slurm": Format(
        SLURM, 0, ".sbatch", ("sbatch",), ignored=("image", "claim", "accelerator")
    ),
    # A block scalar of YAML ends at the first line with less indentation.
    "kubernetes": Format(
        KUBERNETES, 14, ".yaml", ("kubectl", "apply", "-f"), ignored=("accelerator",)
    ),
    "skypilot": Format(
        SKYPILOT,
        2,
        ".sky.yaml",
        ("sky", "jobs", "launch", "-y"),
        ignored=("image", "hours"),
    ),
}


def write_job(form: str, options: JobOptions) -> str:
    """Return the text of a job file.

    Raises:
        Refused: A word has characters that would end a line, or that YAML does not allow.
    """
    for word in (*options.command, options.image, options.claim, options.accelerator):
        if not word.isprintable():
            message = f"a job file cannot hold the characters of {word!r}"
            raise Refused(message, code="invalid-value")
    chosen = FORMATS[form]
    command = join(options.command)
    # Kubernetes replaces $(NAME) in arguments, and $$ by $.
    if form == "kubernetes":
        command = command.replace("$", "$$")
    values = {
        # A label of DNS that begins with a letter, as Kubernetes requires, and no word of YAML; the
        # index of a pod, which Kubernetes appends, counts among its 63 characters.
        "name": re.sub(r"[^a-z0-9]+", "-", f"dither-{options.name.lower()}")[:50].strip(
            "-"
        ),
        "nodes": str(options.nodes),
        "gpus": str(options.gpus),
        "hours": str(options.hours),
        # The unit of activeDeadlineSeconds.
        "seconds": str(options.hours * 3600),
        "port": str(PORT),
        "command": command,
        "mount": _yaml(str(options.runs)),
        "image": _yaml(options.image),
        "claim": _yaml(options.claim),
        "accelerator": _yaml(f"{options.accelerator}:{options.gpus}"),
    }
    # The template of SLURM has its own script and ignores this one.
    script = Template(SCRIPT).substitute(values)
    margin = " " * chosen.indent
    lines = [f"{margin}{line}".rstrip() for line in script.splitlines()]
    return Template(chosen.template).substitute(values, script="\n".join(lines))


def _yaml(text: str) -> str:
    """Return a string of YAML, in which colons and quotes of a name are data.

    JSON would write characters beyond 16 bits as two surrogates, which YAML does not join.
    """
    return json.dumps(text, ensure_ascii=False)
