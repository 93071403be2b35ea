"""A signal ends a rank within 5 seconds while it waits in a collective for a rank that does not respond."""

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from fault_trial import free_port

SCRIPT = """
import sys, time
from dither.engine.distributed.ranks import join_ranks
from dither.engine.signals import stop_on_signals
with stop_on_signals() as stop:
    stop.polled = True
    with join_ranks("cpu", 600) as ranks:
        steps = 0
        print("ready", flush=True)
        while not ranks.any(stop()):
            steps += 1
            if ranks.rank == 1 and stop() and "slow" in sys.argv:
                time.sleep(7)
        print("stopped", flush=True)
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="signals"),
]


@pytest.fixture
def ranks(tmp_path):
    """Start two ranks; both have joined when this returns."""
    processes = []

    def started(*words):
        shared = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DITHER_EXIT_CODE": str(tmp_path / "code"),
            "TORCHELASTIC_RUN_ID": secrets.token_hex(8),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        for rank in range(2):
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, *words],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        # Ranks find each other by their heartbeats, one a second.
        time.sleep(2.0)
        return processes

    yield started
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("silent", [0, 1])
def test_a_hung_collective_ends_within_five_seconds(ranks, tmp_path, silent, number):
    processes = ranks()
    processes[silent].send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    other = processes[1 - silent]
    assert other.poll() is None
    began = time.monotonic()
    other.send_signal(number)
    assert other.wait(20) == 1
    assert time.monotonic() - began < 5
    assert f"rank {silent} does not respond" in other.stderr.read()
    # Otherwise torchrun would wait 30 seconds for it.
    assert processes[silent].wait(2) == -signal.SIGKILL
    # The main rank of the machine leaves the code with which a job is queued again.
    code = tmp_path / "code"
    assert (code.read_text() if code.exists() else "") == ("75\n" if silent else "")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("connects", [False, True])
def test_a_signal_ends_a_rank_while_another_is_suspended_from_the_start(
    tmp_path, rank, connects
):
    """It ends the other one, too, for which torchrun would wait 30 seconds."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    (tmp_path / "exp.toml").write_text('name = "slow"\n')
    # Until torch is imported, a signal ends it like the import of a plugin.
    command = [sys.executable, "-c", SCRIPT.replace("polled = True", "polled = False")]
    if not connects:
        command = [sys.executable, "-m", "dither.engine.cli", "run"]
        command += [str(tmp_path / "exp.toml"), "-p", str(tmp_path / "slow.py")]
    environment = {
        **os.environ,
        "DITHER_EXIT_CODE": str(tmp_path / "code"),
        "TORCHELASTIC_RUN_ID": secrets.token_hex(8),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    processes = []
    for number in (1 - rank, rank):
        ranks = {"RANK": str(number), "LOCAL_RANK": str(number)}
        process = subprocess.Popen(
            command, env=environment | ranks, stderr=subprocess.DEVNULL
        )
        processes.append(process)
    suspended, process = processes
    suspended.send_signal(signal.SIGSTOP)
    try:
        time.sleep(8.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 75
        assert suspended.wait(2) == -signal.SIGKILL
        # A job is queued again by this file.
        assert (tmp_path / "code").exists() == (rank == 0)
    finally:
        for each in processes:
            each.kill()
            each.wait()


@pytest.mark.parametrize(("size", "code"), [("1", 0), ("2", 2)])
def test_only_runs_have_several_ranks(size, code):
    """Each rank of torchrun would evaluate or write the same."""
    command = [sys.executable, "-m", "dither.engine.cli", "list", "sampler"]
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": size}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == code
    assert (b"[usage]" in done.stderr) == (code == 2)


def test_ranks_that_respond_stop_together(ranks):
    """Also if one of them takes longer than the patience with a silent one."""
    processes = ranks("slow")
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        assert process.wait(30) == 0, process.stderr.read()
        assert process.stdout.read() == "stopped\n"
