"""Freezing weights, and low-rank updates W + alpha / rank B A of frozen matrices (LoRA).

Hu et al., 2022. B is 0 at first, so that the model starts unchanged. In a checkpoint, a matrix
`x.weight` is stored as `x.parametrizations.weight.original`, and `.0.A`, `.0.B` and `.0.scale`
there; `merged` adds them up.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.atomic import follow_umask
from dither.registry.files.lookup import is_file, is_folder

from ..checkpoints.checkpoint import load_weights
from ..checkpoints.sharded_checkpoint import read_tensors, readable
from ..config.options import LoRA, Train, matches_module
from ..files.resource_errors import disk_errors
from .randomness import Stream, mix_seed

__all__ = [
    "LowRank",
    "add_lora",
    "freeze",
    "load_merged",
    "merged",
    "select_trained",
    "write_merged",
]

INFIX = ".parametrizations.weight."
"""Infix of the names of tensors that make up an adapted matrix."""
PLACE = ("train", "lora")
"""Place of the options in an experiment."""


class LowRank(nn.Module):
    """The low-rank update of a matrix; the generator of the initial A is on the CPU.

    Letters: O rows, I columns, R rank.
    """

    def __init__(
        self,
        weight: Float[Tensor, "O I"],
        rank: int,
        alpha: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        rows, columns = weight.shape
        # As peft does, so that learning rates found with it hold here.
        a = nn.init.kaiming_uniform_(
            torch.empty(rank, columns), math.sqrt(5), generator=generator
        )
        self.A = nn.Parameter(a.to(weight))
        self.B = nn.Parameter(weight.new_zeros(rows, rank))
        # A buffer, so that `merged` needs no options.
        self.scale: Tensor
        self.register_buffer("scale", weight.new_tensor(alpha / rank))

    def forward(self, weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
        """Return the adapted matrix, without autocast, exactly as `merged` computes it."""
        exact: AbstractContextManager[object] = nullcontext()
        # Autocast does not know the meta device.
        if not weight.is_meta:
            exact = torch.autocast(weight.device.type, enabled=False)
        with exact:
            return weight + self.scale * (self.B @ self.A)


def select_trained(model: nn.Module, train: Train, seed: int = 0) -> list[str]:
    """Apply `train.freeze` or `train.lora` to a model on its device; return the changed weights."""
    if train.lora is None:
        return freeze(model, train.freeze)
    return add_lora(model, train.lora, seed)


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freeze the weights whose names match a pattern, such as "embedding.*"; return the names."""
    parameters = dict(model.named_parameters())
    frozen = _matching(parameters, patterns, fnmatchcase)
    problems = [*_unmatched(patterns, list(parameters), "weight", ("train", "freeze"))]
    if len(frozen) == len(parameters):
        problems.append(
            Problem("all weights are frozen", ("train", "freeze"), code="misfit")
        )
    if problems:
        raise Refused(problems)
    for name in frozen:
        parameters[name].requires_grad_(False)
    return frozen


def add_lora(model: nn.Module, options: LoRA, seed: int = 0) -> list[str]:
    """Add low-rank updates to matrices of a model, freeze the rest; return the names of the matrices."""
    weights = dict(model.named_parameters())
    trained = _matching(weights, options.whole, fnmatchcase)
    matrices = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding)
        and f"{name}.weight" not in trained
    }
    adapted = _matching(matrices, options.on, matches_module)
    problems = [
        *_unmatched_matrices(options.on, list(matrices)),
        *_unmatched(options.whole, list(weights), "weight", (*PLACE, "whole")),
        *_tied(model, adapted),
    ]
    if problems:
        raise Refused(problems)

    generator = torch.Generator().manual_seed(mix_seed(Stream.LORA, seed))
    for name, weight in weights.items():
        weight.requires_grad_(name in trained)
    for name in adapted:
        module = matrices[name]
        update = LowRank(module.weight, options.rank, options.alpha, generator)
        parametrize.register_parametrization(module, "weight", update)
    return [f"{name}.weight" for name in adapted]


def _matching(
    names: Iterable[str],
    patterns: Sequence[str],
    matches: Callable[[str, str], bool],
) -> list[str]:
    """Return the names that match any of the patterns, in order."""
    matching = []
    for name in names:
        if any(matches(name, pattern) for pattern in patterns):
            matching.append(name)
    return matching


def _tied(model: nn.Module, adapted: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each adapted matrix that another module uses, too."""
    names_of: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(weight), []).append(name)
    for names in names_of.values():
        # The update would not reach the matrix under its other name.
        if len(names) > 1 and any(f"{name}.weight" in names for name in adapted):
            message = f"{' and '.join(names)} are the same matrix"
            yield Problem(message, (*PLACE, "on"), code="misfit")


def _unmatched_matrices(
    patterns: Sequence[str], matrices: list[str]
) -> Iterator[Problem]:
    """Yield patterns without a matrix; the parts of names, such as `attention`, are suggested."""
    parts = []
    for name in matrices:
        parts += [part for part in name.split(".") if not part.isdigit()]
    kind = "matrix and no module that contains one"
    return _unmatched(
        patterns, matrices, kind, (*PLACE, "on"), parts, matches=matches_module
    )


def _unmatched(
    patterns: Sequence[str],
    names: list[str],
    kind: str,
    path: tuple[str, ...],
    others: Sequence[str] = (),
    matches: Callable[[str, str], bool] = fnmatchcase,
) -> Iterator[Problem]:
    """Yield patterns that match none of the names; `others` are further names to suggest."""
    for number, pattern in enumerate(patterns):
        if not any(matches(name, pattern) for name in names):
            hint = did_you_mean(
                pattern,
                dict.fromkeys([*others, *names]),
                f"the names are {', '.join(names)}",
            )
            yield Problem(
                f'"{pattern}" matches no {kind}',
                (*path, number),
                help=hint,
                code="unknown-value",
            )


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights with their low-rank updates added, exactly as in training."""
    plain = {name: weight for name, weight in weights.items() if INFIX not in name}
    for name in {name.partition(INFIX)[0] for name in weights if INFIX in name}:
        original, a, b, scale = (
            weights[f"{name}{INFIX}{part}"]
            for part in ("original", "0.A", "0.B", "0.scale")
        )
        plain[f"{name}.weight"] = original + scale * (b @ a)
    return plain


def load_merged(path: Path, model: nn.Module) -> None:
    """Load a file of weights into a model, with LoRA merged; Refused if it is another model's."""
    if not _has_lora(path):
        load_weights(path, model)
        return
    saved = merged(read_tensors(path))
    own = model.state_dict()
    # Tied weights are stored under one of their names.
    loaded = {own[name].data_ptr() for name in saved.keys() & own.keys()}
    wrong = [
        name
        for name in saved
        if name not in own or saved[name].shape != own[name].shape
    ]
    wrong += [
        name for name in own if name not in saved and own[name].data_ptr() not in loaded
    ]
    if wrong:
        message = f"{path} does not hold the weights of this model: {', '.join(wrong)}"
        raise Refused(message, code="shape-mismatch")
    # Other names of tied weights are missing.
    model.load_state_dict(saved, strict=False)


def write_merged(path: Path, to: Path) -> None:
    """Copy a file of weights, with LoRA updates merged."""
    if is_file(path) and not _has_lora(path):
        shutil.copyfile(path, to)
        return
    weights = {
        name: weight.contiguous() for name, weight in merged(read_tensors(path)).items()
    }
    with disk_errors(to):
        save_file(weights, to)
        follow_umask(to)


def _has_lora(path: Path) -> bool:
    for part in path.iterdir() if is_folder(path) else (path,):
        with readable(part), safe_open(part, "pt") as file:
            if any(INFIX in name for name in file.keys()):  # noqa: SIM118 - not a mapping
                return True
    return False
