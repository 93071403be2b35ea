"""One-file plugins as importable modules, here and in every process started from here.

A file that an experiment names is imported as `<this module>.<stem>_<hash>`. Its path and sha256 travel in an
environment variable, so that worker processes can unpickle what the file defines; a file that was changed meanwhile is
refused there.
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

__all__ = ["KNOWN", "import_file", "module_name"]

KNOWN = "DITHER_PLUGIN_FILES"
"""The environment variable in which a process hands the files it has imported to those it starts."""
__path__: list[str] = []  # a package, as far as the import system is concerned: its modules are found by `_Finder`


def module_name(path: Path) -> str:
    """Return the name under which a file is imported."""
    stem = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
    return f"{__name__}.{stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"


def import_file(path: Path) -> tuple[ModuleType, str]:
    """Import a file anew; return the module and the sha256 of what was imported.

    Raises:
        OSError: It cannot be read; or whatever it raises.
    """
    name, sha256 = module_name(path), hashlib.sha256(path.read_bytes()).hexdigest()
    before = os.environ.get(KNOWN)
    os.environ[KNOWN] = json.dumps({**_known(), name: [str(path.resolve()), sha256]})
    sys.modules.pop(name, None)
    try:
        return importlib.import_module(name), sha256
    except BaseException as error:
        os.environ.pop(KNOWN) if before is None else os.environ.__setitem__(KNOWN, before)
        if isinstance(error, ImportError) and (error.name or "").startswith(__name__):
            error.msg = "a one-file plugin is one file: it has no siblings to import"
        raise


def _known() -> dict[str, list[str]]:
    try:
        known = json.loads(os.environ.get(KNOWN, "{}"))
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a file whose bytes are those that were agreed on; leaves no byte code beside it."""

    def __init__(self, name: str, path: str, sha256: str) -> None:
        super().__init__(name, path)
        self.sha256 = sha256

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the file."""
        source = Path(self.path).read_bytes()
        if hashlib.sha256(source).hexdigest() != self.sha256:
            raise ImportError(f"plugin file {self.path} was changed after it was first imported")
        code: CodeType = self.source_to_code(source, self.path)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the modules of files that this process, or one that started it, has imported."""
        if not fullname.startswith(f"{__name__}.") or fullname not in (known := _known()):
            return None
        file, sha256 = known[fullname]
        return importlib.util.spec_from_file_location(fullname, file, loader=_Loader(fullname, file, sha256))


sys.meta_path.append(_Finder())
