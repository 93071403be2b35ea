"""One-file plugins as importable modules, in this process and its child processes.

A file is imported as `<this module>.<stem>_<hash>`. An environment variable passes its path and sha256 on, so that
worker processes can unpickle its classes; a file that was changed since is rejected there.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from ..files.limits import read_bytes

__all__ = ["KNOWN", "import_file", "module_name"]

KNOWN = "DITHER_PLUGIN_FILES"
"""Environment variable that passes the imported files to child processes."""
__path__: list[str] = []  # makes this module a package, whose modules `_Finder` finds


def module_name(path: Path) -> str:
    """Return the name under which a file is imported."""
    stem = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
    return f"{__name__}.{stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"


def import_file(path: Path) -> tuple[ModuleType, str]:
    """Import a file, again if it was imported before; return the module and its sha256."""
    name, sha256 = module_name(path), hashlib.sha256(read_bytes(path)).hexdigest()
    before = os.environ.get(KNOWN)
    os.environ[KNOWN] = json.dumps({**_known(), name: [str(path.resolve()), sha256]})
    sys.modules.pop(name, None)
    try:
        return importlib.import_module(name), sha256
    except BaseException as error:
        os.environ.pop(KNOWN) if before is None else os.environ.__setitem__(KNOWN, before)
        if isinstance(error, ImportError) and (error.name or "").startswith(__name__):
            error.msg = "a one-file plugin is one file and cannot import siblings"
        raise


def _known() -> dict[str, list[str]]:
    try:
        known = json.loads(os.environ.get(KNOWN, "{}"))
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a file if its checksum is the expected one; writes no byte code."""

    def __init__(self, name: str, path: str, sha256: str) -> None:
        super().__init__(name, path)
        self.sha256 = sha256

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the source after checking its sha256."""
        source = Path(self.path).read_bytes()
        if hashlib.sha256(source).hexdigest() != self.sha256:
            raise ImportError(f"plugin file {self.path} was changed after it was imported")
        code: CodeType = self.source_to_code(source, self.path)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the modules of files that this process or a parent process imported."""
        if not fullname.startswith(f"{__name__}.") or fullname not in (known := _known()):
            return None
        file, sha256 = known[fullname]
        return importlib.util.spec_from_file_location(fullname, file, loader=_Loader(fullname, file, sha256))


sys.meta_path.append(_Finder())
