"""Base class of data that `dither prepare NAME` converts once. Imports neither numpy nor torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from dither.registry.config.errors import Refused
from dither.registry.files.cache import cache_folder
from dither.registry.kinds import DataSpec
from dither.registry.spec.base import path_mark
from dither.registry.spec.misfit import Misfit

from .manifest import MANIFEST, Kind, Manifest, changed_options, read_manifest

__all__ = ["PrepareSpec"]


class PrepareSpec(DataSpec):
    """Data that is converted once by `dither prepare`, into the cache or a chosen folder.

    Subclasses define the options named by `source_option` and `stored.option`, and may define
    `force`.
    """

    stored: ClassVar[Kind]
    source_option: ClassVar[str] = "paths"
    read_options: ClassVar[frozenset[str]] = frozenset()
    """Options that matter when the prepared data are read, not when they are made."""

    def options(self) -> dict[str, Any]:
        """Return the options that determine the prepared data."""
        # An option to read with, or the place, must not make other data of the same source.
        hidden = {
            self.source_option,
            self.stored.option,
            "force",
            "use",
            *self.read_options,
        }
        return self.model_dump(mode="json", exclude=hidden)

    def folder(self) -> Path:
        """Return the folder of the prepared data, which need not exist."""
        if chosen := getattr(self, self.stored.option):
            return Path(chosen).expanduser()

        # Absolute paths: a run finds its data from any working directory.
        mark = path_mark(type(self).model_fields[self.source_option])
        is_name = re.compile(mark.unless if mark else "").fullmatch
        sources = []
        for name in self._sources():
            sources.append(
                name if is_name(name) else os.path.abspath(Path(name).expanduser())
            )
        key = json.dumps({**self.options(), "sources": sources}, sort_keys=True)
        # 64 bits suffice: a collision would still be noticed by the options in the manifest.
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        return cache_folder() / self.stored.name / digest

    def _sources(self) -> list[str]:
        source = getattr(self, self.source_option)

        if isinstance(source, str):
            return [source]
        return source

    def command(self) -> str:
        """Return the command that prepares the data."""
        words = ["dither", "prepare", self.name]
        hidden = {"force", "use", *self.read_options}
        # A list of sources is the command's arguments, a single one an option.
        if isinstance(getattr(self, self.source_option), list):
            words += self._sources()
            hidden.add(self.source_option)
        changed = self.model_dump(mode="json", exclude_defaults=True, exclude=hidden)
        for key, value in changed.items():
            words.append(f"--{key.replace('_', '-')}")
            # A flag has no value; other values are read as JSON.
            if value is not True:
                words.append(value if isinstance(value, str) else json.dumps(value))
        return shlex.join(words)

    def check(self) -> Iterator[Misfit]:
        """Yield that the data have not been prepared."""
        if not (self.folder() / MANIFEST).is_file():
            message = f"{self.stored.name} not prepared: no {self.folder() / MANIFEST}"
            yield Misfit(
                message,
                (self.source_option,),
                help=f"run: {self.command()}",
                code="not-prepared",
            )

    def manifest(self) -> Manifest:
        """Read the manifest; raise Refused if the data are missing, damaged, or outdated."""
        manifest = read_manifest(self.folder(), self.stored, self.command())
        self.check_options(manifest, self.options())
        return manifest

    def check_options(self, manifest: Manifest, made: dict[str, Any]) -> None:
        """Raise Refused with the options that differ from those of a manifest."""
        if changed := changed_options(manifest, made):
            names = ", ".join(changed)
            message = (
                f"{self.folder()} was prepared with other options: {names} changed"
            )
            fix = f"run: {self.command()} --force"
            raise Refused(message, help=fix, code="changed-options")
