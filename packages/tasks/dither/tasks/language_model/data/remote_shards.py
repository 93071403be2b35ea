"""Token ids at addresses of fsspec: copied into the cache, where they are memory-mapped."""

from __future__ import annotations

import hashlib
import io
import shutil
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import atomic_folder
from dither.registry.files.cache import cache_folder
from dither.registry.files.limits import RECORD_BYTES

from ...prepared.manifest import MANIFEST, Manifest
from .manifest import SHARDS, StoreInfo
from .remote_files import RemotePath, RemoteReader, exact_path

__all__ = ["fetch_shards"]


@lru_cache(maxsize=64)
def fetch_shards(address: str) -> Path:
    """Return the copy of a folder that `dither prepare text` wrote; it is made on the first use.

    Windows are drawn in any order, for which requests of ranges would be slower than training. A
    folder with another manifest has another copy, so that data do not change during a run.

    Raises:
        Refused: It is not such a folder, or cannot be read or written.
    """
    root = str(exact_path(address.rstrip("/")))
    try:
        with RemoteReader(RemotePath(f"{root}/{MANIFEST}")) as reader:
            content = io.BufferedReader(reader).read(RECORD_BYTES)
    except OSError as error:
        message = f"{root}/{MANIFEST}: {error.strerror or error}"
        raise Refused(message, code="download-failed") from None
    try:
        manifest = Manifest.model_validate_json(content)
        tokenizer = StoreInfo.model_validate(manifest.info).tokenizer.file
    except ValidationError:
        message = f"{root}/{MANIFEST} is not one of prepared {SHARDS.name}"
        raise Refused(message, code="damaged-file") from None

    name = hashlib.sha256(address.encode() + content).hexdigest()[:32]
    folder = cache_folder() / "remote" / name
    if (folder / MANIFEST).is_file():
        return folder
    names = [record.file for record in manifest.arrays.values()]
    # No other name: it may lead out of the folder.
    names += [file for file in SHARDS.files if file == tokenizer]
    try:
        with atomic_folder(folder) as temporary:
            for name in names:
                path = RemotePath(f"{root}/{name}")
                with (
                    RemoteReader(path) as reader,
                    (temporary / name).open("wb") as file,
                ):
                    shutil.copyfileobj(reader, file, 1 << 20)
            (temporary / MANIFEST).write_bytes(content)
    except OSError as error:
        message = f"{address}: cannot be copied: {error.strerror or error}"
        raise Refused(message, code="download-failed") from None
    return folder
