"""Write a plugin of every kind, install all into a fresh environment, run tests and experiments, and the tutorial.

    python tests/scaffold/try_all.py [FOLDER]

Everything happens in FOLDER, by default a temporary one. The new environment includes the site-packages of this Python,
so that torch and dither are not installed again; flit_core, ruff and mypy are required as well.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dither.registry.kinds import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
STEP = re.compile(
    r"Write `(?P<path>.+)`:\n\n```python\n(?P<text>[\s\S]*?)^```|^    (?P<command>.+)",
    re.M,
)
"""Steps of the tutorial: a file to write, or a command."""
SCRIPT = """#!{python}
import sys
from {module} import main
sys.exit(main())
"""
NEW_EACH = """
import sys
from dither.engine.cli import main
sys.exit(max(main(["new", "plugin", f"trial-{kind}", "--kind", kind, "--out", "plugins"]) for kind in sys.argv[1:]))
"""
RUN_EACH = """
import sys
from dither.engine.cli import main
codes = {path: main(["run", path, "--runs", "runs"]) for path in sys.argv[1:]}
sys.exit(f"failed: {codes}" if any(codes.values()) else 0)
"""
START = time.monotonic()


def say(what: str) -> None:
    sys.stdout.write(f"-- {time.monotonic() - START:.0f}s {what}\n")
    sys.stdout.flush()


def do(
    folder: Path, environment: dict[str, str], *command: object, expected: int = 0
) -> None:
    """Run a command; show its output only if the exit code is unexpected."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != expected:
        shown = " ".join(words[-1:] if words[0] == "bash" else words)[:300]
        raise RuntimeError(
            f"{shown}: exit code {done.returncode}, not {expected}\n{done.stdout}\n{done.stderr}"
        )
    for line in done.stdout.splitlines():
        if line.startswith("conformance: "):
            say(line)


def fresh_environment(folder: Path) -> dict[str, str]:
    """Make a virtual environment with our packages; return the variables of a shell in it."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    # `addsitedir` reads the .pth files of editable packages; a bare path would not.
    shared = sysconfig.get_path("purelib")
    (site / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    scripts = folder / "bin"
    for name, module in (("dither", "dither.engine.cli"), ("pytest", "pytest")):
        text = SCRIPT.format(python=scripts / "python", module=module)
        (scripts / name).write_text(text)
        (scripts / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{scripts}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
        "DITHER_DATA": str(folder / "data"),
        "OMP_NUM_THREADS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_QUIET": "1",
    }


def check_style(
    folder: Path, environment: dict[str, str], packages: list[Path]
) -> None:
    ruff = (sys.executable, "-m", "ruff")
    # Each package under its own configuration.
    for package in packages:
        do(package, environment, *ruff, "check", "-q", "--no-cache", ".")
        do(package, environment, *ruff, "format", "-q", "--no-cache", "--check", ".")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "mypy")
    modules = [next(package.glob("dither_*")) for package in packages]
    do(folder, environment, *mypy, *modules)
    say("style and types: done")


def try_kit(folder: Path, environment: dict[str, str], packages: list[Path]) -> None:
    # No configuration but that of the command line.
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={folder}"]
    options.append("--import-mode=importlib")
    tests = [package / "tests" for package in packages]
    do(folder, environment, "python", "-m", "pytest", *options, *tests)
    experiments = [package / "experiment.toml" for package in packages]
    do(folder, environment, "python", "-c", RUN_EACH, *experiments)
    say("their own tests and experiments: done")


def try_tutorial(folder: Path) -> None:
    environment = fresh_environment(folder / "venv")
    where = folder
    tutorial = PAGE.read_text().split("\n## Step by step\n")[1].split("\n## ")[0]
    for step in STEP.finditer(tutorial):
        if step["path"]:
            (where / step["path"]).write_text(step["text"])
            continue
        command, _, remark = (part.strip() for part in step["command"].partition("  #"))
        if command.startswith("cd "):
            where = where / command.removeprefix("cd ")
        elif "twine" not in command:
            expected = (
                int(remark.rpartition(" ")[2]) if remark.startswith("exits with") else 0
            )
            do(where, environment, "bash", "-c", command, expected=expected)
    say("the tutorial: done")


def main(folder: Path) -> None:
    environment = fresh_environment(folder / "venv")
    plugins = folder / "plugins"
    plugins.mkdir()
    do(folder, environment, "python", "-c", NEW_EACH, *KINDS)
    packages = [plugins / f"dither-trial-{kind}" for kind in KINDS]
    editable = []
    for package in packages:
        editable += ["-e", package]
    install = ("python", "-m", "pip", "install", "--no-deps", "--no-build-isolation")
    do(folder, environment, *install, *editable)
    say(f"{len(packages)} plugins: written and installed")

    # Two processes, which take one core each.
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(try_tutorial, folder / "tutorial")]
        jobs += [
            pool.submit(job, folder, environment, packages)
            for job in (try_kit, check_style)
        ]
        for job in jobs:
            job.result()
    say("done")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True)
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="dither-scaffold-") as name:
            main(Path(name).resolve())
