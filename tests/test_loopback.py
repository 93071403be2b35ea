"""No module opens a server, and commands make no network calls."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVERS = re.compile(
    r"^\s*(?:import|from) (?:http\.server|socketserver|wsgiref|xmlrpc|flask|fastapi|uvicorn|aiohttp|tornado)\b"
    r"|\.(?:bind|listen|create_server|serve_forever)\(",
    re.MULTILINE,
)


def test_nothing_listens():
    sources = sorted(ROOT.glob("packages/*/dither/**/*.py"))
    assert not [path.name for path in sources if SERVERS.search(path.read_text(encoding="utf-8"))]


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
def test_no_network_calls(tmp_path, verb):
    words = [str(ROOT / "experiments/bubble_diagram/quick.toml")] if verb == "validate" else []
    assert traced(tmp_path, verb, *words) == []
