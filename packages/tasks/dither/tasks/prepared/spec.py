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

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.cache import cache_folder
from dither.registry.kinds import DataSpec
from dither.registry.spec.base import path_mark
from dither.registry.spec.misfit import Misfit

from .manifest import MANIFEST, Kind, Manifest, changed_options, read_manifest

__all__ = ["PrepareSpec"]


class PrepareSpec(DataSpec):
    """Data that is converted once by `dither prepare` into a folder in the cache, or where an option says.

    Subclasses define the options named by `source_option` and `stored.option`, and may define
    `force`.
    """

    stored: ClassVar[Kind]
    source_option: ClassVar[str] = "paths"
    read_options: ClassVar[frozenset[str]] = frozenset()
    """Options that matter when the prepared data are read, not when they are made."""

    def options(self) -> dict[str, Any]:
        """Return the options that determine the prepared data."""
        hidden = {self.source_option, self.stored.option, "force", "use", *self.read_options}
        return self.model_dump(mode="json", exclude=hidden)

    def folder(self) -> Path:
        """Return the folder of the prepared data, which need not exist."""
        if chosen := getattr(self, self.stored.option):
            return Path(chosen).expanduser()
        given = getattr(self, self.source_option)
        names = [given] if isinstance(given, str) else given
        mark = path_mark(type(self).model_fields[self.source_option])
        is_name = re.compile(mark.unless if mark else "").fullmatch
        absolute = [
            name if is_name(name) else os.path.abspath(Path(name).expanduser()) for name in names
        ]
        # earlier versions: with the working directory, so that a run found its data only where it
        # was started
        earlier = [{key: given, "from": str(Path.cwd())} for key in ("source", "paths")]
        keys = ({**self.options(), **key} for key in ({"sources": absolute}, *earlier))
        digests = (
            hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
            for key in keys
        )
        folders = [cache_folder() / self.stored.name / digest for digest in digests]
        return next((folder for folder in folders if folder.exists()), folders[0])

    def command(self) -> str:
        """Return the command that prepares the data."""
        source = getattr(self, self.source_option)
        words = ["dither", "prepare", self.name, *(source if isinstance(source, list) else ())]
        hidden = {
            "force",
            "use",
            *self.read_options,
            *({self.source_option} if isinstance(source, list) else ()),
        }
        for key, value in self.model_dump(
            mode="json", exclude_defaults=True, exclude=hidden
        ).items():
            words.append(f"--{key.replace('_', '-')}")
            words += (
                [] if value is True else [value if isinstance(value, str) else json.dumps(value)]
            )
        return shlex.join(words)

    def check(self) -> Iterator[Misfit]:
        """Yield that the data have not been prepared."""
        if not (self.folder() / MANIFEST).is_file():
            message = f"{self.stored.name} not prepared: no {self.folder() / MANIFEST}"
            yield Misfit(
                message, (self.source_option,), help=f"run: {self.command()}", code="not-prepared"
            )

    def manifest(self) -> Manifest:
        """Read the manifest of the data; raises Refused if they are missing, damaged, or made with other options."""
        manifest = read_manifest(self.folder(), self.stored, self.command())
        self.check_options(manifest, self.options())
        return manifest

    def check_options(self, manifest: Manifest, made: dict[str, Any]) -> None:
        """Raise Refused with the options that differ from those of a manifest."""
        if changed := changed_options(manifest, made):
            message = (
                f"{self.folder()} was prepared with other options: {', '.join(changed)} changed"
            )
            raise Refused(
                Problem(message, help=f"run: {self.command()} --force", code="changed-options")
            )
