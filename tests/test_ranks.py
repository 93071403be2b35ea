"""Two ranks under torchrun give the losses, weights and checkpoints of a single process."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dither.engine.checkpoints.sharded_checkpoint import part_of, read_tensors
from dither.engine.cli import main
from dither.engine.files.metrics_file import read_metrics

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "faults"))

from fault_trial import Command, free_port  # noqa: E402

pytestmark = pytest.mark.slow
BASE = ROOT / "experiments" / "bubble_diagram" / "quick.toml"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
EXPERIMENT = f"""
extends = "{BASE}"
task = {{ use = "bubble-diagram", data = {{ use = "procedural-plans", train = 64, valid = 16, test = 8 }} }}
model.width = 16
model.depth = 2
[model.block]
use = "adaln-zero"
heads = 2
dropout = 0.0
[train]
steps = 8
batch_size = 8
accumulate = 2
log_every = 1
checkpoint_every = 4
lr_schedule = {{ use = "constant" }}
device = "cpu"
[evaluate]
every = 4
samples = 16
[sample]
count = 4
"""
COUNTING = """
import json
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from dither.registry import hookimpl

collectives, sent = [], {}


def named(*names):
    return next(name for name in names if hasattr(dist, name))


def counted(state, bucket):
    collectives.append("bucket")
    return allreduce_hook(dist.group.WORLD, bucket)


@hookimpl
def before_run(run):
    scatter = named("reduce_scatter_single", "reduce_scatter_tensor")
    gather = named("all_gather_single", "all_gather_into_tensor")
    scattered, gathered = getattr(dist, scatter), getattr(dist, gather)

    def gather_and_count(output, *args, **options):
        sent[str(output.dtype)] = sent.get(str(output.dtype), 0) + output.numel()
        return gathered(output, *args, **options)

    if run.trainer.parallel.sharded:
        setattr(dist, scatter, lambda *args, **options: collectives.append("block") or scattered(*args, **options))
        setattr(dist, gather, gather_and_count)
    elif run.ranks.size > 1:
        run.trainer.parallel._ddp.register_comm_hook(None, counted)


@hookimpl
def after_run(run, summary):
    (run.directory.path / "counts.json").write_text(json.dumps([collectives, sent]))
"""


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The reference run of a single process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "exp.toml").write_text(EXPERIMENT)
    assert main(["run", str(folder / "exp.toml"), "--runs", str(folder / "runs")]) == 0
    (path,) = (folder / "runs").glob("*-*")
    return path


@pytest.fixture
def train(tmp_path):
    """Train in this process or on two ranks, and return the run directory.

    torchrun imports torch for itself and for each rank; forked ranks start faster.
    """
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "exp.toml").write_text('plugins = ["counting.py"]\n' + EXPERIMENT)

    def forked(words):
        launch = (free_port(), secrets.token_hex(4))
        commands = [
            Command(
                ["run", *words],
                tmp_path / f"{launch[1]}-{rank}",
                ("be_rank", rank, 2, *launch),
            ).start()
            for rank in range(2)
        ]
        codes = [command.wait(250) for command in commands]
        output = "\n".join(command.output for command in commands)
        return SimpleNamespace(stdout=output, stderr=f"exit codes {codes}\n{output}")

    def run(*arguments, ranks, resume=None, torchrun=False):
        words = [str(tmp_path / "exp.toml"), "--runs", str(tmp_path / "runs")]
        if resume:
            words = ["--resume", str(resume)]
        words += arguments
        before = set((tmp_path / "runs").glob("*-*"))
        if ranks == 1:
            assert main(["run", *words]) == 0
            return resume or (set((tmp_path / "runs").glob("*-*")) - before).pop(), None
        command = [sys.executable, *TORCHRUN, "-m", "experiments.run", *words]
        done = forked(words) if not torchrun else subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=250, check=False
        )  # fmt: skip
        new = set((tmp_path / "runs").glob("*-*")) - before
        path = resume or (new.pop() if new else None)
        # Gloo may abort at exit, so the summary decides, not the exit code.
        assert path is not None, done.stderr[-3000:]
        assert not new
        return path, done

    return run


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def lines(path, kind):
    records = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in records if line["kind"] == kind}


def weights(path, step=8):
    return read_tensors(part_of(path / "checkpoints" / f"step-{step:08d}", "model"))


def assert_same(one, other, tolerance=1e-5):
    for kind in ("train", "valid"):
        assert lines(one, kind).keys() == lines(other, kind).keys()
        assert lines(one, kind) == pytest.approx(
            lines(other, kind), rel=tolerance, abs=tolerance
        )
    for name, tensor in weights(one).items():
        assert (tensor - weights(other)[name]).abs().max() < 1e-4, name


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_equal_one(train, single, strategy):
    both, done = train("--set", f"train.strategy={strategy}", ranks=2, torchrun=True)
    assert (both / "summary.json").is_file(), done.stderr[-3000:]
    assert f"2 ranks ({strategy})" in done.stdout
    assert_same(single, both)
    assert (both / "samples" / "step-00000008" / "samples.safetensors").is_file()
    # Gradients are all-reduced once per step, not per micro-batch: in one bucket, or for two blocks and the rest.
    expected = 8 * ["bucket"] if strategy == "ddp" else 8 * 3 * ["block"]
    assert json.loads((both / "counts.json").read_text())[0] == expected


LANGUAGE = f"""
extends = "{ROOT / "experiments" / "language_model" / "attention.toml"}"
model.width = 16
model.depth = 2
[train]
steps = 4
batch_size = 4
log_every = 1
checkpoint_every = 4
device = "cpu"
[evaluate]
samples = 8
[sample]
count = 2
"""


def test_a_sharded_language_model_is_sampled(train, tmp_path):
    """Samplers apply the head to single positions, whose weights FSDP gathers inside the model only."""
    (tmp_path / "exp.toml").write_text(LANGUAGE)
    alone, _ = train(ranks=1)
    both, done = train("--set", "train.strategy=fsdp", ranks=2)
    assert (both / "summary.json").is_file(), done.stderr[-3000:]
    assert lines(both, "valid") == pytest.approx(lines(alone, "valid"), rel=1e-4)
    assert (both / "samples" / "step-00000004" / "samples.safetensors").is_file()


def test_compiled_ranks_with_accumulation_equal_one(train):
    """In bfloat16, with compiled blocks and activation checkpointing, against one eager process."""
    half = ("--set", "train.precision=bfloat16", "--set", "train.steps=4")
    single, _ = train(*half, "--set", "train.accumulate=1", ranks=1)
    more = ("train.strategy=fsdp", "train.compile='blocks'", "model.checkpointing=true")
    both, done = train(
        *half,
        *(word for change in more for word in ("--set", change)),
        ranks=2,
        torchrun=True,
    )
    assert lines(both, "train") == pytest.approx(lines(single, "train"), rel=3e-3), (
        done.stderr[-3000:]
    )
    assert lines(both, "valid") == pytest.approx(lines(single, "valid"), rel=3e-3)


def test_fsdp_gathers_in_bfloat16(train):
    """Autocast rounds matrices anyway; weights of norms differ, and half as many bytes are sent."""
    half = (
        "--set",
        "train.precision=bfloat16",
        "--set",
        "train.strategy=fsdp",
        "--set",
        "train.steps=4",
    )
    half += ("--set", "model.block.affine=true")
    whole, _ = train(*half, ranks=2)
    narrow, done = train(*half, "--set", "train.gather=bfloat16", ranks=2)
    assert lines(narrow, "train") == pytest.approx(lines(whole, "train"), rel=1e-3), (
        done.stderr[-3000:]
    )
    assert all(tensor.dtype == torch.float32 for tensor in weights(narrow, 4).values())
    before, now = (
        json.loads((path / "counts.json").read_text())[1] for path in (whole, narrow)
    )
    assert before.keys() == {"torch.float32"}
    assert sum(now.values()) == pytest.approx(before["torch.float32"], rel=0.02)
    assert now["torch.bfloat16"] > 0


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_self_conditioning_makes_two_passes_on_each_rank(train, strategy):
    twice = ("--set", "model.self_conditioning=true")
    single, _ = train(*twice, ranks=1)
    both, _ = train(*twice, "--set", f"train.strategy={strategy}", ranks=2)
    assert_same(single, both)


def test_muon_is_sharded(train):
    muon = ("--set", "train.optimizer={use = 'muon', lr = 0.01}")
    single, _ = train(*muon, ranks=1)
    both, _ = train(*muon, "--set", "train.strategy=fsdp", ranks=2)
    assert_same(single, both)


def test_lora_is_sharded(train):
    lora = "train.lora={rank = 2, alpha = 4, on = ['attention', 'mlp'], whole = ['head.*']}"
    single, _ = train("--set", lora, ranks=1)
    half, _ = train(
        "--set", lora, "--set", "train.strategy=fsdp", "--set", "train.steps=4", ranks=2
    )
    train("--set", "train.steps=8", ranks=2, resume=half)
    assert_same(single, half)


def test_resume_with_another_number_of_ranks(train, single):
    half, _ = train("--set", "train.steps=4", ranks=2)
    train("--set", "train.steps=8", ranks=1, resume=half)
    assert_same(single, half)
    other, _ = train("--set", "train.steps=4", ranks=1)
    _, done = train(
        "--set", "train.steps=8", "--set", "train.strategy=fsdp", ranks=2, resume=other
    )
    assert json.loads((other / "summary.json").read_text())["step"] == 8, done.stderr[
        -3000:
    ]
    assert_same(single, other)


def test_sharded_checkpoints(train, single, tmp_path, capsys, cli):
    """Under FSDP each rank writes its shards: resumed on two ranks and on one, evaluated, exported, damaged."""
    cut = ["--set", "train.strategy=fsdp"]
    half, done = train(*cut, "--set", "train.steps=4", ranks=2)
    folder = half / "checkpoints" / "step-00000004"
    assert len(list((folder / "model").glob("shard-*.safetensors"))) == 2, done.stderr[
        -3000:
    ]
    assert len(list((folder / "optimizer").glob("*.safetensors"))) == 3, (
        "and tensors that are not sharded"
    )
    assert main(["evaluate", str(half)]) == 0
    assert main(["export", str(half), "--out", str(tmp_path / "given")]) == 0
    assert main(["runs", "verify", str(half)]) == 0
    shutil.copytree(half, tmp_path / "other" / half.name)
    train("--set", "train.steps=8", ranks=2, resume=half)
    assert_same(single, half)
    other = tmp_path / "other" / half.name
    train(
        "--set", "train.steps=8", "--set", "train.strategy=ddp", ranks=1, resume=other
    )
    assert_same(single, other)
    capsys.readouterr()
    (half / "checkpoints" / "step-00000008" / "model" / "more.safetensors").write_bytes(
        b""
    )
    assert (
        "model/more.safetensors is not listed"
        in cli("runs", "verify", str(half), code=3).out
    )


def rank_of(launcher, rank, start):
    """Return the process of a rank of the given start of torchrun."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        try:
            words = Path(f"/proc/{child}/environ").read_text().split("\0")
        except OSError:  # it has ended
            continue
        if {f"LOCAL_RANK={rank}", f"TORCHELASTIC_RESTART_COUNT={start}"} <= set(words):
            return int(child)
    return None


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="processes are found in /proc"
)
def test_ranks_restart_from_the_checkpoint_after_a_kill(train, tmp_path):
    """Each rank is killed once; the run equals an uninterrupted one on two ranks."""
    settings = [
        "--set",
        "train.steps=100",
        "--set",
        "train.checkpoint_every=10",
        "--set",
        "evaluate.every=50",
    ]
    whole, _ = train(*settings, ranks=2)
    launch = [
        *TORCHRUN,
        "--max-restarts",
        "2",
        "-m",
        "experiments.run",
        str(tmp_path / "exp.toml"),
        *settings,
    ]
    with subprocess.Popen(
        [sys.executable, *launch, "--runs", str(tmp_path / "two")], cwd=ROOT, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        for start, step in enumerate((10, 40)):
            deadline = time.monotonic() + 100
            while time.monotonic() < deadline and running.poll() is None:
                reached = [
                    int(path.name[5:])
                    for path in tmp_path.glob("two/*/checkpoints/step-*")
                ]
                victim = rank_of(running.pid, start, start)
                if victim and max(reached, default=0) >= step:
                    os.kill(victim, signal.SIGKILL)
                    break
                time.sleep(0.01)
        _, errors = running.communicate(timeout=150)
    (path,) = (tmp_path / "two").glob("*-*")
    assert json.loads((path / "summary.json").read_text())["step"] == 100, errors[
        -3000:
    ]
    assert len(json.loads((path / "manifest.json").read_text())["resumed"]) == 2
    assert read_metrics(path / "metrics.jsonl") == read_metrics(whole / "metrics.jsonl")
    for name, tensor in weights(whole, 100).items():
        assert tensor.equal(weights(path, 100)[name]), name
