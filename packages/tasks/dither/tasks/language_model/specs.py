"""The menu: language modelling, and the texts it may learn from. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import Field as Option

from dither.registry.config.errors import Refused
from dither.registry.flow.spaces import Field, TokenSpace
from dither.registry.kinds.task import DataSpec, TaskSpec
from dither.registry.spec.base import Slot, named
from dither.registry.spec.misfit import Misfit, below

from .data.tokenizers.names import ADD_END, ENDS, NO_END, SIZES, byte_pair_ids

if TYPE_CHECKING:
    from .data.corpus import Corpus
    from .data.manifest import FolderRecord
    from .data.token_store import TokenShards
    from .data.tokenizers.base import Tokenizer
    from .task import LanguageModelling

__all__ = ["LanguageModel"]


class LanguageModel(TaskSpec):
    """Windows of text: documents one after the other, cut into pieces of equal length."""

    name: ClassVar[str] = "language-model"
    rev: ClassVar[int] = 2
    data: Slot[DataSpec] = named("stdlib-text")
    """Where the text comes from."""
    length: int = Option(1024, ge=1, le=1_048_576)
    """Ids per window."""
    tokenizer: str = Option("auto", min_length=1)
    """bytes (256 ids), chars (those of the training split, and one for all others), gpt2 (50,257 ids), bpe:N (N byte
    pairs learned from the training split), or the path of a tokenizer.json. auto: bytes, or the one that made the
    shards."""
    end_of_text: bool = False
    """Add an id that ends a text to a tokenizer without one, such as bytes and chars; gpt2 and bpe:N have one."""
    documents: Literal["stream", "separate", "ended"] = "stream"
    """stream: windows run on across the borders of documents. separate: each document begins a window, its last window
    is padded, and samples are as long as windows of the training split. ended: the rest of its last window repeats the
    id that ends a text and is learned too, so that the model ends texts by itself."""
    prompt: str = ""
    """A beginning that every drawn sample is given."""
    ngrams: int | None = Option(None, ge=2, le=8)
    """Longest n-gram to compare with: prints 2-grams up to it, and xz, beside the model, and lets it judge samples."""
    judge: str | None = Option(None, min_length=1)
    """Folder of a causal language model of Hugging Face that judges samples: config, safetensors, tokenizer. It wants
    `pip install "dither-tasks[judge]"`."""

    def check(self) -> Iterator[Misfit]:
        """Yield a source that gives something else than text, files that are not there, and too long a prompt."""
        if self.data.gives not in ("text", "token-ids"):
            yield Misfit(f'"{self.data.name}" gives {self.data.gives}, but language-model needs text', ("data",))
        faults = [*below("data", self.data.check())]
        yield from faults
        shards = self.data.gives == "token-ids"
        if not shards and self.tokenizer.startswith("bpe:") and byte_pair_ids(self.tokenizer) is None:
            what = f'bpe:N wants a number of ids N from 257 to 1,000,000, such as bpe:4096; "{self.tokenizer}" has none'
            yield Misfit(what, ("tokenizer",))
        units = {"bytes": "bytes", "auto": "bytes", "chars": "characters"}.get("" if shards else self.tokenizer)
        given = len(self.prompt if units == "characters" else self.prompt.encode("utf-8", "replace"))
        if units is not None and given >= self.length:
            what = f"a prompt of {given} {units} leaves nothing to write in a window of {self.length}"
            yield Misfit(what, ("prompt",))
        if not faults and self.data.gives in ("text", "token-ids"):
            yield from self._misfit_tokenizer(shards)
        if self.judge is not None:
            from .metrics.judge import judge_problems

            yield from (Misfit(text, ("judge",), help=fix) for text, fix in judge_problems(Path(self.judge)))

    def _misfit_tokenizer(self, shards: bool) -> Iterator[Misfit]:
        """Yield a tokenizer that did not make the shards, and that there is no end where documents are to end."""
        try:
            if shards:
                from .data.tokenizers.factory import check_tokenizer

                check_tokenizer(self.tokenizer, self._record().tokenizer, end_of_text=self.end_of_text)
            if self.documents == "ended" and self.space().fields[0].end is None:
                yield Misfit(NO_END, ("documents",), help=ADD_END)
        except Refused as refused:
            for problem in refused.problems:
                yield Misfit(problem.message, tuple(problem.path or ())[1:], help=problem.help)

    def space(self) -> TokenSpace:
        """One field, `text`; its size asks for the data or a file only where the tokenizer depends on it."""
        size, end = self._known() or self._asked()
        if self.end_of_text and end is None:
            size, end = size + 1, size
        return TokenSpace((Field("text", self.length, size, end=end),))

    def build(self) -> LanguageModelling:
        """Read the text and encode it, or map its ids."""
        from .task import LanguageModelling

        corpus: Corpus | TokenShards = self.data.build()
        asked = self.model_dump(include={"length", "documents", "prompt", "ngrams", "judge"})
        return LanguageModelling(corpus, self._load(corpus), **asked)

    def _known(self) -> tuple[int, int | None] | None:
        """Number of ids and the one that ends a text, where the name of the tokenizer says them."""
        if self.data.gives == "token-ids":
            return None
        pairs = byte_pair_ids(self.tokenizer)
        if pairs is not None:
            return pairs, pairs - 1
        name = "bytes" if self.tokenizer == "auto" else self.tokenizer
        return (SIZES[name], ENDS.get(name)) if name in SIZES else None

    def _asked(self) -> tuple[int, int | None]:
        """Return the same from the data or a file."""
        if self.data.gives == "token-ids":
            record = self._record()
            return record.vocabulary, record.tokenizer.end
        if self.tokenizer == "chars" and (told := getattr(self.data, "characters", None)) is not None:
            return len(told()) + 1, None
        found = self._load(None)
        return found.size, found.end

    def _record(self) -> FolderRecord:
        record: FolderRecord = cast(Any, self.data).record()
        return record

    def _load(self, corpus: Corpus | TokenShards | None) -> Tokenizer:
        from .data.token_store import TokenShards
        from .data.tokenizers.factory import check_tokenizer, load_tokenizer

        if isinstance(corpus, TokenShards):
            check_tokenizer(self.tokenizer, self._record().tokenizer, end_of_text=self.end_of_text)
            return corpus.tokenizer
        name = "bytes" if self.tokenizer == "auto" else self.tokenizer
        return load_tokenizer(name, lambda: corpus or self.data.build(), end_of_text=self.end_of_text)
