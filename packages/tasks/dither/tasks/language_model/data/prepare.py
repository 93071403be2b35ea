"""The data part "text": from its options to a folder of shards, and back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_folder, fsync
from dither.registry.files.cache import cache_folder

from .documents import entries, find_sources
from .manifest import SIDECAR, TYPES, FolderRecord, find_record, summary_of
from .rejected import LEFT_OUT, Rejected
from .split_documents import Survey, SurveyedText, survey, write_splits
from .token_store import TokenShards, open_shards
from .tokenizers.base import Tokenizer, storage_type
from .tokenizers.factory import load_tokenizer, record_tokenizer

if TYPE_CHECKING:
    from .specs import ConvertedText

__all__ = ["SOURCES", "convert", "destination", "must_be_ours", "open_converted"]


def destination(spec: ConvertedText) -> Path:
    """Return the folder of the shards, whether or not it is there."""
    if spec.to:
        return Path(spec.to).expanduser()
    said = json.dumps({**_options(spec), "paths": spec.paths, "from": str(Path.cwd())}, sort_keys=True)
    return cache_folder() / "shards" / hashlib.sha256(said.encode()).hexdigest()[:16]


def open_converted(spec: ConvertedText) -> TokenShards:
    """Map the shards.

    Raises:
        Refused: They are not there, damaged, or were made with other options.
    """
    folder = destination(spec)
    made = find_record(folder).made
    changed = [key for key, value in _options(spec).items() if made.get(key) != value]
    if changed:
        what = f"{folder} was prepared otherwise: {', '.join(changed)} changed"
        raise Refused(Problem(what, help=f"run: {spec.command()} --force"))
    return open_shards(folder)


def convert(spec: ConvertedText) -> str:
    """Convert a text, and return what became of it.

    A folder that holds the same already is left alone.

    Raises:
        Refused: There is no text, the folder holds something else, or a tokenizer cannot be had.
    """
    folder, began = destination(spec), perf_counter()
    must_be_ours(folder)
    sources = [source for source in find_sources(spec.paths) if not _within(source, folder)]
    with Rejected() as left_out:
        seen = survey(
            entries(sources, spec.column),
            left_out,
            valid=spec.valid,
            test=spec.test,
            documents=spec.documents,
            characters=spec.characters,
        )
        text = SurveyedText(sources, spec.column, seen, spec.valid, spec.test)
        return _convert(spec, text, left_out, began)


def _convert(spec: ConvertedText, text: SurveyedText, left_out: Rejected, began: float) -> str:
    folder, seen = destination(spec), text.seen
    tokenizer = load_tokenizer(spec.tokenizer, lambda: text, end_of_text=spec.end_of_text)
    made = {**_options(spec), "content": seen.content(), "hash": tokenizer.fingerprint}
    if (there := _existing_record(folder, made, force=spec.force)) is not None:
        return f"{folder} holds exactly this already, nothing was done\n{summary_of(there)}"
    try:
        with atomic_folder(folder) as beside:
            record = _write(text, tokenizer, made, left_out, spec.shard, beside)
    except OSError as error:
        raise Refused(f"{folder} cannot be written: {error.strerror or error}") from error
    return "\n".join([_report(record, seen, perf_counter() - began), *left_out.lines(), f"all of it in {folder}"])


def _write(
    text: SurveyedText, tokenizer: Tokenizer, made: dict[str, Any], left_out: Rejected, most: int, folder: Path
) -> FolderRecord:
    """Fill a folder, its record last."""
    splits = write_splits(text.parts(left_out), tokenizer, folder, most)
    for split in ("train", "valid"):
        if not splits[split].ids:
            raise Refused(f'no text is left for the split "{split}"; give more documents, or a larger share')
    record = FolderRecord(
        dtype=TYPES[storage_type(tokenizer).itemsize],
        vocabulary=tokenizer.size,
        tokenizer=record_tokenizer(tokenizer, folder),
        splits=splits,
        made=made,
        sources=len(text.sources),
        left_out=dict(left_out.counts),
    )
    left_out.save(folder)
    listed = ({"source": str(source), "bytes": _bytes(source)} for source in text.sources)
    (folder / SOURCES).write_text("".join(json.dumps(said) + "\n" for said in listed), "utf-8")
    (folder / SIDECAR).write_text(record.model_dump_json(indent=1) + "\n", "utf-8")
    for path in folder.iterdir():
        fsync(path)
    return record


def _existing_record(folder: Path, made: dict[str, Any], *, force: bool) -> FolderRecord | None:
    """Return the record of a folder that holds the same; None where it has to be made.

    Raises:
        Refused: It holds something else, and may not be replaced.
    """
    if not (folder / SIDECAR).is_file():
        return None
    try:
        record = find_record(folder)
    except Refused:
        return None  # damaged: of use to nobody
    changed = [key for key in sorted({*made, *record.made}) if made.get(key) != record.made.get(key)]
    if not changed:
        return record
    if force:
        return None
    if "tokenizer" in changed:
        changed.remove("hash")
    words = [f"{key} was {record.made.get(key)!r}, is {made.get(key)!r}" for key in changed if key in made]
    said = "; ".join("the text is another" if word.startswith("content") else word for word in words)
    fix = "--force replaces them; --to names another folder"
    raise Refused(Problem(f"{folder} holds shards that were made otherwise: {said}", help=fix))


def _report(record: FolderRecord, seen: Survey, seconds: float) -> str:
    characters = sum(split.characters for split in record.splits.values())
    files = "1 source" if record.sources == 1 else f"{record.sources:,} sources"
    speed = f"{seconds:.1f} s, {characters / 1e6 / max(seconds, 1e-9):.1f} million characters a second"
    stopped = "; stopped at the limit" if seen.stopped else ""
    return f"{characters:,} characters of {files} in {speed}{stopped}\n{summary_of(record)}"


def _bytes(source: str | Path) -> int | None:
    try:
        return source.stat().st_size if isinstance(source, Path) else None
    except OSError:  # it is among those left out
        return None


def _within(source: str | Path, folder: Path) -> bool:
    """Tell whether a file is one of the shards, which may lie inside the folder that is read."""
    return isinstance(source, Path) and source.resolve().is_relative_to(folder.resolve())


def _options(spec: ConvertedText) -> dict[str, Any]:
    return spec.model_dump(exclude={"paths", "to", "force", "use"})


SOURCES = "sources.jsonl"
"""Name of the file that lists every file that was read."""


def must_be_ours(folder: Path) -> None:
    """Refuse a place that shards must not take: a file, or a folder that holds something else.

    Raises:
        Refused: There is something else.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise Refused(f"{folder} is a file; shards need a folder")
    others = sorted(path.name for path in folder.iterdir() if not _is_ours(path.name))
    if others:
        some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        fix = "--to names another folder; a new one is made"
        raise Refused(Problem(f"{folder} holds other files than shards ({some}), which stay as they are", help=fix))


def _is_ours(name: str) -> bool:
    return name.endswith(".bin") or name in (SIDECAR, LEFT_OUT, SOURCES, "tokenizer.json", "alphabet.json")
