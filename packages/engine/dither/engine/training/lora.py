"""Changes of low rank to matrices that stay as they are (LoRA; Hu et al., 2022): W + alpha / rank B A.

B is 0 at first, so that a model begins as it was. In a checkpoint the parts of a matrix `x.weight` are called
`x.parametrizations.weight.original`, and `.0.A`, `.0.B` and `.0.scale` there; `merged` puts them together again.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dither.registry.config.errors import Problem, Refused, nearest

from ..checkpoints.checkpoint import load_weights
from ..checkpoints.sharded_checkpoint import read_tensors, readable
from ..config.options import matches_module
from ..files.resource_errors import disk_errors
from .randomness import Stream, mix_seed

__all__ = ["LowRank", "add_lora", "load_merged", "merged", "write_merged"]

APART = ".parametrizations.weight."
"""Stands in the names of what a changed matrix is made of."""


class LowRank(nn.Module):
    """The change of a matrix. Letters: O rows, I columns, R rank.

    Args:
        weight: The matrix.
        rank: R.
        alpha: The change is B A times this, over the rank.
        generator: On the CPU; A is drawn from it.
    """

    def __init__(self, weight: Float[Tensor, "O I"], rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        a = nn.init.kaiming_uniform_(torch.empty(rank, columns), math.sqrt(5), generator=generator)
        self.A = nn.Parameter(a.to(weight))
        self.B = nn.Parameter(weight.new_zeros(rows, rank))
        self.scale: Tensor
        self.register_buffer("scale", weight.new_tensor(alpha / rank))

    def forward(self, weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
        """Return the changed matrix, in full precision under autocast too, as it is merged later."""
        with torch.autocast(weight.device.type, enabled=False):
            return _changed(weight, self.A, self.B, self.scale)


def _changed(
    weight: Float[Tensor, "O I"], a: Float[Tensor, "R I"], b: Float[Tensor, "O R"], scale: Float[Tensor, ""]
) -> Float[Tensor, "O I"]:
    return weight + scale * (b @ a)


def add_lora(
    model: nn.Module, rank: int, alpha: float, on: Sequence[str], whole: Sequence[str] = (), seed: int = 0
) -> list[str]:
    """Put a change of low rank on matrices of a model, and let everything else stay as it is.

    Args:
        model: On its device already.
        rank: Of each change.
        alpha: What a change is multiplied with, times the rank.
        on: Names of matrices or of what they stand in, such as "attention" or "blocks.0.*".
        whole: Names of weights that are trained themselves, such as "head.*".
        seed: What A is drawn with, wherever the model is.

    Returns:
        The names of the changed matrices.

    Raises:
        Refused: A name fits nothing, or a matrix that is also used elsewhere in the model.
    """
    weights = dict(model.named_parameters())
    trained = {name for name in weights if any(fnmatchcase(name, pattern) for pattern in whole)}
    matrices = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding) and f"{name}.weight" not in trained
    }
    chosen = {name: module for name, module in matrices.items() if any(matches_module(name, pattern) for pattern in on)}
    problems = [*_unfit(on, list(matrices)), *_unnamed(whole, list(weights)), *_shared(model, list(chosen))]
    if problems:
        raise Refused(problems)
    generator = torch.Generator().manual_seed(mix_seed(Stream.LORA, seed))
    for name, weight in weights.items():
        weight.requires_grad_(name in trained)
    for module in chosen.values():
        parametrize.register_parametrization(module, "weight", LowRank(module.weight, rank, alpha, generator))
    return [f"{name}.weight" for name in chosen]


def _unfit(on: Sequence[str], names: list[str]) -> list[Problem]:
    known = list(dict.fromkeys([*(part for name in names for part in name.split(".") if not part.isdigit()), *names]))
    problems = []
    for number, pattern in enumerate(on):
        if not any(matches_module(name, pattern) for name in names):
            close = nearest(pattern, known)
            hint = f'did you mean "{close}"?' if close else f"matrices are called {', '.join(names)}"
            what = f'no matrix is called "{pattern}", nor what one stands in'
            problems.append(Problem(what, ("train", "lora", "on", number), help=hint))
    return problems


def _unnamed(whole: Sequence[str], names: list[str]) -> list[Problem]:
    problems = []
    for number, pattern in enumerate(whole):
        if not any(fnmatchcase(name, pattern) for name in names):
            close = nearest(pattern, names)
            hint = f'did you mean "{close}"?' if close else f"weights are called {', '.join(names)}"
            problems.append(Problem(f'no weight is called "{pattern}"', ("train", "lora", "whole", number), help=hint))
    return problems


def _shared(model: nn.Module, chosen: list[str]) -> list[Problem]:
    """Say which matrices stand in the model under a second name, where a change would not show."""
    names: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    found = [each for each in names.values() if len(each) > 1 and any(f"{name}.weight" in each for name in chosen)]
    return [Problem(f"{' and '.join(each)} are one matrix", ("train", "lora", "on")) for each in found]


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights with their changes of low rank added, exactly as the model uses them in training."""
    plain = {name: weight for name, weight in weights.items() if APART not in name}
    for name in {name.partition(APART)[0] for name in weights if APART in name}:
        original, a, b, scale = (weights[f"{name}{APART}{part}"] for part in ("original", "0.A", "0.B", "0.scale"))
        plain[f"{name}.weight"] = _changed(original, a, b, scale)
    return plain


def load_merged(path: Path, model: nn.Module) -> None:
    """Read the weights of a file into a model, with changes of low rank added where there are some.

    Raises:
        Refused: They are of another model.
    """
    if not _has_changes(path):
        load_weights(path, model)
        return
    given, own = merged(read_tensors(path)), model.state_dict()
    places = {own[name].data_ptr() for name in given.keys() & own.keys()}  # weights under a second name come along
    strange = [name for name in given if name not in own or given[name].shape != own[name].shape]
    strange += [name for name in own if name not in given and own[name].data_ptr() not in places]
    if strange:
        raise Refused(f"{path} does not hold the weights of this model: {', '.join(strange)}")
    model.load_state_dict(given, strict=False)


def write_merged(path: Path, to: Path) -> None:
    """Copy a file of weights, with changes of low rank added where there are some.

    Raises:
        OSError: It cannot be written.
    """
    if path.is_file() and not _has_changes(path):
        shutil.copyfile(path, to)
        return
    with disk_errors(to):
        save_file({name: weight.contiguous() for name, weight in merged(read_tensors(path)).items()}, to)


def _has_changes(path: Path) -> bool:
    for each in path.iterdir() if path.is_dir() else (path,):
        with readable(each), safe_open(each, "pt") as file:
            if any(APART in name for name in file.keys()):  # noqa: SIM118 - it is no mapping
                return True
    return False
