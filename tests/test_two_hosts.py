"""Two hosts, as network namespaces joined by a cable, train what one process does, also if the cable is cut."""

import json
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dither.engine.cli import main

sys.path.insert(0, str(Path(__file__).parent))

from test_ranks import EXPERIMENT, ROOT, assert_same, environment

FIRST = "10.213.77.1"
SECOND = "10.213.77.2"
CUT_SECONDS = 50
"""Longer than train.timeout of the test, so that the ranks fail and torchrun starts them again."""
SLOW = """
import time
from dither.registry import hookimpl


@hookimpl
def after_step(run, step, metrics):
    time.sleep(0.1)
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Hosts:
    """Two network namespaces, whose ends of the cable are `a` and `b`."""

    def __init__(self):
        key = secrets.token_hex(2)
        self.names = (f"dither-{key}-a", f"dither-{key}-b")
        self.ends = (f"dth{key}a", f"dth{key}b")

    def connect(self):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.ends[0], "type", "veth", "peer", "name", self.ends[1])
        for name, end, address in zip(
            self.names, self.ends, (FIRST, SECOND), strict=True
        ):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def switch(self, state):
        ip("-n", self.names[1], "link", "set", self.ends[1], state)

    def remove(self):
        for name in self.names:
            subprocess.run(
                ["ip", "netns", "del", name], check=False, capture_output=True
            )

    def launch(self, words, log, restarts=0):
        """Start torchrun on both hosts."""
        job = secrets.token_hex(4)
        running = []
        for name, end, address in zip(
            self.names, self.ends, (FIRST, SECOND), strict=True
        ):
            torchrun = [
                "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
                "--rdzv-backend", "c10d", "--rdzv-id", job,
                "--rdzv-endpoint", f"{FIRST}:29500", "--local-addr", address,
                # torchrun compares the endpoint with the name of the host, which both share.
                "--rdzv-conf", f"is_host={int(address == FIRST)}",
                "--max-restarts", str(restarts),
            ]  # fmt: skip
            command = ["ip", "netns", "exec", name, sys.executable, *torchrun]
            with (log / f"{end}.txt").open("wb") as output:
                process = subprocess.Popen(
                    [*command, "-m", "experiments.run", *words],
                    cwd=ROOT,
                    env=environment() | {"GLOO_SOCKET_IFNAME": end},
                    stdout=output,
                    stderr=output,
                )
            running.append(process)
        return running


@pytest.fixture(scope="module")
def hosts():
    if shutil.which("ip") is None:
        pytest.skip("two hosts: no command ip (iproute2)")
    hosts = Hosts()
    try:
        hosts.connect()
    except subprocess.CalledProcessError as error:
        hosts.remove()
        pytest.skip(f"two hosts: {error.stderr.decode().strip()}")
    yield hosts
    hosts.remove()


def wait(running, log, seconds=400):
    deadline = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            pytest.fail(output_of(log))


def output_of(log):
    return "\n".join(path.read_text()[-3000:] for path in log.glob("dth*.txt"))


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    (folder / "exp.toml").write_text(EXPERIMENT)
    assert main(["run", str(folder / "exp.toml"), "--runs", str(folder / "runs")]) == 0
    (path,) = (folder / "runs").glob("*-*")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_hosts_equal_one_process(hosts, single, tmp_path, strategy):
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    runs = tmp_path / "runs"
    words = [
        str(tmp_path / "exp.toml"),
        f"train.strategy={strategy}",
        "--runs",
        str(runs),
    ]
    wait(hosts.launch(words, tmp_path), tmp_path)
    (path,) = runs.glob("*-*")
    assert (path / "summary.json").is_file(), output_of(tmp_path)
    assert_same(single, path)


@pytest.mark.slow
def test_hosts_restart_after_the_cable_was_cut(hosts, tmp_path):
    """The run goes on from its checkpoint once the cable is back, without another run."""
    (tmp_path / "slow.py").write_text(SLOW)
    text = 'plugins = ["slow.py"]\n' + EXPERIMENT.replace("steps = 8", "steps = 100")
    (tmp_path / "exp.toml").write_text(text)
    runs = tmp_path / "runs"
    words = [
        str(tmp_path / "exp.toml"),
        "train.timeout=30",
        "evaluate.samples=4",
        "sample.count=0",
    ]
    running = hosts.launch([*words, "--runs", str(runs)], tmp_path, restarts=10)
    deadline = time.monotonic() + 200
    while not list(runs.glob("*/checkpoints/step-*")):
        assert time.monotonic() < deadline, output_of(tmp_path)
        time.sleep(0.1)
    hosts.switch("down")
    time.sleep(CUT_SECONDS)
    hosts.switch("up")
    wait(running, tmp_path)
    (path,) = runs.glob("*-*")
    assert json.loads((path / "summary.json").read_text())["step"] == 100, output_of(
        tmp_path
    )
    assert json.loads((path / "manifest.json").read_text())["resumed"]
