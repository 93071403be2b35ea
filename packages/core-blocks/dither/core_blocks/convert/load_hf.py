"""`dither new from-hf`: convert a masked diffusion language model to an experiment.

The folder is that of `save_pretrained`: config.json, tokenizer.json, and safetensors in one file or
in shards. No code of the folder runs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import read_text

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["convert_folder", "read_shards"]

INDEX = "model.safetensors.index.json"
WEIGHTS = "start.safetensors"
NO_NAME = re.compile(r"[^a-z0-9._-]+")
"""Characters that the name of an experiment cannot have."""

EXPERIMENT = """# {name}, converted by `dither new from-hf`. Set task.data to your text before fine-tuning.
name = {name}
loss = "masked-ce"

[task]
use = "language-model"
data = "stdlib-text"
tokenizer = {tokenizer}
length = {length}

[process]
use = "absorbing"

[sampler]
use = "semi-autoregressive"
size = {block}
inner = {{ use = "ordered", threshold = 0.9 }}

{model}
[train]
steps = 100
batch_size = 1
optimizer = {{ use = "adamw", lr = 1e-4 }}
start_from = {weights}

[train.lora]
rank = 8
on = ["attention"]
"""


def convert_folder(
    folder: Path,
    out: Path,
    length: int = 256,
    mask_id: int | None = None,
) -> Path:
    """Write the weights, the tokenizer and an experiment into a new folder; return the path of the experiment.

    Raises:
        Refused: A file is missing (`file-not-found`) or invalid (`damaged-file`, `misfit`), `out`
            exists, or MASK is unknown (`missing-key`).
    """
    from safetensors.torch import save_file

    from .llada import LLADA, LLAMA, options_of_llada, resize_vocabulary

    config = _read_json(folder / "config.json")
    tokenizer = _read_json(folder / "tokenizer.json")
    mask = mask_id
    if mask is None:
        mask = config.get("mask_token_id")
    if mask is None:
        message = f"{folder / 'config.json'} has no mask_token_id"
        raise Refused(Problem(message, help="pass --mask-id", code="missing-key"))
    # In JSON, true is an int of Python.
    if type(mask) is not int or mask < 0:
        message = f"mask_token_id is {mask!r}, not an id"
        raise Refused(Problem(message, help="pass --mask-id", code="invalid-value"))
    if out.exists():
        raise Refused(
            Problem(f"{out} exists", help="pass another --out", code="file-exists")
        )

    theirs = read_shards(folder)
    # The two families differ in names alone.
    layout = LLAMA
    if any(name.startswith(LLADA.blocks) for name in theirs):
        layout = LLADA
    ours = layout.weights(theirs)
    try:
        model = options_of_llada(config)
    except KeyError as error:
        raise Refused(
            Problem(
                f"{folder / 'config.json'} has no {error.args[0]}", code="missing-key"
            )
        ) from None

    # Configurations of Qwen2 do not mention its biases, nor all of them a shared head.
    model["block"]["qkv_bias"] = any(n.endswith("attention.qkv.bias") for n in ours)
    model["block"]["qk_norm"] |= any(
        n.endswith("attention.q_norm.weight") for n in ours
    )
    model["tie_embeddings"] |= "head.maps.0.weight" not in ours

    # Embeddings are often padded beyond the tokenizer, to a multiple of 64 rows.
    size = _vocabulary(tokenizer)
    rows = len(ours["embedding.tables.0.weight"])
    if max(size - 1, mask) >= rows:
        message = (
            f"the tokenizer has {size} ids and MASK is {mask}, "
            f"but the embedding has only {rows} rows"
        )
        raise Refused(Problem(f"{folder}: {message}", code="misfit"))

    out.mkdir(parents=True)
    resized = resize_vocabulary(ours, size, mask)
    save_file(
        {name: weight.contiguous() for name, weight in resized.items()}, out / WEIGHTS
    )
    shutil.copyfile(folder / "tokenizer.json", out / "tokenizer.json")
    text = EXPERIMENT.format(
        name=json.dumps(
            NO_NAME.sub("-", folder.resolve().name.lower()).strip("-") or "model"
        ),
        tokenizer=json.dumps(str(out / "tokenizer.json")),
        weights=json.dumps(str(out / WEIGHTS)),
        length=length,
        block=min(32, length),
        model=_toml("model", model),
    )
    (out / "experiment.toml").write_text(text, encoding="utf-8")
    return out / "experiment.toml"


def read_shards(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a folder: of model.safetensors, or of the files that its index lists.

    Raises:
        Refused: The file or a shard is missing or damaged, or a listed weight is in no shard
            (`misfit`).
    """
    from dither.registry.files.weight_files import read_weights

    if not (folder / INDEX).is_file():
        return read_weights(folder / "model.safetensors")
    listed = _read_json(folder / INDEX).get("weight_map", {})
    weights = dict[str, Any]()
    for name in sorted(set(listed.values())):
        # A name from data is never a path.
        if Path(name).name != name:
            raise Refused(
                Problem(
                    f"{folder / INDEX}: {name} is not the name of a file",
                    code="damaged-file",
                )
            )
        weights |= read_weights(folder / name)
    if len(weights) < len(listed):
        message = (
            f"{len(listed)} weights are listed, but the shards have {len(weights)}"
        )
        raise Refused(Problem(f"{folder / INDEX}: {message}", code="misfit"))
    return weights


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
    except OSError as error:
        raise Refused(
            Problem(f"{path} cannot be read: {error.strerror}", code="file-not-found")
        ) from None
    except ValueError as error:
        raise Refused(
            Problem(f"{path} is not JSON: {error}", code="damaged-file")
        ) from None
    if not isinstance(content, dict):
        raise Refused(Problem(f"{path} is not a JSON object", code="damaged-file"))
    return content


def _vocabulary(tokenizer: Mapping[str, Any]) -> int:
    """Return the number of ids of a tokenizer.json: one more than the largest."""
    vocab = (tokenizer.get("model") or {}).get("vocab", {})
    # Unigram models have a list of pieces instead of a table of ids.
    ids = list(range(len(vocab)))
    if isinstance(vocab, dict):
        ids = list(vocab.values())
    ids += [token["id"] for token in tokenizer.get("added_tokens", [])]
    return max(ids, default=-1) + 1


def _toml(table: str, options: Mapping[str, Any]) -> str:
    """Write a table whose values are plain or tables of plain values."""
    lines = [f"[{table}]"]
    for key, value in options.items():
        # Of plain values JSON is TOML.
        if isinstance(value, dict):
            pairs = [f"{name} = {json.dumps(inner)}" for name, inner in value.items()]
            lines.append(f"{key} = {{ {', '.join(pairs)} }}")
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
