"""Prompts with responses, from JSON lines: supervised fine-tuning, and labelled text. No torch here.

Letters: N ids, D documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import read_text
from dither.registry.plugins.install_command import optional_import

from .corpus import Corpus, Document

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int64

    from dither.registry.contracts.protocols import Split

    from .token_store import TokenStore
    from .tokenizers.base import Tokenizer

__all__ = ["Pair", "PairIds", "encode_pairs", "read_pairs", "render_chat"]

SHOWN = 20
"""Wrong lines that are listed."""


@dataclass(frozen=True)
class Pair(Document):
    """A document that is a prompt, which is not learned, and a response; perhaps with a label."""

    prompt: str = ""
    response: str = ""
    label: str | None = None


@dataclass(frozen=True)
class PairIds:
    """Number of prompt ids and label of each document of a split; -1 without a label."""

    prompts: Int64[np.ndarray, " D"]
    labels: Int64[np.ndarray, " D"]


@lru_cache(maxsize=2)
def read_pairs(
    files: tuple[tuple[Path, int], ...],
    prompt: str,
    response: str,
    label: str | None,
    template: str | None,
) -> tuple[Pair, ...]:
    """Return the examples of files, given with their modification times; Refused with all wrong lines."""
    pairs = []
    problems = []
    for path, _ in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            texts = (
                [entry.get(key, "") for key in (prompt, response, label)]
                if isinstance(entry, dict)
                else [None]
            )
            if not all(isinstance(text, str) for text in texts) or not texts[1]:
                what = f'expected an object with a text "{response}" and, if present, texts under the other keys'
                problems.append(
                    Problem(f"{path}:{number}: {what}", ("paths",), code="invalid-value")
                )
                continue
            asked = str(texts[0])
            answer = str(texts[1])
            asked = render_chat(Path(template), asked) if template is not None and asked else asked
            name = str(texts[2]) if label is not None and label in entry else None
            key = hashlib.sha256(json.dumps([asked, answer, name]).encode()).hexdigest()
            load = partial(str, asked + answer)
            pairs.append(
                Pair(f"{path}:{number}", key, len(asked + answer), load, asked, answer, name)
            )
    if problems:
        raise Refused(problems[:SHOWN])
    return tuple(pairs)


@lru_cache(maxsize=4096)
def render_chat(file: Path, prompt: str) -> str:
    """Render one message of the user; templates run in a sandbox, as files of data must not run code."""
    where = ("chat_template",)
    with optional_import("jinja2 is not installed", "dither-tasks", "language", where):
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    try:
        text = read_text(file)
        config: dict[str, Any] = (
            json.loads(text) if file.suffix == ".json" else {"chat_template": text}
        )
        tokens = {
            key: value
            for key, value in config.items()
            if key.endswith("_token") and isinstance(value, str)
        }
        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        messages = [{"role": "user", "content": prompt}]
        template = sandbox.from_string(config["chat_template"])
        return template.render(messages=messages, add_generation_prompt=True, **tokens)
    except (OSError, ValueError, KeyError, TypeError, TemplateError) as error:
        message = f"{file}: no usable chat template: {type(error).__name__}: {error}"
        raise Refused(Problem(message, where, code="unreadable-file")) from None


def encode_pairs(
    corpus: Corpus, tokenizer: Tokenizer, labels: Sequence[str] = ()
) -> tuple[TokenStore, Mapping[Split, PairIds]]:
    """Encode prompts and responses separately, so that the border between them is one between ids."""
    import numpy as np

    from .token_store import Part, SplitWriter, TokenStore

    index = {name: number for number, name in enumerate(labels)}
    streams = {}
    pairs = {}
    for split, documents in corpus.splits.items():
        writer = SplitWriter(tokenizer)
        prompts = []
        for pair in documents:
            assert isinstance(pair, Pair)
            first = tokenizer.encode(pair.prompt)
            writer.add(
                Part(0, pair.load(), True, True),
                np.concatenate([first, tokenizer.encode(pair.response)]),
            )
            prompts.append(len(first))
        numbers = [index.get(pair.label or "", -1) for pair in documents if isinstance(pair, Pair)]
        streams[split] = writer.stream()
        pairs[split] = PairIds(np.array(prompts, np.int64), np.array(numbers, np.int64))
    return TokenStore(corpus.name, streams, tokenizer), pairs
