"""Special tokens and chat template of a folder of `AutoTokenizer.save_pretrained`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dither.registry.files.limits import read_text

__all__ = ["read_template", "special_tokens"]

CONFIG = "tokenizer_config.json"
CONFIGS = ("special_tokens_map.json", CONFIG)
"""Files with special tokens; the last one decides."""
TEMPLATE = "chat_template.jinja"


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens of a folder by name, such as `eos_token`; "" where it says null."""
    tokens: dict[str, str] = {}
    for name in CONFIGS:
        try:
            tokens |= _tokens_of(_read_json(folder / name))
        # Both files are optional.
        except (OSError, ValueError):
            continue
    return tokens


def _tokens_of(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for key, value in config.items():
        # A token with flags is an object.
        mark = value
        if isinstance(value, dict):
            mark = value.get("content")

        if key.endswith("_token") and isinstance(mark, str | None):
            tokens[key] = mark or ""
    return tokens


def read_template(path: Path) -> tuple[str, dict[str, str]]:
    """Return a chat template, and the special tokens next to it.

    Args:
        path: A folder of a tokenizer, its tokenizer_config.json, or a file with the template itself.

    Raises:
        OSError: A file cannot be read.
        ValueError: The file is not JSON, or has no template of the name "default".
    """
    if path.is_dir():
        file = path / TEMPLATE
        return read_template(file if file.is_file() else path / CONFIG)
    tokens = special_tokens(path.parent)
    if path.suffix != ".json":
        return read_text(path).removeprefix("\ufeff"), tokens
    config = _read_json(path)
    return _default_template(config.get("chat_template")), tokens | _tokens_of(config)


def _default_template(template: object) -> str:
    """Return a template, or that of the name "default" of a list."""
    if isinstance(template, str):
        return template
    if template is None:
        raise ValueError("no chat_template")
    if not isinstance(template, list):
        raise ValueError(f"chat_template is {type(template).__name__}")
    names = []
    for entry in template:
        if isinstance(entry, dict) and isinstance(entry.get("template"), str):
            names.append(str(entry.get("name")))
            if entry.get("name") == "default":
                return str(entry["template"])
    raise ValueError(f'no template "default" among {", ".join(names) or "none"}')


def _read_json(path: Path) -> Mapping[str, Any]:
    content = json.loads(read_text(path).removeprefix("\ufeff"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content
