"""Files of data sets on the Hugging Face Hub, by name; downloaded once into the cache of huggingface_hub."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from dither.registry.config.errors import Refused
from dither.registry.files.cache import cache_folder
from dither.registry.files.write_errors import is_full, unwritable

from ...missing_library import require_extra
from .builtin_texts import cached_json
from .file_formats import COMPRESSED, record_format
from .published_splits import SPLIT_NAMES

__all__ = ["HUB", "hub_files"]

HUB = "hub:"
"""Beginning of a name on the hub in place of a path."""
ADDRESS = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/(.+))?")
ABOUT = ("dataset_info", "dataset_infos", "license", "readme")
"""Names, without suffix, of files about the data."""
FORM = (
    "write hub:OWNER/NAME, hub:OWNER/NAME@REVISION or hub:OWNER/NAME/FOLDER/*.parquet"
)


def hub_files(address: str) -> list[Path]:
    """Return the local files of a data set: those that match a pattern, or all of text and records.

    The commit is that of the first use, so that data do not change between runs, and no network is
    needed from then on.

    Raises:
        Refused: The address is invalid, nothing can be downloaded, no file matches, or the files
            are in several folders, which may be of different data.
    """
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise Refused(f"{address}: not a data set", help=FORM, code="invalid-value")
    require_extra("hub", address)
    from huggingface_hub import HfApi, hf_hub_download

    name, revision, pattern = parts.groups()
    endpoint = os.environ.get("HF_ENDPOINT")
    # A mirror may have other data under the same name.
    key = sha256(f"{endpoint} {address}".encode()).hexdigest()[:32]

    def commit_and_files() -> dict[str, Any]:
        info = HfApi(endpoint).dataset_info(name, revision=revision)
        names = sorted(sibling.rfilename for sibling in info.siblings or ())
        return {"commit": info.sha, "files": _chosen(address, names, pattern)}

    try:
        found = cached_json(cache_folder() / "hub" / f"{key}.json", commit_and_files)
        return [
            Path(
                hf_hub_download(
                    name,
                    file,
                    repo_type="dataset",
                    revision=found["commit"],
                    endpoint=endpoint,
                )
            )
            for file in found["files"]
        ]
    except Refused:
        raise
    # Also errors of the HTTP library, which differs by the version of huggingface_hub.
    except Exception as error:
        if is_full(error):
            raise unwritable(f"the download of {address}", error) from None
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        hint = "check the name, the network, HF_ENDPOINT and HF_TOKEN"
        message = f"{address} could not be downloaded: {reason}"
        raise Refused(message, help=hint, code="download-failed") from None


def _chosen(address: str, names: list[str], pattern: str | None) -> list[str]:
    """Return the files that match a pattern, or all of text and records."""
    if pattern is not None:
        files = [name for name in names if fnmatch(name, pattern)]
    else:
        files = [name for name in names if _is_data(PurePosixPath(name))]
    if not files:
        some = ", ".join(names[:8])
        message = f"{address}: no file of text or records among {some}"
        raise Refused(message, help=FORM, code="file-not-found")

    # Folders of splits belong together.
    folders = set()
    for name in files:
        parents = PurePosixPath(name).parts[:-1]
        folders.add("/".join(part for part in parents if part not in SPLIT_NAMES))
    if pattern is None and len(folders) > 1:
        shown = sorted(folder or "." for folder in folders)
        message = f"{address} has files in the folders {', '.join(shown)}"
        hint = f"choose one, such as {address}/{shown[-1]}/*"
        raise Refused(message, help=hint, code="misfit")
    return files


def _is_data(name: PurePosixPath) -> bool:
    suffix = name.suffix.lower()
    if suffix in COMPRESSED:
        suffix = name.with_suffix("").suffix.lower()
    if name.stem.lower() in ABOUT:
        return False
    return record_format(Path(name)) is not None or suffix == ".txt"
