"""One-file plugins as importable modules: a file is imported as `<this module>.<stem>_<hash of its path>`."""

from __future__ import annotations

import hashlib
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType

from ..files.limits import read_bytes

__all__ = ["import_file"]

__path__: list[str] = []  # makes this module a package


def import_file(path: Path) -> tuple[ModuleType, str]:
    """Import a file, again if it was imported before; return the module and its sha256."""
    source = read_bytes(path)
    file = str(path.resolve())
    stem = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
    name = f"{__name__}.{stem}_{hashlib.sha256(file.encode()).hexdigest()[:8]}"
    loader = _Loader(name, file)
    loader.source = source
    spec = spec_from_loader(name, loader)
    assert spec is not None
    sys.modules[name] = module = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ImportError) and (error.name or "").startswith(__name__):
            error.msg = "a one-file plugin is one file and cannot import siblings"
        raise
    return module, hashlib.sha256(source).hexdigest()


class _Loader(SourceFileLoader):
    """Loads the source that was hashed; reads and writes no byte code."""

    source: bytes

    def get_code(self, fullname: str) -> CodeType | None:
        code: CodeType = self.source_to_code(self.source, self.path)
        return code
