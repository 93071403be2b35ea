"""Read external weights: safetensors, and files of `torch.save`. No torch at import.

Tensors and plain containers are read; other globals in a pickle are neither imported nor called: a
stub replaces them.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.errors import Refused
from .limits import RECORD_BYTES, open_file
from .restricted_pickle import load_restricted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read_weights"]

ZIP = b"PK\x03\x04"
PICKLE = b"\x80"
"""First bytes of files of `torch.save` since 1.6, and before."""
CONTAINERS = ("state_dict", "model_state_dict", "model", "module")
"""Keys under which checkpoints hold the weights."""
PREFIXES = re.compile(r"^(?:model\.|module\.|_orig_mod\.)+")
"""Prefixes that Lightning, DDP and `torch.compile` add to names of weights."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the weights in a file by name, on the CPU, without the prefixes of wrappers.

    The file is of safetensors or `torch.save` (1.6 or later), also a checkpoint with the weights
    under "state_dict" or "model". Raises `Refused` if it cannot be read or contains no weights.
    """
    path = Path(path)
    try:
        with open_file(path) as file:
            start = file.read(4)
    except OSError as error:
        raise Refused(
            f"{path} cannot be read: {error.strerror}", code="unreadable-file"
        ) from None
    if start[:1] == PICKLE:
        hint = "save it again with a later torch, or as safetensors"
        text = f"{path} is a bare pickle of torch before 1.6"
        raise Refused(text, help=hint, code="unknown-format")
    weights = _torch_file(path) if start == ZIP else _safetensors(path)
    return _strip_prefixes(weights, path)


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise Refused(
            f"{path} is not a safetensors file: {error}", code="damaged-file"
        ) from None


def _torch_file(path: Path) -> dict[str, Tensor]:
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

    try:
        # torch reads the pickle in full and hashes the keys of its dicts: the limits of our reader
        # are checked first.
        with zipfile.ZipFile(path) as archive:
            for record in archive.infolist():
                if not record.filename.endswith("/data.pkl"):
                    continue
                if record.file_size > RECORD_BYTES:
                    raise ValueError(f"data.pkl has more than {RECORD_BYTES:,} bytes")
                load_restricted(archive.read(record), persistent=True)
        names = get_unsafe_globals_in_checkpoint(path)
        stubs: list[Any] = [(STUBS.get(name, _Stub), name) for name in names]
        with safe_globals(stubs):
            # Mapped into memory, so that only the tensors that are used are read from the disk.
            loaded = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except Exception as error:
        # A damaged or forged file may raise anything.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        text = f"{path} is not a weight file of torch: {lines[-1]}"
        raise Refused(text, code="damaged-file") from None
    return _extract_tensors(loaded, path)


class _Stub:
    """Replaces an object of another library: accepts any arguments, keeps nothing."""

    def __new__(cls, *args: Any) -> _Stub:
        return super().__new__(cls)

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


# torch sets the items of dicts only, so that a defaultdict becomes one.
STUBS: dict[str, Any] = {"collections.defaultdict": lambda *args: {}}


def _extract_tensors(loaded: Any, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with up to three levels of containers."""
    import torch

    for _ in range(3):
        loaded = _inside(loaded)
    items = loaded if isinstance(loaded, Mapping) else {}
    weights = {}
    for name, value in items.items():
        if not isinstance(value, torch.Tensor):
            continue
        if value.layout != torch.strided or value.is_quantized:
            continue
        # Strides of 0 repeat a few stored numbers without end.
        if value.nbytes > value.untyped_storage().nbytes():
            text = f"{path}: {name} has {value.nbytes:,} bytes, more than are stored"
            raise Refused(text, code="too-large")
        weights[str(name)] = value.detach()
    if not weights:
        names = (
            ", ".join(str(name) for name in list(items)[:8]) or type(loaded).__name__
        )
        raise Refused(
            f"{path} contains no named weights, only: {names}", code="missing-array"
        )
    return weights


def _inside(loaded: Any) -> Any:
    """Return the mapping that a checkpoint holds under one of `CONTAINERS`, or the checkpoint."""
    if isinstance(loaded, Mapping):
        for key in CONTAINERS:
            if isinstance(loaded.get(key), Mapping):
                return loaded[key]
    return loaded


def _strip_prefixes(weights: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    stripped: dict[str, Tensor] = {}
    for name, value in weights.items():
        short = PREFIXES.sub("", name)
        if short in stripped:
            text = f"{path} contains two weights {short}, with and without a prefix"
            raise Refused(text, code="duplicate")
        stripped[short] = value
    return stripped
