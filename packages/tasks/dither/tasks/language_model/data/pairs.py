"""Prompts with responses from files of records: supervised fine-tuning, and labelled text. No torch.

Letters: N ids, D documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dither.registry.config.errors import Problem, Refused

from ...missing_library import require_extra
from .corpus import Corpus, Document
from .file_formats import record_format
from .published_splits import splits_of_sources
from .records import Record, read_records
from .text_files import NotText, check_encodable
from .tokenizers.folder import read_template

if TYPE_CHECKING:
    from jaxtyping import Int64
    from numpy import ndarray

    from dither.registry.contracts.protocols import Split

    from .token_store import TokenStore
    from .tokenizers.base import Tokenizer

__all__ = ["Long", "Pair", "PairIds", "encode_pairs", "read_pairs", "render_chat"]


Long = Literal["truncate", "skip", "refuse"]
"""Treatment of examples longer than a window."""
CODES_OF = {
    "binary": "damaged-file",
    "csv": "syntax-error",
    "encoding": "damaged-file",
    "json": "syntax-error",
}
"""Code of each reason why a record is not text."""


@dataclass(frozen=True)
class Pair(Document):
    """A document that is a prompt, which is not learned, and a response; perhaps with a label."""

    prompt: str = ""
    response: str = ""
    label: str | None = None
    rendered: bool = False
    """Whether the prompt is that of a chat template, with special tokens."""


@dataclass(frozen=True)
class PairIds:
    """Number of prompt ids and label of each document of a split; -1 without a label."""

    prompts: Int64[ndarray, " D"]
    labels: Int64[ndarray, " D"]


@lru_cache(maxsize=2)
def read_pairs(
    files: tuple[tuple[Path, int], ...],
    prompt: str,
    response: str,
    label: str | None,
    template: str | None,
) -> tuple[Pair, ...]:
    """Return the examples of files, given with their modification times.

    Raises:
        Refused: Names all wrong lines.
    """
    pairs: list[Pair] = []
    problems: list[Problem] = []
    published = splits_of_sources([path for path, _ in files])
    for (path, _), split in zip(files, published, strict=True):
        # Files of other names are JSON lines, too.
        form = record_format(path) or "lines"
        try:
            for where, record in read_records(path, form):
                place = f"{path}:{where.removeprefix('line ')}"
                try:
                    pair = _pair(place, record, (prompt, response, label), template)
                except NotText as error:
                    message = f"{place}: {error.message}"
                    code = CODES_OF.get(error.sort, "invalid-value")
                    problems.append(Problem(message, ("paths",), code=code))
                else:
                    pairs.append(replace(pair, published=split))
        except NotText as error:
            message = f"{path}: {error.message.removeprefix(f'{path}: ')}"
            code = CODES_OF.get(error.sort, "unreadable-file")
            problems.append(Problem(message, ("paths",), help=error.help, code=code))
    if problems:
        raise Refused(problems)
    return tuple(pairs)


def _pair(
    place: str,
    record: Record,
    keys: tuple[str, str, str | None],
    template: str | None,
) -> Pair:
    """Return the example of a record.

    Raises:
        NotText: It is not one.
    """
    if isinstance(record, NotText):
        raise record
    values = [None if key is None else record.get(key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        # A table has a null where a prompt or label is missing.
        if isinstance(value, str):
            check_encodable(value)
        elif value is not None:
            name = type(value).__name__
            raise NotText("key", f'"{key}" is {name}, not a string')
    prompt, response, label = values
    prompt = prompt or ""
    if not response:
        raise NotText("key", f'no text under the key "{keys[1]}"')

    rendered = template is not None and bool(prompt)
    if template is not None and prompt:
        prompt = render_chat(Path(template), prompt)
    text = prompt + response
    digest = hashlib.sha256(json.dumps([prompt, response, label]).encode()).hexdigest()
    return Pair(
        place,
        digest,
        size=len(text),
        load=partial(str, text),
        prompt=prompt,
        response=response,
        label=label,
        rendered=rendered,
    )


@lru_cache(maxsize=4096)
def render_chat(file: Path, prompt: str) -> str:
    """Render one message of the user, in a sandbox: files of data must not run code."""
    where = ("chat_template",)
    require_extra("language", "a chat template", where)
    from jinja2 import TemplateError, Undefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Required(Undefined):
        """An unknown name, which may be tested but not written."""

        __str__ = Undefined._fail_with_undefined_error
        __iter__ = Undefined._fail_with_undefined_error

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    try:
        text, tokens = read_template(file)
        # The environment of transformers, whose templates these are.
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=Required,
            extensions=["jinja2.ext.loopcontrols"],
        )
        sandbox.globals["raise_exception"] = raise_exception
        return sandbox.from_string(text).render(
            messages=[{"role": "user", "content": prompt}],
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **tokens,
        )
    except (OSError, ValueError, TypeError, TemplateError) as error:
        message = f"{file}: no usable chat template: {type(error).__name__}: {error}"
        raise Refused(message, where, code="unreadable-file") from None


def encode_pairs(
    corpus: Corpus,
    tokenizer: Tokenizer,
    labels: Sequence[str] = (),
    *,
    length: int,
    long: Long = "truncate",
) -> tuple[TokenStore, Mapping[Split, PairIds], Mapping[Split, int]]:
    """Encode prompts and responses separately, so that the border between them is one of ids.

    Returns:
        The ids, prompts and labels, and the number of examples longer than a window.

    Raises:
        Refused: With `long = "refuse"`, such examples; no example is left.
    """
    import numpy as np

    from .token_store import EncodedPart, SplitWriter, TokenStore

    index = {name: number for number, name in enumerate(labels)}
    ending = () if tokenizer.end is None else (tokenizer.end,)
    streams = {}
    pairs = {}
    counts: dict[Split, int] = {}
    too_long: list[Problem] = []
    for split, documents in corpus.splits.items():
        writer = SplitWriter(tokenizer)
        prompts = []
        numbers = []
        counts[split] = 0
        for pair in documents:
            assert isinstance(pair, Pair)
            prompt = tokenizer.encode(pair.prompt)
            if pair.rendered:
                prompt = tokenizer.encode_rendered(pair.prompt)
            ids = np.concatenate([prompt, tokenizer.encode(pair.response)])
            size = len(ids) + len(ending)
            if size > length:
                counts[split] += 1
                message = f"{pair.name}: {size} ids, more than a window of {length}"
                too_long.append(Problem(message, ("task", "length"), code="too-large"))
                # Of a prompt that fills its window nothing would be learned.
                if long == "skip" or len(prompt) >= length:
                    continue
            # A cut answer does not end where it is cut.
            ends = size <= length
            characters = len(pair.load())
            writer.add(EncodedPart(0, ids[:length], characters, begins=True, ends=ends))
            prompts.append(len(prompt))
            numbers.append(index.get(pair.label or "", -1))
        streams[split] = writer.stream()
        pairs[split] = PairIds(np.array(prompts, np.int64), np.array(numbers, np.int64))

    if too_long and long == "refuse":
        raise Refused(too_long)
    for split in ("train", "valid"):
        if not len(streams[split].starts):
            message = (
                f'no example of the split "{split}" fits into a window of {length}'
            )
            raise Refused(message, ("task", "length"), code="no-samples")
    return TokenStore(corpus.name, streams, tokenizer), pairs, counts
