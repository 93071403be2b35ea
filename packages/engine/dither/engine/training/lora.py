"""LoRA (Hu et al., 2022): low-rank updates of frozen matrices, W + alpha / rank B A.

B is 0 at first, so that the model starts unchanged. In a checkpoint, a matrix `x.weight` is stored as
`x.parametrizations.weight.original`, and `.0.A`, `.0.B` and `.0.scale` there; `merged` adds them up.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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

INFIX = ".parametrizations.weight."
"""Infix of the names of tensors that make up an adapted matrix."""


class LowRank(nn.Module):
    """The low-rank update of a matrix. Letters: O rows, I columns, R rank.

    Args:
        weight: The matrix.
        rank: R.
        alpha: Scale of the update times the rank.
        generator: CPU generator of the initial A.
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
        """Return the adapted matrix, without autocast, exactly as `merged` computes it."""
        with nullcontext() if weight.is_meta else torch.autocast(weight.device.type, enabled=False):
            return _adapted(weight, self.A, self.B, self.scale)


def _adapted(
    weight: Float[Tensor, "O I"], a: Float[Tensor, "R I"], b: Float[Tensor, "O R"], scale: Float[Tensor, ""]
) -> Float[Tensor, "O I"]:
    return weight + scale * (b @ a)


def add_lora(
    model: nn.Module, rank: int, alpha: float, on: Sequence[str], whole: Sequence[str] = (), seed: int = 0
) -> list[str]:
    """Add low-rank updates to matrices of a model, and freeze everything else.

    Args:
        model: On its device already.
        rank: Rank of each update.
        alpha: Scale of the updates times the rank.
        on: Names of matrices or of modules that contain them, such as "attention" or "blocks.0.*".
        whole: Names of weights that are trained in full, such as "head.*".
        seed: Seed of A, independent of the device.

    Returns:
        The names of the adapted matrices.

    Raises:
        Refused: A name matches nothing, or a matrix that the model also uses under another name.
    """
    weights = dict(model.named_parameters())
    trained = {name for name in weights if any(fnmatchcase(name, pattern) for pattern in whole)}
    matrices = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding) and f"{name}.weight" not in trained
    }
    chosen = {name: module for name, module in matrices.items() if any(matches_module(name, pattern) for pattern in on)}
    problems = [*_unknown_modules(on, list(matrices)), *_unknown_weights(whole, list(weights))]
    problems += _tied(model, list(chosen))
    if problems:
        raise Refused(problems)
    generator = torch.Generator().manual_seed(mix_seed(Stream.LORA, seed))
    for name, weight in weights.items():
        weight.requires_grad_(name in trained)
    for module in chosen.values():
        parametrize.register_parametrization(module, "weight", LowRank(module.weight, rank, alpha, generator))
    return [f"{name}.weight" for name in chosen]


def _unknown_modules(on: Sequence[str], names: list[str]) -> list[Problem]:
    known = list(dict.fromkeys([*(part for name in names for part in name.split(".") if not part.isdigit()), *names]))
    problems = []
    for number, pattern in enumerate(on):
        if not any(matches_module(name, pattern) for name in names):
            close = nearest(pattern, known)
            hint = f'did you mean "{close}"?' if close else f"matrices are called {', '.join(names)}"
            what = f'"{pattern}" matches no matrix and no module that contains one'
            problems.append(Problem(what, ("train", "lora", "on", number), help=hint, code="unknown-value"))
    return problems


def _unknown_weights(whole: Sequence[str], names: list[str]) -> list[Problem]:
    problems = []
    for number, pattern in enumerate(whole):
        if not any(fnmatchcase(name, pattern) for name in names):
            close = nearest(pattern, names)
            hint = f'did you mean "{close}"?' if close else f"weights are called {', '.join(names)}"
            path = ("train", "lora", "whole", number)
            problems.append(Problem(f'"{pattern}" matches no weight', path, help=hint, code="unknown-value"))
    return problems


def _tied(model: nn.Module, chosen: list[str]) -> list[Problem]:
    """Return matrices that the model also uses under another name, which the update would not reach."""
    names: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    tied = [group for group in names.values() if len(group) > 1 and any(f"{name}.weight" in group for name in chosen)]
    path = ("train", "lora", "on")
    return [Problem(f"{' and '.join(group)} are the same matrix", path, code="misfit") for group in tied]


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights with their low-rank updates added, exactly as the model uses them in training."""
    plain = {name: weight for name, weight in weights.items() if INFIX not in name}
    for name in {name.partition(INFIX)[0] for name in weights if INFIX in name}:
        original, a, b, scale = (weights[f"{name}{INFIX}{part}"] for part in ("original", "0.A", "0.B", "0.scale"))
        plain[f"{name}.weight"] = _adapted(original, a, b, scale)
    return plain


def load_merged(path: Path, model: nn.Module) -> None:
    """Load the weights of a file into a model, with LoRA updates merged.

    Raises:
        Refused: They belong to another model.
    """
    if not _has_lora(path):
        load_weights(path, model)
        return
    saved, own = merged(read_tensors(path)), model.state_dict()
    loaded = {own[name].data_ptr() for name in saved.keys() & own.keys()}  # includes tied weights under other names
    wrong = [name for name in saved if name not in own or saved[name].shape != own[name].shape]
    wrong += [name for name in own if name not in saved and own[name].data_ptr() not in loaded]
    if wrong:
        raise Refused(f"{path} does not hold the weights of this model: {', '.join(wrong)}", code="shape-mismatch")
    model.load_state_dict(saved, strict=False)


def write_merged(path: Path, to: Path) -> None:
    """Copy a file of weights, with LoRA updates merged.

    Raises:
        OSError: It cannot be written.
    """
    if path.is_file() and not _has_lora(path):
        shutil.copyfile(path, to)
        return
    with disk_errors(to):
        save_file({name: weight.contiguous() for name, weight in merged(read_tensors(path)).items()}, to)


def _has_lora(path: Path) -> bool:
    for part in path.iterdir() if path.is_dir() else (path,):
        with readable(part), safe_open(part, "pt") as file:
            if any(INFIX in name for name in file.keys()):  # noqa: SIM118 - not a mapping
                return True
    return False
