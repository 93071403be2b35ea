"""Initialise the model with the weights of another run, an export, or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.weight_files import read_weights

from ..checkpoints.checkpoint import Damaged, weights_of
from ..checkpoints.sharded_checkpoint import read_tensors
from ..files.checksums import MANIFEST, verify
from ..training.lora import merged
from .exports import WEIGHTS
from .loading import find_checkpoint

__all__ = ["start_from"]

SHOWN = 12
"""Names that are listed before "and N more"."""
FROM = ("train", "start_from")


@torch.no_grad()
def start_from(
    model: nn.Module,
    source: Path,
    partial: bool = False,
    rename: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None,
) -> list[str]:
    """Copy weights into a model by name.

    Args:
        model: The model.
        source: A run directory (its newest intact checkpoint), an export, or a .safetensors file; with `rename`, a
            .safetensors or torch file of another project.
        partial: Skip weights that only one side has or whose shapes differ.
        rename: Maps the weights of another project to the names of the model.

    Returns:
        A line for each reason why weights were skipped.

    Raises:
        Refused: The file cannot be read, weights do not match, or some are NaN or inf. Damaged: Files do not match
            their checksums.
    """
    with _located():
        path, stored = _read(source, foreign=rename is not None)
        loaded, own = merged(stored) if rename is None else rename(stored), model.state_dict()
    common = loaded.keys() & own.keys()
    fits = {name for name in common if loaded[name].shape == own[name].shape}
    pointers = {own[name].data_ptr() for name in fits}  # tied weights are stored once
    lines = {
        "missing": [name for name in own if name not in loaded and own[name].data_ptr() not in pointers],
        "unknown to the model": [name for name in loaded if name not in own],
        "of another shape": [
            f"{name} {_shape(loaded[name])} for {_shape(own[name])}" for name in own if name in common - fits
        ],
    }
    notes = [f"{source}: {len(names)} weights {problem}: {_listed(names)}" for problem, names in lines.items() if names]
    if notes and not (partial and fits):
        hint = None if partial else "train.start_partial = true loads only the matching weights"
        raise Refused([Problem(note, FROM, help=hint, code="shape-mismatch") for note in notes])
    weights = dict(model.named_parameters(remove_duplicate=False))
    if lost := [name for name in fits & weights.keys() if not _finite(loaded[name].to(weights[name].dtype))]:
        names = [name for name in stored if not _finite(stored[name])] or sorted(lost)
        message = f"{path}: {len(names)} weights contain NaN or inf: {_listed(names)}"
        raise Refused(Problem(message, FROM, code="non-finite"))
    for name in fits:
        own[name].copy_(loaded[name])
    return notes


def _finite(weight: Tensor) -> bool:
    return bool(weight.isfinite().all())


@contextmanager
def _located() -> Iterator[None]:
    """Give problems without a place that of `train.start_from`."""
    try:
        yield
    except Refused as refused:
        raise type(refused)([replace(problem, path=problem.path or FROM) for problem in refused.problems]) from None


def _read(source: Path, foreign: bool) -> tuple[Path, Mapping[str, Tensor]]:
    """Return the weight file and its weights."""
    if foreign:
        return source, read_weights(source)
    if (source / "checkpoints").is_dir():
        path = weights_of(find_checkpoint(source))
    else:
        path = source / WEIGHTS if source.is_dir() else source
        folder = path.parent
        ours = path.name == WEIGHTS or (folder / "state.json").is_file()
        if ours and (folder / MANIFEST).is_file() and (reason := verify(folder, {path.name})):
            raise Damaged(f"{folder} is damaged: {reason}")
    try:
        return path, read_tensors(path)
    except OSError as error:
        raise Refused(f"{path} cannot be read as safetensors: {error}", code="unreadable-file") from None


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
