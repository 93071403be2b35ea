"""Commands that install what is missing. They never name a distribution that the package index may not have."""

from __future__ import annotations

import importlib.metadata
import importlib.util

__all__ = ["install_command"]


def install_command(distribution: str, extra: str) -> str:
    """Return the command that installs the libraries of an extra of an installed distribution.

    It names the libraries, so it is the same for a checkout and for wheels.
    """
    from packaging.requirements import Requirement

    try:
        required = [Requirement(text) for text in importlib.metadata.requires(distribution) or ()]
    except importlib.metadata.PackageNotFoundError:
        required = []
    libraries = [
        f"'{one.name}{one.specifier}'"
        for one in required
        if one.marker is not None and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
    ]
    pip = "uv pip" if importlib.util.find_spec("pip") is None else "python -m pip"
    return f"{pip} install {' '.join(libraries)}" if libraries else f"install the extra {extra} of {distribution}"
