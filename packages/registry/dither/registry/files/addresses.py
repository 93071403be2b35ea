"""Addresses of fsspec in place of paths, such as s3://bucket/runs. Imports no library."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from ..config.errors import Problem

__all__ = ["ADDRESS", "address_of", "address_problem", "error_reason"]

ADDRESS = r"(?:(?:file|local):/{1,3}|[a-z][a-z0-9+.-]+://?)[^/].*"
"""Regular expression of an address. `Path` makes one slash of two or three; a scheme has two letters or more."""
LOCAL = ("file", "local")
"""Schemes of this machine, whose addresses have no host."""


def address_of(path: str | Path) -> str | None:
    """Return the address that is written in place of a path, or None for a local path."""
    text = str(path)
    if re.match(ADDRESS, text) is None:
        return None
    scheme, _, rest = text.partition(":")
    slashes = "///" if scheme in LOCAL else "//"
    return f"{scheme}:{slashes}{rest.lstrip('/')}"


def address_problem(address: str) -> Problem | None:
    """Return a problem if an address is invalid or contains credentials, which a run would record."""
    # The messages do not repeat the address, which may hold a password.
    try:
        parts = urlsplit(address)
    except ValueError:
        return Problem("an address has an invalid host", code="invalid-value")
    if "::" in address:
        message = "an address is one of a single service, without ::"
        return Problem(message, code="invalid-value")
    if parts.scheme in LOCAL and parts.netloc:
        # Otherwise it would be another folder in each working directory.
        message = f"an address of this machine has three slashes: {parts.scheme}:///"
        return Problem(message, code="invalid-value")
    # fsspec would write below a local folder that is named like the service.
    if not (parts.netloc + parts.path).strip("/"):
        message = "an address names a folder, such as s3://bucket/runs"
        return Problem(message, code="invalid-value")
    if "@" not in parts.netloc and not parts.query:
        return None
    hint = "use the variables or the configuration of the service, such as AWS_SECRET_ACCESS_KEY"
    return Problem(
        "an address contains no credentials", help=hint, code="invalid-value"
    )


def error_reason(error: BaseException) -> str:
    """Return the first line of an error, without the query of an address, which may be signed."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"\?\S+", "?...", text.splitlines()[0])
