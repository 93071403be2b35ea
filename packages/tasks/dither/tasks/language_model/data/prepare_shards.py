"""Text prepared in shards: each encodes all of its documents, and merging divides them.

Which document is a duplicate, and which belongs to which split, is known only of all text.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from dither.registry.config.errors import Refused

from ...prepared.manifest import describe_sources
from ...prepared.rejected import RejectedRows
from ...prepared.shards import PreparedShard, Shard, open_shards
from ...prepared.store import find_existing, write_folder
from .manifest import SHARDS, store_info
from .prepare import (
    CUT,
    DUPLICATE,
    REJECTED,
    SplitText,
    Survey,
    cut_document,
    duplicate,
    read_again,
    refuse_sources,
    store_text,
    survey_documents,
    text_sources,
)
from .published_splits import splits_of_sources
from .token_store import EncodedPart, Part, TokenStream, encode_parts, write_store
from .tokenizers.base import Tokenizer
from .tokenizers.factory import load_tokenizer

__all__ = ["convert_shard", "merge_shards"]

PLACES = "places.jsonl"
"""The place of each document of a shard, for the message if it is a duplicate."""


def convert_shard(spec: Any, shard: Shard) -> str:
    """Encode the documents of a part of the sources, and return a report."""
    sources, tokenizer, made = _find(spec)
    made = shard.made(made)
    folder = shard.folder(spec.folder())
    part = shard.part(len(sources), "sources")
    if find_existing(folder, SHARDS, made, force=spec.force) is not None:
        return f"{folder} is up to date, nothing was done"
    # A split is named by all sources: those of a shard may be of one split.
    splits = splits_of_sources(sources)[part]
    with (
        RejectedRows() as rejected,
        write_folder(folder, SHARDS, made) as writer,
    ):
        with (writer.folder / PLACES).open("w", encoding="utf-8") as places:
            survey = survey_documents(
                spec,
                sources[part],
                rejected,
                splits,
                lambda place: places.write(json.dumps(place) + "\n"),
            )
        refuse_sources(survey.reasons, rejected)
        parts = encode_parts(_whole(spec, sources[part], survey), tokenizer)
        info = write_store(writer, parts, tokenizer, sources=len(sources[part]))
        for name in ("keys", "sizes", "published"):
            writer.add(name, getattr(survey, name))
        writer.reject(rejected)
    return shard.report(spec.folder(), f"{info.splits['train'].documents:,} documents")


def merge_shards(spec: Any) -> str:
    """Divide the documents of all shards, write them as `convert` would, and return a report."""
    began = perf_counter()
    sources, tokenizer, made = _find(spec)
    shards = open_shards(spec.folder(), SHARDS, made)
    with RejectedRows() as rejected:
        for shard in shards:
            shard.add_rejected(rejected)
        survey = Survey(
            keys=_joined(shards, "keys"),
            sizes=_joined(shards, "sizes"),
            published=_joined(shards, "published"),
        )
        text = SplitText(spec, sources, survey, rejected)
        # Shards are encoded, and ids cannot be cut at a character.
        if CUT in text.codes:
            message = "too few documents: they would be cut into splits"
            fix = "prepare them without --shard"
            raise Refused(message, help=fix, code="no-samples")
        parts = _divided(shards, text.codes, rejected)
        return store_text(text, parts, tokenizer, rejected, began)


def _joined(shards: Sequence[PreparedShard], name: str) -> Any:
    return np.concatenate([shard.arrays[name] for shard in shards])


def _find(spec: Any) -> tuple[list[str | Path], Tokenizer, dict[str, Any]]:
    """Return all sources, the tokenizer, and the options for the manifest of a shard.

    Raises:
        Refused: An option needs all text at once.
    """
    if spec.documents is not None or spec.characters is not None:
        message = "--documents and --characters limit all text, not a shard"
        raise Refused(message, code="usage")
    if spec.tokenizer == "chars" or spec.tokenizer.startswith("bpe:"):
        message = f'the tokenizer "{spec.tokenizer}" learns from all text, not a shard'
        fix = "prepare a part of it with bpe:N, then --tokenizer FOLDER/tokenizer.json"
        raise Refused(message, help=fix, code="usage")
    sources = text_sources(spec.paths, spec.folder())
    tokenizer = load_tokenizer(spec.tokenizer, None, end_of_text=spec.end_of_text)
    made = {
        **spec.options(),
        "source": _describe(sources),
        "hash": tokenizer.fingerprint,
    }
    return sources, tokenizer, made


def _describe(sources: Sequence[str | Path]) -> dict[str, Any]:
    """Describe files as `describe_sources` does, and the order of all sources."""
    files = [source.absolute() for source in sources if isinstance(source, Path)]
    # Relative, so that machines may have the files in different folders.
    root = Path(os.path.commonpath(files)) if files else Path()
    names = []
    for source in sources:
        if isinstance(source, Path):
            names.append(os.path.relpath(source.absolute(), root))
        else:
            names.append(source)
    order = hashlib.sha256(json.dumps(names).encode()).hexdigest()
    return {**describe_sources(files, root), "order": order}


def _whole(spec: Any, sources: Sequence[str | Path], survey: Survey) -> Iterator[Part]:
    """Yield all documents of a survey as if they were one split."""
    codes = np.where(survey.sizes < 0, REJECTED, 0).astype(np.uint8)
    for entry, key, size, code in read_again(sources, spec.column, survey, codes):
        yield from cut_document(entry, [(code, size)], key)


def _divided(
    shards: Sequence[PreparedShard],
    codes: UInt8[ndarray, " E"],
    rejected: RejectedRows,
) -> Iterator[EncodedPart]:
    """Yield the documents of shards with their split; duplicates are added to `rejected`."""
    all_codes = iter(codes.tolist())
    for shard in shards:
        info = store_info(shard.folder, shard.manifest)
        stream = TokenStream(
            ids=np.asarray(shard.arrays["train"]),
            starts=np.asarray(shard.arrays["train-starts"]),
            gap=len(info.tokenizer.separator),
        )
        documents = zip(stream.starts.tolist(), stream.stops().tolist(), strict=True)
        with (shard.folder / PLACES).open(encoding="utf-8") as places:
            for size in shard.arrays["sizes"].tolist():
                code = next(all_codes)
                if code == REJECTED:
                    continue
                start, stop = next(documents)
                place = json.loads(next(places))
                if code == DUPLICATE:
                    rejected.add(duplicate(place))
                    continue
                # The ids end with the end-of-text id already, if there is one.
                ids = stream.ids[start:stop]
                yield EncodedPart(code, ids, size, begins=True, ends=False)
