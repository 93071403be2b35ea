"""Write a plugin of every kind, install them all into one fresh environment, run their tests and their experiments.

    python tests/scaffold/try_all.py [FOLDER]

The environment is new, but sees the site-packages of the Python that runs this: torch and the packages of dither are
not installed again. It needs flit_core there. Everything happens in FOLDER, by default a temporary one, outside the
repository.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

KINDS = (
    "task", "data", "process", "schedule", "sampler", "loss", "model", "block",
    "embedding", "position", "condition", "head", "optimizer", "lr-schedule",
)  # fmt: skip
RUN_EACH = """
import sys
from dither.engine.cli import main
codes = {path: main(["run", path, "--runs", sys.argv[1]]) for path in sys.argv[2:]}
sys.exit(f"failed: {codes}" if any(codes.values()) else 0)
"""
START = time.monotonic()


def say(what: str) -> None:
    sys.stdout.write(f"-- {what} ({time.monotonic() - START:.0f}s)\n")
    sys.stdout.flush()


def fresh_environment(folder: Path) -> Path:
    """Make a virtual environment that sees our packages; return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    # `addsitedir` and not a bare path: it reads the .pth files there, by which editable packages are found.
    (site / "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python


def main(folder: Path) -> None:
    environment = {
        "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder / "venv"),
        "DITHER_DATA": os.environ.get("DITHER_DATA", str(folder / "data")),
        **{key: os.environ[key] for key in os.environ if key.startswith(("PIP_", "OMP_", "HOME", "XDG_", "CI_"))},
    }

    def run(*command: object) -> None:
        subprocess.run([str(word) for word in command], cwd=folder, env=environment, check=True)

    python = fresh_environment(folder / "venv")
    say("write")
    (folder / "plugins").mkdir()
    new = "import sys; from dither.engine.cli import main; sys.exit(max(main(['new', 'plugin', f'trial-{kind}', "
    run(python, "-c", f"{new}'--kind', kind, '--into', 'plugins']) for kind in sys.argv[1:]))", *KINDS)
    packages = [folder / "plugins" / f"dither-trial-{kind}" for kind in KINDS]
    say("install")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check"]
    run(*install, "--no-deps", "--no-build-isolation", *(word for package in packages for word in ("-e", package)))
    say("check style and types")
    for package in packages:
        run(sys.executable, "-m", "ruff", "check", "-q", "--no-cache", package)
        run(sys.executable, "-m", "ruff", "format", "-q", "--no-cache", "--check", package)
    say("run the conformance kit over all of them")
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", os.devnull,
        f"--rootdir={folder}", *(package / "tests" for package in packages))  # fmt: skip
    say("run their experiments")
    run(python, "-c", RUN_EACH, folder / "runs", *(package / "experiment.toml" for package in packages))
    say("done")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True)
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="dither-scaffold-") as name:
            main(Path(name).resolve())
