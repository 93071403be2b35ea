"""LoRA in the format of peft: adapter_config.json, and adapter_model.safetensors without pickle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_folder
from dither.registry.files.limits import read_text, unreadable

from ..checkpoints.sharded_checkpoint import read_tensors
from ..config.options import LoRA
from ..files.damage import damage_of
from ..files.resource_errors import disk_errors
from .lora import LowRank
from .nan_guard import all_finite

__all__ = ["read_adapter", "write_adapter"]

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
PLACE = ("train", "lora", "start_from")
PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "lora_bias": False,
    "lora_dropout": 0.0,
    "rank_pattern": {},
    "alpha_pattern": {},
    "use_dora": False,
    "use_rslora": False,
}
"""Options of peft with the values of plain LoRA."""
MEANINGLESS = frozenset(
    {
        # They change training only.
        "lora_dropout",
        "velora_config",
        # Names, which the tensors have, too.
        "target_modules",
        "exclude_modules",
        "modules_to_save",
        "layers_to_transform",
        "layers_pattern",
        # They are used with other options, which are refused.
        "corda_config",
        "eva_config",
        "loftq_config",
        "lora_ga_config",
        "megatron_config",
        "megatron_core",
        "qalora_group_size",
        # Where the adapter comes from, and how peft runs it.
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "inference_mode",
        "peft_version",
        "revision",
        "runtime_config",
        "task_type",
    }
)
"""Options that do not change what the tensors mean; any other one that is in use does."""
INIT = "init_lora_weights"
SAME_MATRICES = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to initialise that leave the adapted matrices as they are; PiSSA, for one, subtracts its first
update from them."""


class _Slot(NamedTuple):
    """A trained parameter; peft transposes both updates of an embedding."""

    parameter: nn.Parameter
    transposed: bool

    def stored(self) -> Tensor:
        tensor = self.parameter.detach()
        return tensor.T if self.transposed else tensor


def write_adapter(model: nn.Module, options: LoRA, folder: Path) -> None:
    """Write the updates and the fully trained modules of a model of `add_lora` into a new folder.

    Raises:
        Refused: A module is trained in part, which the format cannot express.
    """
    adapted = [name for name, _, _ in _adapted(model)]
    config = {
        **PLAIN,
        "r": options.rank,
        "lora_alpha": options.alpha,
        "target_modules": adapted,
        "modules_to_save": _whole_modules(model) or None,
        "inference_mode": True,
    }
    tensors = {}
    for key, slot in _slots(model).items():
        tensors[key] = slot.stored().cpu().contiguous()
    with disk_errors(folder), atomic_folder(folder, overwrite=False) as temporary:
        text = json.dumps(config, indent=2) + "\n"
        (temporary / CONFIG).write_text(text, encoding="utf-8")
        save_file(tensors, temporary / TENSORS)


def read_adapter(folder: Path, model: nn.Module, options: LoRA) -> None:
    """Copy an adapter into a model of `add_lora`; Refused if it is not one of the same matrices."""
    problems = list(_config_problems(folder, options))
    slots = _slots(model)
    saved = {} if problems else read_tensors(folder / TENSORS)
    if not problems:
        for key in sorted(saved.keys() ^ slots.keys()):
            state = "not trained by train.lora"
            if key in slots:
                state = "not in the adapter"
            problems.append(Problem(f"{key} is {state}", PLACE, code="shape-mismatch"))
    for key in saved.keys() & slots.keys():
        expected = tuple(slots[key].stored().shape)
        if tuple(saved[key].shape) != expected:
            message = f"{key} has shape {tuple(saved[key].shape)}, expected {expected}"
            problems.append(Problem(message, PLACE, code="shape-mismatch"))
        # Integers are quantised.
        if not saved[key].is_floating_point():
            message = f"{key} has type {saved[key].dtype}, expected {slots[key].parameter.dtype}"
            problems.append(Problem(message, PLACE, code="shape-mismatch"))
        elif not all_finite([saved[key].to(slots[key].parameter.dtype)]):
            message = f"{key} contains NaN or inf"
            problems.append(Problem(message, PLACE, code="non-finite"))
    if problems:
        raise Refused(problems)
    with torch.no_grad():
        for key, slot in slots.items():
            # `stored` is a view of the parameter.
            slot.stored().copy_(saved[key])


def _config_problems(folder: Path, options: LoRA) -> Iterator[Problem]:
    """Yield options of an adapter that are not those of plain LoRA, or not those of `train.lora`."""
    try:
        config = json.loads(read_text(folder / CONFIG))
        given = {**PLAIN, **config}
    except OSError as error:
        raise unreadable(folder / CONFIG, error) from None
    except (ValueError, TypeError) as error:
        message = f"{folder / CONFIG} is damaged: {damage_of(error).reason}"
        raise Refused(message, PLACE, code="damaged-file") from None
    expected = {**PLAIN, "r": options.rank, "lora_alpha": options.alpha}
    for key, value in {**given, **expected}.items():
        if key == INIT:
            yield from _init_problem(folder, given[INIT])
            continue
        # An older file may have null for what it does not use, a newer one options of its own.
        is_unused = not given.get(key) and not expected.get(key)
        if key in MEANINGLESS or is_unused or given.get(key) == expected.get(key):
            continue
        message = f"{folder}: {key} is {given.get(key)!r}, expected {value!r}"
        if key not in expected:
            message = f"{folder}: {key} is {value!r}, which plain LoRA does not have"
        yield Problem(message, PLACE, code="misfit")


def _init_problem(folder: Path, value: Any) -> Iterator[Problem]:
    if value not in SAME_MATRICES:
        message = f"{folder}: {INIT} is {value!r}, which changes the adapted matrices"
        hint = "let peft convert it: save_pretrained(path_initial_model_for_weight_conversion=...)"
        yield Problem(message, PLACE, help=hint, code="misfit")


def _adapted(model: nn.Module) -> Iterator[tuple[str, LowRank, bool]]:
    """Yield name and update of each adapted matrix, and whether it is that of an embedding."""
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            owner = name.partition(".parametrizations.")[0]
            yield owner, module, isinstance(model.get_submodule(owner), nn.Embedding)


def _slots(model: nn.Module) -> dict[str, _Slot]:
    """Return all trained parameters by their names in the file."""
    slots = {}
    for name, update, is_embedding in _adapted(model):
        stem = f"{PREFIX}{name}"
        if is_embedding:
            # W + (B' A')^T: peft's A' is our B^T.
            slots[f"{stem}.lora_embedding_A"] = _Slot(update.B, transposed=True)
            slots[f"{stem}.lora_embedding_B"] = _Slot(update.A, transposed=True)
        else:
            slots[f"{stem}.lora_A.weight"] = _Slot(update.A, transposed=False)
            slots[f"{stem}.lora_B.weight"] = _Slot(update.B, transposed=False)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and ".parametrizations." not in name:
            slots[f"{PREFIX}{name}"] = _Slot(parameter, transposed=False)
    return slots


def _whole_modules(model: nn.Module) -> list[str]:
    """Return the modules that are trained in full; Refused if one is in part."""
    names: dict[str, None] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and ".parametrizations." not in name:
            names.setdefault(name.rpartition(".")[0])
    for module in names:
        parameters = model.get_submodule(module).parameters()
        if not module or not all(p.requires_grad for p in parameters):
            message = (
                f'peft saves whole modules, and of "{module}" some weights are frozen'
            )
            raise Refused(message, ("train", "lora", "whole"), code="misfit")
    return list(names)
