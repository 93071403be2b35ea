"""Weights that other programs saved: safetensors, and the files of `torch.save`. No torch at import.

A file of `torch.save` is a pickle, which may name any function to be called. It is read by torch's `weights_only`
reader, which knows tensors and plain containers only. Names of anything else in it, such as the settings that Lightning
saves beside the weights, are neither imported nor called: an empty object stands in for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.errors import Refused

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read_weights"]

ZIP, PICKLE = b"PK\x03\x04", b"\x80"
"""What files of `torch.save` begin with since 1.6, and before."""
INNER = ("state_dict", "model_state_dict", "model", "module")
"""Under which of its names a checkpoint holds the weights."""
WRAPPERS = ("model.", "module.", "_orig_mod.")
"""What Lightning, DDP and `torch.compile` put before the name of a weight."""
DEEPEST, SHOWN = 3, 8


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the weights in a file by name, on the CPU, without what wrappers put before their names.

    Args:
        path: A file of safetensors, or one that `torch.save` of 1.6 or later wrote: weights by name, or a checkpoint
            that holds them under "state_dict" or "model".

    Raises:
        Refused: It cannot be read, or holds no weights.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    if begins[:1] == PICKLE:
        what = "is a bare pickle, as torch before 1.6 wrote it"
        raise Refused(f"{path} {what}, and is not read; save it anew with a later torch, or as safetensors")
    return _unwrapped(_torch_file(path) if begins == ZIP else _safetensors(path), path)


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise Refused(f"{path} cannot be read as safetensors: {error}") from None


def _torch_file(path: Path) -> dict[str, Tensor]:
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

    try:
        strange: list[Any] = [(STANDS_IN.get(name, _Nothing), name) for name in get_unsafe_globals_in_checkpoint(path)]
        with safe_globals(strange):
            loaded = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except Exception as error:  # a file that was cut or made up may fail in any way
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise Refused(f"{path} cannot be read as weights of torch: {said[-1]}") from None
    return _found(loaded, path)


class _Nothing:
    """Stands in for an object of another program: takes whatever it is given, and keeps nothing of it."""

    def __new__(cls, *given: Any) -> _Nothing:
        return super().__new__(cls)

    def __init__(self, *given: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _plain(*given: Any) -> dict[Any, Any]:
    """Stand in for `defaultdict`, which may be filled afterwards."""
    return {}


STANDS_IN = {"collections.defaultdict": _plain}


def _found(loaded: Any, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, wherever they are in it."""
    import torch

    for _ in range(DEEPEST):
        if isinstance(loaded, Mapping):
            loaded = next((loaded[key] for key in INNER if isinstance(loaded.get(key), Mapping)), loaded)
    there = loaded if isinstance(loaded, Mapping) else {}
    weights = {
        str(name): value.detach()
        for name, value in there.items()
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized
    }
    if not weights:
        names = ", ".join(str(name) for name in list(there)[:SHOWN]) or type(loaded).__name__
        raise Refused(f"{path} holds no weights by name, but: {names}")
    return weights


def _unwrapped(weights: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Take away what wrappers put before the names."""
    bare: dict[str, Tensor] = {}
    for name, value in weights.items():
        short = name
        while wrapper := next((prefix for prefix in WRAPPERS if short.startswith(prefix)), None):
            short = short.removeprefix(wrapper)
        if short in bare:
            raise Refused(f"{path} holds two weights {short}, with and without what wraps it")
        bare[short] = value
    return bare
