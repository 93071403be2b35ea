"""Prepared text: the data sources "text" and "token-shards", and the conversion of text files to a token store.

Neither torch nor numpy is imported here, so that an experiment can be validated without them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_folder
from dither.registry.files.cache import cache_folder
from dither.registry.kinds.task import DataSpec
from dither.registry.spec.misfit import Misfit

from ...prepared.manifest import Kind
from ...prepared.spec import PrepareSpec
from .hold_out import HoldOut
from .manifest import MANIFEST, StoreManifest, read_manifest, summarize
from .tokenizers.names import BPE_RANGE, invalid_byte_pairs

if TYPE_CHECKING:
    from ...prepared.rejected import RejectedRows
    from .split_documents import SplitText
    from .token_store import TokenStore

__all__ = ["ConvertedText", "ShardFolder", "convert"]

SOURCES, REJECTED = "sources.jsonl", "left-out.jsonl"
"""Names of the files that list every source, and every place that was rejected."""
SHARDS = Kind("shards", 1, "dither prepare text", "to")


class ShardFolder(DataSpec):
    """A folder of token ids written by `dither prepare text`, memory-mapped, of any size."""

    name: ClassVar[str] = "token-shards"
    gives: ClassVar[str] = "token-ids"
    path: str = Option(min_length=1)
    """The folder, relative to the working directory."""
    verify: Literal["once", "always", "never"] = "once"
    """When to compare checksums and check ids: on first use and after a change, always, or never. File lengths are
    always compared."""

    def check(self) -> Iterator[Misfit]:
        """Yield files that are missing or cut short."""
        yield from _folder_misfits(Path(self.path).expanduser(), "path")

    def record(self) -> StoreManifest:
        """Read the manifest of the folder."""
        return read_manifest(Path(self.path).expanduser())

    def build(self) -> TokenStore:
        """Memory-map the ids."""
        from .token_store import open_store

        return open_store(Path(self.path).expanduser(), self.verify)

    def prepare(self) -> str:
        """Verify every file."""
        from .token_store import open_store

        folder = Path(self.path).expanduser()
        open_store(folder, "always")
        return f"all checksums are correct in {folder}\n{summarize(read_manifest(folder))}"


class ConvertedText(HoldOut, PrepareSpec):
    """Text files of several formats as token ids on disk, converted once by `dither prepare text`."""

    name: ClassVar[str] = "text"
    gives: ClassVar[str] = "token-ids"
    stored: ClassVar[Kind] = SHARDS
    paths: list[str] = Option(min_length=1)
    """Files, folders and globs, relative to the working directory: text, .jsonl (one document a line), .parquet (one a
    row); or "stdlib" and "shakespeare"."""
    to: str = ""
    """Folder of the token ids; by default a folder in the cache, named after the options."""
    tokenizer: str = Option("gpt2", min_length=1)
    """bytes, chars, gpt2, bpe:N (learned from the training split), or the path of a tokenizer.json."""
    end_of_text: bool = False
    """Add an end-of-text id to a tokenizer without one, such as bytes and chars; gpt2 and bpe:N have one."""
    column: str = Option("text", min_length=1)
    """Key of .jsonl, or column of .parquet, that holds the text."""
    documents: int | None = Option(None, ge=1)
    """Stop after this many documents."""
    characters: int | None = Option(None, ge=1)
    """Stop after the document that reaches this many characters."""
    shard: int = Option(1 << 27, ge=1, le=1 << 32)
    """Most ids per file."""
    force: bool = False
    """Replace a folder that was prepared with other options."""

    @model_validator(mode="after")
    def _valid_tokenizer(self) -> ConvertedText:
        if invalid_byte_pairs(self.tokenizer):
            raise ValueError(f'"{self.tokenizer}": {BPE_RANGE}')
        return self

    def folder(self) -> Path:
        """Return the folder of the token ids, which need not exist."""
        if self.to:
            return Path(self.to).expanduser()
        key = json.dumps({**self.options(), "paths": self.paths, "from": str(Path.cwd())}, sort_keys=True)
        return cache_folder() / "shards" / hashlib.sha256(key.encode()).hexdigest()[:16]

    def check(self) -> Iterator[Misfit]:
        """Yield that the text has not been prepared, or files that are missing or cut short."""
        folder = self.folder()
        if (folder / MANIFEST).is_file():
            yield from _folder_misfits(folder, "to")
        else:
            what = f"text not prepared: no {folder / MANIFEST}"
            yield Misfit(what, ("paths",), help=f"run: {self.command()}", code="not-prepared")

    def record(self) -> StoreManifest:
        """Read the manifest of the folder."""
        return read_manifest(self.folder())

    def build(self) -> TokenStore:
        """Memory-map the ids.

        Raises:
            Refused: They are missing, damaged, or were prepared with other options.
        """
        from .token_store import open_store

        made = self.record().made
        changed = [key for key, value in self.options().items() if made.get(key) != value]
        if changed:
            what = f"{self.folder()} was prepared with other options: {', '.join(changed)} changed"
            raise Refused(Problem(what, help=f"run: {self.command()} --force", code="changed-options"))
        return open_store(self.folder())

    def prepare(self) -> str:
        """Convert the text, and report what was taken, and what was rejected and why."""
        return convert(self)


def _folder_misfits(folder: Path, key: str) -> Iterator[Misfit]:
    try:
        read_manifest(folder)
    except Refused as refused:
        for problem in refused.problems:
            yield Misfit(problem.message, (key,), help=problem.help, code=problem.code)


def convert(spec: ConvertedText) -> str:
    """Convert a text; a folder that holds the same already is left alone.

    Raises:
        Refused: No text was found, the folder holds something else, or the tokenizer is not available.
    """
    from ...prepared.rejected import RejectedRows
    from .documents import find_sources, read_documents
    from .split_documents import SplitText, survey

    folder, began = spec.folder(), perf_counter()
    check_owned(folder)
    inside = folder.resolve()  # the store may be in the folder that is read
    sources = [s for s in find_sources(spec.paths) if isinstance(s, str) or not s.resolve().is_relative_to(inside)]
    with RejectedRows() as rejected:
        found = survey(
            read_documents(sources, spec.column),
            rejected,
            valid=spec.valid,
            test=spec.test,
            documents=spec.documents,
            characters=spec.characters,
        )
        return _convert(spec, SplitText(sources, spec.column, found, spec.valid, spec.test), rejected, began)


def _convert(spec: ConvertedText, text: SplitText, rejected: RejectedRows, began: float) -> str:
    from .split_documents import SORTS
    from .token_store import write_store
    from .tokenizers.factory import load_tokenizer

    folder = spec.folder()
    tokenizer = load_tokenizer(spec.tokenizer, lambda: text, end_of_text=spec.end_of_text)
    made = {**spec.options(), "content": text.survey.content(), "hash": tokenizer.fingerprint}
    if (existing := _existing(folder, made, force=spec.force)) is not None:
        return f"{folder} is up to date, nothing was done\n{summarize(existing)}"
    try:
        with atomic_folder(folder) as temporary:
            lines = ({"source": str(source), "bytes": _bytes(source)} for source in text.sources)
            (temporary / SOURCES).write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
            manifest = write_store(
                temporary,
                text.parts(rejected),
                tokenizer,
                made=made,
                sources=len(text.sources),
                shard=spec.shard,
                rejected=rejected,
            )
            for split in ("train", "valid"):
                if not manifest.splits[split].ids:
                    fix = "give more documents, or a larger share"
                    raise Refused(Problem(f'no text is left for the split "{split}"', help=fix, code="no-samples"))
            rejected.save(temporary / REJECTED)
    except OSError as error:
        raise Refused(f"{folder}: cannot be written: {error.strerror or error}", code="unwritable-file") from error
    report = _report(manifest, perf_counter() - began, stopped=text.survey.stopped)
    return "\n".join([report, *rejected.lines("left out", SORTS), f"all of it in {folder}"])


def _existing(folder: Path, made: dict[str, Any], *, force: bool) -> StoreManifest | None:
    """Return the manifest of a folder that holds the same; None if it is missing or damaged.

    Raises:
        Refused: It holds something else, and may not be replaced.
    """
    if not (folder / MANIFEST).is_file():
        return None
    try:
        manifest = read_manifest(folder)
    except Refused:
        return None
    changed = [key for key in sorted({*made, *manifest.made}) if made.get(key) != manifest.made.get(key)]
    if not changed:
        return manifest
    if force:
        return None
    if "tokenizer" in changed:
        changed.remove("hash")
    words = [f"{key} was {manifest.made.get(key)!r}" for key in changed if key != "content"]
    words += ["the text changed"] if "content" in changed else []
    fix = "--force replaces it; --to names another folder"
    what = f"{folder} was prepared with other options: {'; '.join(words)}"
    raise Refused(Problem(what, help=fix, code="changed-options"))


def _report(manifest: StoreManifest, seconds: float, *, stopped: bool) -> str:
    characters = sum(split.characters for split in manifest.splits.values())
    files = "1 source" if manifest.sources == 1 else f"{manifest.sources:,} sources"
    speed = f"{seconds:.1f} s, {characters / 1e6 / max(seconds, 1e-9):.1f} million characters a second"
    limit = "; stopped at the limit" if stopped else ""
    return f"{characters:,} characters of {files} in {speed}{limit}\n{summarize(manifest)}"


def _bytes(source: str | Path) -> int | None:
    try:
        return source.stat().st_size if isinstance(source, Path) else None
    except OSError:  # it is among the rejected
        return None


def check_owned(folder: Path) -> None:
    """Check that a folder is missing, empty, or holds nothing but a token store.

    Raises:
        Refused: It is a file, or replacing it would delete other files.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise Refused(f"{folder} is a file; token ids need a folder", code="file-exists")
    ours = (MANIFEST, REJECTED, SOURCES, "tokenizer.json", "alphabet.json")
    others = sorted(p.name for p in folder.iterdir() if not (p.name.endswith(".bin") or p.name in ours))
    if others:
        shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        fix = "--to names another folder, which is created"
        raise Refused(Problem(f"{folder} contains other files ({shown})", help=fix, code="file-exists"))
