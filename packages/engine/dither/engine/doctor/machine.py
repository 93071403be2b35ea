"""Python, torch and what else is installed; processor, memory, disk; the command itself."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dither.registry.storage import cache_folder

from .findings import Finding, Scene

__all__ = ["command", "extras", "folders", "processor", "python", "requirements", "torch"]

OLDEST = (3, 11)
"""The first Python that is supported."""
SPACE = {"note": 5e9, "broken": 2e8}
"""Bytes of free disk below which we say so: checkpoints of the larger models take gigabytes."""


def python(scene: Scene) -> Iterator[Finding]:
    """Which Python this is, and whether it is one that is supported."""
    version = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST:
        yield Finding("python", "broken", version, "use Python 3.11 or later")
    elif sys.prefix == sys.base_prefix:
        yield Finding("python", "note", f"{version}, in no virtual environment", "python -m venv .venv")
    else:
        yield Finding("python", "ok", version)


def torch(scene: Scene) -> Iterator[Finding]:
    """Which torch is installed. Not imported."""
    try:
        yield Finding("torch", "ok", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding("torch", "broken", "is not installed", "python -m pip install -r requirements.txt")


def _ours() -> Iterator[importlib.metadata.Distribution]:
    """Our distributions, and those that offer plugins."""
    from dither.registry.installed import GROUP

    seen = set()
    for dist in importlib.metadata.distributions():
        name = canonicalize_name(dist.name or "")
        ours = name.startswith("dither-") or any(point.group == GROUP for point in dist.entry_points)
        if ours and name not in seen:
            seen.add(name)
            yield dist


def _required(dist: importlib.metadata.Distribution, extra: str) -> Iterator[Requirement]:
    """What a distribution needs here, or with an extra."""
    for text in dist.requires or ():
        wanted = Requirement(text)
        without = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if without if not extra else (not without and wanted.marker and wanted.marker.evaluate({"extra": extra})):
            yield wanted


def _lack(wanted: Requirement) -> str:
    """Say what is wrong with a requirement here, or nothing."""
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"
    fits = wanted.specifier.contains(version, prereleases=True)
    return "" if fits else f"is installed in version {version}"


def requirements(scene: Scene) -> Iterator[Finding]:
    """Whether what our distributions and the plugins need is there, in a version that fits."""
    found = False
    for dist in _ours():
        for wanted in _required(dist, ""):
            if lack := _lack(wanted):
                found = True
                text = f"{dist.name} needs {wanted.name}{wanted.specifier}, which {lack}"
                yield Finding(
                    "requirements", "broken", text, f"python -m pip install '{wanted.name}{wanted.specifier}'"
                )
    if not found:
        yield Finding("requirements", "ok", "all there")


def processor(scene: Scene) -> Iterator[Finding]:
    """Cores, threads and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS", "")
    said = f", OMP_NUM_THREADS={threads}" if threads else ""
    yield Finding("machine", "ok", f"{platform.platform()}, {cores} cores{said}{_memory()}")
    if threads.isdecimal() and int(threads) > cores:
        yield Finding("threads", "note", f"OMP_NUM_THREADS={threads}, but there are {cores} cores", "set it no higher")


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return ""
    return f", {total / 1e9:.1f} GB of memory"


def folders(scene: Scene) -> Iterator[Finding]:
    """Whether runs and prepared data can be written, and how much room there is."""
    for topic, folder in (("runs", scene.runs), ("cache", cache_folder())):
        there = folder.absolute()
        while not there.exists() and there != there.parent:
            there = there.parent
        try:
            with tempfile.TemporaryFile(dir=there):
                free = shutil.disk_usage(there).free
        except OSError as error:
            option = "--runs" if topic == "runs" else "DITHER_DATA"
            why = error.strerror or str(error)
            yield Finding(topic, "broken", f"{folder} cannot be written: {why}", f"choose another folder with {option}")
            continue
        state = next((state for state in ("broken", "note") if free < SPACE[state]), "ok")
        message = f"{folder}, {free / 1e9:.1f} GB free"
        if state == "broken":
            yield Finding(topic, "broken", message, "make room: a checkpoint needs three times the weights")
        elif state == "note":
            yield Finding(topic, "note", message, "room for small models only")
        else:
            yield Finding(topic, "ok", message)


def command(scene: Scene) -> Iterator[Finding]:
    """Whether `dither` on the command line is the one of this environment."""
    scripts = Path(sysconfig.get_path("scripts"))
    found = shutil.which("dither")
    if found is None:
        yield Finding(
            "command", "note", "there is no `dither` on PATH", f"activate the environment: {scripts / 'activate'}"
        )
    elif Path(found).parent.resolve() != scripts.resolve():
        yield Finding(
            "command", "note", f"`dither` on PATH is {found}, of another environment", f"use {scripts / 'dither'}"
        )
    else:
        yield Finding("command", "ok", found)


def extras(scene: Scene) -> Iterator[Finding]:
    """Which optional parts of our distributions are there."""
    for dist in _ours():
        for extra in dist.metadata.get_all("Provides-Extra") or ():
            missing = [wanted.name for wanted in _required(dist, extra) if _lack(wanted)]
            what = f"{dist.name}[{extra}]"
            if missing:
                advice = f"python -m pip install '{what}'"
                yield Finding("extras", "note", f"{what} lacks {', '.join(missing)}", advice)
            else:
                yield Finding("extras", "ok", what)
