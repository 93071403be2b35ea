"""Addresses of fsspec in place of paths, such as s3://bucket/runs. Imports no library at the top."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
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
    "is_silent",
    "is_unreachable",
    "lacks_credentials",
    "service_options",
]

ADDRESS = r"(?:(?:file|local):/{1,3}|[a-z][a-z0-9+.-]+://?)[^/].*"
"""Regular expression of an address. `Path` makes one slash of two or three; a scheme has two letters or more."""
LOCAL = ("file", "local")
"""Schemes of this machine, whose addresses have no host."""
S3 = ("s3", "s3a")
"""Schemes of s3fs."""
HTTP = ("http", "https")
"""Schemes of web servers."""
CONNECT = 5.0
"""Seconds until a host counts as unreachable; three packets ask for a connection in this time."""
SILENCE = 60.0
"""Seconds without a byte after which a connection counts as broken."""
GONE = (404, 410)
"""Status of HTTP for a file that does not exist."""
UNREACHABLE = frozenset({"ClientConnectorError", "EndpointConnectionError"})
"""Exceptions of aiohttp and botocore for a host that is unknown or refuses connections."""
CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError"})
"""Those of botocore without credentials."""
SILENT = frozenset({"ConnectTimeoutError", "ReadTimeoutError"})
"""Those of botocore for a host that does not answer; of other libraries they are TimeoutErrors."""
ATTEMPTS = 2
"""Requests of botocore until a failure counts. s3fs repeats these up to five times."""
CHECK_ADDRESS = "check the address, the credentials and the network"


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
    hint = None
    if "::" in address:
        message = "an address is one of a single service, without ::"
    elif parts.scheme in LOCAL and parts.netloc:
        # Otherwise it would be another folder in each working directory.
        message = f"an address of this machine has three slashes: {parts.scheme}:///"
    elif not (parts.netloc + parts.path).strip("/"):
        # fsspec would write below a local folder that is named like the service.
        message = "an address names a folder, such as s3://bucket/runs"
    elif "@" in parts.netloc or parts.query:
        message = "an address contains no credentials"
        hint = "use the variables or the configuration of the service, such as AWS_SECRET_ACCESS_KEY"
    elif address_of(str(PurePosixPath(address))) != address_of(address.rstrip("/")):
        # The command line, whose paths have no such parts, could not name it.
        message = "an address has no empty part, and no part ."
    else:
        return None
    return Problem(message, help=hint, code="invalid-value")


def is_http(address: str) -> bool:
    """Return whether an address is one of HTTP, whose files have no folders."""
    return address.startswith(("http://", "https://"))


def service_options(address: str) -> dict[str, Any]:
    """Return options of fsspec for the service of an address; ImportError without its library."""
    if urlsplit(address).scheme in S3:
        # By default five, so that a host that accepts connections and is silent takes 7 minutes.
        retries = {"retries": {"total_max_attempts": ATTEMPTS}}
        return _completed("config_kwargs", retries, S3)
    if not is_http(address):
        return {}
    from aiohttp import ClientTimeout

    # By default a request may take five minutes, however much arrives.
    timeout = ClientTimeout(total=None, sock_connect=CONNECT, sock_read=SILENCE)
    return _completed("client_kwargs", {"timeout": timeout}, HTTP)


def _completed(
    option: str, values: dict[str, Any], services: Iterable[str]
) -> dict[str, Any]:
    """Return an option with what the configuration of fsspec has for it, which it would replace."""
    from fsspec.config import conf  # type: ignore[import-untyped,unused-ignore]

    for service in services:
        values |= conf.get(service, {}).get(option, {})
    return {option: values}


def cause_of(error: BaseException) -> BaseException:
    """Return the reason of a failure: HTTP reports each as a missing file, with the reason as its cause."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or cause is None:
        return error
    # A ClientError of botocore, such as that of a missing bucket.
    is_answer = getattr(cause, "response", None) is not None
    if is_answer or getattr(cause, "status", None) in GONE:
        return error
    return cause


def lacks_credentials(error: BaseException) -> bool:
    """Return whether a service requires credentials that are not configured."""
    return not CREDENTIALS.isdisjoint(_names(error))


def is_silent(error: BaseException) -> bool:
    """Return whether a host did not answer in time."""
    reason = cause_of(error)
    return isinstance(reason, TimeoutError) or not SILENT.isdisjoint(_names(reason))


def is_unreachable(error: BaseException) -> bool:
    """Return whether a failure is that of a connection, and not an answer."""
    reason = cause_of(error)
    is_known = isinstance(reason, ConnectionError)
    refused = is_known or not UNREACHABLE.isdisjoint(_names(reason))
    return refused or is_silent(error)


def _names(error: BaseException) -> set[str]:
    """Return the names of the classes of an error, for those of libraries that may be missing."""
    return {kind.__name__ for kind in type(error).__mro__}


def error_reason(error: BaseException) -> str:
    """Return the first line of an error, without the query of an address, which may be signed."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"\?\S+", "?...", text.splitlines()[0])
