"""A stand-in for SLURM: `sbatch`, `srun` and `scontrol` as scripts that run jobs on this machine.

It knows arrays with a limit, requeueing, and the variables that submitit and torchrun read. The
process of a job is in `pid-JOB`, its output in `out-JOB`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_fake_slurm"]

HEAD = """#!/usr/bin/env bash
here="$(dirname "$(readlink -f "$0")")"
"""
SBATCH = """
script="${@: -1}"
job=$$
cp "$script" "$here/script-$job"
range=$(sed -n 's/^#SBATCH --array=//p' "$script")
last=$(echo "$range" | sed -n 's/^0-\\([0-9]*\\).*/\\1/p')
parallel=$(echo "$range" | sed -n 's/.*%//p')
seq 0 "${last:-0}" | setsid xargs -P "${parallel:-1}" -I{} "$here/run-task" "$job" {} "${last:+array}" \\
    >/dev/null 2>"$here/errors" &
echo "Submitted batch job $job"
"""
RUN_TASK = """
export SLURM_JOB_ID="$1" SLURM_JOB_NODELIST=localhost SLURM_NTASKS=1 SLURM_PROCID=0
name="$1"
if [ -n "$3" ]; then
    export SLURM_ARRAY_JOB_ID="$1" SLURM_ARRAY_TASK_ID="$2"
    name="$1_$2"
fi
export FAKE_JOB="$name"
while true; do
    bash "$here/script-$1" >>"$here/out-$name" 2>&1
    # A job is queued again after the command that requeues it.
    [ -e "$here/requeue-$name" ] || break
    rm "$here/requeue-$name"
    echo requeued >>"$here/requeues"
done
"""
SRUN = """
while [[ "$1" == --* ]]; do
    case "$1" in --output|--error) shift 2 ;; *) shift ;; esac
done
echo $$ >"$here/pid-$FAKE_JOB"
exec "$@"
"""
SCONTROL = """
case "$1" in
    requeue) touch "$here/requeue-$2" ;;
    show) echo localhost ;;
esac
"""
SCRIPTS = {
    "sbatch": SBATCH,
    "run-task": RUN_TASK,
    "srun": SRUN,
    "scontrol": SCONTROL,
}


def write_fake_slurm(folder: Path) -> Path:
    """Write the scripts into a folder, which must be put first on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in SCRIPTS.items():
        path = folder / name
        path.write_text(HEAD + script, encoding="utf-8")
        path.chmod(0o755)
    return folder
