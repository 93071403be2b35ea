"""Addresses of fsspec in place of paths, such as s3://bucket/runs. Imports no library at the top."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..config.errors import Problem

__all__ = [
    "ADDRESS",
    "CHECK_ADDRESS",
    "address_of",
    "address_problem",
    "cause_of",
    "error_reason",
    "is_http",
    "is_unreachable",
    "service_options",
]

ADDRESS = r"(?:(?:file|local):/{1,3}|[a-z][a-z0-9+.-]+://?)[^/].*"
"""Regular expression of an address. `Path` makes one slash of two or three; a scheme has two letters or more."""
LOCAL = ("file", "local")
"""Schemes of this machine, whose addresses have no host."""
CONNECT = 5.0
"""Seconds until a host counts as unreachable; three packets ask for a connection in this time."""
SILENCE = 60.0
"""Seconds without a byte after which a connection counts as broken."""
GONE = (404, 410)
"""Status of HTTP for a file that does not exist."""
UNREACHABLE = frozenset({"ClientConnectorError", "EndpointConnectionError"})
"""Exceptions of aiohttp and botocore for a host that is unknown or refuses connections."""
CHECK_ADDRESS = "check the address and the network"


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


def is_http(address: str) -> bool:
    """Return whether an address is one of HTTP, whose files have no folders."""
    return address.startswith(("http://", "https://"))


def service_options(address: str) -> dict[str, Any]:
    """Return options of fsspec for the service of an address; ImportError without its library."""
    if not is_http(address):
        return {}
    from aiohttp import ClientTimeout

    # By default a request may take five minutes, however much arrives.
    timeout = ClientTimeout(total=None, sock_connect=CONNECT, sock_read=SILENCE)
    return {"client_kwargs": {"timeout": timeout}}


def cause_of(error: BaseException) -> BaseException:
    """Return the reason of a failure: HTTP reports each as a missing file, with the reason as its cause."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or cause is None:
        return error
    return error if getattr(cause, "status", None) in GONE else cause


def is_unreachable(error: BaseException) -> bool:
    """Return whether a failure is that of a connection, and not an answer."""
    reason = cause_of(error)
    names = {kind.__name__ for kind in type(reason).__mro__}
    is_known = isinstance(reason, ConnectionError | TimeoutError)
    return is_known or not UNREACHABLE.isdisjoint(names)


def error_reason(error: BaseException) -> str:
    """Return the first line of an error, without the query of an address, which may be signed."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"\?\S+", "?...", text.splitlines()[0])
