"""Optional imports, and the commands that install them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

from ..config.errors import Refused
from ..spec.misfit import Path

__all__ = ["install_command", "optional_import"]


@contextmanager
def optional_import(
    message: str,
    distribution: str,
    extra: str,
    path: Path = (),
) -> Iterator[None]:
    """Refuse, with `install_command` as help, if an import inside fails (`missing-dependency`)."""
    try:
        yield
    except ImportError:
        fix = install_command(distribution, extra)
        raise Refused(message, path, help=fix, code="missing-dependency") from None


def install_command(distribution: str, extra: str) -> str:
    """Return the command that installs the libraries of an extra of an installed distribution.

    It names the libraries, so it is the same for a checkout and for wheels.
    """
    from packaging.requirements import Requirement

    try:
        required = [
            Requirement(text)
            for text in importlib.metadata.requires(distribution) or ()
        ]
    except importlib.metadata.PackageNotFoundError:
        required = []
    libraries = [
        f"'{one.name}{one.specifier}'"
        # Only what the extra adds: the other requirements are installed with the distribution.
        for one in required
        if one.marker is not None
        and one.marker.evaluate({"extra": extra})
        and not one.marker.evaluate({"extra": ""})
    ]
    if not libraries:
        return f"install the extra {extra} of {distribution}"
    # Not by find_spec, on which setuptools replaces distutils, and warns if that is imported.
    pip_is_installed = any(importlib.metadata.distributions(name="pip"))
    pip = "python -m pip" if pip_is_installed else "uv pip"
    return f"{pip} install {' '.join(libraries)}"
