"""Begin with the weights of another run instead of random ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from .loading import WEIGHTS, find_checkpoint

__all__ = ["start_from"]

SHOWN = 12
"""So many names are listed before "and N more"."""
FROM = ("train", "start_from")


@torch.no_grad()
def start_from(
    model: nn.Module,
    source: Path,
    partial: bool = False,
    rename: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None,
) -> list[str]:
    """Copy weights into a model.

    Args:
        model: Whose weights are overwritten; names and shapes decide what goes where.
        source: A run directory (its newest intact checkpoint), a folder that `dither export` wrote, or a .safetensors
            file; with `rename`, a file from elsewhere, of safetensors or of torch.
        partial: Allow weights that only one of the two has, or that differ in shape: those of the model stay as they
            are.
        rename: Brings weights from elsewhere under the names of the model.

    Returns:
        Lines on what did not fit, each naming the weights.

    Raises:
        Refused: It cannot be read, does not fit, or is not finite; every weight at fault is named. Damaged: a run, an
            export or a checkpoint is not what was written.
    """
    path, stored = _read(source, elsewhere=rename is not None)
    given, own = merged(stored) if rename is None else _renamed(stored, rename), model.state_dict()
    fits = {name for name in given.keys() & own.keys() if given[name].shape == own[name].shape}
    places = {own[name].data_ptr() for name in fits}  # weights under a second name come along
    shapes = {
        name: f"{name} {_shape(given[name])} for {_shape(own[name])}" for name in given.keys() & own.keys() - fits
    }
    lines = {
        "without counterpart there": [name for name in own if name not in given and own[name].data_ptr() not in places],
        "without counterpart here": [name for name in given if name not in own],
        "of another shape": [shapes[name] for name in own if name in shapes],
    }
    notes = [f"{source}: {len(names)} weights {what}: {_listed(names)}" for what, names in lines.items() if names]
    if notes and not (partial and fits):
        hint = None if partial else "train.start_partial = true takes what fits, and leaves the others as they are"
        raise Refused([Problem(note, FROM, help=hint if note is notes[-1] else None) for note in notes])
    weights = dict(model.named_parameters(remove_duplicate=False))
    if lost := [name for name in fits & weights.keys() if not _finite(given[name].to(weights[name].dtype))]:
        names = [name for name in stored if not _finite(stored[name])] or sorted(lost)
        raise Refused(Problem(f"{path}: nan or inf is in {len(names)} weights: {_listed(names)}", FROM))
    for name in fits:
        own[name].copy_(given[name])
    return notes


def _finite(weight: Tensor) -> bool:
    return bool(weight.isfinite().all())


def _read(source: Path, elsewhere: bool) -> tuple[Path, Mapping[str, Tensor]]:
    """Return which file it is, and the weights as they are called there."""
    if elsewhere:
        try:
            return source, read_weights(source)
        except Refused as refused:
            raise Refused([replace(problem, path=problem.path or FROM) for problem in refused.problems]) from None
    if (source / "checkpoints").is_dir():
        path = weights_of(find_checkpoint(source))
    else:
        path = source / WEIGHTS if source.is_dir() else source
        _require_whole(path)
    try:
        return path, read_tensors(path)
    except OSError as error:
        raise Refused(Problem(f"{path} cannot be read as safetensors: {error}", FROM)) from None
    except Refused as refused:
        raise Refused([replace(problem, path=FROM) for problem in refused.problems]) from None


def _require_whole(path: Path) -> None:
    """Compare a file of an export or of a checkpoint, and what lies beside it there, with what was written.

    Raises:
        Damaged: It is not that any more.
    """
    folder = path.parent
    ours = path.name == WEIGHTS or (folder / "state.json").is_file()
    if ours and (folder / MANIFEST).is_file() and (reason := verify(folder, {path.name})):
        raise Damaged(Problem(f"{folder} is damaged: {reason}", FROM))


def _renamed(
    stored: Mapping[str, Tensor], rename: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    try:
        return rename(stored)
    except Refused as refused:
        raise Refused([replace(problem, path=problem.path or FROM) for problem in refused.problems]) from None


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
