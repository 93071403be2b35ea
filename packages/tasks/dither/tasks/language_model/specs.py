"""Options and checks of language modelling. Read without torch and numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field as Option

from dither.registry.config.errors import Refused
from dither.registry.contracts.spaces import Field, Space, TokenSpace
from dither.registry.kinds import DataSpec, TaskSpec
from dither.registry.spec.base import PathMark, PathStr, Slot, named
from dither.registry.spec.misfit import Misfit, below

from ..missing_library import require_extra
from .data.specs import (
    ConvertedText,
    Mixture,
    PromptResponse,
    ShardFolder,
    text_conditions,
)
from .data.tokenizers import (
    ADD_END,
    BPE_RANGE,
    ENDS,
    NO_END,
    SIZES,
    TOKENIZERS,
    byte_pair_ids,
    invalid_byte_pairs,
)

if TYPE_CHECKING:
    from .data.corpus import Corpus
    from .data.mixture import MixedText
    from .data.token_store import TokenStore
    from .data.tokenizers.base import Tokenizer
    from .task import LanguageModelling, TextTemplates

__all__ = ["LanguageModel"]

AUTO = {"auto": "bytes"}
"""The tokenizer of text for the option "auto"."""

NAMED_TOKENIZERS = {"bytes", "chars", "gpt2"}
"""Tokenizers that their name alone determines."""


class LanguageModel(TaskSpec):
    """Windows of text: documents one after the other, cut into windows of equal length."""

    name = "language-model"
    hub_task: ClassVar[str] = "text-generation"
    # Windows have one length; shorter documents are padded.
    bucketed: ClassVar[bool | None] = False
    higher: ClassVar[tuple[str, ...]] = ("accuracy*",)
    lower: ClassVar[tuple[str, ...]] = ("*_perplexity",)
    explanations: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "unigram": "each id drawn alone, with its frequency in the training split",
            "unigram-of-split": "with its frequency in the evaluated split, which no model knows",
            "real": "as much text of the data",
        }
    )
    asset_option: ClassVar[str] = "tokenizer"
    rev = 3
    data: Slot[DataSpec] = named("stdlib-text")
    """Source of the text."""
    length: int = Option(1024, ge=1, le=1_048_576)
    """Ids per window."""
    tokenizer: Annotated[str, PathMark(TOKENIZERS)] = Option("auto", min_length=1)
    """bytes (256 ids), chars (those of the training split, and one for all others), gpt2 (50,257
    ids), bpe:N (N byte pairs learned from the training split), the path of a tokenizer.json, or of
    the folder of an AutoTokenizer.
    auto: bytes, or that of the prepared ids."""
    end_of_text: bool = False
    """Add an end-of-text id to a tokenizer without one, such as bytes and chars; gpt2 and bpe:N
    have one."""
    documents: Literal["stream", "separate", "ended", "packed"] = "stream"
    """stream: windows cross document boundaries. separate: each document begins a window, its last
    window is padded, and samples are as long as windows of the training split. ended: the rest of
    its last window repeats the end-of-text id and is learned too, so that the model ends texts by
    itself. packed: whole documents next to each other, each of which attends to itself only, also
    where two share a block of model.block_size; what is left of a window is padded."""
    prompt: str = ""
    """Beginning of every sample."""
    ngrams: int | None = Option(None, ge=2, le=8)
    """Longest n-gram of the baselines: reports 2-grams up to it, and xz, next to the model, and
    scores samples."""
    judge: PathStr | None = Option(None, min_length=1)
    """Folder of a causal language model of Hugging Face that scores samples: config, safetensors,
    tokenizer. Requires transformers."""

    def check(self) -> Iterator[Misfit]:
        """Yield a source without text, missing files, and a wrong tokenizer, prompt or judge."""
        gives_text = self.data.gives in ("text", "token-ids")
        yield from below("data", self.data.check_gives("text", "token-ids"))
        data_misfits = [*below("data", self.data.check())]
        yield from data_misfits
        if self.data.gives != "token-ids" and not self._stores():
            yield from self._text_misfits()
        if data_misfits:
            yield from self._planned_tokenizer_misfits()
        elif gives_text:
            yield from self._tokenizer_misfits()
            if isinstance(self.data, PromptResponse):
                yield from self._pair_misfits(self.data)
        if self.judge is not None:
            from .metrics.judge import judge_problems

            for problem in judge_problems(Path(self.judge)):
                yield problem.as_misfit(("judge",))

    def _text_misfits(self) -> Iterator[Misfit]:
        """Yield an invalid number of byte pairs, and a prompt that fills a window."""
        if invalid_byte_pairs(self.tokenizer):
            yield Misfit(
                f'"{self.tokenizer}": {BPE_RANGE}', ("tokenizer",), code="out-of-range"
            )
        name = AUTO.get(self.tokenizer, self.tokenizer)
        sizes = {
            "bytes": (len(self.prompt.encode("utf-8", "replace")), "bytes"),
            "chars": (len(self.prompt), "characters"),
        }
        # Other tokenizers are not loaded for a check: the build reports such a prompt.
        size, units = sizes.get(name, (0, "ids"))
        if size >= self.length:
            yield Misfit(
                f"a prompt of {size} {units} fills a window of {self.length}",
                ("prompt",),
            )

    def _pair_misfits(self, pairs: PromptResponse) -> Iterator[Misfit]:
        """Yield why prompts with responses do not fit into windows."""
        if self.documents == "stream":
            message = f'"{pairs.name}" has separate documents'
            yield Misfit(message, ("documents",), help='set documents = "packed"')
        if pairs.label is not None and self.documents == "packed":
            message = "documents with labels cannot share a window, which has one label"
            yield Misfit(
                message=message,
                path=("documents",),
                related=("task", "data"),
                help='set documents = "ended"',
            )
        if self.documents != "ended" and self.space().fields[0].end is None:
            message = (
                "a response ends with an end-of-text id, and the tokenizer has none"
            )
            yield Misfit(message, ("end_of_text",), help=ADD_END)

    def starts_known(self) -> bool:
        """Whether there is a prompt."""
        return bool(self.prompt)

    def trains_known(self) -> bool:
        """Whether the data have prompts."""
        return isinstance(self.data, PromptResponse)

    def _tokenizer_misfits(self) -> Iterator[Misfit]:
        """Yield a tokenizer other than that of the prepared ids, and a missing end-of-text id."""
        try:
            for store in self._stores():
                from .data.tokenizers.factory import check_name

                stored = store.record().tokenizer
                check_name(self.tokenizer, stored, end_of_text=self.end_of_text)
            if self.documents == "ended" and self.space().fields[0].end is None:
                yield Misfit(NO_END, ("documents",), help=ADD_END)
        except Refused as refused:
            for problem in refused.problems:
                # Without "task", which the caller adds.
                yield problem.as_misfit(problem.path[1:])

    def _planned_tokenizer_misfits(self) -> Iterator[Misfit]:
        """Yield a tokenizer other than the one that missing data will be prepared with."""
        for store in self._stores():
            if not isinstance(store, ConvertedText):
                continue
            # Two paths may be those of the same tokenizer, two names are not.
            names = {self.tokenizer, store.tokenizer} & NAMED_TOKENIZERS
            if len(names) == 2:
                message = f'the text will be prepared with tokenizer "{store.tokenizer}", not "{self.tokenizer}"'
                fix = f'set tokenizer = "{self.tokenizer}" in the table of the data, and remove it here'
                yield Misfit(message, ("tokenizer",), help=fix)
                return

    def space(self) -> TokenSpace:
        """One field, `text`; reads data or a file only if its size depends on them."""
        size, end = self._size()
        if self.end_of_text and end is None:
            end = size
            size += 1
        labels: tuple[str, ...] = ()
        if isinstance(self.data, PromptResponse):
            labels = self.data.label_names()
        sources: tuple[str, ...] = ()
        if isinstance(self.data, Mixture):
            sources = self.data.source_names()
        field = Field("text", self.length, size, end=end)
        return TokenSpace((field,), text_conditions(self.documents, labels, sources))

    def _stores(self) -> Sequence[ShardFolder | ConvertedText]:
        """Return the sources of token ids."""
        if isinstance(self.data, Mixture):
            return self.data.stores()

        if isinstance(self.data, ShardFolder | ConvertedText):
            return [self.data]
        return []

    def _size(self) -> tuple[int, int | None]:
        """Return number of ids and end-of-text id."""
        if stores := self._stores():
            record = stores[0].record()
            return record.vocabulary, record.tokenizer.end
        name = AUTO.get(self.tokenizer, self.tokenizer)
        pairs = byte_pair_ids(name)
        if pairs is not None:
            return pairs, pairs - 1
        if name in SIZES:
            return SIZES[name], ENDS.get(name)
        if name == "chars":
            # Without a tokenizer, whose modules import numpy.
            # One more for every character that is not in the training split.
            return len(self.data.build().characters()) + 1, None
        tokenizer = self._load(None)
        return tokenizer.size, tokenizer.end

    def build(self) -> LanguageModelling:
        """Read and encode the text, or memory-map its ids."""
        require_extra("language", self.name, ("task",))
        from .task import LanguageModelling

        corpus: Corpus | TokenStore | MixedText = self.data.build()
        options = self.model_dump(
            include={"length", "documents", "prompt", "ngrams", "judge"}
        )
        if isinstance(self.data, PromptResponse):
            options |= {
                "chat": self.data.chat(),
                "labels": self.data.label_names(),
                "long": self.data.long,
            }
        if isinstance(self.data, Mixture):
            options |= {
                "sources": self.data.source_names(),
                "weights": self.data.whole_weights(),
            }
        return LanguageModelling(corpus, self._load(corpus), **options)

    def restore(self, folder: Path, space: Space) -> TextTemplates:
        """Return prompts, gaps to fill in and samples as text, without data."""
        from .data.tokenizers.factory import saved_tokenizer
        from .task import TextTemplates

        assert isinstance(space, TokenSpace)
        chat = None
        if isinstance(self.data, PromptResponse):
            chat = self.data.chat()
        # The tokenizer that `save_assets` wrote.
        tokenizer = saved_tokenizer(folder)
        return TextTemplates(tokenizer, self.length, self.prompt, space, chat)

    def _load(self, corpus: Corpus | TokenStore | MixedText | None) -> Tokenizer:
        from .data.mixture import MixedText
        from .data.token_store import TokenStore
        from .data.tokenizers.factory import check_name, load_tokenizer

        for store in self._stores():
            stored = store.record().tokenizer
            check_name(self.tokenizer, stored, end_of_text=self.end_of_text)
        if isinstance(corpus, TokenStore):
            return corpus.tokenizer
        # All stores of a mixture have the same tokenizer.
        if isinstance(corpus, MixedText) and isinstance(corpus.sources[0], TokenStore):
            return corpus.sources[0].tokenizer
        return load_tokenizer(
            AUTO.get(self.tokenizer, self.tokenizer),
            lambda: corpus or self.data.build(),
            end_of_text=self.end_of_text,
        )
