"""Nothing of ours listens to a network: pages are files. TensorBoard, which people start, keeps to this machine."""

import ast
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVERS = {"http.server", "socketserver", "wsgiref", "xmlrpc", "flask", "fastapi", "uvicorn", "aiohttp", "tornado"}


def test_nothing_listens():
    wrong = []
    for path in sorted(ROOT.glob("packages/*/dither/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            wrong += [f"{path.name} imports {name}" for name in names if name in SERVERS]
            if isinstance(node, ast.Attribute) and node.attr in ("bind", "listen", "create_server", "serve_forever"):
                wrong.append(f"{path.name}:{node.lineno} calls {node.attr}")
    assert not wrong, wrong


def traced(folder, *words):
    """Return the network calls of a command and its children, recorded by strace."""
    probe = ["strace", "-f", "-qq", "-e", "trace=connect,bind,listen,accept,sendto", "-o", str(folder / "calls")]
    if shutil.which("strace") is None or subprocess.run([*probe, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no strace here, or it may not be used")
    code = "import sys; from dither.engine.cli import main; sys.exit(main())"
    command = [*probe, sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert not done.returncode, done.stderr
    return [line for line in (folder / "calls").read_text().splitlines() if "(" in line and "SIG" not in line]


@pytest.mark.parametrize("verb", ["validate", "list"])
def test_nothing_is_sent_and_nobody_is_asked(tmp_path, verb):
    words = [str(ROOT / "experiments/bubble_diagram/quick.toml")] if verb == "validate" else []
    assert traced(tmp_path, verb, *words) == []


@pytest.mark.slow
def test_tensorboard_keeps_to_this_machine(tmp_path):
    """As its manual says, and as `tensorboard --logdir runs` is told in ours: the address is that of the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as board:
        try:
            for line in board.stderr:
                if "http://" in line:
                    break
            tables = "\n".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
            local = [line.split()[1].split(":") for line in tables.splitlines() if line.count(":") > 1]
            listening = {address[0] for address in local if address[1:] == [f"{port:04X}"]}
        finally:
            board.kill()
    assert listening <= {"0100007F", "00000000000000000000000001000000"}
    assert listening, "it did not start"
