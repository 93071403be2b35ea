"""A tokenizer by its name in an experiment file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from dither.registry.problems import Problem, Refused

from .tokenizers import Bytes, Characters, Ended, Tokenizer

if TYPE_CHECKING:
    from dither.registry.parts import Split

__all__ = ["TextSource", "load_tokenizer"]


class TextSource(Protocol):
    """What a tokenizer may learn from; a `Corpus` is one."""

    def texts(self, split: Split) -> Iterable[str]:
        """Yield the texts of a split."""
        ...

    def characters(self) -> str:
        """Return every character of the training split once, sorted."""
        ...

    def content(self, split: Split) -> str:
        """Return a digest of the texts of a split."""
        ...


def load_tokenizer(name: str, source: Callable[[], TextSource], *, end_of_text: bool = False) -> Tokenizer:
    """Return a tokenizer by name.

    Args:
        name: "bytes", "chars", "gpt2", "bpe:N", or the path of a `tokenizer.json`.
        source: Returns the text whose training split "chars" and "bpe:N" learn from; asked only then.
        end_of_text: Add an id that ends a text where the tokenizer has none.

    Raises:
        Refused: No such tokenizer, its file is not usable, or there is too little text to learn from.
    """
    found = _named(name, source)
    return Ended(found) if end_of_text and found.end is None else found


def _named(name: str, source: Callable[[], TextSource]) -> Tokenizer:
    if name == "bytes":
        return Bytes()
    if name == "chars":
        return Characters(source().characters())
    if name.startswith("bpe:"):
        return _byte_pairs(name, source)
    from .learned import gpt2, read_tokenizer

    return gpt2() if name == "gpt2" else read_tokenizer(name)


def _byte_pairs(name: str, source: Callable[[], TextSource]) -> Tokenizer:
    from .byte_pairs import byte_pairs
    from .tokenizer_names import byte_pair_ids

    size = byte_pair_ids(name)
    if size is None:
        what = f'"{name}" is no tokenizer: bpe:N wants a number of ids N, such as bpe:4096, from 257 to 1,000,000'
        raise Refused(Problem(what, path=("task", "tokenizer")))
    text = source()
    return byte_pairs(size, text.content("train"), lambda: text.texts("train"))
